"""The commands that move tasks by the million: requeue, within a queue; export and import, between queues and servers.

`app.py` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timeoutq.cli.app import (
    NOTHING,
    AsJson,
    Name,
    Url,
    UrlFile,
    Yes,
    app,
    known_queue,
    open_queue,
    say,
    saying_how_far,
    stop,
    sure,
)
from timeoutq.cli.printing import Sink, progress
from timeoutq.cli.reading import LONGEST_LINE, lines_of, piped_in
from timeoutq.cli.sets import PANEL
from timeoutq.errors import InvalidInput
from timeoutq.model import State, raw

if TYPE_CHECKING:
    from timeoutq.client import Queue
    from timeoutq.model import Record

MANY = 1000
"""To put back more tasks than this, the command asks first."""

SHOWN = 3
"""For at most this many broken lines the command says what is wrong with them."""

CHUNK_BYTES = 4 * 1024 * 1024


class Ended(StrEnum):
    """The states that tasks are put back from."""

    done = "done"
    failed = "failed"


@app.command(rich_help_panel=PANEL)
def requeue(
    queue: Name,
    source: Annotated[Ended, typer.Option("--from", help="The state in which the tasks are now.", show_default=False)],
    match: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only ids that match; * ? [a-z] as in Redis.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the tasks.")] = False,
    yes: Yes = False, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put done or failed tasks back into todos, with a clean record. Asks if there are more than 1,000.

    Exit 1 when no task matches.
    """
    from timeoutq import transfer

    state, pattern = State(source.value), None if match is None else raw(match)
    matched = looked = moved = 0
    with known_queue(queue, url, url_file) as opened:
        if not (dry_run or yes) and _more_than(opened, state, pattern):
            what = f"more than {MANY:,} tasks of {queue}:{state}" + (f" that match {match}" if match else "")
            sure(f"Put {what} back into todos?", yes)
        with (
            saying_how_far(lambda: (matched, f"{matched:,} tasks matched, {moved:,} are back in todos")),
            progress("counting" if dry_run else "putting back", transfer.size(opened, state)) as tell,
        ):
            for batch in transfer.once(transfer.scan(opened, state, pattern)):
                matched += len(batch)
                if batch and not dry_run:
                    moved += opened.put(batch, again=True).added
                looked += len(batch)
                tell(looked, matched)
    if as_json:
        Sink(True).document({"matched": matched, "requeued": moved})
    else:
        typer.echo(f"{matched} would be put back" if dry_run else f"{moved} put back")
    if not matched:
        raise typer.Exit(NOTHING)


def _more_than(queue: Queue, state: State, pattern: bytes | None) -> bool:
    from timeoutq import transfer

    if transfer.size(queue, state) <= MANY:
        return False
    found = 0
    for batch in transfer.once(transfer.scan(queue, state, pattern)):
        found += len(batch)
        if found > MANY:
            return True
    return False


@app.command(rich_help_panel=PANEL)
def export(
    queue: Name,
    states: Annotated[
        list[State] | None, typer.Option("--state", help="Only tasks in this state; may be given again.")
    ] = None,
    url: Url = None, url_file: UrlFile = None,
) -> None:  # fmt: skip
    """Print all tasks as JSON, one per line, with state, due time, failures, crashes, last error and payload.

    `timeoutq import` reads these lines. For a picture of one moment, pause the
    queue first; without a pause, each task is printed once, as it was when export
    read it. Exit 1 when there is no task.
    """
    from timeoutq import transfer

    written = 0
    with known_queue(queue, url, url_file) as opened:
        sys.stdout.write(transfer.header(opened) + "\n")
        total = sum(transfer.size(opened, state) for state in states or State)
        with (
            saying_how_far(lambda: (written, f"{written:,} of about {total:,} tasks were written, not all")),
            progress("exporting", total, beside_output=True) as tell,
        ):
            for records in transfer.export(opened, states or ()):
                sys.stdout.write("".join(transfer.write(record) + "\n" for record in records))
                sys.stdout.flush()  # so that every line that is counted is really written
                written += len(records)
                tell(written, written)
    if not written:
        stop(NOTHING, f"queue {queue} has no tasks" + (f" in {', '.join(states)}" if states else ""))


