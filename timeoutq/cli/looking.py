"""The commands that look and change nothing: status, dashboard, list, inspect, drained, doctor, bench.

`app.py` runs them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli import lines
from timeoutq.cli.app import (
    NOTHING,
    SERVER,
    AsJson,
    Ids,
    Name,
    TaskName,
    Url,
    UrlFile,
    app,
    known_queue,
    open_queue,
    say,
    server_address,
    stop,
    unknown,
    unknown_words,
    with_ended,
)
from timeoutq.cli.completion import queue_names
from timeoutq.cli.printing import LINES_AT_ONCE, Sink, far, iso, plain, progress, releases
from timeoutq.cli.reading import duration, given_ids, ids_of, moment, seconds
from timeoutq.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.model import State, TaskId
from timeoutq.text import age, safe

if TYPE_CHECKING:
    from timeoutq.counts import Stats
    from timeoutq.directory import Listed
    from timeoutq.model import Page
    from timeoutq.shards import AnyQueue
    from timeoutq.watch.doctor import Finding
    from timeoutq.watch.limits import Limits
    from timeoutq.watch.snapshot import Snapshot


@app.command(rich_help_panel="Looking")
def queues(url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """List the queues on the server, and count their tasks by state. Exit 1: no queue; 3: no queue can be read.

    The command looks at all keys of the server's database, a thousand at a time:
    about one second per million keys.

    The columns on a pipe: queue, known, todos, waiting, scheduled, in_progress,
    done, failed, workers, note.
    """
    from timeoutq import directory

    sink, met, readable = Sink(as_json), 0, 0
    # a server that evicts keys is not refused here: this command only reads
    with open_queue("queues", url, url_file, allow_eviction=True) as opened:
        if directory.is_lone_node(opened):
            say(f"{directory.LONE_NODE}: {directory.CURE}")
        names: list[str] = []
        with progress("looking at keys", directory.size(opened), beside_output=True, unit="queues") as tell:
            for call, page in enumerate(directory.names(opened), 1):
                names += page
                tell(call * directory.KEYS_A_CALL, len(names))
        listed = directory.look(opened, sorted(names))
        while block := list(islice(listed, LINES_AT_ONCE)):
            sink.rows(QUEUE_COLUMNS, map(_listed, block))
            met += len(block)
            readable += sum(one.stats is not None for one in block)
    if not met:
        stop(NOTHING, f"there is no queue at {opened.url}")
    if not readable:
        stop(SERVER, f"none of the queues at {opened.url} can be read")


QUEUE_COLUMNS = ("queue", "known", "todos", "waiting", "scheduled", "in_progress", "done", "failed", "workers", "note")


def _listed(one: Listed) -> list[Any]:
    stats = one.stats
    counts = [None if stats is None else getattr(stats, name) for name in QUEUE_COLUMNS[1:-1]]
    return [one.name, *counts, one.trouble or _note(stats)]


def _note(stats: Stats | None) -> str | None:
    if stats is None:
        return None
    words = [f"{len(stats.shards)} shards"] if stats.shards else []
    return ", ".join([*words, "paused"] if stats.paused else words) or None


def _show(seen: Snapshot) -> None:
    if sys.stdout.isatty():
        from timeoutq.watch.draw import show

        show(seen)
    else:
        Sink(False).rows((), lines.of(seen))


@app.command(rich_help_panel="Looking")
def status(queue: Name, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Show the queue once, as the dashboard does.

    On a pipe, tabs stand between the columns, and the first column says what the
    line is about. Most lines have one more column: a name, a count, a rate (NAME/s)
    or a moment. The other lines are:

    - handlers ran, RUNS, P50, P95, MAX: how long handlers ran, in seconds
    - worker, NAME, alive or gone, CONCURRENCY, LEASES HELD, ACKED, FAILED,
      LAST SIGN OF LIFE, and WHY if it lives and does not claim
    - shard, NUMBER, TASKS READY OR WAITING, SCHEDULED, IN PROGRESS, DONE, FAILED
    - silent, what does not answer (shards 4, 5), WHY; it is not counted
    - tends, NAME of a worker, the NUMBER of each shard that it tends
    - host, NAME, TASKS WAITING, TASKS IN FLIGHT, NEXT TURN, VISITS, FAILED VISITS
    - lease, TASK, HOLDER, DEADLINE
    - due, TASK, TIME
    - error, TASK, TIME, ERROR

    Moments are in ISO 8601, and - stands for what is unknown.
    """
    from timeoutq.watch import snapshot

    with open_queue(queue, url, url_file) as opened:
        seen = snapshot.snapshot(opened)
        if not seen.exists:
            unknown(opened)
    if as_json:
        Sink(True).document(snapshot.to_json(seen))
    else:
        _show(seen)


