"""How long handlers ran: what a worker measures, what it tells, and what the queue makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from timeoutq import AsyncQueue, Lease, Queue, Retry, Worker
from timeoutq.testing import Clock, FakeQueue
from timeoutq.verbs import sending
from timeoutq.words.durations import QUICK, SHORTEST, Delta, bound, bucket


def tell(face: Any, delta: Delta, worker: str = "w:1:a") -> None:
    face.run(sending.answer(face.talk, face.operations.beat(worker, {"pid": 1}, delta)))


# ---- what a worker tells


def test_this_span_of_ten_minutes_and_the_one_before_count_and_stay_after_the_last_run() -> None:
    clock = Clock(1_800_000_000.0)  # a span begins
    with FakeQueue("q", clock) as queue:
        tell(queue, Delta(1, {bucket(1.0): 1}))
        clock.advance(600)
        tell(queue, Delta(2, {bucket(2.0): 1}))
        assert told(queue) == (2, bound(bucket(2.0)))
        clock.advance(600)
        assert told(queue) == (2, bound(bucket(2.0))), "nothing goes before something comes"
        tell(queue, Delta(3, {bucket(0.5): 1}))
        assert told(queue) == (2, bound(bucket(2.0))), "the first span makes room"
        clock.advance(86_400)
        assert told(queue) == (2, bound(bucket(2.0)))
        tell(queue, Delta(4, {bucket(0.1): 1}))
        assert told(queue) == (1, bound(bucket(0.1))), "what is older than ten minutes is not added to what is new"


def told(queue: Any) -> tuple[int, float]:
    found = queue.stats().durations
    return found.count, found.max


# ---- whole workers


@pytest.mark.parametrize("kind", ["async", "thread", "awaitable"])
async def test_every_run_of_a_handler_is_measured_however_it_ends(url: str, queue: Queue, kind: str) -> None:
    import time

    async def fetch(lease: Lease) -> None:
        await asyncio.sleep(0.05)
        if lease.attempt == 1:
            raise Retry(after=0)

    def load(lease: Lease) -> None:
        time.sleep(0.05)
        if lease.attempt == 1:
            raise Retry(after=0)

    handler: Any = {"async": fetch, "thread": load, "awaitable": lambda lease: fetch(lease)}[kind]
    queue.put(str(number) for number in range(10))
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        tally = await Worker(mine, handler, burst=True).run()
    assert (tally.acked, tally.failed) == (10, 10)
    found = queue.stats().durations
    assert found is not None
    assert found.count == 20
    assert 0.05 <= found.p50 <= found.p95 <= found.max < 5


def test_the_runs_of_all_time_only_grow_and_a_report_that_is_sent_again_counts_once() -> None:
    clock = Clock(1_800_000_000.0)
    with FakeQueue("q", clock) as queue:
        assert queue.stats().ran == {}
        for number in (1, 2, 2, 3):
            tell(queue, Delta(number, {QUICK: 2, bucket(1.0): 1}))
            clock.advance(86_400 if number == 1 else 0)
        assert queue.stats().ran == {SHORTEST: 6, bound(bucket(1.0)): 3}
        assert told(queue) == (6, bound(bucket(1.0))), "the other figures are those of the last span"