class BrokenLine(InvalidInput):
    """A line is not what export prints: mend the file, or leave such lines out."""


class Import:
    """The lines of an export on their way into a queue, and what became of them."""

    def __init__(self, queue: Queue, lenient: bool) -> None:
        self.queue = queue
        self.lenient = lenient
        self.taken = 0
        """The number of lines, from the first on, that need not be read again."""
        self.restored = self.known = self.broken = 0

    def counts(self) -> dict[str, int]:
        """Give what became of the lines."""
        return {"lines": self.taken, "restored": self.restored, "known": self.known, "broken": self.broken}

    def chunks(self, lines: Iterator[bytes], skip: int) -> Iterator[tuple[int, int, list[Record]]]:
        """Read lines; give, for each step, the number of its last line, the bytes read so far, and the tasks.

        Raises `BrokenLine`, after the tasks before it were given.
        """
        from timeoutq import transfer
        from timeoutq.calls import BATCH

        chunk: list[Record] = []
        size = read = number = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            try:
                if number == 1 and not transfer.is_header(line):
                    raise InvalidInput(
                        'it is not the first line of an export, which is {"timeoutq": 1, …}: add this line'
                    )
                if number <= skip or not line.strip() or (line[:12] == b'{"timeoutq":' and transfer.is_header(line)):
                    continue
                if len(line) >= LONGEST_LINE:
                    raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
                chunk.append(transfer.read(line))
                size += len(line)
            except InvalidInput as error:
                if self.lenient and number > 1:
                    self.broken += 1
                    if self.broken <= SHOWN:
                        say(f"line {number} is left out: {error}")
                    continue
                if chunk:
                    yield number - 1, read, chunk
                self.taken = number - 1
                raise BrokenLine(f"line {number} is broken: {error}") from error
            if len(chunk) >= BATCH or size > CHUNK_BYTES:
                yield number, read, chunk
                chunk, size = [], 0
        if chunk:
            yield number, read, chunk
        self.taken = number

    def step(self, number: int, records: list[Record]) -> None:
        """Bring tasks in, in one atomic step."""
        from timeoutq import transfer

        outcome = transfer.restore(self.queue, records)
        self.restored += outcome.added
        self.known += len(outcome) - outcome.added
        self.taken = number


@app.command("import", rich_help_panel=PANEL)
def import_tasks(
    queue: Name,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="What export printed; stdin by default.")
    ] = None,
    skip_lines: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out the first N lines, which an earlier import has taken.")
    ] = 0,
    lenient: Annotated[bool, typer.Option("--lenient", help="Leave broken lines out, and count them.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Bring in what export printed: state, due time, failures, crashes, last error and payload of each task.

    Tasks that the queue knows already are left alone: so after Ctrl-C, run the
    command again, and it goes on. Tasks that were in progress become ready. A
    broken line ends the command with exit code 1; no later line is brought in.
    """
    if file is None and piped_in() is None:
        raise InvalidInput("name a file, or pipe in what export printed")
    total = file.stat().st_size if file is not None and file.is_file() else None
    with open_queue(queue, url, url_file) as opened:
        work = Import(opened, lenient)
        chunks = work.chunks(lines_of(file), skip_lines)

        def far() -> tuple[int, str]:
            return work.taken, f"{work.taken:,} lines were taken; go on with --skip-lines {work.taken}"

        broken: BrokenLine | None = None
        with saying_how_far(far), progress("importing", total) as tell:
            while True:
                try:
                    found = next(chunks, None)
                except BrokenLine as error:
                    found, broken = None, error
                if found is None:
                    break
                number, read, records = found
                work.step(number, records)
                tell(read, work.restored + work.known)
    sink = Sink(as_json)
    if as_json:
        sink.document(work.counts())
    else:
        sink.rows(("what", "count"), work.counts().items())
    if broken is not None:
        say(str(broken))
        stop(NOTHING, "no later line was brought in; --lenient leaves broken lines out")
