"""Decides how many tasks a worker claims and holds, and how its queues share its handlers. No I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from timeoutq.server.calls import BATCH

ENOUGH = 64
"""With this many ends to send, or tasks to claim, an exchange always pays, even while other exchanges are under way."""
FIRST_TRIP = 0.005  # the first guess of how long an exchange takes, seconds
SHORTEST_LOOK = 0.05  # the shortest time over which a rate is measured, seconds
FOUND_AT_ONCE, NO_LIMIT = 64, 1_000_000_000
"""How many found tasks one exchange puts while few tasks end, and while many do."""
FEW = 500.0  # few tasks end when fewer than this end per second


@dataclass(frozen=True, slots=True)
class Load:
    """The tasks of a worker at one moment."""

    running: int
    unstarted: int  # tasks that are claimed, but no handler has begun them
    claiming: int  # tasks that the claims under way may still bring
    still_to_run: int | None = None  # how many runs the worker may still begin; None: any number


class Pace:
    """Measures a worker, and says how many tasks the worker is to claim."""

    def __init__(self, concurrency: int, prefetch: int | None, timeout: float, now: float) -> None:
        """Prepare; `timeout` is the length of a lease in seconds, `now` the monotonic clock.

        `prefetch` is how many claimed tasks may wait for a free handler; None: as many as end during two exchanges.
        """
        self._concurrency, self._prefetch, self._timeout = concurrency, prefetch, timeout
        self.rate = 0.0  # tasks that end per second
        self.trip = FIRST_TRIP  # seconds that an exchange takes, on average
        self.sway = 0.0  # seconds by which an exchange differs from the average, itself an average
        self._counted, self._counted_at = 0, now

    def ended(self, total: int, now: float) -> None:
        """Measure the rate: `total` tasks have ended since the worker started."""
        span = now - self._counted_at
        if span >= SHORTEST_LOOK:
            rate = (total - self._counted) / span
            # the longer a rate was measured, the more it counts; one over a quarter of a second replaces the old one
            weight = min(1.0, 4 * span) if self.rate else 1.0
            self.rate += (rate - self.rate) * weight
            self._counted, self._counted_at = total, now

    def took(self, seconds: float) -> None:
        """Measure an exchange that took this many seconds."""
        off = seconds - self.trip
        self.trip += off / 8
        self.sway += (abs(off) - self.sway) / 4

    @property
    def slow_trip(self) -> float:
        """Seconds that a slow exchange takes."""
        # judged as in TCP: the mean and some deviations (RFC 6298 takes four, this takes two)
        return self.trip + 2 * self.sway

    @property
    def places(self) -> int:
        """How many tasks may run or wait in this process."""
        return self._concurrency + self.ahead()

    def ahead(self) -> int:
        """Give how many claimed tasks may wait in this process for a free handler."""
        if self._prefetch is not None:
            return self._prefetch
        # as many as end during two slow exchanges, but no more than end in a third of a lease
        during_two = self.rate * (2 * self.slow_trip + 0.002)
        return int(min(during_two, self.rate * self._timeout / 3, 2 * BATCH))

    def found_at_once(self) -> int:
        """Give how many found tasks one exchange is to put, at most: the claim of the exchange waits for its acks."""
        # few end: short exchanges bring work to idle handlers sooner; many end: each exchange more would cost time
        return FOUND_AT_ONCE if self.rate < FEW else NO_LIMIT

    def wanted(self, load: Load, *, plenty: bool) -> int:
        """Give how many tasks to claim now; `plenty` says whether the last claim got all that it asked for."""
        slots = self._concurrency + self.ahead()
        want = slots - load.running - load.unstarted - load.claiming
        if load.still_to_run is not None:
            want = min(want, load.still_to_run)
        # a claim for few slots does not pay while the worker has other tasks: wait until more slots are free
        if want < max(1, slots // 8) and load.unstarted + load.claiming > 0:
            return 0
        # while there are plenty of tasks, claim for half of the slots: these tasks run during the next claim
        most = min(BATCH, max(ENOUGH, (slots + 1) // 2)) if plenty else BATCH
        return max(0, min(want, most))

    def is_worth(self, ended: int, want: int, under_way: int) -> bool:
        """Say whether an exchange pays; it would send `ended` ends and claim `want` tasks, beside those `under_way`."""
        enough = min(ENOUGH, max(1, self._concurrency // 4)) if under_way else 1
        return ended >= enough or want >= enough


@dataclass(frozen=True, slots=True)
class Appetite:
    """How a queue of a worker stands at one moment."""

    hungry: bool  # whether it may have ready tasks, and no answer of its server is overdue
    late: bool = False
    """Whether it would be hungry, if its server had answered in time; the server is not known to be away."""
    coming: int = 0  # how many tasks may come from its claims that are under way


class Strict:
    """Queues in strict order: a queue claims only while no queue before it is hungry."""

    def rank(self, number: int) -> int:
        """Give the rank of a queue: tasks of a lower rank begin before all others that wait here for a handler."""
        return number

    def portion(self, number: int, want: int, queues: Sequence[Appetite]) -> int:
        """Give how many tasks a queue may claim of `want`, the number for which there is room."""
        return 0 if any(above.hungry for above in queues[:number]) else want

    def came(self, number: int, tasks: int) -> None:
        """Note that a claim of this queue has brought tasks."""


class Weighted(Strict):
    """Each hungry queue claims in proportion to its weight; what a queue does not need goes to the others.

    The clock of a queue is the number of tasks that it has had, divided by its weight. The queue whose clock is the
    furthest behind comes first, and a claim fills places until the clocks agree. The clock of a queue that has no tasks
    goes with the others, so that nothing is saved up while it is empty.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        """Prepare; the clocks begin at random, so that many workers that start do not all begin with the same queue."""
        self._weights = weights
        self._clocks = [random.random() / weight for weight in weights]  # noqa: S311  # fairness, not a secret

    def rank(self, number: int) -> int:
        return 0

    def portion(self, number: int, want: int, queues: Sequence[Appetite]) -> int:
        ahead = [
            clock + one.coming / weight for clock, weight, one in zip(self._clocks, self._weights, queues, strict=True)
        ]
        hungry = sorted((at for at, one in enumerate(queues) if one.hungry), key=ahead.__getitem__)
        if number not in hungry:
            return 0
        first = ahead[hungry[0]]
        for at, one in enumerate(queues):
            if not (one.hungry or one.late):
                self._clocks[at] = max(self._clocks[at], first)
        # the clocks of those that are behind are set forward to one level, until all places are filled
        level, weight, left = first, 0, float(want)
        for at in hungry:
            step = (ahead[at] - level) * weight
            if step >= left:
                break
            level, left, weight = ahead[at], left - step, weight + self._weights[at]
        level += left / weight
        mine = 0
        # rounded up, so that no place stays free; those that are the furthest behind come first
        for at in hungry:
            mine = max(0, min(want, math.ceil((level - ahead[at]) * self._weights[at] - 1e-6)))
            if at == number:
                break
            want -= mine
        return mine

    def came(self, number: int, tasks: int) -> None:
        self._clocks[number] += tasks / self._weights[number]
