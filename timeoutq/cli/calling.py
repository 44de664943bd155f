"""The commands about functions: call, result, functions; and schedules, what is put again and again."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import app, meant, stop
from timeoutq.cli.command import AppPath, Known, Moment, Name, Seconds, Server, TaskName, Where, argument, command
from timeoutq.cli.printing import Sink, iso, length
from timeoutq.cli.reading import read_json, read_option
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import LATE, NOTHING, USAGE
from timeoutq.words.model import State, Task, text
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.functions import App, FunctionCall
    from timeoutq.rooms.schedules.definition import ScheduleInfo

Args = Annotated[str | None, "JSON: A list: arguments by their places."]
Kwargs = Annotated[str | None, "JSON: An object: arguments by name."]


def app_at(path: str) -> App:
    """Import an app from `module:app`, also from the folder in which the command is run."""
    from timeoutq.functions.app import load_app

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return load_app(path)


@contextmanager
def opened_app(path: str, address: str | None) -> Iterator[App]:
    """Import an app, whose calls go to this server, or to the one that the app or the environment names."""
    from timeoutq.functions import Sender

    found = app_at(path)
    before, found.sender = found.sender, Sender(found.url if address is None else address)
    try:
        yield found
    finally:
        found.close()
        found.sender = before


def call_of(found: App, function: str, given: str | None, args: str | None, kwargs: str | None, **options: Any) -> Any:
    """Make a call from what was typed. Raises `InvalidInput`."""
    known = found.functions.get(function)
    if known is None:
        raise InvalidInput(f"{found!r} has no function {function!r}; it has {', '.join(found.functions) or 'none'}")
    by_place, by_name = _arguments(given, args, kwargs)
    chosen = {name: value for name, value in options.items() if value is not None}
    made: FunctionCall[Any] = known.options(**chosen).call(*by_place, **by_name)
    return made


def _arguments(given: str | None, args: str | None, kwargs: str | None) -> tuple[list[Any], dict[str, Any]]:
    if given is None:
        return (
            [] if args is None else read_option("--args", args, list, "a list"),
            {} if kwargs is None else read_option("--kwargs", kwargs, dict, "an object"),
        )
    if args is not None or kwargs is not None:
        raise InvalidInput("give the arguments behind the function, or with --args and --kwargs, not both")
    found: Any = read_option("the arguments", given, (list, dict), "a list or an object")
    return (found, {}) if given.lstrip().startswith("[") else ([], found)


@command()
def call(
    path: AppPath, function: Annotated[str, argument("FUNCTION", "Name of the function.")],
    given: Annotated[
        str | None,
        argument("[ARGUMENTS]", "JSON: a list of arguments by their places, or an object of arguments by their names."),
    ] = None,
    args: Args = None, kwargs: Kwargs = None,
    id: Annotated[str | None, "ID: Id of the call."] = None,
    queue: Annotated[str | None, "QUEUE: Another queue of the app."] = None,
    at: Annotated[Moment | None, "Unix seconds, or ISO 8601 with a zone."] = None,
    after: Annotated[Seconds | None, "How long from now."] = None,
    rerun: Annotated[bool, "If the call is in progress, it runs once more, with these arguments."] = False,
    keep_result: Annotated[Seconds | None, "For how long the result is kept."] = None,
    wait: Annotated[Seconds | None, "How long to wait for the result, which is printed then."] = None,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Put a call of a function; with --wait, print what it returned, as JSON.

    Without --wait, prints the id of the call, and "added" or the state that has
    the call already. Exit 1 if the call fails, 5 if it has not ended in time.
    """
    if wait is not None and keep_result is None:
        keep_result = Seconds(3600)  # whoever waits wants None, too
    options = {"id": id, "queue": queue, "at": at, "after": after, "keep_result": keep_result, "rerun": rerun or None}
    with opened_app(path, server.address()) as found:
        put = found.post(call_of(found, function, given, args, kwargs, **options))
        if wait is None:
            out.rows(("id", "answer"), [(put.id, str(put.answer))])
            return
        value = _waited(put, wait)
        out.document({"id": put.id, "answer": str(put.answer), "result": value} if out.as_json else value)


def _waited(put: Any, wait: float) -> Any:
    from timeoutq.functions import CallFailed, CallGone
    from timeoutq.functions.outcomes import encode

    try:
        return json.loads(encode(put.wait(wait), Any))
    except TimeoutError as error:
        stop(LATE, str(error))
    except CallFailed as error:
        more = f": `timeoutq result {put.queue} {shlex.quote(error.id)}` prints the traceback"
        stop(NOTHING, f"{error}{more if error.traceback else ''}")
    except CallGone as error:
        stop(NOTHING, str(error))


