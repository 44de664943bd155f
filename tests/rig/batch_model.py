"""The batches of a queue as a model: what of each batch has ended, and when its callback becomes ready."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.rig.model_state import DONE, LOST, OPEN, Batch, QueueState, Refused

WAITS = 253_370_764_800_000
"""When the callback of a batch is due that has not ended, ms."""


class BatchModel(QueueState):
    def _set_aside(self, task: str) -> None:
        """Put a callback, to be scheduled for a time that never comes."""
        raise NotImplementedError

    def _found(self, task: str) -> str | None:
        """Say what a put finds: the state of a task, or b for a callback that waits, and that no put changes."""
        return "b" if self.scheduled.get(task) == WAITS else self.state(task)

    # ---- tasks join, and end

    def _may_join(self, name: str, ids: Iterable[str]) -> None:
        one = self.batches.get(name, Batch())
        if one.state != "o" and set(ids) - dict(one.tasks).keys():
            raise Refused("is sealed, and takes no more tasks")

    def _join(self, name: str, ids: Sequence[str]) -> None:
        """These tasks are in the queue, and become tasks of a batch."""
        one = self.batches.get(name, Batch())
        for task in ids:
            if task not in dict(one.tasks):
                end = {"d": DONE, "f": LOST, None: LOST}.get(self.state(task), OPEN)
                one = replace(one, tasks=(*one.tasks, (task, end)))
                if end == OPEN:
                    self.batch_of[task] = (*self.batch_of.get(task, ()), name)
        self.batches[name] = one

    def _tell_ended(self, ids: Sequence[str], *, well: bool = False) -> None:
        """These tasks have ended, `well` if they are done: their batches count them."""
        of = {task: self.batch_of.pop(task) for task in dict.fromkeys(ids) if task in self.batch_of}
        broken: list[str] = []
        for name in dict.fromkeys(name for names in of.values() for name in names):
            one = self.batches[name]
            ended = {task for task, names in of.items() if name in names}
            tasks = tuple((task, (LOST, DONE)[well] if task in ended else end) for task, end in one.tasks)
            self.batches[name] = replace(one, tasks=tasks)
            broken += self._close(name)
        if broken:
            self._tell_ended(broken)

    def _close(self, name: str) -> list[str]:
        """If a batch is sealed and all of its tasks have ended, end it; give the callback if it went to failed."""
        one = self.batches[name]
        if one.state != "s" or one.outstanding:
            return []
        self.batches[name] = replace(one, state="b" if one.is_broken else "e")
        if self.scheduled.get(one.callback) != WAITS:
            return []  # there is none, or somebody has moved it
        if not one.is_broken:
            self.scheduled[one.callback] = self.now
            self._rouse(self.now)
            return []
        del self.scheduled[one.callback]
        self.failed.add(one.callback)
        self._keep_error(one.callback)
        self.counters["gave_up"] += 1
        self.spent += 1
        return [one.callback]

    def seal(self, name: str, callback: str, on: str) -> None:
        """Say that a batch takes no more tasks. Raises `Refused`."""
        one = self.batches.get(name, Batch())
        if one.state != "o":
            if (one.callback, one.on) != (callback, on):
                raise Refused("is sealed already, with another callback")
            return
        if callback in dict(one.tasks):
            raise Refused("and cannot be its callback, too")
        if callback and self.state(callback) not in (None, "d", "f"):
            raise Refused("is in the queue already")
        if callback:
            self._set_aside(callback)
        self.batches[name] = replace(one, state="s", on=on, callback=callback)
        self.exists = True
        broken = self._close(name)
        if broken:
            self._tell_ended(broken)

    # ---- what must hold

    def wrong_batches(self) -> list[str]:
        """Name what batches and their tasks do not agree on."""
        found: list[str] = []
        for name, one in self.batches.items():
            open_ones = set(one.outstanding)
            known = {task for task, names in self.batch_of.items() if name in names}
            if open_ones != known:
                found.append(f"batch {name} and its tasks differ: {open_ones ^ known}")
            over = {task for task in open_ones if self.state(task) in (None, "d", "f")}
            if over:
                found.append(f"tasks of batch {name} have ended, and it has not counted them: {over}")
            if one.state == "s" and not open_ones:
                found.append(f"batch {name} is not over, and has no task left")
        return found
