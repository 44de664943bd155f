"""Do more machines do more work? Queues of twelve shards on one, two and three primaries: each primary has a part
of a core, so a few cores are several small machines. `python -m tests.rig.cluster --scale 1,2,3 --slice 20`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from tests.rig.nodes import Cluster
from tests.rig.quota import Quota, spent
from timeoutq.client.shards import open_async_queue, open_queue
from timeoutq.server.embedded import EmbeddedServer

SHARDS = 12
CALLERS = 16
"""How many claim and ack at the same time: so many that no server waits for work."""
BATCH = 200
"""Tasks of a claim, half of them from each of two shards."""
SETTLE = 0.5
"""How long the callers are at work before a window begins, seconds."""
WINDOW = 2.0
"""How long a window is, seconds; a server that has a core for itself needs only half of that."""
FASTEST = 400_000
"""More tasks a second than a server with a whole core gets through: so many are put for each round."""
LINEAR = 0.8
"""The least rate of N primaries, as a fraction of N times the rate of one."""
SHARDED = 0.7
"""The least rate of twelve shards on one server, as a fraction of the rate of a plain queue."""
NEAR = (0.85, 1.1)
"""How near to its part of a core each server must have been for a reading to count."""
LEASE = 600.0


@dataclass(frozen=True, slots=True)
class Reading:
    rate: float
    """Tasks that were claimed and acked, a second; a claim is one half of that, and an ack is the other half."""
    cores: Sequence[float]
    """The CPU time of each server, in cores."""


@dataclass(slots=True)
class Case:
    """A queue, the servers it lies on, and what was read of it."""

    name: str
    url: str
    shards: int
    pids: Sequence[int]
    seconds: float
    """How long a window is."""
    queue: Any = None
    """An `AsyncQueue` or an `AsyncShardedQueue`, when it is open."""
    readings: list[Reading] = field(default_factory=list[Reading])
    _put: int = 0
    _acked: int = 0
    _steps: int = 0
    """Tasks that were claimed, and tasks that were acked."""
    _ends: bool = False

    def fill(self, tasks: int) -> None:
        with open_queue(
            "big", self.url, shards=self.shards, by="id" if self.shards > 1 else None, deadline=30
        ) as queue:
            for first in range(self._put, self._put + tasks, 50_000):
                last = min(self._put + tasks, first + 50_000)
                queue.put(f"https://example.com/{number:09d}" for number in range(first, last))
        self._put += tasks

    async def open(self) -> None:
        self.queue = await open_async_queue("big", self.url, timeout=LEASE, deadline=30)

    async def close(self) -> None:
        if self.queue is not None:
            await self.queue.close()

    async def read(self) -> None:
        self._ends = False
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call())
            await asyncio.sleep(SETTLE)
            steps, used, began = self._steps, [*map(spent, self.pids)], time.monotonic()
            await asyncio.sleep(self.seconds)
            took = time.monotonic() - began
            cores = [(now - before) / took for now, before in zip(map(spent, self.pids), used, strict=True)]
            self.readings.append(Reading((self._steps - steps) / 2 / took, cores))
            self._ends = True

    async def _call(self) -> None:
        while not self._ends:
            leases = await self.queue.claim(BATCH)
            assert leases, f"{self.name}: nothing is left to claim; put more"
            self._steps += len(leases)
            outcome = await self.queue.ack(leases)
            self._steps += outcome.ok
            self._acked += outcome.ok

    def fill_up(self) -> None:
        """Put as many tasks as were acked, so that each round finds as many."""
        acked, self._acked = self._acked, 0
        self.fill(acked)

    @property
    def rate(self) -> float:
        """Tasks a second, in the middle round."""
        return median(reading.rate for reading in self.readings)

    @property
    def cores(self) -> list[float]:
        """The CPU time of each server, in cores: the mean of all rounds."""
        return [mean(each) for each in zip(*(reading.cores for reading in self.readings), strict=True)]

    def times(self, other: Case) -> float:
        return median(mine.rate / its.rate for mine, its in zip(self.readings, other.readings, strict=True))


@dataclass(frozen=True, slots=True)
class Scale:
    share: float
    """The part of a core that each primary had."""
    primaries: Sequence[tuple[int, Case]]
    """How many primaries, the first of them 1."""
    sharded: Case
    plain: Case

    @property
    def cost(self) -> float:
        """The rate of twelve shards on one server, as a fraction of the rate of a plain queue."""
        return self.sharded.times(self.plain)

    def linear(self, number: int, case: Case) -> float:
        """Say what N primaries do, as a part of N times what one does."""
        return case.times(self.primaries[0][1]) / number

    @property
    def broken(self) -> list[str]:
        found: list[str] = []
        for number, case in self.primaries:
            least, most = min(case.cores) / self.share, max(case.cores) / self.share
            if not NEAR[0] <= least <= most <= NEAR[1]:
                had = ", ".join(f"{100 * each:.1f}" for each in case.cores)
                found.append(
                    f"{case.name}: the servers had {had} % of a core and not {100 * self.share:g} %, so the figures do "
                    "not count: try again when the machine is less busy"
                )
            if self.linear(number, case) < LINEAR:
                found.append(f"{case.name}: {self.linear(number, case):.2f} of {number} times one, asked {LINEAR:g}")
        if self.cost < SHARDED:
            found.append(f"{SHARDS} shards on one server: {self.cost:.2f} of a plain queue, asked {SHARDED:g}")
        return found

    def table(self) -> str:
        lines = [f"{'primaries':>9} {'tasks/s':>9} {'of N times one':>15}  CPU of the servers"]
        for number, case in self.primaries:
            had = ", ".join(f"{100 * each:.1f} %" for each in case.cores)
            lines.append(f"{number:>9} {case.rate:>9,.0f} {self.linear(number, case):>15.2f}  {had}")
        lines.append(
            f"one server without a quota: {SHARDS} shards {self.sharded.rate:,.0f}/s, a plain queue "
            f"{self.plain.rate:,.0f}/s: {self.cost:.2f}"
        )
        return "\n".join([*lines, *(f"MISSED: {text}" for text in self.broken)])


def scale(
    primaries: Sequence[int],
    percent: float,
    binary: str,
    rounds: int = 9,
    seconds: float = WINDOW,
    say: Callable[[str], object] = lambda _: None,
) -> Scale:
    """Measure. Raises `NoQuota` where no process can be held to a part of a core."""
    share = percent / 100
    with ExitStack() as stack:
        stack.enter_context(Quota(percent))  # where that does not work, say so first
        cases: list[Case] = []
        for number in primaries:
            cluster = stack.enter_context(Cluster(number, 0, binary=binary))
            pids = [node.pid or 0 for node in cluster.nodes]
            cases.append(Case(f"{number} primaries", cluster.url, SHARDS, pids, seconds))
        for name, shards in (("12 shards", SHARDS), ("a plain queue", 1)):
            server = stack.enter_context(EmbeddedServer(binary=binary))
            cases.append(Case(f"{name} on one server", server.url, shards, [server.pid or 0], seconds / 2))
        held = cases[: len(primaries)]
        for case in cases:
            say(f"{case.name}: put tasks")
            cores = share * len(case.pids) if case in held else 1
            # so the sets of all servers of a kind are equally large
            case.fill(round(FASTEST * cores * (SETTLE + case.seconds)))
        for pid in (pid for case in held for pid in case.pids):
            stack.enter_context(Quota(percent)).hold(pid)
        asyncio.run(_measure(cases, rounds, say))
    return Scale(share, [*zip(primaries, held, strict=True)], *cases[len(primaries) :])


async def _measure(cases: Sequence[Case], rounds: int, say: Callable[[str], object]) -> None:
    try:
        for case in cases:
            await case.open()
        for number in range(1, rounds + 1):
            for case in cases if number % 2 else reversed(cases):
                await case.read()
                await asyncio.to_thread(case.fill_up)
            say(f"round {number} of {rounds}: " + ", ".join(f"{case.readings[-1].rate:,.0f}" for case in cases))
    finally:
        for case in cases:
            await case.close()
