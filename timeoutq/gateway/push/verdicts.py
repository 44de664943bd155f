"""What an answer of the receiver means for the task: a table of statuses, and what is kept as the error. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.words.retry import GiveUp, Retry, retry_after
from timeoutq.words.text import safe

LONGEST_BLOCK = 3600.0
"""The longest time, in seconds, for which a receiver may ask with Retry-After; a longer one is cut."""
QUOTED = 200
"""How many characters of an answer are kept."""

GONE = 410
BUSY = frozenset({429, 502, 503, 504})
"""Not now: these say nothing about the task."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class NotDelivered(Retry):
    """A failed attempt: the retry policy decides when the task is sent again."""


class Gone(GiveUp):
    """The receiver wants no more of this task."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver has answered."""

    status: int
    retry_after: str = ""
    location: str = ""
    text: str = ""
    """How its body begins."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The receiver takes nothing now."""

    status: int
    seconds: float | None
    """For how long, if it says so."""


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
