"""Which answers say that a server is busy, and how long to leave it alone if it names no time. Pure.

`timeoutq.words.retry.retry_after` reads the time that it names.
"""

from __future__ import annotations

BUSY = (429, 503)
"""The answers whose Retry-After counts."""


def growing(attempt: int, most: float, first: float = 1.0) -> float:
    """Give the seconds to wait after an attempt (from 1) if the server named none: doubled each time, up to `most`."""
    return min(first * 2.0 ** min(attempt - 1, 40), most)
