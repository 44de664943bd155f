"""Whether the receiver takes tasks now: for how long it is blocked, and who tries it afterwards. No I/O, no clock.

When a receiver is busy, nothing is sent to it until the time is over for which it has asked, or one that grows. Then a
single task is sent first, and the others go when it has been taken: a receiver that has just come back is not run over.
"""

from __future__ import annotations

from timeoutq.gateway.push.verdicts import LONGEST_BLOCK

FIRST, LONGEST = 1.0, 60.0
"""Seconds of the first block of a receiver that does not say for how long; each in a row lasts twice as long."""
SHORTEST = 0.1
"""No block is shorter, whatever a receiver says: it would be asked in a loop."""


class Endpoint:
    """What one worker knows of the receiver. Times are those of one clock, which the caller reads."""

    def __init__(self) -> None:
        """Begin with a receiver that takes tasks."""
        self.until = 0.0
        """Until when nothing is sent."""
        self.strikes = 0
        """How many blocks in a row there were."""
        self._since = 0.0
        """When the last block began: what was sent before tells nothing of its end."""
        self._trying = False
        """Whether the task that tries after a block is under way."""

    def left(self, now: float) -> float:
        """Give for how many seconds nothing is sent."""
        return max(0.0, self.until - now)

    def try_begin(self, now: float) -> bool:
        """Begin to send a task, if one may be sent now; after a block, one at a time, until `taken`."""
        if self.left(now) or (self.strikes and self._trying):
            return False
        self._trying = self.strikes > 0
        return True

    def taken(self, began: float, now: float) -> bool:
        """Note that what was sent at `began` has ended, also without an answer, but not with busy.

        Says whether this ended a block. What was sent before the block began does not, and nothing does while the
        receiver has asked for more time.
        """
        if not self.strikes or began < self._since:
            return False
        self._trying = False
        if self.left(now):
            return False
        self.strikes = 0
        return True

    def given_up(self, began: float) -> None:
        """Note that what was sent at `began` was broken off; if it was the task that tries, the next one may."""
        if began >= self._since:
            self._trying = False

    def busy(self, began: float, now: float, asked: float | None) -> float | None:
        """Note that the receiver is busy, which it said of what was sent at `began`; `asked` is what it asked for.

        Gives the seconds for which it is blocked, if this begins a block. What was under way when the last block began
        begins none, unless that block is over and the receiver asks for time.
        """
        is_new = began >= self._since or (not self.strikes and asked is not None)
        if is_new:
            self.strikes, self._since, self._trying = self.strikes + 1, now, False
        own = min(LONGEST, FIRST * 2 ** min(self.strikes - 1, 10))
        seconds = min(LONGEST_BLOCK, max(SHORTEST, own if asked is None else asked))
        if is_new or asked is not None:
            self.until = max(self.until, now + seconds)
        return seconds if is_new else None
