"""How ids travel between the page and the server, and how ids, texts, times and sizes are written into HTML. Pure.

An id never stands in a path: it is a field `id` of a query or a form, or a field `b64` when a browser would change it
(control bytes, bytes that are not UTF-8, spaces at an end).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from timeoutq.gateway.problems import from_base64
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import raw, text
from timeoutq.words.text import ELLIPSIS, age, safe

SHORT = 120  # cells of an id or an error in a table; the rest stands on the page of the task
MOST_LINES, LONGEST_LINE = 400, 2_000
"""How much is shown of a traceback or a payload."""
LENGTHS: Mapping[float, str] = {
    600: "10 minutes", 3600: "an hour", 21_600: "6 hours", 86_400: "a day", 604_800: "a week",
}  # fmt: skip
"""For how long the page offers to block a host, seconds; an hour unless somebody chooses."""


def field(task: str) -> tuple[str, str]:
    """Give the name and the value of the form field in which this id travels."""
    # no surrogate is printable
    if task.isprintable() and task.strip(" ") == task:
        return "id", task
    return "b64", _b64(task)


def _b64(task: str) -> str:
    return base64.urlsafe_b64encode(raw(task)).decode("ascii").rstrip("=")


def pair(task: str) -> tuple[str, str]:
    """Give the name and the value of the parameter of a URL that names this id."""
    # the gateway refuses a URL with a word that might be a token
    return ("b64", _b64(task)) if "&" in task or "=" in task or "tq_" in task else field(task)


def query(task: str) -> str:
    """Give the query that names this id: `id=https%3A%2F%2Fa%2F`, or `b64=…`."""
    name, value = pair(task)
    return f"{name}={quote(value, safe='')}"


def read(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Give the ids that a query or a form names, in their order. Raises `InvalidInput` if one is no base64."""
    found: list[str] = []
    for name, value in pairs:
        if name == "id" and value:
            found.append(value)
        elif name == "b64" and value:
            found.append(decoded(value))
    return found


def decoded(value: str) -> str:
    """Give the id that was written as `b64`. Raises `InvalidInput`."""
    try:
        return text(from_base64(value))
    except ValueError as error:
        raise InvalidInput(f"b64={value[:40]!r} is no base64: {error}") from error


def shown(value: object, width: int | None = SHORT) -> Markup:
    """Write text of a task as one line of HTML: escaped, without control characters, and isolated from its neighbours.

    `<bdi>` keeps letters that run from right to left inside their place.
    """
    return Markup("<bdi>{}</bdi>").format(safe(value, width))  # format() escapes what it is given


def block(value: object) -> Markup:
    """Write text of several lines, at most `MOST_LINES`; each line is made safe by itself."""
    lines = str(value).split("\n", MOST_LINES)
    rest = lines[MOST_LINES:]
    found = [safe(line, LONGEST_LINE) for line in lines[:MOST_LINES]]
    return escape("\n".join([*found, *([ELLIPSIS] if rest else [])]))


def payload(value: object) -> str:
    """Give a payload as people read it: JSON with an indentation; bytes by their text, or by how many they are."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {safe(value[:2000])}"
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def moment(at: float | None) -> str:
    """Give a time as `2026-11-23 08:15:00`, UTC; `—` if there is none."""
    return "—" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    """Give a length of time as the choice on the page calls it: `an hour`; any other one by its number."""
    return LENGTHS.get(seconds) or age(seconds)


FILTERS: dict[str, Any] = {
    "shown": shown, "block": block, "payload": payload, "moment": moment, "query": query, "field": field,
    "plain": partial(safe, width=SHORT),
}  # fmt: skip
