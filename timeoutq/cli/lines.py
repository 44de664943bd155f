"""What the dashboard shows, as lines with tabs for programs: the first word of a line says what the line is about.

`looking.py` prints them where there is no terminal: `timeoutq status crawl | grep ^worker`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from timeoutq.cli.printing import iso
from timeoutq.model import State

if TYPE_CHECKING:
    from timeoutq.watch.snapshot import Snapshot


def of(seen: Snapshot) -> Iterator[Sequence[Any]]:
    """Give a snapshot as lines: counts and rates, then a line for each worker, host, lease, due task and error."""
    from timeoutq.watch.metrics import rates

    stats = seen.stats
    yield "queue", seen.queue
    yield "at", seen.url
    yield "paused", "yes" if stats.paused else "no"
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
    if stats.durations is not None:
        ran = stats.durations  # seconds
        yield "handlers ran", ran.count, f"{ran.p50:.4g}", f"{ran.p95:.4g}", f"{ran.max:.4g}"
    for number, ready in seen.depths.items():
        shard = stats.shards[number]
        yield "shard", number, ready, shard.scheduled, shard.in_progress, shard.done, shard.failed
    for what, why in seen.silent.items():
        yield "silent", what, why
    yield "workers", len(seen.living)
    yield "gone", len(seen.gone)
    for worker in seen.workers:
        alive = "gone" if worker in seen.gone else "alive"
        yield (
            "worker", worker.worker, alive, worker.concurrency, worker.held, worker.acked, worker.failed,
            iso(worker.beat), *([worker.trouble] if worker.trouble else []),
        )  # fmt: skip
    for worker in seen.workers:
        if worker.tends is not None:
            yield "tends", worker.worker, *worker.tends
    for host in seen.hosts:
        yield "host", host.host, host.waiting, host.busy, iso(host.turn), host.visits, host.failures
    for entry in seen.leases:
        yield "lease", entry.task, entry.holder, iso(entry.at)
    for entry in seen.due:
        yield "due", entry.task, iso(entry.at)
    for failure in seen.errors:
        yield "error", failure.task, iso(failure.at), failure.error
