"""Looks at queues for all who watch them, one a second and page; and long acts, whose progress they watch."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from markupsafe import escape

from timeoutq.gateway.callers import Caller
from timeoutq.gateway.names import REST, SHARE, Names, Shared, end
from timeoutq.gateway.problems import Problem, report
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.tokens import Needs
from timeoutq.watch import directory
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot_async
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.text import counted, safe

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
PATIENCE = 0.3  # for how long an overview waits for a walk through the keys, seconds
WALKS_AT_ONCE = 8  # how many walks are under way at once
WALK_KEPT = 30.0  # how long an ended walk is still shown, seconds
WALK_REST = 0.5  # after a step, a walk rests for this part of the time that the step took: others want the server, too


@dataclass
class Walk:
    """An act on more tasks than one call takes, and how far it is. It is kept in this process only."""

    queue: str
    words: str
    total: int
    done: int = 0
    ended: float | None = None
    trouble: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def told(self) -> str:
        if self.trouble:
            return f"stopped after {self.done:,}: {self.trouble}"
        if self.ended is not None:
            return f"finished: {counted(self.done, 'task')}"
        return f"{self.done:,} of about {self.total:,}" if self.total else f"{self.done:,}"


class Walks:
    """The walks of one process."""

    def __init__(self) -> None:
        self._walks: list[Walk] = []

    def of(self, queue: str) -> list[Walk]:
        """Give the walks of a queue that are under way, and those that have just ended."""
        now = time.monotonic()
        self._walks = [walk for walk in self._walks if walk.ended is None or now - walk.ended < WALK_KEPT]
        return [walk for walk in self._walks if walk.queue == queue]

    def begin(self, queue: str, words: str, total: int, steps: AsyncIterator[int]) -> None:
        """Begin a walk; each step gives how many tasks it was about. Raises `InvalidInput` if there are too many."""
        if any(walk.words == words and walk.ended is None for walk in self.of(queue)):
            raise InvalidInput(f"{words}: this is under way already")
        under_way = sum(walk.ended is None for walk in self._walks)
        if under_way >= WALKS_AT_ONCE:
            raise InvalidInput(f"{under_way} walks are under way already: wait until one has ended")
        walk = Walk(queue, words, total)
        walk.task = asyncio.create_task(self._run(walk, steps))
        self._walks.append(walk)

    async def _run(self, walk: Walk, steps: AsyncIterator[int]) -> None:
        began = time.monotonic()
        try:
            async for count in steps:
                walk.done += count
                await asyncio.sleep((time.monotonic() - began) * WALK_REST)
                began = time.monotonic()
        except TimeoutqError as error:
            walk.trouble = safe(error, 300)
        except Exception as error:
            report(f"queue {walk.queue}: a walk has failed", error)
            walk.trouble = "see the log of the gateway"
        finally:
            walk.ended = time.monotonic()

    async def close(self) -> None:
        await end(*(walk.task for walk in self._walks))


class Hub:
    """The looks of one process, and its walks."""

    def __init__(self, queues: Queues, rest: float = REST) -> None:
        self._queues, self._rest = queues, rest
        self._looks: OrderedDict[Key, Shared[Any]] = OrderedDict()
        self._viewers = Counter[tuple[str, Key]]()  # how many streams each caller has of each page
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._over = asyncio.Event()
        self.names = Names(queues.directory, queues.serves, SHARE)
        self.walks = Walks()

    def look(self, queue: str, name: Hashable, look: Callable[[], Awaitable[T]], rest: float = 0.0) -> Shared[T]:
        """Give the look at something of a queue, which all share for `rest` seconds."""
        key: Key = queue, name
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

        return await self.look(queue, "snapshot", look).get()

    async def listing(self, caller: Caller, needs: Needs) -> tuple[Sequence[directory.Listed], int]:
        """Give the first `MOST` queues about which the caller may do this, and how many are left."""
        mine = sorted(name for name in await self.names.get(PATIENCE) if caller.may(needs, name))

        async def look() -> list[directory.Listed]:
            client = self._queues.directory
            return await client.run(directory.look_at(client.talk, mine[:MOST]))

        return await self.look("", tuple(mine[:MOST]), look).get(), max(0, len(mine) - MOST)

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
        """Give the parts of a page that have changed, again and again; None after `QUIET` seconds without news."""
        key: Key = queue, ("page", page)
        mine, streams = {of for who, of in self._viewers if who == caller}, self._viewers.total()
        if streams >= MOST_STREAMS or (len(mine) >= MOST_FOR_ONE and key not in mine):
            raise Problem(429, "too-many", f"{streams} pages are being watched, {len(mine)} by you: close some")
        if self.watched >= MOST_PAGES and all(of != key for _, of in self._viewers):
            detail = f"{self.watched} different pages are being watched: reload this one by hand"
            raise Problem(503, "unavailable", detail)
        self._viewers[caller, key] += 1
        sent, last = dict[str, str](), time.monotonic()
        until = last + LONGEST_STREAM
        try:
            while time.monotonic() < until and not self._over.is_set():
                look = self.look(*key, lambda: self._drawn(queue, draw))
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

    async def _drawn(self, queue: str, draw: Callable[[], Awaitable[Parts]]) -> Parts:
        """Give the parts of a page; if it cannot be drawn, the trouble alone."""
        try:
            async with self._turns:
                with self._queues.use(queue):
                    return {"trouble": "", **await draw()}
        except (TimeoutqError, Problem) as error:
            trouble = safe(error, 400)
        except Exception as error:  # a page that cannot be drawn ends nobody else's
            report("a page cannot be drawn", error)
            trouble = "this page cannot be drawn: see the log of the gateway"
        return {"trouble": f'<p class="trouble">Not fresh: {escape(trouble)}</p>'}

    def stop(self) -> None:
        """End all streams: the gateway is about to end."""
        self._over.set()

    async def close(self) -> None:
        self.stop()
        await self.walks.close()
        for shared in (self.names.walk, *self._looks.values()):
            await shared.close()
