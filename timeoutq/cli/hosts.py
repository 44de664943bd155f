"""The commands about the hosts of a polite queue: hosts, host, block, unblock, ban; and why, which names hosts too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from timeoutq.cli.app import exit_unless, say, stop, sure
from timeoutq.cli.command import AllPages, Cursor, Host, Known, Moment, Name, Seconds, Server, TaskName, Yes, command
from timeoutq.cli.printing import Sink, iso, length
from timeoutq.cli.reading import seconds
from timeoutq.cli.tasks import OWNER
from timeoutq.watch import records
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING
from timeoutq.words.model import HostInfo
from timeoutq.words.text import age

COLUMNS = ("host", "waiting", "in_flight", "turn", "delay", "per_host", "budget", "visits", "failures", "blocked_until",
           "banned")  # fmt: skip
BRIEFLY = ("host", "waiting", "at once", "turn", "delay", "visits", "failures")  # fits beside a name in 80 columns
LAST_LINES = 5  # of a traceback that `why` shows; `inspect` shows all


def _row(info: HostInfo) -> Sequence[Any]:
    return (
        info.host, info.waiting, info.busy, iso(info.turn), length(info.delay), info.per_host, info.budget,
        info.visits, info.failures, iso(info.blocked_until), info.banned,
    )  # fmt: skip


def _brief(info: HostInfo, now: float) -> Sequence[Any]:
    of = "" if info.budget is None else f" of {info.budget}"
    return (
        info.host, info.waiting, f"{info.busy} of {info.per_host}", records.turn(info, now)[0], age(info.delay),
        f"{info.visits}{of}", info.failures,
    )  # fmt: skip


def _tell(info: HostInfo, out: Sink) -> None:
    out.facts(info, records.of_host(info))


@command()
def hosts(
    queue: Known, cursor: Cursor = None,
    limit: Annotated[int, "-n --limit 1..500: The most hosts per page."] = 100,
    everything: AllPages = False, *, out: Sink,
) -> None:  # fmt: skip
    """List the hosts that the queue has met; the host with the next turn comes first.

    The columns on a pipe: host, waiting, in_flight, turn, delay, per_host,
    budget, visits, failures, blocked_until, banned.
    """
    while True:
        page = queue.hosts.list(cursor, limit)
        if out.as_json or not sys.stdout.isatty():
            out.each(COLUMNS, page.hosts, _row)
        elif page.hosts or cursor is None:
            now = queue.stats().now
            out.rows(BRIEFLY, [_brief(info, now) for info in page.hosts])
        cursor = page.cursor
        if cursor is None or not everything:
            break
    if cursor is not None:
        say(f"more with --cursor {cursor}, or --all")


def _delay(text: str) -> float | Literal["usual"]:
    return "usual" if text == "usual" else seconds(text)


def _number_or(text: str | None, name: str, word: str) -> Any:
    if text is None or text == word:
        return text
    if not text.isascii() or not text.isdecimal():
        raise InvalidInput(f"{name} {text!r:.40} is neither a whole number nor {word}")
    return int(text[:20])  # more digits are too many for anything, and take long


@command()
def host(
    queue: Name, name: Host,
    delay: Annotated[
        Any, typer.Option(parser=_delay, metavar="TIME", help="Pause from the end of a visit to the next; or: usual.")
    ] = None,
    per_host: Annotated[str | None, "N: Visits that run at once; or: usual."] = None,
    budget: Annotated[str | None, "N: The most visits in all; or: none."] = None,
    usual: Annotated[bool, "Go back to the queue's own delay and per-host."] = False, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Show everything about one host; with options, first give the host rules of its own.

    Exit 1 when the queue has never met the host: the rules shown are those that
    the host would have.
    """
    if usual and (delay is not None or per_host is not None):
        raise InvalidInput("give --usual, or --delay and --per-host")
    with server.known(queue) as opened:
        found = opened.hosts.set(
            name,
            delay="usual" if usual else delay,
            per_host="usual" if usual else _number_or(per_host, "--per-host", "usual"),
            budget=_number_or(budget, "--budget", "none"),
        )
        rules = opened.stats().politeness
    _tell(found, out)
    if (delay, per_host, budget) == (None, None, None) and not usual:
        own = rules is None or (found.delay, found.per_host) != (rules.delay, rules.per_host)
        met = (found.waiting, found.busy, found.visits, found.failures, found.turn, found.blocked_until, found.banned)
        if not own and not any(met) and found.next_allowed is None and found.budget is None:
            stop(NOTHING, f"queue {queue} has never visited host {found.host}, and has no task and no rule for it")


@command()
def block(
    queue: Name, name: Host,
    for_: Annotated[Seconds | None, "--for: For this time, like 60s, 5m, 2h."] = None,
    until: Annotated[Moment | None, "Unix seconds, or ISO 8601 with a zone."] = None,
    reason: Annotated[str | None, "Reason for `why` to show; by default, your name."] = None,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Let no worker visit a host for a while; visits that are under way are finished."""
    if (for_ is None) == (until is None):
        raise InvalidInput("say for how long: --for 5m, or --until a time")
    with server.known(queue) as opened:
        _tell(opened.hosts.block(name, for_=for_, until=until, reason=reason), out)


@command()
def unblock(queue: Known, name: Host, *, out: Sink) -> None:
    """End a block or a ban."""
    _tell(queue.hosts.unblock(name), out)


@command()
def ban(
    queue: Known, name: Host,
    reason: Annotated[str, "Reason, which is kept with each task."] = "banned by hand", yes: Yes = False, *, out: Sink,
) -> None:  # fmt: skip
    """Never visit a host again: its ready tasks go to failed, and so do all later ones. Asks first."""
    known = queue.hosts.inspect(name)
    ready = f"{known.waiting:,} waiting, {known.busy:,} ready or in progress"
    sure(f"Ban host {known.host} of queue {queue.name}, and move its ready tasks to failed ({ready})?", yes)
    _tell(queue.hosts.ban(name, reason), out)


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
