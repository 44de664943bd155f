"""Decides how many tasks a worker claims and holds, from the speed of its handlers and of exchanges. No I/O.

Before each exchange, the pump asks `wanted` how many tasks to claim, and `is_worth` whether the exchange pays. The pump
tells `ended` how many tasks have ended; each exchange tells `took` how long it took.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.server.calls import BATCH

ENOUGH = 64
"""With this many ends to send, or tasks to claim, an exchange always pays, even while other exchanges are under way."""
FIRST_TRIP = 0.005
"""The first guess of how long an exchange takes, seconds."""
SHORTEST_LOOK = 0.05
"""The shortest time over which a rate is measured, seconds."""
FOUND_AT_ONCE, NO_LIMIT = 64, 1_000_000_000
"""How many found tasks one exchange puts while few tasks end, and while many do."""
FEW = 500.0
"""Few tasks end when fewer than this end per second."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has to do at one moment, in tasks."""

    running: int
    unstarted: int
    """Tasks that are claimed, but no handler has begun them."""
    claiming: int
    """Tasks that the claims under way may still bring."""
    waiting_acks: int = 0
    """Tasks that are done, but whose acks wait for what goes before them."""
    still_to_run: int | None = None
    """How many runs the worker may still begin; None: any number."""


class Pace:
    """Measures a worker, and says how many tasks the worker is to claim."""

    def __init__(self, concurrency: int, prefetch: int | None, timeout: float, now: float) -> None:
        """Prepare; `timeout` is the length of a lease in seconds, `now` the monotonic clock.

        `prefetch` is how many claimed tasks may wait for a free handler; None: as many as end during two exchanges.
        """
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._timeout = timeout
        self.rate = 0.0
        """Tasks that end per second."""
        self.trip = FIRST_TRIP
        """Seconds that an exchange takes, on average."""
        self.sway = 0.0
        """Seconds by which an exchange differs from the average, itself an average."""
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
        """Give how many found tasks one exchange is to put, at most.

        The claim of an exchange waits for its acks. While few tasks end, short exchanges bring work to idle handlers
        sooner. While many tasks end, each exchange more would cost time that the handlers need.
        """
        return FOUND_AT_ONCE if self.rate < FEW else NO_LIMIT

    def wanted(self, load: Load, *, plenty: bool) -> int:
        """Give how many tasks to claim now; `plenty` says whether the last claim got all that it asked for."""
        # when handlers end faster than such acks can be sent, claim less: waiting acks must not fill the memory
        slots = self._concurrency + self.ahead() - max(0, load.waiting_acks - self._concurrency)
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
