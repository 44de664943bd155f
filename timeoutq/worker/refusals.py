"""How often in a row handlers have released tasks of a host to block the host, and when to warn. No I/O.

Such releases do not count against `max_releases`, so a host that refuses every visit would be visited for ever without
a word. The worker counts them here; while no host is blocked like this, the worker asks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Lease, text

FIRST = 10
"""The worker warns at this many releases in a row, and at ten times as many, and so on."""
MOST = 1000
"""How many hosts are counted at most; the one that was blocked first is forgotten."""


class Refusals:
    """What one worker has met, by host. A task that has no URL stands for itself."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        """How many releases in a row each host has, since the last visit to it that ended otherwise."""

    def add(self, task: str) -> tuple[str, int] | None:
        """Count a release that blocks the host of a task; give the host and the number when it is time to warn."""
        host = _host(task)
        times = self.rows[host] = self.rows.pop(host, 0) + 1
        if len(self.rows) > MOST:
            del self.rows[next(iter(self.rows))]
        return (host, times) if times >= FIRST and str(times).strip("0") == "1" else None

    def over(self, leases: Iterable[Lease]) -> None:
        """Note that visits ended otherwise: the rows of their hosts are over."""
        for lease in leases:
            self.rows.pop(_host(lease.task), None)


def _host(task: str) -> str:
    try:
        return text(arguments.host(task))
    except InvalidInput:  # a URL without a host
        return task
