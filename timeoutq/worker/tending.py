"""Which parts of its queue a worker tends, and which part it helps: only for a queue that has several.

A worker waits on the bells of the parts that it tends, and runs their cleaners; the queue says which ones these are
(`division.py`). A worker whose handlers are free for a second looks at all parts, and claims from one that has tasks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection

from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.worker.lanes import Lane

CHOOSE_EVERY = 5.0
"""Seconds between two questions which parts a worker tends."""
IDLE = 1.0
"""Seconds after which a worker without tasks helps."""
GO_ON = 0.2
"""Seconds after which a worker that has helped looks where it can help next."""


class Tending:
    """The parts of one queue that one worker tends."""

    def __init__(self, lane: Lane, concurrency: int) -> None:
        """Prepare; at first, the worker tends nothing."""
        self._queue, self._desk, self._lane = lane.desk.queue, lane.desk, lane
        self._concurrency = concurrency
        self._chosen_at = 0.0
        self._helps = False
        """Whether the last look has found a part to help."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._choosing: asyncio.Task[None] | None = None
        for source in lane.sources:
            source.tended, source.idle = False, True

    @property
    def tended(self) -> list[int]:
        """The numbers of the parts that the worker tends."""
        return [source.part for source in self._lane.sources if source.tended]

    async def run(self) -> None:
        """Tend until cancelled. Raises what ends a cleaner, and `InvalidInput` if the queue is divided anew."""
        try:
            while True:
                self._choose_again()
                self._look_after_cleaners()
                if self._is_free():
                    await self._help()
                pause = GO_ON if self._helps else IDLE
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
        finally:
            tasks = [*self._running.values(), *([self._choosing] if self._choosing is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _choose_again(self) -> None:
        # in an asyncio task of its own: the node that knows the workers may be away, and other shards have tasks
        if self._choosing is not None and self._choosing.done():
            self._choosing.result()
            self._choosing = None
        if self._choosing is None and time.monotonic() >= self._chosen_at + CHOOSE_EVERY:
            self._choosing = asyncio.create_task(self._choose(), name=f"tending-{self._queue.name}")

    async def _choose(self) -> None:
        try:
            chosen = await self._queue.run(self._queue.division.tended(self._queue.worker))
        except InvalidInput:
            raise
        except TimeoutqError:
            # better too many listeners than a part without any
            chosen = self.tended or [source.part for source in self._lane.sources]
        self._chosen_at = time.monotonic()
        self._tend(chosen)

    def _tend(self, chosen: Collection[int]) -> None:
        for source in self._lane.sources:
            begins = source.part in chosen and not source.tended
            source.tended = source.part in chosen
            if begins:
                source.idle = False
                self._desk.wake()
        self._look_after_cleaners()

    def _look_after_cleaners(self) -> None:
        for source in self._lane.sources:
            cleaner = self._running.get(source.part)
            if cleaner is not None and cleaner.done():
                if not cleaner.cancelled():
                    cleaner.result()
                cleaner = None
            if source.tended and cleaner is None:
                name = f"cleaner-{self._queue.name}-{source.part}"
                work = self._lane.cleaners[source.part]
                work.met = work.met or self._lane.shared.common.met
                self._running[source.part] = asyncio.create_task(work.run(), name=name)
            elif cleaner is not None and not source.tended:
                cleaner.cancel()

    def _is_free(self) -> bool:
        lane = self._lane
        has_room = lane.shared.crew.taken < self._concurrency
        return has_room and lane.starves and (self._helps or time.monotonic() - lane.fed_at >= IDLE)

    async def _help(self) -> None:
        try:
            part = await self._queue.run(self._queue.division.deepest())
        except TimeoutqError:
            part = None
        self._helps = part is not None
        if part is not None:
            self._lane.sources[part].idle = False
        self._desk.wake()  # a burst asks again whether the queue is drained
