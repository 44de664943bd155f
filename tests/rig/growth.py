"""Does a cluster grow and shrink under load, and lose nothing? `python -m tests.rig.cluster --grow --for 60s`"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tests.rig.nodes import Cluster
from tests.rig.quota import Quota, spent
from timeoutq import Lease, Unavailable
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.server.embedded_cluster import ClusterNode

T = TypeVar("T")

SHARDS = 12
PRODUCERS, CONSUMERS = 4, 24
"""How many put, and how many claim and ack at the same time."""
PUT, CLAIM = 1200, 200
READY = 40_000
"""The producers pause while more tasks are ready."""
LEASE = 20.0
DRAIN = 120.0
"""How long the queue may take to drain, seconds."""
ID = "https://example.com/%09d"


# ---- the load: each side in a process of its own


class Side:
    def __init__(self, url: str, ends: Any) -> None:
        """Open the queue; `ends` is an event of `multiprocessing`."""
        self.queue = AsyncShardedQueue("big", url, shards=SHARDS, by="id", timeout=LEASE)
        self._ends, self._parent = ends, os.getppid()
        self.put: list[int] = []
        """The first number of each batch that was confirmed."""
        self.granted: list[int] = []
        self.acked: list[int] = []
        self.moments: list[tuple[float, int]] = []
        """When acks were answered, and for how many tasks; seconds of CLOCK_MONOTONIC."""
        self.errors: Counter[str] = Counter()
        self.longest = 0.0

    def is_over(self) -> bool:
        """Say whether this side is to end; it ends also when the process that has started it is gone."""
        return self._ends.is_set() or os.getppid() != self._parent

    async def call(self, make: Callable[[], Awaitable[T]]) -> T | None:
        """Make a call, and note how long it took; None if it ended in an error of a server."""
        began = time.monotonic()
        try:
            return await make()
        except Unavailable as error:
            self.errors[type(error).__name__] += 1
            return None
        finally:
            self.longest = max(self.longest, time.monotonic() - began)

    async def produce(self) -> None:
        """Put tasks until the end; a batch that was begun is put until it is confirmed."""
        numbers = count(0, PUT)
        async with asyncio.TaskGroup() as group:
            for _ in range(PRODUCERS):
                group.create_task(self._put(numbers))

    async def _put(self, numbers: Iterator[int]) -> None:
        while not self.is_over():
            stats = await self.call(self.queue.stats)
            if stats is None or stats.todos > READY:
                await asyncio.sleep(0.05)
                continue
            first = next(numbers)
            tasks = [ID % number for number in range(first, first + PUT)]
            while await self.call(lambda tasks=tasks: self.queue.put(tasks)) is None:  # type: ignore[misc]  # a default
                pass
            self.put.append(first)

    async def consume(self) -> None:
        """Claim and ack until the end; an ack that was begun is sent until it is answered."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CONSUMERS):
                group.create_task(self._claim())

    async def _claim(self) -> None:
        while not self.is_over():
            leases = await self.call(lambda: self.queue.claim(CLAIM)) or []
            self.granted += map(_number, leases)
            if leases:
                await self._ack(leases)
            else:
                await asyncio.sleep(0.05)

    async def _ack(self, leases: Sequence[Lease]) -> None:
        while (outcome := await self.call(lambda: self.queue.ack(leases))) is None:
            pass
        ended = [_number(lease) for lease, answer in zip(leases, outcome, strict=True) if answer in ("ok", "already")]
        self.acked += ended
        self.moments.append((time.monotonic(), len(ended)))

    async def run(self, side: str) -> None:
        async with self.queue:
            await (self.produce() if side == "producer" else self.consume())


def _number(lease: Lease) -> int:
    return int(str(lease.task)[-9:])


def _side(side: str, url: str, ends: Any, path: str) -> None:
    load = Side(url, ends)
    asyncio.run(load.run(side))
    names = ("put", "granted", "acked", "moments", "errors", "longest")
    Path(path).write_text(json.dumps({name: getattr(load, name) for name in names}), "utf-8")


