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
from timeoutq.rooms.hosts import operations
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


def commands(raw: redis.Redis) -> int:
    """How many commands the server has carried out, those of scripts too."""
    stats: Any = raw.info("commandstats")
    return sum(int(found["calls"]) for found in stats.values())


def spent(raw: redis.Redis, queue: Queue, call: Call[Any]) -> int:
    """How many commands a script carries out."""
    before = commands(raw)
    once(queue, call)
    return commands(raw) - before


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


def test_what_one_ack_hands_over_is_a_part_and_the_cleaner_is_told_of_the_rest(huge: Queue, raw: Any) -> None:
    huge.put(urls(5000))
    (lease,) = huge.claim(1)
    # as if its rules had changed by another hand: nobody but the ack looks at them
    raw.hset(f"timeoutq:{{{huge.name}}}:policies", "a.example", "- 10000 - 0 - ")
    once(huge, huge.operations.plan(60_000))
    huge.ack(lease)
    stats = huge.stats()
    assert (stats.todos, stats.waiting) == (PART, 4999 - PART)
    assert stats.next_turn is not None
    assert stats.next_turn <= stats.now
    plan = once(huge, huge.operations.plan(60_000))
    assert plan.at_ms <= plan.now_ms
    widen(huge)
    assert huge.stats().todos == 4999


def test_five_thousand_in_flight_cost_an_ack_no_more_than_ten(huge: Queue, raw: Any) -> None:
    costs: list[int] = []
    for n in (10, 5000):
        huge.put(urls(n))
        widen(huge)
        first, second, *rest = claimed(huge, n)
        huge.ack(first)  # every script is known to the server now
        costs.append(spent(raw, huge, huge.operations.ack([second])[0]))
        assert raw.hstrlen(f"timeoutq:{{{huge.name}}}:slots", "a.example") < 20
        for at in range(0, len(rest), PART):
            huge.forget([lease.task for lease in rest[at : at + PART]])
        huge.forget(urls(n))
        huge.hosts.set(A, per_host="usual")
    assert costs[1] <= costs[0] + 1, costs


def test_sixty_hosts_with_many_places_hand_over_a_part_together(huge: Queue, raw: Any) -> None:
    names = [f"h{n}.example" for n in range(60)]
    for name in names:
        huge.hosts.block(name, for_=1000)
        huge.hosts.set(name, per_host=10_000)
        huge.put(urls(20, f"http://{name}/"))
    key = f"timeoutq:{{{huge.name}}}:"
    for name in names:
        raw.hset(key + "policies", name, "- 10000 - 0 - ")
        raw.zadd(key + "hosts", {name: 1})
    found = once(huge, huge.operations.promote_due())
    assert (found.moved, found.more) == (PART, True)
    assert once(huge, huge.operations.promote_due()).moved == PART
    assert once(huge, huge.operations.promote_due()).moved == 200
    assert huge.stats().todos == 1200


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
    host = once(huge, operations.host(huge.operations, A, [("block", 1_000_000), ("by", "w")]))
    assert (host.recalling, host.busy, host.waiting) == (True, 1800 - PART, PART)
    plan = once(huge, huge.operations.plan(60_000))
    assert plan.at_ms <= plan.now_ms
    assert once(huge, huge.operations.promote_due()).more
    wait_until(lambda: huge.promote_due() == 0)
    host = huge.hosts.inspect(A)
    assert (host.recalling, host.busy, host.waiting) == (False, 0, 1800)


def test_a_release_that_blocks_a_host_of_many_places_takes_back_a_part_and_the_cleaner_the_rest(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    (lease,) = huge.claim(1)
    huge.release(lease, block_host=1000)
    assert huge.hosts.inspect(A).recalling
    wait_until(lambda: huge.promote_due() == 0)
    assert (huge.hosts.inspect(A).busy, huge.stats().todos, huge.stats().waiting) == (0, 0, 1800)


def test_what_was_claimed_during_a_recall_keeps_its_place(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    once(huge, operations.host(huge.operations, A, [("per_host", 7)]))
    leases = claimed(huge, 400)
    wait_until(lambda: huge.promote_due() == 0)
    host = huge.hosts.inspect(A)
    assert (host.busy, host.waiting, host.recalling) == (400, 1400, False)
    huge.ack(leases[:394])
    assert huge.hosts.inspect(A).busy == 7


def test_a_ban_takes_back_and_refuses_a_part_at_a_time(huge: Queue) -> None:
    huge.put(urls(1800))
    widen(huge)
    leases = claimed(huge, 100)
    host = once(huge, operations.host(huge.operations, A, [("ban", "they asked")]))
    assert huge.stats().failed + host.waiting <= PART
    wait_until(lambda: huge.promote_due() == 0)
    assert (huge.stats().failed, huge.hosts.inspect(A).busy) == (1700, 100)
    huge.ack(leases)


def test_a_page_of_hosts_names_the_first_twenty_in_flight_and_counts_all(huge: Queue) -> None:
    huge.put(urls(100))
    widen(huge)
    for host in (huge.hosts.inspect(A), huge.hosts.list().hosts[0]):
        assert (len(host.in_flight), host.busy) == (20, 100)


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


def test_an_ack_while_politeness_ends_hands_over_a_part(huge: Queue, url: str) -> None:
    huge.put(urls(5000))
    (lease,) = huge.claim(1)
    once(huge, huge.operations.configure({"politeness": b"off"}))
    huge.ack(lease)
    assert (huge.stats().todos, huge.stats().waiting) == (PART, 4999 - PART)
    check(url, huge.name)
    huge.configure(politeness="off")
    assert (huge.stats().todos, huge.stats().waiting) == (4999, 0)


def test_politeness_that_begins_again_before_it_has_ended_is_right(huge: Queue, url: str) -> None:
    huge.put(urls(3000))
    once(huge, huge.operations.configure({"politeness": b"off"}))
    once(huge, huge.operations.convert())
    leases = claimed(huge, 20)
    huge.ack(leases[:10])
    huge.configure(politeness=Politeness(0, 3))
    check(url, huge.name)
    huge.ack(leases[10:])
    assert huge.hosts.inspect(A).busy == 3


def test_a_thousand_leases_of_one_host_have_their_places_as_politeness_begins(url: str, name: str) -> None:
    with Queue(name, url, timeout=600) as queue:
        queue.put(urls(3000))
        leases = claimed(queue, 1000)
        queue.configure(politeness=Politeness(0, 2))
        assert (queue.hosts.inspect(A).busy, queue.hosts.inspect(A).waiting) == (1000, 2000)
        check(url, name)
        queue.ack(leases)
        assert queue.hosts.inspect(A).busy == 2
        check(url, name)
        queue.purge()


def test_a_queue_of_the_former_layout_is_refused_with_the_cure(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as queue:
        raw.hset(f"timeoutq:{{{name}}}:meta", "schema", "1")
        with pytest.raises(SchemaMismatch, match="schema 1, and this timeoutq knows schema 3: export it with the time"):
            queue.put("x")
        raw.delete(f"timeoutq:{{{name}}}:meta")
