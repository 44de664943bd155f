"""Writes the package's log lines, so that none can end a worker; of lines that name tasks, ten at most.

A handler of the log may raise, and so may an error of a handler when it is asked for its text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar

from timeoutq.words.model import Lease
from timeoutq.words.text import safe

NAMED = 10
"""How many tasks one event names at most."""

running: ContextVar[tuple[Mapping[str, object], Lease] | None] = ContextVar("timeoutq.running", default=None)
"""In a handler, and in what it starts: the fields of its worker, and its lease. `logs.JsonFormatter` reads it."""

Told = tuple[str, str, Mapping[str, object]]
"""A task, what happened to the task, and what is known of it in fields."""


def say(
    log: logging.Logger,
    level: int,
    message: str,
    *words: object,
    exc_info: BaseException | None = None,
    fields: Mapping[str, object] | None = None,
    traceback: str | None = None,
) -> None:
    """Log a line; never raises."""
    with suppress(BaseException):
        if traceback is None or not log.isEnabledFor(level):
            log.log(level, message, *words, exc_info=exc_info, extra=fields)
            return
        extra = {**(fields or {}), "traceback": traceback}
        record = log.makeRecord(log.name, level, __file__, 0, message, words, None, "say", extra)
        record.exc_text = "\n".join(f"    {safe(line)}" for line in traceback.splitlines())
        log.handle(record)


def name_tasks(
    log: logging.Logger, queue: str, tasks: Sequence[Told], fields: Mapping[str, object], total: int | None = None
) -> None:
    """Warn of what happened to tasks of a queue: one line per task, at most ten, and a line that counts the others."""
    for task, what, own in tasks[:NAMED]:
        say(
            log, logging.WARNING, "queue %s: task %a %s", queue, task, what,
            fields={"queue": queue, **fields, "task": task, **own},
        )  # fmt: skip
    more = (len(tasks) if total is None else total) - min(len(tasks), NAMED)
    if more > 0:
        words = "1 more task like these" if more == 1 else f"{more:,} more tasks like these"
        say(log, logging.WARNING, "queue %s: and %s", queue, words, fields={"queue": queue, **fields})
