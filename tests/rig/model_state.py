"""The state of the model of a queue, which its verbs, its batches and its hosts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Self

MEMORY_MS = 60_000
Pair = tuple[str, str]
"""A lease as a call names it: id and token; or a host, and a task of it."""
OPEN, DONE, LOST = 0, 1, 2


class Refused(Exception):
    """A batch cannot be put to, or sealed, so; the text is a part of what the server says."""


@dataclass(frozen=True, slots=True)
class Batch:
    state: str = "o"
    """o open, s sealed, e ended, b broken"""
    on: str = "-"
    callback: str = ""
    tasks: tuple[tuple[str, int], ...] = ()
    """All tasks in their order, and how each has ended."""

    @property
    def outstanding(self) -> list[str]:
        return [task for task, end in self.tasks if end == OPEN]

    @property
    def is_broken(self) -> bool:
        """Whether a task has ended that is not done, and the callback wants all of them done."""
        return self.on == "d" and any(end == LOST for _, end in self.tasks)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one host; None stands for the queue's own."""

    delay: int | None = None
    per_host: int | None = None
    budget: int | None = None
    until: int = 0
    flag: str = "-"
    """b blocked, x banned"""


class QueueState:
    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.run = "run1"
        self.todos: set[str] = set()
        self.in_progress: set[str] = set()
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.scheduled: dict[str, int] = {}
        self.leases: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.locks: dict[str, tuple[str, int]] = {}
        self.dropped: set[tuple[str, int]] = set()
        """Tokens and ends of locks that were over when somebody looked: they do not come back with the clock."""
        self.runtime: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.crashes: dict[str, int] = {}
        self.errors: set[str] = set()
        self.traces: dict[str, str] = {}
        self.releases: dict[str, int] = {}
        self.spent = 0
        """How many tasks were released too often."""
        self.payload: dict[str, Any] = {}
        self.marks: dict[str, tuple[int, Any]] = {}
        """Tasks in progress that run once more: with which priority and payload; no payload keeps the one there is."""
        self.cancels: dict[str, str] = {}
        """Of each task in progress that somebody has cancelled: who has."""
        self.progress: set[str] = set()
        self.done_until: dict[str, int] = {}
        # what only few calls read, which the explorer does not make: `key` leaves it out
        self.error_at: dict[str, int] = {}
        self.unlogged = 0
        """How many runs ended by a crash after the task was cancelled: the log of errors has no line for these."""
        self.lasted = 0
        """How many tasks stayed after their acks on a queue that does not keep done tasks, by none of its counters."""
        self.calls: dict[str, int] = {}
        self.counters: Counter[str] = Counter()
        self.fence = 0
        self.lease_ms = 0
        self.max_crashes = 5
        self.known_run: str | None = None
        self.grace_until = 0
        self.paused = False
        self.keeps_done = True
        # who is woken: nothing in the model hangs on it, and so `key` leaves it out
        self.exists = False
        """Whether anything was put or set: before that, no cleaner says when it looks again."""
        self.wake_at = 0
        """By when every cleaner looks again; 0 while none has said so."""
        self.alarm: int | None = None
        """The time that the last alarm told the cleaners."""
        self.bell = False
        self.batches: dict[str, Batch] = {}
        self.batch_of: dict[str, tuple[str, ...]] = {}
        """Of each task that has not ended since it joined a batch: the names of its batches."""
        # hosts
        self.usual: tuple[int, int] | None = None
        """Delay, ms, and visits of a host at once; None: the queue is not polite."""
        self.was_polite = False
        self.ending = False
        self.converting = ""
        self.waiting: set[str] = set()
        self.lanes: dict[Pair, int] = {}
        self.places: set[Pair] = set()
        """Host and task: what counts as a visit of the host."""
        self.turns: dict[str, float] = {}
        self.visits: dict[str, int] = {}
        self.broken: dict[str, int] = {}
        self.rests: dict[str, int] = {}
        """Until when a host rests; of '', since when the queue is polite, if it had visits before."""
        self.rules: dict[str, Rules] = {}
        self.groups: dict[str, str] = {}
        self.priorities: dict[str, int] = {}
        self.blockings: dict[str, int] = {}
        self._met: list[str] = []
        self._rested: dict[str, int] = {}

    def copy(self) -> Self:
        other = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            other.__dict__[name] = value.copy() if isinstance(value, set | dict | list) else value
        return other

    def key(self) -> Hashable:
        return (
            *(self.now, self.run, self.known_run, self.grace_until, self.fence, self.lease_ms, self.paused),
            *(self.usual, self.ending, self.converting),
            *(
                frozenset(each)
                for each in (
                    self.todos, self.in_progress, self.done, self.failed, self.errors, self.progress, self.waiting,
                    self.places,
                )
            ),
            *(
                frozenset(each.items())
                for each in (
                    self.scheduled, self.leases, self.owners, self.locks, self.runtime, self.attempts, self.crashes,
                    self.calls, self.counters, self.traces, self.releases, self.cancels, self.done_until, self.marks,
                    self.payload, self.batches, self.batch_of, self.lanes, self.turns, self.visits, self.rests,
                    self.groups, self.priorities, self.blockings, self.rules,
                )
            ),
        )  # fmt: skip

    def state(self, task: str) -> str | None:
        """Say where a task is, as a letter."""
        return next((letter for letter, ids in self._states() if task in ids), None)

    def _states(self) -> Iterable[tuple[str, Collection[str]]]:
        ended = ("d", self.done), ("f", self.failed)
        return ("t", self.todos), ("p", self.in_progress), *ended, ("s", self.scheduled), ("w", self.waiting)

    def _ring(self) -> None:
        self.bell = True

    def _rouse(self, at: int, wake_at: int | None = None) -> None:
        """Wake the cleaners when they would look too late, or by a clock that was stepped forward since."""
        known = self.wake_at if wake_at is None else wake_at
        if at < known or known <= self.now:
            self.wake_at = self.alarm = at

    def was_called(self, call: str) -> bool:
        """Say whether a call of the last minute had this id."""
        return self.calls.get(call, -MEMORY_MS) > self.now - MEMORY_MS

    def _remember(self, call: str) -> None:
        self.calls = {id: at for id, at in self.calls.items() if at > self.now - MEMORY_MS}
        self.calls[call] = self.now

    def _keep_error(self, task: str, trace: str = "") -> None:
        self.errors.add(task)
        self.error_at[task] = self.now
        self.traces.pop(task, None)
        if trace:
            self.traces[task] = trace

    def holds(self, pair: Pair) -> bool:
        return self.owners.get(pair[0]) == pair[1]
