"""Which queues the server has, for the overview: found by a walk through its keys that goes on beside the requests.

`views.py` asks it. A server with many keys is walked through slowly, a thousand keys at a time; meanwhile the overview
shows the queues that have been met.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from timeoutq.gateway.callers import Caller, Needs
from timeoutq.gateway.page.hub import Shared, rest_after
from timeoutq.gateway.queues import Queues
from timeoutq.watch import directory
from timeoutq.words.errors import TimeoutqError

PATIENCE = 0.3
"""For how long an overview waits for a walk that is under way, seconds: most servers are walked through sooner."""
KEPT = 5.0
"""Seconds after which the keys are walked through again, if somebody looks."""
KEPT_EMPTY = 0.5
"""The same while there is no queue: whoever puts the first task reloads the overview soon."""
MOST = 100
"""How many queues a caller is shown, the first by name."""
MOST_CALLERS = 100
"""Of how many callers with different rights the last look is kept."""


class Listing:
    """The queues of a server, as the overview shows them."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._names: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        """The names that were known when the tasks of some were counted last."""
        self._walk: asyncio.Task[None] | None = None
        self._until = 0.0
        self._looks: OrderedDict[Hashable, Shared[list[directory.Listed]]] = OrderedDict()
        """For each set of rights, the last look at the queues that a caller with these rights is shown."""

    @property
    def looking(self) -> bool:
        """Whether a walk is under way, so that queues may be missing."""
        return self._walk is not None and not self._walk.done()

    async def get(self, caller: Caller, needs: Needs) -> tuple[Sequence[directory.Listed], int]:
        """Give the first `MOST` queues of those that have been met and about which the caller may do this; and how
        many are left."""
        if (self._walk is None or self._walk.done()) and time.monotonic() >= self._until:
            self._walk = asyncio.get_running_loop().create_task(self._go())
        if self.looking and self._walk is not None:
            # what the last walk has met may be long ago
            await asyncio.wait([self._walk], timeout=PATIENCE)
        if self._walk is not None and self._walk.done():
            self._walk.result()  # raises what the server has said
        rights = (needs, caller.may(needs), *caller.queues)
        shared = self._looks.get(rights)
        if shared is None:
            shared = self._looks[rights] = Shared(lambda: self._look(caller, needs))
        self._looks.move_to_end(rights)
        while len(self._looks) > MOST_CALLERS:
            await self._looks.popitem(last=False)[1].close()
        found = await shared.get()
        return found, max(0, len(self._mine(caller, needs)) - MOST)

    def _mine(self, caller: Caller, needs: Needs) -> list[str]:
        return sorted(name for name in self._names if caller.may(needs, name))

    async def _go(self) -> None:
        queue = await self._queues.directory()
        began, met = time.monotonic(), set[str]()
        async for name in directory.every_name(queue):
            if self._queues.serves(name):
                met.add(name)
                self._names.add(name)
        self._names = met
        if met - self._counted:
            for shared in self._looks.values():
                shared.forget()  # what was counted a moment ago lacks these
        self._until = time.monotonic() + rest_after(time.monotonic() - began, KEPT if met else KEPT_EMPTY)

    async def _look(self, caller: Caller, needs: Needs) -> list[directory.Listed]:
        queue = await self._queues.directory()
        self._counted = frozenset(self._names)
        return [one async for one in directory.look_at(queue, self._mine(caller, needs)[:MOST])]

    async def close(self) -> None:
        """End the walk."""
        if self._walk is not None:
            self._walk.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutqError):
                await self._walk
        for shared in self._looks.values():
            await shared.close()
