"""The receiver, as its answers tell: what each answer means for the task, and for how long nothing is sent. No I/O.

When a receiver is busy, nothing is sent to it until the time is over for which it has asked, or one that grows. Then a
single task is sent first, and the others go when it has been taken: a receiver that has just come back is not run over.
"""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.words.retry import GiveUp, Retry, retry_after
from timeoutq.words.text import safe

LONGEST_BLOCK = 3600.0
"""The longest time, in seconds, for which a receiver may ask with Retry-After; a longer one is cut."""
FIRST, LONGEST = 1.0, 60.0
"""Seconds of the first block of a receiver that does not say for how long; each in a row lasts twice as long."""
SHORTEST = 0.1  # no block is shorter, whatever a receiver says: it would be asked in a loop
QUOTED = 200  # how many characters of an answer are kept

GONE = 410
BUSY = frozenset({429, 502, 503, 504})  # not now: these say nothing about the task
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class NotDelivered(Retry):
    """A failed attempt: the retry policy decides when the task is sent again."""


class Gone(GiveUp):
    """The receiver wants no more of this task."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the receiver."""

    status: int
    retry_after: str = ""
    location: str = ""
    text: str = ""  # how its body begins


@dataclass(frozen=True, slots=True)
class Busy:
    """The receiver takes nothing now."""

    status: int
    seconds: float | None  # for how long, if it says so


def meaning(answer: Answer, now: float) -> Busy | NotDelivered | Gone | None:
    """Say what an answer means; None: the task is delivered. `now` is Unix time."""
    status = answer.status
    if 200 <= status < 300:
        return None
    if status in BUSY:
        return Busy(status, retry_after(answer.retry_after, now, LONGEST_BLOCK))
    if status == GONE:
        return Gone(f"the receiver answers HTTP 410, gone{_quoted(answer.text)}")
    if 300 <= status < 400:
        to = f" to {safe(answer.location, QUOTED)}" if answer.location else ""
        cure = "; a push follows no redirect: give the new URL with --to" if status in REDIRECTS else ""
        return NotDelivered(reason=f"the receiver answers HTTP {status}{to}{cure}")
    return NotDelivered(reason=f"the receiver answers HTTP {status}{_quoted(answer.text)}")


def _quoted(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f": {safe(line, QUOTED)}" if line else ""


class Endpoint:
    """Whether the receiver takes tasks now, as one worker knows it. Times are those of one clock."""

    def __init__(self) -> None:
        self.until = 0.0  # until when nothing is sent
        self.strikes = 0  # how many blocks in a row there were
        self._since = 0.0  # when the last block began: a message that was sent before tells nothing of its end
        self._trying = False  # whether the task that tries after a block is under way

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
        """Note that a message of `began` has ended, and the receiver is not busy; say whether this ended a block.

        A message from before the block ends none; nor does any, while the receiver has asked for more time.
        """
        if not self.strikes or began < self._since:
            return False
        self._trying = False
        if self.left(now):
            return False
        self.strikes = 0
        return True

    def given_up(self, began: float) -> None:
        """Note that a message of `began` was broken off; if it was the one that tries, the next one may."""
        if began >= self._since:
            self._trying = False

    def busy(self, began: float, now: float, asked: float | None) -> float | None:
        """Note that the receiver is busy, as it said to a message of `began`; `asked` is the time that it asks for.

        Gives the seconds of the block that this begins, if it begins one. A message from before the last block begins
        none, unless that block is over and the receiver asks for time.
        """
        is_new = began >= self._since or (not self.strikes and asked is not None)
        if is_new:
            self.strikes, self._since, self._trying = self.strikes + 1, now, False
        own = min(LONGEST, FIRST * 2 ** min(self.strikes - 1, 10))
        seconds = min(LONGEST_BLOCK, max(SHORTEST, own if asked is None else asked))
        if is_new or asked is not None:
            self.until = max(self.until, now + seconds)
        return seconds if is_new else None
