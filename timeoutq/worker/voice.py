"""What a worker says in the log: each line carries its queue, its worker, and the task that it is about.

All files of this room speak through it, so that whoever listens to `timeoutq.worker` hears them all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from timeoutq.client import AsyncDriver
from timeoutq.words import telling
from timeoutq.words.model import Lease

log = logging.getLogger("timeoutq.worker")


class Voice:
    """The voice of one worker; speaking never raises."""

    def __init__(self, queue: AsyncDriver, others: Sequence[str] = (), *, is_one_of_several: bool = False) -> None:
        """Prepare; `others` are queues of which the voice tells, too.

        A worker with several queues has a voice for each of them, and one for all.
        """
        self._queue = queue
        self._others = others
        self._is_one_of_several = is_one_of_several

    @property
    def queue(self) -> str:
        """The name of the queue; of several, all names."""
        return ", ".join((self._queue.name, *self._others)) if self._others else self._queue.name

    @property
    def worker(self) -> str:
        """The name of the worker, and of which of its queues the voice tells, if there are several."""
        name = self._queue.worker
        return f"{name} (queue {self._queue.name})" if self._is_one_of_several else name

    @property
    def is_detailed(self) -> bool:
        """Whether somebody listens to lines of level DEBUG."""
        return log.isEnabledFor(logging.DEBUG)

    def fields(self, lease: Lease | None = None, error: object = None) -> dict[str, object]:
        """Give what a line of the log tells in fields of its own, see `logs.JsonFormatter`."""
        fields: dict[str, object] = {"queue": self.queue, "worker": self._queue.worker}
        if lease is not None:
            fields |= {"task": lease.task, "attempt": lease.attempt}
        if error is not None:
            fields["error"] = error if isinstance(error, str) else str(error)
        return fields

    def say(
        self,
        level: int,
        message: str,
        *words: object,
        lease: Lease | None = None,
        error: object = None,
        exc_info: BaseException | None = None,
        traceback: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Log a line; `lease`, `error` and `more` go into its fields."""
        fields = {**self.fields(lease, error), **(more or {})}
        telling.say(log, level, message, *words, exc_info=exc_info, fields=fields, traceback=traceback)

    def name_tasks(self, tasks: Iterable[tuple[Lease, str]], error: str) -> None:
        """Warn of what happened to the tasks of these leases: one line per task, ten at most."""
        told: list[telling.Told] = [
            (lease.task, words, {"attempt": lease.attempt, "error": error}) for lease, words in tasks
        ]
        telling.name_tasks(log, self.queue, told, self.fields())

    def tell_unconfirmed(self, leases: Iterable[Lease], why: str) -> None:
        """Warn that leases are given back though their handlers have ended, because their acks are not confirmed."""
        words = (
            f"is given back: its ack is not confirmed, because {why}. If the ack did not arrive, the handler runs "
            "again. Give the worker a longer drain deadline (drain_deadline=, --drain-deadline), or put less with one "
            "Ack(put=…)"
        )
        self.name_tasks([(lease, words) for lease in leases], why)
