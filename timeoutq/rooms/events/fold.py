"""From the entries of an event log to the tasks in each state. Pure. Users call it; `tests/rig/log_walk.py` judges it.

The sets are those of the queue if the log tells of everything: it began when the queue had no tasks, its level was
"all" all the time, and nothing was trimmed. A queue with keep_done "compact" keeps no ids of done tasks: there, the log
and the queue do not say the same of these.
"""

from __future__ import annotations

from collections.abc import Iterable

from timeoutq.rooms.events.entry import Event
from timeoutq.words.model import State

NOWHERE = "-"
"""Stands in a move for no state."""


class Fold:
    """The tasks in each state, as the entries that were added so far tell it."""

    def __init__(self) -> None:
        self.states: dict[State, set[str]] = {state: set() for state in State}
        self._whole: dict[int | None, bool] = {}

    @property
    def is_whole(self) -> bool:
        """Whether the entries tell of all that has happened to the queue: then the sets are those of the queue."""
        return bool(self._whole) and all(self._whole.values())

    def add(self, *events: Event) -> None:
        """Add entries, in the order of the log; those of different shards may come in any order."""
        for event in events:
            if event.level is not None:
                self._begin(event)
            elif event.shard not in self._whole:
                self._whole[event.shard] = False
            for task, left, entered in event.each():
                if left in self.states:
                    self.states[State(left)].discard(task)
                if entered in self.states:
                    self.states[State(entered)].add(task)

    def _begin(self, event: Event) -> None:
        # a log begins, or goes on after moves that were not logged: it tells of all if the queue has no tasks now
        self._whole[event.shard] = event.level == "all" and event.tasks == 0
        if event.tasks == 0 and event.shard is None:
            for tasks in self.states.values():
                tasks.clear()

    def where(self, task: str) -> State | None:
        """Tell in which state a task is; None if it is in none."""
        return next((state for state, tasks in self.states.items() if task in tasks), None)


def fold(events: Iterable[Event]) -> Fold:
    """Fold entries of a log, from its beginning on, to the tasks in each state."""
    found = Fold()
    for event in events:
        found.add(event)
    return found
