"""What a command logs, and how its log lines look: one event, one line of text that is safe to read."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Annotated, NoReturn

from timeoutq.cli.saying import stop
from timeoutq.words import exit_codes, telling
from timeoutq.words.arguments import error_words, shown
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.text import safe

log = logging.getLogger(__name__)

MOST_SHOWN = 1000  # characters of a log call whose arguments do not fit its text, and of these arguments

Failed = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


@dataclass(frozen=True)
class Log:
    log_level: Annotated[str, "debug, info, warning or error."] = "info"
    log_json: Annotated[bool, "Log lines as JSON, with fields for queue, task and error."] = False

    def begin(self) -> None:
        """Send log lines to stderr, from this level on. Raises `InvalidInput` for an unknown level."""
        level = logging.getLevelNamesMapping().get(self.log_level.upper())
        if level is None:
            raise InvalidInput(f"--log-level {self.log_level!r} is not one of debug, info, warning, error")
        handler = logging.StreamHandler()
        plain = SafeFormatter("%(asctime)s %(levelname)-7s %(message)s")
        handler.setFormatter(JsonFormatter() if self.log_json else plain)
        logging.basicConfig(level=level, handlers=[handler], force=True)
        # an error that nobody catches is a line like the others
        sys.excepthook = lambda _kind, error, _trace: _tell_uncaught("ended by an error", error)
        threading.excepthook = _tell_of_thread
        for loud in ("httpx", "httpcore", "asyncio"):
            logging.getLogger(loud).setLevel(max(level, logging.WARNING))

    def end(self, code: int, words: str) -> NoReturn:
        """End the command, and say why: in a line of JSON, if the log is in JSON."""
        if self.log_json and words:
            write(logging.ERROR, words, error=words, code=code)
            words = ""
        stop(words, code)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Begin the log; tell of the error that ends the command."""
        self.begin()
        try:
            yield
        except TimeoutqError as error:
            self.end(exit_codes.of(error), str(error))


def write(level: int, words: str, **fields: object) -> None:
    telling.say(log, level, "%s", words, fields=fields)


def _tell_uncaught(what: str, error: BaseException) -> None:
    from timeoutq.worker.lifespan import told

    said = told(error)
    telling.say(log, logging.ERROR, "%s: %s", what, said, exc_info=error, fields={"error": said})


def _tell_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
        name = "a thread" if found.thread is None else f"the thread {found.thread.name}"
        _tell_uncaught(f"{name} ended by an error", found.exc_value)


class SafeFormatter(logging.Formatter):
    """One event, one line of printable text, whatever a task's id or error holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, its traceback folded into the line."""
        message, problem = _message(record)
        if problem is not None:
            # logging would print lines of its own instead, and lose this one
            why = f"its arguments {shown(record.args, MOST_SHOWN)} do not fit: {error_words(problem)}"
            record = logging.makeLogRecord({**vars(record), "args": None, "msg": f"{message} ({why})"})
        return safe(super().format(record).replace("\n", " | "))

    def formatException(self, ei: Failed) -> str:  # noqa: N802  # the name is logging's
        """Give a bounded traceback, whatever the exception does: the same text as in Redis."""
        return _traceback(ei)


class JsonFormatter(logging.Formatter):
    """One event, one line of JSON in ASCII; all text in it is printable. `timeoutq help health` has its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as an object with time (RFC 3339), level, logger, pid, message, and its fields."""
        message, problem = _message(record)
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": _lines(message),
        }
        if problem is not None:
            found |= {"args": _lines(shown(record.args, MOST_SHOWN)), "format_error": _lines(error_words(problem))}
        if record.exc_info:
            found["traceback"] = _lines(_traceback(record.exc_info))
        own = {name: value for name, value in vars(record).items() if name not in _USUAL}
        about = telling.running.get()
        if about is not None and not record.name.startswith("timeoutq."):  # whose lines say what they are about
            of_worker, lease = about
            own = {**of_worker, "task": lease.task, "attempt": lease.attempt, **own}
        for name, value in own.items():
            if value is not None:
                plain = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
                found.setdefault(safe(name), value if plain else _lines(value))
        return json.dumps(found)


_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The attributes that every record has; the log call gave all others."""


def _message(record: logging.LogRecord) -> tuple[str, Exception | None]:
    """Give the text of a record; if its arguments do not fit, the text without them and the error."""
    try:
        return record.getMessage(), None
    except Exception as error:  # the log call of a handler may be wrong in any way
        return safe(record.msg)[:MOST_SHOWN], error


def _lines(value: object) -> str:
    return "\n".join(map(safe, value.split("\n"))) if isinstance(value, str) else safe(value)


def _traceback(found: Failed) -> str:
    error = found[1]
    if error is None:
        return ""
    from timeoutq.words.tracebacks import read_traceback, trace

    text = error_words(error)
    return read_traceback(trace(error), text) or text
