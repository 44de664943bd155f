"""Looks that many share: one look at a time for all who ask; and the names of the queues of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from timeoutq.client import AsyncServerClient
from timeoutq.watch import directory

T = TypeVar("T")

REST = 1.0  # seconds between two looks at the same thing, at the least
SHARE = 4.0  # a look that took long is followed by a rest this many times as long
LONGEST_REST = 60.0


class Shared(Generic[T]):
    """One look for all who ask while it is under way, and for all who ask while it rests."""

    def __init__(self, look: Callable[[], Awaitable[T]], rest: float = REST, share: float = SHARE) -> None:
        self._look = look
        self._rest, self._share = rest, share
        self._found: T | None = None
        self._until = 0.0
        self._under_way: asyncio.Task[T] | None = None

    @property
    def is_looking(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    @property
    def rests(self) -> float:
        """For how many seconds the last look is still given."""
        return max(0.0, self._until - time.monotonic())

    async def get(self) -> T:
        """Give the last look while it rests, else the one under way; raises the error of the look."""
        if self._found is not None and self.rests:
            return self._found
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.get_running_loop().create_task(self._now())
            self._under_way.add_done_callback(lambda task: task.cancelled() or task.exception())
        # one who goes away must not cancel the look of the others
        return await asyncio.shield(self._under_way)

    def forget(self) -> None:
        """Look again when somebody asks: something has just been changed."""
        self._until, self._under_way = 0.0, None

    async def _now(self) -> T:
        began = time.monotonic()
        try:
            found = await self._look()
        except BaseException:
            if self._under_way is asyncio.current_task():
                self._found = None  # a look from before the trouble is not shown as fresh
            raise
        if self._under_way is asyncio.current_task():  # else it is from before a change
            ended = time.monotonic()
            self._until = ended + rest_after(ended - began, self._rest, self._share)
            self._found = found
        return found

    async def close(self) -> None:
        await end(self._under_way)


def rest_after(took: float, least: float = REST, share: float = SHARE) -> float:
    """Say how long to rest after a look that took so many seconds."""
    return min(LONGEST_REST, max(least, took * share))


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait for their end."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


class Names:
    """The names of the queues of a server, found by a walk through its keys that goes on while others are served."""

    def __init__(self, client: AsyncServerClient, serves: Callable[[str], bool], share: float) -> None:
        """Find the names that are served; a walk rests for 5 seconds, or `share` times as long as it took."""
        self.found: set[str] = set()  # the names that were met, and may be there still
        self.walk = Shared(self._go, 5.0, share)
        self._client, self._serves = client, serves

    async def get(self, patience: float) -> set[str]:
        """Give the names; wait so many seconds for a walk that is under way. Raises the error of the walk."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.walk.get()
        return self.found

    async def _go(self) -> set[str]:
        met = set[str]()
        async for name in directory.every_name(self._client):
            if self._serves(name):
                met.add(name)
                self.found.add(name)
        self.found = met
        return met
