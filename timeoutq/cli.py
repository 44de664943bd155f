"""The command `timeoutq`: every command opens a queue, calls one thing, and prints it.

Tables for people on a terminal, tab-separated lines elsewhere, JSON with --json. Modules that take long to import are
imported by the commands that need them, so that --help and completion are quick.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn, cast

import typer

from timeoutq.errors import InvalidInput, LeaseLost, TimeoutqError
from timeoutq.text import age, safe

if TYPE_CHECKING:
    from timeoutq.client import Queue
    from timeoutq.model import Lease, Outcome

NOTHING, USAGE, SERVER, LOST, INTERRUPTED = 1, 2, 3, 4, 130
CHUNK = 5000
LONGEST_LINE = 8 * 1024 * 1024
"""More than any line with a payload of 1 MiB needs, bytes."""

EPILOG = (
    "Exit codes: 0 done · 1 nothing there, or no · 2 wrong usage, input or file · 3 the server is away or "
    "refuses · 4 a lease is lost · 130 Ctrl-C.  The server: --url, else TIMEOUTQ_URL, else REDIS_URL, else "
    "redis://localhost:6379/0."
)

app = typer.Typer(
    help="A work queue on Redis made of sets: put tasks, lease them to workers, look into everything.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Task ids.", show_default=False)]
Url = Annotated[
    str | None, typer.Option("--url", help="Server: redis://, rediss://, unix://, valkey://.", show_default=False)
]
UrlFile = Annotated[
    Path | None,
    typer.Option("--url-file", help="File with the server's URL: keeps a password out of `ps`.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Count = Annotated[int, typer.Option("-n", "--count", min=1, max=500, help="How many at most.")]


class StateName(StrEnum):
    """The states, for completion."""

    todos = "todos"
    scheduled = "scheduled"
    in_progress = "in_progress"
    done = "done"
    failed = "failed"


def _version(asked: bool) -> None:
    if asked:
        import timeoutq

        typer.echo(timeoutq.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Take the options that stand before the command."""


# ---- what commands share


class _Sink:
    """Prints rows: a table for people, lines of tabs for pipes, JSON for programs."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, value: Any) -> None:
        """Print one JSON document, ASCII only: ids that are not UTF-8 survive as escapes."""
        typer.echo(json.dumps(_plain(value), ensure_ascii=True))

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Print rows of text that may be hostile."""
        if self.as_json:
            for row in rows:
                self.document(dict(zip(columns, row, strict=True)))
        elif sys.stdout.isatty():
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            table = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False)
            for row in rows:
                table.add_row(*(Text(safe(_cell(value))) for value in row))
            Console(highlight=False).print(table)
        else:
            for row in rows:
                typer.echo("\t".join(safe(_cell(value)) for value in row))


def _cell(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items()}
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any JSON
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType]  # any JSON
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    return value


def _say(message: str) -> None:
    typer.echo(f"timeoutq: {safe(message)}", err=True)


def _stop(code: int, message: str = "") -> NoReturn:
    if message:
        _say(message)
    raise typer.Exit(code)


def _address(url: str | None, url_file: Path | None) -> str | None:
    from timeoutq.address import redact

    if url is not None and url_file is not None:
        raise InvalidInput("give --url or --url-file, not both")
    # an empty one is a variable that was not set: it must not become the server that happens to be the default
    if url is not None and not url.strip():
        raise InvalidInput("--url is empty: write an address, or leave it out")
    if url_file is not None:
        try:
            words = url_file.read_text("utf-8").split()
        except OSError as error:
            raise InvalidInput(f"cannot read --url-file {url_file}: {error.strerror}") from error
        except UnicodeDecodeError:
            words = []
        if len(words) != 1:
            raise InvalidInput(f"--url-file {url_file} must hold one line, the URL, and nothing else")
        return words[0]
    if url is not None and redact(url) != url:
        _say("the password in --url can be seen by all users of this machine (ps); use TIMEOUTQ_URL or --url-file")
    return url


def _open(name: str, url: str | None, url_file: Path | None, **settings: Any) -> Queue:
    from timeoutq.client import Queue

    return Queue(name, _address(url, url_file), **settings)