@app.command(rich_help_panel="Looking")
def dashboard(
    queue: Name,
    interval: Annotated[
        float, typer.Option(parser=seconds, metavar="TIME", help="Time between refreshes.")
    ] = "1s",  # type: ignore[assignment]  # typer parses the default
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse the keys that change something.")] = False,
    url: Url = None, url_file: UrlFile = None,
) -> None:  # fmt: skip
    """Watch the queue live, and act: lower-case keys look, upper-case keys act and ask; ? shows all; q ends it."""
    from timeoutq.watch import live, snapshot

    def another(name: str) -> AnyQueue:
        return open_queue(name, url, url_file)

    with open_queue(queue, url, url_file, waits=sys.stdout.isatty()) as opened:
        seen = snapshot.snapshot(opened) if not sys.stdout.isatty() else None
        if seen is None:
            try:
                live.run(opened, interval, unknown=lambda: unknown_words(opened), read_only=read_only, another=another)
            except InvalidInput:
                # the server was away when it was to say what the queue is
                with open_queue(queue, url, url_file) as again:
                    if type(again) is type(opened):
                        raise
                    live.run(again, interval, read_only=read_only, another=another)
        elif seen.exists:
            _show(seen)
        else:
            unknown(opened)


@app.command("list", rich_help_panel="Looking")
def list_state(
    queue: Name, state: Annotated[State, typer.Argument(help="The state to page through.")],
    cursor: Annotated[str | None, typer.Option(help="Where to go on: the cursor that the last page printed.")] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, help="The most entries per page.")
    ] = 100,
    everything: Annotated[bool, typer.Option("--all", help="Print all pages.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Also print the tracebacks of failed tasks.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the tasks in a state: leases by deadline, scheduled tasks by due time, other tasks in no order.

    The columns on a pipe: task, at, holder, error, priority. "at" is the due time,
    the end of the lease, or the time of the last error. With --json also:
    releases, traceback.
    """
    sink, begun = Sink(as_json), cursor
    with known_queue(queue, url, url_file) as opened:
        while True:
            page = opened.list(state.value, cursor, limit) if everything else _page(opened, state, cursor, limit)
            entries = page.entries if everything else page.entries[:limit]
            columns = ("task", "at", "holder", "error", "priority", "releases", "traceback")
            rows = [
                (
                    e.task, e.at if as_json else iso(e.at), e.holder, e.error, e.priority or None, e.releases or None,
                    e.traceback,
                )
                for e in entries
            ]  # fmt: skip
            shown = len(columns) if as_json else 5
            sink.rows(columns[:shown], [row[:shown] for row in rows])
            for entry in entries if traceback and not as_json else ():
                for line in (entry.task, *(f"    {line}" for line in (entry.traceback or "").splitlines())):
                    typer.echo(safe(line))
            cursor = page.cursor
            if cursor is None or not everything:
                break
    if len(entries) < len(page.entries):
        # a cursor would skip the tasks that are not shown
        whole = begun is None and cursor is None
        many = f"{len(page.entries):,} in all" if whole else f"at least {len(page.entries):,} here"
        say(f"{many}, {len(entries):,} shown: --all shows every task")
    elif cursor is not None:
        say(f"more with --cursor {cursor}, or --all")


def _page(opened: AnyQueue, state: State, cursor: str | None, n: int) -> Page:
    """Read a page of at most `n` entries, if possible: of a set, the server may give more than we ask for."""
    page, asked = opened.list(state.value, cursor, n), n
    while len(page.entries) > n and asked > 1:
        asked = max(1, asked - (len(page.entries) - n))
        page = opened.list(state.value, cursor, asked)
    return page


@app.command(rich_help_panel="Looking")
def inspect(queue: Name, task: TaskName, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Show everything about one task; exit 1 when the task is in no state, and no result of it is kept."""
    with known_queue(queue, url, url_file) as opened:
        info = opened.inspect(task)
    sink = Sink(as_json)
    if as_json:
        sink.document(info)
    else:
        facts: dict[str, Any] = {
            "task": info.task,
            "state": info.state or ("done, its id is not kept" if info.has_result else "unknown: no state holds it"),
            "result": "kept for a time" if info.has_result else None,
            "due": iso(info.due),
            "lease left": None if info.lease_left is None else age(info.lease_left),
            "deadline": iso(info.deadline),
            "host": info.host,
            "priority": info.priority or None,
            "runs again": "once this run has ended: it was put meanwhile" if info.again else None,
            "holder": info.holder,
            "cancelled by": info.cancelled_by,
            "progress": None if info.progress is None else far(info.progress),
            "failures": info.failures or None,
            "crashes": info.crashes or None,
            "releases": releases(info),
            "last error": info.error,
            "last error at": iso(info.error_at),
            "payload": None if info.payload is None else json.dumps(plain(info.payload)),
        }
        rows = [(name, value) for name, value in facts.items() if value is not None]
        sink.rows(("fact", "value"), [*rows, *(("traceback", line) for line in (info.traceback or "").splitlines())])
    if info.state is None and not info.has_result:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def states(
    queue: Name, tasks: Ids = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="File of ids, one per line; - is stdin.")] = None,
    null: Annotated[bool, typer.Option("--null", "-0", help="Ids in the file end with a NUL, not a newline.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only count the tasks in each state.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say for each task in which state it is; exit 1 when none of the tasks is in a state.

    A call that has returned is done for as long as its result is kept.
    """
    from timeoutq import transfer

    if bool(tasks) == (file is not None):
        raise InvalidInput("name tasks, or give --file with one id per line")
    sink, totals = Sink(as_json), Counter[str]()
    with known_queue(queue, url, url_file) as opened:
        given: Iterator[TaskId] = iter(given_ids(tasks)) if file is None else ids_of(file, null)
        for batch in transfer.parts(given):
            outcome = with_ended(opened, opened.states(batch))
            totals.update(outcome.counts())
            if not count:
                sink.rows(("task", "state"), ((task, answer.value) for task, answer in outcome.items()))
    if count and as_json:
        sink.document(totals)
    elif count:
        sink.rows(("state", "tasks"), totals.items())
    if not totals.keys() - {"unknown"}:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def drained(
    queue: Name,
    before: Annotated[
        float | None,
        typer.Option(parser=moment, metavar="TIME", help="Leave out tasks that are scheduled for this time or later."),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Wait until the queue is drained, at most this long."),
    ] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say whether no task is ready, in progress, scheduled, or waiting for its host's turn. Exit 0: yes; 1: no."""
    with known_queue(queue, url, url_file) as opened:
        found = opened.drained(before) if wait is None else opened.wait_drained(wait, before)
    Sink(as_json).document({"drained": found}) if as_json else typer.echo("yes" if found else "no")
    if not found:
        raise typer.Exit(NOTHING)


def _met(queue: AnyQueue) -> bool:
    # if a worker waits for the first task of a queue, the queue's name is not mistyped
    with suppress(TimeoutqError):
        stats = queue.stats()
        return stats.exists or stats.workers > 0
    return True  # another check reports this error


@app.command(rich_help_panel="Looking")
def doctor(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]",
            help="Name of the queue; without it, only the server is examined.",
            autocompletion=queue_names,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Red when fewer than N workers are alive.", show_default=False),
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Let --workers count only workers on this machine, or in this container.")
    ] = False,
    max_failed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Red when more than N tasks have failed.", show_default=False)
    ] = None,
    max_age: Annotated[
        float | None,
        duration("Red when ready tasks wait for longer than TIME; `timeoutq help health`: how this is measured."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="First mend what a hand, or a call that stopped half-way, has left.")
    ] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Examine the server and the queue: what is right, what is not, and the cure. Exit 1 when something is red.

    With --workers, --max-failed or --max-age the command is a health check of a
    queue, for containers and monitors.
    """
    from timeoutq.troubles import is_sharded
    from timeoutq.watch import limits

    wanted = limits.Limits(workers, max_failed, max_age, here)
    if here and workers is None:
        raise InvalidInput("--here is about --workers: give --workers 1 as well")
    if wanted and queue is None:
        raise InvalidInput("--workers, --max-failed and --max-age are about a queue: name one")
    if repair and queue is None:
        raise InvalidInput("--repair is about a queue: name one")

    def look(*, waits: bool) -> list[Finding]:
        with open_queue(queue or "doctor", url, url_file, allow_eviction=True, waits=waits) as opened:
            return _examined(opened, wanted, named=queue is not None, repair=repair)

    try:
        findings = look(waits=True)
    except InvalidInput as error:
        if not is_sharded(error):
            raise
        findings = look(waits=False)  # the server was slow to say what the queue is
    _show_findings(findings, as_json)
    if any(finding.verdict == "red" for finding in findings):
        raise typer.Exit(NOTHING)


def _examined(opened: AnyQueue, wanted: Limits, *, named: bool, repair: bool) -> list[Finding]:
    from timeoutq.shards import ShardedQueue
    from timeoutq.troubles import is_sharded
    from timeoutq.watch import divided, limits, nodes
    from timeoutq.watch import doctor as examine

    mended = [examine.repair(opened)] if repair else []
    findings = mended + nodes.examine(opened)
    try:
        if isinstance(opened, ShardedQueue):
            findings += divided.examine(opened)
        else:
            findings += examine.examine(opened, named=named)
        if named and not _met(opened):
            findings.append(examine.Finding("queue", "red", unknown_words(opened)))
    except Unavailable as error:
        if not findings:
            raise
        findings.append(examine.Finding("queue", "red", str(error)))  # the node of the queue is away
    try:
        findings += limits.check_limits(opened, wanted) if wanted else []
    except TimeoutqError as error:
        if is_sharded(error):
            raise
        findings.append(examine.Finding("health", "red", str(error)))
    return findings


def _show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    from timeoutq.watch.doctor import MARKS

    sink = Sink(as_json)
    if as_json or not sys.stdout.isatty():
        sink.rows(("check", "verdict", "found", "cure"), ((f.check, f.verdict, f.found, f.cure) for f in findings))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for finding in findings:
            colour, mark = MARKS[finding.verdict]
            line = Text.assemble((f"{mark} ", colour), (f"{finding.check:<12} ", "bold"), safe(finding.found))
            if finding.cure:
                line.append(f"\n  → {safe(finding.cure)}", style=colour)
            console.print(line)


@app.command(rich_help_panel="Looking")
def bench(
    url: Url = None, url_file: UrlFile = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these: put, claim, worker, pickup, calls.")
    ] = None,
    each: Annotated[
        float, typer.Option("--for", parser=seconds, metavar="TIME", help="How long to take each figure, like 500ms.")
    ] = "3s",  # type: ignore[assignment]  # typer parses the default
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure how many tasks a second a server gives, and how soon an idle worker picks up a task.

    The server is an embedded one, or the one at --url, which will be busy for half a minute.
    The work is in queues named bench-…, which are removed in the end, also by Ctrl-C.
    """
    from timeoutq.bench import measures

    address = None if url is None and url_file is None else server_address(url, url_file)
    tell: Callable[[str], object] = say if sys.stderr is not None and sys.stderr.isatty() else bool
    found = measures.measure(address, only or [], seconds=each, tell=tell)
    if as_json:
        Sink(True).document(found)
    else:
        rows = [{**row, "value": measures.number(row["value"])} for row in found["figures"]]
        title = f"timeoutq bench: {found['server']}, {found['machine']}"
        Sink(False).rows([*rows[0]], ([*row.values()] for row in rows), title)
