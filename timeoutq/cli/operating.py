"""The commands of an operator: retry, cancel, forget, pause, resume, configure, purge; and failures, by kind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from timeoutq.cli.app import exit_unless, say, saying_how_far, stop, sure, with_ended
from timeoutq.cli.command import Ids, Known, ManyIds, Name, Seconds, Server, Shards, Yes, command
from timeoutq.cli.printing import Sink, iso, length, progress
from timeoutq.cli.reading import seconds
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING
from timeoutq.words.model import Answer, Outcome, Politeness, State

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.rooms.failures import Moved
    from timeoutq.words.counts import Stats

LOOKED_AT = 100  # of at most this many retried tasks, `retry` looks whether their hosts are banned
PART = 500  # how many failed tasks of a kind are moved between two looks at how far the command is


@command()
def retry(
    queue: Name, tasks: Ids = None,
    everything: Annotated[bool, "--all: Retry all failed tasks but cancelled ones."] = False,
    cancelled: Annotated[bool, "With --all: those that were cancelled, too."] = False, *, server: Server, out: Sink,
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
    with server.known(queue) as opened:
        if everything:
            moved = opened.retry_failed(all=True, cancelled=cancelled)
            out.answer({"retried": moved}, f"{moved} retried")
        else:
            outcome = opened.run(opened.flows.retrial((tasks or [],)))
            moved = outcome.ok
            answers = ((task, "retried" if answer is Answer.OK else answer.value) for task, answer in outcome.items())
            out.rows(("task", "answer"), answers)
            _tell_banned(opened, outcome)
    exit_unless(moved)


def _tell_banned(queue: AnyQueue, outcome: Outcome) -> None:
    """Say of which hosts the retried tasks fail again at once, because the hosts are banned."""
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


@command()
def forget(queue: Known, tasks: ManyIds, yes: Yes = False, *, out: Sink) -> None:
    """Remove tasks from every state; a running task loses its lease. Asks first; exit 1 when no task was known."""
    sure(f"Forget {len(tasks)} task{'' if len(tasks) == 1 else 's'} of queue {queue.name}?", yes)
    outcome = queue.forget(tasks)
    out.outcome(outcome)
    exit_unless(any(answer is not Answer.UNKNOWN for answer in outcome))


@command()
def cancel(
    queue: Known, tasks: ManyIds,
    by: Annotated[str | None, "Who cancels; by default the name of this client."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Cancel tasks that have not ended: they go to failed, running ones once their handlers stop.

    A function that is a def is not waited for: its call goes to failed, and its
    thread runs on. For each task, prints "cancelled", "cancelling" for one whose
    worker is told to stop it, or where the task is. Exit 1 when nothing was cancelled.
    """
    outcome = with_ended(queue, queue.cancel(tasks, by=by))
    out.outcome(outcome)
    exit_unless({Answer.CANCELLED, Answer.CANCELLING} & set(outcome))


@command()
def pause(queue: Known) -> None:
    """Give out no more tasks; tasks that have a lease are finished."""
    queue.pause()


@command()
def resume(queue: Known) -> None:
    """Give out tasks again."""
    queue.resume()


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


def _show_settings(stats: Stats, out: Sink) -> None:
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
    plain = {name.replace("-", "_"): value for name, value in found.items()}
    out.facts({**plain, "durable": stats.durable, "paused": stats.paused}, found.items(), ("setting", "value"))


