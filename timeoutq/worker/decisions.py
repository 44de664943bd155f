"""Decides, without I/O, how many tasks a worker claims, how its queues share it, who runs alone, and when it ends."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timeoutq.server.calls import BATCH
from timeoutq.words import arguments
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease

ENOUGH = 64
"""With this many ends to send, or tasks to claim, an exchange always pays, even while other exchanges are under way."""
MOST_AHEAD = 4 * BATCH
"""So many claimed tasks may wait for a handler, however fast they end: one claim runs, and the server has the next."""
MORE = 0.01  # seconds: as many tasks as end in this time are claimed ahead, too; few in one exchange cost more
FIRST_TRIP = 0.005  # the first guess of how long an exchange takes, seconds
ODD_TRIP = 0.05  # an exchange that takes longer, and four times as long as a slow one, counts as one of this length
SHORTEST_LOOK = 0.05  # the shortest time over which a rate is measured, seconds
FOUND_AT_ONCE, NO_LIMIT = 64, 1_000_000_000
"""How many found tasks one exchange puts while few tasks end, and while many do."""
FEW = 500.0  # few tasks end when fewer than this end per second

GO_ON, DRAIN, AT_ONCE = 0, 1, 2
FOREVER = 1e9  # seconds; event loops take no infinity

CRASHES = 2
"""A task is a suspect after this many crashes: it runs alone, so that no other lease can be lost with the process."""
WAIT = 5.0  # a suspect waits this many seconds at most, or a third of its lease, for the other handlers to end
LONGEST = 60.0  # a suspect that has waited in vain again and again comes back after this many seconds at most


class Pace:
    """Measures a worker, and says how many tasks the worker is to claim."""

    def __init__(self, concurrency: int, prefetch: int | None, timeout: float, now: float) -> None:
        """Prepare; `timeout` is the length of a lease in seconds, `now` the monotonic clock.

        `prefetch` is how many claimed tasks may wait for a free handler; None: as many as end during two exchanges,
        and 10 ms more.
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
        """Measure an exchange that took this many seconds, and did not fail."""
        # one exchange in which the server stood still says little of the next ones
        off = min(seconds, max(ODD_TRIP, 4 * self.slow_trip)) - self.trip
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
        during_two = self.rate * (2 * self.slow_trip + MORE)
        return int(min(during_two, self.rate * self._timeout / 3, MOST_AHEAD))

    def found_at_once(self) -> int:
        """Give how many found tasks one exchange is to put, at most: the claim of the exchange waits for its acks."""
        # few end: short exchanges bring work to idle handlers sooner; many end: each exchange more would cost time
        return FOUND_AT_ONCE if self.rate < FEW else NO_LIMIT

    def wanted(
        self, running: int, unstarted: int, claiming: int, *, still_to_run: int | None = None, plenty: bool
    ) -> int:
        """Give how many tasks to claim now, when no handler has begun `unstarted` others, and claims may bring more.

        The worker may begin `still_to_run` runs; None: any number. `plenty`: the last claim got all that it asked for.
        """
        slots = self.places
        want = slots - running - unstarted - claiming
        if still_to_run is not None:
            want = min(want, still_to_run)
        # a claim for few slots does not pay while the worker has other tasks: wait until more slots are free
        if want < max(1, slots // 8) and unstarted + claiming > 0:
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


class Life:
    """The orders that a worker was given or gave itself, and what all its queues know of their servers."""

    def __init__(
        self, drain_deadline: float, *, burst: bool = False, max_tasks: int | None = None, queues: int = 1
    ) -> None:
        """Prepare; a drain takes `drain_deadline` seconds at most."""
        self._drain_deadline, self._queues, self.burst = drain_deadline, queues, burst
        self.max_tasks = None if max_tasks is None else arguments.count(max_tasks, "max_tasks")
        self.level = GO_ON
        self.until = 0.0  # when the drain is over, by the monotonic clock; 0 while there is none
        self.by_itself = False  # whether the worker drains because it has run its tasks; nobody has asked it to stop
        self.met = False  # whether a server has answered; from then on every error of it is waited out
        self.returns = 0  # how often a server that was away has answered again: then the others are tried at once, too
        self.refused: set[int] = set()  # the numbers of the queues whose servers refuse what waiting cannot mend
        self.leaving = False  # whether the worker ends early: nothing is waited out any more
        self.broken: BaseException | None = None  # why the worker must end; the first reason counts

    def order(self, *, now: bool) -> bool:
        """Note an order of somebody else; say whether everything is given back at once: `now`, or the second order."""
        self.level = AT_ONCE if now or (self.level and not self.by_itself) else DRAIN
        if self.by_itself:
            self.by_itself, self.until = False, 0.0  # the deadline counts from this order on
        return self.level == AT_ONCE

    def take_time(self) -> None:
        """Drain without a deadline, until somebody else gives an order: nobody waits for the end."""
        self.by_itself, self.until = True, time.monotonic() + FOREVER

    def begin_drain(self) -> None:
        """Have the deadline of the drain run from now on, if it does not run yet."""
        self.until = self.until or time.monotonic() + self._drain_deadline

    def is_over(self, *, gets_on: bool) -> bool:
        """Say whether the drain must end now; `gets_on` says whether the rest is being sent without trouble."""
        if self.level == AT_ONCE:
            return True
        # nobody waits for a worker that ends by itself: its acks have the time that they need, as long as they get on
        return time.monotonic() >= self.until and not (self.by_itself and gets_on)

    @property
    def seconds_left(self) -> float:
        """How many seconds of the drain are left."""
        return max(0.0, self.until - time.monotonic()) if self.level < AT_ONCE else 0.0

    def why(self) -> str:
        """Say why handlers are cut off."""
        if self.level == AT_ONCE:
            return "the worker stops at once"
        return f"the drain deadline of {self._drain_deadline:g} s is over" if self.until else "the worker ends early"

    def refuse(self, number: int, trouble: TimeoutqError) -> None:
        """Note that a queue cannot be worked on; raises the error if this holds for all queues of the worker."""
        self.refused.add(number)
        if len(self.refused) == self._queues:
            raise trouble


class Suspects:
    """The suspect that waits for its turn here, the one that runs, and how often others have waited in vain."""

    def __init__(self) -> None:
        self.waiting: Lease | None = None
        self.until = 0.0  # until when it waits, by the monotonic clock
        self.number = 0  # the number of the queue of the suspect that came last
        self._held: Mapping[int, Lease] = {}  # the leases of this queue, by their keys
        self._alone = 0  # the key of the suspect that runs, or ran
        self._in_vain: dict[str, int] = {}

    def waits(self, lease: Lease, timeout: float, now: float, number: int, held: Mapping[int, Lease]) -> None:
        """Have a suspect wait until the others have ended; `timeout` is the length of its lease in seconds."""
        self.waiting, self.until = lease, now + min(WAIT, timeout / 3)
        self.number, self._held = number, held

    @property
    def keep_others_away(self) -> bool:
        """Whether a suspect waits or runs: then nothing is claimed."""
        return self.waiting is not None or self._alone in self._held

    def take_out(self) -> Lease | None:
        """Give the suspect that waits, and forget it."""
        lease, self.waiting = self.waiting, None
        return lease

    def begin(self) -> Lease | None:
        """Give the suspect that waits, because it may run now."""
        lease = self.take_out()
        if lease is not None:
            self._alone = lease.key
            self._in_vain.pop(lease.task, None)
        return lease

    def postpone(self, lease: Lease) -> float:
        """Give up on a suspect whose turn does not come; give for how many seconds nobody is to have it."""
        self.waiting = None
        if len(self._in_vain) >= BATCH:
            self._in_vain.clear()
        times = self._in_vain[lease.task] = self._in_vain.get(lease.task, 0) + 1
        return min(LONGEST, 2.0 ** min(times - 1, 6))
