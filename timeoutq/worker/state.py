"""Whether a worker goes on, drains or ends, and the task that must run alone: decisions without I/O."""

from __future__ import annotations

import time
from collections.abc import Set

from timeoutq.server.calls import BATCH
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease

GO_ON, DRAIN, AT_ONCE = 0, 1, 2

CRASHES = 2
"""A task is a suspect after this many crashes: it runs alone, so that no other lease can be lost with the process."""
WAIT = 5.0  # a suspect waits this many seconds at most, or a third of its lease, for the other handlers to end
LONGEST = 60.0  # a suspect that has waited in vain again and again comes back after this many seconds at most


class Life:
    """The orders that a worker was given or gave itself, and what all its queues know of their servers."""

    def __init__(
        self, drain_deadline: float, *, burst: bool = False, max_tasks: int | None = None, queues: int = 1
    ) -> None:
        """Prepare; a drain takes `drain_deadline` seconds at most."""
        self._drain_deadline = drain_deadline
        self._queues = queues
        self.burst = burst
        self.max_tasks = max_tasks
        self.level = GO_ON
        self.until = 0.0  # when the drain is over, by the monotonic clock; 0 while there is none
        self.by_itself = False  # whether the worker drains because it has run its tasks; nobody has asked it to stop
        self.met = False  # whether a server has answered; from then on every error of it is waited out
        self.refused: set[int] = set()  # the numbers of the queues whose servers refuse what waiting cannot mend
        self.leaving = False  # whether the worker ends early: nothing is waited out any more
        self.broken: BaseException | None = None  # why the worker must end; the first reason counts

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
        self._alone = 0  # the key of the suspect that runs, or ran
        self._in_vain: dict[str, int] = {}

    def waits(self, lease: Lease, timeout: float, now: float, number: int = 0) -> None:
        """Have a suspect wait until the others have ended; `timeout` is the length of its lease in seconds."""
        self.waiting, self.until, self.number = lease, now + min(WAIT, timeout / 3), number

    def keeps_others_away(self, held: Set[int]) -> bool:
        """Say whether a suspect waits or runs: then nothing is claimed. `held` has the keys of its queue's leases."""
        return self.waiting is not None or self._alone in held

    def begin(self) -> Lease | None:
        """Give the suspect that waits, because it may run now."""
        lease, self.waiting = self.waiting, None
        if lease is not None:
            self._alone = lease.key
            self._in_vain.pop(lease.task, None)
        return lease

    def take_out(self, key: int | None = None, number: int = 0) -> Lease | None:
        """Give the suspect that waits, if it is the one of this queue with this key; None stands for any."""
        lease = self.waiting
        if lease is None or (key is not None and (key, number) != (lease.key, self.number)):
            return None
        self.waiting = None
        return lease

    def postpone(self, lease: Lease) -> float:
        """Give up on a suspect whose turn does not come; give for how many seconds nobody is to have it."""
        self.waiting = None
        if len(self._in_vain) >= BATCH:
            self._in_vain.clear()
        times = self._in_vain[lease.task] = self._in_vain.get(lease.task, 0) + 1
        return min(LONGEST, 2.0 ** (times - 1))
