"""What a call says and hears while it runs: it says how far it is, and hears whether it was cancelled.

`running.py` makes a `Noting` for each call that has a context. Any thread may ask.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease

PAUSE = 0.1
"""Seconds between two notes that are sent. Of the notes that come meanwhile, only the last one is sent."""


class Told(Protocol):
    """What `Noting` needs of the place in which a call runs."""

    @property
    def queue(self) -> Any:
        """The worker's client of the queue."""
        ...

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running."""
        ...


class Noting:
    """Sends the notes of one call, and never keeps the call waiting: a newer note replaces one not yet sent."""

    __slots__ = ("_is_closed", "_lease", "_loop", "_next", "_place", "_sending")

    def __init__(self, place: Told, lease: Lease) -> None:
        """Prepare, in the event loop of the worker."""
        self._place = place
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._next: Any = None
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the call."""
        return self._place.is_cancelled(self._lease)

    def note(self, done: float, total: float | None, text: str) -> None:
        """Have a note sent. Raises `InvalidInput`."""
        flow = self._place.queue.flows.note(self._lease, done, total, text)
        with suppress(RuntimeError):  # the worker has ended, and this thread still runs
            self._loop.call_soon_threadsafe(self._take, flow)

    def close(self) -> None:
        """Send nothing more: the call has ended."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    def _take(self, flow: Any) -> None:
        self._next = flow
        if self._sending is None and not self._is_closed:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._next is not None:
            flow, self._next = self._next, None
            with suppress(TimeoutqError):  # a note is worth no failure, and of a lost lease the worker hears otherwise
                await self._place.queue.run(flow)
            await asyncio.sleep(PAUSE)
        self._sending = None
