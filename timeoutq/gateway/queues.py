"""The queues that a gateway has open: one client for each name, until nobody uses it, or others need its place."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

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


@dataclass(slots=True)
class _Client:
    """The client of a queue, from the moment when somebody asks for it."""

    who: str  # who has opened it
    opened: asyncio.Task[AnyAsyncQueue]
    used: float = 0.0  # when it was last asked for


def unknown(name: str) -> Problem:
    """Give the problem of a queue that is not there, or not served."""
    return Problem(404, "unknown-queue", f"there is no queue {name!r:.80}: put a task to make one, or mend the name")


class Queues:
    """The open queues of one application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.directory = AsyncServerClient("directory", settings.url, deadline=settings.deadline)
        """The client with which the server is asked for its queues; it opens none of them."""
        self._open: dict[str, _Client] = {}
        self._users = Counter[str]()
        self._known: dict[str, float] = {}  # until when a queue is taken to be there
        self._sweeping: asyncio.Task[None] | None = None

    def check(self, name: str) -> None:
        """Check that a queue of this name is served; raises the problem that it is unknown."""
        with suppress(InvalidInput):
            if self.serves(arguments.queue_name(name)):
                return
        raise unknown(name)

    def serves(self, name: str) -> bool:
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
        """Give the client of a queue, which is open until nobody uses it (see `use`); `who` counts as its opener."""
        client = self._open.get(name)
        if client is None:
            self.check(name)
            client = self._open[name] = _Client(who, asyncio.ensure_future(self._make(name, who)))
            if self._sweeping is None or self._sweeping.done():
                self._sweeping = asyncio.create_task(self._sweep(), name="closing idle queues")
        client.used = time.monotonic()
        return await asyncio.shield(client.opened)

    async def known(self, name: str, who: str, *, or_workers: bool = False) -> AnyAsyncQueue:
        """Give the client of a queue that is there, or at which workers are; raises the problem of an unknown one."""
        with self.use(name):
            queue = await self.get(name, who)
            if self._known.get(name, 0.0) >= time.monotonic():
                return queue
            if await queue.exists():
                self._known[name] = time.monotonic() + KNOWN_FOR
                return queue
            if or_workers and (await queue.stats()).workers:
                return queue
        await self.gone(name)  # so many unknown names cost no places
        raise unknown(name)

    async def gone(self, name: str) -> None:
        """Note that a queue is not there; close its client, unless others use it besides the request that asks."""
        self._known.pop(name, None)
        if self._users[name] <= 1:
            await self.forget(name)

    async def forget(self, name: str) -> None:
        """Close the client of a queue; the next `get` opens another one."""
        self._known.pop(name, None)
        client = self._open.pop(name, None)
        if client is not None:
            await (await client.opened).close()

    async def close(self) -> None:
        await end(self._sweeping, *(client.opened for client in self._open.values()))
        await self.directory.close()
        for name in list(self._open):
            with suppress(TimeoutqError):  # its connections end with the process
                await self.forget(name)

    async def _make(self, name: str, who: str) -> AnyAsyncQueue:
        try:
            most = self._settings.most_queues
            own = [one for one, client in self._open.items() if client.who == who]
            if len(own) > max(1, most // 2):
                await self._make_room(own, 429, "too-many", f" for {who}")
            elif len(self._open) > most:
                await self._make_room([*self._open], 503, "unavailable", "")
            return await open_async_queue(name, self._settings.url, deadline=self._settings.deadline)
        except BaseException:
            del self._open[name]
            raise

    async def _make_room(self, names: list[str], status: int, problem: str, whose: str) -> None:
        idle = self._idle(names)
        if not idle:
            detail = f"{len(names) - 1} queues are open here{whose} already: use fewer at once, or raise most_queues"
            raise Problem(status, problem, detail, headers={"retry-after": "10"})
        await self.forget(min(idle, key=lambda name: self._open[name].used))

    async def _sweep(self) -> None:
        while self._open:
            await asyncio.sleep(SWEEP)
            long_ago = time.monotonic() - IDLE
            for name in [name for name in self._idle(self._open) if self._open[name].used < long_ago]:
                with suppress(TimeoutqError):
                    await self.forget(name)

    def _idle(self, names: Iterable[str]) -> list[str]:
        """Give those of these queues whose clients are open, and that nobody uses."""
        opened = (name for name in names if self._open[name].opened.done())
        return [name for name in opened if name not in self._users]