@command()
def result(
    queue: Known, task: TaskName,
    wait: Annotated[Seconds | None, "How long to wait for the end of the call."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Print what a call has returned, as JSON; of a failed call, the error.

    Exit 1 if the call has failed, has not ended, or left nothing that is known;
    5 if it has not ended within --wait.
    """
    from timeoutq.functions import outcomes

    found = queue.results.look(task) if wait is None else queue.results.wait(task, timeout=wait)
    ended = next(iter(found.values()), None)
    if ended is None:
        within = "" if wait is None else f" within {wait:g} s"
        code = NOTHING if wait is None else LATE
        stop(code, f"call {task!r} has not ended{within}: `timeoutq inspect {queue.name} {task}` tells where it is")
    state = None if ended.state is None else str(ended.state)
    if ended.state is State.FAILED:
        failed = outcomes.read_failure(ended.result, ended.error)
        if out.as_json:
            fields = {"error": failed.error, "message": failed.message, "traceback": failed.traceback}
            out.document({"id": ended.task, "state": state, **fields})
        elif failed.traceback:
            typer.echo("\n".join(map(safe, failed.traceback.splitlines())))
        stop(NOTHING, f"call {ended.task!r} failed: {failed}")
    if ended.result == b"":
        stop(NOTHING, f"call {ended.task!r} {outcomes.NO_MEMORY}")
    if ended.result is None:
        stop(
            NOTHING,
            f"nothing is known of what call {ended.task!r} returned, because its result was not kept, or has expired: "
            "give the function or the call keep_result=, in seconds",
        )
    try:
        value = read_json(ended.result)
    except ValueError:
        raise InvalidInput(f"the result of task {ended.task!r} is no JSON: no function returned it") from None
    out.document({"id": ended.task, "state": state, "result": value} if out.as_json else value)


@command()
def functions(where: Where, *, server: Server, out: Sink) -> None:
    """List functions: those of an app, or those that the workers of a queue have published.

    With --json, each comes with the JSON Schema of its calls.
    """
    if ":" in where:
        rows = _of_app(app_at(where))
    else:
        with server.known(where) as opened:
            rows = _of_queue(opened)
    if not rows:
        stop(NOTHING, f"there are no functions in {where}")
    columns = ("function", "queue", "takes", "when", "published", "worker")
    out.each(columns, rows, lambda row: [_takes(row["schema"]) if name == "takes" else row[name] for name in columns])


def _of_app(found: App) -> list[dict[str, Any]]:
    from timeoutq.rooms.schedules.flows import timing_of

    return [
        {
            "function": name, "queue": one.settings.queue,
            "when": None if one.settings.timed is None else str(timing_of(one.settings.timed.when())),
            "published": None, "worker": None, "schema": one.schema(),
        }
        for name, one in sorted(found.functions.items())
    ]  # fmt: skip


def _of_queue(opened: AnyQueue) -> list[dict[str, Any]]:
    """Give the newest published version of each function; `lua/verbs/publish.lua` says how these are stored."""
    from timeoutq.client.shards.opening import talks_of
    from timeoutq.verbs.sending import ask

    newest: dict[str, tuple[int, str, bytes]] = {}
    for talk in talks_of(opened):
        (reply,) = opened.run(ask(talk, [("HGETALL", talk.operations.key("functions"))]))
        pairs: dict[bytes, bytes] = reply
        for name, lines in pairs.items():
            words = lines.split(b"\n", 1)[0].split(b" ", 3)
            if len(words) == 4 and words[1].isdigit():
                found = int(words[1]), text(words[2]), words[3]
                newest[text(name)] = max(newest.get(text(name), found), found)
    return [
        {
            "function": name, "queue": opened.name, "when": None, "published": iso(at / 1000), "worker": worker,
            "schema": read_json(schema),
        }
        for name, (at, worker, schema) in sorted(newest.items())
    ]  # fmt: skip


def _takes(schema: Mapping[str, Any]) -> str:
    """Give the parameters in a few words: `to, subject=`."""
    fields = schema.get("properties", {})
    a, k = fields.get("a", {}), fields.get("k", {})
    by_place = len(a.get("prefixItems", [])) + (a.get("items") not in (False, None))
    needed: Sequence[str] = k.get("required", [])
    named = [*needed, *(f"{name}=" for name in k.get("properties", {}) if name not in needed)]
    more = ["…"] if k.get("additionalProperties") else []
    return ", ".join(["_"] * by_place + named + more)


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
            alike = map(repr, directory.alike(name, (info.name for info in opened.schedules.each())))
            lists = f"`timeoutq schedules list {queue}` lists those that it has"
            stop(code, f"queue {queue} has no schedule {name!r:.80}: {meant(alike, lists)}")
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
            infos = [{"queue": queue, **asdict(info)} for queue, info in infos]
        out.each(("queue", *COLUMNS), infos, lambda one: (one[0], *_row(one[1])))
        return
    with server.known(where) as opened:
        known = sorted(opened.schedules.each(), key=lambda info: info.name)
        if not known:
            stop(NOTHING, f"queue {where} has no schedules")
        out.each(COLUMNS, known, _row)


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
        task = Task(name if what is None else what, None if payload is None else read_option("--payload", payload))
        out.each(COLUMNS, [opened.schedules.set(name, task, **how)], _row)


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

    One that was `set over code` is given back to the code: workers declare it again within a minute.
    """
    with _having(server, queue, name, NOTHING) as opened:
        removed = opened.schedules.cancel(name)
    if out.as_json:
        out.document({"schedule": name, "cancelled": removed})
