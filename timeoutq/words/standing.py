"""The standing of a host: what decides when the host is visited next, as one table in the order of precedence."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import Enum

from timeoutq.words.model import HostInfo


class Standing(Enum):
    """One thing that may hold of a host. Several may hold at once: `standing` gives the first of them."""

    BANNED = "banned"
    """The host is never visited again."""
    BLOCKED = "blocked"
    """The host is not visited before `blocked_until`."""
    FULL = "full"
    """All `per_host` places of the host are taken: its next visit begins when one of them ends."""
    TURN = "turn"
    """The host has a turn, now or later."""
    USED_UP = "used up"
    """The visits that were made and those under way are the whole budget of the host."""
    RESTING = "resting"
    """The delay after the last visit of the host has not passed yet."""
    FREE = "free"
    """None of the others holds, or none of those that the caller tells of."""


HOLDS: Mapping[Standing, Callable[[HostInfo, float], bool]] = {
    Standing.BANNED: lambda host, now: host.banned is not None,
    Standing.BLOCKED: lambda host, now: host.blocked_until is not None and host.blocked_until > now,
    Standing.FULL: lambda host, now: host.busy >= host.per_host,
    Standing.TURN: lambda host, now: host.turn is not None,
    Standing.USED_UP: lambda host, now: host.used_up,
    Standing.RESTING: lambda host, now: host.next_allowed is not None and host.next_allowed > now,
    Standing.FREE: lambda host, now: True,
}
"""When each standing holds. The order is that of precedence: what has to end before the others matter comes first."""


def standing(host: HostInfo, now: float, told: Container[Standing] = HOLDS) -> Standing:
    """Give the first standing that holds, of those in `told`; `now` is a time of the server, in Unix seconds."""
    return next((each for each, holds in HOLDS.items() if each in told and holds(host, now)), Standing.FREE)
