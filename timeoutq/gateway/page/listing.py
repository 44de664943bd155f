"""The queues of a server, as the overview shows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from timeoutq.gateway.callers import Caller, Needs
from timeoutq.gateway.names import Names, Shared
from timeoutq.gateway.queues import Queues
from timeoutq.watch import directory

PATIENCE = 0.3
"""For how long an overview waits for a walk that is under way, seconds: most servers are walked through sooner."""
KEPT, SHARE = 5.0, 4.0
"""Seconds between two walks, or this many times as long as one took."""
MOST = 100
"""How many queues a caller is shown, the first by name."""
MOST_CALLERS = 100
"""Of how many callers with different rights the last look is kept."""


class Listing:
    """The looks at the queues of a server; a server with many keys is walked through slowly."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.names = Names(lambda: queues.directory, queues.serves, KEPT, SHARE)
        self._counted: set[str] = set()
        """The names that were known when the tasks of some were counted last."""
        self._looks: OrderedDict[Hashable, Shared[list[directory.Listed]]] = OrderedDict()
        """For each set of rights, the last look at the queues that a caller with these rights is shown."""

    async def get(self, caller: Caller, needs: Needs) -> tuple[Sequence[directory.Listed], int]:
        """Give the first `MOST` queues about which the caller may do this, and how many are left."""
        names = await self.names.get(PATIENCE)
        if not names <= self._counted:
            for one in self._looks.values():
                one.forget()  # the counts of a moment ago lack these
        rights = (needs, caller.may(needs), *caller.queues)
        shared = self._looks.get(rights)
        if shared is None:
            shared = self._looks[rights] = Shared(lambda: self._look(caller, needs))
        self._looks.move_to_end(rights)
        while len(self._looks) > MOST_CALLERS:
            await self._looks.popitem(last=False)[1].close()
        return await shared.get(), max(0, len(self._mine(caller, needs)) - MOST)

    def _mine(self, caller: Caller, needs: Needs) -> list[str]:
        return sorted(name for name in self.names.found if caller.may(needs, name))

    async def _look(self, caller: Caller, needs: Needs) -> list[directory.Listed]:
        self._counted = set(self.names.found)
        mine = self._mine(caller, needs)[:MOST]
        return [one async for one in directory.look_at(self._queues.directory, mine)]

    async def close(self) -> None:
        """End the walk and the looks."""
        await self.names.close()
        for shared in self._looks.values():
            await shared.close()
