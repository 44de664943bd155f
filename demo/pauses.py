"""How long a busy server wants to be left alone: Retry-After, and what is done without one. Pure functions."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

BUSY = (429, 503)
"""The answers whose Retry-After counts."""


def retry_after(value: str, now: float, most: float) -> float | None:
    """Give the seconds that a Retry-After asks for, at most `most`; None when it says nothing that can be read.

    It is a number of seconds or an HTTP date (RFC 9110, 10.2.3); `now` is Unix time. A date that has passed is 0.
    """
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", value):
        return min(float(value), most)
    try:
        date = parsedate_to_datetime(value)
        # what has no zone is GMT, as every HTTP date
        at = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(0.0, at - now), most)


def growing(attempt: int, most: float, first: float = 1.0) -> float:
    """Give the seconds to wait after an attempt (from 1) if the server named none: doubled each time, up to `most`."""
    return min(first * 2.0 ** min(attempt - 1, 40), most)
