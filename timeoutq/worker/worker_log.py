"""The log lines of a worker: each carries its queue, its worker, and the task that it is about."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timeoutq.client import AsyncDriver
from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.words.text import safe

log = logging.getLogger("timeoutq.worker")

NAMED = 5  # how many tasks a line names at most


def named(leases: Sequence[Lease]) -> str:
    """Name the tasks of these leases: the first five, and how many more there are."""
    more = f" and {len(leases) - NAMED:,} more" * (len(leases) > NAMED)
    return ", ".join(safe(ascii(lease.task), 80) for lease in leases[:NAMED]) + more


class WorkerLog:
    """The log of one worker, or of one of its queues if it has several; logging never raises."""

    def __init__(self, queue: AsyncDriver, others: Sequence[str] = (), *, is_one_of_several: bool = False) -> None:
        self._queue = queue
        self.queue = ", ".join((queue.name, *others))
        self._is_one_of_several = is_one_of_several

    @property
    def worker(self) -> str:
        """The name of the worker and, if it has several queues, of the queue."""
        name = self._queue.worker
        return f"{name} (queue {self._queue.name})" if self._is_one_of_several else name

    def fields(self, lease: Lease | None = None, error: object = None) -> dict[str, object]:
        """Give the fields of a line, see `logs.JsonFormatter`."""
        fields: dict[str, object] = {"queue": self.queue, "worker": self._queue.worker}
        if lease is not None:
            fields |= {"task": lease.task, "attempt": lease.attempt}
        if error is not None:
            fields["error"] = str(error)
        return fields

    def say(
        self,
        level: int,
        message: str,
        *words: object,
        lease: Lease | None = None,
        error: object = None,
        more: Mapping[str, object] | None = None,
        **rest: Any,
    ) -> None:
        """Log a line; `lease`, `error` and `more` go into its fields, the rest is for `telling.say`."""
        telling.say(log, level, message, *words, fields={**self.fields(lease, error), **(more or {})}, **rest)

    def of_queue(self, level: int, message: str, *words: object, **rest: Any) -> None:
        """Log a line that begins with the queue."""
        self.say(level, f"queue %s: {message}", self.queue, *words, **rest)

    def of_task(self, level: int, lease: Lease, message: str, *words: object, **rest: Any) -> None:
        """Log a line that begins with the queue and the task of a lease."""
        self.of_queue(level, f"task %a {message}", lease.task, *words, lease=lease, **rest)

    def of_worker(self, level: int, message: str, *words: object, **rest: Any) -> None:
        """Log a line that begins with the worker."""
        self.say(level, f"worker %s {message}", self.worker, *words, **rest)

    def name_tasks(self, tasks: Iterable[tuple[Lease, str]], error: str) -> None:
        """Warn of what happened to tasks: one line for each, ten at most."""
        told: list[telling.Told] = [
            (lease.task, words, {"attempt": lease.attempt, "error": error}) for lease, words in tasks
        ]
        telling.name_tasks(log, self.queue, told, self.fields())
