"""Checks a queue against limits: how many workers live, how many tasks failed, how long ready tasks wait.

`timeoutq doctor` with --workers, --here, --max-failed or --max-age is a health check, for containers and monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timeoutq.client.shards import AnyQueue
from timeoutq.watch.doctor import Finding
from timeoutq.watch.metrics import pace
from timeoutq.watch.snapshot import is_gone
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.model import WorkerInfo
from timeoutq.words.text import age, counted


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that were given; None is no limit."""

    workers: int | None = None
    failed: int | None = None
    age: float | None = None
    """The longest that a ready task may wait, seconds."""
    here: bool = False
    """Whether only workers on this machine, or in this container, count."""

    def __bool__(self) -> bool:
        return (self.workers, self.failed, self.age) != (None, None, None)


def check_limits(queue: AnyQueue, limits: Limits) -> list[Finding]:
    """Look at the queue and check each limit that was given. Raises what `Queue.stats` raises."""
    stats = queue.stats()
    findings: list[Finding] = []
    if limits.workers is not None:
        here = queue.worker.partition(":")[0] if limits.here else None
        findings.append(enough_workers(stats.now, queue.workers(), limits.workers, here))
    if limits.failed is not None:
        findings.append(few_failed(stats, limits.failed, queue.name))
    if limits.age is not None:
        findings.append(short_wait(stats, [*queue.history(), stats.sample], limits.age, queue.name))
    return findings


def enough_workers(now: float, known: Sequence[WorkerInfo], least: int, host: str | None = None) -> Finding:
    """Check that at least `least` workers, on `host` if it is given, gave a sign of life in the last half minute."""
    known = [worker for worker in known if host in (None, worker.host)]
    alive = sum(not is_gone(worker, now) for worker in known)
    found = f"{alive} alive" if host is None else f"{alive} alive on {host}"
    if len(known) > alive:
        found += f", {len(known) - alive} gone without a word"
    if alive >= least:
        return Finding("workers", "green", found)
    return Finding("workers", "red", f"{found}, wanted {least}", "start workers, or look into their logs")


def few_failed(stats: Stats, most: int, name: str) -> Finding:
    """Check that at most `most` tasks have failed; `name` is that of the queue."""
    if stats.failed <= most:
        return Finding("failed", "green", counted(stats.failed, "task"))
    return Finding(
        "failed", "red", f"{counted(stats.failed, 'task')}, allowed {most:,}",
        f"timeoutq list {name} failed; timeoutq retry {name} --all",
    )  # fmt: skip


def short_wait(stats: Stats, history: Sequence[Sample], longest: float, name: str) -> Finding:
    """Check that no ready task waits for longer than `longest` seconds, as far as this can be known.

    The queue does not keep the moment at which a task became ready. It is certain that no ready task has waited for
    longer than there have been ready tasks without a break. If that time is beyond the limit, the pace of the last
    claims decides: the check is green if, at this pace, all ready tasks are claimed within the limit. A pace says
    nothing of the time to come if no worker is alive or the queue is paused: then the check is red. `name` is that of
    the queue.
    """
    if not stats.todos or stats.todos_since is None:
        return Finding("ready", "green", "no ready tasks")
    since = max(0.0, stats.now - stats.todos_since)
    found = f"{counted(stats.todos, 'ready task')}; there have been some for {age(since)}"
    if since <= longest:
        return Finding("ready", "green", found)
    if stats.paused:
        found += ", and the queue is paused"
        return Finding("ready", "red", f"{found}, wanted {age(longest)}", f"timeoutq resume {name}")
    if not stats.workers:
        found += ", and no worker is alive"
        return Finding("ready", "red", f"{found}, wanted {age(longest)}", f"start one: timeoutq worker {name} …")
    claims = _lasting(stats, history, longest)
    if claims:
        wait = stats.todos / claims
        found += f"; at the present pace they are all claimed in {age(wait)}"
        if wait <= longest:
            return Finding("ready", "green", found)
    else:
        found += ", and none is being claimed"
    return Finding("ready", "red", f"{found}, wanted {age(longest)}", "start more workers, or see why they are slow")


def _lasting(stats: Stats, history: Sequence[Sample], over: float) -> float | None:
    """Give the pace of claims, per second; on a durable queue, of those that replicas can have confirmed.

    A claim that is not confirmed is given back, and taken again, so the counter of claims grows while all stands still.
    Tasks that have left the ready ones for good have ended meanwhile, or are held now.
    """
    claims = pace(history, "claimed", over)
    if not claims or not stats.durable:
        return claims
    ends = [found for counter in ("acked", "failed") if (found := pace(history, counter, over))]
    return min(claims, sum(ends) + stats.in_progress / over)
