"""Puts the tasks of strays: requests that belong to no visit, such as those of extensions and pipelines.

No ack puts them, so an asyncio task does. `crawl.py` adds strays, and closes them when the spider closes. Nothing here
needs a crawler, a spider or an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Task

IN_ONE_PUT = 500
"""How many tasks are put in one call, at most."""


class Strays:
    """The strays of one crawl that are still to be put."""

    def __init__(
        self,
        put: Callable[[list[Task]], Awaitable[object]],
        on_refused: Callable[[InvalidInput], object],
        on_wait: Callable[[TimeoutqError], object],
        on_put: Callable[[], object],
    ) -> None:
        """Prepare; `put` puts tasks.

        `on_refused` is called for each task that the queue refuses, `on_wait` each time that the tasks have to wait
        because the server cannot be asked, and `on_put` when all have been put, but not by `close`.
        """
        self._put = put
        self._on_refused = on_refused
        self._on_wait = on_wait
        self._on_put = on_put
        self._tasks: list[Task] = []
        self._putting: asyncio.Task[None] | None = None
        self._is_closed = False
        self.numbers = count(1)
        """The numbers of strays with `dont_filter`: each such stray becomes a task of its own."""

    @property
    def are_left(self) -> bool:
        """Whether tasks are still to be put, or are being put."""
        return bool(self._tasks) or self._putting is not None

    def add(self, task: Task) -> None:
        """Put a task soon; once `close` has begun, `close` puts the task."""
        self._tasks.append(task)
        if self._putting is None and not self._is_closed:
            self._putting = asyncio.create_task(self._keep_putting(), name="put-strays")

    async def close(self) -> None:
        """Put all that is left. Raises what `put` raises, except for tasks that the queue refuses."""
        self._is_closed = True
        if self._putting is not None:
            self._putting.cancel()  # two that put would delete tasks that nobody has put
            await asyncio.wait({self._putting})
            self._putting = None  # a task that is cancelled before its first step does nothing at all
        while self._tasks:
            await self._put_some()

    async def _keep_putting(self) -> None:
        pause = 0.1
        try:
            while self._tasks:
                try:
                    await self._put_some()
                except TimeoutqError as error:
                    self._on_wait(error)
                    await asyncio.sleep(pause)
                    pause = min(5.0, pause * 2)
        finally:
            self._putting = None
        self._on_put()

    async def _put_some(self) -> None:
        some = self._tasks[:IN_ONE_PUT]
        try:
            await self._put(some)
        except InvalidInput:
            for task in some:  # one that the queue refuses must not hold up the others
                await self._put_one(task)
        del self._tasks[: len(some)]

    async def _put_one(self, task: Task) -> None:
        try:
            await self._put([task])
        except InvalidInput as refused:
            self._on_refused(refused)
