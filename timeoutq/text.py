"""The one gate through which text that came from a task reaches a terminal or a log, and numbers made for people.

`dashboard.py`, `cli.py` and the log formatter of the command call it. Nothing that passes `safe` can move a cursor, change
a colour, write a clipboard, turn the direction of a line or forge a second line.
"""

from __future__ import annotations

import json
import logging
import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def safe(value: object, width: int | None = None) -> str:
    r"""Give printable text: control, invisible and unassigned characters as escapes (`\x1b`), clipped to `width` cells."""
    shown = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    if not shown.isascii() or not shown.isprintable():
        shown = "".join(_escape(char) for char in shown)
    if width is not None and (len(shown) > width or not shown.isascii()):
        from rich.cells import cell_len, set_cell_size

        if cell_len(shown) > width:
            shown = set_cell_size(shown, max(0, width - 1)).rstrip() + "…" if width > 0 else ""
    return shown


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def age(seconds: float | None) -> str:
    """Give a length of time as people say it: 0.25 s, 12 s, 3 m 20 s, 2 h 5 m, 3 d 4 h; a dash for none."""
    if seconds is None:
        return "—"
    sign, left = ("-" if seconds < 0 else ""), abs(seconds)
    if left < 10:
        return f"{sign}{left:.1f} s"
    if left < 60:
        return f"{sign}{left:.0f} s"
    for big, small, unit, part in ((60, 1, "m", "s"), (3600, 60, "h", "m"), (86400, 3600, "d", "h")):
        if left < big * (60 if big == 60 else 24 if big == 3600 else 10**9):
            rest = int(left % big // small)
            return f"{sign}{int(left // big)} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{sign}{left:.0f} s"


def number(value: float) -> str:
    """Give a count in at most six characters where it is large: 999, 12,345, 1.2 M."""
    if value < 100_000:
        return f"{value:,.0f}"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f}"


class SafeFormatter(logging.Formatter):
    """One event, one line of printable text, whatever a task's id or error holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, its traceback folded into the line."""
        return safe(super().format(record).replace("\n", " | "))


class JsonFormatter(logging.Formatter):
    """One event, one line of JSON in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as an object with time, level, logger and message."""
        found: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)
