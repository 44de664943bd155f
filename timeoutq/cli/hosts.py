"""The commands about the hosts of a polite queue: hosts, host, block, unblock, ban; and why, which names hosts too.

`app.py` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from timeoutq.cli.app import NOTHING, AsJson, Name, TaskName, Url, UrlFile, Yes, app, known_queue, say, stop, sure
from timeoutq.cli.intake import OWNER
from timeoutq.cli.printing import Sink, iso, releases
from timeoutq.cli.reading import moment, seconds
from timeoutq.errors import InvalidInput
from timeoutq.model import HostInfo, Politeness
from timeoutq.standing import Standing, standing
from timeoutq.text import age

Host = Annotated[
    str,
    typer.Argument(
        metavar="HOST", help="example.com, example.com:8080, a URL of the host, or a group.", show_default=False
    ),
]
COLUMNS = ("host", "waiting", "in_flight", "turn", "delay", "per_host", "budget", "visits", "failures", "blocked_until",
           "banned")  # fmt: skip
BRIEFLY = ("host", "waiting", "at once", "turn", "delay", "visits", "failures")
"""What fits beside a name in 80 columns."""

LAST_LINES = 5
"""Lines of a traceback that `why` shows; `inspect` shows all."""


def _length(seconds: float) -> str:
    # not :g, which makes 2.592e+06 of a month
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def _row(info: HostInfo) -> Sequence[Any]:
    return (
        info.host, info.waiting, info.busy, iso(info.turn), _length(info.delay), info.per_host, info.budget,
        info.visits, info.failures, iso(info.blocked_until), info.banned,
    )  # fmt: skip


def _brief(info: HostInfo, now: float) -> Sequence[Any]:
    of = "" if info.budget is None else f" of {info.budget}"
    return (
        info.host, info.waiting, f"{info.busy} of {info.per_host}", TURNS[standing(info, now, TURNS)](info, now),
        age(info.delay), f"{info.visits}{of}", info.failures,
    )  # fmt: skip


TURNS: Mapping[Standing, Callable[[HostInfo, float], str | None]] = {
    Standing.BANNED: lambda info, now: "banned",
    Standing.BLOCKED: lambda info, now: f"blocked {age((info.blocked_until or now) - now)}",
    Standing.TURN: lambda info, now: f"in {age(max(0.0, (info.turn or now) - now))}",
    Standing.USED_UP: lambda info, now: "used up" if info.waiting else None,
    Standing.FREE: lambda info, now: None,
}
"""The words in the column `turn`."""


def _tell(info: HostInfo, as_json: bool) -> None:
    sink = Sink(as_json)
    if as_json:
        sink.document(info)
        return
    more = info.busy - len(info.in_flight)
    lines = [
        ("host", info.host), ("waiting", info.waiting), *(("in flight", task) for task in info.in_flight),
        ("in flight", f"and {more:,} more" if more > 0 else None),
        ("next", info.next_task), ("its priority", info.next_priority or None),
        ("turn", iso(info.turn)), ("delay", _length(info.delay)), ("per host", info.per_host), ("budget", info.budget),
        ("visits", info.visits), ("failures", info.failures), ("next allowed", iso(info.next_allowed)),
        ("blocked until", iso(info.blocked_until)), ("blocked by", info.blocked_by or None), ("banned", info.banned),
    ]  # fmt: skip
    sink.rows(("what", "value"), [line for line in lines if line[1] is not None])


@app.command(rich_help_panel="Hosts of a polite queue")
def hosts(
    queue: Name,
    cursor: Annotated[str | None, typer.Option(help="Where to go on: the cursor that the last page printed.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=500, help="The most hosts per page.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="Print all pages.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the hosts that the queue has met; the host with the next turn comes first.

    The columns on a pipe: host, waiting, in_flight, turn, delay, per_host,
    budget, visits, failures, blocked_until, banned.
    """
    sink = Sink(as_json)
    with known_queue(queue, url, url_file) as opened:
        while True:
            page = opened.hosts.list(cursor, limit)
            if as_json:
                for info in page.hosts:
                    sink.document(info)
            elif not sys.stdout.isatty():
                sink.rows(COLUMNS, map(_row, page.hosts))
            elif page.hosts or cursor is None:
                now = opened.stats().now
                sink.rows(BRIEFLY, [_brief(info, now) for info in page.hosts])
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


