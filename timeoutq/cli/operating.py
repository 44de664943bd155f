"""The commands of an operator: retry … purge; configure; failures, by kind; the rules, block or ban of a host."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from timeoutq.cli.command import Ids, Known, Moment, Name, Seconds, Server, Shards, Yes, argument, command
from timeoutq.cli.lines import Sink, iso, length, seconds, with_ended
from timeoutq.cli.saying import exit_unless, progress, refuse, say, stop, sure
from timeoutq.watch import records
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, HostInfo, Politeness, State
from timeoutq.words.text import counted

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.rooms.failures import FailureKind, Moved
    from timeoutq.words.counts import Stats

LOOKED_AT = 100  # of at most this many retried tasks, `retry` looks whether their hosts are banned
PART = 500  # how many failed tasks of a kind are moved between two looks at how far the command is

ManyIds = Annotated[list[str], argument("TASK...", "Task ids.")]
Host = Annotated[str, argument("HOST", "example.com, example.com:8080, a URL of the host, or a group.")]


@command()
def retry(
    queue: Name, tasks: Ids = None,
    everything: Annotated[bool, "--all: Retry all failed tasks but cancelled and expired ones."] = False,
    cancelled: Annotated[bool, "With --all: those that were cancelled, too."] = False,
    expired: Annotated[bool, "With --all: calls that have expired, too."] = False, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Make failed tasks ready again, with a clean record; exit 1 when no task was failed.

    For each named task, a line says "retried", the state that the task is in, or "unknown". With --all, the command
    prints the number of retried tasks. For some of the failed tasks: timeoutq requeue QUEUE --from failed --match GLOB.
    """
    refuse(bool(tasks) == everything, "name failed tasks, or give --all")
    words = "--cancelled and --expired go with --all: tasks that are named are retried in any case"
    refuse((cancelled or expired) and not everything, words)
    with server.known(queue) as opened:
        if everything:
            moved = opened.retry_failed(all=True, cancelled=cancelled, expired=expired)
            out.answer({"retried": moved}, f"{moved} retried")
            if (left := opened.stats().failed) and not (cancelled and expired):
                say(f"{counted(left, 'task')} in failed: --cancelled and --expired retry those that are left out else")
        else:
            outcome = opened.run(opened.flows.retrial((tasks or [],)))
            moved = outcome.ok
            answers = ((task, "retried" if answer is Answer.OK else answer.value) for task, answer in outcome.items())
            out.rows(("task", "answer"), answers)
            looked_at = [task for task, answer in islice(outcome.items(), LOOKED_AT) if answer is Answer.OK]
            hosts = [found for found in (opened.why(task).host for task in looked_at) if found is not None]
            for name, reason in {found.host: found.banned for found in hosts if found.banned is not None}.items():
                say(
                    f"host {name} is banned ({reason}), and its tasks fail again at once: first timeoutq unblock "
                    f"{queue} {shlex.quote(name)}, then retry"
                )
    exit_unless(moved)


@command()
def forget(queue: Known, tasks: ManyIds, yes: Yes = False, *, out: Sink) -> None:
    """Remove tasks from every state; a running task loses its lease. Asks first; exit 1 when no task was known."""
    sure(f"Forget {counted(len(tasks), 'task')} of queue {queue.name}?", yes)
    outcome = queue.forget(tasks)
    out.outcome(outcome)
    exit_unless(any(answer is not Answer.UNKNOWN for answer in outcome))


