"""Pictures of a queue as SVG: states over time, rates, durations, and bars for errors and hosts. Pure: values to text.

Each gives one `<svg>` without scripts and inline styles: colours are classes, which `STYLE` explains. All text of tasks
goes through `text.safe` and is escaped. A title and a description say the same to who cannot see the picture.
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
from timeoutq.words.text import safe, span

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 34, 24
POINTS = 240  # a picture has at most so many points side by side; several periods become one point
ROWS = 15  # the most bars in a picture

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
"""The look of the classes; the page gives states the same colours, and may set --chart-text and its like itself."""

Point = tuple[float, float | None]  # a moment, Unix seconds, and a value; None where nobody knows it
Series = Mapping[str, Sequence[Point]]  # points by their label, a name of a class; all labels have the same moments


@dataclass(frozen=True, slots=True)
class Span:
    """The moments that a picture shows, and how a value becomes a place in the picture."""

    begin: float
    end: float
    high: float

    def x(self, at: float) -> float:
        part = (at - self.begin) / (self.end - self.begin) if self.end > self.begin else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.high * (HEIGHT - TOP - BOTTOM)


def short(value: float) -> str:
    """Give a number in few characters: 950, 1.2k, 34M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def states(periods: Sequence[Period], name: str, stats: Stats) -> str:
    """Draw how many tasks were in each state, one upon the other: as periods began, and at last those of `stats`."""
    looks: list[tuple[float, Period | Stats]] = [(one.at, one) for one in periods]
    if not periods or stats.now > periods[-1].at:
        looks.append((stats.now, stats))
    each = {state: _thinned([(at, getattr(one, state)) for at, one in looks], lambda some: some[-1]) for state in STACK}
    of = {state: points for state, points in each.items() if any(value for _, value in points)}
    sums = [[value or 0.0 for _, value in some] for some in zip(*of.values(), strict=True)]
    span = _span(of, _whole(max(map(sum, sums), default=0.0)))
    parts: list[str] = []
    for first, last in _runs(_known(of)):
        for level, (state, points) in enumerate(of.items()):
            upper, lower = (
                _wide([(span.x(points[at][0]), span.y(sum(sums[at][:under]))) for at in range(first, last + 1)])
                for under in (level + 1, level)
            )
            parts.append(_tag("path", f"c-{state}", stroke="none", d=f"M{_path([*upper, *reversed(lower)])}Z"))
    return _over_time("Tasks by state", of, name, span, parts, 10)


def rates(periods: Sequence[Period], length: float, name: str, now: float) -> str:
    """Draw how many tasks a second were put, acked, failed or taken back, in periods of `length` seconds."""

    def per_second(one: Period, counter: str) -> float | None:
        count = getattr(one, counter)
        return None if count is None else count / max(1.0, min(length, now - one.at))  # the last period is not over

    of: dict[str, list[Point]] = {}
    for counter in RATES:
        points = _thinned([(one.at, per_second(one, counter)) for one in periods], lambda some: sum(some) / len(some))
        if counter in ("put", "acked") or any(value for _, value in points):  # errors are rare
            of[counter] = points
    span = _span(of, _nice(max((value or 0.0 for points in of.values() for _, value in points), default=0.0)))
    parts: list[str] = []
    for counter, points in of.items():
        for first, last in _runs(_known(of)):
            places = _wide([(span.x(at), span.y(value or 0.0)) for at, value in points[first : last + 1]])
            parts.append(_tag("path", f"line c-{counter}", fill="none", d=f"M{_path(places)}"))
    return _over_time("Tasks per second", of, name, span, parts, 3)


def durations(counts: Mapping[int, int]) -> str:
    """Draw how long handlers ran: a column for each doubling of the time. `counts` are by bucket."""
    doubled: dict[int, int] = {}
    for number, count in counts.items():
        doubling = math.ceil(math.log2(bound(max(number, QUICK))))
        doubled[doubling] = doubled.get(doubling, 0) + count
    found = range(min(doubled), max(doubled) + 1) if doubled else ()
    rows = [(span(2.0**at), float(doubled.get(at, 0))) for at in found]
    axis = Span(0.0, max(1.0, float(len(rows))), _whole(max((value for _, value in rows), default=0.0)))
    parts = _grid(axis)
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(rows))
    step = max(1, math.ceil(len(rows) / 9))
    for at, (label, value) in enumerate(rows):
        top, x = axis.y(value), LEFT + at * wide
        parts.append(_tag("rect", "bar", x=x + 1, y=top, width=max(1.0, wide - 2), height=HEIGHT - BOTTOM - top))
        if at % step == 0:
            parts.append(_tag("text", "faint", label, text_anchor="middle", x=x + wide / 2, y=HEIGHT - 8))
    if not rows:
        parts.append(_tag("text", "faint", "nothing was noted yet", x=LEFT + 8, y=HEIGHT / 2))
    said = "; ".join(f"up to {label}: {short(value)}" for label, value in rows) or "nothing"
    return _svg("How long handlers ran", said, "durations", parts)