@app.command(rich_help_panel="Hosts of a polite queue")
def host(
    queue: Name, name: Host,
    delay: Annotated[
        Any, typer.Option(parser=_delay, metavar="TIME", help="Pause from the end of a visit to the next; or: usual.")
    ] = None,
    per_host: Annotated[str | None, typer.Option(metavar="N", help="Visits that run at once; or: usual.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="N", help="The most visits in all; or: none.")] = None,
    usual: Annotated[bool, typer.Option("--usual", help="Go back to the queue's own delay and per-host.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show everything about one host; with options, first give the host rules of its own.

    Exit 1 when the queue has never met the host: the rules shown are those that
    the host would have.
    """
    if usual and (delay is not None or per_host is not None):
        raise InvalidInput("give --usual, or --delay and --per-host")
    with known_queue(queue, url, url_file) as opened:
        found = opened.hosts.set(
            name,
            delay="usual" if usual else delay,
            per_host="usual" if usual else _number_or(per_host, "--per-host", "usual"),
            budget=_number_or(budget, "--budget", "none"),
        )
        rules = opened.stats().politeness
    _tell(found, as_json)
    if delay is None and per_host is None and budget is None and not usual and _is_unmet(found, rules):
        stop(NOTHING, f"queue {queue} has never visited host {found.host}, and has no task and no rule for it")


def _is_unmet(info: HostInfo, usual: Politeness | None) -> bool:
    if usual is not None and (info.delay, info.per_host) != (usual.delay, usual.per_host):
        return False
    met = (info.waiting, info.busy, info.visits, info.failures, info.turn, info.blocked_until, info.banned)
    return not any(met) and info.next_allowed is None and info.budget is None


@app.command(rich_help_panel="Hosts of a polite queue")
def block(
    queue: Name, name: Host,
    for_: Annotated[
        float | None, typer.Option("--for", parser=seconds, metavar="TIME", help="For this time, like 60s, 5m, 2h.")
    ] = None,
    until: Annotated[
        float | None, typer.Option(parser=moment, metavar="TIME", help="Unix seconds, or ISO 8601 with a zone.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason for `why` to show; by default, your name.")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Let no worker visit a host for a while; visits that are under way are finished."""
    if (for_ is None) == (until is None):
        raise InvalidInput("say for how long: --for 5m, or --until a time")
    with known_queue(queue, url, url_file) as opened:
        found = opened.hosts.block(name, for_=for_, until=until, reason=reason)
    _tell(found, as_json)


@app.command(rich_help_panel="Hosts of a polite queue")
def unblock(queue: Name, name: Host, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """End a block or a ban."""
    with known_queue(queue, url, url_file) as opened:
        found = opened.hosts.unblock(name)
    _tell(found, as_json)


@app.command(rich_help_panel="Hosts of a polite queue")
def ban(
    queue: Name, name: Host,
    reason: Annotated[str, typer.Option(help="Reason, which is kept with each task.")] = "banned by hand",
    yes: Yes = False, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Never visit a host again: its ready tasks go to failed, and so do all later ones. Asks first."""
    with known_queue(queue, url, url_file) as opened:
        known = opened.hosts.inspect(name)
        ready = f"{known.waiting:,} waiting, {known.busy:,} ready or in progress"
        sure(f"Ban host {known.host} of queue {queue}, and move its ready tasks to failed ({ready})?", yes)
        found = opened.hosts.ban(name, reason)
    _tell(found, as_json)


COMMANDS = {
    "done": "`timeoutq put {queue} {task} --again` makes it ready again",
    "failed": "`timeoutq retry {queue} {task}` brings it back",
    "banned": "first `timeoutq unblock {queue} {host}`, then `timeoutq retry {queue} {task}` brings it back; before "
    "that, it fails again at once",
    "no_replica": "start replicas, or `timeoutq configure {queue} --durable N` asks for fewer",
    "budget": "`timeoutq host {queue} {host} --budget N` gives the host more visits",
}
"""Advice for a person at a shell, in the place of the advice that `why` has for a program."""

BY_HAND = "; a spider owns the queue, and the response then goes to its `parse`: callback and meta went with the ack"


@app.command(rich_help_panel="Looking")
def why(queue: Name, task: TaskName, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Say why a task is not being worked on now, or who works on it; exit 1 when the task is in no state."""
    from timeoutq.why import advised

    with known_queue(queue, url, url_file) as opened:
        found = opened.why(task)
        is_spiders = found.code == "done" and OWNER in opened.stats().settings
    sink = Sink(as_json)
    if as_json:
        sink.document(found)
    else:
        state = None if found.info.state is None else found.info.state.value
        trace = (found.info.traceback or "").splitlines()
        message = advised(found, COMMANDS, queue) + is_spiders * BY_HAND
        lines = [("state", state), ("reason", found.code), ("why", message),
                 ("host", found.info.host),
                 ("priority", found.info.priority or None), ("before it", found.before),
                 ("failures", found.info.failures or None), ("crashes", found.info.crashes or None),
                 ("releases", releases(found.info)), ("last error", found.info.error), ("near", found.near),
                 *(("traceback", line) for line in trace[-LAST_LINES:])]  # fmt: skip
        sink.rows(("what", "value"), [line for line in lines if line[1] is not None])
    if found.info.state is None and found.code != "done":
        raise typer.Exit(NOTHING)
