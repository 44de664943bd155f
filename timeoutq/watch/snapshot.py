"""All that is shown of a queue at one moment: `snapshot(queue)` gives a `Snapshot`; and rates, of what it counts.

A snapshot reads counts and short pages only, so that a queue of a million tasks costs what an empty one does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, AsyncShardedQueue, ShardedQueue, looking
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.model import Entry, Failure, HostInfo, WorkerInfo

COUNTERS = ("put", "acked", "failed", "expired")  # the counters whose rates are shown, in this order
STEP = 10.0  # seconds that one point of a series stands for, as soon as there is that much history


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is shown of a queue, read within a few milliseconds."""

    queue: str
    url: str
    stats: Stats
    workers: Sequence[WorkerInfo] = ()
    leases: Sequence[Entry] = ()
    due: Sequence[Entry] = ()
    errors: Sequence[Failure] = ()
    hosts: Sequence[HostInfo] = ()  # on a polite queue, the hosts whose turn is next
    host_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    """Visits per second, of the hosts that an earlier snapshot has seen."""
    history: Sequence[Sample] = field(default_factory=list[Sample])
    """The counters at earlier moments, oldest first, and at last those of now."""
    trouble: str = ""  # why the snapshot is not fresh: the server cannot be reached
    stale: float = 0.0  # the age of a snapshot that is not fresh, seconds
    silent: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of a queue over several shards: what did not answer, such as `shards 4, 5`, and why; all else is of the rest."""

    @property
    def exists(self) -> bool:
        """Something was put to the queue, or set for it, or a worker waits there."""
        return self.stats.exists or bool(self.workers)

    @property
    def living(self) -> Sequence[WorkerInfo]:
        """Workers that have given a sign of life lately."""
        return [worker for worker in self.workers if not worker.is_gone(self.stats.now)]

    @property
    def gone(self) -> Sequence[WorkerInfo]:
        """Workers that have given no sign of life lately, and have not said farewell."""
        return [worker for worker in self.workers if worker.is_gone(self.stats.now)]

    @property
    def waiting(self) -> float | None:
        """For how long there have been ready tasks without a break, seconds; no ready task has waited longer.

        None when there are none. The queue does not keep when each task became ready.
        """
        return None if self.stats.todos_since is None else max(0.0, self.stats.now - self.stats.todos_since)

    @property
    def depths(self) -> Mapping[int, int]:
        """How many ready tasks each shard has that has answered; empty for a plain queue."""
        shards = enumerate(self.stats.shards)
        return {shard: one.todos + one.waiting for shard, one in shards if one.now}

    @property
    def untended(self) -> Sequence[int]:
        """The shards that no living worker tends, if there are workers that tend shards at all."""
        tending = [worker.tends for worker in self.living if worker.tends is not None]
        tended = {shard for shards in tending for shard in shards}
        return [shard for shard in range(len(self.stats.shards)) if shard not in tended] if tending else ()


def snapshot(queue: AnyQueue, rows: int = 20) -> Snapshot:
    """Look at the queue: counts, and pages of at most `rows` entries. Raises `Unavailable`."""
    return queue.run(_look(queue, rows))


async def snapshot_async(queue: AnyAsyncQueue, rows: int = 20) -> Snapshot:
    return await queue.run(_look(queue, rows))


def _look(queue: AnyQueue | AnyAsyncQueue, rows: int) -> Flow[Snapshot]:
    if isinstance(queue, ShardedQueue | AsyncShardedQueue):
        seen = yield from looking.picture(queue.shards, rows)
    else:
        stats, leases, due, errors, hosts, history = yield from looking.part(queue.talk, rows)
        known = yield from reads.workers(queue.talk)
        seen = looking.Picture(stats, known, leases, due, errors, hosts, history, {})
    now = seen.stats.now
    # living workers first, then by name, so that the row of a worker stays where it is
    workers = sorted(seen.workers, key=lambda one: (one.is_gone(now), one.host, one.pid, one.worker))
    return Snapshot(
        queue.name, queue.url, seen.stats, workers, seen.leases, seen.due, seen.errors, seen.hosts,
        history=[*seen.history, seen.stats.sample], silent=seen.silent,
    )  # fmt: skip


class Memory:
    """What earlier snapshots of a queue have seen: it makes rates finer, and knows those of hosts."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._silent: list[str] = []
        self._visits: deque[tuple[float, dict[str, int]]] = deque(maxlen=10)

    def add(self, seen: Snapshot) -> Snapshot:
        """Remember a snapshot, and give it back with a finer history and the rates of its hosts."""
        now = seen.stats.sample
        if (self._samples and now.at <= self._samples[-1].at) or self._silent != [*seen.silent]:
            # the clock stepped back, or it is another server; or the sums are those of other shards
            self._samples.clear()
        self._silent = [*seen.silent]
        self._samples = [*self._samples[-1200:], now]
        older = [sample for sample in seen.history if sample.at < self._samples[0].at]
        visits = {host.host: host.visits for host in seen.hosts}
        paces: dict[str, float] = {}  # of each host since the oldest snapshot that is kept and has seen the host
        for at, then in reversed(self._visits):
            if now.at > at:
                paces |= {host: max(0, visits[host] - then[host]) / (now.at - at) for host in visits.keys() & then}
        self._visits.append((now.at, visits))
        return replace(seen, history=[*older, *self._samples], host_rates=paces)


