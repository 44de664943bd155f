"""What a worker does with tasks that somebody cancels while they are with the worker. Real servers and processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Lease, Queue, State, Worker
from timeoutq.words.model import Answer
from timeoutq.worker.desk import Tally

__all__ = ["run"]

LONG = 600.0
"""A lease so long that no extension comes during a test: the alarm tells of the cancel, or nobody does."""


async def until(predicate: Callable[[], bool | Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def patient(url: str, queue: Queue) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue.name, url, timeout=LONG, retry=[60]) as mine:
        yield mine


class Working:
    """A worker at work."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._working = asyncio.create_task(worker.run())

    async def end(self) -> Tally:
        self.worker.stop()
        return await asyncio.wait_for(self._working, 20)


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
    working = Working(Worker(patient, fetch, signals=False))
    await until(lambda: bool(working.worker.running))
    assert list(queue.cancel("long", by="kim")) == ["cancelling"]
    await in_state(queue, "long", State.FAILED)
    assert queue.inspect("long").error == "cancelled by kim"
    assert cleaned == ["long"]
    queue.put("next")
    await in_state(queue, "next", State.DONE)
    tally = await working.end()
    assert (tally.acked, tally.failed, tally.released, tally.lost) == (1, 1, 0, 0)


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
    working = Working(
        Worker(patient, fetch_in_thread if threads else fetch, concurrency=1, prefetch=5, signals=False),
    )
    await until(lambda: len(working.worker.held) == 2 and bool(begun))
    waits = "b" if begun == ["a"] else "a"
    queue.cancel(waits, by="kim")
    await in_state(queue, waits, State.FAILED)
    go.set()
    await in_state(queue, begun[0], State.DONE)
    await working.end()
    assert len(begun) == 1


async def test_a_handler_in_a_thread_is_waited_for_and_its_task_fails(queue: Queue, patient: AsyncQueue) -> None:
    go = threading.Event()

    def fetch(lease: Lease) -> None:
        go.wait(20)

    queue.put("a")
    working = Working(Worker(patient, fetch, concurrency=1, signals=False))
    await until(lambda: bool(working.worker.running))
    (lease,) = working.worker.running
    assert not working.worker.is_cancelled(lease)
    queue.cancel("a", by="kim")
    await until(lambda: working.worker.is_cancelled(lease))
    queue.put("b")
    assert queue.inspect("a").state is State.IN_PROGRESS, "its thread still works"
    assert queue.inspect("b").state is State.TODOS, "nobody else has the place of the thread"
    go.set()
    await in_state(queue, "a", State.FAILED)
    assert queue.inspect("a").error == "cancelled by kim"
    await in_state(queue, "b", State.DONE)
    await working.end()


async def test_a_coroutine_that_goes_on_though_it_was_cancelled_is_acked(queue: Queue, patient: AsyncQueue) -> None:
    async def fetch(lease: Lease) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)

    queue.put("a")
    working = Working(Worker(patient, fetch, signals=False))
    await until(lambda: bool(working.worker.running))
    queue.cancel("a")
    await in_state(queue, "a", State.DONE)
    await working.end()


async def test_an_error_that_a_cancelled_handler_raises_is_not_tried_again(queue: Queue, patient: AsyncQueue) -> None:
    async def fetch(lease: Lease) -> None:
        try:
            await asyncio.sleep(LONG)
        finally:
            raise ValueError("while it cleaned up")

    queue.put("a")
    working = Working(Worker(patient, fetch, signals=False))
    await until(lambda: bool(working.worker.running))
    queue.cancel("a", by="kim")
    await in_state(queue, "a", State.FAILED)
    assert queue.inspect("a").error == "cancelled by kim"
    await working.end()


async def test_an_extension_tells_a_worker_that_has_not_heard_the_alarm(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(lease: Lease) -> None:
        await asyncio.sleep(LONG)

    async def deaf(*_: object) -> None: ...

    monkeypatch.setattr("timeoutq.worker.interrupts.Interrupts.heed_cancels", deaf)
    async with AsyncQueue(queue.name, url, timeout=1) as mine:
        queue.put("a")
        working = Working(Worker(mine, fetch, signals=False))
        await until(lambda: bool(working.worker.running))
        queue.cancel("a", by="kim")
        await in_state(queue, "a", State.FAILED)
        assert queue.inspect("a").error == "cancelled by kim"
        await working.end()


async def test_the_lease_of_a_cancelled_thread_is_extended_until_the_thread_ends(queue: Queue, url: str) -> None:
    go = threading.Event()

    def fetch(lease: Lease) -> None:
        go.wait(20)

    async with AsyncQueue(queue.name, url, timeout=0.6) as mine:
        queue.put("a")
        working = Working(Worker(mine, fetch, signals=False))
        await until(lambda: bool(working.worker.running))
        before = queue.inspect("a").deadline or 0.0
        queue.cancel("a", by="kim")
        await until(lambda: (queue.inspect("a").deadline or 0.0) > before + 1.2)
        assert queue.inspect("a").state is State.IN_PROGRESS
        go.set()
        await in_state(queue, "a", State.FAILED)
        tally = await working.end()
    assert queue.stats().counters.get("expired", 0) == 0
    assert (tally.failed, tally.lost) == (1, 0)


async def test_a_worker_on_several_queues_stops_what_was_cancelled_in_one(queue: Queue, url: str) -> None:
    async def fetch(lease: Lease) -> None:
        await asyncio.sleep(LONG)

    other = f"{queue.name}-other"
    async with AsyncQueue(queue.name, url, timeout=LONG) as first, AsyncQueue(other, url, timeout=LONG) as second:
        await first.put("a")
        await second.put("a")
        working = Working(Worker([first, second], fetch, signals=False, drain_deadline=0.1))
        await until(lambda: len(working.worker.running) == 2)
        await second.cancel("a")
        await until(lambda: len(working.worker.running) == 1)
        assert queue.inspect("a").state is State.IN_PROGRESS
        await working.end()
        await second.purge()


def test_a_keeper_tells_the_program(queue: Queue) -> None:
    told: list[tuple[str, Answer]] = []
    queue.put("a")
    with queue.keeper(on_lost=lambda lease, answer: told.append((lease.task, answer))) as keeper:
        (lease,) = queue.claim(timeout=1.5)
        keeper.add(lease)
        queue.cancel("a")
        wait_until(lambda: told == [("a", Answer.CANCELLED)], 10)
        assert keeper.held == []
    assert queue.release(lease) == "cancelled"


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
