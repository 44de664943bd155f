"""The commands that look and change nothing: queues, status, dashboard, list, inspect, drained, log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import exit_unless, say, stop, unknown, unknown_words
from timeoutq.cli.command import AllPages, Cursor, Known, Moment, Name, Opened, Seconds, Server, TaskName, command
from timeoutq.cli.printing import LINES_AT_ONCE, Sink, iso, progress
from timeoutq.cli.reading import moment
from timeoutq.watch import records
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING, SERVER
from timeoutq.words.model import Page, State
from timeoutq.words.text import length_of, safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.rooms.events import Event
    from timeoutq.watch.directory import Listed
    from timeoutq.watch.snapshot import Snapshot

QUEUE_COLUMNS = ("queue", "known", "todos", "waiting", "scheduled", "in_progress", "done", "failed", "workers", "note")
EVENTS_AT_ONCE = 1000


@command()
def queues(*, server: Server, out: Sink) -> None:
    """List the queues on the server, and count their tasks by state. Exit 1: no queue; 3: no queue can be read.

    The command looks at all keys of the server's database, a thousand at a time:
    about one second per million keys.

    The columns on a pipe: queue, known, todos, waiting, scheduled, in_progress,
    done, failed, workers, note.
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
    if not met:
        stop(NOTHING, f"there is no queue at {opened.url}")
    if not readable:
        stop(SERVER, f"none of the queues at {opened.url} can be read")


def _listed(one: Listed) -> list[Any]:
    stats = one.stats
    if stats is None:
        return [one.name, *[None] * len(QUEUE_COLUMNS[1:-1]), one.trouble or None]
    words = [f"{len(stats.shards)} shards"] if stats.shards else []
    note = ", ".join([*words, "paused"] if stats.paused else words) or None
    return [one.name, *(getattr(stats, name) for name in QUEUE_COLUMNS[1:-1]), one.trouble or note]


def _show(seen: Snapshot, queue: AnyQueue, out: Sink) -> None:
    if not seen.exists:
        unknown(queue)
    if out.as_json:
        from timeoutq.watch.snapshot import to_json

        out.document(to_json(seen))
    elif sys.stdout.isatty():
        from timeoutq.watch.draw import show

        show(seen)
    else:
        out.rows((), _lines(seen))


def _lines(seen: Snapshot) -> Iterator[Sequence[Any]]:
    """Give a snapshot as lines: counts and rates, then a line for each worker, host, lease, due task and error."""
    from timeoutq.watch.metrics import rates

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
    if reruns := stats.counters.get("reruns"):
        yield "reruns", reruns
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

    _show(snapshot.snapshot(queue), queue, out)


@command()
def dashboard(
    queue: Name,
    interval: Annotated[Seconds, "Time between refreshes."] = Seconds(1),
    read_only: Annotated[bool, "Refuse the keys that change something."] = False, *, server: Server,
) -> None:  # fmt: skip
    """Watch the queue live, and act: lower-case keys look, upper-case keys act and ask; ? shows all; q ends it."""
    from timeoutq.watch import live, snapshot

    with server.open(queue, waits=sys.stdout.isatty()) as opened:
        if not sys.stdout.isatty():
            _show(snapshot.snapshot(opened), opened, Sink())
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

    The columns on a pipe: task, at, holder, error, priority. "at" is the due time,
    the end of the lease, or the time of the last error. With --json also:
    releases, traceback.
    """
    columns = ("task", "at", "holder", "error", "priority", "releases", "traceback")[: 7 if out.as_json else 5]
    begun = cursor
    while True:
        page = queue.list(state.value, cursor, limit) if everything else _page(queue, state, cursor, limit)
        entries = page.entries if everything else page.entries[:limit]
        rows = (
            (e.task, e.at if out.as_json else iso(e.at), e.holder, e.error, e.priority or None, e.releases or None,
             e.traceback)
            for e in entries
        )  # fmt: skip
        out.rows(columns, [row[: len(columns)] for row in rows])
        for entry in entries if traceback and not out.as_json else ():
            for line in (entry.task, *(f"    {line}" for line in (entry.traceback or "").splitlines())):
                typer.echo(safe(line))
        cursor = page.cursor
        if cursor is None or not everything:
            break
    if len(entries) < len(page.entries):  # a cursor would skip the tasks that are not shown
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


@command()
def inspect(queue: Known, task: TaskName, *, out: Sink) -> None:
    """Show everything about one task; exit 1 when the task is in no state, and no result of it is kept."""
    info = queue.inspect(task)
    lost = "done, its id is not kept" if info.has_result else "unknown: no state holds it"
    traceback = (("traceback", line) for line in (info.traceback or "").splitlines())
    facts = [("task", info.task), ("state", info.state or lost), *records.of_task(info), *traceback]
    out.facts(info, facts, ("fact", "value"))
    exit_unless(info.state is not None or info.has_result)


@command()
def drained(
    queue: Known,
    before: Annotated[Moment | None, "Leave out tasks that are scheduled for this time or later."] = None,
    wait: Annotated[Seconds | None, "Wait until the queue is drained, at most this long."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Say whether no task is ready, in progress, scheduled, or waiting for its host's turn. Exit 0: yes; 1: no."""
    found = queue.drained(before) if wait is None else queue.wait_drained(wait, before)
    if found and wait is not None and not queue.exists():  # the server may have lost its data meanwhile
        unknown(queue)
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

    `timeoutq configure QUEUE --events 64MB` begins a log. A line is a move: the
    time, what was called, by whom, from which state to which, and the task.
    `--since 0` shows the log from its beginning. With --json, a line is a call.
    """
    page = queue.events.list(n=1)
    if not page.events and "events" not in queue.stats().settings:
        stop(NOTHING, f"queue {queue.name} has no event log: timeoutq configure {queue.name} --events 64MB begins one")
    begin = None if since is None else _begin(queue, since)
    cursor, shown = page.cursor, False
    for event in _logged(queue, begin, n, task):
        _show_event(event, task, out)
        cursor, shown = event.cursor, True
    if follow:
        for event in queue.events.follow(cursor, task):
            _show_event(event, task, out)
    elif task is not None and not shown and n != 0:
        then = "" if begin is None else " since then"
        stop(NOTHING, f"the log of queue {queue.name} tells nothing of task {task!r:.200}{then}")


def _begin(queue: AnyQueue, since: str) -> float:
    if since.strip()[-1:] in ("s", "m", "h", "d") and (ago := length_of(since)) is not None:
        return max(0.0, queue.stats().now - ago)
    try:
        return moment(since)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message}; or how long ago: 30s, 10m, 2h, 1d; 0 is the beginning") from None


def _logged(queue: AnyQueue, begin: float | None, n: int | None, task: str | None) -> Iterator[Event]:
    """Give what is in the log already: the last `n` calls, or from a time on the first `n`."""
    if begin is None:
        last = queue.events.list(n=min(20 if n is None else max(1, n), EVENTS_AT_ONCE), task=task)
        yield from last.events if n != 0 else ()
        return
    after: Any = begin
    left = n
    while left is None or left > 0:
        page = queue.events.list(after, min(EVENTS_AT_ONCE, left or EVENTS_AT_ONCE), task)
        if page.cursor == after:
            return
        yield from page.events
        after, left = page.cursor, None if left is None else left - len(page.events)


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
