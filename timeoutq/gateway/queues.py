"""The queues that a gateway has open: one client for each name, on the loop of the application, closed at its end.

A caller opens at most half of the clients that may be open; room is made from the one that was idle for longest. A
client that nobody has used for a minute is closed, with all its connections to Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cached_property

from timeoutq.client import AsyncServerClient
from timeoutq.client.shards import AnyAsyncQueue, open_async_queue
from timeoutq.gateway.names import end
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.settings import Settings
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, TimeoutqError

KNOWN_FOR = 2.0  # for how many seconds a queue that was there is taken to be there still
IDLE = 60.0  # how many seconds a client stays open after its last use
SWEEP = 15.0  # seconds between two looks for clients that nobody uses


def unknown(name: str) -> Problem:
    """Give the problem of a queue that is not there, or not served."""
    return Problem(404, "unknown-queue", f"there is no queue {name!r:.80}: put a task to make one, or mend the name")


class Queues:
    """The open queues of one application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, AnyAsyncQueue] = {}
        self._opening: dict[str, asyncio.Task[AnyAsyncQueue]] = {}
        self._used: dict[str, float] = {}
        self._users = Counter[str]()
        self._by: dict[str, str] = {}  # who has opened a client, or is opening it
        self._known: dict[str, float] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self.busy: Callable[[str], bool] = lambda name: False
        """Says whether something goes on with a queue, so that it is not closed. `app.py` sets it."""

    @cached_property
    def directory(self) -> AsyncServerClient:
        """The client with which the server is asked for its queues; it opens none of them."""
        return AsyncServerClient("directory", self._settings.url, deadline=self._settings.deadline)

    def check(self, name: str) -> None:
        """Check that a queue of this name is served; raises the problem that it is unknown."""
        try:
            arguments.queue_name(name)
        except InvalidInput:
            raise unknown(name) from None
        if not self.serves(name):
            raise unknown(name)

    def serves(self, name: str) -> bool:
        """Say whether a queue of this name is served."""
        return fnmatchcase(name, self._settings.queues)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Keep the client of a queue open, if it is or comes to be, until the block ends."""
        self._users[name] += 1
        try:
            yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]

    async def get(self, name: str, who: str) -> AnyAsyncQueue:
        """Give the client of a queue, whether anything was put there or not; `who` counts as its opener.

        Raises a problem if too many are open. It may be closed as soon as nobody uses it: see `use`.
        """
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

    async def known(self, name: str, who: str, *, or_workers: bool = False) -> AnyAsyncQueue:
        """Give the client of a queue that is there; raises the problem that it is unknown, and closes the client then.

        With `or_workers`, a queue is there also if only workers wait for its tasks.
        """
        with self.use(name):
            queue = await self.get(name, who)
            if self._known.get(name, 0.0) >= time.monotonic():
                return queue
            if await queue.exists():
                self._known[name] = time.monotonic() + KNOWN_FOR
                return queue
            if or_workers and (await queue.stats()).workers:
                return queue
        # so many unknown names cost no places; the one user that may be left is the request that asks
        if self._users[name] <= 1 and not self.busy(name):
            await self.forget(name)
        raise unknown(name)

    async def forget(self, name: str) -> None:
        """Close the client of a queue; the next `get` opens another one."""
        self._known.pop(name, None)
        self._used.pop(name, None)
        queue = self._open.pop(name, None)
        if queue is not None:
            self._by.pop(name, None)
            await queue.close()

    async def close(self) -> None:
        """Close all clients."""
        await end(*self._opening.values(), self._sweeping)
        await self.directory.close()
        for name in list(self._open):
            with suppress(TimeoutqError):  # its connections end with the process
                await self.forget(name)

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
        if len(own) >= max(1, most // 2):
            names, status, of = own, 429, f" for {who}"
        elif len(self._by) >= most:
            names, status, of = [*self._by], 503, ""
        else:
            return
        idle = self._closable(names)
        if not idle:
            detail = f"{len(names)} queues are open here{of} already: use fewer at once, or raise most_queues"
            name = "too-many" if status == 429 else "unavailable"
            raise Problem(status, name, detail, headers={"retry-after": "10"})
        await self.forget(min(idle, key=self._used.__getitem__))

    def _closable(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._open and name not in self._users and not self.busy(name)]
