"""Bugs seeded into what monitors are told: metrics, health checks, traces."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

TABLE = [in_test("test_health_port", "each_condition")]
CREWS = [in_test("test_health_port", "a_supervisor_answers")]

MUTANTS: list[Mutant] = [
    Mutant(
        "the runs of all time are those of the span",
        "lua/verbs/beat.lua",
        "      count_up(key.durations, bucket, runs)\n",
        "",
        [in_test("test_durations", "only_grow")],
    ),
    Mutant(
        "a run is counted below a bound that it exceeds",
        "gateway/metrics.py",
        "rest[-1][0] <= bound:",
        "rest[-1][0] <= 2 * bound:",
        [in_test("test_metrics", "below_its_bound")],
    ),
    Mutant(
        "runs of very long handlers are left out of the last bucket",
        "gateway/metrics.py",
        "passed + sum(runs for _, runs in rest)",
        "passed",
        [in_test("test_metrics", "below_its_bound")],
    ),
    Mutant(
        "a block that is over counts as one",
        "gateway/metrics.py",
        "now_ms < int(words[3]) <= MAX_TIME_MS",
        "int(words[3]) <= MAX_TIME_MS",
        [in_test("test_metrics", "which_rules")],
    ),
    Mutant(
        "a counter that a foreign hand made becomes a series",
        "gateway/metrics.py",
        "for event in EVENTS:",
        "for event in {**dict.fromkeys(EVENTS), **stats.counters}:",
        [in_test("test_metrics", "an_empty_queue_has")],
    ),
    Mutant(
        "a scrape tells a caller of queues that are not the caller's",
        "gateway/probes.py",
        'if caller.may("look", facts.queue)]',
        "]",
        [in_test("test_probes", "tell_of_their_queues_alone")],
    ),
    Mutant(
        "a replica counts as ready",
        "gateway/probes.py",
        "if self._writes else",
        "if not self._writes else",
        [in_test("test_probes", "takes_writes")],
    ),
    Mutant(
        "a worker that waits for the server is red",
        "worker/health.py",
        "    if signs.away:\n        return Verdict(True, True,",
        "    if signs.away:\n        return Verdict(False, True,",
        TABLE,
    ),
    Mutant(
        "a hung claim loop is red while nobody knows that the server answers",
        "worker/health.py",
        " and signs.answered > signs.turned + signs.lease:",
        ":",
        TABLE,
    ),
    Mutant(
        "a loop that is late by two leases counts as hung",
        "worker/health.py",
        "LEASES = 3",
        "LEASES = 2",
        TABLE,
    ),
    Mutant(
        "a drain makes a blocked loop healthy",
        "worker/health.py",
        "    if now - signs.looped > limit:",
        "    if now - signs.looped > limit and signs.phase is Phase.WORKING:",
        TABLE,
    ),
    Mutant(
        "a process that starts makes a crash loop healthy",
        "worker/health.py",
        "working = any(one.phase is not Phase.STARTING for one in signs.values())",
        "working = bool(signs)",
        CREWS,
    ),
    Mutant(
        "a connection that was closed to make room is read",
        "worker/processes/responder.py",
        " and key.fileobj in self._open:",
        ":",
        [in_test("test_health_port", "makes_room_for_another")],
    ),
    Mutant(
        "a run is no part of the caller's trace",
        "functions/tracing.py",
        'f"process {function}", context=parent,',
        'f"process {function}", context=None,',
        [in_test("test_tracing", "in_the_trace_of_the_caller")],
    ),
]
