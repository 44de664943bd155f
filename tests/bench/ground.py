"""Figures and measurements, and the ground that they are taken on: a server, and a bare client of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

import redis

from timeoutq.cli import bench
from timeoutq.cli.bench import ID, PATIENCE
from timeoutq.server.calls import Argument
from timeoutq.server.server import Server
from timeoutq.server.troubles import LINK_ERRORS
from timeoutq.words.errors import TimeoutqError

T = TypeVar("T")
Readings = Mapping[str, float | None]
"""Names of figures and what was read; None where this machine or server cannot tell."""


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    about: str
    unit: str
    limit: str | None = None
    """The figure that it is compared with."""
    target: str | None = None
    """A bound for its ratio to the limit (≥ 0.7×), for its value (≤ 50), or for its value above the limit (≤ +0.1)."""
    unless: tuple[str, float] | None = None
    """Another figure, and from where on it excuses this one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything is done in one round."""

    trips: int = 3000
    """Exchanges of one command each."""
    bulk: int = 100_000
    """Ids that are put in thousands."""
    drained: int = 60_000
    """Tasks that are claimed and acked in hundreds."""
    backlog: int = 500_000
    """Tasks that are ready whenever something claims: a large set is dearer than a small one, for everybody."""
    window: float = 2.0
    """For how long workers are watched, seconds."""
    paced: int = 300
    paced_gap: float = 0.01
    cold: int = 12
    cold_gap: float = 1.0
    scheduled: int = 1000
    scheduled_over: float = 5.0
    burst: int = 1_000_000
    kills: int = 3
    killed: int = 20
    """Tasks that a killed worker holds."""
    idle: float = 10.0
    leases: Sequence[int] = (1_000, 100_000, 1_000_000)
    rounds_of_requeue: int = 200
    weighed: int = 100_000
    grown: Sequence[int] = (10_000, 1_000_000, 10_000_000)
    cycles: int = 500
    starts: int = 5
    """How often an interpreter is started."""
    polite: tuple[int, int] = (1000, 150)
    hosts: Sequence[int] = (10, 1_000, 1_000_000)
    fair: tuple[int, int, int] = (200_000, 200, 50)
    """Tasks of one huge host; small hosts, and tasks of each."""
    pauses: tuple[int, int, int, int] = (500_000, 100_000, 300_000, 6_000)
    handlers: int = 160
    delay: float = 0.2
    """The longest delay of a round trip, seconds."""
    work: float = 0.22
    """The longest work of one task, seconds."""
    worked: int = 10_000
    """Tasks of the run behind delays."""
    seen: int = 10_000_000
    """Done tasks that are kept as fingerprints, and as ids."""


FULL = Sizes()
QUICK = replace(
    FULL,
    trips=1000, bulk=50_000, drained=30_000, backlog=250_000, window=1.0,
    paced=100, cold=4, scheduled=300, scheduled_over=1.5, kills=1, idle=3.0, leases=(1_000, 10_000, 100_000),
    weighed=20_000, starts=3, worked=2000, polite=(500, 80), hosts=(10, 1_000, 20_000), fair=(20_000, 50, 20),
    seen=1_000_000,
)  # fmt: skip

_FILL = """
local key, kind, format, first, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local score, step = tonumber(ARGV[5]), tonumber(ARGV[6])
for from = first, first + count - 1, 1000 do
  local words = {}
  for i = from, math.min(from + 999, first + count - 1) do
    if kind == 'ZADD' then
      words[#words + 1] = string.format('%.0f', score + i * step)
    end
    words[#words + 1] = string.format(format, i)
    if kind == 'HSET' then
      words[#words + 1] = 'bench#1'
    end
  end
  redis.call(kind, key, unpack(words))
end
"""


class Ground(bench.Ground):
    """The place of a run; `with Ground(url, sizes) as ground`."""

    def __init__(self, url: str | None, sizes: Sizes) -> None:
        """Prepare: the server is the one at `url`, or for None an embedded one."""
        super().__init__(url)
        self.sizes = sizes
        self.round = 1
        self._scripts: dict[str, str] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._way = Server(self.url, None, 5.0)
        self.bare: Any = redis.Redis.from_url(self.url, socket_timeout=PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.bare.close()

    def turned(self, things: Iterable[T]) -> list[T]:
        """Give things that are measured one after the other, in an order that turns from round to round.

        What is measured first or last on a machine may seem slower; so each thing has each place in turn.
        """
        line = [*things]
        at = (self.round - 1) % max(1, len(line))
        return line[at:] + line[:at]

    # ---- queues

    def _remove(self, name: str) -> None:
        super()._remove(name)
        # another thread of the server frees the removed keys: wait for this thread, or it disturbs the next measurement
        until = time.monotonic() + 10
        with told(self):
            while int(self.info("memory").get("lazyfree_pending_objects", 0)) and time.monotonic() < until:
                time.sleep(0.01)

    def fill(self, key: str, count: int, *, kind: str = "SADD", first: int = 0, at: float = 0, step: float = 0) -> None:
        """Fill a set (SADD), a sorted set (ZADD: the score of number i is at + i * step) or a hash (HSET) with ids."""
        chunk = 5000
        sha = self.load(_FILL)
        for start in range(first, first + count, 10 * chunk):
            pipe = self.bare.pipeline(transaction=False)
            for part in range(start, min(start + 10 * chunk, first + count), chunk):
                n = min(chunk, first + count - part)
                pipe.execute_command("EVALSHA", sha, 1, key, kind, ID, part, n, f"{at:.0f}", step)
            pipe.execute()

    # ---- the bare client

    def load(self, text: str) -> str:
        """Load a script into the server; give the digest of the script."""
        if text not in self._scripts:
            self._scripts[text] = self.bare.execute_command("SCRIPT", "LOAD", text).decode()
        return self._scripts[text]

    def evalsha(self, text: str, keys: Sequence[str], *args: Argument) -> tuple[Argument, ...]:
        return ("EVALSHA", self.load(text), len(keys), *keys, *args)

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.bare.execute_command("INFO", section))

    def used_memory(self) -> int:
        """Give how many bytes the server uses, once that is steady."""
        # what was unlinked before is freed by another thread, and hash tables go on growing for a moment
        last = -1
        for _ in range(200):
            info = self.info("memory")
            used = int(info["used_memory"])
            if used == last and not int(info.get("lazyfree_pending_objects", 0)):
                break
            last = used
            time.sleep(0.05)
        return last

    def room(self) -> int:
        """Give how many bytes more the server may use."""
        memory = self.info("memory")
        limit, used = int(memory.get("maxmemory", 0)), int(memory["used_memory"])
        if limit:
            return limit - used
        if self.embedded and Path("/proc/meminfo").exists():
            lines = Path("/proc/meminfo").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        return int(memory.get("total_system_memory", 0)) - used

    def script_time(self) -> tuple[int, int]:
        """Give how many verbs the server has carried out, and for how many µs."""
        stats = self.info("commandstats")
        found = [stats[name] for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats]
        return sum(int(one["calls"]) for one in found), sum(int(one["usec"]) for one in found)

    def clock_offset_ms(self) -> float:
        """Give by how many ms the server's time is ahead of our monotonic clock."""
        best = (float("inf"), 0.0)
        for _ in range(20):
            asked = time.monotonic_ns()
            seconds, micros = self.bare.execute_command("TIME")
            answered = time.monotonic_ns()
            there = int(seconds) * 1000 + int(micros) / 1000
            best = min(best, (answered - asked, there - (asked + answered) / 2e6))
        return best[1]

    def explain(self, error: BaseException) -> TimeoutqError:
        """Turn an error that the bare client raised into one of ours."""
        return self._way.explain(error)


def cpu_ms(info: Any) -> float:
    """Read from a reply of INFO how much CPU time the server's main thread has had, ms."""
    return 1000 * (float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"]))


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement: it gives one figure, or several figures that are read together."""

    name: str
    figures: Sequence[Figure]
    take: Callable[[Ground], Readings]
    once: bool = False
    """Taken in the first round only: the figures are the same in each round, or take too long."""
    heavy: bool = False
    """Takes minutes or gigabytes: left out with --quick."""
    asked: bool = False
    """Taken only when the user asks for it by name."""


def measure(
    name: str, *figures: Figure, once: bool = False, heavy: bool = False, asked: bool = False, needs: Sequence[str] = ()
) -> Callable[[Callable[[Ground], Readings]], Measure]:
    """Make a measurement of a function, which reads nothing where a package that it needs is not installed."""

    def made(take: Callable[[Ground], Readings]) -> Measure:
        able = all(map(find_spec, needs))
        return Measure(name, figures, take if able else lambda _: {}, once, heavy, asked)

    return made


@contextmanager
def told(ground: Ground) -> Iterator[None]:
    """Raise errors of the bare client and of the server as errors of ours."""
    try:
        yield
    except LINK_ERRORS as error:
        raise ground.explain(error) from error
