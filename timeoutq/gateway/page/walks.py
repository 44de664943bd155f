"""Acts on more tasks than one call takes, such as a retry of all failures of a kind: walks with progress, in pieces.

A walk is kept in this process only: if the process ends, pressing the button again goes on with the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from timeoutq.gateway.names import end
from timeoutq.gateway.problems import report
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.text import counted, safe

AT_ONCE = 8  # how many walks are under way at once
KEPT = 30.0  # how long an ended walk is still shown, seconds
REST = 0.5  # after each step, the walk rests for this part of the time that the step took: others want the server, too


@dataclass
class Walk:
    """A walk, and how far it is."""

    queue: str
    words: str
    total: int
    done: int = 0
    ended: float | None = None
    trouble: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def told(self) -> str:
        """How far it is, in words."""
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
        self._walks = [walk for walk in self._walks if walk.ended is None or now - walk.ended < KEPT]
        return [walk for walk in self._walks if walk.queue == queue]

    def begin(self, queue: str, words: str, total: int, steps: AsyncIterator[int]) -> None:
        """Begin a walk; each step gives how many tasks it was about. Raises `InvalidInput` if there are too many."""
        if any(walk.words == words and walk.ended is None for walk in self.of(queue)):
            raise InvalidInput(f"{words}: this is under way already")
        under_way = sum(walk.ended is None for walk in self._walks)
        if under_way >= AT_ONCE:
            raise InvalidInput(f"{under_way} walks are under way already: wait until one has ended")
        walk = Walk(queue, words, total)
        walk.task = asyncio.get_running_loop().create_task(self._run(walk, steps))
        self._walks.append(walk)

    async def _run(self, walk: Walk, steps: AsyncIterator[int]) -> None:
        began = time.monotonic()
        try:
            async for count in steps:
                walk.done += count
                await asyncio.sleep((time.monotonic() - began) * REST)
                began = time.monotonic()
        except TimeoutqError as error:
            walk.trouble = safe(error, 300)
        except Exception as error:
            report(f"queue {walk.queue}: a walk has failed", error)
            walk.trouble = "see the log of the gateway"
        finally:
            walk.ended = time.monotonic()

    async def close(self) -> None:
        """End all walks."""
        await end(*(walk.task for walk in self._walks))
