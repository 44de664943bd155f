"""Whether a series of samples grows: the rule that tells a leak from noise. `soak.py` asks it.

What counts as growth: Theil and Sen's slope (the median of the slopes between all pairs of samples after the warm-up
that one process, or one run of the server, gave) times the time watched. It is a leak when that is more than a share of
the usual value (10 %), more than three median absolute deviations from the line for each piece that the series is made
of, and more than a least amount (`RULES`); and when it went on in both halves of the time, at a quarter of the slope or
more. So neither a step nor a sawtooth is a leak, nor what fills up and then stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True, slots=True)
class Point:
    """One sample. Values of different pieces (another process, another run of the server) are not compared."""

    at: float
    value: float
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """How much growth is more than noise: all three must be exceeded."""

    least: float
    share: float = 0.10
    spreads: float = 3.0


MIB = 1024.0 * 1024.0

RULES: Mapping[str, Rule] = {
    "RSS": Rule(3 * MIB),
    # an allocator leaves holes for a long time: what the server holds is its `memory`
    "server RSS": Rule(16 * MIB, share=1.0),
    "descriptors": Rule(3),
    "threads": Rule(3),
    "memory": Rule(0.5 * MIB),
    "Lua memory": Rule(0.25 * MIB),
    "clients": Rule(3),
    "keys": Rule(20),
    "keys when quiet": Rule(3),
    # signs of life of killed workers stay for five minutes, and the history fills up for longer
    "members when quiet": Rule(200),
}
"""What is judged; everything else, such as latencies, is only shown: the machine may have other work."""

BYTES = ("RSS", "server RSS", "memory", "Lua memory")
POINTS = 300
"""More samples than these are put together, by their medians, before all pairs are looked at."""

FEW = 4
"""With fewer samples nothing is said."""


@dataclass(frozen=True, slots=True)
class Trend:
    """What became of one series after the warm-up."""

    kind: str
    whose: str
    first: float
    last: float
    per_hour: float
    growth: float
    """Over the time that was watched."""
    spread: float
    """The median absolute deviation from the line."""
    span: float
    """For how long it was watched, seconds."""
    points: int
    verdict: str
    """grows, steady, too short to say, or shown but not judged."""


def trend(kind: str, whose: str, points: Sequence[Point], *, least_span: float) -> Trend:
    """Judge a series by the rule of its kind; `least_span` is for how long it must have been watched, seconds."""
    pieces = [piece for piece in _pieces(points) if len(piece) > 1]
    span = sum(piece[-1].at - piece[0].at for piece in pieces)
    slope = _slope(pieces) or 0.0
    growth = slope * span
    residuals: list[float] = []
    for piece in pieces:
        flat = [point.value - slope * point.at for point in piece]
        middle = median(flat)
        residuals += (abs(value - middle) for value in flat)
    spread = median(residuals) if residuals else 0.0
    rule = RULES.get(kind)
    if rule is None:
        verdict = "shown"
    elif sum(map(len, pieces)) < FEW or span < least_span:
        verdict = "too short"
    else:
        usual = abs(median(point.value for piece in pieces for point in piece))
        noise = max(rule.least, rule.share * usual, rule.spreads * spread * len(pieces))
        verdict = "grows" if growth > noise and _goes_on(pieces, slope) else "steady"
    first, last = (points[0].value, points[-1].value) if points else (0.0, 0.0)
    return Trend(kind, whose, first, last, 3600 * slope, growth, spread, span, len(points), verdict)


def _slope(pieces: Sequence[Sequence[Point]]) -> float | None:
    pairs = (pair for piece in pieces for pair in combinations(piece, 2))
    slopes = [(b.value - a.value) / (b.at - a.at) for a, b in pairs if b.at > a.at]
    return median(slopes) if slopes else None


def _goes_on(pieces: Sequence[Sequence[Point]], slope: float) -> bool:
    half = median(point.at for piece in pieces for point in piece)
    halves = (
        _slope([[point for point in piece if point.at <= half] for piece in pieces]),
        _slope([[point for point in piece if point.at >= half] for piece in pieces]),
    )
    return all(one is None or one >= slope / 4 for one in halves)


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    found: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        found[point.piece].append(point)
    size = -(-len(points) // POINTS)
    return [_thinned(piece, size) for piece in found.values()]


def _thinned(points: list[Point], size: int) -> list[Point]:
    if size <= 1:
        return points
    chunks = [points[at : at + size] for at in range(0, len(points), size)]
    return [Point(median(p.at for p in c), median(p.value for p in c), c[0].piece) for c in chunks]


class Samples:
    """All series of a soak."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], list[Point]] = defaultdict(list)

    def add(self, at: float, kind: str, whose: str, value: float, piece: object = "") -> None:
        """Take a sample, `at` seconds after the begin."""
        self._series[kind, whose].append(Point(at, value, str(piece)))

    def trends(self, warm_up: float, least_span: float) -> list[Trend]:
        """Judge all series, without what came before the end of the warm-up; of a new process too, up to a minute."""
        found: list[Trend] = []
        for (kind, whose), points in self._series.items():
            born: dict[str, float] = {}
            for point in points:
                born.setdefault(point.piece, point.at)
            settled = min(warm_up, 60.0)
            kept = [p for p in points if p.at >= warm_up and (not born[p.piece] or p.at >= born[p.piece] + settled)]
            if kind in RULES or kept:
                found.append(trend(kind, whose, kept, least_span=least_span))
        return sorted(found, key=lambda one: list(RULES).index(one.kind) if one.kind in RULES else len(RULES))
