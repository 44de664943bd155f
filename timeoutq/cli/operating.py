"""The commands of an operator: retry, cancel, forget, pause, resume, configure, purge.

`app.py` runs them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from timeoutq.cli.app import (
    NOTHING,
    AsJson,
    Ids,
    Name,
    Shards,
    Url,
    UrlFile,
    Yes,
    app,
    known_queue,
    open_queue,
    say,
    sure,
    with_ended,
)
from timeoutq.cli.printing import Sink, length, report
from timeoutq.cli.reading import given_ids, seconds
from timeoutq.counts import Stats
from timeoutq.errors import InvalidInput
from timeoutq.model import Politeness, State

if TYPE_CHECKING:
    from timeoutq.model import Outcome
    from timeoutq.shards import AnyQueue

LOOKED_AT = 100
"""Of at most this many retried tasks, `retry` looks whether their hosts are banned."""


@app.command(rich_help_panel="Operating")
def retry(
    queue: Name, tasks: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry all failed tasks but cancelled ones.")] = False,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="With --all: those that were cancelled, too.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make failed tasks ready again, with a clean record; exit 1 when no task was failed.

    For each named task, a line says "retried", the state that the task is in, or
    "unknown". With --all, the command prints the number of retried tasks. For
    some of the failed tasks: timeoutq requeue QUEUE --from failed --match GLOB.
    """
    if bool(tasks) == everything:
        raise InvalidInput("name failed tasks, or give --all")
    if cancelled and not everything:
        raise InvalidInput("--cancelled goes with --all: tasks that are named are retried in any case")
    with known_queue(queue, url, url_file) as opened:
        if everything:
            moved = opened.retry_failed(all=True, cancelled=cancelled)
            Sink(as_json).document({"retried": moved}) if as_json else typer.echo(f"{moved} retried")
        else:
            outcome = opened.run(opened.retrial(given_ids(tasks)))
            moved = outcome.ok
            Sink(as_json).rows(("task", "answer"), _retried(outcome))
            _tell_banned(opened, outcome)
    if not moved:
        raise typer.Exit(NOTHING)


def _tell_banned(queue: AnyQueue, outcome: Outcome) -> None:
    """Say of which hosts the retried tasks fail again at once, because the hosts are banned."""
    from timeoutq.model import Answer

    hosts: dict[str, str] = {}
    for task, answer in list(outcome.items())[:LOOKED_AT]:
        if answer is Answer.OK:
            found = queue.why(task)
            if found.host is not None and found.host.banned is not None:
                hosts[found.host.host] = found.host.banned
    for name, reason in hosts.items():
        say(
            f"host {name} is banned ({reason}), and its tasks fail again at once: first timeoutq unblock {queue.name} "
            f"{shlex.quote(name)}, then retry"
        )


def _retried(outcome: Outcome) -> Iterator[tuple[str, str]]:
    from timeoutq.model import Answer

    return ((task, "retried" if answer is Answer.OK else answer.value) for task, answer in outcome.items())


@app.command(rich_help_panel="Operating")
def forget(
    queue: Name, tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help="Task ids.")], yes: Yes = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Remove tasks from every state; a running task loses its lease. Asks first; exit 1 when no task was known."""
    from timeoutq.model import Answer

    with known_queue(queue, url, url_file) as opened:
        sure(f"Forget {len(tasks)} task{'' if len(tasks) == 1 else 's'} of queue {queue}?", yes)
        outcome = opened.forget(tasks)
    report(outcome, as_json)
    if all(answer is Answer.UNKNOWN for answer in outcome):
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Operating")
def cancel(
    queue: Name, tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help="Task ids.")],
    by: Annotated[str | None, typer.Option(help="Who cancels; by default the name of this client.")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Cancel tasks that have not ended: they go to failed, running ones once their handlers stop.

    A function that is a def is not waited for: its call goes to failed, and its
    thread runs on. For each task, prints "cancelled", "cancelling" for one whose
    worker is told to stop it, or where the task is. Exit 1 when nothing was cancelled.
    """
    from timeoutq.model import Answer

    with known_queue(queue, url, url_file) as opened:
        outcome = with_ended(opened, opened.cancel(tasks, by=by))
    report(outcome, as_json)
    if not any(answer in (Answer.CANCELLED, Answer.CANCELLING) for answer in outcome):
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Operating")
def pause(queue: Name, url: Url = None, url_file: UrlFile = None) -> None:
    """Give out no more tasks; tasks that have a lease are finished."""
    with known_queue(queue, url, url_file) as opened:
        opened.pause()


