"""Asks servers, while all else goes on, for the things that must be there before an ack, and why leases were lost.

A handler that `Serves` returns `AckAfter`: its function has returned, so no trouble of a server may count as a failed
attempt. The worker asks again until the server has answered, or the lease is lost; meanwhile the heartbeat extends the
lease, and another task has the handler's place. Then the ack goes, like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from timeoutq.client import AsyncDriver
from timeoutq.verbs import flows
from timeoutq.words import retry
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Ack, Lease
from timeoutq.worker.handlers import AckAfter
from timeoutq.worker.runs import MaxRuntime
from timeoutq.worker.worker_log import WorkerLog

ENDING = 2.0  # close() waits this many seconds for the cancelled tasks to end

Over = Callable[[Lease, Ack, BaseException | None], None]
"""Called when a server has answered, with the ack that goes now; or with an error that asking again would not cure."""


class Followers:
    """The acks of one queue that wait for a server, each in an asyncio task of its own."""

    def __init__(
        self, queue: AsyncDriver, worker_log: WorkerLog, over: Over, on_cancelled: Callable[[str], None]
    ) -> None:
        self._queue = queue
        self._log = worker_log
        self._over = over
        self._on_cancelled = on_cancelled
        self._open: dict[int, tuple[Lease, asyncio.Task[None]]] = {}
        self._troubles: dict[int, TimeoutqError] = {}
        self._context = copy_context()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def trouble(self) -> TimeoutqError | None:
        """The error of a last attempt; None while no attempt has failed."""
        return next(iter(self._troubles.values()), None)

    def add(self, lease: Lease, end: AckAfter) -> bool:
        """Ask before the ack of this lease; False after close(): then the end is not taken."""
        if not self._closed:
            loop = asyncio.get_running_loop()
            # in the context of the worker: otherwise the task would inherit that of the handler
            task = loop.create_task(self._ask(lease, end), name=f"follower-{self._queue.name}", context=self._context)
            self._open[lease.key] = lease, task
            task.add_done_callback(partial(self._ended, lease, end.ack))
        return not self._closed

    def take_out(self, lease: Lease) -> bool:
        """Ask no more, because the lease is lost or its task was cancelled; say whether it was there."""
        _, task = self._open.pop(lease.key, (None, None))
        self._troubles.pop(lease.key, None)
        if task is not None:
            task.cancel()
        return task is not None

    async def wait(self, seconds: float) -> None:
        """Wait until all have their answers, at most `seconds`."""
        if self._open:
            await asyncio.wait([task for _, task in self._open.values()], timeout=seconds)

    async def close(self) -> list[Lease]:
        """Ask no more, and return the leases whose acks still wait."""
        self._closed = True
        left = list(self._open.values())
        for lease, _ in left:
            self.take_out(lease)
        if left:
            await asyncio.wait([task for _, task in left], timeout=ENDING)
        return [lease for lease, _ in left]

    async def _ask(self, lease: Lease, end: AckAfter) -> None:
        tries = 0
        while True:
            try:
                await end.first()
            except TimeoutqError as error:
                if flows.is_final(error):
                    raise
                tries += 1
                self._tell_trouble(lease, error)
            else:
                return
            await asyncio.sleep(retry.pause(tries))

    def _ended(self, lease: Lease, ack: Ack, task: asyncio.Task[None]) -> None:
        if lease.key not in self._open:
            return
        if task.cancelled():
            self._on_cancelled("wait before an ack")
            return
        del self._open[lease.key]
        self._troubles.pop(lease.key, None)
        self._over(lease, ack, task.exception())

    def _tell_trouble(self, lease: Lease, error: TimeoutqError) -> None:
        if not self._troubles:
            words = "has returned, but what goes before its ack is not there yet. The worker asks again: %s"
            self._log.of_task(logging.WARNING, lease, words, error, error=error)
        self._troubles[lease.key] = error


class Losses:
    """The lost leases of one queue: asks why each was lost, and logs the answer."""

    def __init__(self, queue: AsyncDriver, runtime: MaxRuntime, worker_log: WorkerLog) -> None:
        self._queue, self._runtime, self._log = queue, runtime, worker_log
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def tell_soon(self, lease: Lease, verb: str) -> None:
        """Ask the queue why a lease was lost, and log it; `verb` is what came too late."""
        task = asyncio.get_running_loop().create_task(self._tell(lease, verb))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, lease: Lease, verb: str) -> None:
        try:
            # many leases may be lost at once: ask one question at a time, or each would open and keep a connection
            async with self._asking:
                why = flows.lost(self._queue.division.talk_of(lease), lease, self._runtime.ends_ms(lease))
                loss: object = await self._queue.run(why)
        except TimeoutqError as error:
            loss = f"lease on {lease.task!a} is lost; why cannot be asked: {error}"
        words = "the %s of a task came too late: %s"
        self._log.of_queue(logging.WARNING, words, verb, loss, lease=lease, error=loss)

    async def end(self) -> None:
        """Wait for the answers, for as long as one call may take."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._queue.talk.deadline)
            for task in self._tasks:
                task.cancel()
