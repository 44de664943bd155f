"""Looks at queues for everybody who watches them: one look a second and queue, however many viewers there are.

`views.py` asks it for snapshots, and for the fragments of a page that is being watched. A page that many watch is
looked at and drawn once. Nobody watching means no look at all. A slow reader has no queue of messages: it gets what is
there when it reads again. Distinct pages are bounded in number and in bytes, and rest between two looks for as long
as these took many times over, so that no number of viewers keeps the server of the queues busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot_async
from timeoutq.words import telling
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe
from timeoutq.words.tracebacks import read_traceback, trace

log = logging.getLogger(__name__)

T = TypeVar("T")
Parts = Mapping[str, str]
"""Fragments of a page: the id of an element, and its new inner HTML."""

REST = 1.0
"""Seconds between two looks at the same thing, at the least."""
SHARE = 4.0
"""A look that took long is followed by a rest this many times as long."""
LONGEST_REST = 60.0
MOST_PAGES, MOST_BYTES = 100, 16 * 1024 * 1024
"""How many distinct pages are watched at once, and how large all their fragments may be."""
MOST_FOR_ONE, MOST_STREAMS = 20, 1000
"""How many distinct pages one caller may watch, and how many streams there may be."""
AT_ONCE = 4
"""How many looks are under way at once; further ones wait for their turn."""
MOST_QUEUES = 200
"""Of how many queues the last look is kept."""
ROWS = 12
"""Rows of each table in a look."""


class Opens(Protocol):
    """Whoever opens queues and keeps them: `timeoutq.gateway.queues.Queues`."""

    async def get(self, name: str) -> AnyAsyncQueue:
        """Give the queue of this name."""
        ...


class Crowded(Exception):
    """So many pages are watched that this one cannot be: ask again later."""


@dataclass
class Shared(Generic[T]):
    """Something that many ask for and that is looked up once in `REST` seconds: they all get the same answer."""

    look: Callable[[], Awaitable[T]]
    rest: float = REST
    _found: T | None = None
    _until: float = 0.0
    _under_way: asyncio.Task[T] | None = None
    _turn: int = 0

    async def get(self) -> T:
        """Give what was found in the last look, while it rests, or what the look under way finds.

        Raises what a look raises.
        """
        if self._found is not None and time.monotonic() < self._until:
            return self._found
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.get_running_loop().create_task(self._now())
        # one viewer who goes away must not cancel the look of the others
        return await asyncio.shield(self._under_way)

    def forget(self) -> None:
        """Look again when somebody asks: something has just been changed."""
        self._turn += 1
        self._until, self._under_way = 0.0, None

    async def _now(self) -> T:
        began, turn = time.monotonic(), self._turn
        try:
            found = await self.look()
        except BaseException:
            if turn == self._turn:
                self._found = None  # what was seen before the trouble is not shown as fresh
            raise
        if turn == self._turn:
            ended = time.monotonic()
            # a little less than the rest of the pages, so that these do not find what they have seen already
            self._until = ended + rest_after(ended - began, self.rest) - self.rest * 0.1
            self._found = found
        return found

    async def close(self) -> None:
        """End the look under way."""
        if self._under_way is not None and not self._under_way.done():
            self._under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutqError):
                await self._under_way


def rest_after(took: float, least: float = REST) -> float:
    """Say how long to rest after a look that took so many seconds."""
    return min(LONGEST_REST, max(least, took * SHARE))


@dataclass
class _Watched:
    """A page that somebody watches."""

    paint: Callable[[], Awaitable[Parts]]
    parts: Parts = field(default_factory=dict[str, str])
    number: int = 0
    """Grows with every look."""
    viewers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    bytes: int = 0

    def publish(self, parts: Parts) -> None:
        """Let the viewers know what was seen."""
        self.parts, self.number = parts, self.number + 1
        self.bytes = sum(map(len, parts.values()))
        self.changed.set()
        self.changed = asyncio.Event()


class Viewer:
    """Somebody who watches a page. There is no queue of news: who reads slowly gets what is there then."""

    def __init__(self, hub: Hub, page: _Watched) -> None:
        self._hub, self._page = hub, page
        self._seen, self._sent = 0, dict[str, str]()

    async def next(self, timeout: float) -> Parts | None:
        """Give the fragments that have changed, as soon as the page was looked at again; None if it was not."""
        page = self._page
        try:
            async with asyncio.timeout(timeout):
                while page.number == self._seen and not self._hub.is_over:
                    await page.changed.wait()
        except TimeoutError:
            return None
        self._seen = page.number
        new = {name: html for name, html in page.parts.items() if self._sent.get(name) != html}
        self._sent.update(new)
        return new


class Hub:
    """The looks of one process at all queues that are watched; it lives on one event loop."""

    def __init__(self, queues: Opens, rest: float = REST) -> None:
        self.rest = rest
        self._queues = queues
        self._snapshots: OrderedDict[str, Shared[Snapshot]] = OrderedDict()
        self._others: OrderedDict[Hashable, Shared[Any]] = OrderedDict()
        self._pages: dict[Hashable, _Watched] = {}
        self._watching: dict[str, Counter[Hashable]] = {}
        """What each caller watches, and how often."""
        self._streams = 0
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.is_over = False
        """Whether the gateway is about to end: all streams end then."""

    @property
    def watched(self) -> int:
        """How many distinct pages are watched now."""
        return len(self._pages)

    async def snapshot(self, name: str) -> Snapshot:
        """Look at a queue, or give what somebody has seen within the last second. Raises what a queue raises."""
        shared = self._snapshots.get(name)
        if shared is None:
            shared = self._snapshots[name] = Shared(self._looking(name), self.rest)
        self._snapshots.move_to_end(name)
        while len(self._snapshots) > MOST_QUEUES:
            await self._snapshots.popitem(last=False)[1].close()
        return await shared.get()

    def changed(self, name: str) -> None:
        """Forget what was seen of a queue: an act has changed it, and whoever acted wants to see this."""
        for key, shared in (*self._snapshots.items(), *self._others.items()):
            if key == name or (isinstance(key, tuple) and name in key):
                shared.forget()
        for key, page in self._pages.items():
            if getattr(key, "queue", None) == name and page.task is not None:
                # what was seen before the act is not shown after it
                page.task.cancel()
                page.parts = {}
                page.task = asyncio.get_running_loop().create_task(self._look_on(page))

    async def shared(self, key: Hashable, look: Callable[[], Awaitable[T]], rest: float | None = None) -> T:
        """Look at something else than a snapshot, or give what somebody has seen within `rest` seconds."""
        shared: Shared[T] | None = self._others.get(key)
        if shared is None:
            shared = self._others[key] = Shared(look, rest or self.rest)
        self._others.move_to_end(key)
        while len(self._others) > MOST_QUEUES:
            await self._others.popitem(last=False)[1].close()
        return await shared.get()

    def _looking(self, name: str) -> Callable[[], Awaitable[Snapshot]]:
        memory = Memory()

        async def look() -> Snapshot:
            return memory.add(await snapshot_async(await self._queues.get(name), ROWS))

        return look

    @contextlib.contextmanager
    def watch(self, key: Hashable, paint: Callable[[], Awaitable[Parts]], caller: str = "") -> Generator[Viewer]:
        """Watch a page until the block ends. `key` names the page: whoever watches the same page shares its looks.

        Raises `Crowded`.
        """
        page = self._enter(key, paint, caller)
        try:
            yield Viewer(self, page)
        finally:
            self._leave(key, page, caller)

    def _enter(self, key: Hashable, paint: Callable[[], Awaitable[Parts]], caller: str) -> _Watched:
        mine = self._watching.get(caller) or Counter[Hashable]()
        if self._streams >= MOST_STREAMS or (len(mine) >= MOST_FOR_ONE and key not in mine):
            raise Crowded(f"{self._streams} pages are being watched, {len(mine)} by you: close some")
        page = self._pages.get(key)
        if page is None:
            held = sum(one.bytes for one in self._pages.values())
            if len(self._pages) >= MOST_PAGES or held > MOST_BYTES:
                raise Crowded(f"{len(self._pages)} different pages are being watched: reload this one by hand")
            page = self._pages[key] = _Watched(paint)
        self._streams += 1
        self._watching.setdefault(caller, Counter())[key] += 1
        page.viewers += 1
        if page.task is None:
            page.task = asyncio.get_running_loop().create_task(self._look_on(page))
        return page

    def _leave(self, key: Hashable, page: _Watched, caller: str) -> None:
        self._streams -= 1
        mine = self._watching[caller]
        mine[key] -= 1
        if not mine[key]:
            del mine[key]
        if not mine:
            del self._watching[caller]
        page.viewers -= 1
        if page.viewers or self._pages.get(key) is not page:
            return
        del self._pages[key]
        if page.task is not None:
            page.task.cancel()  # the loop carries this out: who leaves may be cancelled, and cannot wait

    async def _look_on(self, page: _Watched) -> None:
        while True:
            async with self._turns:
                began = time.monotonic()
                try:
                    page.publish({"trouble": "", **await page.paint()})
                except TimeoutqError as error:
                    page.publish({"trouble": trouble(error)})
                except Exception as error:  # a page that cannot be drawn ends nobody else's
                    said = type(error).__name__
                    telling.say(
                        log, logging.ERROR, "a page cannot be drawn: %s", said,
                        fields={"error": said}, traceback=read_traceback(trace(error), said),
                    )  # fmt: skip
                    page.publish({"trouble": trouble("this page cannot be drawn: see the log of the gateway")})
                took = time.monotonic() - began
            await asyncio.sleep(rest_after(took, self.rest))

    def stop(self) -> None:
        """End all streams: the gateway is about to end."""
        self.is_over = True
        for page in self._pages.values():
            page.changed.set()

    async def close(self) -> None:
        """End all looks; the viewers get nothing more."""
        self.stop()
        for page in self._pages.values():
            await _end(page.task)
        self._pages.clear()
        for shared in (*self._snapshots.values(), *self._others.values()):
            await shared.close()
        self._snapshots.clear()
        self._others.clear()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def trouble(error: object) -> str:
    """Write what is wrong as the inner HTML of the element `trouble`."""
    from markupsafe import escape

    return f'<p class="trouble">Not fresh: {escape(safe(error, 400))}</p>'
