"""Decides which worker processes are started, told to stop, replaced and killed, and how their supervisor ends."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from timeoutq.words import exit_codes

YOUNG = 5.0  # a process that dies within this many seconds has died young
LONGEST_PAUSE = 2.0  # seconds: the longest pause before a process that died young is replaced
ECHO = 0.5  # two SIGTERM within this many seconds are one request that came twice: from systemd and through `sudo`, say
PATIENCE = 20.0  # seconds that a worker has, after its drain deadline, to give its tasks back and end
MOST_LEAVING = 20  # so many processes may finish their calls beside those that have taken their places
LOOK_EVERY = 1.0  # seconds after which a supervisor looks at its processes though no signal has come


class Told(IntEnum):
    """The reason that a worker process gives when it ends on purpose."""

    NOTHING = 0  # the process has not said anything: it still runs, or it died
    DRAINED = 1  # its queue is drained, and `burst` asked it to end then
    STOPPED = 2  # it was asked to end
    MAX_TASKS = 3  # it has run as many handlers as `max_tasks` allows
    HOPELESS = 4  # another process in its place would end in the same way: a bad handler, a wrong password
    WORN_OUT = 5  # a thread in it hangs
    LEAVES = 6  # it still runs, and will be worn out: another takes its place now


RUNS = (Told.NOTHING, Told.LEAVES)  # what a process has told that still works, or has died at it


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker process ended."""

    told: Told
    code: int  # its exit code; -9 means that signal 9 killed it
    lived: float  # seconds from its start to its end
    killed: bool = False  # whether the supervisor killed it, because it did not end
    replaced: bool = False  # whether another process has its place already

    @property
    def died(self) -> bool:
        """Whether the process ended without saying first why."""
        return self.told in RUNS

    @property
    def blames(self) -> bool:
        """Whether the tasks that were running count a crash: not if the supervisor killed the process."""
        return self.died and not self.killed

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.code >= 0:
            return f"exit code {self.code}" + (" without having drained" if self.code == 0 and self.died else "")
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:  # a realtime signal
            return f"killed by signal {-self.code}"


class Order(IntEnum):
    """An order of a supervisor: drain, or give all back at once; one byte on the lifeline of each process."""

    DRAIN = ord("d")
    NOW = ord("n")


@dataclass(slots=True)
class _Place:
    started: float
    kill_at: float = math.inf  # when to kill the process, because it has said that its work has ended, and still runs
    killed: bool = False
    replaced: bool = False


class Roster:
    """The processes of one supervisor, by their numbers. All moments are seconds of the same clock."""

    def __init__(self, processes: int, drain_deadline: float, now: float) -> None:
        """Prepare; `processes` are due at once, and each may take `drain_deadline` seconds for a drain."""
        self._drain_deadline = drain_deadline
        self._places: dict[int, _Place] = {}
        self.due: list[float] = [now] * processes  # when to start the missing processes: one moment for each process
        self._stopping_since: float | None = None
        self._kill_at = math.inf
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
        return min(now + LOOK_EVERY, self._kill_at, *self.due)

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

    def leaves(self, pid: int, now: float) -> None:
        """Have another process take the place of one that finishes its calls, which may last."""
        place = self._places[pid]
        if (
            not (place.replaced or self.is_stopping)
            and sum(one.replaced for one in self._places.values()) < MOST_LEAVING
        ):
            place.replaced = True
            self.due = sorted([*self.due, now])

    def heard(self, number: int, now: float) -> Order | None:
        """Give the order for all processes that a signal means; None for an echo of the first signal."""
        since = self._stopping_since
        if since is None and number != signal.SIGINT:
            order = Order.DRAIN
        elif since is not None and number != signal.SIGINT and now - since < ECHO:
            return None
        else:
            order = Order.NOW
        self._stop(order, now)
        return order

    def _stop(self, order: Order, now: float) -> None:
        self._stopping_since = now if self._stopping_since is None else self._stopping_since
        self.due.clear()
        self._kill_at = min(self._kill_at, now + PATIENCE + (self._drain_deadline if order is Order.DRAIN else 0.0))

    def overdue(self, now: float, told: Collection[int]) -> list[int]:
        """Give the processes that are to be killed now; `told` are those that have said why they end."""
        everybody = now >= self._kill_at
        if everybody:
            self._kill_at = math.inf
        found: list[int] = []
        for pid, place in self._places.items():
            if pid in told:
                place.kill_at = min(place.kill_at, now + PATIENCE)
            if everybody or (now >= place.kill_at and not place.killed):
                place.killed = True
                found.append(pid)
        return found

    def ending(self, pid: int, told: Told, code: int, now: float) -> Ending:
        """Take a process out that has ended with this exit code; say how it ended."""
        place = self._places.pop(pid)
        return Ending(told, code, now - place.started, place.killed, place.replaced)

    def ended(self, ending: Ending, words: str, now: float) -> Order | None:
        """Decide how to go on after the end of a process that said `words`; give an order for all others, if any."""
        # a process that ended on purpose with this code has a lifespan that raised an error when it was left
        left_badly = ending.told not in (*RUNS, Told.HOPELESS) and ending.code == exit_codes.DIED
        if left_badly or (self.is_stopping and (ending.died or ending.killed)):
            self.code = self.code or exit_codes.DIED
        # a process that lived longer, or ended on purpose, ends the row of those that died young
        self._young = self._young + 1 if ending.died and ending.lived < YOUNG else 0
        if ending.told is Told.HOPELESS:
            if self.code not in exit_codes.HOPELESS:
                self.code, self.words = ending.code, words
            if not self.is_stopping:
                self._stop(Order.DRAIN, now)
                return Order.DRAIN
        elif not (self.is_stopping or ending.replaced or ending.told is Told.DRAINED):
            pause = min(0.05 * 2 ** min(self._young, 6), LONGEST_PAUSE) if self._young else 0.0
            self.due = sorted([*self.due, now + pause])
        return None
