"""Each way in which a lease ends, in several states at once: the server there or away, the handler begun or not, in the
event loop or in a thread. Whatever ends a lease, its task ends once, nothing stays held, and its place is free again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.rig.inside import pump_of, seen
from tests.rig.proxy import Fault, Proxy
from tests.worker.working import at_work, until
from timeoutq import Ack, Answer, AsyncQueue, GiveUp, Lease, Queue, Release, Retry, State, Worker
from timeoutq.server.calls import BYTES

SHAPES = ["async", "thread", "awaited"]
"""The handler is an `async def`, a `def`, or a `def` that gives an awaitable."""
MUCH = {f"much-{i}": b"x" * (BYTES // 2 + 1) for i in range(2)}

ENDS: dict[str, tuple[Any, State | None]] = {
    "done": (None, State.DONE),
    "found": (Ack(put=["found-1", "found-2"]), State.DONE),
    "much": (Ack(put=MUCH), State.DONE),
    "kept": (Ack(result=b"8"), State.DONE),
    "forgotten": (Ack(keep_id=False), None),
    "again": (Ack(again_in=3600), State.SCHEDULED),
    "retried": (Retry(after=3600), State.SCHEDULED),
    "given up": (GiveUp("no"), State.FAILED),
    "raises": (ValueError("no"), State.SCHEDULED),
    "released": (Release(delay=3600), State.SCHEDULED),
    "refused": (Release(block_host=3600), State.TODOS),
    "put back": (Release(), State.TODOS),
}
"""What handlers of these tasks give, and where it brings their tasks."""


class Tasks:
    """Handlers that begin, and end when the test says so, with what the test has them give; otherwise with nothing."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gives: dict[str, object] = {}
        self._gates: dict[str, threading.Event] = {}

    def end(self, *tasks: str) -> None:
        for task in tasks:
            self._gate(task).set()

    def handler(self, shape: str) -> Any:
        async def in_loop(lease: Lease) -> object:
            self.begun.append(lease.task)
            while not self._gate(lease.task).is_set():
                await asyncio.sleep(0.005)
            return self._give(lease.task)

        def in_thread(lease: Lease) -> object:
            self.begun.append(lease.task)
            self._gate(lease.task).wait(60)
            return self._give(lease.task)

        def awaited(lease: Lease) -> object:
            return in_loop(lease)

        return {"async": in_loop, "thread": in_thread, "awaited": awaited}[shape]

    def _gate(self, task: str) -> threading.Event:
        return self._gates.setdefault(task, threading.Event())  # in one step: two threads must not make two

    def _give(self, task: str) -> object:
        came = self.gives.get(task)
        if isinstance(came, ValueError):
            raise came
        return came


@asynccontextmanager
async def behind_proxy(
    url: str, queue: Queue, deadline: float = 1.0, **settings: Any
) -> AsyncIterator[tuple[Proxy, AsyncQueue]]:
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=deadline, retry=[3600], **settings) as mine:
            yield proxy, mine


def go_away(proxy: Proxy) -> None:
    """Let the server be away until the proxy is disarmed."""
    proxy.arm(Fault.RESET_BEFORE, b"", times=None)
    proxy.cut()


async def all_places_are_free(queue: Queue, worker: Worker, tasks: Tasks, running: int, held: int) -> None:
    """Fill the worker with new tasks: `running` that have begun, and `held` in all; then have all of them done."""
    new = [f"new-{i}" for i in range(held)]
    before = {lease.task for lease in worker.held.values()}
    queue.put(new)
    await until(lambda: len(worker.held) == held and len(worker.running) == running)
    assert len({lease.task for lease in worker.held.values()} - before) == held - len(before)
    tasks.end(*new, *before)
    await until(lambda: all(queue.inspect(task).state is State.DONE for task in new))
    await until(lambda: not worker.held)
    await until(seen(worker, lambda pump: pump.crew.taken == pump.shards[0].claims.claiming_now == 0))


@pytest.mark.parametrize("away", [False, True], ids=["server there", "server away"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_handlers_give_ends_each_task_once_and_frees_its_place(
    url: str, queue: Queue, shape: str, away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Tasks()
    tasks.gives = {task: given for task, (given, _) in ENDS.items()}
    queue.put(*ENDS)
    async with behind_proxy(url, queue) as (proxy, mine):
        worker = Worker(mine, tasks.handler(shape), concurrency=len(ENDS), prefetch=2, signals=False)
        async with at_work(worker):
            await until(lambda: len(tasks.begun) == len(ENDS))
            queue.pause()  # what they find stays where it is
            if away:
                go_away(proxy)
            tasks.end(*ENDS)
            if away:
                await until(seen(worker, lambda pump: pump.shards[0].failures > 1))
                await until(lambda: "not all of it could be put yet" in caplog.text)
                assert len(worker.held) == len(ENDS)
                proxy.disarm()
            await until(lambda: not worker.held)
            assert {task: queue.inspect(task).state for task in ENDS} == {
                task: state for task, (_, state) in ENDS.items()
            }
            ready = {entry.task for entry in queue.list("todos")}
            assert ready == {"found-1", "found-2", *MUCH, "refused", "put back"}
            queue.forget(*ready)
            queue.resume()
            await all_places_are_free(queue, worker, tasks, len(ENDS), len(ENDS) + 2)
    assert (worker.tally.acked, worker.tally.failed, worker.tally.released, worker.tally.lost) == (
        6 + len(ENDS) + 2,
        3,
        3,
        0,
    )


@pytest.mark.parametrize("away", [False, True], ids=["server there", "server away"])
@pytest.mark.parametrize("why", [Answer.LOST, Answer.MAX_RUNTIME])
@pytest.mark.parametrize("shape", SHAPES)
async def test_leases_that_are_lost_end_wherever_their_tasks_are_and_leave_the_others_alone(
    url: str, queue: Queue, shape: str, why: Answer, away: bool
) -> None:
    tasks, known = Tasks(), {f"t{i}" for i in range(5)}
    queue.put(known)
    async with behind_proxy(url, queue, max_runtime=600) as (proxy, mine):
        worker = Worker(mine, tasks.handler(shape), concurrency=3, prefetch=2, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: len(tasks.begun) == 3 and len(worker.held) == 5)
        leases = {lease.task: lease for lease in worker.held.values()}
        runs, ends, goes_on = tasks.begun
        if away:
            go_away(proxy)
        tasks.end(ends)
        await until(lambda: len(tasks.begun) == 4)
        await until(seen(worker, lambda pump: pump.shards[0].failures > 1) if away else lambda: worker.tally.acked == 1)
        (waits,) = known - {*tasks.begun}
        queue.forget(waits, runs, ends)
        # as the heartbeat says, which may have asked before the server went away, or before the end was sent
        pump_of(worker).works[0].interrupts.lose_soon([(leases[task], why) for task in (waits, runs, ends)])
        await until(lambda: runs not in [lease.task for lease in worker.running])
        proxy.disarm()
        await until(lambda: {lease.task for lease in worker.held.values()} == {goes_on, tasks.begun[3]})
        await all_places_are_free(queue, worker, tasks, running=3, held=5)
        tasks.end(runs)
        worker.stop()
        tally = await running
    assert waits not in tasks.begun
    # a handler that max_runtime stops has failed; but this lease was lost meanwhile
    assert (tally.acked, tally.failed, tally.released, tally.lost) == (2 + 5 + (not away), 0, 0, 2 + away)
