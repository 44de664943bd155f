"""What commands print: tables for people on a terminal, tab-separated lines elsewhere, JSON with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeoutq.watch.records import iso as iso
from timeoutq.watch.records import length as length
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import text
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.words.model import Outcome

T = TypeVar("T")

LINES_AT_ONCE = 500  # with one write

FACTS = ("what", "value")


@dataclass(frozen=True)
class Sink:
    """Prints rows: a table for people, lines of tabs for pipes, JSON for programs."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        typer.echo(to_json(value))

    def answer(self, document: Any, words: str) -> None:
        """Print a JSON document, or words."""
        self.document(document) if self.as_json else typer.echo(words)

    def facts(self, document: Any, facts: Iterable[tuple[str, Any]], columns: tuple[str, str] = FACTS) -> None:
        """Print a JSON document, or one row for each fact that is known."""
        if self.as_json:
            self.document(document)
        else:
            self.rows(columns, [fact for fact in facts if fact[1] is not None])

    def each(self, columns: Sequence[str], things: Iterable[T], row: Callable[[T], Sequence[Any]]) -> None:
        """Print things: each as a JSON document, or each as a row."""
        if self.as_json:
            for thing in things:
                self.document(thing)
        else:
            self.rows(columns, map(row, things))

    def outcome(self, outcome: Outcome) -> None:
        """Print the answer to each id."""
        self.rows(("task", "answer"), ((task, str(answer)) for task, answer in outcome.items()))

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print rows of text that may be hostile."""
        if self.as_json:
            _say(to_json(dict(zip(columns, row, strict=True))) for row in rows)
        elif sys.stdout.isatty():
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            table = Table(*columns, box=None, pad_edge=False)
            for row in rows:
                table.add_row(*(Text(safe("-" if value is None else value)) for value in row))
            Console(highlight=False).print(table)
        else:
            _say("\t".join(safe("-" if value is None else value) for value in row) for row in rows)


def _say(lines: Iterable[str]) -> None:
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


@contextmanager
def progress(
    what: str, total: int | None = None, *, prints_ids: bool = False, unit: str = "tasks"
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr, if stderr is a terminal; give a function to call with how far the work is, and a count.

    There is no bar if the command prints ids meanwhile (`prints_ids`), and they go to a terminal, too.
    """
    crowded = prints_ids and sys.stdout.isatty()
    if sys.stderr is None or not sys.stderr.isatty() or crowded:
        yield lambda _completed, _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn(f"{{task.fields[done]:,}} {unit}"),
        TimeElapsedColumn(),
        # lines that are printed meanwhile go to stdout, not above the bar
        console=Console(stderr=True), transient=True, redirect_stdout=False,
    ) as shown:  # fmt: skip
        task = shown.add_task(what, total=total, done=0)
        yield lambda completed, done: shown.update(task, completed=completed, done=done)


def ids(batch: Sequence[bytes], as_json: bool, null: bool) -> None:
    """Print ids, one per line and without control characters; or as JSON; or as they are, each with a NUL after it."""
    if null:
        bad = next((id for id in batch if b"\0" in id), None)
        if bad is not None:
            raise InvalidInput(
                f"task {text(bad)!r:.80} holds a NUL itself, so --null cannot show where it ends: use --json"
            )
        sys.stdout.buffer.write(b"".join(id + b"\0" for id in batch))
    elif as_json:
        sys.stdout.write("".join(json.dumps({"task": text(id)}) + "\n" for id in batch))
    else:
        sys.stdout.write("".join(safe(id) + "\n" for id in batch))
    sys.stdout.flush()  # a count that is printed later must be true