@command()
def configure(
    queue: Name,
    keep_done: Annotated[
        str | None, "Done tasks to keep: forever, compact (10 bytes each), 0, a number (1000), or a time (7d)."
    ] = None,
    max_crashes: Annotated[int | None, "1..: Lost leases after which a task goes to failed."] = None,
    delay: Annotated[Seconds | None, "Polite: pause between two visits of a host."] = None,
    per_host: Annotated[int | None, "1..: Polite: visits of a host that run at once; 1 by default."] = None,
    impolite: Annotated[bool, "End the politeness: hosts and their rules are forgotten."] = False,
    durable: Annotated[
        int | None,
        "N: Replicas that must confirm puts, claims and acks before they count; 0 for none.",
    ] = None,
    events: Annotated[str | None, "SIZE: Begin the event log, or say how long it is: 64MB, 1GB."] = None,
    level: Annotated[
        str | None, "LEVEL: What the event log tells: all, ends (done and failed tasks only), or off."
    ] = None,
    shards: Shards = None, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Change settings that all clients of the queue share; without an option, show them."""
    polite = delay is not None or per_host is not None
    given = (keep_done, max_crashes, durable, events, level, shards)
    if not any(value is not None for value in given) and not polite and not impolite:
        with server.known(queue) as opened:
            _show_settings(opened.stats(), out)
        return
    if polite and impolite:
        raise InvalidInput("give --impolite, or --delay and --per-host")
    with server.open(queue, shards) as opened:
        rules: Politeness | Literal["off"] | None = "off" if impolite else None
        if polite:
            now = opened.stats().politeness or Politeness()
            rules = Politeness(now.delay if delay is None else delay, per_host or now.per_host)
        opened.configure(
            keep_done=None if keep_done is None else _keep(keep_done), max_crashes=max_crashes, politeness=rules,
            durable=durable, events=events, level=cast("Any", level),
        )  # fmt: skip


@command()
def purge(queue: Known, yes: Yes = False, *, out: Sink) -> None:
    """Remove the queue with all its tasks. Asks first."""
    stats = queue.stats()
    known = stats.known
    counts = ", ".join(f"{getattr(stats, state):,} {state}" for state in State if getattr(stats, state))
    sure(f"Remove queue {queue.name} with its {known:,} tasks{f' ({counts})' if counts else ''}?", yes)
    queue.purge()
    if out.as_json:
        out.document({"removed": known})
    else:
        say(f"removed {known:,} tasks")


@command()
def failures(
    queue: Name,
    tasks: Annotated[str | None, "KIND: Show tasks of this kind, the last 100."] = None,
    retry: Annotated[str | None, "KIND: Retry all tasks of this kind."] = None,
    forget: Annotated[str | None, "KIND: Forget all tasks of this kind; asks first."] = None,
    limit: Annotated[int, "-n --limit 1..1001: The most kinds to list."] = 100,
    yes: Yes = False, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Count the failed tasks by kind, or retry or forget all tasks of one kind. Exit 1: there is none.

    A kind is the type and the first line of the error, without what differs
    from task to task: URLs, the task's id, and numbers, but not codes such as
    HTTP 404. KIND is its name in the first column, or its text.

    The columns on a pipe: kind, count, last, task, error.
    """
    given = [kind for kind in (tasks, retry, forget) if kind is not None]
    if len(given) > 1:
        raise InvalidInput("give one of --tasks, --retry and --forget")
    with server.known(queue) as opened:
        if tasks is not None:
            page = opened.failures.tasks(tasks)
            out.rows(("task", "at", "error"), ((one.task, iso(one.at), one.error) for one in page))
            met = len(page)
        elif retry is not None:
            met = _move(opened, opened.failures.retry, "retried", retry, out)
        elif forget is not None:
            known = next((one for one in opened.failures.list(1001) if forget in (one.id, one.text)), None)
            if known is None:
                stop(NOTHING, _none(queue))
            sure(f"Forget {known.count:,} failed tasks of queue {queue}: {known.text}?", yes)
            met = _move(opened, opened.failures.forget, "forgotten", forget, out)
        else:
            found = opened.failures.list(limit)
            columns = ("kind", "count", "last", "task", "error")
            out.each(columns, found, lambda one: (one.id, one.count, iso(one.last), one.task, one.text))
            met = len(found)
    if not met and given:
        say(_none(queue))
    exit_unless(met)


def _none(queue: str) -> str:
    return f"queue {queue} has no failed task of this kind; `timeoutq failures {queue}` lists the kinds that there are"


def _move(queue: AnyQueue, move: Callable[..., Moved], word: str, kind: str, out: Sink) -> int:
    met, before = 0, None
    with saying_how_far(lambda: (met, f"{met:,} {word}; the same command goes on")), progress(word) as tell:
        while True:
            found = move(kind, at_most=PART, before=before)
            met, before = met + found.moved, found.before
            tell(met, met)
            if not found.left:
                break
    out.answer({word: met}, f"{met} {word}")
    return met
