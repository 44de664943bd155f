"""The commands about schedules: schedules list, set, move, pause, resume, cancel.

`app.py` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import NOTHING, AsJson, Name, Url, UrlFile, app, known_queue, open_queue, server_address, stop
from timeoutq.cli.calling import Args, Kwargs, call_of, opened_app
from timeoutq.cli.printing import Sink, iso, length, plain
from timeoutq.cli.reading import duration, moment, read_json
from timeoutq.errors import InvalidInput
from timeoutq.exit_codes import USAGE

if TYPE_CHECKING:
    from timeoutq.schedules.definition import ScheduleInfo
    from timeoutq.shards import AnyQueue

PANEL = "Functions"
COLUMNS = ("schedule", "state", "timing", "next", "last", "put", "skipped", "missed", "task", "source")

group = typer.Typer(help="Schedules: what is put again and again.", no_args_is_help=True)
app.add_typer(group, name="schedules", rich_help_panel=PANEL)

Schedule = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.", show_default=False)]
Where = Annotated[
    str, typer.Argument(metavar="QUEUE|MODULE:APP", help="A queue, or the App of a module.", show_default=False)
]
Cron = Annotated[
    str | None,
    typer.Option(
        "--cron", metavar="LINE", show_default=False, help="Minute, hour, day, month, weekday: '0 9 * * 1-5'."
    ),
]
Zone = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", show_default=False, help="The zone of --cron: Europe/Berlin.")
]
Every = Annotated[float | None, duration("Again and again after this time.", "--every")]
Times = Annotated[
    int | None, typer.Option("--times", min=1, metavar="N", show_default=False, help="End after so many ticks.")
]
Start = Annotated[
    float | None, typer.Option("--start", parser=moment, metavar="TIME", show_default=False, help="No tick is earlier.")
]
Until = Annotated[
    float | None, typer.Option("--until", parser=moment, metavar="TIME", show_default=False, help="No tick is later.")
]


def _when(
    cron: str | None, tz: str | None, every: float | None, times: int | None, start: float | None, until: float | None
) -> dict[str, Any]:
    def aware(at: float | None) -> datetime | None:
        return None if at is None else datetime.fromtimestamp(at, UTC)

    return {"cron": cron, "tz": tz, "every": every, "times": times, "start": aware(start), "until": aware(until)}


def _timing(info: ScheduleInfo) -> str:
    found = info.timing
    words = f"{found['cron']} {found['tz']}" if "cron" in found else f"every {length(found['every'])}"
    return f"{words}, {found['times']} times" if "times" in found else words


@contextmanager
def _having(queue: str, name: str, url: str | None, url_file: Path | None, code: int = USAGE) -> Iterator[AnyQueue]:
    """Open a queue that has this schedule; if it has none, say which one may have been meant, and end with `code`."""
    from timeoutq import directory

    with known_queue(queue, url, url_file) as opened:
        if opened.schedules.get(name) is None:
            alike = " or ".join(map(repr, directory.alike(name, (info.name for info in opened.schedules.each()))))
            meant = f"did you mean {alike}? " if alike else ""
            stop(
                code,
                f"queue {queue} has no schedule {name!r:.80}: {meant}`timeoutq schedules list {queue}` lists those "
                "that it has",
            )
        yield opened


def _show(*infos: ScheduleInfo, as_json: bool) -> None:
    sink = Sink(as_json)
    if as_json:
        for info in infos:
            sink.document(info)
        return
    sink.rows(COLUMNS, map(_row, infos))


def _row(info: ScheduleInfo) -> tuple[Any, ...]:
    return (
        info.name, info.state, _timing(info), iso(info.next), iso(info.last), info.put, info.skipped,
        info.missed_ticks, info.task, "set over code" if info.over_code else info.source,
    )  # fmt: skip


@group.command("list")
def list_(where: Where, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """List the schedules of a queue, or of all queues of an App, with their queues. Exit 1 when there are none.

    The source is `code` (workers declare it), `set`, or `set over code`: code declares it too, but somebody has set or
    moved it, and that counts until `schedules cancel`.
    """
    if ":" in where:
        _list_app(where, server_address(url, url_file), as_json)
        return
    with known_queue(where, url, url_file) as opened:
        found = sorted(opened.schedules.each(), key=lambda info: info.name)
        if not found:
            stop(NOTHING, f"queue {where} has no schedules")
        _show(*found, as_json=as_json)


def _list_app(where: str, address: str | None, as_json: bool) -> None:
    with opened_app(where, address) as opened:
        found = [(queue, info) for queue, infos in opened.schedules.list().items() for info in infos]
    if not found:
        stop(NOTHING, f"the queues of {where} have no schedules")
    sink = Sink(as_json)
    if not as_json:
        sink.rows(("queue", *COLUMNS), [(queue, *_row(info)) for queue, info in found])
        return
    for queue, info in found:
        sink.document({"queue": queue, **plain(info)})


@group.command("set")
def set_(
    where: Where,
    name: Schedule,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK|FUNCTION]", show_default=False,
            help="In a queue: the id of the task, or else the name. With an app: the function.",
        ),
    ] = None,
    cron: Cron = None, tz: Zone = None, every: Every = None, times: Times = None, start: Start = None,
    until: Until = None,
    missed: Annotated[
        str,
        typer.Option(
            "--missed", metavar="last|all|none",
            help="Which ticks that nobody put in time are put late; all needs --overlap.",
        ),
    ] = "last",
    grace: Annotated[float | None, duration("A tick that is later than this is not put.", "--grace")] = None,
    overlap: Annotated[bool, typer.Option("--overlap", help="Each tick has an id of its own.")] = False,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", show_default=False, help="The payload of the task.")
    ] = None,
    args: Args = None, kwargs: Kwargs = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put a task, or a call of a function, again and again."""
    how: Any = {**_when(cron, tz, every, times, start, until), "missed": missed, "grace": grace, "overlap": overlap}
    if ":" in where:
        if what is None or payload is not None:
            raise InvalidInput("with an app, name the function behind the schedule, and give --args and --kwargs")
        _set_call(where, name, what, args, kwargs, how, server_address(url, url_file), as_json)
        return
    if args is not None or kwargs is not None:
        raise InvalidInput("--args and --kwargs are for calls of functions: name MODULE:APP in the place of the queue")
    from timeoutq.model import Task

    with open_queue(where, url, url_file) as opened:
        task = Task(name if what is None else what, None if payload is None else _payload(payload))
        _show(opened.schedules.set(name, task, **how), as_json=as_json)