def to_json(seen: Snapshot) -> dict[str, Any]:
    """Give a snapshot as JSON can hold it, with the rates and the number of known tasks."""
    found = asdict(seen)
    found["stats"] = {**asdict(seen.stats), "known": seen.stats.known, "drained": seen.stats.drained}
    found["rates"] = rates(seen.history)
    found["waiting"] = seen.waiting
    return found


# ---- rates, made of samples of a queue's counters


def pace(history: Sequence[Sample], counter: str, over: float) -> float | None:
    """Give the events per second of a counter over the last `over` seconds, or over the whole history if it is shorter.

    None when the history has no two samples at different moments.
    """
    if len(history) < 2:
        return None
    last = history[-1]
    first = next((sample for sample in reversed(history[:-1]) if last.at - sample.at >= over), history[0])
    span = last.at - first.at
    return max(0.0, (getattr(last, counter) - getattr(first, counter)) / span) if span > 0 else None


def rates(history: Sequence[Sample]) -> dict[str, float]:
    """Give the pace of each counter of `COUNTERS` over the last ten seconds; nothing when no pace is known."""
    paces = {counter: pace(history, counter, 10.0) for counter in COUNTERS}
    return {counter: found for counter, found in paces.items() if found is not None}


def series(history: Sequence[Sample], counter: str, points: int) -> list[float]:
    """Give the rates of a counter in the last `points` steps of `STEP` seconds, events per second, oldest first.

    The steps are shorter when the history is. Samples come at any moment: between two of them the counter is taken to
    grow evenly.
    """
    kept = [sample for sample, after in pairwise(history) if sample.at < after.at] + list(history[-1:])
    if len(kept) < 2 or points < 1 or any(a.at >= b.at for a, b in pairwise(kept)):
        return []
    times = [sample.at for sample in kept]
    counts: list[float] = [getattr(sample, counter) for sample in kept]

    def at(moment: float) -> float:
        right = min(max(1, bisect_right(times, moment)), len(times) - 1)
        part = (moment - times[right - 1]) / (times[right] - times[right - 1])
        return counts[right - 1] + part * (counts[right] - counts[right - 1])

    step = min(STEP, max(1.0, (times[-1] - times[0]) / points))
    steps = min(points, int((times[-1] - times[0]) / step + 1e-6))
    found = [at(times[-1] - back * step) for back in range(steps, -1, -1)]
    return [max(0.0, (b - a) / step) for a, b in pairwise(found)]
