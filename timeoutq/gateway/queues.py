"""The queues that a gateway has open: one client for each name, on the loop of the application, closed at its end.

The endpoints and the page ask `Queues.get`. Nothing of a queue is kept here: a gateway may be killed at any moment.
A caller opens at most half of the clients that may be open; room is made from the one that was idle for longest. A
client that nobody has used for a minute is closed, with all its connections to Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from timeoutq.client import AsyncServerClient
from timeoutq.client.shards import AnyAsyncQueue, open_async_queue
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.settings import Settings
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, TimeoutqError

KNOWN_FOR = 2.0
"""For how many seconds a queue that was there is taken to be there still."""
IDLE = 60.0
"""How many seconds a client stays open after its last use, and after it was given to somebody who has not pinned it."""
SWEEP = 15.0
"""Seconds between two looks for clients that nobody uses."""


def unknown(name: str) -> Problem:
    """Give the problem of a queue that is not there, or not served."""
    return Problem(404, "unknown-queue", f"there is no queue {name!r:.80}: put a task to make one, or mend the name")


class Queues:
    """The open queues of one application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, AnyAsyncQueue] = {}
        self._opening: dict[str, asyncio.Task[AnyAsyncQueue]] = {}
        self._directory: AsyncServerClient | None = None
        self._used: dict[str, float] = {}
        self._kept: dict[str, float] = {}
        """Until when a client is not closed, for those who have not pinned it."""
        self._pins = Counter[str]()
        """How many requests use a client."""
        self._by: dict[str, str] = {}
        """Who has opened a client, or is opening it."""
        self._known: dict[str, float] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self.busy: Callable[[str], bool] = lambda name: False
        """Says whether something goes on with a queue, so that it is not closed. `state.py` sets it."""

    def check(self, name: str) -> str:
        """Check that a queue of this name is served; raises the problem that it is unknown."""
        if name in self._open:
            return name
        try:
            arguments.queue_name(name)
        except InvalidInput:
            raise unknown(name) from None
        if not self.serves(name):
            raise unknown(name)
        return name

    def serves(self, name: str) -> bool:
        """Say whether a queue of this name is served."""
        return fnmatchcase(name, self._settings.queues)

    async def directory(self) -> AsyncServerClient:
        """Give the client with which the server is asked for its queues; it opens none of them."""
        if self._directory is None:
            self._directory = AsyncServerClient("directory", self._settings.url, deadline=self._settings.deadline)
        return self._directory

    async def get(self, name: str, who: str = "") -> AnyAsyncQueue:
        """Give the client of a queue, whether anything was put there or not; `who` counts as its opener.

        Raises a problem if too many are open. The client is not closed for `IDLE` seconds, or while it is pinned.
        """
        found = await self._get(name, who)
        self._kept[name] = time.monotonic() + IDLE
        return found

    async def known(self, name: str, who: str = "", *, or_workers: bool = False) -> AnyAsyncQueue:
        """Give the client of a queue that is there; raises the problem that it is unknown, and closes the client then.

        With `or_workers`, a queue is there also if only workers wait for its tasks.
        """
        found = await self._known_to(name, who, or_workers=or_workers)
        self._kept[name] = time.monotonic() + IDLE
        return found

    def pin(self, name: str) -> None:
        """Keep the client of a queue open, if it is or comes to be, until `unpin`."""
        self._pins[name] += 1

    def unpin(self, name: str) -> None:
        """End one `pin`."""
        self._pins[name] -= 1
        if not self._pins[name]:
            del self._pins[name]

    async def pinned(self, name: str, who: str, *, known: bool) -> AnyAsyncQueue:
        """Do as `get`, or as `known`, for somebody who has pinned the client, and unpins it when its use ends."""
        return await (self._known_to(name, who) if known else self._get(name, who))

    async def _get(self, name: str, who: str) -> AnyAsyncQueue:
        found = self._open.get(name)
        if found is not None:
            self._used[name] = time.monotonic()
            return found
        self.check(name)
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.ensure_future(self._make(name, who))
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(task)

    async def _known_to(self, name: str, who: str, *, or_workers: bool = False) -> AnyAsyncQueue:
        self.pin(name)
        try:
            queue = await self._get(name, who)
            if self._known.get(name, 0.0) >= time.monotonic():
                return queue
            if await queue.exists():
                self._known[name] = time.monotonic() + KNOWN_FOR
                return queue
            if or_workers and (await queue.stats()).workers:
                return queue
        finally:
            self.unpin(name)
        # so many unknown names cost no places; the request that asks may have pinned the name itself
        if self._pins[name] <= 1 and self._is_idle(name):
            await self.forget(name)
        raise unknown(name)

    def _is_idle(self, name: str) -> bool:
        return self._kept.get(name, 0.0) < time.monotonic() and not self.busy(name)

    async def forget(self, name: str) -> None:
        """Close the client of a queue; the next `get` opens one anew."""
        self._known.pop(name, None)
        self._used.pop(name, None)
        self._kept.pop(name, None)
        queue = self._open.pop(name, None)
        if queue is not None:
            self._by.pop(name, None)
            await queue.close()

    async def close(self) -> None:
        """Close all clients."""
        for task in [*self._opening.values(), *([self._sweeping] if self._sweeping else [])]:
            task.cancel()
        if self._directory is not None:
            await self._directory.close()
        for name in list(self._open):
            try:
                await self.forget(name)
            except TimeoutqError:
                continue  # its connections end with the process

    async def _make(self, name: str, who: str) -> AnyAsyncQueue:
        await self._make_room(who)
        self._by[name] = who
        try:
            queue = await open_async_queue(name, self._settings.url, deadline=self._settings.deadline)
        except BaseException:
            del self._by[name]
            raise
        self._open[name] = queue
        self._used[name] = time.monotonic()
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep(), name="closing idle queues")
        return queue

    async def _sweep(self) -> None:
        while self._open:
            await asyncio.sleep(SWEEP)
            long_ago = time.monotonic() - IDLE
            for name in [name for name in self._closable(self._open) if self._used[name] < long_ago]:
                with suppress(TimeoutqError):
                    await self.forget(name)

    async def _make_room(self, who: str) -> None:
        most = self._settings.most_queues
        own = [name for name, by in self._by.items() if by == who]
        if who and len(own) >= max(1, most // 2):
            detail = f"{len(own)} queues are open here for {who} already: use fewer at once, or raise most_queues"
            await self._close_one(own, Problem(429, "too-many", detail, headers={"retry-after": "10"}))
        elif len(self._by) >= most:
            detail = f"{len(self._by)} queues are open here already: use fewer at once, or raise most_queues"
            await self._close_one(self._by, Problem(503, "unavailable", detail, headers={"retry-after": "10"}))

    async def _close_one(self, names: Iterable[str], refusal: Problem) -> None:
        idle = self._closable(names)
        if not idle:
            raise refusal
        await self.forget(min(idle, key=self._used.__getitem__))

    def _closable(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._open and name not in self._pins and self._is_idle(name)]
