"""Decides which worker processes are started, told to stop, replaced and killed, and how their supervisor ends.

Decisions without I/O and without a clock; `supervisor.py` carries them out. A process that ends on purpose says so
first (`Told`, in the memory that it shares with its parent). One that ends without saying so has died, whatever its
exit code is.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from timeoutq.words import exit_codes

YOUNG = 5.0  # a process that dies within this many seconds has died young
LONGEST_PAUSE = 2.0  # seconds: the longest pause before a process that died young is replaced
ECHO = 0.5  # two SIGTERM within this many seconds are one request that came twice: from systemd and through `sudo`, say
PATIENCE = 20.0  # seconds that a worker has, after its drain deadline, to give its tasks back and end
LOOK_EVERY = 1.0  # seconds after which a supervisor looks at its processes though no signal has come


class Told(IntEnum):
    """The reason that a worker process gives when it ends on purpose."""

    NOTHING = 0  # the process has not said anything: it still runs, or it died
    DRAINED = 1  # its queue is drained, and `burst` asked it to end then
    STOPPED = 2  # it was asked to end
    MAX_TASKS = 3  # it has run as many handlers as `max_tasks` allows
    HOPELESS = 4  # another process in its place would end in the same way: a bad handler, a wrong password
    WORN_OUT = 5  # a thread in it hangs


_ON_PURPOSE = (Told.DRAINED, Told.STOPPED, Told.MAX_TASKS, Told.WORN_OUT)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker process ended."""

    told: Told
    code: int  # its exit code; -9 means that signal 9 killed it
    lived: float  # seconds from its start to its end
    killed: bool = False  # whether the supervisor killed it, because it did not end

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
    """Decide how to go on after the end of a process; `young` in a row, this one included, have died young."""
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
    """An order of a supervisor: drain, or give all back at once; one byte on the lifeline of each process."""

    DRAIN = ord("d")
    NOW = ord("n")


def asked_for(number: int, stopping_for: float | None) -> Order | None:
    """Give the order that a signal means; None for an echo, which means nothing.

    `stopping_for` is how many seconds ago the first signal came; None if this signal is the first.
    """
    if number == signal.SIGINT:
        return Order.NOW
    if stopping_for is None:
        return Order.DRAIN
    return None if stopping_for < ECHO else Order.NOW


@dataclass(slots=True)
class _Place:
    started: float
    kill_at: float | None = None
    """When to kill the process, because it has said that its work has ended, and it still runs."""
    killed: bool = False


class Roster:
    """The processes of one supervisor, by their numbers. All moments are seconds of the same clock."""

    def __init__(self, processes: int, drain_deadline: float, now: float) -> None:
        """Prepare; `processes` are due at once, and each may take `drain_deadline` seconds for a drain."""
        self._drain_deadline = drain_deadline
        self._places: dict[int, _Place] = {}
        self.due: list[float] = [now] * processes  # when to start the missing processes: one moment for each process
        self._stopping_since: float | None = None
        self._kill_at: float | None = None
        self._young = 0
        self.code = exit_codes.DONE  # with which code the supervisor ends, as far as is known now
        self.words = ""

    @property
    def is_over(self) -> bool:
        """Whether no process is left, and none is to be started."""
        return not (self._places or self.due)

    @property
    def is_stopping(self) -> bool:
        """Whether the processes were asked to stop."""
        return self._stopping_since is not None

    def next_look(self, now: float) -> float:
        """Give the moment at which something may have to be done, even if no signal comes."""
        times = [now + LOOK_EVERY, *self.due]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return min(times)

    # ---- starting

    def is_due(self, now: float) -> bool:
        """Say whether a process is to be started now."""
        return bool(self.due) and self.due[0] <= now

    def started(self, pid: int, now: float) -> None:
        """Note that the process was started that was due first."""
        self._places[pid] = _Place(now)
        del self.due[0]

    def could_not_start(self, now: float) -> None:
        """Note that the process that was due first could not be started: it is due again in a moment."""
        self.due[0] = now + LOOK_EVERY
        self.due.sort()

    # ---- stopping

    def heard(self, number: int, now: float) -> Order | None:
        """Give the order for all processes that a signal means; None if it means nothing."""
        order = asked_for(number, None if self._stopping_since is None else now - self._stopping_since)
        if order is not None:
            self._stop(order, now)
        return order

    def _stop(self, order: Order, now: float) -> None:
        if self._stopping_since is None:
            self._stopping_since = now
        self.due.clear()
        patience = PATIENCE + (self._drain_deadline if order is Order.DRAIN else 0.0)
        self._kill_at = min(self._kill_at or now + patience, now + patience)

    def overdue(self, now: float, told: Collection[int]) -> list[int]:
        """Give the processes that are to be killed now; `told` are those that have said why they end."""
        everybody = self._kill_at is not None and now >= self._kill_at
        if everybody:
            self._kill_at = None
        found: list[int] = []
        for pid, place in self._places.items():
            if place.kill_at is None and pid in told:
                place.kill_at = now + PATIENCE
            if not everybody and (place.kill_at is None or now < place.kill_at or place.killed):
                continue
            place.killed = True
            found.append(pid)
        return found

    # ---- ends

    def ending(self, pid: int, told: Told, code: int, now: float) -> Ending:
        """Take a process out that has ended with this exit code; say how it ended."""
        place = self._places.pop(pid)
        return Ending(told, code, now - place.started, place.killed)

    def ended(self, ending: Ending, words: str, now: float) -> Order | None:
        """Decide how to go on after the end of a process, and give an order for all others, if there is one.

        `words` are the last words of the process, with which the supervisor ends if its end is hopeless.
        """
        if ending.left_badly:
            self.code = self.code or exit_codes.DIED
        self._young = young_deaths(ending, self._young)
        match judge(ending, stopping=self._stopping_since is not None, young=self._young):
            case Replace(pause):
                self.due.append(now + pause)
                self.due.sort()
            case Done(one):
                self.code = self.code or one
            case End(one):
                if self.code not in exit_codes.HOPELESS:
                    self.code, self.words = one, words
                if self._stopping_since is None:
                    self._stop(Order.DRAIN, now)
                    return Order.DRAIN
        return None
