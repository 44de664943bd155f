"""The commands about functions: call, result, functions; and schedules, what is put again and again."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeoutq.cli.command import Known, Moment, Seconds, Server, TaskName, Where, app, argument, command
from timeoutq.cli.lines import Sink, iso, length, read_json, read_option
from timeoutq.cli.saying import exit_unless, meant, refuse, stop
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import LATE, NOTHING, USAGE
from timeoutq.words.model import CallRecord, State, Task, raw, text
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.functions import App, FunctionCall
    from timeoutq.rooms.schedules.definition import ScheduleInfo

T = TypeVar("T")

Args = Annotated[str | None, "JSON: A list: arguments by their places."]
Kwargs = Annotated[str | None, "JSON: An object: arguments by name."]


@contextmanager
def opened_app(path: str, address: str | None) -> Iterator[App]:
    """Import an app, also from the folder in which the command is run; its calls go to this server, if one is named."""
    from timeoutq.functions import Sender
    from timeoutq.functions.app import load_app

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = load_app(path)
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
    twice = given is not None and (args is not None or kwargs is not None)
    refuse(twice, "give the arguments behind the function, or with --args and --kwargs, not both")
    by_place, by_name = list[Any](), dict[str, Any]()
    if args is not None:
        by_place = read_option("--args", args, list, "a list")
    if kwargs is not None:
        by_name = read_option("--kwargs", kwargs, dict, "an object")
    if given is not None:
        read: Any = read_option("the arguments", given, (list, dict), "a list or an object")
        by_place, by_name = (by_place, read) if hasattr(read, "keys") else (read, by_name)
    chosen = {name: value for name, value in options.items() if value is not None}
    made: FunctionCall[Any] = known.options(**chosen).call(*by_place, **by_name)
    return made


@command()
def call(
    path: Annotated[str, argument("MODULE:APP", "The App of a module.")],
    function: Annotated[str, argument("FUNCTION", "Name of the function.")],
    given: Annotated[
        str | None,
        argument("[ARGUMENTS]", "JSON: a list of arguments by their places, or an object of arguments by their names."),
    ] = None,
    args: Args = None, kwargs: Kwargs = None,
    id: Annotated[str | None, "ID: Id of the call."] = None,
    queue: Annotated[str | None, "QUEUE: Another queue of the app."] = None,
    at: Annotated[Moment | None, "Unix seconds, or ISO 8601 with a zone."] = None,
    after: Annotated[Seconds | None, "How long from now."] = None,
    expires: Annotated[Seconds | None, "If it has not begun so long after it is ready, it never begins."] = None,
    rerun: Annotated[bool, "If the call is in progress, it runs once more, with these arguments."] = False,
    keep_result: Annotated[Seconds | None, "For how long the result is kept."] = None,
    wait: Annotated[Seconds | None, "How long to wait for the result, which is printed then."] = None,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Put a call of a function; with --wait, print what it returned, as JSON.

    Without --wait, prints the id of the call, and "added" or the state that has the call already. Exit 1 if the call
    fails, 5 if it has not ended in time.
    """
    if wait is not None and keep_result is None:
        keep_result = Seconds(3600)  # whoever waits wants None, too
    options = {
        "id": id, "queue": queue, "at": at, "after": after, "expires": expires, "keep_result": keep_result,
        "rerun": rerun or None,
    }  # fmt: skip
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
        stop(str(error), LATE)
    except CallFailed as error:
        more = f": `timeoutq result {put.queue} {shlex.quote(error.id)}` prints the traceback"
        stop(f"{error}{more if error.traceback else ''}")
    except CallGone as error:
        stop(str(error))


