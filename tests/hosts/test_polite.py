"""Polite queues, as transcripts: hosts take turns, and every way that ends a visit counts.

Where time matters it is the clock of fakeredis, which stands still until it is advanced; the servers run the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check, check_keys
from timeoutq import HostInfo, InvalidInput, Lease, Politeness, Queue
from timeoutq.server.calls import Call
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending

A, B = "http://a.example/", "http://b.example/"
SECOND = Politeness(1.0)


def urls(host: str, n: int) -> list[str]:
    return [f"{host}{i}" for i in range(n)]


def holds(queue: FakeQueue) -> None:
    """Check the invariants of a queue in memory."""
    check_keys(fakeredis.FakeRedis(server=queue.clock.server), queue.name)


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    """A polite queue in memory: a second from the end of a visit to the next."""
    with fake_queue(timeout=5, politeness=SECOND, max_crashes=50) as queue:
        yield queue
        holds(queue)
        queue.purge()
        assert fakeredis.FakeRedis(server=queue.clock.server).keys("*") == []


@pytest.fixture
def polite(queue: Any) -> Any:
    """A polite queue on a server: an hour from the end of a visit to the next."""
    queue.configure(politeness=Politeness(3600))
    return queue


def claim_one(queue: Any, timeout: float = 5) -> Lease:
    found: list[Lease] = queue.claim(10, timeout=timeout)
    (lease,) = found
    return lease


def served(queue: FakeQueue, after: float, left: int) -> None:
    """Expect that the host is visited again after so many seconds, not a millisecond before; `left` wait for it."""
    assert queue.hosts.inspect(A).waiting == left
    queue.clock.advance(after - 0.001)
    assert queue.claim(10) == []
    assert queue.hosts.inspect(A).waiting == left
    queue.clock.advance(0.001)
    queue.promote_due()
    assert queue.hosts.inspect(A).waiting == left - 1
    assert len(queue.hosts.inspect(A).in_flight) == 1
    holds(queue)


# ---- turns


def test_a_host_has_one_visit_at_a_time_and_others_do_not_wait_for_it(polite: Any) -> None:
    polite.put(urls(A, 5), urls(B, 5), "no host")
    tasks = [lease.task for lease in polite.claim(10)]
    assert len(tasks) == 3
    assert "no host" in tasks
    assert {task[:17] for task in tasks if task != "no host"} == {A, B}
    assert polite.claim(10) == []
    stats = polite.stats()
    assert (stats.waiting, stats.hosts, stats.todos, stats.next_turn) == (8, 2, 0, None)


def test_per_host_is_how_many_visits_there_are_at_once(polite: Any) -> None:
    polite.configure(politeness=Politeness(3600, per_host=3))
    polite.put(urls(A, 10))
    first = polite.claim(10)
    assert len(first) == 3
    assert polite.hosts.inspect(A).waiting == 7
    polite.ack(first[0])
    assert polite.claim(10) == []


def test_no_host_is_visited_before_a_second_after_its_last_visit(fake: FakeQueue) -> None:
    fake.put(urls(A, 4))
    for left in (3, 2, 1):
        fake.clock.advance(10)
        fake.ack(claim_one(fake))
        served(fake, 1.0, left)


def test_forgetting_what_waits_leaves_the_visit_of_others_alone(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    lease = claim_one(fake)
    waiting = [task for task in urls(A, 3) if task != lease.task]
    assert list(fake.forget(waiting[0], waiting[0])) == ["waiting", "waiting"]
    assert (fake.hosts.inspect(A).waiting, fake.hosts.inspect(A).in_flight) == (1, [lease.task])
    fake.forget(waiting[1])
    fake.ack(lease)
    assert fake.hosts.inspect(A).turn is None
    assert fake.drained()


def test_a_blocked_host_all_of_whose_waiting_tasks_are_forgotten_has_no_turn(fake: FakeQueue) -> None:
    fake.put(urls(A, 2))
    fake.hosts.block(A, for_=3600)
    assert not fake.drained()
    fake.forget(*urls(A, 2))
    assert fake.stats().next_turn is None
    assert fake.drained()


# ---- a call that is sent again


@pytest.mark.parametrize("operation", ["ack", "ack again", "release", "release and block", "fail", "put"])
def test_a_call_that_is_sent_again_changes_nothing(fake: FakeQueue, operation: str) -> None:
    raw: Any = fakeredis.FakeRedis(server=fake.clock.server)
    fake.put(urls(A, 3))
    lease = claim_one(fake)
    ops = fake.operations
    calls: dict[str, Callable[[], Call[Any]]] = {
        "ack": lambda: ops.ack([lease])[0],
        "ack again": lambda: ops.ack([lease], 5000)[0],
        "release": lambda: ops.release([lease])[0],
        "release and block": lambda: ops.release([lease], block_ms=5000)[0],
        "fail": lambda: ops.fail([lease], [5000], [b"no"])[0],
        "put": lambda: next(iter(ops.put((urls(A, 5),), lambda: b"once"))),
    }
    call = calls[operation]()
    fake.run(sending.answer(fake.talk, call))
    first = fake.hosts.inspect(A)
    fake.clock.advance(0.3)
    raw.execute_command(*call.command(300))
    assert fake.hosts.inspect(A) == first
    holds(fake)


# ---- rules of a host


def test_a_budget_is_the_most_visits_and_more_of_it_gives_more(polite: Any) -> None:
    polite.configure(politeness=Politeness(0, 2))
    polite.put(urls(A, 6))
    assert polite.hosts.set(A, budget=3).budget == 3
    made = 0
    while leases := polite.claim(5):
        polite.ack(leases)
        made += len(leases)
    assert made == 3
    host = polite.hosts.inspect(A)
    assert (host.visits, host.waiting, host.turn, host.used_up) == (3, 3, None, True)
    assert polite.drained(), "what waits for more budget will not run by itself"
    polite.hosts.set(A, budget=4)
    polite.fail(claim_one(polite), "counts too", retry_in=1000)
    assert polite.claim(5) == []
    assert polite.hosts.set(A, budget="none").budget is None
    assert len(polite.claim(5)) == 2


def test_a_place_is_passed_on_to_a_task_whose_id_begins_with_a_nul(polite: Any) -> None:
    polite.configure(politeness=Politeness(0, 1))
    tasks = [f"{A}1", f"\0{A}2", f"\0r{A}3", f"{A}4"]
    for task in tasks:
        polite.put(task)
    for task in tasks:
        lease = claim_one(polite)
        assert (lease.task, polite.hosts.inspect(A).in_flight) == (task, [task])
        polite.ack(lease)
    assert polite.hosts.inspect(A).visits == 4
    assert polite.drained()


def test_an_ack_leaves_the_place_to_another_task_that_has_it(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(0, 1))
    fake.put(f"{A}1")
    first = claim_one(fake)
    fakeredis.FakeRedis(server=fake.clock.server).delete(fake.operations.key("slots"))
    fake.put(f"{A}2", f"{A}3")
    assert claim_one(fake).task == f"{A}2"
    fake.ack(first)
    assert fake.hosts.inspect(A).in_flight == [f"{A}2"]
    assert fake.claim(10) == []


def test_an_ack_passes_the_places_of_all_its_hosts_on(polite: Any) -> None:
    polite.configure(politeness=Politeness(0, 1))
    polite.put([f"https://host{host}.example/{page}" for page in range(3) for host in range(20)], "of no host")
    polite.hosts.set("host3.example", budget=2)
    polite.hosts.block("host4.example", for_=3600)
    visits: list[int] = []
    for _ in range(4):
        leases = polite.claim(100)
        visits.append(len(leases))
        polite.ack(leases)
    assert visits == [20, 19, 18, 0]
    assert polite.stats().waiting == 4
    assert [polite.hosts.inspect(f"host{host}.example").visits for host in range(5)] == [3, 3, 3, 2, 0]


def test_a_block_takes_back_what_is_ready_and_its_end_gives_it_again(polite: Any) -> None:
    polite.put(urls(A, 2))
    assert polite.stats().todos == 1
    host = polite.hosts.block(A, for_=1000)
    assert (host.waiting, host.in_flight) == (2, [])
    assert abs(host.blocked_until - polite.stats().now - 1000) < 60
    assert polite.claim(5) == []
    host = polite.hosts.unblock(A)
    assert (host.waiting, len(host.in_flight), host.blocked_until) == (1, 1, None)


def test_a_release_that_blocks_takes_back_what_is_ready(fake: FakeQueue) -> None:
    fake.hosts.set(A, per_host=2, delay=0)
    fake.put(urls(A, 3))
    (mine,) = fake.claim(1)
    assert len(fake.hosts.inspect(A).in_flight) == 2
    fake.release(mine, block_host=20)
    assert (fake.hosts.inspect(A).waiting, fake.hosts.inspect(A).in_flight) == (3, [])
    assert fake.claim(5) == []


def test_a_banned_host_is_never_visited_again(polite: Any) -> None:
    polite.put(urls(A, 4), B)
    held = next(lease for lease in polite.claim(1) + polite.claim(1) if lease.task.startswith(A))
    host = polite.hosts.ban(A, "asked us to")
    assert (host.banned, host.waiting, polite.stats().failed) == ("asked us to", 0, 3)
    failed = polite.list("failed").entries[0].task
    assert "host a.example is banned: asked us to" in polite.inspect(failed).error
    (line,) = polite.errors()
    assert line.task == "a.example"
    assert line.error == "this host is banned: asked us to; its tasks that are or become ready go to failed"
    assert polite.ack(held) == "ok", "what is in progress goes on"
    polite.put(f"{A}later")
    assert polite.inspect(f"{A}later").state == "failed"
    polite.schedule(f"{A}soon", after=0)
    polite.promote_due()
    assert polite.inspect(f"{A}soon").state == "failed"
    polite.hosts.ban(A, "asked us to")
    assert polite.errors() == [line], "one line for the ban, none for each task"
    polite.hosts.ban(A, "asked us again")
    assert [one.error[:36] for one in polite.errors()] == ["this host is banned: asked us again;", line.error[:36]]


def test_hosts_are_read_in_pages_those_whose_turn_is_next_first(polite: Any) -> None:
    for i in range(25):
        polite.put(urls(f"http://{i:02}.example/", 2))
    for lease in polite.claim(12):
        polite.ack(lease)
    seen: list[HostInfo] = []
    cursor: str | None = None
    while True:
        page = polite.hosts.list(cursor, 10)
        seen += page.hosts
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == 25 == len({host.host for host in seen})
    turns = [host.turn for host in seen]
    assert None not in turns[:12]
    assert turns[12:] == [None] * 13
    assert turns[:12] == sorted(turn or 0 for turn in turns[:12])
    assert all(host.waiting == 1 for host in seen)


# ---- bad arguments

BAD: list[Callable[[Any], object]] = [
    lambda q: q.configure(politeness=Politeness(-1)),
    lambda q: q.configure(politeness=Politeness(1, 10_001)),
    lambda q: q.configure(politeness=(1, 1)),
    lambda q: q.hosts.set(A, delay="none"),
    lambda q: q.hosts.set(A, per_host=0),
    lambda q: q.hosts.set(A, budget="usual"),
    lambda q: q.hosts.block(A),
    lambda q: q.hosts.block(A, until=5, for_=5),
    lambda q: q.hosts.block(A, until=datetime(2030, 1, 1)),  # noqa: DTZ001  # naive on purpose
    lambda q: q.hosts.list(n=501),
    lambda q: q.put("x", group=5),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_refused_and_changes_nothing(fake: FakeQueue, bad: Callable[[Any], object]) -> None:
    fake.put(urls(A, 2))
    before = fake.hosts.inspect(A), fake.stats()
    with pytest.raises(InvalidInput):
        bad(fake)
    assert (fake.hosts.inspect(A), fake.stats()) == before


# ---- drained


def test_drained_counts_what_is_ready_held_scheduled_or_waits_for_its_turn(fake: FakeQueue) -> None:
    assert fake.drained()
    fake.schedule(A, after=10)
    assert not fake.drained()
    assert fake.drained(before=fake.clock.now + 10)
    assert not fake.drained(before=fake.clock.now + 10.001)
    fake.clock.advance(10)
    fake.promote_due()
    assert not fake.drained()
    fake.put(f"{A}2")
    lease = claim_one(fake)
    assert not fake.drained()
    fake.ack(lease)
    assert not fake.drained(), "one waits for its turn"
    assert fake.drained(before=fake.clock.now + 1)
    assert not fake.drained(before=fake.clock.now + 1.001)
    fake.clock.advance(1)
    fake.ack(claim_one(fake))
    assert fake.drained()
    assert fake.stats().drained


# ---- what a hand has added


def walk(queue: FakeQueue, n: int) -> None:
    """Have a walk mend what is wrong, `n` ids at a time."""
    on = b"1 0"
    while on:
        on = queue.run(sending.answer(queue.talk, queue.operations.repair(n, on))).cursor


def test_a_walk_reads_the_lane_of_a_host_to_its_end(fake: FakeQueue) -> None:
    raw: Any = fakeredis.FakeRedis(server=fake.clock.server)
    fake.put(urls(A, 30))
    later = urls(f"{A}later/", 30)
    fake.schedule(later, after=60)
    raw.zadd(fake.operations.key("host:a.example"), dict.fromkeys(later, 0))
    walk(fake, 10)
    assert fake.hosts.inspect(A).waiting == 29
    assert fake.states(later).counts() == {"scheduled": 30}


@pytest.mark.parametrize("several", [False, True])
def test_a_place_of_a_host_that_its_task_does_not_use_is_taken_back(fake: FakeQueue, several: bool) -> None:
    raw: Any = fakeredis.FakeRedis(server=fake.clock.server)
    fake.put("held")
    fake.claim()
    raw.hset(fake.operations.key("slots"), "a.example", "0 \0" if several else "0 held")
    if several:
        raw.zadd(fake.operations.key("places"), {"9:a.exampleheld": 0})
    assert fake.hosts.inspect(A).in_flight == ["held"]
    walk(fake, 10)
    assert fake.hosts.inspect(A).in_flight == []


# ---- politeness that begins, changes and ends


def in_every_state(queue: Any) -> dict[str, int]:
    """Put tasks of twelve hosts into every state; give how many are in each."""
    hosts = [f"http://{i}.example/" for i in range(12)]
    queue.put(*(urls(host, 5) for host in hosts), "no host")
    leases = queue.claim(40, timeout=600)
    queue.ack(leases[:6])
    queue.fail(leases[6:10], "no", give_up=True)
    queue.fail(leases[10:14], "no", retry_in=1000)
    queue.release(leases[14:17], 1000)
    stats = queue.stats()
    return {"ready": stats.todos + stats.waiting, **{k: getattr(stats, k) for k in KEPT}}


KEPT = ("in_progress", "scheduled", "done", "failed", "known")


def test_a_queue_becomes_polite_with_tasks_in_every_state_and_plain_again(polite: Any, url: str, name: str) -> None:
    polite.configure(politeness="off")
    before = in_every_state(polite)
    polite.configure(politeness=Politeness(0))
    check(url, name)
    stats = polite.stats()
    assert {"ready": stats.todos + stats.waiting, **{k: getattr(stats, k) for k in KEPT}} == before
    for host in polite.hosts.list().hosts:
        assert len([task for task in host.in_flight if polite.inspect(task).state == "todos"]) <= 1
    leases = [lease for page in (polite.list("in_progress", n=100),) for lease in page.entries]
    assert {lease.task for lease in leases} <= {t for host in polite.hosts.list().hosts for t in host.in_flight} | {
        "no host"
    }
    polite.configure(politeness="off")
    check(url, name)
    stats = polite.stats()
    assert (stats.waiting, stats.hosts, stats.politeness) == (0, 0, None)
    assert {"ready": stats.todos, **{k: getattr(stats, k) for k in KEPT}} == before
    assert len(polite.claim(100)) == before["ready"], "there are no limits any more"


def test_what_is_in_progress_has_its_place_before_any_host_hands_over(polite: Any) -> None:
    polite.configure(politeness="off")
    polite.put(urls(A, 50))
    held = polite.claim(1)
    polite.configure(politeness=Politeness(0))
    assert polite.hosts.inspect(A).in_flight == [held[0].task]
    assert polite.claim(5) == []
    polite.ack(held)
    assert len(polite.claim(5)) == 1


def test_rules_that_change_are_those_by_which_hosts_have_their_next_turn(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(3600))
    fake.put(urls(A, 8))
    fake.ack(claim_one(fake))
    fake.configure(politeness=Politeness(2))
    served(fake, 2.0, 7)
    fake.configure(politeness=Politeness(0, 3))
    assert len(fake.claim(10)) == 3
    holds(fake)


@pytest.mark.parametrize("rounds", [0, 1, 2, 4])
@pytest.mark.parametrize("end", ["polite", "off"])
def test_a_conversion_whose_client_died_is_taken_up_again(url: str, name: str, raw: Any, rounds: int, end: str) -> None:
    rules = Politeness(3600, 1)
    with Queue(name, url, timeout=60) as queue:
        queue.put(f"http://{i % 7}.example/{i}" for i in range(1500))
        queue.claim(20)
        if end == "off":
            queue.configure(politeness=rules)
        setting = b"off" if end == "off" else b"3600000 1"
        assert queue.run(one_call(queue, queue.operations.configure({"politeness": setting}))) == 2
        for _ in range(rounds):
            queue.run(one_call(queue, queue.operations.convert()))
        if end == "off":
            queue.configure(politeness="off")
            assert (queue.stats().todos, queue.stats().waiting) == (1480, 0)
        else:
            # as a worker that starts with the same settings does
            with Queue(name, url, politeness=rules) as another:
                another.stats()
            assert queue.stats().todos <= 7
            assert queue.stats().known == 1500
            assert all(host.waiting + len(host.in_flight) >= 214 for host in queue.hosts.list().hosts)
        check(url, name)
        assert "converting" not in raw.hgetall(f"timeoutq:{{{name}}}:meta")
        queue.purge()


def one_call(queue: Queue, call: Call[Any]) -> Any:
    return sending.answer(queue.talk, call)
