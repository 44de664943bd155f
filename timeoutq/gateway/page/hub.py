"""Looks at queues for everybody who watches them: one look a second and page, however many viewers there are.

A page that many watch is looked at and drawn once, and nobody watching means no look at all. Distinct pages and streams
are bounded, and a look rests for as long as it took many times over, so that no number of viewers keeps the server of
the queues busy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from markupsafe import escape

from timeoutq.gateway.names import REST, Shared, rest_after
from timeoutq.gateway.problems import Problem, report
from timeoutq.gateway.queues import Queues
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot_async
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe

T = TypeVar("T")
Parts = Mapping[str, str]
"""Fragments of a page: the id of an element, and its new inner HTML."""

MOST_PAGES, MOST_FOR_ONE, MOST_STREAMS = 100, 20, 1000
"""How many distinct pages are watched at once, by all and by one caller, and how many streams there may be."""
MOST_KEPT = 300
"""How many looks are kept."""
AT_ONCE = 4
"""How many pages are drawn at once; further ones wait for their turn."""
ROWS = 12
"""Rows of each table in a look."""
LONGEST_STREAM = 300.0
"""Seconds after which a stream ends, and the browser asks again: whoever may not look any more is refused then."""
QUIET = 15.0
"""Seconds after which a stream without news gives nothing, so that proxies keep the connection."""


class Crowded(Exception):
    """So many pages are watched that this one cannot be: ask again later."""


class Hub:
    """The looks of one process at all queues that are watched."""

    def __init__(self, queues: Queues, rest: float = REST) -> None:
        self._queues = queues
        self._rest = rest
        self._looks: OrderedDict[tuple[str, Hashable], Shared[Any]] = OrderedDict()
        self._watching: dict[str, Counter[Hashable]] = {}
        """The pages that each caller watches, and how often."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._over = asyncio.Event()

    @property
    def watched(self) -> int:
        """How many distinct pages are watched now."""
        return len({key for pages in self._watching.values() for key in pages})

    async def shared(
        self, queue: str, name: Hashable, look: Callable[[], Awaitable[T]], rest: float | None = None
    ) -> T:
        """Look at something of a queue, or give the look of somebody else within `rest` seconds."""
        key = queue, name
        shared: Shared[T] | None = self._looks.get(key)
        if shared is None:
            shared = self._looks[key] = Shared(look, rest or self._rest)
        self._looks.move_to_end(key)
        while len(self._looks) > MOST_KEPT:
            await self._looks.popitem(last=False)[1].close()
        return await shared.get()

    async def snapshot(self, queue: str) -> Snapshot:
        """Look at a queue, or give the look of somebody else within the last second."""
        memory = Memory()

        async def look() -> Snapshot:
            with self._queues.use(queue):
                return memory.add(await snapshot_async(await self._queues.get(queue, ""), ROWS))

        return await self.shared(queue, "snapshot", look)

    def changed(self, queue: str) -> None:
        """Forget all looks at a queue: an act has changed it, and whoever acted wants to see this."""
        for (of, _), shared in self._looks.items():
            if of == queue:
                shared.forget()

    async def watch(
        self, queue: str, page: Hashable, paint: Callable[[], Awaitable[Parts]], caller: str
    ) -> AsyncGenerator[Parts | None]:
        """Give the parts of a page that have changed, again and again; None after `QUIET` seconds without news.

        Raises `Crowded`.
        """
        mine, key = self._watching.get(caller, Counter[Hashable]()), (queue, page)
        streams = sum(pages.total() for pages in self._watching.values())
        if streams >= MOST_STREAMS or (len(mine) >= MOST_FOR_ONE and key not in mine):
            raise Crowded(f"{streams} pages are being watched, {len(mine)} by you: close some")
        if self.watched >= MOST_PAGES and not self._is_watched(key):
            raise Crowded(f"{self.watched} different pages are being watched: reload this one by hand")
        self._watching.setdefault(caller, mine)[key] += 1

        async def look() -> tuple[Parts, float]:
            async with self._turns:
                began = time.monotonic()
                parts: Parts
                try:
                    with self._queues.use(queue):
                        parts = {"trouble": "", **await paint()}
                except (TimeoutqError, Problem) as error:
                    parts = _trouble(error)
                except Exception as error:  # a page that cannot be drawn ends nobody else's
                    report("a page cannot be drawn", error)
                    parts = _trouble("this page cannot be drawn: see the log of the gateway")
                return parts, rest_after(time.monotonic() - began, self._rest)

        sent, until, last = dict[str, str](), time.monotonic() + LONGEST_STREAM, time.monotonic()
        try:
            while time.monotonic() < until and not self._over.is_set():
                parts, rest = await self.shared(queue, ("page", page), look)
                new = {name: html for name, html in parts.items() if sent.get(name) != html}
                if new or time.monotonic() - last > QUIET:
                    last = time.monotonic()
                    yield new or None
                sent.update(new)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), rest)
        finally:
            mine[key] -= 1
            if not mine[key]:
                del mine[key]
            if not mine:
                self._watching.pop(caller, None)
            seen = None if self._is_watched(key) else self._looks.pop((queue, ("page", page)), None)
            if seen is not None:
                await seen.close()

    def _is_watched(self, key: Hashable) -> bool:
        return any(key in pages for pages in self._watching.values())

    def stop(self) -> None:
        """End all streams: the gateway is about to end."""
        self._over.set()

    async def close(self) -> None:
        """End all looks."""
        self.stop()
        for shared in self._looks.values():
            await shared.close()


def _trouble(error: object) -> Parts:
    return {"trouble": f'<p class="trouble">Not fresh: {escape(safe(error, 400))}</p>'}
