"""How the queues of one worker share its handlers: in strict order, or by weights. No I/O.

Each queue of a worker is a *lane*. The lanes are numbered from 0, in the order in which the user named the queues. A
lane is *hungry* while its queue may have tasks that are ready, and no answer of the queue's server is overdue; a lane
whose server is away is hungry at each moment at which the server may be tried again. Before a lane claims, it asks
`portion` how many of the free places it may fill.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Appetite:
    """What is known of a lane at one moment."""

    hungry: bool
    late: bool = False
    """Whether it would be hungry, if its server had answered in time; the server is not known to be away."""
    coming: int = 0
    """How many tasks may come from its claims that are under way."""


class Sharing(Protocol):
    """Divides the places of a worker among its lanes."""

    def rank(self, lane: int) -> int:
        """Give the rank of a lane: tasks of a lower rank begin before all others that wait here for a handler."""
        ...

    def portion(self, lane: int, want: int, lanes: Sequence[Appetite]) -> int:
        """Give how many tasks a lane may claim of `want`, the number for which there is room."""
        ...

    def came(self, lane: int, tasks: int) -> None:
        """Note that a claim of this lane has brought tasks."""
        ...


class Strict:
    """A lane claims only while no lane above it is hungry."""

    def rank(self, lane: int) -> int:
        return lane

    def portion(self, lane: int, want: int, lanes: Sequence[Appetite]) -> int:
        return 0 if any(above.hungry for above in lanes[:lane]) else want

    def came(self, lane: int, tasks: int) -> None:
        pass  # the past does not count


class Weighted:
    """Each hungry lane claims in proportion to its weight; what a lane does not need goes to the others.

    A lane's *clock* is the number of tasks that it has had, divided by its weight. The lane whose clock is the furthest
    behind comes first, and a claim fills places until the clocks agree. The clock of a lane that has no tasks goes with
    the others, so that nothing is saved up while a queue is empty.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        """Prepare; the clocks begin at random, so that many workers that start do not all begin with the same queue."""
        self._weights = weights
        self._clocks = [random.random() / weight for weight in weights]  # noqa: S311  # fairness, not a secret

    def rank(self, lane: int) -> int:
        return 0

    def portion(self, lane: int, want: int, lanes: Sequence[Appetite]) -> int:
        ahead = [
            clock + one.coming / weight for clock, weight, one in zip(self._clocks, self._weights, lanes, strict=True)
        ]
        hungry = sorted((number for number, one in enumerate(lanes) if one.hungry), key=ahead.__getitem__)
        if lane not in hungry:
            return 0
        first = ahead[hungry[0]]
        for number, one in enumerate(lanes):
            if not (one.hungry or one.late):
                self._clocks[number] = max(self._clocks[number], first)
        # the clocks of those that are behind are set forward to one level, until all places are filled
        level, weight, left = first, 0, float(want)
        for number in hungry:
            step = (ahead[number] - level) * weight
            if step >= left:
                break
            level, left, weight = ahead[number], left - step, weight + self._weights[number]
        level += left / weight
        mine = 0
        # rounded up, so that no place stays free; those that are the furthest behind come first
        for number in hungry:
            mine = max(0, min(want, math.ceil((level - ahead[number]) * self._weights[number] - 1e-6)))
            if number == lane:
                break
            want -= mine
        return mine

    def came(self, lane: int, tasks: int) -> None:
        self._clocks[lane] += tasks / self._weights[lane]
