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
    age: float | None = None  # the longest that a ready task may wait, seconds
    here: bool = False  # whether only workers on this machine, or in this container, count

    def __bool__(self) -> bool:
        return (self.workers, self.failed, self.age) != (None, None, None)


def check_limits(queue: AnyQueue, limits: Limits) -> list[Finding]:
    """Look at the queue and check each limit that was given. Raises what `Queue.stats` raises."""
    stats, findings = queue.stats(), list[Finding]()
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
    found = counted(stats.failed, "task")
    if stats.failed <= most:
        return Finding("failed", "green", found)
    cure = f"timeoutq list {name} failed; timeoutq retry {name} --all"
    return Finding("failed", "red", f"{found}, allowed {most:,}", cure)


def short_wait(stats: Stats, history: Sequence[Sample], longest: float, name: str) -> Finding:
    """Check that no ready task waits for longer than `longest` seconds, as far as this can be known.

    The queue keeps since when there have been ready tasks without a break: no ready task has waited for longer. If that
    is beyond the limit, the check is green if at the pace of the last claims all ready tasks are claimed within the
    limit. A pace says nothing of the time to come if no worker is alive or the queue is paused: then the check is red.
    """
    if not stats.todos or stats.todos_since is None:
        return Finding("ready", "green", "no ready tasks")
    since = max(0.0, stats.now - stats.todos_since)
    found = f"{counted(stats.todos, 'ready task')}; there have been some for {age(since)}"
    if since <= longest:
        return Finding("ready", "green", found)
    cure, claims = "start more workers, or see why they are slow", _lasting(stats, history, longest)
    if stats.paused:
        found, cure = f"{found}, and the queue is paused", f"timeoutq resume {name}"
    elif not stats.workers:
        found, cure = f"{found}, and no worker is alive", f"start one: timeoutq worker {name} …"
    elif claims:
        wait = stats.todos / claims
        found += f"; at the present pace they are all claimed in {age(wait)}"
        if wait <= longest:
            return Finding("ready", "green", found)
    else:
        found += ", and none is being claimed"
    return Finding("ready", "red", f"{found}, wanted {age(longest)}", cure)


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
