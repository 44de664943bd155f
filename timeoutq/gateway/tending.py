"""Cleans the queues that are worked on over HTTP: a worker in Python cleans its own queue, one with curl cannot.

This goes on for a minute after the last work on a queue, and while anybody waits for its tasks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from timeoutq.gateway.names import end
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.verbs import flows
from timeoutq.words import retry, telling
from timeoutq.words.errors import TimeoutqError
from timeoutq.worker.cleaner import Cleaner

log = logging.getLogger(__name__)

LOOK = 0.5  # seconds after which a cleaner looks again whether something has become due earlier than it knew


class Tending:
    """The cleaners of one application."""

    def __init__(self, queues: Queues, seconds: float, is_busy: Callable[[str], bool]) -> None:
        self._queues = queues
        self._seconds = seconds
        self._is_busy = is_busy
        self._worked: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def worked(self, name: str, who: str) -> None:
        """Note that `who` works on a queue."""
        self._worked[name] = time.monotonic()
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._tend(name, who), name=f"tending-{name}")

    def tends(self, name: str) -> bool:
        """Say whether a queue is cleaned now."""
        return name in self._tasks

    async def close(self) -> None:
        """Clean no more."""
        await end(*self._tasks.values())

    async def _tend(self, name: str, who: str) -> None:
        failures, cleaners = 0, list[Cleaner]()
        met: object = None
        try:
            while self._is_busy(name) or time.monotonic() < self._worked[name] + self._seconds:
                try:
                    queue = await self._queues.get(name, who)
                    talks = queue.division.talks
                    if met is not talks or not cleaners:
                        met, cleaners = talks, [Cleaner(queue, longest=LOOK, talk=talk) for talk in talks]
                    pause = min(await asyncio.gather(*(one.round() for one in cleaners)), default=LOOK)
                    failures = 0
                except (TimeoutqError, Problem) as error:
                    if isinstance(error, TimeoutqError) and flows.is_final(error):
                        return  # the requests themselves tell what is wrong
                    failures += 1
                    if failures == 1:
                        words = "cleaning of queue %s waits for the server: %s"
                        fields = {"queue": name, "error": str(error)}
                        telling.say(log, logging.WARNING, words, name, error, fields=fields)
                    pause = retry.pause(failures)
                await asyncio.sleep(max(0.001, min(pause, LOOK)))
        finally:
            del self._tasks[name]
