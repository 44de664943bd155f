"""Handlers that do not end, or end more than themselves: the worker goes on with all other tasks, or says why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from timeoutq import AsyncQueue, InvalidInput, Lease, Queue, Worker
from timeoutq.testing import fake_async_queue
from timeoutq.worker import Tally


async def until(predicate: Callable[[], bool | Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


async def ended(working: asyncio.Task[Tally], seconds: float = 15.0) -> Tally:
    return await asyncio.wait_for(working, seconds)


# ---- a suspect, which must run alone


def make_suspect(queue: Queue, task: str) -> Lease:
    """Let two leases on a task run out, and claim it again."""
    queue.put(task)
    for _ in range(2):
        assert queue.claim(timeout=0.05)
        deadline = time.monotonic() + 10
        while not queue.requeue_expired():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (lease,) = queue.claim(timeout=60)
    assert lease.crashes == 2
    return lease


@pytest.mark.parametrize("threads", [False, True])
async def test_a_suspect_and_a_long_handler_do_not_stop_the_worker(url: str, queue: Queue, threads: bool) -> None:
    ran: list[str] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)
        if lease.task == "long":
            await go.wait()

    def handler_in_thread(lease: Lease) -> Awaitable[None]:
        return handler(lease)

    suspect = make_suspect(queue, "suspect")
    queue.put("long")
    async with AsyncQueue(queue.name, url, timeout=2) as mine:
        worker = Worker(mine, handler_in_thread if threads else handler, signals=False)
        working = asyncio.create_task(worker.run())
        await until(lambda: ran == ["long"])
        queue.release(suspect)
        await until(lambda: suspect.task in [lease.task for lease in worker.held.values()])
        queue.put([f"t{i}" for i in range(20)])
        await until(lambda: len(ran) == 21)
        assert "suspect" not in ran
        info = queue.inspect("suspect")
        assert info.crashes == 2 and info.failures == 0  # nobody blames it for having waited
        go.set()
        await until(lambda: queue.stats().done == 22)
        worker.stop()
        await ended(working)


async def test_a_suspect_that_waited_in_vain_stays_away_longer_each_time(url: str, queue: Queue) -> None:
    async with AsyncQueue(queue.name, url) as mine:
        worker = Worker(mine, lambda lease: None, signals=False)
        delays: list[float] = []
        for _ in range(8):
            worker._postpone(Lease("suspect", "w#1", deadline=0.0))
            (errand,) = worker._gathered.errands
            delays.append(int(str(errand.call.args[0])) / 1000)
            worker._gathered.errands.clear()
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_suspect_that_lost_its_lease_while_it_waited_is_not_run_with_it(url: str, queue: Queue) -> None:
    ran: list[tuple[str, int]] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        ran.append((lease.task, lease.fence))
        if lease.task == "long":
            await go.wait()

    suspect = make_suspect(queue, "suspect")
    queue.put("long")
    async with AsyncQueue(queue.name, url, timeout=3) as mine:
        worker = Worker(mine, handler, signals=False)
        working = asyncio.create_task(worker.run())
        await until(lambda: len(ran) == 1)
        queue.release(suspect)
        await until(lambda: worker._solo is not None)
        assert worker._solo is not None
        worker._solo_until += 60
        waiting = worker._solo.fence
        queue.forget("suspect")
        await until(lambda: waiting not in worker.held)
        go.set()
        queue.put("other")
        await until(lambda: queue.stats().done == 2)
        assert [task for task, _ in ran] == ["long", "other"]
        worker.stop()
        assert (await ended(working)).lost == 1


# ---- a second run


async def test_a_worker_that_is_run_again_says_that_it_runs_once() -> None:
    async with fake_async_queue() as queue:
        worker = Worker(queue, lambda lease: None, burst=True, signals=False)
        await worker.run()
        await queue.put("a")
        with pytest.raises(InvalidInput, match="a Worker runs once: make another"):
            await worker.run()