@command()
def cancel(
    queue: Known, tasks: ManyIds,
    by: Annotated[str | None, "Who cancels; by default the name of this client."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Cancel tasks that have not ended: they go to failed, running ones once their handlers stop.

    A function that is a def is not waited for: its call goes to failed, and its thread runs on. For each task, prints
    "cancelled", "cancelling" for one whose worker is told to stop it, or where the task is. Exit 1 when nothing was
    cancelled.
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


# ---- settings


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


def _show_settings(stats: Stats, out: Sink) -> None:
    polite, of = stats.politeness, stats.settings.get
    kept = of("keep_done", "forever")
    if kept.startswith("t") and kept[1:].isdecimal():
        kept = length(int(kept[1:]) / 1000)
    found = {
        "keep-done": "compact" if stats.compact else "0" if kept == "no" else kept.removeprefix("n"),
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
        int | None, "N: Replicas that must confirm puts, claims and acks before they count; 0 for none."
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
    refuse(polite and impolite, "give --impolite, or --delay and --per-host")
    with server.open(queue, shards) as opened:
        rules: Politeness | Literal["off"] | None = "off" if impolite else None
        if polite:
            now = opened.stats().politeness or Politeness()
            rules = Politeness(now.delay if delay is None else delay, per_host or now.per_host)
        opened.configure(
            keep_done=None if keep_done is None else _keep(keep_done), max_crashes=max_crashes, politeness=rules,
            durable=durable, events=events, level=cast("Any", level),
        )  # fmt: skip


# ---- failures, by kind


@command()
def failures(
    queue: Known,
    tasks: Annotated[str | None, "KIND: Show tasks of this kind, the last 100."] = None,
    retry: Annotated[str | None, "KIND: Retry all tasks of this kind; asks if it is cancelled or expired."] = None,
    forget: Annotated[str | None, "KIND: Forget all tasks of this kind; asks first."] = None,
    limit: Annotated[int, "-n --limit 1..1001: The most kinds to list."] = 100, yes: Yes = False, *, out: Sink,
) -> None:  # fmt: skip
    """Count the failed tasks by kind, or retry or forget all tasks of one kind. Exit 1: there is none.

    A kind is the type and the first line of the error, without what differs from task to task: URLs, the task's id, and
    numbers, but not codes such as HTTP 404. KIND is its name in the first column, or its text.

    The columns on a pipe: kind, count, last, task, error.
    """
    given = [kind for kind in (tasks, retry, forget) if kind is not None]
    refuse(len(given) > 1, "give one of --tasks, --retry and --forget")
    name = queue.name
    none = f"queue {name} has no failed task of this kind; `timeoutq failures {name}` lists the kinds that there are"
    if tasks is not None:
        page = queue.failures.tasks(tasks)
        out.rows(("task", "at", "error"), ((one.task, iso(one.at), one.error) for one in page))
        met = len(page)
    elif retry is not None:
        from timeoutq.verbs.flows import LEFT  # most commands need no flows

        known = _kind(queue, retry)
        if known is not None and known.text in LEFT:
            sure(f"Retry {counted(known.count, 'task')} of queue {name}, of the kind {known.text}?", yes)
        met = _move(queue.failures.retry, "retried", retry, out)
    elif forget is not None:
        known = _kind(queue, forget)
        if known is None:
            stop(none)
        sure(f"Forget {known.count:,} failed tasks of queue {name}: {known.text}?", yes)
        met = _move(queue.failures.forget, "forgotten", forget, out)
    else:
        found = queue.failures.list(limit)
        columns = ("kind", "count", "last", "task", "error")
        out.each(columns, found, lambda one: (one.id, one.count, iso(one.last), one.task, one.text))
        met = len(found)
    if not met and given:
        say(none)
    exit_unless(met)


def _kind(queue: AnyQueue, named: str) -> FailureKind | None:
    return next((one for one in queue.failures.list(1001) if named in (one.id, one.text)), None)


def _move(move: Callable[..., Moved], word: str, kind: str, out: Sink) -> int:
    met, before = 0, None
    with progress(word, far=lambda: (met, f"{met:,} {word}; the same command goes on")) as tell:
        while True:
            found = move(kind, at_most=PART, before=before)
            met, before = met + found.moved, found.before
            tell(met, met)
            if not found.left:
                break
    out.answer({word: met}, f"{met} {word}")
    return met


# ---- hosts of a polite queue


def _tell(info: HostInfo, out: Sink) -> None:
    out.facts(info, records.of_host(info))


def _delay(text: str) -> float | Literal["usual"]:
    return "usual" if text == "usual" else seconds(text)


def _number_or(text: str | None, name: str, word: str) -> Any:
    if text is None or text == word:
        return text
    refuse(not text.isascii() or not text.isdecimal(), f"{name} {text!r:.40} is neither a whole number nor {word}")
    return int(text[:20])  # more digits are too many for anything, and take long


@command()
def host(
    queue: Known, name: Host,
    delay: Annotated[
        Any, typer.Option(parser=_delay, metavar="TIME", help="Pause from the end of a visit to the next; or: usual.")
    ] = None,
    per_host: Annotated[str | None, "N: Visits that run at once; or: usual."] = None,
    budget: Annotated[str | None, "N: The most visits in all; or: none."] = None,
    usual: Annotated[bool, "Go back to the queue's own delay and per-host."] = False, *, out: Sink,
) -> None:  # fmt: skip
    """Show everything about one host; with options, first give the host rules of its own.

    Exit 1 when the queue has never met the host: the rules shown are those that the host would have.
    """
    refuse(usual and (delay is not None or per_host is not None), "give --usual, or --delay and --per-host")
    if usual:
        delay = per_host = "usual"
    most, visits = _number_or(per_host, "--per-host", "usual"), _number_or(budget, "--budget", "none")
    found = queue.hosts.set(name, delay=delay, per_host=most, budget=visits)
    rules = queue.stats().politeness
    _tell(found, out)
    if (delay, per_host, budget) == (None, None, None):
        own = rules is None or (found.delay, found.per_host) != (rules.delay, rules.per_host)
        met = (found.waiting, found.busy, found.visits, found.failures, found.turn, found.blocked_until, found.banned)
        if not own and not any(met) and found.next_allowed is None and found.budget is None:
            stop(f"queue {queue.name} has never visited host {found.host}, and has no task and no rule for it")


@command()
def block(
    queue: Known, name: Host,
    for_: Annotated[Seconds | None, "--for: For this time, like 60s, 5m, 2h."] = None,
    until: Annotated[Moment | None, "Unix seconds, or ISO 8601 with a zone."] = None,
    reason: Annotated[str | None, "Reason for `why` to show; by default, your name."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """Let no worker visit a host for a while; visits that are under way are finished."""
    refuse((for_ is None) == (until is None), "say for how long: --for 5m, or --until a time")
    _tell(queue.hosts.block(name, for_=for_, until=until, reason=reason), out)


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
