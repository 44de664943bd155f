"""Polite queues, as transcripts: hosts take turns, and every way that ends a visit counts.

Where time matters it is the clock of fakeredis, which stands still until it is advanced; the servers run the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check, check_keys
from tests.rig.waiting import wait_until
from timeoutq import Answer, HostInfo, InvalidInput, Lease, LeaseLost, Politeness, Queue
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
def polite(face: Any) -> Any:
    """A polite queue on a server, by either face: an hour from the end of a visit to the next."""
    face.configure(politeness=Politeness(3600))
    return face


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


def test_what_has_no_host_has_no_limits(polite: Any) -> None:
    polite.put(f"task {i}" for i in range(20))
    assert len(polite.claim(50)) == 20
    assert polite.hosts.list().hosts == []


def test_per_host_is_how_many_visits_there_are_at_once(polite: Any) -> None:
    polite.configure(politeness=Politeness(3600, per_host=3))
    polite.put(urls(A, 10))
    first = polite.claim(10)
    assert len(first) == 3
    assert polite.hosts.inspect(A).waiting == 7
    polite.ack(first[0])
    assert polite.claim(10) == []


def test_a_queue_that_is_made_polite_by_its_owner_is_polite_for_all(url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness(2.5, 2)) as one, Queue(name, url) as other:
        one.stats()
        other.put(urls(A, 5))
        assert len(other.claim(5)) == 2
        assert other.stats().politeness == Politeness(2.5, 2)
        assert one.hosts.inspect(A).waiting == 3
        one.purge()


def test_a_task_that_waits_is_known_to_put(polite: Any) -> None:
    assert list(polite.put(A, f"{A}2")) == ["added", "added"]
    waiting = next(iter(entry.task for entry in polite.list("waiting").entries))
    assert list(polite.put(waiting)) == ["waiting"]
    assert list(polite.schedule(waiting, after=5)) == ["waiting"]
    assert polite.inspect(waiting).state == "waiting"
    assert polite.stats().known == 2


def test_one_id_twice_in_a_put_is_where_it_is(polite: Any) -> None:
    assert list(polite.put("x", "x")) == ["added", "todos"]
    assert list(polite.put({A: 1}, A)) == ["added", "todos"]
    polite.hosts.ban(B)
    assert list(polite.put(B, B)) == ["added", "failed"]
    assert list(polite.schedule("s", "s", after=60)) == ["added", "scheduled"]


def test_what_an_ack_found_waits_for_its_host(polite: Any) -> None:
    polite.put(A)
    polite.ack(claim_one(polite), put=urls(A, 3) + urls(B, 2))
    assert (polite.hosts.inspect(A).waiting, polite.hosts.inspect(B).waiting) == (3, 1)


def test_no_host_is_visited_before_a_second_after_its_last_visit(fake: FakeQueue) -> None:
    fake.put(urls(A, 4))
    for left in (3, 2, 1):
        fake.clock.advance(10)
        fake.ack(claim_one(fake))
        served(fake, 1.0, left)


def test_a_host_that_rested_long_is_visited_at_once(fake: FakeQueue) -> None:
    fake.put(A)
    fake.ack(claim_one(fake))
    fake.clock.advance(1)
    fake.put(f"{A}2")
    assert claim_one(fake).task == f"{A}2"


def test_a_claim_that_waits_is_given_the_next_visit_when_it_is_time(url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness(0.05)) as queue:
        queue.put(urls(A, 3))
        ends: list[float] = []
        for _ in range(3):
            (lease,) = queue.claim(wait=10, timeout=5)
            ends.append(queue.stats().now)
            queue.ack(lease)
        assert all(round(later - earlier, 3) >= 0.05 for earlier, later in pairwise(ends))
        queue.purge()


# ---- the ways a visit ends


def end_by_process_death(queue: FakeQueue, lease: Lease) -> None:
    queue.run(sending.answers(queue.talk, queue.operations.crash([lease], "its process died")))


# how a visit may end, and how many of four tasks wait for the host then
WAYS: dict[str, tuple[Callable[[FakeQueue, Lease], object], int]] = {
    "ack": (lambda queue, lease: queue.ack(lease), 3),
    "ack with what it found": (lambda queue, lease: queue.ack(lease, put=[f"{A}new"]), 4),
    "ack for a time": (lambda queue, lease: queue.ack(lease, again_in=1000), 3),
    "fail": (lambda queue, lease: queue.fail(lease, "no", retry_in=1000), 3),
    "fail at once": (lambda queue, lease: queue.fail(lease, "no", retry_in=0), 3),
    "fail for good": (lambda queue, lease: queue.fail(lease, "no", give_up=True), 3),
    "release": (lambda queue, lease: queue.release(lease), 4),
    "release for a time": (lambda queue, lease: queue.release(lease, 1000), 3),
    "forget": (lambda queue, lease: queue.forget(lease.task), 3),
    "crash": (end_by_process_death, 4),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_next_visit_is_a_second_after_the_end_of_the_last(fake: FakeQueue, way: str) -> None:
    end, left = WAYS[way]
    fake.put(urls(A, 4))
    lease = claim_one(fake, timeout=100)
    fake.clock.advance(7)
    end(fake, lease)
    assert fake.hosts.inspect(A).in_flight == []
    if way == "fail at once":
        fake.promote_due()
        left += 1
    served(fake, 1.0, left)


def test_the_next_visit_is_a_second_after_a_lease_ran_out_and_was_taken_back(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    lease = claim_one(fake, timeout=0.5)
    fake.clock.advance(0.5)
    assert fake.requeue_expired() == 1
    served(fake, 1.0, 3)
    with pytest.raises(LeaseLost):
        fake.ack(lease)


def test_a_late_ack_ends_the_visit_when_it_comes(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    lease = claim_one(fake, timeout=0.5)
    fake.clock.advance(30)
    fake.ack(lease)
    served(fake, 1.0, 2)


def test_a_task_that_crashed_too_often_gives_its_place_back(fake: FakeQueue) -> None:
    fake.configure(max_crashes=1)
    fake.put(urls(A, 3))
    claim_one(fake, timeout=0.5)
    fake.clock.advance(0.5)
    assert fake.requeue_expired() == 1
    assert fake.stats().failed == 1
    served(fake, 1.0, 2)


def test_a_pull_is_a_visit(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    assert len(fake.pull(5)) == 1
    assert fake.hosts.inspect(A).visits == 1
    served(fake, 1.0, 2)


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


def test_forgetting_what_is_ready_makes_room(fake: FakeQueue) -> None:
    fake.put(urls(A, 2))
    (ready,) = fake.hosts.inspect(A).in_flight
    assert list(fake.forget(ready)) == ["todos"]
    served(fake, 1.0, 1)


def test_a_purge_leaves_nothing_of_the_hosts(polite: Any, raw: Any, name: str) -> None:
    for host in range(30):
        polite.put(urls(f"http://{host}.example/", 3), group=None if host % 2 else f"g{host}")
    polite.claim(10)
    polite.hosts.set("g2", budget=5)
    polite.purge()
    assert list(raw.scan_iter(f"timeoutq:{{{name}}}:*")) == []
    polite.put(urls(A, 3))
    assert len(polite.claim(5)) == 3, "the rules are gone too"


def test_failed_tasks_that_are_tried_again_wait_for_their_host(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    for _ in range(3):
        fake.fail(claim_one(fake), "no", give_up=True)
        fake.clock.advance(1)
        fake.promote_due()
    assert fake.retry_failed(all=True) == 3
    assert len(fake.claim(5)) == 1
    assert fake.hosts.inspect(A).waiting == 2


def test_done_tasks_that_are_put_again_wait_for_their_host(fake: FakeQueue) -> None:
    fake.put(A)
    fake.ack(claim_one(fake))
    fake.put(A, again=True)
    served(fake, 1.0, 1)


def test_a_visit_for_a_time_comes_again_with_its_group(fake: FakeQueue) -> None:
    fake.put("page", group="g")
    for visit in range(1, 4):
        fake.ack(claim_one(fake), again_in=10)
        assert fake.inspect("page").host == "g"
        assert fake.hosts.inspect("g").visits == visit
        fake.clock.advance(10)
        fake.promote_due()


def test_a_scheduled_task_counts_for_its_group_when_it_is_due(fake: FakeQueue) -> None:
    fake.schedule("x", "y", after=5, group="g")
    assert fake.hosts.list().hosts == []
    fake.clock.advance(5)
    assert fake.promote_due() == 2 or fake.stats().scheduled == 0
    assert (fake.hosts.inspect("g").waiting, len(fake.hosts.inspect("g").in_flight)) == (1, 1)


def test_a_group_is_the_host_in_place_of_that_of_the_url(polite: Any) -> None:
    polite.put(urls(A, 2), urls(B, 2), group="together")
    assert len(polite.claim(5)) == 1
    assert [host.host for host in polite.hosts.list().hosts] == ["together"]


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


def test_a_host_has_its_own_delay_and_then_the_usual_one_again(fake: FakeQueue) -> None:
    fake.put(urls(A, 4))
    assert fake.hosts.set(A, delay=7).delay == 7
    fake.ack(claim_one(fake))
    served(fake, 7.0, 3)
    assert fake.hosts.set(A, delay="usual").delay == 1
    fake.ack(claim_one(fake))
    served(fake, 1.0, 2)


def test_a_shorter_delay_counts_for_the_visit_that_has_ended_already(fake: FakeQueue) -> None:
    fake.hosts.set(A, delay=3600)
    fake.put(urls(A, 2))
    fake.ack(claim_one(fake))
    fake.hosts.set(A, delay=2)
    served(fake, 2.0, 1)


def test_more_visits_of_a_host_at_once_begin_at_once(polite: Any) -> None:
    polite.put(urls(A, 5))
    assert len(polite.claim(5)) == 1
    assert polite.hosts.set(A, per_host=3).per_host == 3
    assert len(polite.claim(5)) == 2
    assert polite.hosts.set(A, per_host="usual").per_host == 1
    assert polite.claim(5) == []


def test_fewer_visits_at_once_take_back_what_nobody_has_claimed(polite: Any) -> None:
    polite.hosts.set(A, per_host=4)
    polite.put(urls(A, 6))
    held = polite.claim(2)
    host = polite.hosts.set(A, per_host=3)
    assert (host.waiting, len(host.in_flight)) == (3, 3)
    host = polite.hosts.set(A, per_host=1)
    assert (host.waiting, {*host.in_flight}) == (4, {lease.task for lease in held})


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
    polite.hosts.set(A, budget=4)
    polite.fail(claim_one(polite), "counts too", retry_in=1000)
    assert polite.claim(5) == []
    assert polite.hosts.set(A, budget="none").budget is None
    assert len(polite.claim(5)) == 2


def test_a_release_and_a_lost_lease_cost_nothing_of_the_budget(fake: FakeQueue) -> None:
    fake.hosts.set(A, budget=1, delay=0)
    fake.put(A)
    fake.release(claim_one(fake))
    claim_one(fake, timeout=0.1)
    fake.clock.advance(0.1)
    fake.requeue_expired()
    assert fake.hosts.inspect(A).visits == 0
    assert fake.ack(claim_one(fake)) == Answer.OK


def test_of_a_hosts_tasks_the_one_that_waits_longest_is_next(fake: FakeQueue) -> None:
    for page in ("c", "a", "b"):
        fake.put(f"{A}{page}")
        fake.clock.advance(0.01)
    order: list[str] = []
    for _ in range(3):
        lease = claim_one(fake)
        order.append(lease.task.removeprefix(A))
        fake.ack(lease)
        fake.clock.advance(1)
    assert order == ["c", "a", "b"]


def test_a_host_says_how_many_of_its_visits_failed(polite: Any) -> None:
    polite.configure(politeness=Politeness(0, 1))
    polite.put(urls(A, 4))
    polite.fail(claim_one(polite), "HTTP 500", retry_in=1000)
    polite.ack(claim_one(polite))
    polite.release(claim_one(polite))
    polite.fail(claim_one(polite), "HTTP 404", give_up=True)
    host = polite.hosts.inspect(A)
    assert (host.visits, host.failures) == (3, 2)


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


def test_a_budget_of_nothing_lets_nothing_through(polite: Any) -> None:
    polite.hosts.set(A, budget=0)
    polite.put(urls(A, 3))
    assert polite.claim() == []
    assert polite.drained()


def test_a_blocked_host_gets_no_visit_until_then(fake: FakeQueue) -> None:
    fake.put(urls(A, 3))
    held = claim_one(fake)
    until = fake.clock.now + 60
    host = fake.hosts.block(A, until=datetime.fromtimestamp(until, UTC), reason="  two\n lines ")
    assert (host.blocked_until, host.blocked_by) == (until, "two lines")
    fake.clock.advance(30)
    fake.ack(held)
    assert fake.hosts.inspect(A).turn == until
    served(fake, 30.0, 2)


def test_a_block_takes_back_what_is_ready_and_its_end_gives_it_again(polite: Any) -> None:
    polite.put(urls(A, 2))
    assert polite.stats().todos == 1
    host = polite.hosts.block(A, for_=1000)
    assert (host.waiting, host.in_flight) == (2, [])
    assert abs(host.blocked_until - polite.stats().now - 1000) < 60
    assert polite.claim(5) == []
    host = polite.hosts.unblock(A)
    assert (host.waiting, len(host.in_flight), host.blocked_until) == (1, 1, None)


def test_a_release_blocks_the_host_for_everybody(fake: FakeQueue) -> None:
    fake.put(urls(A, 2), B)
    mine = next(lease for lease in fake.claim(5) if lease.task.startswith(A))
    fake.release(mine, block_host=20)
    host = fake.hosts.inspect(A)
    assert host.blocked_until == fake.clock.now + 20
    assert host.blocked_by == mine.holder
    assert fake.hosts.inspect(B).blocked_until is None
    served(fake, 20.0, 2)


def test_a_release_that_blocks_takes_back_what_is_ready(fake: FakeQueue) -> None:
    fake.hosts.set(A, per_host=2, delay=0)
    fake.put(urls(A, 3))
    (mine,) = fake.claim(1)
    assert len(fake.hosts.inspect(A).in_flight) == 2
    fake.release(mine, block_host=20)
    assert (fake.hosts.inspect(A).waiting, fake.hosts.inspect(A).in_flight) == (3, [])
    assert fake.claim(5) == []


def test_the_later_of_two_blocks_by_workers_counts(fake: FakeQueue) -> None:
    fake.hosts.set(A, per_host=2)
    fake.put(urls(A, 3))
    one, two = fake.claim(5)
    fake.release(one, block_host=20)
    fake.release(two, block_host=5)
    assert fake.hosts.inspect(A).blocked_until == fake.clock.now + 20


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


def test_a_task_of_a_banned_host_whose_worker_died_failed_because_of_the_ban(fake: FakeQueue) -> None:
    fake.put(f"{A}1")
    claim_one(fake)
    fake.hosts.ban(A, "asked us to")
    fake.clock.advance(6)
    fake.requeue_expired()
    found = fake.inspect(f"{A}1")
    assert (found.state, found.error) == ("failed", "gave up: host a.example is banned: asked us to")
    assert [kind.text for kind in fake.failures.list()] == ["gave up: <host> is banned: asked us to"]


def test_a_ban_leaves_the_last_errors_of_other_tasks_in_the_log(fake: FakeQueue) -> None:
    fake.put("other")
    fake.fail(fake.claim(1)[0], "HTTP 500", give_up=True)
    fake.put(urls(A, 1200))
    fake.hosts.ban(A, "spider trap")
    while fake.stats().waiting:
        fake.promote_due()
    assert fake.stats().failed == 1201
    assert [one.task for one in fake.errors()] == ["a.example", "other"]
    assert {entry.error for entry in fake.each("failed")} == {
        "HTTP 500",
        "gave up: host a.example is banned: spider trap",
    }


def test_a_ban_takes_what_is_ready_and_what_is_given_back(polite: Any) -> None:
    polite.configure(politeness=Politeness(0, 2))
    polite.put(urls(A, 2))
    held = polite.claim(1)[0]
    polite.hosts.ban(A)
    assert polite.stats().failed == 1
    polite.release(held)
    assert polite.stats().failed == 2
    assert polite.stats().counters["gave_up"] == 2
    assert polite.retry_failed(all=True) == 2
    assert polite.stats().failed == 2, "they are refused again"


def test_a_ban_takes_more_tasks_than_one_step_does(polite: Any) -> None:
    polite.put(urls(A, 1300))
    polite.hosts.ban(A)
    wait_until(lambda: polite.promote_due() == 0 and polite.drained())
    stats = polite.stats()
    assert (stats.failed, stats.waiting, stats.todos, stats.next_turn) == (1300, 0, 0, None)


def test_a_ban_outlives_a_block_and_ends_by_hand(polite: Any) -> None:
    polite.hosts.ban(A, "no")
    assert polite.hosts.block(A, for_=1).banned == "no"
    assert polite.hosts.set(A, delay=5).banned == "no"
    assert polite.hosts.unblock(A).banned is None
    polite.put(A)
    assert claim_one(polite).task == A


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


def test_a_host_that_was_never_met_is_told_by_the_usual_rules(polite: Any) -> None:
    host = polite.hosts.inspect("nobody.example")
    assert (host.waiting, host.visits, host.delay, host.per_host, host.turn) == (0, 0, 3600, 1, None)
    assert polite.hosts.list().hosts == []


# ---- bad arguments

BAD: list[Callable[[Any], object]] = [
    lambda q: q.configure(politeness=Politeness(-1)),
    lambda q: q.configure(politeness=Politeness(float("nan"))),
    lambda q: q.configure(politeness=Politeness(1, 0)),
    lambda q: q.configure(politeness=Politeness(1, 10_001)),
    lambda q: q.configure(politeness=Politeness(1, True)),
    lambda q: q.configure(politeness="on"),
    lambda q: q.configure(politeness=(1, 1)),
    lambda q: q.hosts.set(A, delay=-1),
    lambda q: q.hosts.set(A, delay="none"),
    lambda q: q.hosts.set(A, delay=1e300),
    lambda q: q.hosts.set(A, per_host=0),
    lambda q: q.hosts.set(A, per_host=1.5),
    lambda q: q.hosts.set(A, budget=-1),
    lambda q: q.hosts.set(A, budget="usual"),
    lambda q: q.hosts.block(A),
    lambda q: q.hosts.block(A, until=5, for_=5),
    lambda q: q.hosts.block(A, until=datetime(2030, 1, 1)),  # noqa: DTZ001  # naive on purpose
    lambda q: q.hosts.block(A, for_=-1),
    lambda q: q.hosts.block(A, until="tomorrow"),
    lambda q: q.hosts.list("x"),
    lambda q: q.hosts.list(n=0),
    lambda q: q.hosts.list(n=501),
    lambda q: q.ack([], again_in=-1),
    lambda q: q.release([], block_host=-1),
    lambda q: q.put("x", group=""),
    lambda q: q.put("x", group=5),
    lambda q: q.put("x", group="x" * 1025),
]


@pytest.mark.breaking
@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_refused_and_changes_nothing(fake: FakeQueue, bad: Callable[[Any], object]) -> None:
    fake.put(urls(A, 2))
    before = fake.hosts.inspect(A), fake.stats()
    with pytest.raises(InvalidInput):
        bad(fake)
    assert (fake.hosts.inspect(A), fake.stats()) == before


PLAIN: list[Callable[[Any], object]] = [
    lambda q: q.hosts.inspect(A),
    lambda q: q.hosts.list(),
    lambda q: q.hosts.set(A, delay=1),
    lambda q: q.hosts.block(A, for_=1),
    lambda q: q.hosts.unblock(A),
    lambda q: q.hosts.ban(A),
]


def test_a_queue_that_is_not_polite_knows_no_hosts_and_says_how_it_would(face: Any) -> None:
    for call in PLAIN:
        with pytest.raises(InvalidInput, match=r"is not polite.*politeness=Politeness.*timeoutq configure"):
            call(face)
    face.put(urls(A, 5), group="g")
    assert len(face.claim(5)) == 5
    assert face.inspect(f"{A}0").host is None


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


def test_what_waits_for_more_of_a_budget_does_not_keep_a_queue_from_being_drained(polite: Any) -> None:
    polite.configure(politeness=Politeness(0))
    polite.hosts.set(A, budget=1)
    polite.put(urls(A, 3))
    assert not polite.drained()
    polite.ack(claim_one(polite))
    assert polite.drained()
    assert polite.stats().waiting == 2
    polite.hosts.set(A, budget=2)
    assert not polite.drained()


def test_a_blocked_host_is_waited_for_and_a_banned_one_is_not(polite: Any) -> None:
    polite.hosts.block(A, for_=1000)
    polite.put(urls(A, 2))
    assert not polite.drained()
    assert not polite.wait_drained(timeout=0.02)
    polite.hosts.ban(A)
    assert polite.wait_drained(timeout=20)


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


def test_fewer_at_once_for_all_hosts_take_back_what_nobody_has_claimed(polite: Any, url: str, name: str) -> None:
    polite.configure(politeness=Politeness(0, 5))
    polite.put(urls(A, 8), urls(B, 8))
    polite.configure(politeness=Politeness(0, 1))
    assert [len(host.in_flight) for host in polite.hosts.list().hosts] == [1, 1]
    check(url, name)
    assert len(polite.claim(50)) == 2


@pytest.mark.parametrize("n", [5000])
def test_five_thousand_tasks_are_taken_in_by_several_rounds(url: str, name: str, n: int) -> None:
    with Queue(name, url, timeout=60) as queue:
        queue.put(f"http://{i % 1000}.example/{i}" for i in range(n))
        held = {lease.task for _ in range(2) for lease in queue.claim(400)}
        queue.configure(politeness=Politeness(3600, 2))
        check(url, name)
        stats = queue.stats()
        assert (stats.known, stats.in_progress, stats.hosts) == (n, len(held), 1000)
        # a host has two, or as many as were held before
        of: dict[str, int] = {}
        for task in held:
            of[task.split("/")[2]] = of.get(task.split("/")[2], 0) + 1
        assert stats.todos == sum(max(0, 2 - of.get(f"{i}.example", 0)) for i in range(1000))
        queue.configure(politeness="off")
        assert (queue.stats().todos, queue.stats().waiting) == (n - len(held), 0)
        check(url, name)
        queue.purge()


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


def test_politeness_that_ends_forgets_the_rules_of_hosts(polite: Any) -> None:
    polite.put(urls(A, 3), group="g")
    polite.hosts.block("g", for_=1000)
    polite.hosts.set("g", delay=50, budget=0)
    polite.configure(politeness="off")
    assert len(polite.claim(5)) == 3
    polite.configure(politeness=Politeness(1))
    host = polite.hosts.inspect("g")
    assert (host.blocked_until, host.budget, host.delay) == (None, None, 1)
    assert len(host.in_flight) == 3
