"""The traceback of a handler's exception as text: bounded, without local variables, whatever the exception does.

Its last line, which a task keeps anyway as its error, is left out where possible: so tasks that fail in the same place
share one text, which is kept by its digest.
"""

from __future__ import annotations

import hashlib
import linecache
from collections import deque
from functools import lru_cache
from pathlib import Path
from traceback import format_exception_only
from types import TracebackType
from typing import Any, cast

from timeoutq.words.retry import GiveUp, Retry

MOST = 16 * 1024
"""The most bytes of one text; the beginning of a longer text is cut off, because the end says most."""
FRAMES = 40
"""The most frames of one exception; further outer frames are left out."""
CHAIN = 5
"""The most exceptions in a chain of causes; further early exceptions are left out."""
WIDTH = 200
"""The most characters of a line of source."""
MESSAGE = 1000
"""The most characters of a message with its notes."""

CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
GROUP = 3
"""How many exceptions of a group are shown, and how deep groups within groups are followed."""
HERE = str(Path(__file__).parent.parent)
BETWEEN = tuple(str(Path(HERE, "functions", name)) for name in ("running.py", "threads.py", "processes.py"))
"""What stands between a middleware and its function: it is left out, unless it has raised the exception itself."""

Frame = tuple[str, int, str]


def trace(error: object) -> bytes:
    """Give the text of an exception's traceback, empty if there is none; never raises.

    A `Retry` or `GiveUp` that no other exception led to is a decision, and has none. A text that ends with a line break
    lacks its last line: that line is the error of the task, and `read_traceback` adds it.
    """
    if not isinstance(error, BaseException):
        return b""
    if isinstance(told := getattr(error, "told_trace", None), bytes):  # it was raised in another process
        return told
    try:
        text = _told(error)
    except BaseException:  # the attributes of a foreign exception may do anything, even exit the process
        return b""
    return _cut(text.encode("utf-8", "backslashreplace"))


def digest(text: bytes) -> bytes:
    """Give the name under which a text is kept: SHA-256, cut to 12 bytes, in hex."""
    return hashlib.sha256(text).hexdigest()[:24].encode()


def read_traceback(text: bytes | None, error: str | None) -> str | None:
    """Give the whole traceback of a task that has this error."""
    if not text:
        return None
    found = text.decode("utf-8", "replace")
    return found + (error or "") if found.endswith("\n") else found


def _told(error: BaseException) -> str:
    chain, cut = _chain(error)
    is_group = isinstance(error, BaseExceptionGroup)
    if len(chain) == 1 and (error.__traceback__ is None or isinstance(error, Retry | GiveUp)):
        return ""
    parts = ["(the exceptions that led to these are left out)\n\n"] if cut else []
    for one, link in reversed(chain[1:]):
        parts += (_stack(one.__traceback__), _end(one), link)
    parts.append(_stack(error.__traceback__))
    if not is_group and not getattr(error, "__notes__", None):
        return "".join(parts)
    return "".join((*parts, _end(cast("Any", error)))).rstrip("\n")


def _chain(error: BaseException) -> tuple[list[tuple[BaseException, str]], bool]:
    """Give the exception and those that led to it, each with the text that links it, and whether some are left out."""
    chain = [(error, "")]
    while True:
        last, _ = chain[-1]
        cause, link = last.__cause__, CAUSE
        if cause is None and not last.__suppress_context__:
            cause, link = last.__context__, CONTEXT
        if cause is None or any(cause is one for one, _ in chain):
            return chain, False
        if len(chain) == CHAIN:
            return chain, True
        chain.append((cause, link))


def _stack(found: TracebackType | None) -> str:
    # the frames between the worker and the handler say nothing
    first = found
    while first is not None and first.tb_frame.f_code.co_filename.startswith(HERE):
        first = first.tb_next
    frames: deque[Frame] = deque(maxlen=FRAMES)
    found, count = first or found, 0
    while found is not None:
        code = found.tb_frame.f_code
        if found.tb_next is None or code.co_filename not in BETWEEN:
            linecache.lazycache(code.co_filename, found.tb_frame.f_globals)
            frames.append((code.co_filename, found.tb_lineno or 0, code.co_qualname))
            count += 1
        found = found.tb_next
    return _frames(tuple(frames), count - len(frames))


@lru_cache(maxsize=256)
def _frames(frames: tuple[Frame, ...], before: int) -> str:
    # cached, because tasks fail in the same places again and again
    parts = ["Traceback (most recent call last):\n"] if frames else []
    if before:
        parts.append(f"  ({before:,} frames before these are left out)\n")
    for name, line, where in frames:
        parts.append(f'  File "{name}", line {line}, in {where}\n')
        source = linecache.getline(name, line).strip()
        if source:
            parts.append(f"    {source[:WIDTH]}\n")
    return "".join(parts)


def _end(error: BaseException, depth: int = 1) -> str:
    """Give what follows the stack: the exception's name and message, its notes and, for a group, its exceptions."""
    said = "".join(format_exception_only(error)).rstrip("\n")
    parts = [f"{said[:MESSAGE]}\n"]
    if isinstance(error, BaseExceptionGroup):
        inside: tuple[BaseException, ...] = cast("Any", error).exceptions
        for number, one in enumerate(inside[:GROUP] if depth <= GROUP else (), 1):
            told = _stack(one.__traceback__) + _end(one, depth + 1)
            parts.append(f"  {number} of {len(inside)} in this group:\n")
            parts += (f"    {line}\n" for line in told.splitlines())
    return "".join(parts)


def _cut(data: bytes) -> bytes:
    if len(data) <= MOST:
        return data
    kept = data[60 - MOST :]
    kept = kept[kept.find(b"\n") + 1 :]
    return b"(%d bytes before this are left out)\n" % (len(data) - len(kept)) + kept
