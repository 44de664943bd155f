"""Which worker processes are started, told to stop, replaced and killed, and with which code their supervisor ends.

`supervisor.py` asks, and does what it is told: here are decisions, without any I/O and without a clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from timeoutq.words import exit_codes
from timeoutq.worker.processes.endings import (
    PATIENCE,
    Done,
    End,
    Ending,
    Order,
    Replace,
    Told,
    asked_for,
    judge,
    young_deaths,
)

LOOK_EVERY = 1.0
"""Seconds after which a supervisor looks at its processes though no signal has come."""


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
        self.due: list[float] = [now] * processes
        """When to start the missing processes: one moment for each process."""
        self._stopping_since: float | None = None
        self._kill_at: float | None = None
        self._young = 0
        self.code = exit_codes.DONE
        """With which code the supervisor ends, as far as is known now."""
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
        """Decide what follows the end of a process, and give an order for all others, if there is one.

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
