"""What the benchmark speaks of: figures, their targets, and how much of everything is done in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Readings = Mapping[str, float | None]
"""Names of figures and what was read; None where this machine or server cannot tell."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure has to reach: its ratio to the limit, its value, or its value above the limit."""

    kind: Literal["ratio", "value", "above"]
    sign: Literal["≥", "≤"]
    bound: float
    unless: tuple[str, float] | None = None
    """Another figure, and from where on it excuses this one."""

    def reached(self, found: float) -> bool:
        """Say whether a ratio, a value or a difference reaches it."""
        return found >= self.bound if self.sign == "≥" else found <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    about: str
    unit: str
    limit: str | None = None
    """The figure that it is set beside."""
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything is done in one round."""

    trips: int = 3000
    """Exchanges of one command each."""
    bulk: int = 100_000
    """Ids that are put in thousands."""
    drained: int = 60_000
    """Tasks that are claimed and acked in hundreds."""
    backlog: int = 500_000
    """Tasks that are ready whenever something claims: a large set is dearer than a small one, for everybody."""
    window: float = 2.0
    """For how long workers are watched, seconds."""
    paced: int = 300
    paced_gap: float = 0.01
    cold: int = 12
    cold_gap: float = 1.0
    scheduled: int = 1000
    scheduled_over: float = 5.0
    burst: int = 1_000_000
    kills: int = 3
    killed: int = 20
    """Tasks that a killed worker holds."""
    idle: float = 10.0
    leases: Sequence[int] = (1_000, 100_000, 1_000_000)
    rounds_of_requeue: int = 200
    weighed: int = 100_000
    grown: Sequence[int] = (10_000, 1_000_000, 10_000_000)
    cycles: int = 500
    starts: int = 5
    """How often an interpreter is started."""
    polite: tuple[int, int] = (1000, 150)
    """Hosts of a polite queue, and tasks of each."""
    hosts: Sequence[int] = (10, 1_000, 1_000_000)
    fair: tuple[int, int, int] = (200_000, 200, 50)
    """Tasks of one huge host; small hosts beside it, and tasks of each."""
    pauses: tuple[int, int, int, int] = (500_000, 100_000, 300_000, 6_000)
    """Tasks of a huge host; small hosts, of two tasks each; leases; and how many of the huge host are held."""
    handlers: int = 160
    delay: float = 0.2
    """The longest delay of a round trip, seconds."""
    work: float = 0.22
    """The longest work of one task, seconds."""
    worked: int = 10_000
    """Tasks of the run behind delays."""
    seen: int = 10_000_000
    """Done tasks that are kept as fingerprints, and as ids."""


FULL = Sizes()
QUICK = replace(
    FULL,
    trips=1000, bulk=50_000, drained=30_000, backlog=250_000, window=1.0,
    paced=100, cold=4, scheduled=300, scheduled_over=1.5, kills=1, idle=3.0, leases=(1_000, 10_000, 100_000),
    weighed=20_000, starts=3, worked=2000, polite=(500, 80), hosts=(10, 1_000, 20_000), fair=(20_000, 50, 20),
    seen=1_000_000,
)  # fmt: skip
