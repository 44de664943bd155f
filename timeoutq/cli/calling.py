"""The commands about calls of functions: call, result, functions.

`app.py` runs them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import LATE, NOTHING, AsJson, Name, TaskName, Url, UrlFile, app, known_queue, server_address, stop
from timeoutq.cli.printing import Sink, iso
from timeoutq.cli.reading import duration, moment, read_json
from timeoutq.errors import InvalidInput
from timeoutq.model import State, text

if TYPE_CHECKING:
    from timeoutq.functions import App, Call
    from timeoutq.model import Ended
    from timeoutq.shards import AnyQueue

PANEL = "Functions"

AppPath = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App of a module.", show_default=False)]
Function = Annotated[str, typer.Argument(metavar="FUNCTION", help="Name of the function.", show_default=False)]
Given = Annotated[
    str | None,
    typer.Argument(
        metavar="[ARGUMENTS]", show_default=False,
        help="JSON: a list of arguments by their places, or an object of arguments by their names.",
    ),
]  # fmt: skip
Args = Annotated[
    str | None, typer.Option("--args", metavar="JSON", show_default=False, help="A list: arguments by their places.")
]
Kwargs = Annotated[
    str | None, typer.Option("--kwargs", metavar="JSON", show_default=False, help="An object: arguments by name.")
]


def app_at(path: str) -> App:
    """Import an app from `module:app`, also from the folder in which the command is run."""
    from timeoutq.functions.loading import load_app

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return load_app(path)


@contextmanager
def opened_app(path: str, address: str | None) -> Iterator[App]:
    """Import an app, whose calls go to this server, or to the one that the app or the environment names."""
    from timeoutq.functions.posting import Posting

    found = app_at(path)
    before = found.swap(Posting(found.url if address is None else address))
    try:
        yield found
    finally:
        found.close()
        found.swap(before)


def call_of(found: App, function: str, given: str | None, args: str | None, kwargs: str | None, **options: Any) -> Any:
    """Make a call from what was typed. Raises `InvalidInput`."""
    known = found.functions.get(function)
    if known is None:
        raise InvalidInput(f"{found!r} has no function {function!r}; it has {', '.join(found.functions) or 'none'}")
    by_place, by_name = _arguments(given, args, kwargs)
    chosen = {name: value for name, value in options.items() if value is not None}
    made: Call[Any] = known.options(**chosen).call(*by_place, **by_name)
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


@app.command(rich_help_panel=PANEL)
def call(
    path: AppPath, function: Function, given: Given = None, args: Args = None, kwargs: Kwargs = None,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", show_default=False, help="Id of the call.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", show_default=False, help="Another queue of the app.")
    ] = None,
    at: Annotated[
        float | None, typer.Option(parser=moment, metavar="TIME", help="Unix seconds, or ISO 8601 with a zone.")
    ] = None,
    after: Annotated[float | None, duration("How long from now.")] = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="If the call is in progress, it runs once more, with these arguments.")
    ] = False,
    keep_result: Annotated[float | None, duration("For how long the result is kept.")] = None,
    wait: Annotated[float | None, duration("How long to wait for the result, which is printed then.", "--wait")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put a call of a function; with --wait, print what it returned, as JSON.

    Without --wait, prints the id of the call, and "added" or the state that has
    the call already. Exit 1 if the call fails, 5 if it has not ended in time.
    """
    if wait is not None and keep_result is None:
        keep_result = 3600.0  # whoever waits wants None, too
    options = {"id": id, "queue": queue, "at": at, "after": after, "keep_result": keep_result}
    options["rerun"] = rerun or None
    with opened_app(path, server_address(url, url_file)) as found:
        put = found.post(call_of(found, function, given, args, kwargs, **options))
        if wait is None:
            Sink(as_json).rows(("id", "answer"), [(put.id, str(put.answer))])
            return
        value = _waited(put, wait)
        Sink(as_json).document({"id": put.id, "answer": str(put.answer), "result": value} if as_json else value)


