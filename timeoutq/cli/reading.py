"""What commands read: lengths of time, moments, ids, lines of files and of stdin."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import typer

from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.text import length_of

LONGEST_LINE = 8 * 1024 * 1024  # more than any line with a payload of 1 MiB needs, bytes


def seconds(text: str) -> float:
    """Read a length of time: 30, 0.5, 30s, 250ms, 5m, 2h, 1d."""
    found = length_of(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a length of time: write 30, 250ms, 30s, 5m, 2h or 1d")
    return found


def nodes(text: str) -> tuple[int, int]:
    """Read the size of a cluster: 3+3 is 3 primaries and 3 replicas, 3 is 3 primaries without replicas."""
    found = re.fullmatch(r"([0-9]{1,4})(?:\+([0-9]{1,4}))?", text)
    if not found:
        raise InvalidInput(f"--cluster {text!r}: write 3+3 for 3 primaries and 3 replicas, or 3 for 3 primaries alone")
    return int(found[1]), int(found[2] or 0)


def moment(text: str) -> float:
    """Read a time: Unix seconds, or ISO 8601 with a zone, so that the text means the same time on every machine."""
    with suppress(ValueError):
        return float(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write Unix seconds or 2027-01-31T12:00+01:00") from None
    if read.tzinfo is None:
        there = read.isoformat(timespec="minutes")
        raise typer.BadParameter(f"{text!r} has no zone: write {there}Z for UTC, or {there}+01:00")
    return read.timestamp()


def bare_line(line: bytes, number: int) -> bytes:
    """Give the id in a line of a file of ids: without blanks at both ends, the line end, and a byte order mark."""
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    return line.strip(b" \t\r\n")


def read_json(text: str | bytes) -> Any:
    """Read JSON; raises ValueError for text that is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_option(name: str, words: str, kinds: type | tuple[type, ...] = object, said: str = "") -> Any:
    """Read the JSON of an option; `said` is what the option must be, if it must be of these types."""
    example = said and f": write {said}, with texts in double quotes, as in '[\"a\", 5]'"
    try:
        found = read_json(words)
    except ValueError as error:
        raise InvalidInput(f"{name} {words!r:.80} cannot be read as JSON{example} ({error})") from None
    if not isinstance(found, kinds):
        raise InvalidInput(f"{name} {words!r:.80} must be {said}{example}")
    return found


def piped_in() -> BinaryIO | None:
    """Give what is piped in; None on a terminal, and where stdin is closed."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer


def place(path: Path | None) -> str:
    """Name a file; None and `-` are stdin."""
    return "standard input" if path is None or str(path) == "-" else str(path)


def lines_of(path: Path | None) -> Iterator[bytes]:
    """Read the lines of a file, or of stdin for None and `-`; of a line, at most `LONGEST_LINE` bytes."""
    with _opened(path) as file:
        while line := file.readline(LONGEST_LINE):
            end = line
            while end and not end.endswith(b"\n"):
                end = file.readline(LONGEST_LINE)
            yield line


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise InvalidInput("there is no stdin to read from")
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def pieces_of(path: Path | None) -> Iterator[bytes]:
    """Read pieces that end with a NUL, from a file, or from stdin for None and `-`."""
    rest = b""
    with _opened(path) as file:
        while block := file.read(1 << 16):
            *whole, rest = (rest + block).split(b"\0")
            yield from whole
            if len(rest) > LONGEST_LINE:
                raise InvalidInput(
                    f"it has more than {LONGEST_LINE:,} bytes without a NUL: leave out --null if the ids are lines"
                )
    if rest:
        yield rest


def ids_of(path: Path | None, null: bool) -> Iterator[bytes]:
    """Read ids, one per line (or with a NUL after each), from a file, or from stdin for None and `-`."""
    for number, piece in enumerate(pieces_of(path) if null else lines_of(path), 1):
        bare = piece if null else bare_line(piece, number)
        if bare:
            try:
                yield arguments.task_id(bare)
            except InvalidInput as error:
                raise InvalidInput(f"{place(path)}, {'id' if null else 'line'} {number}: {error}") from error
