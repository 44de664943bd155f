"""Tasks that wait for a method that the spider lacks: for how long, and how the process tells of them."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from timeoutq.client import AsyncQueue
from timeoutq.scrapy.tasks import MissingMethod
from timeoutq.words.model import Lease, Release
from timeoutq.words.retry import Retry

SHORTEST_WAIT, LONGEST_WAIT = 10.0, 600.0
"""The first wait, and the longest; each is twice as long as the one before. Seconds."""
FIRST_WORD, NEXT_WORD = 1.0, 60.0
"""Seconds from the first task until the first warning, which counts the tasks so far; and between two warnings."""
REMEMBERED = 100_000
"""Of how many tasks the ids are kept, to count none twice."""


class Missing:
    """What one process knows of methods that its spider lacks."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """Prepare."""
        self._now = now
        self._tasks: dict[str, set[str]] = {}
        """The tasks that wait, by the sentence that names the method."""
        self._told: dict[str, tuple[float, int]] = {}
        """When to speak of a method next, and how many tasks were told."""

    async def wait(self, queue: AsyncQueue, lease: Lease, missing: MissingMethod) -> Retry | Release:
        """Say how a task waits: by one `Retry`, whose reason `why` shows, and then by releases, which are no attempts.

        Asks the queue once, unless this is the first attempt. Raises what `AsyncQueue.inspect` raises.
        """
        what = str(missing)
        waiting = self._tasks.setdefault(what, set())
        if len(waiting) < REMEMBERED:
            waiting.add(lease.task)
        self._told.setdefault(what, (self._now() + FIRST_WORD, 0))
        if lease.attempt > 1:
            info = await queue.inspect(lease.task)
            if what in (info.error or ""):
                return Release(delay=min(LONGEST_WAIT, SHORTEST_WAIT * 2 ** min(info.releases + 1, 10)))
        return Retry(after=SHORTEST_WAIT, reason=what)

    def due(self) -> list[tuple[str, int]]:
        """Give what is to be told now: the sentence that names a method, and how many tasks have waited for it."""
        found: list[tuple[str, int]] = []
        for what, (due, told) in self._told.items():
            count = len(self._tasks[what])
            if self._now() >= due and count > told:
                self._told[what] = (self._now() + NEXT_WORD, count)
                found.append((what, count))
        return found
