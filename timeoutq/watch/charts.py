"""Pictures of a queue as SVG: states over time, rates, durations, and bars for errors and hosts. Pure: values to text.

The page draws them, and `report.py` writes them into a file. Each function gives one `<svg>` without scripts and inline
styles: colours are classes, and `STYLE` says what they are, for light and for dark. All text of tasks goes through
`text.safe` and is escaped. A title and a description say the same to who cannot see the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from timeoutq.words.counts import Period, Stats
from timeoutq.words.durations import QUICK, bound
from timeoutq.words.text import safe

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 34, 24
POINTS = 240
"""A picture has at most so many points side by side; several periods become one point."""
ROWS = 15
"""The most bars in a picture."""

STACK = ("done", "failed", "in_progress", "scheduled", "waiting", "todos")
"""The states as they lie upon each other, from the bottom."""
RATES = ("put", "acked", "errors", "expired")

STYLE = """
.chart { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.chart text { fill: var(--chart-text, #333); }
.chart .faint { fill: var(--chart-faint, #595959); font-size: 11px; }
.chart .grid { stroke: var(--chart-grid, #ddd); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.chart .gap { fill: var(--chart-grid, #ddd); opacity: .45; }
.chart .bar { fill: var(--chart-bar, #3b6ea8); }
.chart { --todos: #0b7285; --waiting: #3b5bdb; --scheduled: #9c36b5; --in_progress: #a15c00; --done: #237a38;
  --failed: #b3261e; }
.c-done, .c-acked { fill: var(--done); stroke: var(--done); }
.c-failed, .c-errors { fill: var(--failed); stroke: var(--failed); }
.c-in_progress, .c-expired { fill: var(--in_progress); stroke: var(--in_progress); }
.c-scheduled { fill: var(--scheduled); stroke: var(--scheduled); }
.c-waiting { fill: var(--waiting); stroke: var(--waiting); }
.c-todos, .c-put { fill: var(--todos); stroke: var(--todos); }
@media (prefers-color-scheme: dark) {
  .chart { --chart-text: #e4e4e4; --chart-faint: #b0b0b0; --chart-grid: #444; --chart-bar: #6d9fd6;
    --todos: #4dd0e1; --waiting: #8fa8ff; --scheduled: #dd92ee; --in_progress: #f0b04a; --done: #69d17f;
    --failed: #ff8f85; }
}
"""
"""What the classes of the pictures look like; the page gives states the same colours.
A page may set --chart-text and its like itself."""

Point = tuple[float, float | None]
"""A moment, Unix seconds, and a value; None where nobody knows it."""


@dataclass(frozen=True, slots=True)
class Span:
    """The moments that a picture shows, and how a value becomes a place in the picture."""

    begin: float
    end: float
    high: float

    def x(self, at: float) -> float:
        """Give the place of a moment."""
        part = (at - self.begin) / (self.end - self.begin) if self.end > self.begin else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Give the place of a value."""
        return HEIGHT - BOTTOM - value / self.high * (HEIGHT - TOP - BOTTOM)


def short(value: float) -> str:
    """Give a number in few characters: 950, 1.2k, 34M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def span_of_time(seconds: float) -> str:
    """Give a length of time in few characters: 4ms, 1.5s, 3min, 2h."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"


def states(periods: Sequence[Period], name: str = "states", stats: Stats | None = None) -> str:
    """Draw how many tasks were in each state, one upon the other: as periods began, and at last those of `stats`."""
    looks: list[tuple[float, Period | Stats]] = [(one.at, one) for one in periods]
    if stats is not None and (not periods or stats.now > periods[-1].at):
        looks.append((stats.now, stats))
    of = {state: _thinned([(at, getattr(one, state)) for at, one in looks], _last) for state in STACK}
    shown = {state: points for state, points in of.items() if any(value for _, value in points)}
    return areas("Tasks by state", shown, name)


def rates(periods: Sequence[Period], length: float, name: str = "rates", now: float | None = None) -> str:
    """Draw how many tasks a second were put, acked, failed or taken back, in periods of `length` seconds, up to `now`.

    Without `now`, the last period is over, too.
    """

    def seconds(at: float) -> float:
        return length if now is None else max(1.0, min(length, now - at))  # the last period is not over

    def per_second(counter: str) -> list[Point]:
        counts = [(one.at, getattr(one, counter)) for one in periods]
        return _thinned([(at, None if count is None else count / seconds(at)) for at, count in counts], _mean)

    of = {counter: per_second(counter) for counter in RATES}
    shown = {counter: points for counter, points in of.items() if counter in RATES[:2] or any(v for _, v in points)}
    return lines("Tasks per second", shown, name)


def durations(counts: Mapping[int, int], name: str = "durations") -> str:
    """Draw how long handlers ran: how many runs, for each doubling of the time. `counts` are by bucket."""
    doubled: dict[int, int] = {}
    for number, count in counts.items():
        doubling = math.ceil(math.log2(bound(max(number, QUICK))))
        doubled[doubling] = doubled.get(doubling, 0) + count
    rows: list[tuple[str, float]] = []
    if doubled:
        rows = [(span_of_time(2.0**at), doubled.get(at, 0)) for at in range(min(doubled), max(doubled) + 1)]
    return columns("How long handlers ran", rows, name, "up to")


def areas(title: str, of: Mapping[str, Sequence[Point]], name: str) -> str:
    """Draw several series one upon the other; the first lies at the bottom. All have the same moments."""
    series = list(of.items())
    tops = [[0.0 if value is None else value for _, value in points] for _, points in series]
    sums = [list(column) for column in zip(*tops, strict=True)]
    span = _span([points for _, points in series], _whole(max((sum(column) for column in sums), default=0.0)))
    parts = _frame(span, short)
    whole = [all(points[at][1] is not None for _, points in series) for at in range(len(sums))]
    for first, last in _runs(whole):
        for level, (label, points) in enumerate(series):
            upper = [(span.x(points[at][0]), span.y(sum(sums[at][: level + 1]))) for at in range(first, last + 1)]
            lower = [(span.x(points[at][0]), span.y(sum(sums[at][:level]))) for at in range(last, first - 1, -1)]
            if first == last:  # a moment alone is as wide as a line
                upper.append((upper[0][0] + 1.5, upper[0][1]))
                lower.insert(0, (lower[0][0] + 1.5, lower[0][1]))
            parts.append(f'<path class="c-{_named(label)}" stroke="none" d="M{_path([*upper, *lower])}Z"/>')
    return _svg(title, _said(series), name, [*_gaps(span, series, whole), *parts, *_legend([*of], "area")])


def lines(title: str, of: Mapping[str, Sequence[Point]], name: str) -> str:
    """Draw several series as lines; a line is broken where nobody knows the value."""
    series = list(of.items())
    highest = max((value for _, points in series for _, value in points if value is not None), default=0.0)
    span = _span([points for _, points in series], _nice(highest))
    parts = _frame(span, short)
    for label, points in series:
        for first, last in _runs([value is not None for _, value in points]):
            places = [(span.x(at), span.y(value or 0.0)) for at, value in points[first : last + 1]]
            if first == last:
                places.append((places[0][0] + 1.5, places[0][1]))
            parts.append(f'<path class="line c-{_named(label)}" fill="none" d="M{_path(places)}"/>')
    known = (
        [any(points[at][1] is not None for _, points in series) for at in range(len(series[0][1]))] if series else []
    )
    return _svg(title, _said(series), name, [*_gaps(span, series, known), *parts, *_legend([*of], "line")])


def bars(title: str, rows: Sequence[tuple[str, float]], name: str, more: str = "") -> str:
    """Draw horizontal bars, one below the other: a label and a number for each row. `more` is said below."""
    shown = rows[:ROWS]
    highest = max((value for _, value in shown), default=0.0) or 1.0
    row, high = 30, max(1, len(shown)) * 30 + TOP + (16 if more else 0)
    parts: list[str] = []
    for at, (label, value) in enumerate(shown):
        y = TOP + at * row
        width = max(1.0, value / highest * (WIDTH - 70))
        words = safe(label, 64)
        parts.append(f'<text x="2" y="{y + 8}">{_text(words)}</text>')
        parts.append(f'<rect class="bar" x="2" y="{y + 12}" width="{width:.1f}" height="9" rx="2"/>')
        parts.append(f'<text class="faint" x="{width + 8:.1f}" y="{y + 21}">{short(value)}</text>')
    if not shown:
        parts.append(f'<text class="faint" x="2" y="{TOP + 10}">none</text>')
    if more:
        parts.append(f'<text class="faint" x="2" y="{high - 4}">{_text(safe(more, 70))}</text>')
    said = "; ".join(f"{safe(label, 80)}: {short(value)}" for label, value in shown) or "none"
    return _svg(title, said, name, parts, high)


def columns(title: str, rows: Sequence[tuple[str, float]], name: str, before: str = "") -> str:
    """Draw columns side by side: a histogram. `before` stands before the labels in the description."""
    highest = max((value for _, value in rows), default=0.0)
    span = Span(0.0, max(1.0, float(len(rows))), _whole(highest))
    parts = _grid(span, short)
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(rows))
    step = max(1, math.ceil(len(rows) / 9))
    for at, (label, value) in enumerate(rows):
        top = span.y(value)
        x = LEFT + at * wide
        high = HEIGHT - BOTTOM - top
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{top:.1f}" width="{max(1.0, wide - 2):.1f}" height="{high:.1f}"/>'
        )
        if at % step == 0:
            middle = f'text-anchor="middle" x="{x + wide / 2:.1f}" y="{HEIGHT - 8}"'
            parts.append(f'<text class="faint" {middle}>{_text(safe(label, 12))}</text>')
    if not rows:
        parts.append(f'<text class="faint" x="{LEFT + 8}" y="{HEIGHT / 2}">nothing was noted yet</text>')
    said = "; ".join(f"{before} {safe(label)}: {short(value)}".strip() for label, value in rows) or "nothing"
    return _svg(title, said, name, parts)


# ---- what pictures have in common


def _text(value: str) -> str:
    return escape(value, quote=True)


def _named(name: str) -> str:
    # a name as ids and classes have it
    return "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "-_"))


def _svg(title: str, said: str, name: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    known = _named(name)
    return (
        f'<svg class="chart" role="img" aria-labelledby="{known}-title {known}-said" '
        f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{known}-title">{_text(safe(title))}</title><desc id="{known}-said">{_text(safe(said))}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _nice(value: float) -> float:
    # the end of an axis: 1, 2, 2.5 or 5 times a power of ten
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(part * power for part in (1.0, 2.0, 2.5, 5.0, 10.0) if part * power >= value * 0.999)


def _whole(value: float) -> float:
    # the end of an axis of counts: its quarters are whole numbers
    power = 10.0 ** max(0, math.floor(math.log10(max(value, 4.0) / 4)))
    return 4.0 * next(
        step for part in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
        if (step := part * power) * 4 >= value and step.is_integer()
    )  # fmt: skip


def _span(series: Sequence[Sequence[Point]], high: float) -> Span:
    times = [points[at][0] for points in series if points for at in (0, -1)]
    return Span(min(times, default=0.0), max(times, default=1.0), high)


def _grid(span: Span, shown: Callable[[float], str]) -> list[str]:
    parts: list[str] = []
    for quarter in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = span.y(span.high * quarter)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = shown(span.high * quarter)
        parts.append(f'<text class="faint" text-anchor="end" x="{LEFT - 5}" y="{y + 4:.1f}">{label}</text>')
    return parts


def _frame(span: Span, shown: Callable[[float], str]) -> list[str]:
    # the grid, and the moments below it, UTC
    parts = _grid(span, shown)
    days = span.end - span.begin >= 2 * 86_400
    clock = "%H:%M" if span.end - span.begin >= 240 else "%H:%M:%S"  # else two labels would be the same
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = span.begin + part * (span.end - span.begin)
        moment = datetime.fromtimestamp(at, UTC)
        label = f"{moment:%d %b}" if days else f"{moment:{clock}}" + (" UTC" if part == 1.0 else "")
        parts.append(f'<text class="faint" text-anchor="{anchor}" x="{span.x(at):.1f}" y="{HEIGHT - 7}">{label}</text>')
        if span.end <= span.begin:
            break
    return parts


def _gaps(span: Span, series: Sequence[tuple[str, Sequence[Point]]], known: Sequence[bool]) -> list[str]:
    # what nobody noted, as a shade
    if not series:
        return []
    points, parts = series[0][1], list[str]()
    for first, last in _runs([not one for one in known]):
        begin, end = (span.x(points[max(0, min(at, len(points) - 1))][0]) for at in (first - 1, last + 1))
        if end > begin:
            high = HEIGHT - TOP - BOTTOM
            parts.append(f'<rect class="gap" x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{high}"/>')
    return parts


def _legend(labels: Sequence[str], kind: str) -> list[str]:
    parts, x = list[str](), float(LEFT)
    for label in labels:
        words = safe(label, 20).replace("_", " ")
        high = 10 if kind == "area" else 3
        y = f"{15 - high / 2:.1f}"
        parts.append(f'<rect class="c-{_named(label)}" stroke="none" x="{x:.0f}" y="{y}" width="10" height="{high}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="19">{_text(words)}</text>')
        x += 26 + 6.2 * len(words)
    return parts


def _said(series: Sequence[tuple[str, Sequence[Point]]]) -> str:
    # the last value of each series, in words
    words: list[str] = []
    for label, points in series:
        known = [value for _, value in points if value is not None]
        if known:
            words.append(f"{safe(label).replace('_', ' ')}: {short(known[-1])} at last, {short(max(known))} at most")
    return "; ".join(words) or "nothing was noted yet"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _runs(known: Sequence[bool]) -> list[tuple[int, int]]:
    # the first and the last place of each run of places that are known
    edges = [at for at, (a, b) in enumerate(pairwise([False, *known, False])) if a != b]
    return [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _last(values: Sequence[float]) -> float:
    return values[-1]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _thinned(points: Sequence[Point], one_of: Callable[[Sequence[float]], float]) -> list[Point]:
    # several points become one; they are unknown if all of them are
    many = max(1, math.ceil(len(points) / POINTS))
    found: list[Point] = []
    for at in range(0, len(points), many):
        some = points[at : at + many]
        known = [value for _, value in some if value is not None]
        found.append((some[0][0], one_of(known) if known else None))
    return found
