"""For how long a worker leaves a queue to other workers, which can run the tasks that this worker cannot. No I/O.

In a deploy that rolls, old workers give back the calls of new functions, and a server gives each task to whoever asks
first. If most of the workers are old, most of the offers would be in vain. So a worker steps back when most of what a
queue gives to it is for others: then these others are the ones that ask.
"""

from __future__ import annotations

FIRST, LONGEST = 0.5, 8.0
"""Seconds for which a worker steps back the first time; each time in a row, twice as long, until this."""
FADES = 64
"""After so many tasks, all that were counted until then count half."""


class Yielding:
    """Counts what one queue gives to a worker, and says when the worker claims nothing from the queue."""

    def __init__(self) -> None:
        """Prepare; nothing has come yet."""
        self.until = 0.0
        """Until when the worker claims nothing, by the monotonic clock."""
        self._seconds = 0.0
        self._ended = 0
        self._ran = self._others = 0.0

    def pause(self, until: float) -> None:
        """Note that the handler wants nothing before this moment."""
        self.until = max(self.until, until)

    def gave_back(self, tasks: int, ended: int, now: float) -> float:
        """Note that tasks went back that other workers can run; `ended` is how many tasks the worker has ended in all.

        Gives the seconds for which the worker is to claim nothing, if such a time begins now, or else 0.
        """
        self._ran += ended - self._ended
        self._others += tasks
        self._ended = ended
        if now < self.until:
            return 0.0
        if self._others <= self._ran:
            self._seconds = 0.0
            if self._ran + self._others > FADES:
                self._ran, self._others = self._ran / 2, self._others / 2
            return 0.0
        self._ran = self._others = 0.0
        self._seconds = min(LONGEST, 2 * self._seconds or FIRST)
        self.until = now + self._seconds
        return self._seconds
