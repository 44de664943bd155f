"""timeoutq.testing on queues over several shards: what a test does with a plain queue, it does with these."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from timeoutq import Lease, LeaseLost, NotReplicated, Politeness, Task
from timeoutq.testing import (
    START,
    Clock,
    FakeAsyncShardedQueue,
    FakeShardedQueue,
    fake_async_queue,
    fake_async_sharded_queue,
    fake_queue,
    fake_sharded_queue,
    run,
)
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, State

pytest_plugins = ["timeoutq.testing.fixtures"]

PAGES = [f"https://h{i}.example/" for i in range(12)]


def test_leases_of_all_shards_run_out_when_the_test_says_so() -> None:
    with fake_sharded_queue(shards=4, timeout=30) as queue:
        queue.put(PAGES)
        held: list[Lease] = []
        while leases := queue.claim(12):
            held += leases
        assert {lease.deadline for lease in held} == {START + 30}
        assert len({lease.shard for lease in held}) > 1
        queue.clock.advance(29)
        assert queue.requeue_expired() == 0
        queue.clock.advance(2)
        assert queue.requeue_expired() == 12
        with pytest.raises(LeaseLost):
            queue.ack(held[0])
        (again,) = queue.claim()
        assert again.crashes == 1
        assert queue.ack(again) is Answer.OK


def test_a_client_that_is_not_told_the_number_of_shards_follows_the_clock_too() -> None:
    clock = Clock()
    with fake_sharded_queue(clock=clock, shards=5) as first, fake_sharded_queue(clock=clock) as second:
        first.put("a")
        clock.advance(10_000)
        first.put(PAGES)
        (lease,) = second.claim()
        assert lease.deadline == START + 10_030
        assert len(second.stats().shards) == 5
        clock.advance(29)
        assert second.extend(lease).deadline == START + 10_059


def test_a_handler_is_run_on_all_shards_and_its_retries_take_no_time() -> None:
    def handler(lease: Lease) -> None:
        if lease.task == PAGES[3] and lease.attempt < 3:
            raise ValueError("busy")

    with fake_sharded_queue(shards=3, retry=[60, 3600]) as queue:
        queue.put(PAGES)
        ran = run(handler, queue)
        assert set(ran.states.values()) == {State.DONE}
        assert ran.runs == {page: 3 if page == PAGES[3] else 1 for page in PAGES}
        assert ran.seconds == 3660
        assert queue.drained()


def test_what_is_due_first_in_any_shard_runs_first() -> None:
    ran: list[int] = []
    with fake_sharded_queue(shards=3) as queue:
        began = queue.clock.now
        for minute, page in enumerate(PAGES, 1):
            queue.schedule(page, after=60 * minute)
        assert queue.stats().next_due == pytest.approx(began + 60)
        run(lambda lease: ran.append(round(queue.clock.now - began)), queue)
        assert ran == [60 * minute for minute in range(1, len(PAGES) + 1)]


def test_the_same_for_asyncio() -> None:
    runs = Counter[str]()

    async def handler(lease: Lease) -> None:
        runs[lease.task] += 1
        await asyncio.sleep(0)

    async def test() -> None:
        async with fake_async_sharded_queue(shards=3) as queue:
            await queue.put(PAGES, Task("grouped", group="g.example"))
            await queue.schedule("later", after=3600)
            ran = await run(handler, queue)
            assert ran.seconds == 3600
            assert set(runs) == set(ran.states) == {*PAGES, "grouped", "later"}

    asyncio.run(test())


def test_settings_hold_in_all_shards() -> None:
    with fake_sharded_queue("polite", shards=3, politeness=Politeness(10, 1)) as queue:
        queue.put(f"https://one.example/{i}" for i in range(3))
        assert run(lambda lease: None, queue).seconds >= 20
    with fake_sharded_queue("compact", shards=3, keep_done="compact") as queue:
        queue.put(PAGES)
        assert set(run(lambda lease: None, queue).states.values()) == {State.DONE}
    with fake_sharded_queue("durable", clock=Clock(replicas=1), shards=3, durable=1, deadline=0.2) as queue:
        queue.put("a")
        queue.clock.replicas = 0
        with pytest.raises(NotReplicated):
            queue.put("b")


def test_what_a_kind_of_queue_does_not_take_is_refused_by_name() -> None:
    for make in (fake_queue, fake_async_queue):
        with pytest.raises(InvalidInput, match="fake_sharded_queue"):
            make(shards=4)
    with pytest.raises(InvalidInput, match="await run"):

        async def test() -> None:
            async with fake_async_sharded_queue(shards=2):
                run(lambda lease: None, fake_sharded_queue(shards=2))
            raise AssertionError

        asyncio.run(test())


def test_the_fixtures_share_one_queue(
    timeoutq_sharded_queue: FakeShardedQueue,
    timeoutq_async_sharded_queue: FakeAsyncShardedQueue,
    timeoutq_clock: Clock,
) -> None:
    timeoutq_sharded_queue.put(PAGES)
    timeoutq_clock.advance(1)

    async def count() -> int:
        async with timeoutq_async_sharded_queue as queue:
            return (await queue.stats()).todos

    assert asyncio.run(count()) == 12
