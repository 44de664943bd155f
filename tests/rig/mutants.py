"""Bugs that were seeded into the scripts and the client, one at a time, to see that the tests notice each of them.

A mutant is one replacement in one file of the package, made in a copy of the tree in which a killer is then run: the
schedules of the model against a server, or tests by name. `python -m tests.rig.mutants [name…]` prints what killed
each; the tests do the same, and fail when one survives.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEDULES = "schedules"
POLITE_SCHEDULES = "schedules --polite"
FILES = {path.stem: path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
"""Where each file of tests is, by its name without the ending: no two files have the same name."""
PROPERTIES = f"{FILES['test_core_model']} -k fakeredis"


ALONE = ("-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--timeout", "60")
"""One test after the other, until one fails, or hangs."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded bug, and what is expected to notice it."""

    name: str
    file: str
    old: str
    new: str
    killers: Sequence[str] = (SCHEDULES,)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killed_by: str | None
    said: str
    seconds: float


def _test(file: str, name: str) -> str:
    return f"{FILES[file]} -k {name}"


WOKEN = [_test("test_wakes", "is_woken")]
FULL = [_test("test_rights_sweep", "a_full_server")]
TORN = [_test("test_rights_sweep", "begins_to_write")]
FOUND = _test("test_core_on_fakeredis", "what_it_found")

