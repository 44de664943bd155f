"""How the command's log lines look: one event, one line of text that is safe to read."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType

from timeoutq.words.arguments import error_words, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.telling import running
from timeoutq.words.text import safe
from timeoutq.words.tracebacks import read_traceback, trace

log = logging.getLogger(__name__)

MOST_SHOWN = 1000  # characters of a log call whose arguments do not fit its text, and of these arguments

Failed = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


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
    """One event, one line of JSON in ASCII; what a log call gave as `extra=` stands in fields of its own.

    `timeoutq help health` has the table of the fields. All text in them is printable.
    """

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
        for name, value in (*own.items(), *_of_handler(record).items()):
            if value is not None:
                plain = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
                found.setdefault(safe(name), value if plain else _lines(value))
        return json.dumps(found)


_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The attributes that every record has; the log call gave all others."""


def _of_handler(record: logging.LogRecord) -> Mapping[str, object]:
    about = running.get()
    if about is None or record.name.startswith("timeoutq."):  # its lines say what they are about
        return {}
    fields, lease = about
    return {**fields, "task": lease.task, "attempt": lease.attempt}


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
    text = error_words(error)
    return read_traceback(trace(error), text) or text


def configure(level: str, *, as_json: bool = False) -> None:
    """Send log lines of `level` and above to stderr. Raises `InvalidInput` for an unknown level."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInput(f"--log-level {level!r} is not one of debug, info, warning, error")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else SafeFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    if as_json:
        # an error that nobody catches is a line like the others
        sys.excepthook = lambda kind, error, trace: _tell_uncaught((kind, error, trace))
        threading.excepthook = _tell_of_thread
    for loud in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(loud).setLevel(max(number, logging.WARNING))


def _tell_uncaught(found: Failed) -> None:
    log.critical("ended by an error: %s", error_words(found[1]), exc_info=found)


def _tell_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
        name = "a thread" if found.thread is None else f"the thread {found.thread.name}"
        error = (found.exc_type, found.exc_value, found.exc_traceback)
        log.error("%s ended by an error: %s", name, error_words(found.exc_value), exc_info=error)
