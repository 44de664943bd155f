"""The command about the event log: log.

`app.py` runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import NOTHING, AsJson, Name, Url, UrlFile, app, known_queue, stop
from timeoutq.cli.printing import Sink, iso
from timeoutq.cli.reading import moment, seconds
from timeoutq.text import safe

if TYPE_CHECKING:
    from timeoutq.events import Event
    from timeoutq.shards import AnyQueue

PAGE = 1000


@app.command(rich_help_panel="From anywhere")
def log(
    queue: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and show what comes. Ctrl-C ends it.")] = False,
    task: Annotated[
        str | None, typer.Option(metavar="ID", show_default=False, help="Only what happened to this task.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="From then on: a time, or how long ago (10m, 2h, 0)."),
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=0, show_default="20", help="The last N calls; with --since, the first N.")
    ] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show the event log: which tasks each call has moved. Exit 1: no log, or nothing of the task of --task in it.

    `timeoutq configure QUEUE --events 64MB` begins a log. A line is a move: the
    time, what was called, by whom, from which state to which, and the task.
    `--since 0` shows the log from its beginning. With --json, a line is a call.
    """
    shown = False
    with known_queue(queue, url, url_file) as opened:
        page = opened.events.list(n=1)
        if not page.events and "events" not in opened.stats().settings:
            stop(NOTHING, f"queue {queue} has no event log: timeoutq configure {queue} --events 64MB begins one")
        begin = None if since is None else _begin(opened, since)
        cursor = page.cursor
        for event in _known(opened, begin, n, task):
            _show(event, task, as_json)
            cursor, shown = event.cursor, True
        if follow:
            for event in opened.events.follow(cursor, task):
                _show(event, task, as_json)
        elif task is not None and not shown and n != 0:
            stop(
                NOTHING,
                f"the log of queue {queue} tells nothing of task {task!r:.200}{'' if begin is None else ' since then'}",
            )


def _begin(queue: AnyQueue, since: str) -> float:
    """Read --since: a time, or how long ago."""
    if since.strip()[-1:] in ("s", "m", "h", "d"):
        with suppress(typer.BadParameter):
            return max(0.0, queue.stats().now - seconds(since))
    try:
        return moment(since)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}; or how long ago: 30s, 10m, 2h, 1d; 0 is the beginning") from None


def _known(queue: AnyQueue, begin: float | None, n: int | None, task: str | None) -> Iterator[Event]:
    """Give what is in the log already."""
    if begin is None:
        last = queue.events.list(n=min(20 if n is None else max(1, n), PAGE), task=task)
        yield from last.events if n != 0 else ()
        return
    after: Any = begin
    left = n
    while left is None or left > 0:
        page = queue.events.list(after, min(PAGE, left or PAGE), task)
        if page.cursor == after:
            return
        yield from page.events
        after, left = page.cursor, None if left is None else left - len(page.events)


def _show(event: Event, task: str | None, as_json: bool) -> None:
    """Print an entry: a line for each move, or one JSON document."""
    if as_json:
        shown = {
            "id": event.id, "at": event.at, "verb": event.verb, "by": event.by, "moves": dict(event.moves),
            "shard": event.shard, "level": event.level,
        }  # fmt: skip
        Sink(True).document({name: value for name, value in shown.items() if value is not None})
        return
    moves = [(f"{left}>{entered}", id) for id, left, entered in event.each() if task is None or id == task]
    if event.level is not None:
        moves = [(f"level {event.level}", "")]
    lines = ["\t".join(map(safe, (iso(event.at), event.verb, event.by or "-", way, id))) for way, id in moves]
    if lines:
        typer.echo("\n".join(lines))
        sys.stdout.flush()
