"""What a worker does with tasks that somebody cancels while they are with the worker. Real servers and processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from tests.worker.working import at_work, until
from timeoutq import AsyncQueue, Lease, Queue, State, Worker

__all__ = ["run"]

LONG = 600.0
"""A lease so long that no extension comes during a test: the alarm tells of the cancel, or nobody does."""


@pytest.fixture
async def patient(url: str, queue: Queue) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue.name, url, timeout=LONG, retry=[60]) as mine:
        yield mine


async def in_state(queue: Queue, task: str, state: State | None) -> None:
    await until(lambda: queue.inspect(task).state is state)


async def test_a_coroutine_is_cancelled_at_once_and_its_task_goes_to_failed(queue: Queue, patient: AsyncQueue) -> None:
    cleaned: list[str] = []

    async def fetch(lease: Lease) -> None:
        try:
            await asyncio.sleep(LONG if lease.task == "long" else 0)
        finally:
            cleaned.append(lease.task)

    queue.put("long")
    async with at_work(Worker(patient, fetch, signals=False)) as worker:
        await until(lambda: bool(worker.running))
        assert list(queue.cancel("long", by="kim")) == ["cancelling"]
        await in_state(queue, "long", State.FAILED)
        assert queue.inspect("long").error == "cancelled by kim"
        assert cleaned == ["long"]
        queue.put("next")
        await in_state(queue, "next", State.DONE)
    assert (worker.tally.acked, worker.tally.failed, worker.tally.released, worker.tally.lost) == (1, 1, 0, 0)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_task_whose_handler_has_not_begun_never_begins(
    queue: Queue, patient: AsyncQueue, threads: bool
) -> None:
    begun: list[str] = []
    go = threading.Event()

    async def fetch(lease: Lease) -> None:
        begun.append(lease.task)
        while not go.is_set():
            await asyncio.sleep(0.01)

    def fetch_in_thread(lease: Lease) -> None:
        begun.append(lease.task)
        go.wait(20)

    queue.put("a", "b")
    async with at_work(
        Worker(patient, fetch_in_thread if threads else fetch, concurrency=1, prefetch=5, signals=False)
    ) as worker:
        await until(lambda: len(worker.held) == 2 and bool(begun))
        waits = "b" if begun == ["a"] else "a"
        queue.cancel(waits, by="kim")
        await in_state(queue, waits, State.FAILED)
        go.set()
        await in_state(queue, begun[0], State.DONE)
    assert len(begun) == 1


async def test_a_handler_in_a_thread_is_waited_for_and_its_task_fails(queue: Queue, patient: AsyncQueue) -> None:
    go = threading.Event()

    def fetch(lease: Lease) -> None:
        go.wait(20)

    queue.put("a")
    async with at_work(Worker(patient, fetch, concurrency=1, signals=False)) as worker:
        await until(lambda: bool(worker.running))
        (lease,) = worker.running
        assert not worker.is_cancelled(lease)
        queue.cancel("a", by="kim")
        await until(lambda: worker.is_cancelled(lease))
        queue.put("b")
        assert queue.inspect("a").state is State.IN_PROGRESS, "its thread still works"
        assert queue.inspect("b").state is State.TODOS, "nobody else has the place of the thread"
        go.set()
        await in_state(queue, "a", State.FAILED)
        assert queue.inspect("a").error == "cancelled by kim"
        await in_state(queue, "b", State.DONE)


async def test_a_worker_on_several_queues_stops_what_was_cancelled_in_one(queue: Queue, url: str) -> None:
    async def fetch(lease: Lease) -> None:
        await asyncio.sleep(LONG)

    other = f"{queue.name}-other"
    async with AsyncQueue(queue.name, url, timeout=LONG) as first, AsyncQueue(other, url, timeout=LONG) as second:
        await first.put("a")
        await second.put("a")
        async with at_work(Worker([first, second], fetch, signals=False, drain_deadline=0.1)) as worker:
            await until(lambda: len(worker.running) == 2)
            await second.cancel("a")
            await until(lambda: len(worker.running) == 1)
            assert queue.inspect("a").state is State.IN_PROGRESS
        await second.purge()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_task_that_was_cancelled_is_not_run_again_when_its_process_is_killed(
    queue: Queue, run: Processes, moment: str
) -> None:
    queue.put("a")
    victim = run.worker(queue.name, "work", "--timeout", "1s", WORK="600")
    wait_until(lambda: queue.inspect("a").state is State.IN_PROGRESS, 20)
    if moment == "before":
        queue.cancel("a", by="kim")
        victim.kill()
    else:
        victim.kill()
        queue.cancel("a", by="kim")
    other = run.worker(queue.name, "work", "--timeout", "1s")
    wait_until(lambda: queue.inspect("a").state is State.FAILED, 20)
    assert queue.inspect("a").error == "cancelled by kim"
    queue.put("b")
    wait_until(lambda: queue.inspect("b").state is State.DONE, 20)
    assert queue.inspect("a").state is State.FAILED
    other.terminate()
    assert other.wait(20) == 0
