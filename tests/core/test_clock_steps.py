"""What a queue does when its server's clock steps: the quick part, in memory. `test_clocks.py` bends a real one."""

from __future__ import annotations

import pytest

from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import flows, sending


def step_back(queue: FakeQueue, seconds: float) -> None:
    """Let the server's clock step back; no command tells it."""
    vars(queue.clock)["_micros"] -= round(seconds * 1e6)


def jump(queue: FakeQueue, seconds: float) -> None:
    """Let the server's clock jump between two looks of a cleaner, which expected none of it."""
    queue.requeue_expired()
    expected = round(queue.clock.now * 1000)
    queue.clock.advance(seconds)
    queue._link().at(None).send([queue.operations.requeue_expired().command(expected=expected)])


@pytest.mark.parametrize(("seconds", "jumps"), [(1.9, None), (2.1, 1), (29, 1)])
def test_a_jump_of_more_than_two_seconds_is_one_however_long_leases_are(seconds: float, jumps: int | None) -> None:
    with fake_queue(timeout=60) as queue:
        queue.put("a")
        queue.claim()
        jump(queue, seconds)
        assert queue.stats().counters.get("clock_jumps") == jumps


def test_a_jump_that_a_cleaner_has_seen_is_the_time_by_which_it_judges_from_then_on() -> None:
    with fake_queue(timeout=60) as queue:
        queue.talk.clock = sending.ServerClock()  # that of a real client, which no test advances
        queue.put("a")
        queue.claim()
        queue.run(flows.clean(queue.talk))
        queue.clock.advance(600)
        for _ in range(3):
            queue.run(flows.clean(queue.talk))
        assert queue.stats().counters.get("clock_jumps") == 1


def taken_back_after(queue: FakeQueue, seconds: float) -> None:
    """The one lease is taken back when so much time has passed, a second more or less, and no sooner."""
    assert queue.requeue_expired() == 0
    queue.clock.advance(seconds - 1)
    assert queue.requeue_expired() == 0
    queue.clock.advance(2)
    assert queue.requeue_expired() == 1


def test_a_grace_does_not_become_longer_when_the_clock_steps_back() -> None:
    with fake_queue(timeout=60) as queue:
        queue.put("a")
        queue.claim()
        jump(queue, 600)
        step_back(queue, 500)
        taken_back_after(queue, 60)


def test_a_lease_is_not_longer_than_asked_for_after_a_clock_that_stepped_back() -> None:
    with fake_queue(timeout=30) as queue:
        queue.put("a")
        queue.claim()
        step_back(queue, 3600)
        taken_back_after(queue, 30)


def test_a_worker_that_is_silent_for_half_a_minute_is_not_alive() -> None:
    with fake_queue() as queue:
        queue.run(sending.answer(queue.talk, queue.operations.beat("w:1:a", {"pid": 1})))
        queue.clock.advance(29)
        assert queue.stats().workers == 1
        queue.clock.advance(2)
        assert queue.stats().workers == 0