@app.command(rich_help_panel="Operating")
def resume(queue: Name, url: Url = None, url_file: UrlFile = None) -> None:
    """Give out tasks again."""
    with known_queue(queue, url, url_file) as opened:
        opened.resume()


def _keep(text: str) -> int | str | timedelta:
    if text in ("forever", "compact"):
        return text
    if re.fullmatch("[0-9]{1,15}", text):
        return int(text)
    # a bare number is a count, so a length of time needs its unit
    with suppress(typer.BadParameter, OverflowError):
        if text.rstrip()[-1:].isalpha():
            return timedelta(seconds=seconds(text))
    raise InvalidInput(
        f"--keep-done {text!r:.40} is none of: forever, compact, 0, a number of tasks (1000), a time (12h, 7d)"
    )


def _kept(value: str) -> str:
    """Give a stored `keep_done` as --keep-done takes it."""
    if value.startswith("t") and value[1:].isdecimal():
        return length(int(value[1:]) / 1000)
    return "0" if value == "no" else value.removeprefix("n")


def _show_settings(stats: Stats, as_json: bool) -> None:
    polite, of = stats.politeness, stats.settings.get
    found = {
        "keep-done": "compact" if stats.compact else _kept(of("keep_done", "forever")),
        "max-crashes": int(of("max_crashes", "5")),
        "delay": None if polite is None else length(polite.delay),
        "per-host": None if polite is None else polite.per_host,
        "durable": stats.durable or None,
        "events": of("events"),
        "paused": "yes" if stats.paused else "no",
        "schema": of("schema"),
    }
    if "shards" in stats.settings:
        found["shards"] = of("shards")
    sink = Sink(as_json)
    if as_json:
        plain = {"durable": stats.durable, "paused": stats.paused}
        sink.document({**{name.replace("-", "_"): value for name, value in found.items()}, **plain})
    else:
        sink.rows(("setting", "value"), [line for line in found.items() if line[1] is not None])


@app.command(rich_help_panel="Operating")
def configure(
    queue: Name,
    keep_done: Annotated[
        str | None,
        typer.Option(help="Done tasks to keep: forever, compact (10 bytes each), 0, a number (1000), or a time (7d)."),
    ] = None,
    max_crashes: Annotated[
        int | None, typer.Option(min=1, help="Lost leases after which a task goes to failed.")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Polite: pause between two visits of a host."),
    ] = None,
    per_host: Annotated[
        int | None, typer.Option(min=1, help="Polite: visits of a host that run at once; 1 by default.")
    ] = None,
    impolite: Annotated[
        bool, typer.Option("--impolite", help="End the politeness: hosts and their rules are forgotten.")
    ] = False,
    durable: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="Replicas that must confirm puts, claims and acks before they count; 0 for none.",
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(metavar="SIZE", show_default=False, help="Begin the event log, or say how long it is: 64MB, 1GB."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", show_default=False,
            help="What the event log tells: all, ends (done and failed tasks only), or off.",
        ),
    ] = None,
    shards: Shards = None, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Change settings that all clients of the queue share; without an option, show them."""
    polite = delay is not None or per_host is not None
    given = (keep_done, max_crashes, durable, events, level, shards)
    if not any(value is not None for value in given) and not polite and not impolite:
        with known_queue(queue, url, url_file) as opened:
            _show_settings(opened.stats(), as_json)
        return
    if polite and impolite:
        raise InvalidInput("give --impolite, or --delay and --per-host")
    with open_queue(queue, url, url_file, shards) as opened:
        rules: Politeness | Literal["off"] | None = "off" if impolite else None
        if polite:
            usual = Politeness()
            now = opened.stats().politeness or usual
            rules = Politeness(now.delay if delay is None else delay, per_host or now.per_host)
        opened.configure(
            keep_done=None if keep_done is None else _keep(keep_done), max_crashes=max_crashes, politeness=rules,
            durable=durable, events=events, level=cast("Any", level),
        )  # fmt: skip


@app.command(rich_help_panel="Operating")
def purge(queue: Name, yes: Yes = False, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Remove the queue with all its tasks. Asks first."""
    with known_queue(queue, url, url_file) as opened:
        stats = opened.stats()
        known = stats.known
        counts = ", ".join(f"{getattr(stats, state):,} {state}" for state in State if getattr(stats, state))
        sure(f"Remove queue {queue} with its {known:,} tasks{f' ({counts})' if counts else ''}?", yes)
        opened.purge()
    if as_json:
        Sink(True).document({"removed": known})
    else:
        say(f"removed {known:,} tasks")
