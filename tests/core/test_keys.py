"""A verb touches only keys of its queue, for clusters and ACLs: their names begin as that of the settings begins.

Each verb runs with a watch on all of its commands.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.planted import planted
from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue, Schedule, Task
from timeoutq.rooms import batches as batches
from timeoutq.rooms import hosts
from timeoutq.rooms.batches import Joined, Sealed
from timeoutq.server import scripts
from timeoutq.server.calls import Call, Kept
from timeoutq.verbs import sending
from timeoutq.verbs.operations import Operations
from timeoutq.watch import doctor
from timeoutq.words.durations import Delta
from timeoutq.words.model import HostRecord, Record, State

FIRST = """
    GET HDEL HEXISTS HGET HGETALL HINCRBY HLEN HMGET HSCAN HSET HSETNX LINDEX LLEN LPUSH LTRIM PEXPIRE PSETEX PTTL RPUSH
    SADD SCARD SISMEMBER SMISMEMBER SRANDMEMBER SREM SSCAN XADD XLEN XRANGE XTRIM
    ZADD ZCARD ZCOUNT ZLEXCOUNT ZMSCORE ZPOPMIN ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZSCAN ZSCORE
"""
"""Commands whose first argument is their only key."""

PLACES = {
    **dict.fromkeys(FIRST.split(), 1), **dict.fromkeys(("DEL", "EXISTS", "MGET", "UNLINK"), 9999),
    "MSETEX": 9999, "SMOVE": 2, "TIME": 0, "INFO": 0,
}  # fmt: skip
"""How many of the first arguments of each command are keys."""

FIRST_CALL = "    setmetatable(by_print, {__index = by_id})"
WATCH = """
    local places = {PLACES}
    local function watched(send)
      return function(command, ...)
        local words = {...}
        if command == 'MSETEX' then
          local names = {}
          for i = 1, words[1] do names[i] = words[2 * i] end
          words = names
        end
        if not places[command] then error('UNDECLARED ' .. command .. ' is not known to the test') end
        for i = 1, math.min(places[command], #words) do
          if string.sub(words[i], 1, #prefix) ~= prefix then error('UNDECLARED ' .. command .. ' ' .. words[i]) end
        end
        return send(command, ...)
      end
    end
    quiet, try = watched(quiet), watched(try)
""".replace("PLACES", ", ".join(f"{command} = {count}" for command, count in PLACES.items()))
"""What the library does at its first call: from then on, a key of another queue ends a verb with an error."""


def trouble() -> BaseException:
    """Give an error with a traceback."""
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


def claimed(queue: Queue, n: int, **options: Any) -> list[Lease]:
    """Claim n tasks; hosts may have to wait for their turns."""
    leases: list[Lease] = []

    def enough() -> bool:
        leases.extend(queue.claim(n - len(leases), **options))
        return len(leases) == n

    wait_until(enough, 20)
    return leases


def live(queue: Queue) -> None:
    """Call each verb, so that each part of a script has work to do."""

    def once(call: Call[Any]) -> Any:
        return queue.run(sending.answer(queue.talk, call))

    ops = queue.operations
    queue.put({f"http://{h}.example/{i}": i for h in "abc" for i in range(12)}, ["free", "x", "y"])
    queue.put("grouped", "x", group="g.example")
    queue.schedule({"http://a.example/later": 1}, "now", after=0, group="g.example")
    once(ops.promote_due())
    done, failing, given_up, crashing, given_back, again = claimed(queue, 6, max_runtime=50)
    queue.extend([done, failing])
    queue.run(queue.flows.results.look_at([done.task.encode(), given_up.task.encode()], "c"))
    queue.ack(done, put={"new": 1, "http://b.example/new": None})
    queue.fail(failing, trouble(), retry_in=5)
    queue.fail(given_up, trouble(), give_up=True)
    once(ops.crash([crashing], "died")[0])
    queue.release(given_back, delay=1, block_host=1)
    queue.ack(again, again_in=1)
    queue.release(claimed(queue, 1))
    queue.retry_failed(all=True)
    queue.put(done.task, again=True)
    queue.pull(2)
    queue.extend(claimed(queue, 1), timeout=0.01)
    wait_until(lambda: queue.requeue_expired() == 1, 20)
    kept, failed = claimed(queue, 2)
    once(ops.ack([kept], results={0: Kept(b"r", 9)}, bare=[0])[0])
    (other,) = claimed(queue, 1)
    once(ops.ack([other], until={0: 1})[0])
    queue.put(other.task)
    queue.put(Task("failed", unique=None if queue.stats().compact else 0))
    once(ops.fail([failed], [-1], [b"x"], results={0: Kept(b"r", 9)})[0])
    ended = claimed(queue, 2)
    queue.cancel([lease.task for lease in ended], "new", "later", "http://b.example/5", by="me")
    queue.note(ended[0], 1, 2, "reading")
    queue.extend(ended)
    queue.release(ended[:1])
    queue.fail(ended[1:], "no", retry_in=0)
    queue.put(queue.list("failed").entries[0].task, again=True)
    for move in (queue.failures.retry, queue.failures.forget):
        for kind in queue.failures.list()[:1]:
            assert move(kind, at_most=1).moved == 1
    claimed(queue, 2)
    queue.forget("x", "free", "http://c.example/3")
    once(ops.publish("w", {"f": ("0" * 8, "{}")})[0])
    queue.put({lease.task: 2 for lease in ended}, "new", {"again": 1}, rerun=True)
    once(ops.beat("w", {"pid": 1}, Delta(1, {0: 1})))
    once(ops.publish("w", {"f": ("0" * 16, "{}")})[0])
    once(ops.plan(1000))
    once(ops.describe([b"new", b"y"]))
    once(ops.restore([Record(b"r", State.DONE), Record(b"s", State.TODOS), Record(b"f", State.FAILED)], lambda: b"m"))
    once(hosts.describe_hosts(ops, [b"a.example", b"new.example"]))
    once(hosts.restore_hosts(ops, [HostRecord(b"new.example", 1.0, 2, 3, 4, 5, 4e9, banned="x")], lambda: b"n"))
    queue.states("r", "s")
    if queue.stats().compact:
        once(ops.restore([Record(b"done%d" % i, State.DONE) for i in range(400)], lambda: b"l"))  # sets divide
    else:
        queue.configure(keep_done=1)
    queue.schedules.set("s", every=1, overlap=True)
    queue.schedules.declare(Schedule("c", every=60))
    wait_until(lambda: queue.schedules.tick() == 1)
    queue.batches.put("b", "member", "r", {"lost": 1})
    queue.batches.put("b", "later", after=60)
    queue.batches.put("empty", "forgotten")
    queue.batches.seal("b", Task("callback", 1), on="done")
    queue.forget("later", "lost")
    wait_until(lambda: queue.ack(lease for lease in queue.claim(99) if lease.task == "member").ok == 1, 20)
    assert queue.batches.look("b")["b"].state == "broken"
    assert len(list(queue.batches.members("b"))) == 4
    assert len(queue.batches.list()) == 2
    queue.batches.forget("empty")
    joined = [Joined("b2", b"r", "done"), Joined("b2", b"gone", "open")]
    once(batches.restore_batch(ops, lambda: b"o", "b2", joined, Sealed("b2", "done", 9, "d", b"callback")))
    queue.configure(events="100KB")
    for n in range(4):
        queue.put([f"{n}.{i}".ljust(1000, "x") for i in range(70)])
    queue.prune()
    assert len(queue.events.list(0).events) < 7, "prune trims the log"
    queue.pause()
    queue.resume()


@pytest.mark.parametrize("keep", [1000, "compact"])
@pytest.mark.parametrize("logs", [False, True], ids=["", "log"])
@pytest.mark.parametrize("rules", [None, Politeness(0.001, 2)], ids=["plain", "polite"])
def test_no_verb_touches_a_key_that_is_not_one_of_its_queue(
    url: str, name: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, rules: Politeness | None, keep: Any,
    logs: bool,
) -> None:  # fmt: skip
    run: set[str] = set()

    make = Operations.call

    def made(self: Operations, name: str, *args: Any, **options: Any) -> Call[Any]:
        run.add(name)
        return make(self, name, *args, **options)

    monkeypatch.setattr(Operations, "call", made)
    with (
        planted(url, FIRST_CALL, WATCH + FIRST_CALL),
        Queue(name, url, timeout=60, keep_done=keep, politeness=rules) as queue,
    ):
        if logs:
            queue.configure(events="64MB")
        live(queue)
        if rules is not None:
            queue.hosts.block("a.example", for_=50, reason="me")
        for key in ("leases", "hosts", "owners", "slots", "seen"):
            raw.delete(queue.operations.key(key))
            for task in ("http://a.example/1", "gone"):
                queue.why(task)
                queue.inspect(task)
            queue.drained()
            queue.prune()
            doctor.repair(queue)
        queue.stats()
        queue.configure(politeness=Politeness(1))
        queue.hosts.set("a.example", delay=5)
        queue.hosts.list()
        queue.configure(politeness="off")
        assert not queue.drained()
        queue.purge()
    unused = {*scripts.verbs()} - {"probe"} - run
    assert not unused, f"verbs that ran never: call them in live(): {unused}"
