"""The commands that look: queues, status, dashboard, list, hosts, inspect, why, drained, log; report, as HTML."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeoutq.cli.command import Known, Moment, Name, Opened, Seconds, Server, TaskName, command
from timeoutq.cli.lines import LINES_AT_ONCE, Sink, iso, length, moment
from timeoutq.cli.saying import exit_unless, progress, refuse, say, stop, unknown_words
from timeoutq.cli.tasks import OWNER
from timeoutq.watch import records
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import SERVER
from timeoutq.words.model import HostInfo, HostPage, Page, State
from timeoutq.words.text import age, length_of, safe

if TYPE_CHECKING:
    from timeoutq.rooms.events import Event
    from timeoutq.watch.directory import Listed
    from timeoutq.watch.snapshot import Snapshot

P = TypeVar("P", Page, HostPage)

QUEUE_COLUMNS = ("queue", "known", "todos", "waiting", "scheduled", "in_progress", "done", "failed", "workers", "note")
HOST_COLUMNS = ("host", "waiting", "in_flight", "turn", "delay", "per_host", "budget", "visits", "failures",
                "blocked_until", "banned")  # fmt: skip
HOST_BRIEFLY = ("host", "waiting", "at once", "turn", "delay", "visits", "failures")  # fits beside a name in 80 columns

Cursor = Annotated[str | None, "Where to go on: the cursor that the last page printed."]
AllPages = Annotated[bool, "--all: Print all pages."]
EVENTS_AT_ONCE = 1000
LAST_LINES = 5  # of a traceback that `why` shows; `inspect` shows all


@command()
def queues(*, server: Server, out: Sink) -> None:
    """List the queues on the server, and count their tasks by state. Exit 1: no queue; 3: no queue can be read.

    The command looks at all keys of the server's database, a thousand at a time: about one second per million keys.

    The columns on a pipe: queue, known, todos, waiting, scheduled, in_progress, done, failed, workers, note.
    """
    from timeoutq.watch import directory

    met = readable = 0
    # a server that evicts keys is not refused here: this command only reads
    with server.open("queues", allow_eviction=True) as opened:
        if directory.is_lone_node(opened):
            say(f"{directory.LONE_NODE}: {directory.CURE}")
        names: list[str] = []
        with progress("looking at keys", directory.size(opened), prints_ids=True, unit="queues") as tell:
            for call, page in enumerate(directory.names(opened), 1):
                names += page
                tell(call * directory.KEYS_A_CALL, len(names))
        listed = directory.look(opened, sorted(names))
        while block := list(islice(listed, LINES_AT_ONCE)):
            out.rows(QUEUE_COLUMNS, map(_listed, block))
            met += len(block)
            readable += sum(one.stats is not None for one in block)
    exit_unless(met, f"there is no queue at {opened.url}")
    if not readable:
        stop(f"none of the queues at {opened.url} can be read", SERVER)


def _listed(one: Listed) -> list[Any]:
    stats, (_, *counts, _) = one.stats, QUEUE_COLUMNS
    if stats is None:
        return [one.name, *[None] * len(counts), one.trouble or None]
    words = [f"{len(stats.shards)} shards"] * bool(stats.shards) + ["paused"] * stats.paused
    return [one.name, *(getattr(stats, name) for name in counts), one.trouble or ", ".join(words) or None]


def _show(queue: Known, out: Sink) -> None:
    from timeoutq.watch import snapshot

    seen = snapshot.snapshot(queue)
    if not seen.exists:
        stop(unknown_words(queue))
    if out.as_json:
        out.document(snapshot.to_json(seen))
    elif sys.stdout.isatty():
        from timeoutq.watch.draw import show

        show(seen)
    else:
        out.rows((), _lines(seen))


def _lines(seen: Snapshot) -> Iterator[Sequence[Any]]:
    """Give a snapshot as lines: counts and rates, then a line for each worker, host, lease, due task and error."""
    from timeoutq.watch.snapshot import rates

    stats, ran = seen.stats, seen.stats.durations
    yield from (("queue", seen.queue), ("at", seen.url), ("paused", "yes" if stats.paused else "no"))
    if stats.durable:
        yield "durable", stats.durable
    for state in State:
        if state is not State.WAITING or stats.politeness or stats.waiting:
            yield state.value, getattr(stats, state.value)
    yield "known", stats.known
    if stats.compact:
        yield "keep-done", "compact"
    for name, per_second in rates(seen.history).items():
        yield f"{name}/s", f"{per_second:.2f}"
    for name in ("acked", "reruns", "calls_expired"):
        if count := stats.counters.get(name):
            yield name.replace("_", " "), count
    yield "ready tasks since", iso(stats.todos_since)
    if ran is not None:  # seconds
        yield "handlers ran", ran.count, f"{ran.p50:.4g}", f"{ran.p95:.4g}", f"{ran.max:.4g}"
    for number, ready in seen.depths.items():
        shard = stats.shards[number]
        yield "shard", number, ready, shard.scheduled, shard.in_progress, shard.done, shard.failed
    yield from (("silent", what, why) for what, why in seen.silent.items())
    yield from (("workers", len(seen.living)), ("gone", len(seen.gone)))
    for worker in seen.workers:
        counts = worker.concurrency, worker.held, worker.acked, worker.failed, iso(worker.beat)
        trouble = [worker.trouble] if worker.trouble else []
        yield "worker", worker.worker, "gone" if worker in seen.gone else "alive", *counts, *trouble
    yield from (("tends", worker.worker, *worker.tends) for worker in seen.workers if worker.tends is not None)
    for host in seen.hosts:
        yield "host", host.host, host.waiting, host.busy, iso(host.turn), host.visits, host.failures
    yield from (("lease", entry.task, entry.holder, iso(entry.at)) for entry in seen.leases)
    yield from (("due", entry.task, iso(entry.at)) for entry in seen.due)
    yield from (("error", failure.task, iso(failure.at), failure.error) for failure in seen.errors)


@command()
def status(queue: Opened, *, out: Sink) -> None:
    """Show the queue once, as the dashboard does.

    On a pipe, tabs stand between the columns, and the first column says what the line is about. Most lines have one
    more column: a name, a count, a rate (NAME/s) or a moment. The other lines are:

    - handlers ran, RUNS, P50, P95, MAX: how long handlers ran, in seconds
    - worker, NAME, alive or gone, CONCURRENCY, LEASES HELD, ACKED, FAILED, LAST SIGN OF LIFE, and WHY if it lives and
      does not claim
    - shard, NUMBER, TASKS READY OR WAITING, SCHEDULED, IN PROGRESS, DONE, FAILED
    - silent, what does not answer (shards 4, 5), WHY; it is not counted
    - tends, NAME of a worker, the NUMBER of each shard that it tends
    - host, NAME, TASKS WAITING, TASKS IN FLIGHT, NEXT TURN, VISITS, FAILED VISITS
    - lease, TASK, HOLDER, DEADLINE
    - due, TASK, TIME
    - error, TASK, TIME, ERROR

    Moments are in ISO 8601, and - stands for what is unknown.
    """
    _show(queue, out)


@command()
def dashboard(
    queue: Name,
    interval: Annotated[Seconds, "Time between refreshes."] = Seconds(1),
    read_only: Annotated[bool, "Refuse the keys that change something."] = False, *, server: Server,
) -> None:  # fmt: skip
    """Watch the queue live, and act: lower-case keys look, upper-case keys act and ask; ? shows all; q ends it."""
    from timeoutq.watch import live

    with server.open(queue, waits=sys.stdout.isatty()) as opened:
        if not sys.stdout.isatty():
            _show(opened, Sink())
            return
        how: Any = {"read_only": read_only, "another": server.open}
        try:
            live.run(opened, interval, unknown=lambda: unknown_words(opened), **how)
        except InvalidInput:
            # the server was away when it was to say what the queue is
            with server.open(queue) as again:
                if type(again) is type(opened):
                    raise
                live.run(again, interval, **how)


@command(name="list")
def list_state(
    queue: Known, state: Annotated[State, typer.Argument(help="The state to page through.")], cursor: Cursor = None,
    limit: Annotated[int, "-n --limit 1..1000: The most entries per page."] = 100,
    everything: AllPages = False,
    traceback: Annotated[bool, "Also print the tracebacks of failed tasks."] = False, *, out: Sink,
) -> None:  # fmt: skip
    """List the tasks in a state: leases by deadline, scheduled tasks by due time, other tasks in no order.

    The columns on a pipe: task, at, holder, error, priority. "at" is the due time, the end of the lease, or the time of
    the last error. With --json also: releases, traceback.
    """
    columns = ("task", "at", "holder", "error", "priority", "releases", "traceback")[: 7 if out.as_json else 5]
    at_once = queue.list if everything else partial(_page, queue)
    for page in _pages(lambda at: at_once(state.value, at, limit), cursor, everything):
        entries = page.entries if everything else page.entries[:limit]
        rows = (
            (e.task, e.at if out.as_json else iso(e.at), e.holder, e.error, e.priority or None, e.releases or None,
             e.traceback)
            for e in entries
        )  # fmt: skip
        out.rows(columns, (row[: len(columns)] for row in rows))
        for entry in entries if traceback and not out.as_json else ():
            for line in (entry.task, *(f"    {line}" for line in (entry.traceback or "").splitlines())):
                typer.echo(safe(line))
        if len(entries) < len(page.entries):  # a cursor would skip the tasks that are not shown
            whole = cursor is None and page.cursor is None
            many = f"{len(page.entries):,} in all" if whole else f"at least {len(page.entries):,} here"
            say(f"{many}, {len(entries):,} shown: --all shows every task")
            return


def _pages(read: Callable[[str | None], P], cursor: str | None, everything: bool) -> Iterator[P]:
    """Give the page at a cursor, and say how to go on; or all pages from there on."""
    while True:
        page = read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return
        if not everything:
            say(f"more with --cursor {cursor}, or --all")
            return


def _page(queue: Known, state: str, cursor: str | None, n: int) -> Page:
    """Read a page of at most `n` entries, if possible: of a set, the server may give more than we ask for."""
    page, asked = queue.list(state, cursor, n), n
    while len(page.entries) > n and asked > 1:
        asked = max(1, asked - (len(page.entries) - n))
        page = queue.list(state, cursor, asked)
    return page


def _host_row(info: HostInfo) -> Sequence[Any]:
    return (
        info.host, info.waiting, info.busy, iso(info.turn), length(info.delay), info.per_host, info.budget,
        info.visits, info.failures, iso(info.blocked_until), info.banned,
    )  # fmt: skip


def _briefly(info: HostInfo, now: float) -> Sequence[Any]:
    of = "" if info.budget is None else f" of {info.budget}"
    return (
        info.host, info.waiting, f"{info.busy} of {info.per_host}", records.turn(info, now)[0], age(info.delay),
        f"{info.visits}{of}", info.failures,
    )  # fmt: skip


@command()
def hosts(
    queue: Known, cursor: Cursor = None,
    limit: Annotated[int, "-n --limit 1..500: The most hosts per page."] = 100,
    everything: AllPages = False, *, out: Sink,
) -> None:  # fmt: skip
    """List the hosts that the queue has met; the host with the next turn comes first.

    The columns on a pipe: host, waiting, in_flight, turn, delay, per_host, budget, visits, failures, blocked_until,
    banned.
    """
    for page in _pages(lambda at: queue.hosts.list(at, limit), cursor, everything):
        if out.as_json or not sys.stdout.isatty():
            out.each(HOST_COLUMNS, page.hosts, _host_row)
        elif page.hosts or cursor is None:
            now = queue.stats().now
            out.rows(HOST_BRIEFLY, [_briefly(info, now) for info in page.hosts])


@command()
def inspect(queue: Known, task: TaskName, *, out: Sink) -> None:
    """Show everything about one task; exit 1 when the task is in no state, and no result of it is kept."""
    info = queue.inspect(task)
    lost = "done, its id is not kept" if info.has_result else "unknown: no state holds it"
    traceback = (("traceback", line) for line in (info.traceback or "").splitlines())
    facts = [("task", info.task), ("state", info.state or lost), *records.of_task(info), *traceback]
    out.facts(info, facts, ("fact", "value"))
    exit_unless(info.state is not None or info.has_result)


BY_HAND = "; a spider owns the queue, and the response then goes to its `parse`: callback and meta went with the ack"


@command()
def why(queue: Known, task: TaskName, *, out: Sink) -> None:
    """Say why a task is not being worked on now, or who works on it; exit 1 when the task is in no state."""
    from timeoutq.verbs.why import advised

    found = queue.why(task)
    info, told = found.info, dict(records.of_task(found.info))
    spiders = BY_HAND if found.code == "done" and OWNER in queue.stats().settings else ""
    shown = ("host", "priority", "failures", "crashes", "releases", "last error")
    out.facts(found, [
        ("state", None if info.state is None else info.state.value), ("reason", found.code),
        ("why", advised(found, records.ADVICE, queue.name) + spiders), *((name, told[name]) for name in shown),
        ("before it", found.before), ("near", found.near),
        *(("traceback", line) for line in (info.traceback or "").splitlines()[-LAST_LINES:]),
    ])  # fmt: skip
    exit_unless(info.state is not None or found.code == "done")


@command()
def drained(
    queue: Known,
    before: Annotated[Moment | None, "Leave out tasks that are scheduled for this time or later."] = None,
    wait: Annotated[Seconds | None, "Wait until the queue is drained, at most this long."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Say whether no task is ready, in progress, scheduled, or waiting for its host's turn. Exit 0: yes; 1: no."""
    found = queue.drained(before) if wait is None else queue.wait_drained(wait, before)
    if found and wait is not None and not queue.exists():  # the server may have lost its data meanwhile
        stop(unknown_words(queue))
    out.answer({"drained": found}, "yes" if found else "no")
    exit_unless(found)


