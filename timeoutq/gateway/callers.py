"""Who sends a request, and the rights of this caller."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from timeoutq.gateway.problems import Problem
from timeoutq.gateway.tokens import SCOPES


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who sends requests: the holder of a token, or anybody."""

    name: str
    """Begins the tokens of this caller's leases, with a slash behind it. Two callers with one name can end each
    other's leases: give each its own name."""
    allow: Collection[str] = SCOPES
    queues: Sequence[str] = ("*",)  # names of queues that this is about; `*` in a name stands for any text
    read_only: bool = False  # whether the gateway lets nobody write

    def may(self, needs: str, queue: str | None = None) -> bool:
        """Say whether the caller may do this, on this queue or at all."""
        if needs not in self.allow or (self.read_only and needs != "look"):
            return False
        return queue is None or any(glob == "*" or fnmatchcase(queue, glob) for glob in self.queues)

    def require(self, needs: str, queue: str | None = None) -> None:
        if self.may(needs, queue):
            return
        if self.read_only and needs != "look":
            raise Problem(403, "forbidden", f"this gateway is read-only, and lets nobody {needs}: ask one that is not")
        where = "" if queue is None else f" on queue {queue:.80}"
        raise Problem(403, "forbidden", f"{self.name} may not {needs}{where}: use a token that allows it")


NOBODY = Caller("nobody", allow=(), queues=())  # the caller of a path that needs no token
