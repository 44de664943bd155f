"""Asks servers for what must be there before an ack: the call that follows in another queue, or a limit.

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
from timeoutq.worker.voice import Voice

ENDING = 2.0
"""close() waits this many seconds for the cancelled tasks to end."""

Over = Callable[[Lease, Ack, BaseException | None], None]
"""Called when a server has answered, with the ack that goes now; or with an error that asking again would not cure."""


class Followers:
    """What one queue of a worker waits for before it acks, each in an asyncio task of its own."""

    def __init__(self, queue: AsyncDriver, voice: Voice, over: Over, on_cancelled: Callable[[str], None]) -> None:
        self._queue = queue
        self._voice = voice
        self._over = over
        self._on_cancelled = on_cancelled
        self._open: dict[int, tuple[Lease, asyncio.Task[None]]] = {}
        self._troubles: dict[int, TimeoutqError] = {}
        self._context = copy_context()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def keys(self) -> set[int]:
        """The keys of the leases whose acks wait."""
        return set(self._open)

    @property
    def trouble(self) -> TimeoutqError | None:
        """The error of a last attempt; None while no attempt has failed."""
        return next(iter(self._troubles.values()), None)

    def add(self, lease: Lease, end: AckAfter) -> bool:
        """Ask for what the ack of this lease waits for; False after close(): then the end is not taken."""
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
            self._voice.say(
                logging.WARNING, "queue %s: task %a has returned, but what goes before its ack is not there yet. The "
                "worker asks again: %s", self._voice.queue, lease.task, error, lease=lease, error=error,
            )  # fmt: skip
        self._troubles[lease.key] = error
