"""How the limits of functions are kept: each limit is a group of a polite queue, with rules of its own.

Who puts a call declares its limit first (`posting.py`), and so does a worker when it meets the call (`running.py`). The
queue counts the calls of a group that are ready or in progress, so a slot is free when a lease ends, whatever process
dies, and calls that wait for a slot cost nothing. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from timeoutq.errors import InvalidInput
from timeoutq.functions.options import Limit
from timeoutq.model import Politeness

if TYPE_CHECKING:
    from timeoutq.counts import Stats
    from timeoutq.hosts.flows import HostFlows
    from timeoutq.sending import Flow

AGAIN = 300.0
"""Seconds after which a limit is declared again: a hand, or a program of another version, may have changed it."""
MOST = 100_000
"""Limits that one process remembers."""


FREE = Politeness(delay=0, per_host=10_000)
"""Keeps no call waiting that has no limit."""


class HasHosts(Protocol):
    """The flows of a queue."""

    hosts: HostFlows

    def stats(self) -> Flow[Stats]:
        """Count all states, and read counters and settings."""
        ...

    def be_polite(self, rules: Politeness) -> Flow[None]:
        """Make the queue polite, if nobody has said yet whether it is."""
        ...


class Declared:
    """The limits that this process has declared lately."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, Limit], float] = {}

    def lacking(self, queue: str, limits: Iterable[tuple[str | None, Limit | None]]) -> dict[str, Limit]:
        """Give the limits that are to be declared in a queue, by their groups."""
        now, until = time.monotonic(), self._until
        return {
            group: limit
            for group, limit in limits
            if group is not None and limit is not None and until.get((queue, group, limit), 0.0) <= now
        }

    def note(self, queue: str, limits: Mapping[str, Limit]) -> None:
        """Note that these limits have been declared."""
        if len(self._until) >= MOST:
            self._until.clear()
        until = time.monotonic() + AGAIN
        self._until.update({(queue, group, limit): until for group, limit in limits.items()})


def begin(flows: HasHosts) -> Flow[bool]:
    """Make a queue polite that has no tasks, and of which nobody has said that it is to be plain; say whether it was.

    If others put tasks at the same moment, these tasks are adapted, as by `configure`.
    """
    stats = yield from flows.stats()
    if stats.known or "politeness" in stats.settings:
        return False
    yield from flows.be_polite(FREE)
    return True


def declare(name: str, flows: HasHosts, limits: Mapping[str, Limit]) -> Flow[None]:
    """Give groups of a queue the rules of their limits, where they have others.

    A queue without tasks is made polite. Raises `InvalidInput` for a queue that has tasks, and is not polite.
    """
    for group, limit in limits.items():
        try:
            found = yield from flows.hosts.inspect(group)
        except InvalidInput as error:
            if not (yield from begin(flows)):
                raise InvalidInput(
                    f"the calls of group {group!r} have a limit, and only a polite queue keeps limits: queue {name!r} "
                    f"has tasks already, so make it polite once, for example with 'timeoutq configure {name} --delay 0 "
                    "--per-host 10000', which lets all other calls run as before"
                ) from error
            found = yield from flows.hosts.inspect(group)
        if (round(found.delay * 1000), found.per_host) != (round(limit.every * 1000), limit.concurrency):
            yield from flows.hosts.set_rules(group, limit.every, limit.concurrency, None)
