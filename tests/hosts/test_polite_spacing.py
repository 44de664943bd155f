"""No visit of a host begins sooner than `delay` after the end of its last visit, however a task becomes ready.

Each road ends a visit and makes tasks of the host ready; a host then sees nobody until its delay has passed, however
many places it has, and whether its other places are visited or ready. The clock is that of fakeredis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hosts.test_polite import A, holds, urls
from timeoutq import Lease, Politeness, Task
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending
from timeoutq.watch import transfer
from timeoutq.words.model import HostRecord

LEASE = 5.0


class Host:
    """A host of a queue: it knows when its last visit ended, and lets no visit begin too soon."""

    def __init__(self, queue: FakeQueue, delay: float) -> None:
        self.queue = queue
        self.delay = delay
        self.ended: float | None = None

    def claim(self, n: int = 500) -> list[Lease]:
        """Claim, and judge the visits that begin."""
        leases = self.queue.claim(n, timeout=LEASE)
        if leases and self.ended is not None:
            gap = self.queue.clock.now - self.ended
            assert gap > self.delay - 0.0005, f"{len(leases)} visits begin {gap:.3f} s after the last one ended"
        return leases

    def end(self, do: Callable[[], Any]) -> None:
        """End a visit by `do`, and look at once whether another begins."""
        do()
        self.ended = self.queue.clock.now
        assert self.claim() == []


def ack(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.ack(lease))


def ack_with_links(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.ack(lease, put=urls(f"{A}linked", 3)))


def ack_with_itself(host: Host, lease: Lease) -> None:
    host.queue.configure(keep_done=0)
    host.end(lambda: host.queue.ack(lease, put=[lease.task, f"{A}linked"]))


def ack_with_more_links_than_one_call_takes(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.ack(lease, put=urls(f"{A}linked", 1200)))


def ack_for_a_time_with_links(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.ack(lease, put=urls(f"{A}linked", 3), again_in=0.0))


def put(host: Host, lease: Lease) -> None:
    ack(host, lease)
    host.end(lambda: host.queue.put(urls(f"{A}put", 3)))


def fail(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.fail(lease, "no", retry_in=0.0))


def release(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.release(lease))


def release_by_a_short_block(host: Host, lease: Lease) -> None:
    host.end(lambda: host.queue.release(lease, block_host=host.delay / 4))
    host.queue.clock.advance(host.delay / 4)
    assert host.claim() == []
    host.ended = host.queue.clock.now - host.delay / 4


def lease_runs_out(host: Host, lease: Lease) -> None:
    host.queue.clock.advance(LEASE)
    host.end(lambda: host.queue.requeue_expired())


def process_dies(host: Host, lease: Lease) -> None:
    queue = host.queue
    host.end(lambda: queue.run(sending.answer(queue.talk, queue.operations.crash([lease], "it died")[0])))


def promotion(host: Host, lease: Lease) -> None:
    host.queue.schedule(urls(f"{A}due", 3), after=host.delay / 10)
    ack(host, lease)
    host.queue.clock.advance(host.delay / 10)
    host.queue.promote_due()
    assert host.claim() == []
    host.ended = host.queue.clock.now - host.delay / 10


def rerun(host: Host, lease: Lease) -> None:
    host.queue.put(Task(lease.task, rerun=True))
    host.end(lambda: host.queue.ack(lease, put=[f"{A}linked"]))


def narrower(host: Host, lease: Lease) -> None:
    """The rule changes between the claim and the ack."""
    host.queue.hosts.set(A, per_host=1)
    host.end(lambda: host.queue.ack(lease, put=urls(f"{A}linked", 3)))
    host.queue.hosts.set(A, per_host="usual")


def slower(host: Host, lease: Lease) -> None:
    """The rule changes between the claim and the ack."""
    host.delay *= 2
    host.queue.hosts.set(A, delay=host.delay)
    host.end(lambda: host.queue.ack(lease, put=urls(f"{A}linked", 3)))


ROADS = [
    ack, ack_with_links, ack_with_itself, ack_with_more_links_than_one_call_takes, ack_for_a_time_with_links, put, fail,
    release, release_by_a_short_block, lease_runs_out, process_dies, promotion, rerun, narrower, slower,
]  # fmt: skip


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    """A queue in memory that is polite as soon as the test says how."""
    with fake_queue(timeout=LEASE, max_crashes=50) as queue:
        yield queue
        holds(queue)


def rests(fake: FakeQueue, road: Callable[[Host, Lease], None], others: str, places: int, delay: float) -> None:
    """Expect that the host sees nobody from an end by this road on until its delay is over; then its places fill."""
    fake.configure(politeness=Politeness(delay, places))
    fake.put(urls(A, 2 * places + 2))
    host = Host(fake, delay)
    lease = host.claim(1 if others == "ready" else places)[0]
    fake.clock.advance(delay / 20)
    road(host, lease)
    fake.promote_due()
    assert host.claim() == []
    holds(fake)
    assert host.ended is not None
    fake.clock.advance(host.ended + host.delay - 0.001 - fake.clock.now)
    fake.promote_due()
    assert host.claim() == []
    fake.clock.advance(0.001)
    fake.promote_due()
    info = fake.hosts.inspect(A)
    assert info.busy == info.per_host == places
    assert len(host.claim()) == (1 if others == "visited" and road is not lease_runs_out else places)


@pytest.mark.parametrize("places", [2, *(pytest.param(n, marks=pytest.mark.breaking) for n in (1, 100))])
@pytest.mark.parametrize("delay", [0.2])
@pytest.mark.parametrize("road", ROADS)
def test_a_host_rests_after_each_end_of_a_visit(
    fake: FakeQueue, road: Callable[[Host, Lease], None], delay: float, places: int
) -> None:
    for others in ("ready", "visited"):
        rests(fake, road, others, places, delay)
        fake.purge()


# ---- other ways to the same


def test_the_pause_of_an_export_holds_for_what_is_ready_already(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(1, 8))
    fake.put(urls(A, 20))
    later = fake.clock.now + 0.5
    assert transfer.restore_hosts(fake, [HostRecord(b"a.example", visits=1, next_allowed=later)]) == 1
    assert fake.claim(10) == []
    fake.clock.advance(0.5)
    fake.promote_due()
    assert len(fake.claim(10)) == 8


def test_a_host_that_was_visited_before_the_queue_became_polite_rests_first(fake: FakeQueue) -> None:
    fake.put(urls(A, 1))
    fake.ack(fake.claim(1))
    fake.clock.advance(0.1)
    fake.configure(politeness=Politeness(1, 8))
    fake.put(urls(A, 20))
    assert fake.claim(10) == []
    assert fake.drained() is False
    fake.clock.advance(0.999)
    fake.promote_due()
    assert fake.claim(10) == []
    fake.clock.advance(0.001)
    fake.promote_due()
    assert len(fake.claim(10)) == 8


RAISES: dict[str, Callable[[FakeQueue, int], object]] = {
    "of the host": lambda queue, per_host: queue.hosts.set(A, delay=6),
    "of all hosts": lambda queue, per_host: queue.configure(politeness=Politeness(6, per_host)),
    "of all hosts, twice": lambda queue, per_host: (
        queue.configure(politeness=Politeness(3, per_host)),
        queue.configure(politeness=Politeness(6, per_host)),
    ),
    "of the host, to the usual one": lambda queue, per_host: (
        queue.hosts.set(A, delay=0),
        queue.configure(politeness=Politeness(6, per_host)),
        queue.hosts.set(A, delay="usual"),
    ),
}


@pytest.mark.parametrize("raised", RAISES)
@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [0.4, 1.4])
def test_a_delay_that_is_raised_counts_from_the_end_of_the_last_visit(
    fake: FakeQueue, raised: str, per_host: int, before: int, after: float
) -> None:
    fake.configure(politeness=Politeness(before, per_host))
    fake.put(urls(A, 9))
    host = Host(fake, 6)
    fake.ack(host.claim(1))
    host.ended = fake.clock.now
    fake.clock.advance(after)
    fake.promote_due()  # the next tasks may be ready
    RAISES[raised](fake, per_host)
    seen: list[Lease] = []
    while fake.clock.now < host.ended + after + 6.1:
        seen += host.claim(1)
        fake.clock.advance(0.5)
        fake.promote_due()
    assert seen


ENDS: dict[str, Callable[[FakeQueue, Lease], object]] = {
    "release": lambda queue, lease: queue.release(lease),
    "forget": lambda queue, lease: queue.forget(lease.task),
    "expiry": lambda queue, lease: queue.requeue_expired(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("before", [0, 1])
def test_a_visit_that_was_no_attempt_has_ended_for_a_delay_that_is_raised(
    fake: FakeQueue, end: str, before: int
) -> None:
    fake.configure(politeness=Politeness(before, 1))
    fake.put(urls(A, 2))
    (lease,) = fake.claim(1)
    fake.clock.advance(fake.timeout)
    ENDS[end](fake, lease)
    fake.clock.advance(1.4)
    fake.promote_due()
    fake.hosts.set(A, delay=6)
    assert fake.claim(1) == []
    fake.clock.advance(6)
    fake.promote_due()
    assert len(fake.claim(1)) == 1


@pytest.mark.parametrize("was_polite", [False, True])
def test_a_pause_of_before_does_not_hide_a_visit_without_a_delay(fake: FakeQueue, was_polite: bool) -> None:
    if was_polite:
        fake.configure(politeness=Politeness(1, 1))
    fake.put(urls(A, 3))
    fake.ack(fake.claim(1))
    fake.configure(politeness=Politeness(0, 1))
    fake.clock.advance(9)
    fake.promote_due()
    fake.ack(fake.claim(1))
    fake.hosts.set(A, delay=6)
    assert fake.claim(1) == []


def test_a_host_that_nobody_has_visited_does_not_rest_when_its_delay_is_raised(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(1, 1))
    fake.put(urls(A, 1))
    fake.hosts.set(A, delay=6)
    assert len(fake.claim(1)) == 1


def test_ready_tasks_that_wait_again_are_the_first_of_their_priority(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(1, 2))
    fake.put(urls(A, 2))
    fake.put(urls(f"{A}later", 8))
    first, second = urls(A, 2)
    fake.clock.advance(0.1)
    (lease,) = fake.claim(1)
    fake.ack(lease)
    fake.put(Task(f"{A}urgent", priority=1))
    fake.clock.advance(1)
    fake.promote_due()
    assert {lease.task for lease in fake.claim(10)} == {f"{A}urgent", second if lease.task == first else first}


@pytest.mark.breaking
def test_ten_thousand_places_with_a_delay_are_five_hundred(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(0.2, 10_000))
    for n in range(3):
        fake.put(urls(f"{A}{n}/", 400))
    host = Host(fake, 0.2)
    fake.promote_due()
    info = fake.hosts.inspect(A)
    assert (info.per_host, info.busy, info.waiting) == (500, 500, 700)
    (lease,) = host.claim(1)
    host.end(lambda: fake.ack(lease, put=urls(f"{A}linked", 3)))
    assert (fake.hosts.inspect(A).busy, fake.stats().todos) == (0, 0)
    fake.clock.advance(0.2)
    fake.promote_due()
    assert len(host.claim(500)) == 500
    fake.promote_due()
    assert host.claim(500) == []


def test_links_that_take_all_places_of_a_host_are_not_handed_over_by_the_ack(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(1, 10_000))
    fake.put(urls(A, 1))
    host = Host(fake, 1)
    (lease,) = host.claim()
    host.end(lambda: fake.ack(lease, put=urls(f"{A}linked", 499)))
    assert (fake.stats().todos, fake.stats().waiting) == (0, 499)
