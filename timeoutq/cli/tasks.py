"""The commands that bring tasks in: put and schedule, from arguments, files and stdin.

`app.py` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from timeoutq.cli.app import AsJson, Ids, Name, Url, UrlFile, app, new_words, open_queue, say
from timeoutq.cli.printing import Sink, bar, report
from timeoutq.cli.reading import LONGEST_LINE, bare_line, given_ids, lines_of, moment, piped_in, read_json, seconds
from timeoutq.errors import AccessDenied, InvalidInput

if TYPE_CHECKING:
    from timeoutq.client import Queue
    from timeoutq.model import Outcome, Task

CHUNK = 5000

KEYS = ("task", "payload", "group", "priority", "improve")
"""What a line of --jsonl may say."""


def _read_line(line: bytes, number: int, as_jsonl: bool, payload: Any) -> bytes | Task | None:
    from timeoutq import arguments
    from timeoutq.model import Task

    bare = bare_line(line, number)
    if not bare:
        return None
    try:
        if len(line) >= LONGEST_LINE:
            raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
        if not as_jsonl:
            id = arguments.task_id(bare)
            return id if payload is None else Task(id, payload)
        try:
            found = read_json(bare)
        except ValueError as error:
            raise InvalidInput(f"not JSON: {error}") from error
        if not isinstance(found, dict) or "task" not in found:
            raise InvalidInput('not an object with "task"')
        fields = cast("dict[str, Any]", found)
        if unknown := sorted(fields.keys() - set(KEYS)):
            raise InvalidInput(f"unknown key {unknown[0]!r:.60}: a line has {', '.join(KEYS)}")
        task, group = arguments.task_id(fields["task"]), fields.get("group")
        arguments.pack(fields.get("payload"), task)
        if group is not None:
            arguments.host(group)
        priority, improve = fields.get("priority"), arguments.flag(fields.get("improve", False), "improve")
        if priority is not None:
            arguments.priority(priority)
        elif improve:
            raise InvalidInput('"improve" compares priorities: add "priority" to the line')
        return Task(task, fields.get("payload"), group, priority, bool(improve))
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from error


def _chunks(path: Path | None, as_jsonl: bool, payload: Any) -> Iterator[tuple[int, list[bytes | Task]]]:
    chunk: list[bytes | Task] = []
    size = read = 0
    for number, line in enumerate(lines_of(path), 1):
        read += len(line)
        found = _read_line(line, number, as_jsonl, payload)
        if found is None:
            continue
        chunk.append(found)
        size += len(line)
        if len(chunk) >= CHUNK or size > 4 * 1024 * 1024:
            yield read, chunk
            chunk, size = [], 0
    if chunk:
        yield read, chunk


def _put_stream(queue: Queue, path: Path | None, as_jsonl: bool, payload: Any, how: dict[str, Any]) -> dict[str, int]:
    total = path.stat().st_size if path is not None and path.is_file() else None
    counts: dict[str, int] = {}
    put = 0
    try:
        with bar() if sys.stderr is not None and sys.stderr.isatty() else nullcontext() as progress:
            shown = progress.add_task("putting", total=total, done=0) if progress else None
            for read, chunk in _chunks(path, as_jsonl, payload):
                for answer, count in _put_or_schedule(queue, [chunk], how).counts().items():
                    counts[answer] = counts.get(answer, 0) + count
                put += len(chunk)
                if progress:
                    progress.update(shown, completed=read, done=put)
    except BaseException:
        if put:
            say(f"the first {put:,} tasks were put before the command ended")
        raise
    return counts


def _put_or_schedule(queue: Queue, tasks: Iterable[Any], how: dict[str, Any]) -> Outcome:
    if "at" in how or "after" in how:
        return queue.schedule(*tasks, **how)
    return queue.put(*tasks, **how)


def _put(
    queue: Queue, tasks: list[str], file: Path | None, jsonl: bool, payload: str | None, as_json: bool,
    how: dict[str, Any],
) -> None:  # fmt: skip
    if tasks and file is not None:
        raise InvalidInput("name tasks or give --file, not both")
    if jsonl and payload is not None:
        raise InvalidInput("give --payload or --jsonl, whose lines have their own, not both")
    body: Any = None
    if payload is not None:
        try:
            body = read_json(payload)
        except ValueError as error:
            raise InvalidInput(f"--payload is not JSON: {error}") from error
    if tasks and tasks != ["-"]:
        if jsonl:
            raise InvalidInput("--jsonl goes with --file or stdin, not with named tasks")
        given: Any = tasks if body is None else [{task: body} for task in tasks]
        _tell_new(queue)
        report(_put_or_schedule(queue, given, how), as_json)
        return
    if file is None and not tasks and piped_in() is None:
        raise InvalidInput("name tasks, give --file, or pipe them in")
    _tell_new(queue)
    counts = _put_stream(queue, file, jsonl, body, how)
    sink = Sink(as_json)
    if as_json:
        sink.document(counts)
    else:
        sink.rows(("answer", "tasks"), counts.items())


def _tell_new(queue: Queue) -> None:
    with suppress(AccessDenied):  # a user who may only put needs no hint
        words = new_words(queue)
        if words:
            say(words)


File = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="File of ids, one per line; blanks around an id are cut; - is stdin."),
]
Jsonl = Annotated[
    bool,
    typer.Option(
        "--jsonl", help='Lines are JSON: {"task": …}, and if need be "payload", "group", "priority", "improve".'
    ),
]
PayloadOption = Annotated[str | None, typer.Option("--payload", help="JSON that goes with each task.")]
Again = Annotated[bool, typer.Option("--again", help="Also put done and failed tasks back.")]
Group = Annotated[
    str | None, typer.Option("--group", help="The host to which the tasks belong, once the queue is polite.")
]
Priority = Annotated[
    int | None,
    typer.Option(
        metavar="N", show_default=False,
        help="On a polite queue, -1000 to 1000: of the tasks that wait for a host, the highest goes first.",
    ),
]  # fmt: skip
Improve = Annotated[
    bool,
    typer.Option("--improve", help="Tasks in progress, or done at a lower priority, run once more with this one."),
]
Durable = Annotated[int, typer.Option("--durable", metavar="N", help="Number of replicas that must confirm the tasks.")]


@app.command(rich_help_panel="Tasks in")
def put(
    queue: Name, tasks: Ids = None, file: File = None, jsonl: Jsonl = False, payload: PayloadOption = None,
    again: Again = False, group: Group = None, priority: Priority = None, improve: Improve = False,
    durable: Durable = 0, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put tasks, from arguments, a file or stdin.

    For each named task, a line says "added", or the state that holds the task
    already, or "raised": the task was there with a lower priority, and has this
    priority and payload from now on. For a file or stdin, the answers are counted.
    """
    with open_queue(queue, url, url_file) as opened:
        _put(
            opened,
            given_ids(tasks),
            file,
            jsonl,
            payload,
            as_json,
            {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable},
        )


@app.command(rich_help_panel="Tasks in")
def schedule(
    queue: Name, tasks: Ids = None,
    at: Annotated[
        float | None, typer.Option(parser=moment, metavar="TIME", help="Unix seconds, or ISO 8601 with a zone.")
    ] = None,
    after: Annotated[
        float | None, typer.Option(parser=seconds, metavar="TIME", help="After this time, like 30s, 5m, 2h.")
    ] = None,
    file: File = None, jsonl: Jsonl = False, payload: PayloadOption = None, again: Again = False,
    group: Group = None, priority: Priority = None, improve: Improve = False, durable: Durable = 0,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Schedule tasks at a time or after a while; tasks that are scheduled already get the new time."""
    from timeoutq import arguments

    arguments.due(at, after)
    with open_queue(queue, url, url_file) as opened:
        due = {"at": at} if at is not None else {"after": after}
        _put(
            opened,
            given_ids(tasks),
            file,
            jsonl,
            payload,
            as_json,
            {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable, **due},
        )