def bars(title: str, rows: Sequence[tuple[str, float]], name: str, more: str = "") -> str:
    """Draw horizontal bars, one below the other: a label and a number for each row. `more` is said below."""
    shown = rows[:ROWS]
    highest = max((value for _, value in shown), default=0.0) or 1.0
    high = max(1, len(shown)) * 30 + TOP + (16 if more else 0)
    parts: list[str] = []
    for at, (label, value) in enumerate(shown):
        y, width = TOP + at * 30, max(1.0, value / highest * (WIDTH - 70))
        parts.append(_tag("text", "", safe(label, 64), x=2, y=y + 8))
        parts.append(_tag("rect", "bar", x=2, y=y + 12, width=width, height=9, rx=2))
        parts.append(_tag("text", "faint", short(value), x=width + 8, y=y + 21))
    if not shown:
        parts.append(_tag("text", "faint", "none", x=2, y=TOP + 10))
    if more:
        parts.append(_tag("text", "faint", safe(more, 70), x=2, y=high - 4))
    said = "; ".join(f"{safe(label, 80)}: {short(value)}" for label, value in shown) or "none"
    return _svg(title, said, name, parts, high)


# ---- pieces of all pictures


def _tag(tag: str, kind: str, text: str | None = None, **attributes: str | float) -> str:
    shown = {
        name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else value
        for name, value in attributes.items()
    }
    words = (f' class="{kind}"' if kind else "") + "".join(f' {name}="{value}"' for name, value in shown.items())
    return f"<{tag}{words}/>" if text is None else f"<{tag}{words}>{escape(text)}</{tag}>"


def _svg(title: str, said: str, name: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    return (
        f'<svg class="chart" role="img" aria-labelledby="{name}-title {name}-said" '
        f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-said">{escape(safe(said))}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _over_time(title: str, of: Series, name: str, span: Span, parts: Sequence[str], thick: int) -> str:
    """Give the picture of series: with a grid and moments, a shade over the time that nobody noted, and a legend."""
    said, legend, gaps, x = list[str](), list[str](), list[str](), float(LEFT)
    for label, points in of.items():
        words = label.replace("_", " ")
        legend.append(_tag("rect", f"c-{label}", stroke="none", x=x, y=15 - thick / 2, width=10, height=thick))
        legend.append(_tag("text", "", words, x=x + 14, y=19))
        x += 26 + 6.2 * len(words)
        values = [value for _, value in points if value is not None]
        if values:
            said.append(f"{words}: {short(values[-1])} at last, {short(max(values))} at most")
    moments = [at for at, _ in next(iter(of.values()), ())]
    for first, last in _runs([not one for one in _known(of)]):
        begin, end = (span.x(moments[max(0, min(at, len(moments) - 1))]) for at in (first - 1, last + 1))
        if end > begin:
            gaps.append(_tag("rect", "gap", x=begin, y=TOP, width=end - begin, height=HEIGHT - TOP - BOTTOM))
    return _svg(
        title, "; ".join(said) or "nothing was noted yet", name, [*gaps, *_grid(span), *_clock(span), *parts, *legend]
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
    steps = (part * power for part in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return 4.0 * next(step for step in steps if step * 4 >= value and step.is_integer())


def _span(of: Series, high: float) -> Span:
    times = [at for points in of.values() for at, _ in points]
    return Span(min(times, default=0.0), max(times, default=1.0), high)


def _grid(span: Span) -> list[str]:
    parts: list[str] = []
    for quarter in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = span.y(span.high * quarter)
        parts.append(_tag("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(_tag("text", "faint", short(span.high * quarter), text_anchor="end", x=LEFT - 5, y=y + 4))
    return parts


def _clock(span: Span) -> list[str]:
    # the moments below the picture, UTC
    parts, length = list[str](), span.end - span.begin
    clock = "%d %b" if length >= 2 * 86_400 else "%H:%M" if length >= 240 else "%H:%M:%S"  # no two labels are the same
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))[: 3 if length > 0 else 1]:
        at = span.begin + part * length
        zone = " UTC" if part == 1.0 and length < 2 * 86_400 else ""
        label = f"{datetime.fromtimestamp(at, UTC):{clock}}{zone}"
        parts.append(_tag("text", "faint", label, text_anchor=anchor, x=span.x(at), y=HEIGHT - 7))
    return parts


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _wide(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    # a moment alone is as wide as a line
    return places if len(places) != 1 else [places[0], (places[0][0] + 1.5, places[0][1])]


def _known(of: Series) -> list[bool]:
    # of each moment; all labels are known, or none is
    return [value is not None for _, value in next(iter(of.values()), ())]


def _runs(known: Sequence[bool]) -> list[tuple[int, int]]:
    # the first and the last place of each run of places that are known
    edges = [at for at, (a, b) in enumerate(pairwise([False, *known, False])) if a != b]
    return [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _thinned(points: Sequence[Point], one_of: Callable[[Sequence[float]], float]) -> list[Point]:
    # several points become one; they are unknown if all of them are
    many = max(1, math.ceil(len(points) / POINTS))
    found: list[Point] = []
    for at in range(0, len(points), many):
        known = [value for _, value in points[at : at + many] if value is not None]
        found.append((points[at][0], one_of(known) if known else None))
    return found
