"""A soak: a long storm with rare strikes and faults of the server, and whether anything grows that should not."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import redis

from tests.rig.servers import REDIS
from tests.rig.storm import LEAKS, Nursery, Plan, Report, Round
from tests.rig.waiting import wait_until
from timeoutq.server.embedded import EmbeddedServer

# ---- whether something grows

MIB = 1024.0 * 1024.0
LEAST = {"RSS": 3 * MIB, "descriptors": 3.0, "threads": 3.0, "memory": 0.5 * MIB, "clients": 3.0, "keys": 20.0}
"""The series that are judged, and how much growth of each is noise whatever else is so."""
SHARE, SPREADS = 0.1, 3.0
POINTS = 300
"""More samples than these are put together, by their medians, before all pairs are looked at."""
FEW = 4
"""With fewer samples nothing is said."""


@dataclass(frozen=True, slots=True)
class Point:
    """One sample. Values of different pieces, such as processes, are not compared."""

    at: float
    value: float
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Trend:
    """The verdict on one series after the warm-up: it grows, is steady, or was too short to say."""

    kind: str
    whose: str
    first: float
    last: float
    growth: float
    """Over the time that was watched."""
    span: float
    verdict: str


def trend(kind: str, whose: str, points: Sequence[Point], *, least_span: float) -> Trend:
    """Judge a series by the rule of its kind; `least_span` is for how long it must have been watched, seconds."""
    pieces = [piece for piece in _pieces(points) if len(piece) > 1]
    span = sum(piece[-1].at - piece[0].at for piece in pieces)
    slope = _slope(pieces) or 0.0
    residuals: list[float] = []
    for piece in pieces:
        flat = [point.value - slope * point.at for point in piece]
        residuals += (abs(value - median(flat)) for value in flat)
    if sum(map(len, pieces)) < FEW or span < least_span:
        verdict = "too short"
    else:
        usual = abs(median(point.value for piece in pieces for point in piece))
        noise = max(LEAST[kind], SHARE * usual, SPREADS * median(residuals) * len(pieces))
        verdict = "grows" if slope * span > noise and _goes_on(pieces, slope) else "steady"
    first, last = (points[0].value, points[-1].value) if points else (0.0, 0.0)
    return Trend(kind, whose, first, last, slope * span, span, verdict)


def _slope(pieces: Sequence[Sequence[Point]]) -> float | None:
    pairs = (pair for piece in pieces for pair in combinations(piece, 2))
    slopes = [(b.value - a.value) / (b.at - a.at) for a, b in pairs if b.at > a.at]
    return median(slopes) if slopes else None


def _goes_on(pieces: Sequence[Sequence[Point]], slope: float) -> bool:
    half = median(point.at for piece in pieces for point in piece)
    before = _slope([[point for point in piece if point.at <= half] for piece in pieces])
    after = _slope([[point for point in piece if point.at >= half] for piece in pieces])
    return all(one is None or one >= slope / 4 for one in (before, after))


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    found: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        found[point.piece].append(point)
    size = max(1, -(-len(points) // POINTS))
    return [
        [Point(median(p.at for p in c), median(p.value for p in c), c[0].piece) for c in _chunks(piece, size)]
        for piece in found.values()
    ]


def _chunks(points: list[Point], size: int) -> Iterator[list[Point]]:
    return (points[at : at + size] for at in range(0, len(points), size))


class Samples:
    def __init__(self) -> None:
        self._series: dict[tuple[str, str], list[Point]] = defaultdict(list)
        self.count = 0

    def add(self, at: float, kind: str, whose: str, value: float, piece: object = "") -> None:
        self._series[kind, whose].append(Point(at, value, str(piece)))

    def trends(self, warm_up: float, least_span: float) -> list[Trend]:
        """Judge all series, without what came before the end of the warm-up; of a new process too, up to a minute."""
        found: list[Trend] = []
        for (kind, whose), points in self._series.items():
            born: dict[str, float] = {}
            for point in points:
                born.setdefault(point.piece, point.at)
            late = [p for p in points if p.at >= max(warm_up, born[p.piece] + (min(warm_up, 60.0) if p.piece else 0))]
            found.append(trend(kind, whose, late, least_span=least_span))
        return found


# ---- the soak

KINDS = ("worker", "threads", "plain", "plain-async", "command")
STRUCK = "command"
STRIKES = ("kill", "stop", "term", "restart the server", "forget the library", "kill clients")


class Soak(Round):
    """A round whose processes are watched, on a server of its own."""

    def __init__(self, server: EmbeddedServer, samples: Samples, every: float, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.server, self.samples, self.every = server, samples, every
        self.faults: Counter[str] = Counter()
        self._began = self._sampled = time.monotonic()
        self._deck: list[str] = []
        self._raw: Any = redis.Redis.from_url(server.url)

    def strike(self) -> None:
        """Strike the worker that is a command, or the server."""
        self._deck = self._deck or self.rng.sample(STRIKES, len(STRIKES))
        what = self._deck.pop()
        self.faults[what] += 1
        if what in ("kill", "stop", "term"):
            victims = [child for child in self.children.values() if child.kind == STRUCK and not child.ending]
            for child in victims[:1]:
                self.hit(child, what)
            return
        self.history.say("fault")
        if what == "restart the server":
            self.server.restart()
            wait_until(self._answers, 30)
        elif what == "forget the library":
            self._raw.function_flush()
        else:
            self._raw.execute_command("CLIENT", "KILL", "TYPE", "normal")
        self.history.say("whole")

    def _answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self._raw.ping())
        return False

    def look(self) -> None:
        super().look()
        if time.monotonic() >= self._sampled + self.every:
            self._sampled = time.monotonic()
            self._sample(self._sampled - self._began)

    def _sample(self, at: float) -> None:
        self.samples.count += 1
        for child in self.children.values():
            if not child.ending:
                with suppress(OSError):  # it has just ended
                    for kind, value in _figures_of(child.pid):
                        self.samples.add(at, kind, child.kind, value, child.pid)
        info = self._raw.info()
        done = f"timeoutq:{{{self.plan.name}}}:done"
        kept = self._raw.memory_usage(done, samples=0) or 0  # as many as there are tasks: no leak
        piece = self.server.pid
        self.samples.add(at, "memory", "server", float(info["used_memory"] - kept), piece)
        self.samples.add(at, "clients", "server", float(info["connected_clients"]), piece)
        locks = len(self._raw.keys(f"timeoutq:{{{self.plan.name}}}:lock:*"))
        self.samples.add(at, "keys", "server", float(self._raw.dbsize() - locks))


def _figures_of(pid: int) -> Iterator[tuple[str, float]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" in status:  # none for one that has ended and was not waited for
        yield "RSS", 1024.0 * int(status["VmRSS"][0])
        yield "threads", float(status["Threads"][0])
        yield "descriptors", float(len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208  # names only, and many times


@dataclass(slots=True)
class Found:
    report: Report
    faults: dict[str, int] = field(default_factory=dict[str, int])
    samples: int = 0
    trends: list[Trend] = field(default_factory=list[Trend])

    @property
    def grows(self) -> list[Trend]:
        return [one for one in self.trends if one.verdict == "grows"]

    @property
    def valid(self) -> bool:
        return not self.report.violations and not self.grows

    def table(self) -> str:
        rows = [f"{'what':12} {'whose':12} {'first':>12} {'last':>12} {'growth':>12}  verdict"]
        rows += [
            f"{one.kind:12} {one.whose:12} {one.first:12,.0f} {one.last:12,.0f} {one.growth:+12,.0f}  {one.verdict}"
            for one in self.trends
        ]
        faults = ", ".join(f"{number} × {what}" for what, number in sorted(self.faults.items()))
        grows = [f"GROWS {one.kind} of {one.whose}" for one in self.grows]
        return "\n".join([*rows, self.report.table(), f"faults: {faults}", *(grows or ["nothing grows"])])

    def json(self) -> str:
        return json.dumps({**asdict(self), "totals": self.report.totals.words(), "valid": self.valid})


def soak(given: argparse.Namespace, tell: Callable[[Report], object]) -> Found:
    """Soak as the words of the command say, drain, and judge. This process forks, so it must have no thread."""
    seed, seconds = secrets.randbits(32) if given.seed is None else given.seed, 60 * given.minutes
    with ExitStack() as stack:
        nursery = Nursery()
        stack.callback(nursery.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-soak-")))
        binary = REDIS if given.server == "redis" else None
        server = stack.enter_context(EmbeddedServer(folder / "server", binary=binary))
        plan = Plan(server.url, "soak", str(folder), 1.5, yields=0.03, losses=0.001, leaks=given.leak)
        samples, rate = Samples(), max(0.2, 4 / seconds)
        every = min(10.0, max(0.4, seconds / 120))
        one = Soak(
            server, samples, every, nursery, plan, random.Random(seed).getrandbits(32), kinds=KINDS, rate=rate,
            shares={}, tick=tell,
        )  # fmt: skip
        until = time.monotonic() + seconds
        report = one.run(lambda _: time.monotonic() >= until)
        report.seed = seed
    # the first part is not judged: the arenas of the processes fill up
    warm_up = min(0.3 * seconds, 600.0) if given.warm_up is None else given.warm_up
    return Found(report, dict(one.faults), samples.count, samples.trends(warm_up, given.least_span))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, apart from the drain at the end")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--warm-up", type=float, metavar="SECONDS", help="what is not judged (default: 30 %%)")
    parser.add_argument("--least-span", type=float, metavar="SECONDS", default=60.0, help="what is long enough")
    parser.add_argument("--leak", action="append", choices=LEAKS, default=[], help="a mistake that must be found")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    if not Path("/proc/self/status").exists():
        parser.error("memory and descriptors are read from /proc, which this machine has not")
    found = soak(given, lambda now: sys.stderr.write(f"{now.kills} kills, {len(now.violations)} violations so far\n"))
    sys.stdout.write((found.json() if given.json else found.table()) + "\n")
    return int(not found.valid)


if __name__ == "__main__":
    sys.exit(main())