def _seconds(text: str) -> float:
    """Read a length of time: 30, 0.5, 30s, 250ms, 5m, 2h, 1d."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", text)
    if not found:
        raise typer.BadParameter(f"{text!r} is not a length of time: write 30, 250ms, 30s, 5m, 2h or 1d")
    return float(found[1]) * {"ms": 0.001, None: 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _moment(text: str) -> float:
    """Read a time: Unix seconds, or ISO 8601 (without an offset: local time)."""
    with suppress(ValueError):
        return float(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write Unix seconds or 2027-01-31T12:00+01:00") from None


Duration = Annotated[float | None, typer.Option(parser=_seconds, metavar="TIME", show_default=False)]


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _given(tasks: Sequence[str] | None) -> list[str]:
    # what the shell passed as bytes that are not UTF-8 is surrogate-escaped already
    return list(tasks or [])


def _read_json(text: str | bytes) -> Any:
    """Read JSON; raises ValueError for whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _piped() -> BinaryIO | None:
    """Give what is piped in; None on a terminal, and where stdin is closed."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer


def _report(outcome: Outcome, as_json: bool) -> None:
    sink = _Sink(as_json)
    sink.rows(("task", "answer"), ((task, str(answer)) for task, answer in outcome.items()))


def _sure(question: str, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        _stop(USAGE, f"{question} Not without --yes, since nobody can be asked here.")
    if not typer.confirm(safe(question), err=True):
        _stop(NOTHING, "nothing was done")


# ---- tasks in


Item = bytes | dict[bytes, Any]
"""An id, or an id with its payload."""


def _lines(path: Path | None) -> Iterator[bytes]:
    def read(file: BinaryIO) -> Iterator[bytes]:
        return iter(lambda: file.readline(LONGEST_LINE), b"")

    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise InvalidInput("there is no stdin to read from")
        yield from read(sys.stdin.buffer)
        return
    try:
        with path.open("rb") as file:
            yield from read(file)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def _read_line(line: bytes, number: int, as_jsonl: bool, payload: Any) -> Item | None:
    from timeoutq import arguments

    bare = line.strip(b"\r\n")
    if not bare.strip():
        return None
    try:
        if len(line) >= LONGEST_LINE:
            raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
        if not as_jsonl:
            task = arguments.task_id(bare)
            return task if payload is None else {task: payload}
        try:
            found = _read_json(bare)
        except ValueError as error:
            raise InvalidInput(f"not JSON: {error}") from error
        if not isinstance(found, dict) or "task" not in found:
            raise InvalidInput('not an object with "task"')
        task = arguments.task_id(cast("Any", found)["task"])
        payload = cast("Any", found).get("payload")
        arguments.pack(payload, task)
        return task if payload is None else {task: payload}
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from error


def _chunks(path: Path | None, as_jsonl: bool, payload: Any) -> Iterator[tuple[int, list[Item]]]:
    chunk: list[Item] = []
    size = read = 0
    for number, line in enumerate(_lines(path), 1):
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


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]:,} tasks"),
        TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip


def _put_stream(queue: Queue, path: Path | None, as_jsonl: bool, payload: Any, how: dict[str, Any]) -> dict[str, int]:
    total = path.stat().st_size if path is not None and path.is_file() else None
    counts: dict[str, int] = {}
    put = 0
    try:
        with _bar() if sys.stderr is not None and sys.stderr.isatty() else nullcontext() as progress:
            shown = progress.add_task("putting", total=total, done=0) if progress else None
            for read, chunk in _chunks(path, as_jsonl, payload):
                outcome = _put_or_schedule(queue, chunk, how)
                for answer, count in outcome.counts().items():
                    counts[answer] = counts.get(answer, 0) + count
                put += len(chunk)
                if progress:
                    progress.update(shown, completed=read, done=put)
    except BaseException:
        if put:
            _say(f"the first {put:,} tasks were put before it ended")
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
            body = _read_json(payload)
        except ValueError as error:
            raise InvalidInput(f"--payload is not JSON: {error}") from error
    if tasks and tasks != ["-"]:
        if jsonl:
            raise InvalidInput("--jsonl goes with --file or stdin, not with named tasks")
        given: Any = tasks if body is None else [{task: body} for task in tasks]
        _report(_put_or_schedule(queue, given, how), as_json)
        return
    if file is None and not tasks and _piped() is None:
        raise InvalidInput("name tasks, give --file, or pipe them in")
    counts = _put_stream(queue, file, jsonl, body, how)
    sink = _Sink(as_json)
    if as_json:
        sink.document(counts)
    else:
        sink.rows(("answer", "tasks"), counts.items())


File = Annotated[Path | None, typer.Option("--file", "-f", help="File of ids, one a line; - is stdin.")]
Jsonl = Annotated[bool, typer.Option("--jsonl", help='Lines are JSON: {"task": …, "payload": …}.')]
PayloadOption = Annotated[str | None, typer.Option("--payload", help="JSON that goes with each task.")]
Again = Annotated[bool, typer.Option("--again", help="Put done and failed tasks back as well.")]
Durable = Annotated[int, typer.Option("--durable", metavar="N", help="So many replicas must have confirmed it.")]


@app.command(rich_help_panel="Tasks in")
def put(
    queue: Name, tasks: Ids = None, file: File = None, jsonl: Jsonl = False, payload: PayloadOption = None,
    again: Again = False, durable: Durable = 0, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put tasks, from arguments, a file or stdin; say for each (or count) what was found."""
    with _open(queue, url, url_file) as opened:
        _put(opened, _given(tasks), file, jsonl, payload, as_json, {"again": again, "durable": durable})


