"""Tasks that may kill this process: each runs alone, so that no other lease can be lost with the process. No I/O.

A task is a suspect when processes have died twice while they worked on it. The pump asks what a suspect may do.
"""

from __future__ import annotations

from collections.abc import Set

from timeoutq.server.calls import BATCH
from timeoutq.words.model import Lease

CRASHES = 2
"""A task is a suspect after this many crashes."""
WAIT = 5.0
"""A suspect waits this many seconds at most, or a third of its lease, for the other handlers to end."""
LONGEST = 60.0
"""A suspect that has waited in vain again and again comes back after this many seconds at most."""


class Suspects:
    """The suspect that waits for its turn here, the one that runs, and how often others have waited in vain."""

    def __init__(self) -> None:
        self.waiting: Lease | None = None
        self.until = 0.0
        """Until when it waits, by the monotonic clock."""
        self.lane = 0
        """Of which of the worker's queues the suspect is that came last."""
        self._alone = 0
        """The key of the suspect that runs, or ran."""
        self._in_vain: dict[str, int] = {}

    def waits(self, lease: Lease, timeout: float, now: float, lane: int = 0) -> None:
        """Have a suspect wait until the others have ended; `timeout` is the length of its lease in seconds."""
        self.waiting, self.until, self.lane = lease, now + min(WAIT, timeout / 3), lane

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

    def take_out(self, key: int | None = None, lane: int = 0) -> Lease | None:
        """Give the suspect that waits, if it is the one of this lane with this key; None stands for any."""
        lease = self.waiting
        if lease is None or (key is not None and (key, lane) != (lease.key, self.lane)):
            return None
        self.waiting = None
        return lease

    def postpone(self, lease: Lease) -> float:
        """Give up on a suspect whose turn does not come; give for how many seconds nobody is to have it.

        Others may take the suspect afterwards, and each time that it has waited in vain here it stays away longer.
        """
        self.waiting = None
        if len(self._in_vain) >= BATCH:
            self._in_vain.clear()
        times = self._in_vain[lease.task] = self._in_vain.get(lease.task, 0) + 1
        return min(LONGEST, 2.0 ** (times - 1))
