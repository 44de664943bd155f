"""Asks why leases were lost, and logs the answers: in asyncio tasks of its own, so that nothing else waits."""

from __future__ import annotations

import asyncio
import logging

from timeoutq.client import AsyncDriver
from timeoutq.verbs import flows
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.runs import MaxRuntime
from timeoutq.worker.voice import Voice


class Losses:
    """The losses of one worker."""

    def __init__(self, queue: AsyncDriver, runtime: MaxRuntime, voice: Voice) -> None:
        self._queue = queue
        self._runtime = runtime
        self._voice = voice
        self._asking = asyncio.Lock()
        self._tellers: set[asyncio.Task[None]] = set()

    def tell_soon(self, lease: Lease, verb: str) -> None:
        """Ask the queue why a lease was lost, and log it; `verb` is what came too late."""
        task = asyncio.get_running_loop().create_task(self._tell(lease, verb))
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    async def _tell(self, lease: Lease, verb: str) -> None:
        try:
            # many leases may be lost at once: ask one question at a time, or each would open and keep a connection
            async with self._asking:
                why = flows.lost(self._queue.division.talk_of(lease), lease, self._runtime.ends_ms(lease))
                loss: object = await self._queue.run(why)
        except TimeoutqError as error:
            loss = f"lease on {lease.task!a} is lost; why cannot be asked: {error}"
        what = "queue %s: the %s of a task came too late: %s"
        self._voice.say(logging.WARNING, what, self._voice.queue, verb, loss, lease=lease, error=loss)

    async def end(self) -> None:
        """Wait for the answers, for as long as one call may take."""
        if self._tellers:
            await asyncio.wait(self._tellers, timeout=self._queue.talk.deadline)
            for task in self._tellers:
                task.cancel()
