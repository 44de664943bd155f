"""Whether a worker is to stop, and how: it goes on, it drains, or it gives everything back at once. No I/O."""

from __future__ import annotations

import time
from dataclasses import dataclass

GO_ON, DRAIN, AT_ONCE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a worker that nobody stops."""

    burst: bool = False
    """Whether the worker ends when the queue is drained."""
    max_tasks: int | None = None
    """After how many runs of handlers it ends."""


NO_LIMITS = Limits()


class Stopping:
    """The orders that one worker was given, or gave itself."""

    def __init__(self, drain_deadline: float, limits: Limits = NO_LIMITS) -> None:
        """Prepare; a drain takes `drain_deadline` seconds at most."""
        self._drain_deadline = drain_deadline
        self.limits = limits
        self.level = GO_ON
        self.until = 0.0
        """When the drain is over, by the monotonic clock; 0 while there is none."""
        self.by_itself = False
        """Whether the worker drains because it has run its tasks; nobody has asked it to stop."""

    def order(self, *, now: bool) -> bool:
        """Note an order of somebody else; say whether everything is given back at once: `now`, or the second order."""
        self.level = AT_ONCE if now or (self.level and not self.by_itself) else DRAIN
        if self.by_itself:
            self.by_itself, self.until = False, 0.0  # the deadline counts from this order on
        return self.level == AT_ONCE

    def begin_drain(self) -> None:
        """Have the deadline of the drain run from now on, if it does not run yet."""
        self.until = self.until or time.monotonic() + self._drain_deadline

    def is_over(self, *, gets_on: bool) -> bool:
        """Say whether the drain must end now; `gets_on` says whether the rest is being sent without trouble."""
        if self.level == AT_ONCE:
            return True
        if time.monotonic() < self.until:
            return False
        # nobody waits for a worker that ends by itself: its acks have the time that they need, as long as they get on
        return not (self.by_itself and gets_on)

    @property
    def seconds_left(self) -> float:
        """How many seconds of the drain are left."""
        return max(0.0, self.until - time.monotonic()) if self.level < AT_ONCE else 0.0

    def why(self) -> str:
        """Say why handlers are cut off."""
        if self.level == AT_ONCE:
            return "the worker stops at once"
        return f"the drain deadline of {self._drain_deadline:g} s is over" if self.until else "the worker ends early"