@app.command(rich_help_panel="Tasks in")
def schedule(
    queue: Name, tasks: Ids = None,
    at: Annotated[float | None, typer.Option(parser=_moment, metavar="TIME", help="Unix seconds or ISO 8601.")] = None,
    after: Annotated[float | None, typer.Option(parser=_seconds, metavar="TIME", help="Like 30s, 5m, 2h.")] = None,
    file: File = None, jsonl: Jsonl = False, payload: PayloadOption = None, again: Again = False,
    durable: Durable = 0, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Schedule tasks at a time or after a while; move those already scheduled."""
    from timeoutq import arguments

    arguments.due(at, after)
    with _open(queue, url, url_file) as opened:
        due = {"at": at} if at is not None else {"after": after}
        _put(opened, _given(tasks), file, jsonl, payload, as_json, {"again": again, "durable": durable, **due})


# ---- leases


@app.command(rich_help_panel="Leases")
def claim(
    queue: Name, n: Count = 1,
    timeout: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="Length of the lease.")] = "30s",  # type: ignore[assignment]  # typer parses the default
    max_runtime: Duration = None,
    wait: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="Wait so long for the first.")] = "0",  # type: ignore[assignment]  # same
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Lease ready tasks and print them with their tokens; exit 1 when there are none."""
    with _open(queue, url, url_file) as opened:
        leases = opened.claim(n, timeout=timeout, max_runtime=max_runtime, wait=wait)
    sink = _Sink(as_json)
    if as_json:
        for lease in leases:
            sink.document(lease)
    else:
        rows = ((lease.task, lease.token, _iso(lease.deadline), lease.attempt) for lease in leases)
        sink.rows(("task", "token", "deadline", "attempt"), rows)
    if not leases:
        raise typer.Exit(NOTHING)


Token = Annotated[str | None, typer.Option("--token", help="The token that claim printed.", show_default=False)]


def _lease(task: Any, token: Any, deadline: Any = math.inf, attempt: Any = 1) -> Lease:
    from timeoutq import arguments
    from timeoutq.model import Lease, text

    if not isinstance(token, str) or not token.isprintable() or not token:
        raise InvalidInput(f"{token!r:.80} is not a token that claim gave")
    return Lease(text(arguments.task_id(task)), token, float(deadline), int(attempt))


def _leases(tasks: list[str], token: str | None) -> list[Lease]:
    if tasks:
        if not token:
            raise InvalidInput("tasks need the --token that claim printed; or pipe in what claim --json printed")
        return [_lease(task, token) for task in tasks]
    piped = _piped()
    if piped is None or token:
        raise InvalidInput("name tasks and --token, or pipe in what claim --json printed")
    found: list[Lease] = []
    for number, line in enumerate(iter(lambda: piped.readline(LONGEST_LINE), b""), 1):
        if not line.strip():
            continue
        try:
            read = _read_json(line)
            found.append(_lease(read["task"], read["token"], read.get("deadline", math.inf), read.get("attempt", 1)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"line {number} is not a lease as claim --json prints it: {error}") from error
    return found


EXPLAINED = 3
"""Of so many lost leases it is said why: each costs a question to the server."""


def _ended(queue: Queue, leases: Sequence[Lease], outcome: Outcome, as_json: bool) -> None:
    from timeoutq import flows
    from timeoutq.model import Answer

    _report(outcome, as_json)
    if outcome.ok == len(outcome):
        return
    lost = [lease for lease, answer in zip(leases, outcome, strict=True) if answer is Answer.LOST]
    with suppress(TimeoutqError):  # who cannot be asked changes nothing: the lease is lost
        for lease in lost[:EXPLAINED]:
            _say(str(queue.run(flows.lost(queue.talk, lease))))
    if len(lost) > EXPLAINED:
        _say(f"{len(lost) - EXPLAINED:,} more leases are lost")
    if Answer.MAX_RUNTIME in outcome:
        _say("leases that have reached their max_runtime are not extended")
    raise typer.Exit(LOST)


@app.command(rich_help_panel="Leases")
def ack(
    queue: Name, tasks: Ids = None, token: Token = None,
    found: Annotated[list[str] | None, typer.Option("--put", help="Put this task too, in the same step.")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """End leases as done; exit 4 when one is somebody else's by now."""
    from timeoutq.model import Outcome

    leases = _leases(_given(tasks), token)
    with _open(queue, url, url_file) as opened:
        if found:
            if len(leases) != 1:
                raise InvalidInput("--put goes with one lease")
            opened.ack(leases[0], put=found)
            _report(Outcome([leases[0].task.encode("utf-8", "surrogateescape")], b"O"), as_json)
        else:
            _ended(opened, leases, opened.ack(leases), as_json)


@app.command(rich_help_panel="Leases")
def extend(
    queue: Name, tasks: Ids = None, token: Token = None,
    timeout: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="From now.")] = "30s",  # type: ignore[assignment]  # typer parses the default
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Let leases run on; exit 4 when one is lost."""
    leases = _leases(_given(tasks), token)
    with _open(queue, url, url_file) as opened:
        _ended(opened, leases, opened.extend(leases, timeout), as_json)


@app.command(rich_help_panel="Leases")
def release(
    queue: Name, tasks: Ids = None, token: Token = None, delay: Duration = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Give leases back without blame, at once or after a delay."""
    leases = _leases(_given(tasks), token)
    with _open(queue, url, url_file) as opened:
        _ended(opened, leases, opened.release(leases, delay or 0.0), as_json)


@app.command(rich_help_panel="Leases")
def fail(
    queue: Name, tasks: Ids = None, token: Token = None,
    error: Annotated[str, typer.Option("--error", help="What went wrong; kept with the task.")] = "failed by hand",
    retry_in: Duration = None,
    give_up: Annotated[bool, typer.Option("--give-up", help="Move to failed, without another attempt.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """End leases as failed: tried again as the policy says, after --retry-in, or never."""
    leases = _leases(_given(tasks), token)
    with _open(queue, url, url_file) as opened:
        if retry_in is None and not give_up:
            # the policy counts attempts, which a token alone does not tell
            leases = [
                lease if lease.deadline < math.inf else replace(lease, attempt=opened.inspect(lease.task).failures + 1)
                for lease in leases
            ]
        _ended(opened, leases, opened.fail(leases, error, retry_in=retry_in, give_up=give_up), as_json)


@app.command(rich_help_panel="Leases")
def pull(queue: Name, n: Count = 1, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Take tasks without a lease: done at once, lost if you die. Exit 1 when there are none."""
    with _open(queue, url, url_file) as opened:
        tasks = opened.pull(n)
    sink = _Sink(as_json)
    if as_json:
        for task in tasks:
            sink.document(task)
    else:
        sink.rows(("task",), ((task.task,) for task in tasks))
    if not tasks:
        raise typer.Exit(NOTHING)


# ---- processes


LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines of JSON.")]


def _log(level: str, as_json: bool) -> None:
    from timeoutq import logs

    logs.configure(level, as_json=as_json)


@app.command(rich_help_panel="Processes")
def worker(
    queue: Name,
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Called with each lease.")],
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Handlers at once, a process.")] = 100,
    prefetch: Annotated[int | None, typer.Option(min=0, help="Tasks waiting here; else as needed.")] = None,
    timeout: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="Length of a lease.")] = "30s",  # type: ignore[assignment]  # typer parses the default
    max_runtime: Duration = None,
    retry: Annotated[str | None, typer.Option(help="Delays before new attempts, like 10,30,60; then failed.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Attempts, with growing delays; else 5.")] = None,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, max=256, help="Worker processes.")] = 1,
    supervise: Annotated[bool, typer.Option(help="Watch over the processes and start dead ones again.")] = True,
    burst: Annotated[bool, typer.Option("--burst", help="End when the queue is drained.")] = False,
    drain_deadline: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="On SIGTERM.")] = "25s",  # type: ignore[assignment]  # same
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Work on a queue: claim tasks, call the handler on each, ack it or fail it.

    SIGTERM: claim no more, finish until the deadline, give the rest back. SIGINT or a second SIGTERM: give back and
    leave now.
    """
    from tenacity import stop_after_attempt

    from timeoutq.client import AsyncQueue
    from timeoutq.retry import RetryPolicy
    from timeoutq.supervisor import SharedLedger, run_workers
    from timeoutq.worker import Worker, load_handler

    _log(log_level, log_json)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if retry is not None and max_attempts is not None:
        raise InvalidInput("give --retry or --max-attempts, not both")
    policy = RetryPolicy.of(None)
    if retry is not None:
        policy = RetryPolicy.of([_seconds(part) for part in retry.split(",")])
    elif max_attempts is not None:
        policy = RetryPolicy.of(stop_after_attempt(max_attempts))
    address = _address(url, url_file)
    loaded = load_handler(handler)

    def make(ledger: SharedLedger | None) -> Worker:
        opened = AsyncQueue(queue, address, timeout=timeout, max_runtime=max_runtime, retry=policy)
        return Worker(
            opened, loaded, concurrency=concurrency, prefetch=prefetch, burst=burst,
            drain_deadline=drain_deadline, ledger=ledger,
        )  # fmt: skip

    make(None)  # what is wrong with the arguments is said here, once
    raise typer.Exit(run_workers(make, processes, supervise=supervise))


@app.command(rich_help_panel="Processes")
def cleaner(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Take back expired leases and make due tasks ready. Workers do it too; any number may run."""
    import asyncio
    import signal

    from timeoutq.cleaner import Cleaner
    from timeoutq.client import AsyncQueue

    _log(log_level, log_json)
    address = _address(url, url_file)
    opened = [AsyncQueue(name, address) for name in queues]

    async def body() -> None:
        tasks = [asyncio.create_task(Cleaner(one).run()) for one in opened]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            pass
        finally:
            for one in opened:
                await one.close()

    asyncio.run(body())


@app.command(rich_help_panel="Processes")
def server(
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1; a free one if not given.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Keep the data here; else they go with it.")] = None,
) -> None:
    """Run a private Valkey server in the foreground, for a laptop: Ctrl-C ends it."""
    import signal

    from timeoutq.embedded import EmbeddedServer

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    with EmbeddedServer(directory, port) as running:
        typer.echo(running.url)
        kept = f"data kept in {running.directory}" if directory else "data gone when it ends"
        typer.echo(f"timeoutq: Valkey listens at {running.url}, {kept}; Ctrl-C ends it", err=True)
        with suppress(KeyboardInterrupt):
            while running.pid:
                _, status = os.waitpid(running.pid, 0)
                _stop(SERVER, f"the server ended with status {status}; its log is in {running.directory}")


# ---- looking


@app.command(rich_help_panel="Looking")
def status(queue: Name, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Show the queue once, as the dashboard does."""
    from timeoutq import dashboard as board

    with _open(queue, url, url_file) as opened:
        seen = board.snapshot(opened)
    if as_json:
        _Sink(True).document(board.to_json(seen))
    else:
        board.show(seen)


@app.command(rich_help_panel="Looking")
def dashboard(
    queue: Name,
    interval: Annotated[float, typer.Option(parser=_seconds, metavar="TIME", help="Between two looks.")] = "1s",  # type: ignore[assignment]  # typer parses the default
    url: Url = None, url_file: UrlFile = None,
) -> None:  # fmt: skip
    """Watch the queue live; q or Ctrl-C ends it."""
    from timeoutq import dashboard as board

    with _open(queue, url, url_file) as opened:
        if not sys.stdout.isatty():
            board.show(board.snapshot(opened))
            return
        board.run(opened, interval)


@app.command("list", rich_help_panel="Looking")
def list_state(
    queue: Name, state: Annotated[StateName, typer.Argument(help="The state to page through.")],
    cursor: Annotated[str | None, typer.Option(help="Go on where a page ended.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="About so many a page.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the tasks in a state: by deadline, by due time, or in no order."""
    sink = _Sink(as_json)
    with _open(queue, url, url_file) as opened:
        while True:
            page = opened.list(state.value, cursor, limit)
            rows = ((e.task, _iso(e.at), e.holder, e.error) for e in page.entries)
            sink.rows(("task", "at", "holder", "error"), rows)
            cursor = page.cursor
            if cursor is None or not everything:
                break
    if cursor is not None:
        typer.echo(f"timeoutq: more with --cursor {cursor}, or --all", err=True)


@app.command(rich_help_panel="Looking")
def inspect(queue: Name, task: str, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Tell all about one task; exit 1 when no state holds it."""
    with _open(queue, url, url_file) as opened:
        info = opened.inspect(task)
    sink = _Sink(as_json)
    if as_json:
        sink.document(info)
    else:
        facts: dict[str, Any] = {
            "task": info.task,
            "state": info.state or "unknown: no state holds it",
            "due": _iso(info.due),
            "lease left": None if info.lease_left is None else age(info.lease_left),
            "deadline": _iso(info.deadline),
            "holder": info.holder,
            "failures": info.failures or None,
            "crashes": info.crashes or None,
            "last error": info.error,
            "last error at": _iso(info.error_at),
            "payload": None if info.payload is None else json.dumps(_plain(info.payload)),
        }
        sink.rows(("fact", "value"), ((name, value) for name, value in facts.items() if value is not None))
    if info.state is None:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def drained(
    queue: Name, before: Annotated[float | None, typer.Option(parser=_moment, metavar="TIME")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say whether nothing is ready, held or scheduled: exit 0 for yes, 1 for no."""
    with _open(queue, url, url_file) as opened:
        found = opened.drained(before)
    _Sink(as_json).document({"drained": found}) if as_json else typer.echo("yes" if found else "no")
    if not found:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def doctor(
    queue: Annotated[str, typer.Argument(metavar="[QUEUE]")] = "doctor",
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Examine the server and the queue: what is right, what is not, and the cure. Exit 1 when something is red."""
    from timeoutq import doctor as examine

    with _open(queue, url, url_file, allow_eviction=True) as opened:
        findings = examine.examine(opened)
    sink = _Sink(as_json)
    if as_json or not sys.stdout.isatty():
        sink.rows(("check", "verdict", "found", "cure"), ((f.check, f.verdict, f.found, f.cure) for f in findings))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for finding in findings:
            colour, mark = examine.MARKS[finding.verdict]
            line = Text.assemble((f"{mark} ", colour), (f"{finding.check:<12} ", "bold"), safe(finding.found))
            if finding.cure:
                line.append(f"\n  → {safe(finding.cure)}", style=colour)
            console.print(line)
    if any(finding.verdict == "red" for finding in findings):
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def bench(
    url: Url = None, url_file: UrlFile = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="These figures, with their limits.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="A worker behind delays of 0 to 200 ms.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; else 3, or 2 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything, and nothing heavy.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a target is missed.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure timeoutq beside the raw limits of a server: an embedded one, or that at --url, which will be busy.

    It works on queues of its own, named bench-…, and removes them.
    """
    from timeoutq.bench import report

    address = None if url is None and url_file is None else _address(url, url_file)
    found = report.measure(address, only or [], rounds=rounds, quick=quick, far=latency)
    _Sink(True).document(report.to_json(found)) if as_json else report.show(found)
    if check and found.missed:
        raise typer.Exit(NOTHING)


# ---- the operator's


@app.command(rich_help_panel="Operating")
def retry(
    queue: Name, tasks: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All failed tasks.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make failed tasks ready again, with a clean record; exit 1 when none was."""
    if bool(tasks) == everything:
        raise InvalidInput("name failed tasks, or give --all")
    with _open(queue, url, url_file) as opened:
        moved = opened.retry_failed(*_given(tasks))
    _Sink(as_json).document({"retried": moved}) if as_json else typer.echo(f"{moved} retried")
    if not moved:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Operating")
def forget(
    queue: Name, tasks: Annotated[list[str], typer.Argument(metavar="TASK...")], yes: Yes = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Remove tasks from every state; one that runs finds its lease lost. Asks first; exit 1 when none was known."""
    from timeoutq.model import Answer

    with _open(queue, url, url_file) as opened:
        _sure(f"Forget {len(tasks)} task{'' if len(tasks) == 1 else 's'} of queue {queue}?", yes)
        outcome = opened.forget(tasks)
    _report(outcome, as_json)
    if all(answer is Answer.UNKNOWN for answer in outcome):
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Operating")
def pause(queue: Name, url: Url = None, url_file: UrlFile = None) -> None:
    """Give out no more tasks; what is leased goes on."""
    with _open(queue, url, url_file) as opened:
        opened.pause()


@app.command(rich_help_panel="Operating")
def resume(queue: Name, url: Url = None, url_file: UrlFile = None) -> None:
    """Give out tasks again."""
    with _open(queue, url, url_file) as opened:
        opened.resume()


def _keep(text: str) -> int | str | timedelta:
    if text == "forever":
        return text
    if re.fullmatch("[0-9]{1,15}", text):
        return int(text)
    # a bare number is a count, so a length of time needs its unit
    with suppress(typer.BadParameter, OverflowError):
        if text.rstrip()[-1:].isalpha():
            return timedelta(seconds=_seconds(text))
    raise InvalidInput(f"--keep-done {text!r:.40} is none of: forever, 0, how many (1000), how long (12h, 7d)")


@app.command(rich_help_panel="Operating")
def configure(
    queue: Name,
    keep_done: Annotated[str | None, typer.Option(help="forever, 0, how many (1000), or how long (7d).")] = None,
    max_crashes: Annotated[int | None, typer.Option(min=1, help="Lost leases until a task goes to failed.")] = None,
    url: Url = None, url_file: UrlFile = None,
) -> None:  # fmt: skip
    """Change settings that all clients of the queue share."""
    if keep_done is None and max_crashes is None:
        raise InvalidInput("say what to change: --keep-done or --max-crashes")
    with _open(queue, url, url_file) as opened:
        opened.configure(keep_done=None if keep_done is None else _keep(keep_done), max_crashes=max_crashes)


@app.command(rich_help_panel="Operating")
def purge(queue: Name, yes: Yes = False, url: Url = None, url_file: UrlFile = None) -> None:
    """Remove the queue with all its tasks. Asks first."""
    with _open(queue, url, url_file) as opened:
        stats = opened.stats()
        known = stats.known
        counts = ", ".join(f"{getattr(stats, state):,} {state}" for state in StateName if getattr(stats, state))
        _sure(f"Remove queue {queue} with its {known:,} tasks{f' ({counts})' if counts else ''}?", yes)
        opened.purge()
    typer.echo(f"timeoutq: removed {known:,} tasks", err=True)


def main() -> None:
    """Run the command; errors are one line, Ctrl-C and a closed pipe are quiet."""
    if sys.stdout is None:  # closed by the caller: nobody wants to read, which is no error
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal lacks is no reason to end
    try:
        code = app(standalone_mode=False)
        code = code if isinstance(code, int) else 0
    except LeaseLost as error:
        _say(str(error))
        code = LOST
    except InvalidInput as error:
        _say(str(error))
        code = USAGE
    except TimeoutqError as error:
        _say(str(error))
        code = USAGE if isinstance(error, ImportError) else SERVER
    except (KeyboardInterrupt, EOFError):
        code = INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has left: so do we, without a second complaint at the flush
        _discard_output()
        code = 0
    except OSError as error:
        _discard_output()
        _say(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
        code = USAGE
    except Exception as error:
        shown = getattr(error, "show", None)
        if shown is None or not hasattr(error, "exit_code"):
            if type(error).__name__ != "Abort":
                raise
            code = INTERRUPTED
        else:
            error.__dict__["message"] = safe(str(getattr(error, "message", "")))  # it quotes what was typed
            shown()
            code = USAGE
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        _say(f"cannot write the output: {error.strerror}")
        code = code or USAGE
    sys.exit(code)


def _discard_output() -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
