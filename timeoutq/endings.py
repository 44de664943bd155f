"""What the end of a worker process means, and what a signal asks for: decisions, without any I/O.

`supervisor.py` asks. A process that ends on purpose says so first (`Told`, in the memory that it shares with its
parent); one that ends without a word has died, whatever its exit code is.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum

from timeoutq import exit_codes

YOUNG = 5.0
"""A process that dies within so many seconds has died young."""
LONGEST_PAUSE = 2.0
ECHO = 0.5
"""Two SIGTERM within so many seconds are one request that came by two ways: from systemd and through `sudo`, say."""
PATIENCE = 20.0
"""A worker needs no more seconds than this, beyond its drain deadline, to give its tasks back and end."""


class Told(IntEnum):
    """What a worker process says when it ends on purpose."""

    NOTHING = 0
    """It has not said anything: it runs, or it died."""
    DRAINED = 1
    """Its queue is drained, and it was to end then."""
    STOPPED = 2
    """It was asked to end."""
    MAX_TASKS = 3
    """It has run as many handlers as it was to run."""
    HOPELESS = 4
    """Another process in its place would end in the same way: a bad handler, a wrong password."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker process ended."""

    told: Told
    code: int
    """Its exit code; -9 means: killed by signal 9."""
    lived: float
    """Seconds from its start to its end."""

    @property
    def died(self) -> bool:
        """Whether it ended without saying so before."""
        return self.told is Told.NOTHING

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.code >= 0:
            return f"exit code {self.code}" + (" without having drained" if self.code == 0 and self.died else "")
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:  # a realtime signal
            return f"killed by signal {-self.code}"


@dataclass(frozen=True, slots=True)
class Replace:
    """Start another process in its place, after so many seconds."""

    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """Start none in its place; `code` is what the supervisor ends with for its part."""

    code: int = exit_codes.DONE


@dataclass(frozen=True, slots=True)
class End:
    """Stop the other processes, and end with this code."""

    code: int


def judge(ending: Ending, *, stopping: bool, young: int) -> Replace | Done | End:
    """Decide what follows the end of a process, when `young` processes in a row have died young, this one included."""
    if ending.told is Told.HOPELESS:
        return End(ending.code)
    if stopping:
        return Done(exit_codes.DIED if ending.died else exit_codes.DONE)
    if ending.told is Told.DRAINED:
        return Done()
    if not ending.died:
        return Replace()
    return Replace(min(0.05 * 2 ** min(young, 6), LONGEST_PAUSE) if young else 0.0)


def young_deaths(ending: Ending, before: int) -> int:
    """Count the processes in a row that died young; one that lived longer, or ended on purpose, begins a new row."""
    return before + 1 if ending.died and ending.lived < YOUNG else 0


class Order(IntEnum):
    """What a supervisor tells its worker processes: a byte on the lifeline of each."""

    DRAIN = ord("d")
    """Claim no more, finish what runs."""
    NOW = ord("n")
    """Give everything back at once."""


def asked_for(number: int, stopping_for: float | None) -> Order | None:
    """Say what a signal asks for, so many seconds after the first one (None: it is the first); None for an echo."""
    if number == signal.SIGINT:
        return Order.NOW
    if stopping_for is None:
        return Order.DRAIN
    return None if stopping_for < ECHO else Order.NOW
