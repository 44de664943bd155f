"""Asks why leases were lost, and logs the answers."""

from __future__ import annotations

import asyncio
import logging

from timeoutq.client import AsyncDriver
from timeoutq.verbs import flows
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.runs import MaxRuntime
from timeoutq.worker.worker_log import WorkerLog


class Losses:
    """The lost leases of one queue."""

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
