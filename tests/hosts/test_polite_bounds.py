"""No script of a polite queue does more than a part of what a huge host asks for; the rest is gone on with at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.rig.invariants import check
from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue, SchemaMismatch
from timeoutq.rooms import hosts as of_hosts
from timeoutq.server.calls import Call
from timeoutq.verbs import sending

A = "http://a.example/"
PART = 500
"""The most tasks that a script hands over, takes back or refuses."""


def urls(n: int, host: str = A) -> list[str]:
    return [f"{host}{i}" for i in range(n)]


@pytest.fixture
def huge(url: str, name: str) -> Iterator[Queue]:
    """A polite queue without delays; afterwards its invariants must hold, and a purge must leave no key."""
    with Queue(name, url, timeout=600, politeness=Politeness(0, per_host=1)) as queue:
        yield queue
        check(url, name)
        queue.purge()
        with redis.Redis.from_url(url) as raw:
            assert list(raw.scan_iter(f"timeoutq:{{{name}}}:*")) == []


def once(queue: Queue, call: Call[Any]) -> Any:
    """Run one script, once."""
    return queue.run(sending.answer(queue.talk, call))


def claimed(queue: Queue, n: int) -> list[Lease]:
    leases: list[Lease] = []
    while len(leases) < n:
        more = queue.claim(min(PART, n - len(leases)))
        leases += more
        if not more:
            queue.promote_due()
    return leases


def widen(queue: Queue, per_host: int = 10_000) -> None:
    """Let a host have so many visits at once, and hand all over."""
    queue.hosts.set(A, per_host=per_host)
    wait_until(lambda: queue.promote_due() == 0)


# ---- handing over


def test_a_host_of_many_places_is_given_its_tasks_a_part_at_a_time(huge: Queue) -> None:
    huge.put(urls(2300))
    host = huge.hosts.set(A, per_host=10_000)
    assert (host.busy, host.waiting) == (PART, 2300 - PART)
    parts: list[int] = []
    while found := once(huge, huge.operations.promote_due()).moved:
        parts.append(found)
    assert parts == [500, 500, 500, 300]
    assert (huge.hosts.inspect(A).busy, huge.hosts.inspect(A).waiting) == (2300, 0)


# ---- taking back


def test_a_block_takes_back_all_that_is_ready_of_a_host_of_many_places(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    leases = claimed(huge, 300)
    host = huge.hosts.block(A, for_=1000)
    assert (host.busy, host.waiting, host.recalling) == (300, 1500, False)
    assert huge.claim(10) == []
    huge.ack(leases)
    assert huge.hosts.unblock(A).busy == PART
    widen(huge)
    assert huge.stats().todos == 1500


def test_a_recall_whose_client_died_is_gone_on_with_by_the_cleaner(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    host = once(huge, of_hosts.call_host(huge.operations, A, [("block", 1_000_000), ("by", "w")]))
    assert (host.recalling, host.busy, host.waiting) == (True, 1800 - PART, PART)
    plan = once(huge, huge.operations.plan(60_000))
    assert plan.at_ms <= plan.now_ms
    assert once(huge, huge.operations.promote_due()).more
    wait_until(lambda: huge.promote_due() == 0)
    host = huge.hosts.inspect(A)
    assert (host.recalling, host.busy, host.waiting) == (False, 0, 1800)


def test_a_ban_takes_back_and_refuses_a_part_at_a_time(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    leases = claimed(huge, 100)
    host = once(huge, of_hosts.call_host(huge.operations, A, [("ban", "they asked")]))
    assert huge.stats().failed + host.waiting <= PART
    wait_until(lambda: huge.promote_due() == 0)
    assert (huge.stats().failed, huge.hosts.inspect(A).busy) == (1700, 100)
    huge.ack(leases)


# ---- politeness that begins and ends


@pytest.mark.parametrize("hosts", [1, 700])
def test_politeness_that_ends_beside_working_workers_drains_all_and_loses_nothing(
    huge: Queue, url: str, hosts: int
) -> None:
    for at in range(0, 6000, PART):
        huge.put(f"http://h{n % hosts}.example/{n}" for n in range(at, at + PART))
    huge.hosts.set("h0.example", per_host=3)
    ended = threading.Event()

    def work() -> None:
        with Queue(huge.name, url, timeout=600) as mine:
            while not (ended.is_set() and mine.drained()):
                mine.ack(mine.claim(20))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    huge.configure(politeness="off")
    ended.set()
    for thread in threads:
        thread.join()
    stats = huge.stats()
    assert (stats.done, stats.known, stats.politeness) == (6000, 6000, None)


def test_a_queue_of_the_former_layout_is_refused_with_the_cure(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as queue:
        raw.hset(f"timeoutq:{{{name}}}:meta", "schema", "1")
        with pytest.raises(SchemaMismatch, match="schema 1, and this timeoutq knows schema 3: export it with the time"):
            queue.put("x")
        raw.delete(f"timeoutq:{{{name}}}:meta")
