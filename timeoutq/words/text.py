"""The one gate through which text of a task (its id, an error, the name of a worker) reaches a terminal or a log.

What `safe()` gives holds no control byte, nothing invisible and nothing that turns the direction of writing, so it can
neither steer a terminal nor forge a line of a log. Put it into a rich `Text`, never into markup.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

CLIENT = re.compile(r"\S+:[0-9]+:\S+")
"""The name of a worker, or of another client: host, process, and what tells them apart."""

ELLIPSIS = "…"
_LENGTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*")
_UNITS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable by Unicode's categories, yet drawn as nothing: fillers and variation selectors, which also upset widths."""

_MARKS_A_CELL = 4
"""More characters than this for each cell, and the rest is cut: marks can be stacked on one cell without end."""


def safe(value: object, width: int | None = None) -> str:
    """Give printable text of anything, on one line, in at most `width` cells of a terminal.

    Printable characters stay. Control bytes (newline and tab too), DEL, C1, bidi and zero-width marks, private and
    unassigned characters become `\\xNN`, `\\uNNNN` or `\\UNNNNNNNN`; bytes that are not UTF-8, and surrogate escapes
    that stand for such, become `\\xNN`. What is too wide ends with an ellipsis. Never raises. The rule is
    `str.isprintable()`, which is false for all of Cc, Cf, Cs, Co, Cn, Zl, Zp and Zs but the space, and `_INVISIBLE`.
    """
    found = _as_text(value)
    cut = False
    if width is not None and len(found) > max(0, width) * _MARKS_A_CELL:
        found, cut = found[: max(0, width) * _MARKS_A_CELL], True
    if not found.isascii() or not found.isprintable():
        found = "".join(map(_escaped, found))
    return found if width is None else _clipped(found, width, cut)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "surrogateescape")
    try:
        return str(value)
    except Exception as error:  # the text of a foreign exception may be anything, an error too
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


def _escaped(character: str) -> str:
    if character.isprintable() and not _INVISIBLE.match(character):
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # PEP 383: a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _clipped(found: str, width: int, cut: bool) -> str:
    if width <= 0:
        return ""
    if not cut and cell_len(found) <= width:
        return found
    kept, used = 0, 0
    for character in found:
        used += cell_len(character)
        if used >= width:
            break
        kept += 1
    # an escape sequence is not cut in two: half of one reads as something else
    begun = re.search(r"\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?\Z", found[:kept])
    if begun and re.match(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", found[begun.start() :]):
        kept = begun.start()
    return found[:kept] + ELLIPSIS


def age(seconds: float | None) -> str:
    """Give a length of time for people, in at most 9 cells: `0.4 s`, `12 s`, `3 min`, `2 h 5 m`, `4 d`; None is `—`."""
    if seconds is None or seconds != seconds:
        return "—"
    if seconds <= -0.05:
        return f"-{age(-seconds)}"
    seconds = abs(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 3_600:
        return f"{min(59, round(seconds / 60))} min"
    if seconds < 36_000:
        return f"{int(seconds // 3_600)} h {int(seconds % 3_600 // 60)} m"
    if seconds < 2 * 86_400:
        return f"{int(seconds // 3_600)} h"
    return f"{min(seconds // 86_400, 99_999):.0f} d"


def span(seconds: float) -> str:
    """Give how long something took, in at most 9 cells: `0.12 ms`, `85 ms`, `0.4 s`, and what is longer as an `age`."""
    if seconds >= 0.9995:
        return age(seconds)
    return f"{seconds * 1000:.2f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"


def number(count: float) -> str:
    """Give a count in full, its thousands set apart: `1,234,567`."""
    return f"{count:,.0f}"


def length_of(text: str) -> float | None:
    """Read a length of time in seconds: 30, 0.5, 30s, 250ms, 5m, 2h, 1d; None if the text is none."""
    found = _LENGTH.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def counted(count: int, noun: str) -> str:
    """Give a count with its noun: `1 task`, `1,234 tasks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def all_of(count: int, noun: str) -> str:
    """Say that all are meant: `all 1,234 tasks`; of one, `the only task`."""
    return f"the only {noun}" if count == 1 else f"all {counted(count, noun)}"


def compact(count: float) -> str:
    """Give a count in at most 5 cells: `999`, `1.2k`, `12k`, `1.2M`, `3.4G`."""
    if abs(count) < 999.5:
        return f"{count:.0f}"
    for size, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        scaled = count / size
        if abs(scaled) < 9.95:
            return f"{scaled:.1f}{unit}"
        if abs(scaled) < 999.5:
            return f"{scaled:.0f}{unit}"
    return f"{count:.0e}"


def rate(per_second: float | None) -> str:
    """Give a rate in at most 5 cells: `0`, `0.02`, `0.4`, `12.5`, `340`, `1.2k`; None is `—`."""
    if per_second is None or per_second != per_second:
        return "—"
    if 0 < per_second < 0.095:
        return f"{max(per_second, 0.01):.2f}"
    if 0 < per_second < 99.95:
        return f"{per_second:.1f}"
    return compact(per_second)
