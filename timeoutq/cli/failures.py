"""The command about failed tasks by kind: failures. It lists the kinds, or retries or forgets all tasks of one.

`app.py` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from timeoutq.cli.app import NOTHING, AsJson, Name, Url, UrlFile, Yes, app, known_queue, say, saying_how_far, stop, sure
from timeoutq.cli.printing import Sink, iso, progress
from timeoutq.errors import InvalidInput

if TYPE_CHECKING:
    from timeoutq.shards import AnyQueue

COLUMNS = ("kind", "count", "last", "task", "error")
PART = 500
"""How many tasks are moved between two looks at how far it is."""


@app.command(rich_help_panel="From anywhere")
def failures(
    queue: Name,
    tasks: Annotated[
        str | None, typer.Option(metavar="KIND", help="Show tasks of this kind, the last 100.", show_default=False)
    ] = None,
    retry: Annotated[
        str | None, typer.Option(metavar="KIND", help="Retry all tasks of this kind.", show_default=False)
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="KIND", help="Forget all tasks of this kind; asks first.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1001, help="The most kinds to list.")] = 100,
    yes: Yes = False, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Count the failed tasks by kind, or retry or forget all tasks of one kind. Exit 1: there is none.

    A kind is the type and the first line of the error, without what differs
    from task to task: URLs, the task's id, and numbers, but not codes such as
    HTTP 404. KIND is its name in the first column, or its text.

    The columns on a pipe: kind, count, last, task, error.
    """
    given = [kind for kind in (tasks, retry, forget) if kind is not None]
    if len(given) > 1:
        raise InvalidInput("give one of --tasks, --retry and --forget")
    sink = Sink(as_json)
    with known_queue(queue, url, url_file) as opened:
        if tasks is not None:
            page = opened.failures.tasks(tasks)
            sink.rows(("task", "at", "error"), ((one.task, iso(one.at), one.error) for one in page))
            met = len(page)
        elif retry is not None:
            met = _move(opened, "retry", retry, sink)
        elif forget is not None:
            known = next((one for one in opened.failures.list(1001) if forget in (one.id, one.text)), None)
            if known is None:
                stop(NOTHING, _none(queue))
            sure(f"Forget {known.count:,} failed tasks of queue {queue}: {known.text}?", yes)
            met = _move(opened, "forget", forget, sink)
        else:
            found = opened.failures.list(limit)
            if as_json:
                for one in found:
                    sink.document(one)
            else:
                sink.rows(COLUMNS, ((one.id, one.count, iso(one.last), one.task, one.text) for one in found))
            met = len(found)
    if not met:
        if given:
            say(_none(queue))
        raise typer.Exit(NOTHING)


def _none(queue: str) -> str:
    return f"queue {queue} has no failed task of this kind; `timeoutq failures {queue}` lists the kinds that there are"


def _move(queue: AnyQueue, verb: str, kind: str, sink: Sink) -> int:
    move = queue.failures.retry if verb == "retry" else queue.failures.forget
    word = "retried" if verb == "retry" else "forgotten"
    met, before = 0, None
    with saying_how_far(lambda: (met, f"{met:,} {word}; the same command goes on")), progress(word) as tell:
        while True:
            found = move(kind, at_most=PART, before=before)
            met, before = met + found.moved, found.before
            tell(met, met)
            if not found.left:
                break
    sink.document({word: met}) if sink.as_json else typer.echo(f"{met} {word}")
    return met