@contextmanager
def _running(side: str, url: str, folder: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run one side of the load; what is given ends it, and gives what it has written down."""
    context = multiprocessing.get_context("spawn")
    ends, path = context.Event(), f"{folder}/{side}"
    process = context.Process(target=_side, args=(side, url, ends, path), daemon=True)
    process.start()

    def end() -> dict[str, Any]:
        ends.set()
        process.join(DRAIN)
        assert process.exitcode == 0, f"the {side} ended with {process.exitcode}"
        found: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
        return found

    try:
        yield end
    finally:
        process.kill()
        process.join()


# ---- what happens to the cluster, and the verdict


@dataclass(slots=True)
class Phase:
    name: str
    began: float
    ended: float = 0.0
    acked: int = 0
    used: float = 0.0
    """The CPU time of the servers that are there at its end, seconds."""

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.acked / (self.ended - self.began)

    @property
    def cores(self) -> float:
        """The CPU time of all servers, in cores."""
        return self.used / (self.ended - self.began)


@dataclass(frozen=True, slots=True)
class Growth:
    phases: Sequence[Phase]
    accepted: int
    lost: int
    """Tasks that were accepted and never done."""
    twice: int
    """Times that a task was handed out once more."""
    drained: bool
    errors: dict[str, int]
    longest: float

    @property
    def broken(self) -> bool:
        return bool(self.lost or self.twice or not self.drained)

    def table(self) -> str:
        lines = [f"{'phase':>22} {'seconds':>8} {'tasks/s':>9}  CPU of all servers"]
        lines += [
            f"{one.name:>22} {one.ended - one.began:>8.1f} {one.rate:>9,.0f}  {100 * one.cores:.0f} % of a core"
            for one in self.phases
        ]
        errors = ", ".join(f"{number:,} {name}" for name, number in sorted(self.errors.items()))
        lines.append(f"calls that ended in an error: {errors or 'none'}; the longest call {self.longest:.1f} s")
        lines.append(f"accepted {self.accepted:,}; lost {self.lost:,}, handed out twice {self.twice:,}")
        return "\n".join([*lines, *([] if self.drained else [f"the queue was not drained after {DRAIN:g} s"])])


def grow(
    seconds: float, percent: float, binary: str, *, whole: bool, say: Callable[[str], object] = lambda _: None
) -> Growth:
    """Grow and shrink. Raises `NoQuota` where no process can be held to a part of a core."""
    with ExitStack() as stack:
        stack.enter_context(Quota(percent))  # where that does not work, say so first
        # else Redis makes a primary that has given away its last slot a replica, which cannot be told so
        settings = {"cluster-allow-replica-migration": False}
        cluster = stack.enter_context(Cluster(3, 0, config=settings, binary=binary))
        folder = stack.enter_context(TemporaryDirectory(prefix="timeoutq-growth-"))

        def hold(node: ClusterNode) -> None:
            stack.enter_context(Quota(percent)).hold(node.pid or 0)

        for node in cluster.nodes:
            hold(node)
        queue = stack.enter_context(
            ShardedQueue("big", cluster.url, shards=SHARDS, by="id", timeout=LEASE, deadline=30)
        )
        consumer = stack.enter_context(_running("consumer", cluster.url, folder))
        producer = stack.enter_context(_running("producer", cluster.url, folder))
        _until_busy(queue)
        phases = [*_phases(cluster, seconds / 3, hold, whole=whole, say=say)]
        say("the load ends")
        put = producer()
        drained = queue.wait_drained(DRAIN)
        taken = consumer()
        return _judged(phases, put, taken, drained, queue.stats().done)


def _until_busy(queue: ShardedQueue) -> None:
    while queue.stats().counters.get("acked", 0) < READY:
        time.sleep(0.1)


def _phases(
    cluster: Cluster, seconds: float, hold: Callable[[ClusterNode], None], *, whole: bool, say: Callable[[str], object]
) -> Iterator[Phase]:
    def during(name: str, act: Callable[[], object]) -> Phase:
        say(name)
        phase, before = Phase(name, time.monotonic()), used()
        act()
        phase.ended, after = time.monotonic(), used()
        phase.used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        return phase

    def used() -> dict[int, float]:
        return {node.pid: spent(node.pid) for node in cluster.nodes if node.pid}

    def stay() -> None:
        time.sleep(seconds)

    move = cluster.move if whole else cluster.move_each_by_keys
    homes = {node: _last_quarter(cluster, node) for node in cluster.primary_nodes()}

    def join() -> None:
        fourth = cluster.add()
        hold(fourth)
        for slots in homes.values():
            move(slots, fourth)

    def leave() -> None:
        for home, slots in homes.items():
            move(slots, home)
        cluster.remove(cluster.nodes[-1])

    yield during("3 primaries", stay)
    yield during("a fourth joins", join)
    yield during("4 primaries", stay)
    yield during("the fourth leaves", leave)
    yield during("3 primaries again", stay)


def _last_quarter(cluster: Cluster, node: ClusterNode) -> range:
    (slots,) = cluster.member(node).slots
    return slots[len(slots) * 3 // 4 :]


def _judged(phases: Sequence[Phase], put: dict[str, Any], taken: dict[str, Any], drained: bool, done: int) -> Growth:
    for at, number in taken["moments"]:
        for phase in phases:
            phase.acked += number * (phase.began <= at < phase.ended)
    accepted = {number for first in put["put"] for number in range(first, first + PUT)}
    lost = max(len(accepted.difference(taken["acked"])), len(accepted) - done)
    twice = len(taken["granted"]) - len(set(taken["granted"]))
    errors = Counter(put["errors"]) + Counter(taken["errors"])
    return Growth(phases, len(accepted), lost, twice, drained, dict(errors), max(put["longest"], taken["longest"]))