def _waited(put: Any, wait: float) -> Any:
    from timeoutq.functions import CallFailed, CallGone
    from timeoutq.functions.outcomes import encode

    try:
        return json.loads(encode(put.wait(wait), Any))
    except TimeoutError as error:
        stop(LATE, str(error))
    except CallFailed as error:
        more = (
            f": `timeoutq result {put.queue} {shlex.quote(error.id)}` prints the traceback" if error.traceback else ""
        )
        stop(NOTHING, f"{error}{more}")
    except CallGone as error:
        stop(NOTHING, str(error))


@app.command(rich_help_panel=PANEL)
def result(
    queue: Name, task: TaskName,
    wait: Annotated[float | None, duration("How long to wait for the end of the call.", "--wait")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print what a call has returned, as JSON; of a failed call, the error.

    Exit 1 if the call has failed, has not ended, or left nothing that is known;
    5 if it has not ended within --wait.
    """
    with known_queue(queue, url, url_file) as opened:
        ended = _ended(opened, task, wait)
        if ended is None:
            within = "" if wait is None else f" within {wait:g} s"
            code = NOTHING if wait is None else LATE
            stop(code, f"call {task!r} has not ended{within}: `timeoutq inspect {queue} {task}` tells where it is")
        _show(ended, as_json)


def _ended(opened: AnyQueue, task: str, wait: float | None) -> Ended | None:
    found = opened.results.look(task) if wait is None else opened.results.wait(task, timeout=wait)
    return next(iter(found.values()), None)


def _show(ended: Ended, as_json: bool) -> None:
    from timeoutq.functions import outcomes

    sink = Sink(as_json)
    state = None if ended.state is None else str(ended.state)
    if ended.state is State.FAILED:
        failed = outcomes.read_failure(ended.result, ended.error)
        if as_json:
            fields = {"error": failed.error, "message": failed.message, "traceback": failed.traceback}
            sink.document({"id": ended.task, "state": state, **fields})
        elif failed.traceback:
            _lines(failed.traceback.splitlines())
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
    sink.document({"id": ended.task, "state": state, "result": value} if as_json else value)


def _lines(lines: Iterable[str]) -> None:
    from timeoutq.text import safe

    for line in lines:
        typer.echo(safe(line))


@app.command(rich_help_panel=PANEL)
def functions(
    where: Annotated[
        str, typer.Argument(metavar="QUEUE|MODULE:APP", help="A queue, or the App of a module.", show_default=False)
    ],
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List functions: those of an app, or those that the workers of a queue have published.

    With --json, each comes with the JSON Schema of its calls.
    """
    if ":" in where:
        rows = _of_app(app_at(where))
    else:
        with known_queue(where, url, url_file) as opened:
            rows = _of_queue(opened)
    if not rows:
        stop(NOTHING, f"there are no functions in {where}")
    if as_json:
        sink = Sink(as_json)
        for row in rows:
            sink.document(row)
        return
    Sink(as_json).rows(
        ("function", "queue", "takes", "when", "published", "worker"),
        [
            (one["function"], one["queue"], _takes(one["schema"]), one["when"], one["published"], one["worker"])
            for one in rows
        ],
    )


def _of_app(found: App) -> list[dict[str, Any]]:
    return [
        {
            "function": name, "queue": one.settings.queue, "when": _when(one.settings.timed), "published": None,
            "worker": None, "schema": one.schema(),
        }
        for name, one in sorted(found.functions.items())
    ]  # fmt: skip


def _when(timed: Any) -> str | None:
    if timed is None:
        return None
    from timeoutq.schedules.flows import timing_of

    return str(timing_of(timed.when()))


def _of_queue(opened: AnyQueue) -> list[dict[str, Any]]:
    """Give the newest published version of each function; `lua/publish.lua` says how these are stored."""
    from timeoutq.sending import ask
    from timeoutq.shards.opening import talks_of

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
