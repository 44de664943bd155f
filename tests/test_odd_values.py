"""A foreign hand writes a value that no script would write: it counts as absent, and the queue goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue, doctor, flows
from timeoutq.errors import TimeoutqError

URLS = [f"http://{host}.example/{i}" for host in "ab" for i in range(4)]
FIRST = URLS[1]

Poke = Callable[[redis.Redis, str], Any]


def field(key: str, name: str, value: str = "x") -> Poke:
    return lambda raw, prefix: raw.hset(prefix + key, name, value)


def score(key: str, member: str, at: float) -> Poke:
    return lambda raw, prefix: raw.zadd(prefix + key, {member: at})


def line(key: str, text: str = "x") -> Poke:
    return lambda raw, prefix: raw.lpush(prefix + key, text)


def a_trace_used(raw: redis.Redis, prefix: str) -> None:
    raw.hset(prefix + "traces", FIRST, "digest")
    raw.hset(prefix + "trace_uses", "digest", "x")


def many_traces(raw: redis.Redis, prefix: str) -> None:
    raw.zadd(prefix + "trace_at", {f"digest {i}": i for i in range(10_000)})


def the_last_alarm(raw: redis.Redis, prefix: str) -> None:
    raw.delete(prefix + "alarm")
    raw.xadd(prefix + "alarm", {"at": "1"}, id="18446744073709551615-18446744073709551615")


def a_worker(about: str, at: float | None = None) -> Poke:
    def poke(raw: redis.Redis, prefix: str) -> None:
        raw.hset(prefix + "worker_info", "w", about)
        raw.zadd(prefix + "workers", {"w": time.time() * 1000 if at is None else at})

    return poke


INF = float("inf")
POKES: dict[str, Poke] = {
    **{
        f"meta {name}": field("meta", name)
        for name in ("lease_ms", "fence", "wake_at", "max_crashes", "grace_until", "keep_done", "walk")
    },
    "meta politeness, which is set": lambda raw, prefix: (
        raw.hexists(prefix + "meta", "politeness") and raw.hset(prefix + "meta", "politeness", "x")
    ),
    "meta fence inf": field("meta", "fence", "inf"),
    "meta lease_ms nan": field("meta", "lease_ms", "nan"),
    "meta wake_at huge": field("meta", "wake_at", "9" * 400),
    "meta keep_done nx": field("meta", "keep_done", "nx"),
    "meta walk in a stage": field("meta", "walk", "3 x"),
    "meta walk past the last stage": field("meta", "walk", "99 0"),
    **{
        f"stats {name}": field("stats", name)
        for name in ("put", "claimed", "acked", "failed", "gave_up", "expired", "promoted", "again", "todos_since")
    },
    "stats acked at its end": field("stats", "acked", str(2**63 - 1)),
    **{name: field(name, FIRST) for name in ("crashes", "attempts", "releases", "errors", "runtime")},
    **{f"{name} of a host": field(name, "a.example") for name in ("slots", "resting", "policies", "host_failures")},
    "slots of another host": field("slots", "z.example"),
    "history": line("history"),
    "history of huge numbers": line("history", "9" * 400 + " 1 1 1 1 1"),
    "error_log": line("error_log"),
    "durations": lambda raw, prefix: [raw.hset(f"{prefix}durations{i}", "span", "x") for i in (0, 1)],
    "durations of a bucket": lambda raw, prefix: [raw.hset(f"{prefix}durations{i}", "-80", "x") for i in (0, 1)],
    "trace_uses": a_trace_used,
    "trace_at": many_traces,
    "worker_info": a_worker("[]"),
    "worker_info without end": a_worker('{"pid":1e400,"held":"x"}'),
    "workers without end": a_worker("{}", INF),
    **{f"scheduled {at}": score("scheduled", "late", at) for at in (INF, 1e300, -INF)},
    **{f"leases {at}": score("leases", FIRST, at) for at in (INF, 1e300, -INF)},
    **{f"hosts {at}": score("hosts", "a.example", at) for at in (1e300, -INF)},
    "done_at": score("done_at", "gone", INF),
    "calls": score("calls", "gone", INF),
    "places": score("places", "99999:abc", 0),
    "alarm": the_last_alarm,
}


def look(queue: Queue) -> None:
    """Call all that only looks."""
    queue.stats()
    queue.errors()
    queue.history()
    queue.workers()
    for task in (FIRST, "late"):
        queue.why(task)
        queue.inspect(task)
    for state in ("scheduled", "in_progress", "failed", "waiting"):
        queue.list(state)
    if queue.stats().politeness:
        list(queue.each_host())


def end(queue: Queue, lease: Lease, ended: set[str]) -> None:
    if lease.task.endswith("2"):
        queue.fail(lease, "a reason", retry_in=None)
    elif lease.task.endswith("3") and not lease.attempt > 1:
        queue.fail(lease, ValueError("once more"), retry_in=0)
        return
    else:
        queue.ack(lease)
    ended.add(lease.task)


@pytest.mark.parametrize("polite", [False, True], ids=["plain", "polite"])
@pytest.mark.parametrize("poke", POKES.values(), ids=POKES)
def test_no_odd_value_stops_the_queue_or_loses_a_task(
    url: str, raw: redis.Redis, name: str, poke: Poke, polite: bool
) -> None:
    rules: dict[str, Any] = {"politeness": Politeness(delay=0, per_host=2)} if polite else {}
    with Queue(name, url, timeout=0.1, **rules) as queue:
        queue.put(*URLS)
        queue.put({"a payload": 1})
        queue.claim(2)  # these run out
        poke(raw, queue.operations.key(""))
        doctor.examine(queue)
        look(queue)
        queue.put("one more")
        queue.schedule("due", after=0)
        wanted, ended = {*URLS, "a payload", "one more", "due"}, set[str]()
        if raw.zscore(queue.operations.key("scheduled"), "late") is not None:
            wanted.add("late")

        def go_on() -> bool:
            queue.run(flows.answer(queue.talk, queue.operations.plan(1000)))
            queue.requeue_expired()
            queue.promote_due()
            queue.prune()
            for lease in queue.claim(3, timeout=5):
                end(queue, lease, ended)
            queue.run(flows.answer(queue.talk, queue.operations.beat("w2", {"pid": 1})))
            return wanted <= ended

        wait_until(go_on, 20)
        look(queue)
        doctor.repair(queue)
        assert not [found for found in doctor.examine(queue) if found.check in ("values", "keys", "scripts")]
        assert queue.stats().in_progress == 0
        queue.purge()


@pytest.mark.parametrize(
    ("poke", "told"),
    [
        (field("meta", "lease_ms"), "1 value in meta lease_ms"),
        (field("stats", "acked"), "1 value in stats acked"),
        (field("crashes", "a"), "1 value in crashes"),
        (score("scheduled", "b", INF), "1 value in scheduled"),
        (line("history"), "1 value in history"),
        (line("error_log"), "1 value in error_log"),
    ],
)
def test_doctor_names_an_odd_value_and_repair_removes_it(raw: redis.Redis, queue: Queue, poke: Poke, told: str) -> None:
    queue.put("a")
    poke(raw, queue.operations.key(""))
    (found,) = [found for found in doctor.examine(queue) if found.check == "values"]
    assert told in found.found
    assert told in doctor.repair(queue).found
    assert not [found for found in doctor.examine(queue) if found.check == "values"]
    queue.purge()


def test_a_politeness_that_cannot_be_read_counts_as_the_usual_one(raw: redis.Redis, queue: Queue) -> None:
    queue.configure(politeness=Politeness(delay=5, per_host=3))
    raw.hset(queue.operations.key("meta"), "politeness", "x")
    queue.put(*URLS)
    assert queue.stats().politeness == Politeness(delay=1.0, per_host=1)
    assert len(queue.claim(9)) == 2  # one of each host
    queue.purge()


def test_a_counter_that_is_refused_for_another_reason_is_not_set_anew(raw: redis.Redis, queue: Queue) -> None:
    queue.put("a")
    key = queue.operations.key("stats")
    raw.rename(key, key + ".aside")
    raw.set(key, "a string")
    with pytest.raises(TimeoutqError):
        queue.put("b")
    assert str(raw.get(key)) == "a string"
    raw.delete(key)
    raw.rename(key + ".aside", key)
    queue.purge()
