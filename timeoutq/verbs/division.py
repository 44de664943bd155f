"""How a queue is divided, as those see it that carry its work: a worker, a supervisor and `timeoutq cleaner`.

A plain queue is one part; a queue over several shards has a division of its own (`client/shards/working.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words.arguments import TaskList
from timeoutq.words.model import Lease


class Division:
    """A queue that is one part."""

    key_of: Callable[[Lease], int] = attrgetter("fence")
    """Gives the key of a lease of this queue: `Lease.key` without its question, which would be asked for each task."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def is_known(self) -> bool:
        """Whether `talks` will not change; else `look` asks the server."""
        return True

    def look(self) -> Flow[object]:
        """Ask the server how the queue is divided."""
        yield from ()
        return None

    @property
    def talks(self) -> Sequence[Talk]:
        """What the flows of each part share."""
        return (self._talk,)

    def which(self, lease: Lease) -> int:
        """Give the number of the part, its place in `talks`, that holds the task of a lease."""
        return 0

    def talk_of(self, lease: Lease) -> Talk:
        """Give the talk with the part that holds the task of a lease."""
        return self._talk

    def parted(self, leases: Sequence[Lease]) -> list[tuple[Talk, Sequence[Lease]]]:
        """Give the leases of each part, and the talk with the part."""
        return [(self._talk, leases)] if leases else []

    def sorted(self, lease: Lease, found: TaskList) -> tuple[TaskList, Mapping[int, TaskList]]:
        """Sort what a handler has found: the tasks of the lease's own part, and those of other parts, by number."""
        return found, {}

    def exchange(self, talk: Talk, calls: Sequence[Call[Any]], *, puts: bool, grouped: bool) -> Flow[list[Any]]:
        """Send the calls of a worker, as `settle` does; say whether they put tasks, and whether these have groups."""
        return sending.settle(talk, calls)

    def sharing(self, alive: int) -> int:
        """Give how many of the workers that are alive share one part."""
        return alive

    def drained(self) -> Flow[bool]:
        """Say whether the queue is drained."""
        return flows.drained(self._talk)

    def tended(self, worker: str) -> Flow[Collection[int]]:
        """Give the numbers of the parts whose bells this worker hears, and whose cleaners it runs."""
        yield from ()
        return (0,)

    def deepest(self) -> Flow[int | None]:
        """Look which part an idle worker is to help: one that has many ready tasks; None if no part has any."""
        yield from ()
        return None
