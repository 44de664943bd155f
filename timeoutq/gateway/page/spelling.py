"""How ids travel between page and server, and how ids, texts and times are written into HTML. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import quote

from markupsafe import Markup, escape

from timeoutq.gateway.problems import from_base64
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import raw, text
from timeoutq.words.text import ELLIPSIS, safe

SHORT = 120  # cells of an id or an error in a table; the rest stands on the page of the task
MOST_LINES, LONGEST_LINE = 400, 2_000  # how much is shown of a traceback or a payload


def field(task: str, *, in_url: bool = False) -> tuple[str, str]:
    """Give the name and the value of the field of a form, or the parameter of a URL, in which this id travels."""
    # a browser would change others: control bytes, surrogates, spaces at an end; and no URL may seem to hold a token
    is_plain = task.isprintable() and task.strip(" ") == task
    if is_plain and not (in_url and any(word in task for word in ("&", "=", "tq_"))):
        return "id", task
    return "b64", base64.urlsafe_b64encode(raw(task)).decode("ascii").rstrip("=")


def query(task: str) -> str:
    """Give the query that names this id: `id=https%3A%2F%2Fa%2F`, or `b64=…`."""
    name, value = field(task, in_url=True)
    return f"{name}={quote(value, safe='')}"


def read(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Give the ids that a query or a form names, in their order. Raises `InvalidInput` if one is no base64."""
    fields = ((name, value) for name, value in pairs if name in ("id", "b64") and value)
    return [decoded(value) if name == "b64" else value for name, value in fields]


def decoded(value: str) -> str:
    """Give the id that was written as `b64`. Raises `InvalidInput`."""
    try:
        return text(from_base64(value))
    except ValueError as error:
        raise InvalidInput(f"b64={value[:40]!r} is no base64: {error}") from error


def shown(value: object, width: int | None = SHORT) -> Markup:
    """Write text of a task as one line of HTML: escaped, without control characters, isolated from its neighbours."""
    # <bdi> keeps letters that run from right to left in their place; format() escapes what it is given
    return Markup("<bdi>{}</bdi>").format(safe(value, width))


def block(value: object) -> Markup:
    """Write text of several lines, at most `MOST_LINES`; each line is made safe by itself."""
    lines = str(value).split("\n", MOST_LINES)
    rest = [ELLIPSIS] if lines[MOST_LINES:] else []
    return escape("\n".join([*(safe(line, LONGEST_LINE) for line in lines[:MOST_LINES]), *rest]))


def payload(value: object) -> str:
    """Give a payload as people read it: JSON with an indentation; bytes by their text, or by how many they are."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {safe(value[:2000])}"
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def moment(at: float | None) -> str:
    """Give a time as `2026-11-23 08:15:00`, UTC; `—` if there is none."""
    return "—" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