@command()
def log(
    queue: Known,
    follow: Annotated[bool, "--follow -f: Go on, and show what comes. Ctrl-C ends it."] = False,
    task: Annotated[str | None, "ID: Only what happened to this task."] = None,
    since: Annotated[str | None, "TIME: From then on: a time, or how long ago (10m, 2h, 0)."] = None,
    n: Annotated[int | None, "-n 0..: The last N calls, 20 by default; with --since, the first N."] = None,
    *, out: Sink,
) -> None:  # fmt: skip
    """Show the event log: which tasks each call has moved. Exit 1: no log, or nothing of the task of --task in it.

    `timeoutq configure QUEUE --events 64MB` begins a log. A line is a move: the time, what was called, by whom, from
    which state to which, and the task. `--since 0` shows the log from its beginning. With --json, a line is a call.
    """
    page = queue.events.list(n=1)
    if not page.events and "events" not in queue.stats().settings:
        stop(f"queue {queue.name} has no event log: timeoutq configure {queue.name} --events 64MB begins one")
    if since is not None:
        events = islice(_since(queue, _begin(queue, since), task), n)
    else:
        last = queue.events.list(n=min(20 if n is None else max(1, n), EVENTS_AT_ONCE), task=task)
        events = islice(last.events, n)
    cursor, shown = page.cursor, False
    for event in events:
        _show_event(event, task, out)
        cursor, shown = event.cursor, True
    if follow:
        for event in queue.events.follow(cursor, task):
            _show_event(event, task, out)
    elif task is not None and not shown and n != 0:
        then = "" if since is None else " since then"
        stop(f"the log of queue {queue.name} tells nothing of task {task!r:.200}{then}")


