"""The commands about leases: claim, ack, extend, release, fail, and pull, which takes no lease."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer

from timeoutq.cli.command import Ids, Known, Opened, Seconds, command
from timeoutq.cli.lines import Sink, iso, lines_of, piped_in, read_json
from timeoutq.cli.saying import exit_unless, refuse, say, stop, unknown_words
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.exit_codes import LOST
from timeoutq.words.model import Answer, Lease, Outcome, Task, raw, text

T = TypeVar("T")
EXPLAINED = 3  # for at most this many lost leases the command says why: each reason costs a question to the server

Count = Annotated[int, "-n --count 1..500: The most tasks to take."]
Token = Annotated[str | None, "The token that claim printed."]


@command()
def claim(
    queue: Opened, n: Count = 1,
    timeout: Annotated[Seconds, "Length of the lease."] = Seconds(30),
    max_runtime: Annotated[Seconds | None, "The longest that a task may be held, with all extensions."] = None,
    wait: Annotated[Seconds, "Time to wait for the first task."] = Seconds(0), *, out: Sink,
) -> None:  # fmt: skip
    """Lease ready tasks and print them with their tokens; exit 1 when no task is ready."""
    leases = queue.claim(n, timeout=timeout, max_runtime=max_runtime, wait=wait)
    columns = ("task", "token", "deadline", "attempt")
    _taken(queue, leases, columns, lambda one: (one.task, one.token, iso(one.deadline), one.attempt), out)


@command()
def pull(queue: Opened, n: Count = 1, *, out: Sink) -> None:
    """Take tasks without a lease: they are done at once, and lost if you crash. Exit 1 when no task is ready."""
    tasks = [{"task": task.task, "payload": task.payload} for task in queue.pull(n)]
    _taken(queue, tasks, ("task",), lambda one: (one["task"],), out)


def _taken(queue: Known, taken: Sequence[T], columns: Sequence[str], row: Callable[[T], Any], out: Sink) -> None:
    if not taken and not queue.exists():
        stop(unknown_words(queue))  # asked only now: with --wait, the first task may have come meanwhile
    out.each(columns, taken, row)
    exit_unless(taken)


def _leases(tasks: list[str] | None, token: str | None) -> list[Lease]:
    """Give the leases of tasks that are named, or else those that are piped in as claim --json prints them."""
    if tasks:
        refuse(not token, "tasks need the --token that claim printed; or pipe in what claim --json printed")
        return [_lease({"task": task, "token": token}) for task in tasks]
    refuse(piped_in() is None or token, "name tasks and --token, or pipe in what claim --json printed")
    found: list[Lease] = []
    for number, line in enumerate(lines_of(None), 1):
        try:
            if line.strip():
                found.append(_lease(read_json(line)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"line {number} is not a lease as claim --json prints it: {error}") from error
    return found


def _lease(read: Any) -> Lease:
    task, token = read["task"], read["token"]
    if not isinstance(token, str) or not token.isprintable() or not token:
        raise InvalidInput(f"{token!r:.80} is not a token that claim gave")
    deadline, attempt = float(read.get("deadline", math.inf)), int(read.get("attempt", 1))
    return Lease(text(arguments.task_id(task)), token, deadline, attempt)


def _ended(queue: Known, leases: Sequence[Lease], outcome: Outcome, out: Sink) -> None:
    out.outcome(outcome)
    if outcome.ok == len(outcome):
        return
    lost = [lease for lease, answer in zip(leases, outcome, strict=True) if answer is Answer.LOST]
    with suppress(TimeoutqError):  # if the server cannot be asked, the lease is lost all the same
        if not queue.exists():
            stop(unknown_words(queue), LOST)
        for lease in lost[:EXPLAINED]:
            say(str(queue.run(queue.flows.lost(lease))))
    if len(lost) > EXPLAINED:
        say(f"{len(lost) - EXPLAINED:,} more leases are lost")
    if Answer.MAX_RUNTIME in outcome:
        say("leases that have reached their max_runtime are not extended")
    raise typer.Exit(LOST)


@command()
def ack(
    queue: Opened, tasks: Ids = None, token: Token = None,
    found: Annotated[list[str] | None, "--put: Put this task too, in the same step; may be given again."] = None,
    group: Annotated[str | None, "The host to which the --put tasks belong."] = None,
    priority: Annotated[int | None, "N: The priority of the --put tasks."] = None,
    improve: Annotated[bool, "As --improve of put, for the --put tasks."] = False,
    rerun: Annotated[bool, "As --rerun of put, for the --put tasks."] = False,
    again_in: Annotated[Seconds | None, "Schedule the task again after this."] = None, *, out: Sink,
) -> None:  # fmt: skip
    """End leases as done; exit 4 when a lease is lost."""
    about = group is not None or priority is not None or improve or rerun
    refuse(about and not found, "--group, --priority, --improve and --rerun are about the tasks of --put: add --put")
    leases = _leases(tasks, token)
    if not found:
        _ended(queue, leases, queue.ack(leases, again_in=again_in), out)
        return
    refuse(len(leases) != 1, "--put works with one lease only")
    links = [Task(link, group=group, priority=priority, improve=improve, rerun=rerun) for link in found]
    queue.ack(leases[0], put=links, again_in=again_in)
    out.outcome(Outcome([raw(leases[0].task)], b"O"))


@command()
def extend(
    queue: Opened, tasks: Ids = None, token: Token = None,
    timeout: Annotated[Seconds, "New length of the lease, from now."] = Seconds(30), *, out: Sink,
) -> None:  # fmt: skip
    """Extend leases; exit 4 when a lease is lost."""
    leases = _leases(tasks, token)
    _ended(queue, leases, queue.extend(leases, timeout), out)


@command()
def release(
    queue: Opened, tasks: Ids = None, token: Token = None,
    delay: Annotated[Seconds, "Ready again only after this time."] = Seconds(0),
    block_host: Annotated[Seconds, "Also block the tasks' hosts for this time."] = Seconds(0), *, out: Sink,
) -> None:  # fmt: skip
    """Give leases back; no attempt is counted, and the tasks are ready again at once or after a delay."""
    leases = _leases(tasks, token)
    _ended(queue, leases, queue.release(leases, delay, block_host=block_host), out)


@command()
def fail(
    queue: Opened, tasks: Ids = None, token: Token = None,
    error: Annotated[str, "What went wrong; kept with the task."] = "failed by hand",
    retry_in: Annotated[Seconds | None, "Time until the next attempt."] = None,
    give_up: Annotated[bool, "Move to failed, without another attempt."] = False, *, out: Sink,
) -> None:  # fmt: skip
    """End leases as failed; tasks are tried again as the policy says, after --retry-in, or never (--give-up)."""
    leases = _leases(tasks, token)
    if retry_in is None and not give_up:
        # the policy counts attempts, which a token alone does not tell
        leases = [
            lease if lease.deadline < math.inf else replace(lease, attempt=queue.inspect(lease.task).failures + 1)
            for lease in leases
        ]
    _ended(queue, leases, queue.fail(leases, error, retry_in=retry_in, give_up=give_up), out)
