"""All that is shown of a queue at one moment: `snapshot(queue)` gives a `Snapshot`.

A snapshot reads counts and short pages only, so that a queue of a million tasks costs what an empty one does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, AsyncShardedQueue, ShardedQueue, looking
from timeoutq.client.shards.looking import Picture
from timeoutq.verbs.sending import Flow
from timeoutq.watch.metrics import rates
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Entry, Failure, HostInfo, State, WorkerInfo

SILENT = 30.0  # seconds without a sign of life after which a worker counts as gone: three signs that it owes


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
        return [worker for worker in self.workers if not is_gone(worker, self.stats.now)]

    @property
    def gone(self) -> Sequence[WorkerInfo]:
        """Workers that have given no sign of life lately, and have not said farewell."""
        return [worker for worker in self.workers if is_gone(worker, self.stats.now)]

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


def is_gone(worker: WorkerInfo, now: float) -> bool:
    """Say whether a worker has given no sign of life for `SILENT` seconds; `now` is the server's time, Unix seconds."""
    return now - worker.beat > SILENT


def snapshot(queue: AnyQueue, rows: int = 20) -> Snapshot:
    """Look at the queue: counts, and pages of at most `rows` entries. Raises `Unavailable`."""
    return _seen(queue, queue.run(_look(queue, rows)))


async def snapshot_async(queue: AnyAsyncQueue, rows: int = 20) -> Snapshot:
    """Look at the queue as `snapshot` does, for asyncio."""
    return _seen(queue, await queue.run(_look(queue, rows)))


def _look(queue: AnyQueue | AnyAsyncQueue, rows: int) -> Flow[Picture]:
    if isinstance(queue, ShardedQueue | AsyncShardedQueue):
        return (yield from looking.picture(queue.shards, rows))
    plain, hosts = queue.flows, list[HostInfo]()
    stats = yield from plain.stats()
    with suppress(InvalidInput):  # it is polite no more
        hosts = list((yield from plain.hosts.list(n=rows))) if stats.politeness else []
    leases = yield from plain.list(State.IN_PROGRESS, n=rows)
    due = yield from plain.list(State.SCHEDULED, n=rows)
    workers, errors = (yield from plain.workers()), (yield from plain.errors(min(rows, 50)))
    history = yield from plain.history()
    return Picture(stats, workers, leases.entries[:rows], due.entries[:rows], errors, hosts, history, {})


def _seen(queue: AnyQueue | AnyAsyncQueue, seen: Picture) -> Snapshot:
    now = seen.stats.now
    # living workers first, then by name, so that the row of a worker stays where it is
    workers = sorted(seen.workers, key=lambda one: (is_gone(one, now), one.host, one.pid, one.worker))
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
