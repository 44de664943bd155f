"""A process that outlives its tasks: by `TIMEOUTQ_STAY`, or because a handler of `spider_idle` keeps it open.

Its worker goes on when the queue is drained. `crawl.py` asks this module whether the spider is idle meanwhile, so that
Scrapy sends `spider_idle` as it does when it has no request left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scrapy.exceptions import DontCloseSpider

from timeoutq.words.errors import TimeoutqError

LOOK_EVERY = 1.0
"""Seconds between two questions whether the queue is drained. They are asked while the process holds no task."""


class Staying:
    """Whether a process stays when the queue is drained, and whether it has nothing to do."""

    def __init__(self, *, always: bool) -> None:
        """Prepare; `always`: also when no handler of `spider_idle` keeps the process open."""
        self._always = always
        self._was_idle = False  # whether Scrapy has sent `spider_idle` since the worker's end
        self.goes_on = always  # whether the worker goes on when the queue is drained
        self.is_idle = False

    def on_idle(self) -> None:
        """Hear `spider_idle`. Raises `DontCloseSpider` if the process stays anyway."""
        self._was_idle = True
        if self._always:
            raise DontCloseSpider

    def is_kept(self) -> bool:
        """Say whether a process whose worker has ended, and which does not close, was kept open: then it stays."""
        if self._was_idle:
            self.goes_on = self.is_idle = True
        return self._was_idle

    def begin(self) -> None:
        """Note that there is something to do."""
        self.is_idle = self._was_idle = False

    async def watch(
        self, drained: Callable[[], Awaitable[bool]], is_busy: Callable[[], bool], poke: Callable[[], object]
    ) -> None:
        """Find out, again and again, whether there is nothing to do; then tell the engine by `poke`."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self.goes_on and not self.is_idle and not is_busy():
                try:
                    self.is_idle = await drained() and not is_busy()
                except TimeoutqError:
                    continue  # the server is away: the worker tells of it
                if self.is_idle:
                    poke()
