"""timeoutq.testing on queues over several shards: what a test does with a plain queue, it does with these."""

from __future__ import annotations

import asyncio

from timeoutq import Lease
from timeoutq.testing import (
    Clock,
    FakeAsyncShardedQueue,
    FakeShardedQueue,
    fake_sharded_queue,
    run,
)
from timeoutq.words.model import State

pytest_plugins = ["timeoutq.testing.fixtures"]


PAGES = [f"https://h{i}.example/" for i in range(12)]


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
