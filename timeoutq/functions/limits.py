"""How the limits of functions are kept: each limit is a group of a polite queue, with rules of its own. No I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timeoutq.functions.options import Limit
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostInfo, Politeness

if TYPE_CHECKING:
    from timeoutq.client.methods import QueueFlows
    from timeoutq.verbs.sending import Flow

AGAIN = 5.0  # seconds after which a limit is declared again: somebody may have changed it
REFUSED = 60.0  # seconds after which a worker says again that a queue keeps no limits
MOST_RESTING = 500  # how many places a group with a delay has at most (`lua/hosts.lua`)
MOST = 100_000  # limits that one process remembers

Wanted = Mapping[str, Limit]  # the limits of groups, by the names of these
FREE = Politeness(delay=0, per_host=10_000)  # keeps no call waiting that has no limit


class Declared:
    """The limits that this process has declared lately."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, Limit], float] = {}

    def lacking(self, queue: str, limits: Wanted) -> Wanted:
        """Give the limits that are to be declared in a queue, by their groups."""
        now, until = time.monotonic(), self._until
        return {group: limit for group, limit in limits.items() if until.get((queue, group, limit), 0.0) <= now}

    def keep(self, queue: Any, limits: Wanted) -> Flow[None]:
        """Declare limits in a queue before calls are put, but not again those of late that are kept still."""
        lacking = self.lacking(queue.name, limits)
        group = next((one for one in limits if one not in lacking), None)
        # one tells for all: whoever purges a queue, or makes it plain, takes all limits from it
        if group is not None and not _fits((yield from _inspect(queue.flows, group)), limits[group]):
            lacking = limits
        yield from declare(queue.flows, lacking)
        self.note(queue.name, lacking)

    def note(self, queue: str, limits: Wanted, seconds: float = AGAIN) -> None:
        """Note that these limits need not be declared for some seconds."""
        if len(self._until) >= MOST:
            self._until.clear()
        until = time.monotonic() + seconds
        self._until.update({(queue, group, limit): until for group, limit in limits.items()})


def declare(flows: QueueFlows, limits: Wanted) -> Flow[None]:
    """Give groups of a queue the rules of their limits, where they have others; a plain queue is made polite."""
    for group, limit in limits.items():
        found = yield from _inspect(flows, group)
        if found is None:
            yield from flows.be_polite(FREE)
            found = yield from flows.hosts.inspect(group)
        if not _fits(found, limit):
            yield from flows.hosts.set(group, delay=limit.every, per_host=limit.concurrency)


def _inspect(flows: QueueFlows, group: str) -> Flow[HostInfo | None]:
    """Tell about a group; None if the queue is not polite."""
    try:
        return (yield from flows.hosts.inspect(group))
    except InvalidInput:
        return None


def _fits(found: HostInfo | None, limit: Limit) -> bool:
    if found is None:
        return False
    # of more places the server tells only as many as a host with a delay can have
    most = min(limit.concurrency, MOST_RESTING) if limit.every else limit.concurrency
    return (round(found.delay * 1000), found.per_host) == (round(limit.every * 1000), most)
