"""The commands about calls of functions: call, result, functions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import LATE, stop
from timeoutq.cli.command import AppPath, Known, Moment, Seconds, Server, TaskName, Where, argument, command
from timeoutq.cli.printing import Sink, iso
from timeoutq.cli.reading import read_json
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING
from timeoutq.words.model import State, text
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.functions import App, FunctionCall

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
    if given is not None and (args is not None or kwargs is not None):
        raise InvalidInput("give the arguments behind the function, or with --args and --kwargs, not both")
    if given is not None:
        found: Any = _read("the arguments", given, (list, dict), "a list or an object")
        return (found, {}) if given.lstrip().startswith("[") else ([], found)
    by_place: list[Any] = [] if args is None else _read("--args", args, list, "a list")
    by_name: dict[str, Any] = {} if kwargs is None else _read("--kwargs", kwargs, dict, "an object")
    return by_place, by_name


def _read(what: str, words: str, kinds: Any, said: str) -> Any:
    try:
        found = read_json(words)
    except ValueError as error:
        raise InvalidInput(
            f"{what} {words!r:.80} are no JSON: write {said}, with texts in double quotes, as in '[\"a\", 5]' ({error})"
        ) from None
    if not isinstance(found, kinds):
        raise InvalidInput(f"{what} {words!r:.80} must be {said}, as in '[\"a\", 5]'")
    return found


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
        for line in () if out.as_json else (failed.traceback or "").splitlines():
            typer.echo(safe(line))
        stop(NOTHING, f"call {ended.task!r} failed: {failed}")
    if not ended.result:
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
    shown = [{**row, "takes": _takes(row["schema"])} for row in rows]
    out.each(columns, rows if out.as_json else shown, lambda row: [row[column] for column in columns])


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
    """Give the newest published version of each function; `lua/publish.lua` says how these are stored."""
    from timeoutq.client.shards.opening import talks_of
    from timeoutq.verbs.sending import ask

    newest: dict[str, tuple[int, str, Any]] = {}
    for talk in talks_of(opened):
        (reply,) = opened.run(ask(talk, [("HGETALL", talk.operations.key("functions"))]))
        pairs: dict[bytes, bytes] = reply
        for name, lines in pairs.items():
            words = lines.split(b"\n", 1)[0].split(b" ", 3)
            if len(words) == 4 and words[1].isdigit():
                found = int(words[1]), text(words[2]), read_json(words[3])
                key = text(name)
                newest[key] = max(newest.get(key, found), found, key=lambda one: one[0])
    return [
        {
            "function": name, "queue": opened.name, "when": None, "published": iso(at / 1000), "worker": worker,
            "schema": schema,
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