def _payload(words: str) -> Any:
    try:
        return read_json(words)
    except ValueError as error:
        raise InvalidInput(f"--payload {words!r:.80} is no JSON: {error}") from None


def _set_call(
    where: str, name: str, function: str, args: str | None, kwargs: str | None, how: Any, address: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    with opened_app(where, address) as found:
        _show(found.schedules.set(name, call_of(found, function, None, args, kwargs), **how), as_json=as_json)


@group.command()
def move(
    queue: Name, name: Schedule, cron: Cron = None, tz: Zone = None, every: Every = None, times: Times = None,
    start: Start = None, until: Until = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Give a schedule another timing; what it puts stays, and --times and --until unless they are given.

    One that code declares does not follow its code any more, until `schedules cancel` gives it back to the code.
    """
    when: Any = _when(cron, tz, every, times, start, until)
    with _having(queue, name, url, url_file) as opened:
        _show(opened.schedules.move(name, **when), as_json=as_json)


@group.command()
def pause(queue: Name, name: Schedule, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Stop a schedule until it is resumed."""
    with _having(queue, name, url, url_file) as opened:
        _show(opened.schedules.pause(name), as_json=as_json)


@group.command()
def resume(queue: Name, name: Schedule, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Let a schedule go on with its next tick; the ticks of the pause are not put."""
    with _having(queue, name, url, url_file) as opened:
        _show(opened.schedules.resume(name), as_json=as_json)


@group.command()
def cancel(queue: Name, name: Schedule, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Remove a schedule; what its ticks have put stays. Exit 1 when there is none of this name.

    One that was `set over code` is given back to the code: workers declare it anew within a minute.
    """
    with _having(queue, name, url, url_file, NOTHING) as opened:
        removed = opened.schedules.cancel(name)
    if as_json:
        Sink(as_json).document({"schedule": name, "cancelled": removed})