@command()
def result(
    queue: Known, task: TaskName,
    wait: Annotated[Seconds | None, "How long to wait for the end of the call."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Print what a call has returned, as JSON; of a failed call, the error.

    Exit 1 if the call has failed, has not ended, or left nothing that is known; 5 if it has not ended within --wait.
    """
    from timeoutq.functions import ids, outcomes

    until = None if wait is None else time.monotonic() + wait
    own, ended = raw(task), None
    for own, _ in ids.chain(raw(task)):  # each call of a chain is put when the one before it has returned
        look, left = queue.results.look, None if until is None else max(0.0, until - time.monotonic())
        ended = next(iter((look(own) if left is None else queue.results.wait(own, timeout=left)).values()), None)
        if ended is None or ended.state is State.FAILED:
            break
    if ended is None:
        words = f"call {task!r} has not ended{'' if wait is None else f' within {wait:g} s'}: `timeoutq inspect "
        stop(f"{words}{queue.name} {shlex.quote(text(own))}` tells where it is", NOTHING if wait is None else LATE)
    state = None if ended.state is None else str(ended.state)
    if ended.state is State.FAILED:
        failed = outcomes.read_failure(ended.result, ended.error)
        if out.as_json:
            fields = {"error": failed.error, "message": failed.message, "traceback": failed.traceback}
            out.document({"id": ended.task, "state": state, **fields})
        elif failed.traceback:
            typer.echo("\n".join(map(safe, failed.traceback.splitlines())))
        stop(f"call {ended.task!r} failed: {failed}")
    exit_unless(ended.result != b"", f"call {ended.task!r} {outcomes.NO_MEMORY}")
    if ended.result is None:
        stop(
            f"nothing is known of what call {ended.task!r} returned: it went to another queue than {queue.name}, or "
            "its result was not kept (give the function or the call keep_result=, in seconds), or has expired"
        )
    try:
        value = read_json(ended.result)
    except ValueError:
        raise InvalidInput(f"the result of task {ended.task!r} is no JSON: no function returned it") from None
    out.document({"id": ended.task, "state": state, "result": value} if out.as_json else value)


@command()
def calls(
    queue: Known, n: Annotated[int, "-n --limit 1..500: How many calls, at most."] = 100, *, out: Sink
) -> None:  # fmt: skip
    """List the calls that ended last, the newest first, of those whose results are still kept. Exit 1: there are none.

    The columns on a pipe: call, how it ended, when, attempts, put, first start, last start, worker of the last attempt,
    error. `timeoutq inspect QUEUE CALL` shows each attempt, and --json, too.
    """
    found = queue.results.ended(n)
    exit_unless(found, f"queue {queue.name} has no calls that have ended and whose results are kept")
    columns = ("call", "how", "ended", "attempts", "put", "first start", "last start", "worker", "error")
    out.each(columns, found, _ended)


def _ended(one: CallRecord) -> tuple[Any, ...]:
    first, last = (iso(one.attempts[at].start) if one.attempts else None for at in (0, -1))
    worker = one.attempts[-1].worker if one.attempts else None
    return one.task, one.how, iso(one.ended), len(one.attempts), iso(one.put), first, last, worker, one.error


@command()
def functions(where: Where, *, server: Server, out: Sink) -> None:
    """List functions: those of an app, or those that the workers of a queue have published.

    With --json, each comes with the JSON Schema of its calls.
    """
    if ":" in where:
        with opened_app(where, server.address()) as found:
            rows = _of_app(found)
    else:
        with server.known(where) as opened:
            rows = _of_queue(opened)
    exit_unless(rows, f"there are no functions in {where}")
    columns = ("function", "queue", "takes", "when", "published", "worker")
    out.each(columns, rows, lambda row: [_takes(row["schema"]) if name == "takes" else row[name] for name in columns])


def _of_app(found: App) -> list[dict[str, Any]]:
    return [
        {
            "function": name, "queue": one.settings.queue,
            "when": None if one.settings.timed is None else str(one.settings.timed.timing()),
            "published": None, "worker": None, "schema": one.schema(),
        }
        for name, one in sorted(found.functions.items())
    ]  # fmt: skip


def _of_queue(opened: Known) -> list[dict[str, Any]]:
    """Give the newest published version of each function; `lua/verbs/publish.lua` says how these are stored."""
    from timeoutq.client.shards import talks_of
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


def _row(info: ScheduleInfo) -> tuple[Any, ...]:
    found = info.timing
    timing = f"{found['cron']} {found['tz']}" if "cron" in found else f"every {length(found['every'])}"
    if "times" in found:
        timing += f", {found['times']} times"
    return (
        info.name, info.state, timing, iso(info.next), iso(info.last), info.put, info.skipped,
        info.missed_ticks, info.task, info.source,
    )  # fmt: skip


def _change(queue: Known, name: str, change: Callable[[str], T], code: int = USAGE) -> T:
    """Change a schedule; if the queue has none of this name, say which may have been meant, and end with `code`."""
    from timeoutq.watch import directory

    if queue.schedules.get(name) is None:
        alike = map(repr, directory.alike(name, (info.name for info in queue.schedules.each())))
        lists = f"`timeoutq schedules list {queue.name}` lists those that it has"
        stop(f"queue {queue.name} has no schedule {name!r:.80}: {meant(alike, lists)}", code)
    return change(name)


@command(group, "list")
def list_(where: Where, *, server: Server, out: Sink) -> None:
    """List the schedules of a queue, or of all queues of an App, with their queues. Exit 1 when there are none.

    In a pipe, the columns are the name, the state, the timing, the next and the last tick, how many ticks were put,
    skipped and missed, the task, and the source: `code` (workers declare it) or `set`.
    """
    if ":" in where:
        with opened_app(where, server.address()) as found:
            infos: list[Any] = [(queue, info) for queue, infos in found.schedules.list().items() for info in infos]
        exit_unless(infos, f"the queues of {where} have no schedules")
        if out.as_json:
            infos = [{"queue": queue, **asdict(info)} for queue, info in infos]
        out.each(("queue", *COLUMNS), infos, lambda one: (one[0], *_row(one[1])))
        return
    with server.known(where) as opened:
        known = sorted(opened.schedules.each(), key=lambda info: info.name)
    exit_unless(known, f"queue {where} has no schedules")
    out.each(COLUMNS, known, _row)


@command(group, "set")
def set_(
    where: Where, name: Schedule,
    what: Annotated[
        str | None,
        argument("[TASK|FUNCTION]", "In a queue: the id of the task, or else the name. With an app: the function."),
    ] = None, *,
    when: When,
    missed: Annotated[
        str, "last|all|none: Which ticks that nobody put in time are put late; all needs --overlap."
    ] = "last",
    grace: Annotated[Seconds | None, "A tick that is later than this is not put, and its call does not begin."] = None,
    expires: Annotated[Seconds | None, "With an app: a call that has not begun by then never begins."] = None,
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
            out.each(COLUMNS, [found.schedules.set(name, call, expires=expires, **how)], _row)
        return
    words = "--args and --kwargs are for calls of functions: name MODULE:APP in the place of the queue"
    refuse(args is not None or kwargs is not None, words)
    refuse(expires is not None, "--expires is for calls of functions: name MODULE:APP in the place of the queue")
    with server.open(where) as opened:
        task = Task(name if what is None else what, None if payload is None else read_option("--payload", payload))
        out.each(COLUMNS, [opened.schedules.set(name, task, **how)], _row)


@command(group)
def move(queue: Known, name: Schedule, *, when: When, out: Sink) -> None:
    """Give a schedule another timing; what it puts stays, and --times and --until unless they are given.

    One that code declares does not follow its code any more, until `schedules cancel` gives it back to the code.
    """
    out.each(COLUMNS, [_change(queue, name, partial(queue.schedules.move, **when.words()))], _row)


@command(group)
def pause(queue: Known, name: Schedule, *, out: Sink) -> None:
    """Stop a schedule until it is resumed."""
    out.each(COLUMNS, [_change(queue, name, queue.schedules.pause)], _row)


@command(group)
def resume(queue: Known, name: Schedule, *, out: Sink) -> None:
    """Let a schedule go on with its next tick; the ticks of the pause are not put."""
    out.each(COLUMNS, [_change(queue, name, queue.schedules.resume)], _row)


@command(group)
def cancel(queue: Known, name: Schedule, *, out: Sink) -> None:
    """Remove a schedule; what its ticks have put stays. Exit 1 when there is none of this name."""
    removed = _change(queue, name, queue.schedules.cancel, NOTHING)
    if out.as_json:
        out.document({"schedule": name, "cancelled": removed})
