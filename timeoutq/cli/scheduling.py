"""The commands about schedules: schedules list, set, move, pause, resume, cancel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import app, stop
from timeoutq.cli.calling import Args, Kwargs, call_of, opened_app
from timeoutq.cli.command import Moment, Name, Seconds, Server, Where, argument, command
from timeoutq.cli.printing import Sink, iso, length, plain
from timeoutq.cli.reading import read_json
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING, USAGE
from timeoutq.words.model import Task

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.rooms.schedules.definition import ScheduleInfo

COLUMNS = ("schedule", "state", "timing", "next", "last", "put", "skipped", "missed", "task", "source")

group = typer.Typer(help="Schedules: what is put again and again.", no_args_is_help=True)
app.add_typer(group, name="schedules", rich_help_panel="Functions")

Schedule = Annotated[str, argument("NAME", "Name of the schedule.")]


@dataclass(frozen=True)
class When:
    """When a schedule puts its task."""

    cron: Annotated[str | None, "LINE: Minute, hour, day, month, weekday: '0 9 * * 1-5'."] = None
    tz: Annotated[str | None, "ZONE: The zone of --cron: Europe/Berlin."] = None
    every: Annotated[Seconds | None, "Again and again after this time."] = None
    times: Annotated[int | None, "N 1..: End after so many ticks."] = None
    start: Annotated[Moment | None, "No tick is earlier."] = None
    until: Annotated[Moment | None, "No tick is later."] = None

    def words(self) -> dict[str, Any]:
        """Give the timing as arguments of `schedules.set`."""
        moments = {name: None if at is None else datetime.fromtimestamp(at, UTC)
                   for name, at in (("start", self.start), ("until", self.until))}  # fmt: skip
        return {**vars(self), **moments}


def _timing(info: ScheduleInfo) -> str:
    found = info.timing
    words = f"{found['cron']} {found['tz']}" if "cron" in found else f"every {length(found['every'])}"
    return f"{words}, {found['times']} times" if "times" in found else words


@contextmanager
def _having(server: Server, queue: str, name: str, code: int = USAGE) -> Iterator[AnyQueue]:
    """Open a queue that has this schedule; if it has none, say which one may have been meant, and end with `code`."""
    from timeoutq.watch import directory

    with server.known(queue) as opened:
        if opened.schedules.get(name) is None:
            alike = " or ".join(map(repr, directory.alike(name, (info.name for info in opened.schedules.each()))))
            meant = f"did you mean {alike}? " if alike else ""
            stop(
                code,
                f"queue {queue} has no schedule {name!r:.80}: {meant}`timeoutq schedules list {queue}` lists those "
                "that it has",
            )
        yield opened


def _row(info: ScheduleInfo) -> tuple[Any, ...]:
    return (
        info.name, info.state, _timing(info), iso(info.next), iso(info.last), info.put, info.skipped,
        info.missed_ticks, info.task, "set over code" if info.over_code else info.source,
    )  # fmt: skip


@command(group, "list")
def list_(where: Where, *, server: Server, out: Sink) -> None:
    """List the schedules of a queue, or of all queues of an App, with their queues. Exit 1 when there are none.

    The source is `code` (workers declare it), `set`, or `set over code`: code declares it too, but somebody has set or
    moved it, and that counts until `schedules cancel`.
    """
    if ":" in where:
        with opened_app(where, server.address()) as found:
            infos: list[Any] = [(queue, info) for queue, infos in found.schedules.list().items() for info in infos]
        if not infos:
            stop(NOTHING, f"the queues of {where} have no schedules")
        if out.as_json:
            infos = [{"queue": queue, **plain(info)} for queue, info in infos]
        out.each(("queue", *COLUMNS), infos, lambda one: (one[0], *_row(one[1])))
        return
    with server.known(where) as opened:
        schedules = sorted(opened.schedules.each(), key=lambda info: info.name)
        if not schedules:
            stop(NOTHING, f"queue {where} has no schedules")
        out.each(COLUMNS, schedules, _row)


@command(group, "set")
def set_(
    where: Where, name: Schedule,
    what: Annotated[
        str | None,
        argument(
            "[TASK|FUNCTION]", "In a queue: the id of the task, or else the name. With an app: the function."
        ),
    ] = None, *,
    when: When,
    missed: Annotated[
        str, "last|all|none: Which ticks that nobody put in time are put late; all needs --overlap."
    ] = "last",
    grace: Annotated[Seconds | None, "A tick that is later than this is not put."] = None,
    overlap: Annotated[bool, "Each tick has an id of its own."] = False,
    payload: Annotated[str | None, "JSON: The payload of the task."] = None,
    args: Args = None, kwargs: Kwargs = None, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Put a task, or a call of a function, again and again."""
    how: Any = {**when.words(), "missed": missed, "grace": grace, "overlap": overlap}
    if ":" in where:
        if what is None or payload is not None:
            raise InvalidInput("with an app, name the function behind the schedule, and give --args and --kwargs")
        with opened_app(where, server.address()) as found:
            call = call_of(found, what, None, args, kwargs)
            out.each(COLUMNS, [found.schedules.set(name, call, **how)], _row)
        return
    if args is not None or kwargs is not None:
        raise InvalidInput("--args and --kwargs are for calls of functions: name MODULE:APP in the place of the queue")
    with server.open(where) as opened:
        task = Task(name if what is None else what, None if payload is None else _payload(payload))
        out.each(COLUMNS, [opened.schedules.set(name, task, **how)], _row)


def _payload(words: str) -> Any:
    try:
        return read_json(words)
    except ValueError as error:
        raise InvalidInput(f"--payload {words!r:.80} is no JSON: {error}") from None


@command(group)
def move(queue: Name, name: Schedule, *, when: When, server: Server, out: Sink) -> None:
    """Give a schedule another timing; what it puts stays, and --times and --until unless they are given.

    One that code declares does not follow its code any more, until `schedules cancel` gives it back to the code.
    """
    timing: Any = when.words()
    with _having(server, queue, name) as opened:
        out.each(COLUMNS, [opened.schedules.move(name, **timing)], _row)


@command(group)
def pause(queue: Name, name: Schedule, *, server: Server, out: Sink) -> None:
    """Stop a schedule until it is resumed."""
    with _having(server, queue, name) as opened:
        out.each(COLUMNS, [opened.schedules.pause(name)], _row)


@command(group)
def resume(queue: Name, name: Schedule, *, server: Server, out: Sink) -> None:
    """Let a schedule go on with its next tick; the ticks of the pause are not put."""
    with _having(server, queue, name) as opened:
        out.each(COLUMNS, [opened.schedules.resume(name)], _row)


@command(group)
def cancel(queue: Name, name: Schedule, *, server: Server, out: Sink) -> None:
    """Remove a schedule; what its ticks have put stays. Exit 1 when there is none of this name.

    One that was `set over code` is given back to the code: workers declare it anew within a minute.
    """
    with _having(server, queue, name, NOTHING) as opened:
        removed = opened.schedules.cancel(name)
    if out.as_json:
        out.document({"schedule": name, "cancelled": removed})
