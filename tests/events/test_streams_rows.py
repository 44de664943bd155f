"""Redis Streams as a queue, and timeoutq: a test for each row of the table of the help page, named after the row.

The first half is a plain client of Redis with consumer groups on the event log; the second half does what a row says
with a stream of messages, and then with a queue.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.cli.about import pages
from timeoutq.rooms.events import ids_of


def rows() -> list[str]:
    """Give the names of the rows of the table."""
    table = pages()["log"].partition("| Redis Streams as a queue |")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_each_row_of_the_table_has_a_test_of_its_name() -> None:
    names = [re.sub(r"\W+", "_", row).strip("_") for row in rows()]
    assert len(names) >= 14
    assert [name for name in names if f"test_{name}" not in globals()] == []


# ---- consumer groups on the event log, by a plain client


@pytest.fixture
def plain(url: str) -> Iterator[Any]:
    """A client of Redis that knows nothing of timeoutq."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def log(queue: Queue, name: str) -> str:
    """The key of the event log of a queue with four entries: configure, put, claim, ack."""
    queue.configure(events="64MB")
    queue.put("a", "b", "c")
    queue.ack(queue.claim(2))
    return f"timeoutq:{{{name}}}:events"


def taken(client: Any, log: str, group: str, consumer: str, n: int = 100, **how: Any) -> list[tuple[bytes, Any]]:
    found = client.xreadgroup(group, consumer, {log: ">"}, count=n, **how)
    if isinstance(found, dict):  # RESP3
        return [entry for part in found.get(log.encode(), []) for entry in part]
    return [entry for _, part in found for entry in part]


