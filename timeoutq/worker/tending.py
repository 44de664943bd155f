"""Which shards of a queue a worker tends, and which one it helps: only for a queue that has several."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection

from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.worker.queue_work import QueueWork

CHOOSE_EVERY = 5.0  # seconds between two questions which shards a worker tends
IDLE = 1.0  # seconds after which a worker without tasks helps
GO_ON = 0.2  # seconds after which a worker that has helped looks where it can help next


class Tending:
    """The shards of one queue that one worker tends."""

    def __init__(self, work: QueueWork) -> None:
        """Prepare; at first, the worker tends nothing."""
        self._queue, self._wake, self._work = work.leases.queue, work.leases.wake, work
        self._claims = [shard.claims for shard in work.shards]
        self._chosen_at = 0.0
        self._helps = False  # whether the last look has found a shard to help
        self._running: dict[int, asyncio.Task[None]] = {}
        self._choosing: asyncio.Task[None] | None = None
        for claims in self._claims:
            claims.tended, claims.idle = False, True

    @property
    def tended(self) -> list[int]:
        """The numbers of the shards that the worker tends."""
        return [claims.shard for claims in self._claims if claims.tended]

    async def run(self) -> None:
        """Tend until cancelled. Raises what ends a cleaner, and `InvalidInput` if the queue is divided again."""
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
            # better too many listeners than a shard without any
            chosen = self.tended or [claims.shard for claims in self._claims]
        self._chosen_at = time.monotonic()
        self._tend(chosen)

    def _tend(self, chosen: Collection[int]) -> None:
        for claims in self._claims:
            begins = claims.shard in chosen and not claims.tended
            claims.tended = claims.shard in chosen
            if begins:
                claims.idle = False
                self._wake()
        self._look_after_cleaners()

    def _look_after_cleaners(self) -> None:
        for number, shard in enumerate(self._work.shards):
            cleaner = self._running.get(number)
            if cleaner is not None and cleaner.done():
                if not cleaner.cancelled():
                    cleaner.result()
                cleaner = None
            if shard.claims.tended and cleaner is None:
                name = f"cleaner-{self._queue.name}-{number}"
                shard.cleaner.met = shard.cleaner.met or self._work.shared.life.met
                self._running[number] = asyncio.create_task(shard.cleaner.run(), name=name)
            elif cleaner is not None and not shard.claims.tended:
                cleaner.cancel()

    def _is_free(self) -> bool:
        work = self._work
        has_room = work.shared.crew.taken < work.shared.concurrency
        return has_room and work.starves and (self._helps or time.monotonic() - work.fed_at >= IDLE)

    async def _help(self) -> None:
        try:
            number = await self._queue.run(self._queue.division.deepest())
        except TimeoutqError:
            number = None
        self._helps = number is not None
        if number is not None:
            self._claims[number].idle = False
        self._wake()  # a burst asks again whether the queue is drained
