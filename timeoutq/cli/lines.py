"""What commands print and read: tables, tabs or JSON; lengths of time, moments, ids, lines of files and of stdin."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

import typer

from timeoutq.cli.saying import refuse
from timeoutq.watch.records import iso as iso
from timeoutq.watch.records import length as length
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Outcome, text
from timeoutq.words.text import length_of, safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

T = TypeVar("T")

LINES_AT_ONCE = 500  # with one write
LONGEST_LINE = 8 * 1024 * 1024  # more than any line with a payload of 1 MiB needs, bytes


@dataclass(frozen=True)
class Sink:
    """Prints rows: a table for people, lines of tabs for pipes, JSON for programs."""

    as_json: Annotated[bool, "--json: Print JSON."] = False

    def document(self, value: Any) -> None:
        typer.echo(to_json(value))

    def answer(self, document: Any, words: str) -> None:
        typer.echo(to_json(document) if self.as_json else words)

    def facts(
        self, document: Any, facts: Iterable[tuple[str, Any]], columns: tuple[str, str] = ("what", "value")
    ) -> None:
        """Print a JSON document, or one row for each fact that is known."""
        if self.as_json:
            self.document(document)
        else:
            self.rows(columns, [fact for fact in facts if fact[1] is not None])

    def each(self, columns: Sequence[str], things: Iterable[T], row: Callable[[T], Sequence[Any]]) -> None:
        """Print things: each as a JSON document, or each as a row."""
        if self.as_json:
            _write(map(to_json, things))
        else:
            self.rows(columns, map(row, things))

    def outcome(self, outcome: Outcome) -> None:
        self.rows(("task", "answer"), ((task, str(answer)) for task, answer in outcome.items()))

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print rows of text that may be hostile."""
        if self.as_json:
            _write(to_json(dict(zip(columns, row, strict=True))) for row in rows)
            return
        cells = (
            [str(value) if type(value) is int else safe("-" if value is None else value) for value in row]
            for row in rows
        )
        if not sys.stdout.isatty():
            _write(map("\t".join, cells))
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")  # where the terminal is narrow, a cell goes on in the next line
        for row in cells:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)


def with_ended(queue: AnyQueue, outcome: Outcome) -> Outcome:
    """Answer done for each id that no state holds and whose result is kept: the id of a call is not kept in done."""
    unknown = [task for task, answer in outcome.items() if answer is Answer.UNKNOWN]
    ended = queue.results.look(unknown) if unknown else {}
    done = {task for task, one in ended.items() if one.state is None and one.result is not None}
    codes = [ord("d") if task in done else code for (task, _), code in zip(outcome.items(), outcome.codes, strict=True)]
    return Outcome(outcome.tasks, bytes(codes)) if done else outcome


def _write(lines: Iterable[str]) -> None:
    """Write lines in blocks: each write costs a call of the system, and a list can have millions of lines."""
    lines = iter(lines)
    while block := list(islice(lines, LINES_AT_ONCE)):
        typer.echo("\n".join(block))


def to_json(value: Any) -> str:
    """Write JSON in ASCII: dataclasses as objects, bytes as {"bytes": their latin-1}, text that is no UTF-8 escaped."""

    def plain(part: Any) -> Any:
        if isinstance(part, bytes):
            return {"bytes": part.decode("latin-1")}
        return {field.name: getattr(part, field.name) for field in fields(part)}

    return json.dumps(value, ensure_ascii=True, default=plain)


def ids(batch: Sequence[bytes], as_json: bool, null: bool) -> None:
    """Print ids, one per line and without control characters; or as JSON; or as they are, each with a NUL after it."""
    if null:
        if bad := next((id for id in batch if b"\0" in id), None):
            raise InvalidInput(f"task {text(bad)!r:.80} holds a NUL, so --null cannot show where it ends: use --json")
        sys.stdout.buffer.write(b"".join(id + b"\0" for id in batch))
    else:
        _write(to_json({"task": text(id)}) if as_json else safe(id) for id in batch)
    sys.stdout.flush()  # a count that is printed later must be true


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


def size_of(path: Path | None) -> int | None:
    """Give the size of a file in bytes; None for stdin, and for what has no size."""
    return path.stat().st_size if path is not None and path.is_file() else None


def lines_of(path: Path | None) -> Iterator[bytes]:
    """Read the lines of a file, or of stdin for None and `-`; of a line, at most `LONGEST_LINE` bytes."""
    with _opened(path) as file:
        while line := file.readline(LONGEST_LINE):
            yield line
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)


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
            long = f"it has more than {LONGEST_LINE:,} bytes without a NUL: leave out --null if the ids are lines"
            refuse(len(rest) > LONGEST_LINE, long)
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
