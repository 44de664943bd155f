"""Looks at queues for everybody who watches them: one look a second and page, however many viewers there are.

A page that many watch is looked at and drawn once, and nobody watching means no look at all. All who watch a page wait
for the same moment: when its last look has rested. A look rests for as long as it took many times over, and the pages
and streams are bounded, so that no number of viewers keeps the server of the queues busy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from markupsafe import escape

from timeoutq.gateway.callers import Caller, Needs
from timeoutq.gateway.names import REST, SHARE, Names, Shared
from timeoutq.gateway.page.walks import Walks
from timeoutq.gateway.problems import Problem, report
from timeoutq.gateway.queues import Queues
from timeoutq.watch import directory
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot_async
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe

T = TypeVar("T")
Parts = Mapping[str, str]  # fragments of a page: the id of an element, and its new inner HTML
Key = tuple[str, Hashable]  # a queue, and the name of something that is looked at there

MOST_PAGES, MOST_FOR_ONE, MOST_STREAMS = 100, 20, 1000
"""How many distinct pages are watched at once, by all and by one caller, and how many streams there may be."""
LONGEST_STREAM = 300.0  # seconds until a stream ends, and the browser asks again: as somebody who may still look
QUIET = 15.0  # seconds after which a stream without news gives nothing, so that proxies keep the connection
MOST_KEPT = 300  # how many looks are kept
AT_ONCE = 4  # how many pages are drawn at once; further ones wait for their turn
ROWS = 12  # rows of each table in a look
MOST = 100  # how many queues a caller is shown, the first by name
PATIENCE = 0.3
"""For how long an overview waits for a walk through the keys, seconds: most servers are walked through sooner."""


class Hub:
    """The looks of one process, and its walks."""

    def __init__(self, queues: Queues, rest: float = REST) -> None:
        self._queues = queues
        self._rest = rest
        self._looks: OrderedDict[Key, Shared[Any]] = OrderedDict()
        self._viewers = Counter[tuple[str, Key]]()  # how many streams each caller has of each page
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._over = asyncio.Event()
        self.names = Names(lambda: queues.directory, queues.serves, SHARE)
        self.walks = Walks()

    async def shared(
        self, queue: str, name: Hashable, look: Callable[[], Awaitable[T]], rest: float | None = None
    ) -> T:
        """Look at something of a queue, or give the look of somebody else within `rest` seconds."""
        return await self._look((queue, name), look, rest).get()

    def _look(self, key: Key, look: Callable[[], Awaitable[T]], rest: float | None = None) -> Shared[T]:
        shared: Shared[T] | None = self._looks.get(key)
        if shared is None:
            shared = self._looks[key] = Shared(look, rest or self._rest)
        self._looks.move_to_end(key)
        while len(self._looks) > MOST_KEPT:
            self._looks.popitem(last=False)
        return shared

    async def snapshot(self, queue: str) -> Snapshot:
        """Look at a queue, or give the look of somebody else within the last second."""
        memory = Memory()

        async def look() -> Snapshot:
            with self._queues.use(queue):
                return memory.add(await snapshot_async(await self._queues.get(queue, ""), ROWS))

        return await self.shared(queue, "snapshot", look)

    async def listing(self, caller: Caller, needs: Needs) -> tuple[Sequence[directory.Listed], int]:
        """Give the first `MOST` queues about which the caller may do this, and how many are left."""
        mine = sorted(name for name in await self.names.get(PATIENCE) if caller.may(needs, name))

        async def look() -> list[directory.Listed]:
            return [one async for one in directory.look_at(self._queues.directory, mine[:MOST])]

        return await self.shared("", tuple(mine[:MOST]), look), max(0, len(mine) - MOST)

    async def server(self) -> Mapping[str, Any]:
        """Give the reply of INFO: it is the same for all queues, and changes slowly."""
        return await self.shared("", "server", lambda: self._queues.directory.server(), 10.0)

    def changed(self, queue: str) -> None:
        """Forget all looks at a queue: an act has changed it, and whoever acted wants to see this."""
        for (of, _), shared in self._looks.items():
            if of == queue:
                shared.forget()

    @property
    def watched(self) -> int:
        """How many distinct pages are watched now."""
        return len({key for _, key in self._viewers})

    async def watch(
        self, queue: str, page: Hashable, draw: Callable[[], Awaitable[Parts]], caller: str
    ) -> AsyncGenerator[Parts | None]:
        """Give the parts of a page that have changed, again and again; None after `QUIET` seconds without news.

        Raises a problem if too many pages are watched.
        """
        key: Key = queue, ("page", page)
        self._check(caller, key)
        self._viewers[caller, key] += 1
        sent, last = dict[str, str](), time.monotonic()
        until = last + LONGEST_STREAM
        try:
            while time.monotonic() < until and not self._over.is_set():
                look = self._look(key, lambda: self._drawn(queue, draw))
                parts = await look.get()
                new = {name: html for name, html in parts.items() if sent.get(name) != html}
                if new or time.monotonic() - last > QUIET:
                    last = time.monotonic()
                    yield new or None
                sent.update(new)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), look.rests)
        finally:
            self._viewers[caller, key] -= 1
            if not self._viewers[caller, key]:
                del self._viewers[caller, key]

    def _check(self, caller: str, key: Key) -> None:
        mine, streams = {of for who, of in self._viewers if who == caller}, self._viewers.total()
        if streams >= MOST_STREAMS or (len(mine) >= MOST_FOR_ONE and key not in mine):
            raise Problem(429, "too-many", f"{streams} pages are being watched, {len(mine)} by you: close some")
        if self.watched >= MOST_PAGES and all(of != key for _, of in self._viewers):
            detail = f"{self.watched} different pages are being watched: reload this one by hand"
            raise Problem(503, "unavailable", detail)

    async def _drawn(self, queue: str, draw: Callable[[], Awaitable[Parts]]) -> Parts:
        """Give the parts of a page; if it cannot be drawn, the trouble alone."""
        async with self._turns:
            try:
                with self._queues.use(queue):
                    return {"trouble": "", **await draw()}
            except (TimeoutqError, Problem) as error:
                return _trouble(error)
            except Exception as error:  # a page that cannot be drawn ends nobody else's
                report("a page cannot be drawn", error)
                return _trouble("this page cannot be drawn: see the log of the gateway")

    def stop(self) -> None:
        """End all streams: the gateway is about to end."""
        self._over.set()

    async def close(self) -> None:
        """End all looks."""
        self.stop()
        await self.names.close()
        await self.walks.close()
        for shared in self._looks.values():
            await shared.close()


def _trouble(error: object) -> Parts:
    return {"trouble": f'<p class="trouble">Not fresh: {escape(safe(error, 400))}</p>'}
