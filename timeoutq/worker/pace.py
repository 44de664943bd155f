"""How many tasks a worker claims and holds: from how fast handlers end and how long an exchange takes. No I/O.

The pump asks `wanted` before each exchange and `is_worth` whether the exchange pays; it tells how long each exchange
took, and how many tasks have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.calls import BATCH

ENOUGH = 64
"""This many ends, or tasks to claim, are always worth an exchange beside another one."""
FIRST_TRIP = 0.005
"""Seconds that an exchange is thought to take before one was measured."""
SHORTEST_LOOK = 0.05
"""Seconds: over a shorter time no rate is measured."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has to do at one moment, in tasks."""

    running: int
    unstarted: int
    """Claimed, but no handler has begun."""
    claiming: int
    """May still come from the claims that are under way."""
    long_acks: int = 0
    """Done, but their acks are long and wait for their turn."""
    still_to_run: int | None = None
    """How many runs the worker may still begin; None: any number."""


class Pace:
    """Measures a worker, and says how many tasks the worker is to claim."""

    def __init__(self, concurrency: int, prefetch: int | None, timeout: float, now: float) -> None:
        """Prepare; `timeout` is the length of a lease in seconds, `now` the monotonic clock.

        `prefetch` is how many tasks wait for a handler; None: as many as handlers end in two exchanges.
        """
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._timeout = timeout
        self.rate = 0.0
        """Tasks that end in a second."""
        self.trip = FIRST_TRIP
        """Seconds that an exchange takes, on average."""
        self.sway = 0.0
        """By how many seconds exchanges differ from the average."""
        self._counted, self._counted_at = 0, now

    def ended(self, total: int, now: float) -> None:
        """Measure the rate: `total` tasks have ended since the worker started."""
        span = now - self._counted_at
        if span >= SHORTEST_LOOK:
            rate = (total - self._counted) / span
            self.rate += (rate - self.rate) * (min(1.0, 4 * span) if self.rate else 1.0)
            self._counted, self._counted_at = total, now

    def took(self, seconds: float) -> None:
        """Measure an exchange."""
        off = seconds - self.trip
        self.trip += off / 8
        self.sway += (abs(off) - self.sway) / 4

    def ahead(self) -> int:
        """Give how many tasks are to wait here for a handler."""
        if self._prefetch is not None:
            return self._prefetch
        # what is done during two exchanges, slow ones as TCP expects them (RFC 6298: the mean and four deviations, here
        # two), and no more than is done in a third of a lease
        trips = self.rate * (2 * (self.trip + 2 * self.sway) + 0.002)
        return int(min(trips, self.rate * self._timeout / 3, 2 * BATCH))

    def wanted(self, load: Load, *, plenty: bool) -> int:
        """Give how many tasks to claim now; `plenty` says whether the last claim got all that it asked for."""
        # handlers that are quicker than their long acks can be sent must not fill the memory
        slots = self._concurrency + self.ahead() - max(0, load.long_acks - self._concurrency)
        want = slots - load.running - load.unstarted - load.claiming
        if load.still_to_run is not None:
            want = min(want, load.still_to_run)
        # a claim for few slots would be an exchange for little: wait until more slots are free
        if want < max(1, slots // 8) and load.unstarted + load.claiming > 0:
            return 0
        # while there are plenty of tasks, claim for half of the slots: these tasks run during the next claim
        return max(0, min(want, max(ENOUGH, (slots + 1) // 2) if plenty else BATCH, BATCH))

    def is_worth(self, ended: int, want: int, under_way: int) -> bool:
        """Say whether an exchange pays that sends so many ends and claims so many tasks, beside those under way."""
        enough = min(ENOUGH, max(1, self._concurrency // 4)) if under_way else 1
        return ended >= enough or want >= enough