MUTANTS = [
    # ---- who holds a lease
    Mutant(
        "an ack needs no token",
        "lua/ack.lua",
        "  ended = #bare == 0 and finish(in_progress, ids, yes)",
        "  for i = 1, #ids do yes[i] = true end\n  ended = #bare == 0 and finish(in_progress, ids, yes)",
        [_test("test_core_on_fakeredis", "while_another_holds"), PROPERTIES],
    ),
    Mutant("a release needs no token", "lua/release.lua", "if yes[i] and held[i]", "if held[i]"),
    Mutant("a fail needs no token", "lua/fail.lua", "  if yes[i] and held", "  if held"),
    Mutant(
        "an extension needs no token", "lua/extend.lua", "  if not yes[i] then\n    codes[i] = 'L'\n  elseif", "  if"
    ),
    Mutant(
        "an extension makes a lease that was taken back",
        "lua/parts/items.lua",
        "held[i] == tokens[i]",
        "(held[i] or tokens[i]) == tokens[i]",
    ),
    Mutant(
        "a supervisor's crash report needs no token",
        "lua/crash.lua",
        "  if yes[i] then",
        "  if true then",
        [_test("test_core_model", "fakeredis")],
    ),
    Mutant(
        "a refused ack drops the lease of the other",
        "lua/ack.lua",
        "if not itself then drop(ended,",
        "if not itself then drop(ids,",
        [_test("test_core", "expired_lease_that_was_taken_back"), PROPERTIES],
    ),
    Mutant(
        "a batch is judged by its first token",
        "lua/parts/items.lua",
        "held[i] == tokens[i]",
        "held[1] == tokens[1]",
        [PROPERTIES, SCHEDULES],
    ),
    # ---- states
    Mutant("put does not look at in_progress", "lua/parts/find.lua", "  mark('p', in_progress)\n", "", [FOUND]),
    Mutant("put does not look at done", "lua/parts/find.lua", "  mark('d')\n", "", [FOUND]),
    Mutant("put does not look at failed", "lua/parts/find.lua", "  mark('f', failed)\n", "", [FOUND]),
    Mutant(
        "a put of one does not look at failed",
        "lua/parts/find.lua",
        "redis.call('SISMEMBER', failed, id) == 1 and 'f'",
        "false",
        [FOUND],
    ),
    Mutant(
        "put does not look at scheduled",
        "lua/parts/find.lua",
        "if not many or redis.call('EXISTS', scheduled) == 1 then",
        "if false then",
        [FOUND],
    ),
    Mutant(
        "a release leaves the task in progress",
        "lua/release.lua",
        "redis.call('SMOVE', in_progress, into[i], ended[i])",
        "redis.call('SADD', into[i], ended[i])",
    ),
    Mutant("a due task stays scheduled", "lua/promote_due.lua", "redis.call('ZREM', scheduled, unpack(ids))\n", ""),
    Mutant(
        "a forgotten task keeps its lease",
        "lua/forget.lua",
        "drop(running)\n",
        "",
        [_test("test_core", "forget_removes"), PROPERTIES],
    ),
    Mutant(
        "a retried task keeps its record",
        "lua/retry_failed.lua",
        "  clear(moved)\n",
        "",
        [_test("test_core_on_fakeredis", "retry_failed")],
    ),
    Mutant(
        "a pulled task stays ready",
        "lua/parts/done.lua",
        "call('SMOVE', from, done, ids[i])",
        "call('SADD', done, ids[i])",
        [_test("test_core", "pull_takes"), PROPERTIES],
    ),
    # ---- leases as others see them
    Mutant(
        "locks never end",
        "lua/claim.lua",
        "redis.call('PSETEX', locks[i], span, token)",
        "redis.call('SET', locks[i], token)",
    ),
    Mutant(
        "the cleaner deletes the lock of a live lease",
        "lua/requeue_expired.lua",
        "  return {now, 0, 0, 0}\n",
        "  local any = redis.call('ZRANGE', leases, 0, 0)\n"
        "  if any[1] then redis.call('DEL', lock .. any[1]) end\n  return {now, 0, 0, 0}\n",
    ),
    Mutant(
        "an extension does not renew the lock",
        "lua/extend.lua",
        "redis.call('PEXPIRE', locks[i], left) == 0",
        "redis.call('EXISTS', locks[i]) == 0",
    ),
    Mutant(
        "a full server leases without a lock",
        "lua/claim.lua",
        "  for i = 1, #picks do\n    if redis.call('SMOVE', todos, in_progress, picks[i]) == 1 then\n"
        "      ids[#ids + 1] = picks[i]\n      redis.call('PSETEX', locks[i], span, token)\n    end\n",
        "  for i = 1, #picks do\n    redis.pcall('PSETEX', locks[i], span, token)\n"
        "    if redis.call('SMOVE', todos, in_progress, picks[i]) == 1 then\n      ids[#ids + 1] = picks[i]\n    end\n",
        [_test("test_core_servers", "a_full_server")],
    ),
    # ---- time
    Mutant("the cleaner is early", "lua/requeue_expired.lua", "'-inf', now, 'LIMIT'", "'-inf', now + 500, 'LIMIT'"),
    Mutant(
        "the cleaner looks and moves in two steps",
        "lua/requeue_expired.lua",
        "local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, n)\n",
        "local looked = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, n)\n"
        "local ids = redis.call('SMEMBERS', stats .. 'looked')\nredis.call('DEL', stats .. 'looked')\n"
        "if #looked > 0 then redis.call('SADD', stats .. 'looked', unpack(looked)) end\n",
    ),
    Mutant("no grace after a restart", "lua/parts/grace.lua", "(known[1] and known[1] ~= run)", "false"),
    Mutant(
        "no grace after a jump of the clock",
        "lua/requeue_expired.lua",
        "longest > 0 and expected > 0 and",
        "false and",
    ),
    Mutant(
        "a claimer does not see that the clock stepped back",
        "lua/claim.lua",
        "then at = now end",
        "then at = at end",
    ),
    Mutant(
        "a cleaner does not see that the clock stepped back",
        "lua/plan.lua",
        "then at = now end",
        "then at = at end",
        [_test("test_clocks", "what_a_cleaner_plans")],
    ),
    Mutant(
        "a promise that the clock stepped over keeps the cleaner asleep",
        "lua/parts/wake.lua",
        "or (wake_at > 0 and wake_at <= now)",
        "",
        [_test("test_clocks", "what_a_cleaner_plans")],
    ),
    Mutant(
        "a client takes a jump of the clock for the way of things",
        "sending.py",
        "elif least <= self._most_ms + slewed_ms:",
        "else:",
        [_test("test_core_servers", "jump_for_the_way")],
    ),
    Mutant(
        "a grace grows when the clock steps back",
        "lua/parts/grace.lua",
        "elseif ends > last then",
        "elseif false then",
        [_test("test_clock_steps", "grace")],
    ),
    Mutant("leases grow when the clock steps back", "lua/requeue_expired.lua", "if longest > 0 then", "if false then"),
    Mutant("not_after is ignored", "lua/claim.lua", "if not_after > 0 and now > not_after then", "if false then"),
    Mutant(
        "max_runtime is the worker's affair only",
        "lua/extend.lua",
        "yes[i] and number(ends[i])",
        "false",
        [_test("test_core", "max_runtime")],
    ),
    Mutant(
        "schedule(after=) counts by the client's clock",
        "arguments.py",
        'return b"+%d" % delay_ms(after, "after")',
        'return b"%d" % (__import__("time").time() * 1000 + delay_ms(after, "after"))',
        [_test("test_testing", "becomes_due"), PROPERTIES],
    ),
    # ---- counters and limits
    Mutant("fences are counted only", "lua/claim.lua", ", time[1] * 1000000 + time[2])", ")"),
    Mutant("fences are the clock only", "lua/claim.lua", "math.max(number(known[1], 0) + 1, ", "math.max(0, "),
    Mutant(
        "crashes are not counted",
        "lua/parts/crashed.lua",
        "local count = number(counts[i], 0) + 1",
        "local count = number(counts[i], 0)",
    ),
    Mutant("failures are not counted", "lua/fail.lua", "number(counts[i], 0) + 1", "number(counts[i], 0)"),
    Mutant("a suspect is not handed out alone", "lua/claim.lua", "number(counts[i], 0) < 2", "true"),
    Mutant(
        "a paused queue gives out tasks",
        "lua/claim.lua",
        "and not paused",
        "",
        [_test("test_core", "pause_stops"), PROPERTIES],
    ),
    Mutant("expired leases are not counted", "lua/requeue_expired.lua", "'expired', back + given_up", "'expired', 0"),
    # ---- replies that were lost
    Mutant(
        "a claim that is sent again tells a later deadline",
        "lua/claim.lua",
        "  if #ids > 0 then deadline = moment(redis.call('ZSCORE', leases, ids[1])) or deadline end\n",
        "",
    ),
    Mutant("a claim does not know its own token again", "lua/claim.lua", "if age > 0 or from then", "if false then"),
    Mutant(
        "a put does not know its own call again",
        "lua/put.lua",
        "if before then",
        "if false then",
        [_test("test_replay", "put_again")],
    ),
    Mutant("an ack does not know its own call again", "lua/parts/replay.lua", "if codes[i] == 'L' and", "if false and"),
    Mutant(
        "a call that is sent again says that it is new",
        "sending.py",
        "self.error, self._may_have_run = reply, True",
        "self.error = reply",
        [_test("test_replay", "whose_reply_was_lost")],
    ),
    Mutant(
        "a pull is sent again",
        "operations.py",
        "replies.pulled, replayable=False)",
        "replies.pulled)",
        [_test("test_replay", "pull")],
    ),
    Mutant(
        "a worker that stops keeps what its last claim brings",
        "worker/lanes.py",
        "if shared.stopping.level or shared.common.leaving or suspects.waiting is not None:",
        "if shared.common.leaving or suspects.waiting is not None:",
        [_test("test_worker_exchanges", "stop_gives_back")],
    ),
    Mutant(
        "what a claim took is not given back when a handler cancels the exchange",
        "worker/exchanges.py",
        "                self.miss(claim, sent_at, sent_at)\n            raise",
        "                self.source.over(claim)\n            raise",
        [_test("test_worker_exchanges", "cancels_all_tasks")],
    ),
    Mutant(
        "what the claim behind the bell took is forgotten when the wait ends",
        "worker/sources.py",
        "miss(claim, sent_at, time.monotonic())",
        "self.over(claim)",
        [_test("test_claim_behind_bell", "when_the_worker_ends")],
    ),
    Mutant(
        "a claim waits behind the bell while a suspect runs",
        "worker/lanes.py",
        "            shared.deafen()\n            shared.give_back_unstarted()",
        "            shared.give_back_unstarted()",
        [_test("test_claim_behind_bell", "beside_a_suspect")],
    ),
    Mutant(
        "a worker that hung begins with a lease that has almost run out",
        "flows.py",
        "talk.clock.now_ms > half_ms",
        "False",
        [_test("test_claim_behind_bell", "old_lease")],
    ),
    Mutant(
        "a waiting claim whose reply was lost begins anew",
        "flows.py",
        "replace(call, sent_ms=int((time.monotonic() - asked) * 1000) + 1)",
        "make()",
        [_test("test_faults", "the_bell_breaks")],
    ),
    Mutant(
        "a bell that is refused hides what the claim behind it took",
        "link.py",
        "    if all(isinstance(reply, BaseException) for reply in replies):",
        "    if isinstance(replies[0], BaseException):",
        [_test("test_links", "though_the_bell_is_refused")],
    ),
    Mutant(
        "a lower queue is asked while a higher one has tasks",
        "worker/sharing.py",
        "return 0 if any(above.hungry for above in lanes[:lane]) else want",
        "return want",
        [_test("test_lanes", "begins_before_the_second")],
    ),
    Mutant(
        "an urgent task waits behind what was fetched before",
        "worker/crews.py",
        "self._ranks[work.rank].append(",
        "self._ranks[0].append(",
        [_test("test_lanes", "not_for_those_that_were_fetched")],
    ),
    Mutant(
        "a queue that was empty has saved up tasks",
        "worker/sharing.py",
        "if not (one.hungry or one.late):",
        "if False:",
        [_test("test_sharing", "saves_nothing_up")],
    ),
    Mutant(
        "a busy worker keeps the stroke of a bell from those who are free",
        "flows.py",
        "heard[0] is not None and not has_room():",
        "heard[0] is not None and False:",
        [_test("test_lanes", "leaves_an_urgent_task_to_another")],
    ),
    Mutant(
        "a handler is kept free for an empty queue while another queue has tasks",
        "worker/lanes.py",
        "            self.crowded_until = time.monotonic() + CROWDED\n            self.deafen()",
        "            pass",
        [_test("test_lanes", "only_while_other_handlers_are_free")],
    ),
    Mutant(
        "a suspect of one queue runs beside the tasks of another",
        "worker/pump.py",
        "elif not (shared.running or self.crew.unstarted or shared.claiming_now or self._holds_others(suspect)):",
        "elif not self.lanes[self.suspects.lane].desk.running:",
        [_test("test_lanes", "suspect_waits_for_the_handlers")],
    ),
    Mutant(
        "a queue that is refused ends the work on all others",
        "worker/exchanges.py",
        "if len(self.refused) == self.lanes:",
        "if self.refused:",
        [_test("test_lanes", "refused_does_not_stop")],
    ),
    Mutant(
        "a supervisor does not tell the second queue of a dead process",
        "supervisor.py",
        "child.ledger.read(lane)",
        "child.ledger.read(0) if lane == 0 else ([], [])",
        [_test("test_lanes_processes", "tells_both_queues")],
    ),
    Mutant(
        "a worker that ends does not ask what its last claims took",
        "worker/closing.py",
        "while part.has_more:",
        "while part.ends:",
        [_test("test_claim_behind_bell", "when_the_worker_ends")],
    ),
    Mutant(
        "what a claim took is never asked for again after an outage",
        "worker/exchanges.py",
        "if type(claimed) in (Unavailable, NotReplicated):",
        "if False:",
        [_test("test_worker_exchanges", "all_of_whose_replies")],
    ),
    Mutant(
        "a script that the server forgot is not loaded again",
        "sending.py",
        "if is_script_missing(error):",
        "if False:",
        [_test("test_replay", "forgot")],
    ),
    Mutant(
        "a replayed put writes nothing for its WAIT",
        "lua/parts/answered.lua",
        "  called_again(call_id)\n  local where",
        "  local where",
        [_test("test_replicas", "sent_again_on_another_connection")],
    ),
    Mutant(
        "a replayed ack writes nothing for its WAIT",
        "lua/parts/replay.lua",
        "  if has('durable') and whole then called_again(call_id) end\n",
        "",
        [_test("test_replicas", "sent_again_on_another_connection")],
    ),
    Mutant(
        "a replayed import writes nothing for its WAIT",
        "lua/restore.lua",
        "  if has('durable') then called_again(call_id) end\n",
        "",
        [_test("test_replicas", "sent_again_on_another_connection")],
    ),
    Mutant(
        "a replayed retry writes nothing for its WAIT",
        "lua/parts/mark.lua",
        "  redis.call('HSET', meta, 'mark', now)\n",
        "",
        [_test("test_replicas", "sent_again_on_another_connection")],
    ),
    Mutant(
        "the queue forgets a part of an ack that is sent again and again for a minute",
        "lua/parts/replay.lua",
        "if has('durable') and not whole then",
        "if false then",
        [_test("test_durable", "for_a_minute_after")],
    ),
    Mutant(
        "replicas that confirm are not counted",
        "sending.py",
        "confirmed >= self.wanted",
        "confirmed >= 0",
        [_test("test_durable", "not_confirmed")],
    ),
    Mutant(
        "a claim on a durable queue waits for no replica",
        "confirming.py",
        '"restore", "claim", "extend"',
        '"restore", "extend"',
        [_test("test_replicas", "survives_a_failover")],
    ),
    Mutant(
        "an ack on a durable queue waits for no replica",
        "confirming.py",
        '"extend", "ack", "fail"',
        '"extend", "fail"',
        [_test("test_replicas", "survives_a_failover")],
    ),
    Mutant(
        "a claim that replicas do not confirm keeps its tasks",
        "flows.py",
        "yield from give_back(talk, nothing_more, ",
        "int(",
        [_test("test_durable", "gives_its_tasks_back")],
    ),
    Mutant(
        "a worker keeps what replicas have not confirmed until they confirm again",
        "worker/exchanges.py",
        "if trouble is None or isinstance(trouble, NotReplicated):",
        "if trouble is None:",
        [_test("test_durable", "worker_waits_for_replicas")],
    ),
    Mutant(
        "replicas may take longer to confirm a claim than its leases run",
        "sending.py",
        "flush.unconfirmed and elapsed >= flush.patience",
        "False",
        [_test("test_durable", "short_lease")],
    ),
    Mutant(
        "a client never looks again whether the queue is durable",
        "confirming.py",
        "now + FRESH",
        "now + 1e9",
        [_test("test_durable", "that_it_makes_anyway")],
    ),
    Mutant(
        "what the old primary said of an ack counts more than what the new one says",
        "confirming.py",
        "if call.name in ENDS:",
        "if False:",
        [_test("test_durable", "second_answer_counts")],
    ),
    Mutant(
        "a cancelled claim keeps what it took",
        "flows.py",
        "yield from answers(talk, talk.operations.release(leases), UNCONFIRMED)",
        "pass",
        [_test("test_replay", "cancelled_gives_back")],
    ),
    # ---- who wakes whom
    Mutant(
        "a task that is put rings no bell",
        "lua/parts/ready.lua",
        "  ring()\n  return count\n",
        "  return count\n",
        WOKEN,
    ),
    Mutant(
        "a claim that leaves tasks rings no bell", "lua/claim.lua", "    if ready > #ids then ring() end\n", "", WOKEN
    ),
    Mutant("nobody looks when a new lease ends", "lua/claim.lua", "    rouse(deadline)\n", "", WOKEN),
    Mutant("nobody looks when a shorter lease ends", "lua/extend.lua", "  rouse(first)\n", "", WOKEN),
    Mutant("nobody looks when the next visit is due", "lua/ack.lua", "    rouse(now + again_ms)\n", "", WOKEN),
    Mutant("nobody looks when the next attempt is due", "lua/fail.lua", "      rouse(now + retry)\n", "", WOKEN),
    Mutant("nobody looks when a released task is due", "lua/release.lua", "    rouse(soonest)\n", "", WOKEN),
    Mutant("a released task rings no bell", "lua/release.lua", "  arrive(back, back_names)\n", "", WOKEN),
    Mutant("nobody looks when a scheduled task is due", "lua/parts/add.lua", "      rouse(due)\n", "", WOKEN),
    Mutant(
        "a due task rings no bell",
        "lua/promote_due.lua",
        "  ready(ids)\n",
        "  redis.call('SADD', todos, unpack(ids))\n",
        WOKEN,
    ),
    Mutant("a retried task rings no bell", "lua/retry_failed.lua", "  arrive(moved, moved_names)\n", "", WOKEN),
    Mutant(
        "a task that is taken back rings no bell", "lua/parts/crashed.lua", "  arrive(again, again_names)\n", "", WOKEN
    ),
    Mutant(
        "a resumed queue rings no bell",
        "lua/configure.lua",
        "  if name == 'paused' and value == '0' then ring() end\n",
        "",
        WOKEN,
    ),
    Mutant("nobody looks when a grace ends", "lua/requeue_expired.lua", "  rouse(grace_until)\n", ""),
    Mutant("cleaners do not say when they look again", "lua/plan.lua", "'wake_at', at)", "'wake_at', 0)"),
    Mutant(
        "one stroke of the bell is not enough", "lua/parts/wake.lua", "redis.call('EXISTS', bell) == 0", "true", WOKEN
    ),
    Mutant("a put wakes nobody", "lua/parts/ready.lua", "  ring()\n", "", [_test("test_core", "stroke_of_the_bell")]),
    Mutant(
        "a lease is extended by nobody while its handler works",
        "heartbeat.py",
        "if now >= self._extend_at:",
        "if False:",
        [_test("test_core_servers", "leases_of_those_who_live")],
    ),
    Mutant(
        "a lost lease does not stop its handler",
        "heartbeat.py",
        "            self._on_lost(refused)",
        "            pass",
        [_test("test_worker", "lost_lease_cancels")],
    ),
    Mutant(
        "one worker takes all of a short queue",
        "lua/claim.lua",
        "n = math.min(n, math.max(1, math.ceil(ready / tonumber(given.share or 1))))\n",
        "n = math.min(n, ready)\n",
        [_test("test_core", "takes_its_share")],
    ),
    Mutant(
        "a server that evicts is trusted",
        "flows.py",
        'if policy not in (None, "noeviction") and not allow_eviction:',
        "if False:",
        [_test("test_core_servers", "away_at_first")],
    ),
    # ---- hosts and their turns
    Mutant(
        "a release keeps the place of its host",
        "lua/release.lua",
        "  depart(ended, ended_names, 0, 0)\n",
        "",
        [_test("test_polite", "end_of_the_last")],
    ),
    Mutant(
        "a lease that ran out keeps the place of its host",
        "lua/parts/crashed.lua",
        "  depart(gone, names, 0, 1)\n",
        "",
        [_test("test_polite", "after_a_lease_ran_out")],
    ),
    Mutant(
        "the delay of a host is ignored",
        "lua/parts/polite.lua",
        "one.next_ms or 0, inf\n",
        "0, inf\n",
        [_test("test_polite", "end_of_the_last")],
    ),
    Mutant(
        "a pause that was cut begins again with each look",
        "lua/parts/polite.lua",
        "one.next_ms, one.rested = most, true end",
        "one.next_ms = most end",
        [_test("test_polite", "rules_that_change_are")],
    ),
    Mutant(
        "a block by a worker leaves what is ready",
        "lua/parts/polite.lua",
        "      recall(one)\n",
        "",
        [_test("test_polite", "release_that_blocks_takes_back")],
    ),
    Mutant(
        "a block by the operator leaves what is ready",
        "lua/host.lua",
        "  recall(one)\n",
        "",
        [_test("test_polite", "block_takes_back")],
    ),
    Mutant(
        "a budget is one visit more than it says",
        "lua/parts/polite.lua",
        "one.budget - one.visits - taken",
        "one.budget - one.visits - taken + 1",
        [_test("test_polite", "budget_is_the_most")],
    ),
    Mutant(
        "a banned host is visited",
        "lua/parts/polite.lua",
        "if one.flag == 'x' then",
        "if false then",
        [_test("test_polite", "banned_host_is_never")],
    ),
    Mutant(
        "a turn hands over all that a host may have",
        "lua/parts/polite.lua",
        "hand_over(one, math.min(free, left), out)",
        "hand_over(one, free, out)",
        [_test("test_polite_bounds", "a_part_at_a_time")],
    ),
    Mutant(
        "what one script leaves waits for the next ack",
        "lua/parts/polite.lua",
        "if left == 0 and free > 0 then score = more(one) end",
        "",
        [_test("test_polite_bounds", "a_part_at_a_time")],
    ),
    Mutant(
        "a recall ends with its first step",
        "lua/parts/polite.lua",
        "one.recall, one.moved = #ids == left and ids[#ids] or nil, true",
        "one.recall, one.moved = nil, true",
        [_test("test_polite_bounds", "takes_back_all")],
    ),
    Mutant(
        "a claim that is sent again looks through the first part only",
        "lua/claim.lua",
        "if moment(score) and moment(score) <= deadline then",
        "if false then",
        [_test("test_replay", "a_part_at_a_time")],
    ),
    Mutant(
        "a claim that goes on misses what stands behind a lease that has gone",
        "lua/claim.lua",
        "redis.call('ZRANGEBYSCORE', leases, from or now - age - 1000 + lease_ms, deadline",
        "redis.call('ZRANGEBYSCORE', leases, from and '(' .. from or now - age - 1000 + lease_ms, deadline",
        [_test("test_replay", "has_gone_meanwhile")],
    ),
    Mutant(
        "drained overlooks those who wait for their host",
        "lua/drained.lua",
        " or turn_before(ARGV[3])",
        "",
        [_test("test_polite", "drained_counts")],
    ),
    Mutant(
        "an ack that is sent again is another visit",
        "lua/ack.lua",
        "return settle(call_id, codes, lost, #ended + #anew + #stopped)",
        "local letters = settle(call_id, codes, lost, #ended + #anew + #stopped)\n"
        "if polite and string.find(letters, 'R') then\n  depart(ids, hosts_of(ids), 1, 0)\n  turn()\nend\n"
        "return letters",
        [_test("test_polite", "sent_again_changes")],
    ),
    Mutant(
        "politeness that begins forgets what is in progress",
        "lua/convert.lua",
        "      occupy(names[i], ids[i])\n",
        "",
        [_test("test_polite", "has_its_place_before")],
    ),
    Mutant(
        "politeness that began halfway stays so",
        "lua/parts/switch.lua",
        "redis.call('HEXISTS', meta, 'converting') == 1 end",
        "false end",
        [_test("test_polite", "whose_client_died")],
    ),
    # ---- what an ack does in one step for hosts with one place
    Mutant(
        "an ack overlooks the rules of a host",
        "lua/parts/polite.lua",
        "own and own[i] or rested",
        "rested",
        [_test("test_polite", "places_of_all")],
    ),
    Mutant(
        "an ack passes on a place that another task has",
        "lua/parts/polite.lua",
        "sub(text, at) == id and byte(id)",
        "byte(id)",
        [_test("test_polite", "another_task_that_has_it")],
    ),
    Mutant(
        "a place that an ack passes on is not told from several",
        "lua/parts/polite.lua",
        "if byte(first) == 0 then",
        "if false then",
        [_test("test_polite", "begins_with_a_nul")],
    ),
    Mutant(
        "an ack passes the place on to the lowest priority",
        "lua/parts/polite.lua",
        "call('ZPOPMIN', key('host:' .. name))[1]",
        "call('ZPOPMAX', key('host:' .. name))[1]",
        [_test("test_priority", "highest_priority_is_next")],
    ),
    Mutant(
        "a host does not rest after an ack",
        "lua/parts/polite.lua",
        "          rests[#rests + 1], rests[#rests + 2] = name, again\n",
        "",
        [POLITE_SCHEDULES],
    ),
    Mutant(
        "nobody is told when a host has its turn after an ack",
        "lua/parts/polite.lua",
        "    if waits then rouse(now + usual_delay) end\n",
        "",
        [POLITE_SCHEDULES],
    ),
    Mutant(
        "an ack puts its links before its host rests",
        "lua/ack.lua",
        "  if #found > 0 then rest(ids, yes, held) end\n",
        "",
        [POLITE_SCHEDULES, _test("test_polite_spacing", "take_all_places")],
    ),
    Mutant(
        "what is ready when a visit ends stays ready",
        "lua/parts/polite.lua",
        "    if (one.next_ms or 0) <= now then recall(one) end\n    one.next_ms, one.rested = now + delay",
        "    one.next_ms, one.rested = now + delay",
        [POLITE_SCHEDULES, _test("test_polite_spacing", "fail-2")],
    ),
    Mutant(
        "ready tasks that wait again lose their place in the line",
        "lua/parts/polite.lua",
        "'%.0f', 1 - (ahead and ahead[j]",
        "'%.0f', now - (ahead and ahead[j]",
        [_test("test_polite_spacing", "the_first_of_their_priority")],
    ),
    Mutant(
        "a queue that becomes polite lets no host rest",
        "lua/parts/switch.lua",
        "    redis.call('HSET', key('resting'), '', now)\n",
        "",
        [_test("test_polite_spacing", "before_the_queue_became_polite")],
    ),
    Mutant(
        "the pause of an import leaves what is ready",
        "lua/restore_hosts.lua",
        "    if (one.next_ms or 0) <= now then recall(one) end\n",
        "",
        [_test("test_polite_spacing", "the_pause_of_an_export")],
    ),
    Mutant(
        "a host with a delay has more places than can be taken back in one step",
        "lua/parts/polite.lua",
        "    if count > most_resting and (one.delay or usual_delay) > 0 then return most_resting end\n",
        "",
        [_test("test_polite_spacing", "ten_thousand_places")],
    ),
    # ---- priorities, and tasks that run once more
    Mutant(
        "a priority changes nothing",
        "lua/parts/priority.lua",
        "(read_priority(ahead[i]) or 0) * point",
        "0",
        [_test("test_priority", "highest_priority_is_next")],
    ),
    Mutant(
        "the lowest priority is next",
        "lua/parts/polite.lua",
        "call('ZPOPMIN', key('host:' .. one.name), free)",
        "call('ZPOPMAX', key('host:' .. one.name), free)",
        [POLITE_SCHEDULES],
    ),
    Mutant(
        "a task that is gone leaves its priority",
        "lua/parts/priority.lua",
        "if has('priority') then redis.call('HDEL', key('priorities'), unpack(ids)) end",
        "",
        [_test("test_priority", "leaves_no_priority")],
    ),
    Mutant(
        "a task that becomes ready again forgets its priority",
        "lua/parts/polite.lua",
        "ahead and string.format('%.0f', now - ahead[i]) or now",
        "now",
        [_test("test_priority", "stays_with_its_task")],
    ),
    Mutant(
        "a task that is taken back forgets its priority",
        "lua/parts/polite.lua",
        "1 - (ahead and ahead[1] or 0)",
        "1",
        [_test("test_priority", "taken_back_wait_in")],
    ),
    Mutant(
        "several tasks that are taken back forget their priorities",
        "lua/parts/polite.lua",
        "1 - (ahead and ahead[j] or 0)",
        "1",
        [_test("test_priority", "taken_back_wait_in")],
    ),
    Mutant(
        "a recall takes back what is in progress",
        "lua/parts/polite.lua",
        "    if ready[j] == 1 then\n",
        "    if true then\n",
        [POLITE_SCHEDULES],
    ),
    Mutant(
        "a forgotten task stays in its lane",
        "lua/parts/polite.lua",
        "    call('ZREM', key('host:' .. name), id)\n",
        "",
        [_test("test_polite", "forget")],
    ),
    Mutant(
        "a waiting task with a higher priority stays where it is",
        "lua/parts/raise.lua",
        "'XX', 'INCR', string.format('%.0f', less), ids[i])",
        "'XX', 'INCR', 0, ids[i])",
        [_test("test_priority", "raises_a_task_that")],
    ),
    Mutant(
        "a raised task keeps its payload",
        "lua/parts/raise.lua",
        "        if bodies[i] then redis.call('HSET', payload, ids[i], bodies[i]) end\n",
        "",
        [_test("test_priority", "raises_a_task_that")],
    ),
    Mutant(
        "the same priority raises",
        "lua/parts/raise.lua",
        "local more = priority > (read_priority(before[i]) or 0)",
        "local more = priority >= (read_priority(before[i]) or 0)",
        [_test("test_priority", "not_higher")],
    ),
    Mutant(
        "of an id that is named twice the last counts",
        "lua/parts/raise.lua",
        "priority and priority > (priorities[other] or where[i] and -math.huge or 0)",
        "priority",
        [_test("test_priority", "named_twice_the_highest")],
    ),
    Mutant(
        "every put brings done tasks back",
        "lua/parts/raise.lua",
        "elseif more and (all or improves[ids[i]]) and state == 'd' then",
        "elseif more and state == 'd' then",
        [_test("test_priority", "done_at_a_lower")],
    ),
    Mutant(
        "a lower mark replaces a higher one",
        "lua/parts/raise.lua",
        "if not mark or priority > (read_priority(string.match(mark, '^%S+')) or 0) then changes[i] = 'marked' end",
        "changes[i] = 'marked'",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "a task that comes back keeps the priority of its last run",
        "lua/parts/raise.lua",
        "    if #rows > 0 then redis.call('HSET', key('priorities'), unpack(rows)) end\n",
        "",
        [_test("test_priority", "done_at_a_lower")],
    ),
    Mutant(
        "the first priority of a queue is lost if its task is in progress",
        "lua/parts/raise.lua",
        "if (changes[i] == 'up' or changes[i] == 'marked') and",
        "if changes[i] == 'up' and",
        [_test("test_priority", "first_priority_of")],
    ),
    Mutant(
        "a queue without turns takes priorities",
        "lua/parts/raise.lua",
        "  if not polite then\n",
        "  if false then\n",
        [_test("test_priority", "not_polite_has_no_order")],
    ),
    Mutant(
        "a task without a host takes a priority",
        "lua/parts/raise.lua",
        "elseif word and not (groups[i] or names[i]) then",
        "elseif false then",
        [_test("test_priority", "without_a_host_has")],
    ),
    Mutant(
        "schedule moves the callback of a batch, which waits for the batch",
        "lua/parts/add.lua",
        "if codes[i] == 'A' or where[i] == 's' then",
        "if codes[i] == 'A' or codes[i] == 's' then",
        [_test("test_batches", "no_put_changes_a_callback")],
    ),
    Mutant(
        "an improved task has its old payload",
        "lua/parts/rerun.lua",
        "      if with == '1' then redis.call('HSET', key('payload'), ids[i], body) end\n",
        "",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "an improved task has its old priority",
        "lua/parts/rerun.lua",
        "      if has('priority') then redis.call('HSET', key('priorities'), ids[i], priority) end\n",
        "",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "a mark outlives its run",
        "lua/parts/rerun.lua",
        "  redis.call('HDEL', key('rerun'), unpack(ids))\nend",
        "end",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "the next run has the record of the last",
        "lua/parts/rerun.lua",
        "  clear(anew)\n",
        "",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "a run that is repeated is not counted",
        "lua/parts/rerun.lua",
        "  if #moved > 0 then count_up(stats, 'reruns', #moved) end\n",
        "",
        [_test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "a batch repeats every task",
        "lua/parts/rerun.lua",
        "if marks[i] and which[i] then anew",
        "if which[i] then marks[i] = marks[i] or '0 0' anew",
        [_test("test_priority", "only_the_improved")],
    ),
    Mutant(
        "a result is written when the task is tried again",
        "lua/fail.lua",
        "held[i] == 1 and retries[i] < 0 and not marks[i] end\n  fresh",
        "held[i] == 1 and not marks[i] end\n  fresh",
        [_test("test_results", "not_before")],
    ),
    Mutant(
        "the result of the run before stays",
        "lua/parts/results.lua",
        "  if #old > 0 then redis.call('DEL', unpack(old)) end\n",
        "",
        [_test("test_results", "removes_the_one_of_the_run_before")],
    ),
    Mutant(
        "a result that does not fit keeps the task",
        "lua/parts/results.lua",
        "full or redis.pcall('PSETEX', name, ms, bodies[i])",
        "full or redis.call('PSETEX', name, ms, bodies[i])",
        [_test("test_results", "full_server_still_takes_acks")],
    ),
    Mutant(
        "a bare ack leaves its id",
        "lua/ack.lua",
        "ended = #bare == 0 and finish(",
        "ended = finish(",
        [_test("test_results", "leaves_no_id")],
    ),
    Mutant(
        "a cancelled task that is released runs again",
        "lua/release.lua",
        "    if by[i] then\n",
        "    if false then\n",
        [_test("test_cancel", "would_run_again")],
    ),
    Mutant(
        "a cancelled task that fails is tried again",
        "lua/fail.lua",
        "    elseif by[i] then\n",
        "    elseif false then\n",
        [_test("test_cancel", "would_run_again")],
    ),
    Mutant(
        "a cancelled task that is acked for a time runs again",
        "lua/ack.lua",
        "  if has('cancel') then stopped = rarely('stop')(ids, yes, over) end\n",
        "",
        [_test("test_cancel", "would_run_again")],
    ),
    Mutant(
        "a cancelled task whose lease runs out is ready again",
        "lua/parts/crashed.lua",
        "or by[i] and failed or entry(",
        "or entry(",
        [_test("test_cancel", "would_run_again")],
    ),
    Mutant(
        "a retried task is cancelled again",
        "lua/parts/cancel.lua",
        "redis.call('HDEL', key('cancels'), unpack(ids)) == 0",
        "true",
        [_test("test_cancel", "not_cancelled_any_more")],
    ),
    Mutant(
        "a cancel wakes nobody",
        "lua/cancel.lua",
        "  rouse(now)\n",
        "",
        [_test("test_cancel", "wakes_the_cleaners")],
    ),
    Mutant(
        "a cancelled task keeps the place of its host",
        "lua/cancel.lua",
        "  withdraw(gone, was)\n",
        "",
        [_test("test_cancel", "given_up")],
    ),
    Mutant(
        "an extension does not tell of a cancel",
        "lua/extend.lua",
        "by[i] and 'c' or 'O'",
        "'O'",
        [_test("test_cancel", "its_extension_says_so")],
    ),
    Mutant(
        "a worker that hears of a cancel does nothing",
        "worker/interrupts.py",
        '                self.cancel(run, "cancelled")\n',
        "                pass\n",
        [_test("test_worker_cancels", "at_once")],
    ),
    Mutant(
        "a worker loses the lease of a cancelled task whose handler has not begun",
        "worker/interrupts.py",
        "                self._desk.given_back([lease])\n                self._desk.wake()\n        elif not",
        "                self._desk.lost(lease)\n        elif not",
        [_test("test_worker_cancels", "never_begins")],
    ),
    Mutant(
        "a cancelled handler in a thread is acked",
        "worker/desk.py",
        "elif run.cancelled and run.task is None:",
        "elif False:",
        [_test("test_worker_cancels", "waited_for")],
    ),
    Mutant(
        "an id blocks until prune comes",
        "lua/parts/lasting.lua",
        "      lapsed[i] = (moment(ends[i]) or now + 1) <= now\n",
        "",
        [_test("test_unique", "exactly_until_its_time")],
    ),
    Mutant(
        "prune forgets an id that still blocks",
        "lua/parts/ages.lua",
        "return not_lasting(redis.call('SRANDMEMBER', done, n))",
        "return redis.call('SRANDMEMBER', done, n)",
        [_test("test_unique", "exactly_until_its_time")],
    ),
    Mutant(
        "an id that blocks for a time is dated like the others",
        "lua/parts/ages.lua",
        "  local ids = not_lasting(page[2])\n",
        "  local ids = page[2]\n",
        [_test("test_unique", "changes_later")],
    ),
    Mutant(
        "a fingerprint stays, and nobody is told",
        "lua/ack.lua",
        "yes[i] and stays and stays[i] and 'k'",
        "false",
        [_test("test_unique", "harms_no_other"), _test("test_running", "harms_no_other")],
    ),
    Mutant(
        "a put may ask fingerprints to block for a time",
        "lua/parts/lasting.lua",
        "  if has('compact') then\n    return {err",
        "  if false then\n    return {err",
        [_test("test_unique", "refuses_to_let"), _test("test_running", "harms_no_other")],
    ),
    Mutant(
        "progress outlives the lease",
        "lua/parts/drop.lua",
        "    forget_progress(ids)\n",
        "",
        [_test("test_progress", "goes_with_the_lease")],
    ),
    Mutant(
        "a lost lease notes progress",
        "lua/note.lua",
        "if not held then return 'L' end\n",
        "",
        [_test("test_progress", "goes_with_the_lease")],
    ),
    Mutant(
        "a task that fails for good counts as done in its batch",
        "lua/parts/batch.lua",
        "at + (well and DONE or LOST)",
        "at + DONE",
        [_test("test_batches", "one_failure_sends")],
    ),
    Mutant(
        "the last task of a batch does not end it",
        "lua/parts/batch.lua",
        "      close_batch(names[i], broken)\n",
        "",
        [_test("test_batches", "whoever_ends")],
    ),
    Mutant(
        "a batch ends before its last task",
        "lua/parts/batch.lua",
        "  if open > 0 then return end\n",
        "  if open > 1 then return end\n",
        [_test("test_batches", "whoever_ends")],
    ),
    Mutant(
        "a batch ends before it is sealed",
        "lua/parts/batch.lua",
        "  if not one or one.state ~= 's' then return end\n",
        "  if not one or one.state == 'e' then return end\n",
        [_test("test_batches", "not_over_before")],
    ),
    Mutant(
        "a callback becomes ready although a task is not done",
        "lua/parts/batch.lua",
        "  local fails = one.on == 'd' and lost > 0\n",
        "  local fails = false\n",
        [_test("test_batches", "one_failure_sends")],
    ),
    Mutant(
        "a task that has ended is still known as one of its batch",
        "lua/parts/batch.lua",
        "  redis.call('HDEL', key('batch_of'), unpack(gone))\n",
        "",
        [_test("test_batches", "whoever_ends")],
    ),
    Mutant(
        "only tasks that are done leave their batches",
        "lua/parts/results.lua",
        "    if has('batches') then tell_ended",
        "    if has('batches') and well then tell_ended",
        [_test("test_batches", "whoever_ends")],
    ),
    Mutant(
        "the failure of a callback is no end in the batch around it",
        "lua/parts/results.lua",
        "tell_ended(rarely('end_in_batches')(ids, well))",
        "rarely('end_in_batches')(ids, well)",
        [_test("test_batches", "task_of_another_batch")],
    ),
    Mutant(
        "a task that is done already never ends in the batch that it joins",
        "lua/parts/join.lua",
        "where[i] == 'd' and DONE or (where[i] == 'f' or not where[i]) and LOST or 0",
        "(where[i] == 'f' or not where[i]) and LOST or 0",
        [_test("test_batches", "tasks_that_are_there_join")],
    ),
    Mutant(
        "a task that is put twice joins twice",
        "lua/parts/join.lua",
        "    if not known.places[i] and not joined[id] then\n",
        "    if not joined[id] then\n",
        [_test("test_batches", "join_once")],
    ),
    Mutant(
        "a sealed batch takes more tasks",
        "lua/parts/join.lua",
        "  if new > 0 and one and one.state ~= 'o' then\n",
        "  if new > 0 and one and one.state == 'x' then\n",
        [_test("test_batches", "join_once")],
    ),
    Mutant(
        "a batch that is sealed again with another callback keeps silent",
        "lua/seal_batch.lua",
        "  if one.rev ~= digest then\n",
        "  if one.rev == '' then\n",
        [_test("test_batches", "in_another_is_refused")],
    ),
    Mutant(
        "a callback is ready at once",
        "lua/seal_batch.lua",
        "  add({callback}, given, true, WAITS, priorities)\n",
        "  add({callback}, given, true, false, priorities)\n",
        [_test("test_batches", "whoever_ends")],
    ),
    Mutant(
        "a put changes a callback that waits for its batch",
        "lua/parts/batch.lua",
        "      if moment(dues[i]) == WAITS then where[i] = 'b' end\n",
        "",
        [_test("test_batches", "no_put_changes")],
    ),
    Mutant(
        "a put with rerun changes a callback that waits for its batch",
        "lua/parts/anew.lua",
        " and state ~= 'b' and 'up'",
        " and 'up'",
        [_test("test_batches", "no_put_changes")],
    ),
    Mutant(
        "a task that is due when callbacks are said to be is taken for one",
        "lua/schedule.lua",
        "if due == WAITS then due = due + 1 end",
        "if false then due = due + 1 end",
        [_test("test_batches", "is_no_callback")],
    ),
    Mutant(
        "a purge leaves what is known of the tasks of batches",
        "lua/purge.lua",
        ", key('batches'), key('batch_of'))",
        ", key('batches'))",
        [_test("test_batches", "purge_leaves_none")],
    ),
    Mutant(
        "a walk does not see that tasks of a batch have ended",
        "lua/repair.lua",
        "    if string.find(states[i], '[df]') and not",
        "    if false and not",
        [_test("test_batches", "half_way")],
    ),
    Mutant(
        "no limit is declared",
        "functions/limits.py",
        "            yield from flows.hosts.set_rules(group, limit.every, limit.concurrency, None)\n",
        "            pass\n",
        [_test("test_limits", "no_more_calls_than")],
    ),
    Mutant(
        "after a cut nobody looks again",
        "results/waiting.py",
        "        self._look_at = 0.0\n",
        "        return\n",
        [_test("test_waits", "thousand_waits")],
    ),
    Mutant(
        "an improved task is done when its run ends",
        "lua/ack.lua",
        "  anew, anew_names = run_again(ids, yes, over)\n",
        "",
        [_test("test_depth", "finds_what_bfs or scripts_find"), _test("test_priority", "runs_once_more_after")],
    ),
    Mutant(
        "the visit of a task that runs once more is none",
        "lua/ack.lua",
        "  depart(anew, anew_names, 1, 0)\n",
        "  depart(anew, anew_names, 0, 0)\n",
        [POLITE_SCHEDULES],
    ),
    Mutant(
        "a released task has its old payload",
        "lua/release.lua",
        "  if renew then renew(ended, marks_of(ended)) end",
        "  if false then renew(ended, marks_of(ended)) end",
        [_test("test_priority", "did_not_end_goes_on")],
    ),
    Mutant(
        "a task that is to run once more has crashed too often",
        "lua/parts/crashed.lua",
        "last[i] = marks[i] and",
        "last[i] = false and",
        [_test("test_rerun", "too_often")],
    ),
    Mutant(
        "a task that is to run once more was released too often",
        "lua/release.lua",
        "count >= most and marks[i] then",
        "count >= most and false then",
        [_test("test_rerun", "too_often")],
    ),
    Mutant(
        "a lost task has its old payload",
        "lua/parts/crashed.lua",
        "    renew(ids, marks_of(ids)) -- the next run",
        "    -- the next run",
        [_test("test_priority", "did_not_end_goes_on")],
    ),
    # ---- full servers, and keys of a foreign type
    Mutant(
        "a full server stops the ends of runs that are repeated",
        "lua/parts/rerun.lua",
        "  even_when_full()\n  for i = 1, #ids do\n    local priority",
        "  for i = 1, #ids do\n    local priority",
        FULL,
    ),
    Mutant(
        "a full server takes tasks with priorities",
        "lua/parts/add.lua",
        "next(anew) or store_priorities and (priorities or has('priority')) then\n",
        "next(anew) then\n",
        FULL,
    ),
    Mutant(
        "a full server takes new tasks beside one that comes back",
        "lua/parts/add.lua",
        "  if #back > 0 or next(changes) or next(anew) or store_priorities",
        "  if store_priorities",
        FULL,
    ),
    Mutant(
        "a full server takes an import with priorities",
        "lua/restore.lua",
        "  redis.call('HSET', key('priorities'), unpack(rows)) -- goes first: use() would make a full server allow it\n"
        "  if not has('priority') then use('priority', true) end\n",
        "  if not has('priority') then use('priority', true) end\n"
        "  redis.call('HSET', key('priorities'), unpack(rows))\n",
        FULL,
    ),
    Mutant(
        "a full server refuses settings that are there already",
        "lua/configure.lua",
        "if not schema then redis.call('HSETNX'",
        "if true then redis.call('HSETNX'",
        FULL,
    ),
    Mutant(
        "a full server stops the walk that mends",
        "lua/repair.lua",
        "    even_when_full()\n    ring()\n",
        "    ring()\n",
        FULL,
    ),
    Mutant(
        "a run that is repeated stops half-way at a key of a foreign type",
        "scripts.py",
        '"rerun todos in_progress done; payload attempts crashes errors releases"',
        '"rerun; payload"',
        TORN,
    ),
    Mutant(
        "an ack stops half-way when a task puts itself again",
        "lua/ack.lua",
        "  if itself or priorities or given.rerun then\n",
        "  if false then\n",
        TORN,
    ),
    Mutant(
        "retry_failed stops half-way where it says where the others are",
        "lua/retry_failed.lua",
        "if ARGV[4] then find_all(ids) end",
        "",
        TORN,
    ),
    Mutant(
        "the turns of hosts stop half-way",
        "lua/parts/rounds.lua",
        "  sound()\n",
        "",
        TORN,
    ),
    Mutant(
        "a crash stops half-way at a task that a foreign hand took",
        "lua/parts/crashed.lua",
        "  for i = 1, #ids do lost[i] = held[i] == 0 and nowhere(ids[i]) end\n",
        "  setmetatable(lost, {__index = function(_, i) return nowhere(ids[i]) end})\n",
        TORN,
    ),
    Mutant(
        "a restart is noted and not counted",
        "lua/requeue_expired.lua",
        "redis.call('HLEN', stats)",
        "",
        TORN,
    ),
    # ---- compact done
    Mutant(
        "compact: a fingerprint has no salt",
        "lua/parts/compact.lua",
        "hash(salt .. id)",
        "hash(id)",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a fingerprint loses the zeros in its middle",
        "lua/parts/compact.lua",
        "'%d%09d'",
        "'%d%d'",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a lookup knows of no set that has divided",
        "lua/parts/compact.lua",
        "    if at < split then at = high % (2 * half) end\n",
        "",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a set divides one fingerprint too early",
        "lua/parts/compact.lua",
        "count + #fresh > full * (half + split)",
        "count + #fresh >= full * (half + split)",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a set that divides keeps what has moved",
        "lua/parts/compact.lua",
        "    if #gone > 0 then call('SREM', set_of(from), unpack(gone)) end\n",
        "",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a set that divides loses what moves",
        "lua/parts/compact.lua",
        "    if #moved > 0 then call('SADD', set_of(to), unpack(moved)) end\n",
        "",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: the level does not rise",
        "lua/parts/compact.lua",
        "if split == half then level, split, half = level + 1, 0, both end",
        "if split == half then split, half = 0, both end",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: sets divide only after all has been added",
        "lua/parts/compact.lua",
        "if left > 0 and count + #fresh > full * (half + split) then",
        "if i == #ids and count + #fresh > full * (half + split) then",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a task that was done already counts twice",
        "lua/parts/compact.lua",
        "count = count + #fresh\n",
        "count = count + #ids\n",
        [_test("test_compact", "counts_once")],
    ),
    Mutant(
        "compact: a task that is forgotten is counted still",
        "lua/parts/compact.lua",
        "count = math.max(0, count - gone)",
        "count = count",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a task that is put again stays done",
        "lua/parts/compact.lua",
        "    undo({id})\n    return 1\n",
        "    return 1\n",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: an ack leaves its task in progress",
        "lua/parts/compact.lua",
        "    call('SREM', from, unpack(ended))\n",
        "",
        [_test("test_compact_walk", "a_walk_of")],
    ),
    Mutant(
        "compact: a lost lease makes its task done",
        "lua/parts/compact.lua",
        "which[i] = which[i] and held[i] == 1 and",
        "which[i] = held[i] == 1 and",
        [_test("test_compact", "lost_leaves_no")],
    ),
    Mutant(
        "compact: a full server refuses acks",
        "lua/parts/compact.lua",
        "    even_when_full()\n    remember(ended)\n",
        "    remember(ended)\n",
        [_test("test_compact", "full_server")],
    ),
    Mutant(
        "compact: an ack that fails half-way leaves fingerprints",
        "lua/parts/compact.lua",
        "        for k = 1, #fresh do call('SREM', print_of(fresh[k])) end\n",
        "",
        [_test("test_compact", "set_of_a_foreign_type")],
    ),
    Mutant(
        "compact: an ack that puts first looks too late",
        "lua/ack.lua",
        "done_sound(ids, given.put or given.results)",
        "done_sound(ids)",
        [_test("test_compact", "set_of_a_foreign_type")],
    ),
    Mutant(
        "compact: a forget looks too late",
        "lua/forget.lua",
        "if done_sound then done_sound(ids, true) end\n",
        "",
        [_test("test_compact", "meets_a_foreign_key")],
    ),
    Mutant(
        "compact: the priority of a done task is kept",
        "lua/parts/compact.lua",
        "    if forget_priorities then forget_priorities(ended) end\n",
        "",
        [_test("test_compact", "forgets_the_priority")],
    ),
    Mutant(
        "compact: an import brings priorities of done tasks",
        "lua/restore.lua",
        "if priority and not (compact and letter == 'd') then",
        "if priority then",
        [_test("test_compact", "without_its_priority")],
    ),
    Mutant(
        "compact: improve is not refused",
        "lua/parts/raise.lua",
        "if given.improve and has('compact') then",
        "if false then",
        [_test("test_compact", "improving_is_refused")],
    ),
    Mutant(
        "compact: it begins on a queue with tasks",
        "lua/parts/switch.lua",
        "  if known == 0 then return nil end\n",
        "  if known >= 0 then return nil end\n",
        [_test("test_compact", "only_while_the_queue")],
    ),
    Mutant(
        "compact: it ends while something is done",
        "lua/parts/switch.lua",
        "if count == 0 and call('EXISTS', key('seen:0')) == 0 then return nil end",
        "if count then return nil end",
        [_test("test_compact", "stays_as_long")],
    ),
    Mutant(
        "compact: it gets a new salt when it is set again",
        "lua/parts/switch.lua",
        "  if salt and not has('compact') then\n",
        "  if salt then\n",
        [_test("test_compact", "the_salt_is_another")],
    ),
    Mutant(
        "compact: the count of done tasks is that of the plain set",
        "lua/parts/ages.lua",
        "  if compact then return done_known() end\n",
        "",
        [_test("test_compact", "is_known_and_neither")],
    ),
    Mutant(
        "compact: a purge leaves a set",
        "lua/purge.lua",
        "for set = rest, sets - 1 do",
        "for set = rest + 1, sets - 1 do",
        [_test("test_compact", "500_at_a_time")],
    ),
    Mutant(
        "compact: a purge that is broken off leaves what nobody finds",
        "lua/purge.lua",
        "    redis.call('HSET', key('seen'), 'level', level, 'split', rest - 2 ^ level)\n",
        "    redis.call('HSET', key('seen'), 'level', level, 'split', 0)\n",
        [_test("test_compact", "500_at_a_time")],
    ),
    Mutant(
        "compact: a late purge removes the sets of a new queue",
        "lua/purge.lua",
        "set and number(set, sets) >= sets then",
        "set then",
        [_test("test_compact", "late_part")],
    ),
    Mutant(
        "compact: a walk trusts a count that changes",
        "lua/parts/compact.lua",
        "if was == now_is and sum ~= count then",
        "if sum ~= count then",
        [_test("test_compact_repair", "short_walks")],
    ),
    Mutant(
        "compact: ids that a hand adds stay",
        "lua/repair.lua",
        "if compact then stages[#stages + 1] = {'SSCAN', done, of_done} end\n",
        "",
        [_test("test_compact_repair", "that_a_hand_adds")],
    ),
    Mutant(
        "compact: the list of done tasks is empty",
        "reads.py",
        "    if uses and _compact(uses[0]):\n",
        "    if False:\n",
        [_test("test_compact", "cannot_be_listed")],
    ),
    Mutant(
        "compact: a done task is in no file",
        "transfer.py",
        "        return [answer is Answer.DONE for answer in queue.states(ids)]\n",
        "        pass\n",
        [_test("test_cli_compact", "membership")],
    ),
    # ---- functions
    Mutant(
        "functions: a call that a worker does not know fails at once",
        "functions/running.py",
        "            return self._unrun(error)\n",
        "            raise\n",
        [_test("test_unrun", "nobody_can_run")],
    ),
    Mutant(
        "functions: a call may run for ever",
        "functions/running.py",
        "        if seconds is None:\n",
        "        if True:\n",
        [_test("test_app_workers", "runs_too_long")],
    ),
    Mutant(
        "functions: nothing follows a call",
        "functions/running.py",
        "        return Ack(put, result=kept",
        "        return Ack((), result=kept",
        [_test("test_app_workers", "what_follows_a_call_runs")],
    ),
    Mutant(
        "functions: the results of calls are not kept",
        "functions/running.py",
        "kept = data if seconds and (value is not None or opened.keep_none) else None",
        "kept = None",
        [_test("test_running", "both_kinds_run")],
    ),
    Mutant(
        "functions: a failure is tried again though its function says never",
        "functions/running.py",
        "policy = NEVER if isinstance(error, Forged | UnknownSecret) else opened.retry",
        "policy = None",
        [_test("test_running", "own_retries")],
    ),
    Mutant(
        "functions: a result of another type arrives",
        "functions/outcomes.py",
        "        _decoder(returns).decode(data)\n    except Exception as error:  # the value",
        "    except Exception as error:  # the value",
        [_test("test_running", "does_not_fit_its_annotation")],
    ),
    Mutant(
        "functions: what is put of several kinds has the answers in another order",
        "functions/posting.py",
        "        found[place] = answer",
        "        found[places[0]] = answer",
        [_test("test_posting", "calls_of_several_queues")],
    ),
    Mutant(
        "functions: a key keeps others away for ever",
        "functions/posting.py",
        'unique == "active"',
        "False",
        [_test("test_posting", "only_until_its_call_has_ended")],
    ),
    Mutant(
        "functions: a put forgets that its calls run once more",
        "functions/posting.py",
        "            tasks.reruns.append(place)\n",
        "            pass\n",
        [_test("test_posting", "newest_arguments")],
    ),
    Mutant(
        "functions: a failed call gives a result",
        "functions/answering.py",
        "    if ended.state is not State.FAILED:\n",
        "    if True:\n",
        [_test("test_posting", "failed_call_tells")],
    ),
    Mutant(
        "waits: nobody listens when the one that listens leaves",
        "results/waiting.py",
        "            self.listener = None\n            self.choose()",
        "            pass",
        [_test("test_waits", "when_the_one_that_listens_leaves")],
    ),
    Mutant(
        "waits: what is heard ends no wait",
        "results/waiting.py",
        "                await self._look(board, board.known(heard))\n",
        "",
        [_test("test_posting", "a_wait_hears_of_an_end")],
    ),
    Mutant(
        "schedules: a schedule that has ticked does not go on",
        "lua/tick.lua",
        "one.next, one.last = tonumber(ARGV[6]),",
        "one.next, one.last = one.next,",
        [_test("test_queue_schedules", "a_tick_puts_the_task")],
    ),
    Mutant(
        "schedules: a tick is put beside the one before it, which is at work",
        "schedules/ticking.py",
        "    if definition.overlap:\n        # what",
        "    if True:\n        # what",
        [_test("test_queue_schedules", "at_work_is_skipped")],
    ),
    Mutant(
        "schedules: what is due when a schedule changes is lost",
        "schedules/flows.py",
        "    while before is not None and _is_due(before, now_ms):\n",
        "    while before is not None and False:\n",
        [_test("test_queue_schedules", "what_is_due_when_a_schedule_changes")],
    ),
    Mutant(
        "schedules: a tick that comes while a schedule changes is lost",
        "lua/set_schedule.lua",
        "if due and not given.unread",
        "if false and not given.unread",
        [_test("test_schedules_on_servers", "a_change_waits_for_a_tick")],
    ),
    Mutant(
        "schedules: a tick is put again by a change that has not seen it",
        "lua/set_schedule.lua",
        "string.format('%s %.0f %s', one.state, one.next, one.rev) or '-') ~= seen",
        "one.rev or '-') ~= (string.match(seen, '%S+$'))",
        [_test("test_schedules_on_servers", "a_change_waits_for_a_tick")],
    ),
    Mutant(
        "schedules: the ticks of a pause are not counted",
        "lua/set_schedule.lua",
        "if skipped > 0 then",
        "if false then",
        [_test("test_queue_schedules", "ticks_of_a_pause_are_counted")],
    ),
    Mutant(
        "results: a lost lease writes its result",
        "lua/ack.lua",
        "ends[i] = yes[i] and held[i] == 1 and not marks[i] and",
        "ends[i] = true and",
        [_test("test_results", "lost_lease")],
    ),
    Mutant(
        "results: the run before the last one ends the wait",
        "lua/ack.lua",
        "held[i] == 1 and not marks[i] and not (",
        "held[i] == 1 and not (",
        [_test("test_rerun", "the_result_is_that_of_the_last_run")],
    ),
    Mutant(
        "rerun: the newest payload is lost when a put without one follows",
        "lua/parts/anew.lua",
        "bodies[i] or string.match(mark, '^%S+ 1(.*)$')",
        "bodies[i]",
        [_test("test_rerun", "runs_once_more")],
    ),
    Mutant(
        "rerun: of an id that is named twice the first payload counts",
        "lua/parts/anew.lua",
        "    newest[ids[i]] = i\n",
        "    newest[ids[i]] = newest[ids[i]] or i\n",
        [_test("test_rerun", "named_twice")],
    ),
    Mutant(
        "rerun: of one task it is said of all",
        "lua/parts/anew.lua",
        "    local i = #at > 0 and tonumber(at[n]) or n\n",
        "    local i = n\n",
        [_test("test_rerun", "each_task_may_say_it"), SCHEDULES],
    ),
    Mutant(
        "rerun: an ack forgets it",
        "calls.py",
        """    return words + section("rerun", *(at + 1 for at in tasks.reruns)) if tasks.reruns else words\n""",
        "    return words\n",
        [_test("test_rerun", "an_ack_may_have_tasks")],
    ),
    Mutant(
        "rerun: the first ack of a queue that has its own task run once more does not",
        "lua/ack.lua",
        "elseif given.rerun then\n",
        "elseif false then\n",
        [_test("test_rerun", "its_own_task")],
    ),
    Mutant(
        "rerun: an ack that leaves no id ends its own task first",
        "lua/ack.lua",
        "  if once_more then itself = false end\n",
        "",
        [_test("test_rerun", "its_own_task"), PROPERTIES],
    ),
    Mutant(
        "rerun: who waits hears of the run that has itself run once more",
        "lua/ack.lua",
        " and not (once_more and ids[i] == ids[1]) end",
        " end",
        [_test("test_rerun", "its_own_task")],
    ),
    Mutant(
        "rerun: the traceback of the run before stays",
        "lua/parts/log.lua",
        "    traced = true\n    count_up",
        "    count_up",
        [_test("test_rerun", "nor_of_its_traceback"), PROPERTIES],
    ),
    Mutant(
        "rerun: shards know nothing of it",
        "arguments.py",
        "            those(self.reruns), there(self.uniques),\n",
        "            [], there(self.uniques),\n",
        [_test("test_sharded", "run_once_more_in_their_shards")],
    ),
    Mutant(
        "rerun: a batch counts a task when the run before its last one has ended",
        "lua/ack.lua",
        "  depart(anew, anew_names, 1, 0)\n",
        "  depart(anew, anew_names, 1, 0)\n  if tell_ended then tell_ended(anew, fresh, true) end\n",
        [_test("test_rerun", "a_batch_ends_with_the_last_run")],
    ),
    Mutant(
        "rerun: a done task stays done",
        "lua/parts/anew.lua",
        "state == 'd' and 'back' or",
        "state == 'd' and nil or",
        [_test("test_rerun", "done_comes_back")],
    ),
    Mutant(
        "unrun: a worker is not told that another has the function",
        "lua/release.lua",
        "others and 'e' or 'O'",
        "'O'",
        [_test("test_calls_under_load", "whether_another_worker")],
    ),
    Mutant(
        "unrun: a worker that steps back in vain does not wait longer",
        "worker/yielding.py",
        "2 * self._seconds or FIRST",
        "FIRST",
        [_test("test_calls_under_load", "longer_and_longer")],
    ),
    # ---- the worker on shards
    Mutant(
        "shards: a worker that has died tends its shards still",
        "shards/working.py",
        " and one.beat >= int(seconds) - LIVE]",
        "]",
        [_test("test_tending", "nobody_else_does")],
    ),
    Mutant(
        "shards: a program with a keeper tends shards",
        "shards/working.py",
        "if one.tends is not None and one.beat",
        "if one.beat",
        [_test("test_tending", "nobody_else_does")],
    ),
    Mutant(
        "shards: the record tells of groups only after the tasks are put",
        "shards/working.py",
        "            yield from self._shards.make(grouped=True)\n        results = yield from settle(talk, calls)\n",
        "            pass\n"
        "        results = yield from settle(talk, calls)\n"
        "        if grouped:\n"
        "            yield from self._shards.make(grouped=True)\n",
        [_test("test_sharded_worker", "record_tells")],
    ),
    Mutant(
        "shards: a worker takes its part of a shard as if all workers shared it",
        "shards/working.py",
        "return min(alive, TENDERS)",
        "return alive",
        [_test("test_tending", "many_share")],
    ),
    Mutant(
        "shards: whoever helps cleans what the cleaners are about to clean",
        "shards/working.py",
        "look.next_at < look.now - LATE]",
        "look.next_at < look.now + LATE]",
        [_test("test_tending", "due_just_now")],
    ),
    Mutant(
        "shards: a worker does not notice that its queue was divided anew",
        "shards/working.py",
        "        yield from shards.look()\n        ((seconds",
        "        ((seconds",
        [_test("test_tending", "divided_anew")],
    ),
    Mutant(
        "shards: a shard that a worker begins to tend is looked at when its bell rings",
        "worker/tending.py",
        "                source.idle = False\n                self._desk.wake()\n",
        "                pass\n",
        [_test("test_tending", "looked_at_once")],
    ),
    Mutant(
        "shards: a worker that gets no answer tends nothing",
        "worker/tending.py",
        "chosen = self.tended or [source.part for source in self._lane.sources]",
        "chosen = self.tended",
        [_test("test_tending", "without_an_answer")],
    ),
    Mutant(
        "shards: a cleaner goes on when its shard is left to others",
        "worker/tending.py",
        "            elif cleaner is not None and not source.tended:\n                cleaner.cancel()",
        "",
        [_test("test_tending", "cleaners_run")],
    ),
    Mutant(
        "shards: a cleaner that has broken is started anew for ever",
        "worker/tending.py",
        "                if not cleaner.cancelled():\n                    cleaner.result()\n",
        "",
        [_test("test_tending", "ends_a_cleaner")],
    ),
    Mutant(
        "shards: a burst that finds nothing to help with never ends",
        "worker/tending.py",
        "            self._lane.sources[part].idle = False\n        self._desk.wake()",
        "            self._lane.sources[part].idle = False\n            self._desk.wake()",
        [_test("test_tending", "burst_is_over")],
    ),
    Mutant(
        "a worker takes no smaller part when it has peers",
        "division.py",
        "        return alive\n",
        "        return 1\n",
        [_test("test_tending", "one_part")],
    ),
]


def plant(mutant: Mutant | None, tree: Path) -> None:
    """Copy the package and its tests, with the bug in it."""
    skip = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("timeoutq", "tests", "demo", ".github"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for file in ("pyproject.toml", "README.md", "docker-compose.yml"):
        shutil.copy(ROOT / file, tree / file)
    if mutant is not None:
        path = tree / "timeoutq" / mutant.file
        text = path.read_text("utf-8")
        assert text.count(mutant.old) >= 1, f"{mutant.name}: {mutant.file} has changed, and the bug has no place in it"
        path.write_text(text.replace(mutant.old, mutant.new, 1), "utf-8")


def command(killer: str) -> list[str]:
    """Give the command of a killer; it succeeds where there is no bug."""
    if killer.startswith(SCHEDULES):
        return [
            sys.executable,
            "-m",
            "tests.rig.schedules",
            "600" if killer == SCHEDULES else "100",
            *killer.split()[1:],
        ]
    file, _, name = killer.partition(" -k ")
    return [sys.executable, "-m", "pytest", *ALONE, "-m", "", *file.split(), "-k", name]


def run(killer: str, tree: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a killer in a tree, with these settings in its environment."""
    return subprocess.run(
        command(killer),
        cwd=tree,
        env=_environment(tree, settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def _environment(tree: Path, settings: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CI")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "NO_SHRINK": "1", **settings}
    environment["CANARY"] = "of-mutants"  # a test that fails shows its values
    return environment


def run_tests(files: Sequence[str], tree: Path, seconds: float = 400) -> tuple[int, str]:
    """Run files of tests in a tree until one test fails; give the exit code, and what was said. A hang is a failure."""
    words = [sys.executable, "-m", "pytest", *ALONE, *files]
    settings = {"STEPS": "4000", "SCHEDULES": "300"}
    with subprocess.Popen(
        words,
        cwd=tree,
        env=_environment(tree, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 1, f"still running after {seconds:g} s"
    return process.returncode, said


def spared(at_once: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run a killer of each file where there is no bug, some at once: they must succeed, or nothing was killed by them.

    All of them succeed wherever the tests are run; these show that they do so in a copy, with the settings of killers.
    """
    played = (SCHEDULES, POLITE_SCHEDULES, PROPERTIES)
    of_files: dict[str, str] = {}
    for killer in sorted({killer for mutant in MUTANTS for killer in mutant.killers}.difference(played)):
        of_files.setdefault(killer.partition(" -k ")[0], killer)
    killers = [*played, *of_files.values()]
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder, ThreadPoolExecutor(at_once) as pool:
        plant(None, Path(folder))
        return [*pool.map(lambda killer: run(killer, Path(folder), STEPS="400"), killers)]


def judge(mutant: Mutant) -> Verdict:
    """See whether anything notices the bug."""
    began = time.monotonic()
    said = ""
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder:
        tree = Path(folder)
        plant(mutant, tree)
        for killer in mutant.killers:
            done = run(killer, tree)
            said = done.stdout + done.stderr
            # 1: a difference or a failed test; anything else means that the killer itself could not run
            if done.returncode == 1 and ("Differs" in said or " failed" in said or " error" in said):
                return Verdict(mutant, killer, said, time.monotonic() - began)
            if done.returncode:
                break
    return Verdict(mutant, None, said, time.monotonic() - began)


def judge_all(mutants: Sequence[Mutant] = MUTANTS, at_once: int = 2) -> Iterator[Verdict]:
    """Judge many, some at once; give the verdicts in the order of the mutants."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(judge, mutants)


def main(names: Sequence[str]) -> int:
    """Print what killed each; give how many survive."""
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    survivors = 0
    for verdict in judge_all(chosen):
        survivors += verdict.killed_by is None
        print(f"{verdict.seconds:5.1f} s  {verdict.mutant.name}: {verdict.killed_by or 'SURVIVES'}", flush=True)
        if verdict.killed_by is None:
            print(verdict.said[-2000:])
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return survivors


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