def test_a_group_created_at_the_beginning_is_given_each_entry_once(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    first, second = taken(plain, log, "index", "one", 2), taken(plain, log, "index", "two", 2)
    assert [words[b"verb"] for _, words in first + second] == [b"configure", b"put", b"claim", b"ack"]
    assert taken(plain, log, "index", "one") == []
    assert ids_of(first[1][1][b"->todos"]) == ["a", "b", "c"]


def test_xautoclaim_gives_the_entries_of_a_dead_consumer_to_another(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    lost = taken(plain, log, "index", "dead")
    _, claimed, _ = plain.xautoclaim(log, "index", "alive", min_idle_time=0)
    assert claimed == lost
    assert {one["consumer"] for one in plain.xpending_range(log, "index", "-", "+", 9)} == {b"alive"}
    assert {one["times_delivered"] for one in plain.xpending_range(log, "index", "-", "+", 9)} == {2}


# ---- the rows


@pytest.fixture
def stream(plain: Any, name: str) -> Iterator[str]:
    """A stream with three messages and a group."""
    key = f"stream:{name}"
    for n in range(3):
        plain.xadd(key, {"task": f"m{n}"})
    plain.xgroup_create(key, "workers", id="0")
    yield key
    plain.delete(key)


def test_add_a_message(plain: Any, stream: str, queue: Queue) -> None:
    plain.xadd(stream, {"task": "m0"})
    assert plain.xlen(stream) == 4, "a stream has the message twice"
    queue.put("m0")
    assert list(queue.put("m0")) == ["todos"]
    assert queue.stats().todos == 1


def test_share_the_work(plain: Any, stream: str, queue: Queue) -> None:
    mine, yours = taken(plain, stream, "workers", "one", 2), taken(plain, stream, "workers", "two", 2)
    assert len(mine + yours) == 3
    queue.put("m0", "m1", "m2")
    first, second = queue.claim(2), queue.claim(2)
    assert len({lease.task for lease in first + second}) == len(first + second) == 3


def test_acknowledge(plain: Any, stream: str, queue: Queue) -> None:
    ((id, _), *_) = taken(plain, stream, "workers", "one")
    assert plain.xack(stream, "workers", id) == 1
    assert plain.xack(stream, "workers", id) == 0
    queue.put("m0")
    (lease,) = queue.claim(1)
    assert queue.ack(lease) == "ok"
    assert list(queue.states("m0")) == ["done"]


def test_pending_list(plain: Any, stream: str, queue: Queue) -> None:
    taken(plain, stream, "workers", "one", 1)
    ((one),) = plain.xpending_range(stream, "workers", "-", "+", 9)
    assert one["consumer"] == b"one"
    queue.put("m0")
    (lease,) = queue.claim(1)
    (entry,) = queue.list("in_progress").entries
    assert entry.task == "m0"
    assert entry.at == pytest.approx(lease.deadline, abs=0.01)
    assert queue.inspect("m0").holder == queue.worker == lease.token.partition("#")[0]


def test_claim_of_stale_messages(plain: Any, stream: str, queue: Queue) -> None:
    lost = taken(plain, stream, "workers", "dead", 1)
    assert plain.xautoclaim(stream, "workers", "alive", min_idle_time=0)[1] == lost
    queue.put("m0")
    queue.claim(1, timeout=0.01)
    found: list[Any] = []

    def claimed() -> bool:
        found.extend(queue.claim(1))
        return bool(found)

    wait_until(claimed)
    assert found[0].task == "m0", "any claim takes back what has run out"


def test_heartbeat(plain: Any, stream: str, queue: Queue) -> None:
    ((id, _),) = taken(plain, stream, "workers", "one", 1)
    plain.xclaim(stream, "workers", "one", 0, [id], idle=60_000, justid=True)
    assert plain.xpending_range(stream, "workers", "-", "+", 9)[0]["time_since_delivered"] >= 60_000
    plain.xclaim(stream, "workers", "one", 0, [id], justid=True)
    assert plain.xpending_range(stream, "workers", "-", "+", 9)[0]["time_since_delivered"] < 60_000
    queue.put("m0")
    (lease,) = queue.claim(1)
    assert queue.extend(lease, timeout=60).deadline > lease.deadline + 50


def test_delivery_count(plain: Any, stream: str, queue: Queue) -> None:
    taken(plain, stream, "workers", "one", 1)
    plain.xautoclaim(stream, "workers", "two", min_idle_time=0)
    assert plain.xpending_range(stream, "workers", "-", "+", 9)[0]["times_delivered"] == 2
    queue.put("m0")
    queue.fail(queue.claim(1), "no", retry_in=0)
    wait_until(lambda: queue.promote_due() == 1)
    (lease,) = queue.claim(1)
    assert lease.attempt == 2
    assert queue.inspect("m0").failures == 1


def test_dead_letters(queue: Queue) -> None:
    """A stream has none: a consumer has to look at the delivery count, and to move the message by hand."""
    queue.configure(max_crashes=1)
    queue.put("bad", "worse")
    queue.claim(1, timeout=0.01)
    wait_until(lambda: queue.requeue_expired() + queue.stats().failed == 1)
    queue.fail(queue.claim(1), "no", give_up=True)
    assert queue.stats().failed == 2
    assert queue.retry_failed(all=True) == 2


def test_blocking_read(plain: Any, stream: str, queue: Queue) -> None:
    taken(plain, stream, "workers", "one")
    timers = [
        threading.Timer(0.1, lambda: plain.xadd(stream, {"task": "new"})),
        threading.Timer(0.1, lambda: queue.put("new")),
    ]
    timers[0].start()
    assert len(taken(plain, stream, "workers", "one", block=5000)) == 1
    timers[1].start()
    assert [lease.task for lease in queue.claim(1, wait=5)] == ["new"]
    for timer in timers:
        timer.join()


def test_trimming(plain: Any, stream: str, queue: Queue) -> None:
    taken(plain, stream, "workers", "one")
    plain.xtrim(stream, maxlen=1, approximate=False)
    assert plain.xpending(stream, "workers")["pending"] == 3, "pending messages are gone, and still counted"
    queue.configure(keep_done=1, events="100KB")
    queue.put("m0", "m1", "m2")
    held = queue.claim(1)
    queue.ack(queue.claim(2))
    queue.prune()
    assert (queue.stats().done, queue.stats().in_progress) == (1, 1), "what is held is never trimmed"
    assert queue.ack(held[0]) == "ok"


def test_fan_out(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    plain.xgroup_create(log, "audit", id="0")
    assert taken(plain, log, "index", "one") == taken(plain, log, "audit", "one")


def test_replay_from_a_point(plain: Any, log: str, queue: Queue) -> None:
    plain.xgroup_create(log, "index", id="$")
    plain.xgroup_setid(log, "index", "0")
    assert len(taken(plain, log, "index", "one")) == 4
    second = queue.events.list(0).events[1]
    assert [event.verb for event in queue.events.list(second.cursor).events] == ["claim", "ack"]
    assert [event.verb for event in queue.events.list(second.at).events][-3:] == ["put", "claim", "ack"]
    queue.put("a", "b", "c", again=True)
    assert queue.stats().todos == 3, "done tasks run again"


def test_read_without_a_group(plain: Any, log: str, queue: Queue) -> None:
    found = plain.xread({log: "0"}, count=1)
    assert b"configure" in str(found).encode()
    assert [event.verb for event in queue.events.follow(0, timeout=0)] == ["configure", "put", "claim", "ack"]


def test_length_and_lag(plain: Any, stream: str, queue: Queue) -> None:
    taken(plain, stream, "workers", "one", 1)
    assert plain.xlen(stream) == 3
    queue.put("m0", "m1", "m2")
    queue.ack(queue.claim(1))
    stats = queue.stats()
    assert (stats.todos, stats.in_progress, stats.done) == (2, 0, 1)


def test_delete_a_message(plain: Any, stream: str, queue: Queue) -> None:
    ((id, _), *_) = taken(plain, stream, "workers", "one")
    plain.xdel(stream, id)
    assert plain.xpending(stream, "workers")["pending"] == 3, "its consumer is not told"
    queue.put("m0")
    (lease,) = queue.claim(1)
    queue.forget("m0")
    assert list(queue.ack([lease])) == ["lost"]


def test_later(queue: Queue) -> None:
    """A stream has no message that is due later."""
    queue.schedule("m0", after=0.5)
    assert queue.claim(1) == []
    assert [lease.task for lease in queue.claim(1, wait=5)] == ["m0"]


def test_retry_with_a_pause(queue: Queue) -> None:
    """A message of a stream that was not acknowledged stays with its consumer until somebody claims it."""
    queue.put("m0")
    queue.fail(queue.claim(1), "busy", retry_in=0.5)
    assert queue.claim(1) == []
    assert [lease.attempt for lease in queue.claim(1, wait=5)] == [2]