def _begin(queue: Known, since: str) -> float:
    if since.strip()[-1:] in ("s", "m", "h", "d") and (ago := length_of(since)) is not None:
        return max(0.0, queue.stats().now - ago)
    try:
        return moment(since)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}; or how long ago: 30s, 10m, 2h, 1d; 0 is the beginning") from None


def _since(queue: Known, after: Any, task: str | None) -> Iterator[Event]:
    while (page := queue.events.list(after, EVENTS_AT_ONCE, task)).cursor != after:
        yield from page.events
        after = page.cursor


def _show_event(event: Event, task: str | None, out: Sink) -> None:
    """Print an entry: a line for each move, or one JSON document."""
    if out.as_json:
        shown = {name: getattr(event, name) for name in ("id", "at", "verb", "by", "moves", "shard", "level")}
        out.document({name: value for name, value in shown.items() if value is not None})
        return
    moves = [(f"{left}>{entered}", id) for id, left, entered in event.each() if task is None or id == task]
    if event.level is not None:
        moves = [(f"level {event.level}", "")]
    lines = ["\t".join(map(safe, (iso(event.at), event.verb, event.by or "-", way, id))) for way, id in moves]
    if lines:
        typer.echo("\n".join(lines))
        sys.stdout.flush()


@command()
def report(
    queue: Known, html: Annotated[Path | None, "FILE: Write the report there; - is stdout."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Draw pictures of a crawl: states over time, rates, durations, errors by kind, hosts.

    The report is one file of HTML, which needs no network and runs no script.
    """
    refuse((html is None) != out.as_json, "say what is wanted: --html FILE or --json")
    from timeoutq.watch import report as reports

    found = reports.gather(queue)
    if html is None:
        out.document(reports.document(found))
        return
    text = reports.page(found)
    if str(html) == "-":
        sys.stdout.write(text)
        return
    part = html.with_name(f".{html.name}.{os.getpid()}")  # so that nobody reads half of a report
    try:
        part.write_text(text, "utf-8")
        part.replace(html)
    except OSError as error:
        raise InvalidInput(f"cannot write {html}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    say(f"wrote {html}, {len(text.encode()) // 1024 + 1} KiB")
