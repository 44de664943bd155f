"""How the limits of functions are kept: each limit is a group of a polite queue, with rules of its own.

Who puts a call declares its limit first, and those of the calls that follow it (`posting.py`); so does who writes a
schedule (`scheduling.py`), and a worker when it meets a call or puts one that follows (`running.py`). A queue that is
not polite becomes polite by that. The queue counts the calls of a group that are ready or in progress, so a slot is
free when a lease ends, whatever process dies, and calls that wait for a slot cost nothing. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from timeoutq.functions.options import Limit
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostInfo, Politeness

if TYPE_CHECKING:
    from timeoutq.rooms.hosts.flows import HostFlows
    from timeoutq.verbs.sending import Flow

AGAIN = 5.0
"""Seconds after which a limit is declared again: a hand, or a program of another version, may have changed it."""
REFUSED = 60.0
"""Seconds after which a worker says again that a queue keeps no limits."""
MOST_RESTING = 500
"""How many places a group with a delay has at most (`lua/parts/polite.lua`)."""
MOST = 100_000
"""Limits that one process remembers."""

Wanted: TypeAlias = "Mapping[str, Limit | None]"
"""The limits of groups. None: the group is not known yet, so all that is wanted is a queue that keeps limits."""

FREE = Politeness(delay=0, per_host=10_000)
"""Keeps no call waiting that has no limit."""


class HasHosts(Protocol):
    """The flows of a queue."""

    hosts: HostFlows

    def be_polite(self, rules: Politeness) -> Flow[None]:
        """Make the queue polite, if nobody has said yet whether it is."""
        ...


class Declared:
    """The limits that this process has declared lately."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, Limit | None], float] = {}

    def lacking(self, queue: str, limits: Wanted) -> Wanted:
        """Give the limits that are to be declared in a queue, by their groups."""
        now, until = time.monotonic(), self._until
        return {group: limit for group, limit in limits.items() if until.get((queue, group, limit), 0.0) <= now}

    def keep(self, queue: str, flows: HasHosts, limits: Wanted) -> Flow[None]:
        """Declare limits in a queue before calls are put; those of late are not declared again, if they are kept still.

        Raises what `declare` raises.
        """
        lacking = self.lacking(queue, limits)
        for group, limit in limits.items():
            if group not in lacking:
                # one tells for all: who purges a queue, or makes it plain, takes all limits from it
                if not (yield from is_kept(flows, group, limit)):
                    lacking = limits
                break
        yield from declare(flows, lacking)
        self.note(queue, lacking)

    def note(self, queue: str, limits: Wanted, seconds: float = AGAIN) -> None:
        """Note that these limits need not be declared for some seconds."""
        if len(self._until) >= MOST:
            self._until.clear()
        until = time.monotonic() + seconds
        self._until.update({(queue, group, limit): until for group, limit in limits.items()})


def is_kept(flows: HasHosts, group: str, limit: Limit | None) -> Flow[bool]:
    """Say whether a queue keeps the limit of a group."""
    try:
        found = yield from flows.hosts.inspect(group)
    except InvalidInput:
        return False
    return _fits(found, limit)


def declare(flows: HasHosts, limits: Wanted) -> Flow[None]:
    """Give groups of a queue the rules of their limits, where they have others; a plain queue is made polite.

    Raises `InvalidInput` for a queue over several shards whose tasks are routed by id: it can keep no limits.
    """
    for group, limit in limits.items():
        try:
            found = yield from flows.hosts.inspect(group)
        except InvalidInput:
            yield from flows.be_polite(FREE)
            found = yield from flows.hosts.inspect(group)
        if limit is not None and not _fits(found, limit):
            yield from flows.hosts.set(group, delay=limit.every, per_host=limit.concurrency)


def _fits(found: HostInfo, limit: Limit | None) -> bool:
    if limit is None:
        return True
    # of more places the server tells only as many as a host with a delay can have
    most = min(limit.concurrency, MOST_RESTING) if limit.every else limit.concurrency
    return (round(found.delay * 1000), found.per_host) == (round(limit.every * 1000), most)
