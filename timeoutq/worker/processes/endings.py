"""What the end of a worker process means, and what a signal asks for: decisions, without any I/O.

`supervisor.py` calls it. A process that ends on purpose says so first (`Told`, in the memory that it shares with its
parent). A process that ends without saying so has died, whatever its exit code is.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum

from timeoutq.words import exit_codes

YOUNG = 5.0
"""A process that dies within this many seconds has died young."""
LONGEST_PAUSE = 2.0
"""Seconds: the longest pause before a process that died young is replaced."""
ECHO = 0.5
"""Two SIGTERM within this many seconds are one request that came twice: from systemd and through `sudo`, say."""
PATIENCE = 20.0
"""Seconds that a worker has, after its drain deadline, to give its tasks back and end."""


class Told(IntEnum):
    """What a worker process says when it ends on purpose."""

    NOTHING = 0
    """The process has not said anything: it still runs, or it died."""
    DRAINED = 1
    """Its queue is drained, and `burst` asked it to end then."""
    STOPPED = 2
    """It was asked to end."""
    MAX_TASKS = 3
    """It has run as many handlers as `max_tasks` allows."""
    HOPELESS = 4
    """Another process in its place would end in the same way: a bad handler, a wrong password."""
    WORN_OUT = 5
    """A thread in it hangs."""


_ON_PURPOSE = (Told.DRAINED, Told.STOPPED, Told.MAX_TASKS, Told.WORN_OUT)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker process ended."""

    told: Told
    code: int
    """Its exit code; -9 means that signal 9 killed it."""
    lived: float
    """Seconds from its start to its end."""
    killed: bool = False
    """Whether the supervisor killed it, because it did not end."""

    @property
    def died(self) -> bool:
        """Whether the process ended without saying first why."""
        return self.told is Told.NOTHING

    @property
    def blames(self) -> bool:
        """Whether the tasks that were running count a crash: not if the supervisor killed the process."""
        return self.died and not self.killed

    @property
    def left_badly(self) -> bool:
        """Whether the process ended on purpose, but its lifespan raised an error when it was left."""
        return self.told in _ON_PURPOSE and self.code == exit_codes.DIED

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
    """Start another process in its place, after `pause` seconds."""

    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """Start no process in its place; `code` is this process's part in the exit code of the supervisor."""

    code: int = exit_codes.DONE


@dataclass(frozen=True, slots=True)
class End:
    """Stop the other processes, and end with this code."""

    code: int


def judge(ending: Ending, *, stopping: bool, young: int) -> Replace | Done | End:
    """Decide what follows the end of a process; `young` processes in a row, this one included, have died young."""
    if ending.told is Told.HOPELESS:
        return End(ending.code)
    if stopping:
        return Done(exit_codes.DIED if ending.died or ending.killed else exit_codes.DONE)
    if ending.told is Told.DRAINED:
        return Done()
    if not ending.died:
        return Replace()
    return Replace(min(0.05 * 2 ** min(young, 6), LONGEST_PAUSE) if young else 0.0)


def young_deaths(ending: Ending, before: int) -> int:
    """Count the processes in a row that died young; a process that lived longer or ended on purpose ends the row."""
    return before + 1 if ending.died and ending.lived < YOUNG else 0


class Order(IntEnum):
    """What a supervisor tells its worker processes: one byte on the lifeline of each process."""

    DRAIN = ord("d")
    """Claim no more, finish what runs."""
    NOW = ord("n")
    """Give everything back at once."""


def asked_for(number: int, stopping_for: float | None) -> Order | None:
    """Say what a signal asks for; None means an echo, which asks for nothing.

    `stopping_for` is how many seconds ago the first signal came; None if this signal is the first.
    """
    if number == signal.SIGINT:
        return Order.NOW
    if stopping_for is None:
        return Order.DRAIN
    return None if stopping_for < ECHO else Order.NOW
