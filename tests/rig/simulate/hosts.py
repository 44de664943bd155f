"""What a simulation knows of the hosts of a polite queue: when each was visited, and when its next visit may begin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Host:
    """One host. All times are milliseconds of the server's clock."""

    name: str
    delay: int
    per_host: int
    visits: int = 0
    """The visits under way."""
    rests_until: int = 0
    """The end of the pause after its last visit."""
    blocked_until: int = 0

    def is_open(self, now: int) -> bool:
        return self.visits < self.per_host and now >= max(self.rests_until, self.blocked_until)

    def begins(self, now: int) -> str:
        """Note a visit that begins; give what is wrong with it, or nothing."""
        self.visits += 1
        if self.visits > self.per_host:
            return f"{self.name} has {self.visits} visits at once, and may have {self.per_host}"
        if now < self.blocked_until:
            return f"{self.name} is visited, and is blocked for {self.blocked_until - now} ms more"
        if now < self.rests_until:
            return f"{self.name} is visited {self.rests_until - now} ms before its pause of {self.delay} ms ends"
        return ""

    def ends(self, now: int) -> None:
        """Note a visit that ends: a pause begins."""
        self.visits -= 1
        if self.delay:
            self.rests_until = now + self.delay

    def block(self, until: int) -> None:
        """Note that nobody visits it before a time."""
        self.blocked_until = max(self.blocked_until, until)

    def rule(self, name: str, value: str, now: int) -> None:
        """Note a rule, in the words of the call."""
        match name:
            case "delay":
                self.delay = int(value)
                self.rests_until = min(self.rests_until, now + self.delay)
            case "per_host":
                self.per_host = int(value)
            case "block":
                self.blocked_until = now + int(value)
            case "unblock":
                self.blocked_until = 0
            case _:
                pass
