"""A whole run of the benchmark: rounds that take every limit and every figure, medians, spread, and the table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from tests.bench import calls, clients, gateway, hosts, latency, limits, pauses, seen, workers
from tests.bench.ground import Ground, Measure, told
from tests.bench.terms import FULL, QUICK, Figure, Readings, Sizes, Target
from timeoutq.cli.bench.measures import about, number
from timeoutq.words.errors import InvalidInput

# each limit stands right before the figures that are set beside it
MEASURES: Sequence[Measure] = (
    limits.PING, limits.EVALSHA, clients.PUT_ONE, limits.SADD, clients.PUT_BULK,
    limits.BARE_100_APART, limits.BARE_100, clients.CLAIM_100, workers.WORKER, workers.WORKER_2,
    calls.CALLS, workers.WORKER_DEF, workers.PICKUP, calls.DELAY, calls.WAIT,
    workers.COLD, workers.LATE, workers.KILLED, workers.IDLE, clients.REQUEUE, clients.MEMORY, clients.STARTS,
    hosts.POLITE, hosts.FAIR, workers.BURST, clients.GROWTH, hosts.CLAIMS,
    gateway.ONE, gateway.BATCHES, gateway.LINES_IN, gateway.POLLS, gateway.LOG,
    pauses.PAUSES, seen.SEEN, latency.LATENCY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """What was read of one figure."""

    figure: Figure
    value: float | None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    met: bool | None = None
    rounds: Sequence[Mapping[str, float | None]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a run has found."""

    rows: Sequence[Row]
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def missed(self) -> list[str]:
        return [row.figure.name for row in self.rows if row.met is False]


# ---- the run


def choose(only: Sequence[str], *, quick: bool = False, far: bool = False) -> list[Measure]:
    """Give the measurements of a run: all usual ones, or those that have these names, with their limits.

    A name may be the beginning of several: `claim` is `claim-1`, `claim-10` and so on. `far` is the one behind delays.
    Raises `InvalidInput` for a name that there is not, with those that there are.
    """
    home = {figure.name: measure for measure in MEASURES for figure in measure.figures}
    names = [name for words in only for name in words.replace(",", " ").split()]
    if far:
        if names:
            raise InvalidInput("--latency is one measurement of its own: leave out --only")
        names = [latency.LATENCY.name]
    by_name = {measure.name: measure for measure in MEASURES} | home
    if not names:
        return [measure for measure in MEASURES if not measure.asked and not (quick and measure.heavy)]
    chosen: set[str] = set()
    for name in names:
        # claim is short for claim-1, claim-10 and so on
        found = [by_name[name]] if name in by_name else [each for each in MEASURES if each.name.startswith(f"{name}-")]
        if not found:
            raise InvalidInput(f"no figure has the name {name!r:.60}; there are: {', '.join(by_name)}")
        chosen.update(each.name for each in found)
    while True:
        needed = {
            home[figure.limit].name
            for measure in MEASURES if measure.name in chosen
            for figure in measure.figures if figure.limit
        }  # fmt: skip
        if needed <= chosen:
            return [measure for measure in MEASURES if measure.name in chosen]
        chosen |= needed


def measure(
    url: str | None = None,
    only: Sequence[str] = (),
    *,
    rounds: int | None = None,
    quick: bool = False,
    far: bool = False,
    sizes: Sizes | None = None,
    ids: int | None = None,
) -> Report:
    """Run the benchmark against the server at `url`, or an embedded one; stderr tells how far it is, on a terminal.

    `ids` is how many done tasks the measurement `seen` keeps.

    Raises `InvalidInput` for a wrong name, and what timeoutq raises when the server is away or refuses.
    """
    chosen = choose(only, quick=quick, far=far)
    sizes = sizes or (QUICK if quick else FULL)
    if ids is not None:
        if seen.SEEN not in chosen:
            raise InvalidInput("--ids is about the memory of done tasks: give --only seen as well")
        sizes = replace(sizes, seen=ids)
    rounds = rounds or (2 if quick else 3)
    steps = [
        (number, one) for number in range(1, rounds + 1) for one in chosen if number == 1 or not one.once
    ]  # fmt: skip
    taken: dict[str, list[float | None]] = {figure.name: [] for one in chosen for figure in one.figures}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with Ground(url, sizes) as ground, told(ground):
        for at, (number, one) in enumerate(steps):
            if sys.stderr.isatty():
                sys.stderr.write(f"{at + 1} of {len(steps)}, round {number} of {rounds}: {one.name}\n")
            ground.round = number
            found: Readings = one.take(ground)
            for figure in one.figures:
                taken[figure.name].append(found.get(figure.name))
        found_at = _about(ground, began, rounds)
    return Report(rows(chosen, taken), found_at)


def _about(ground: Ground, began: str, rounds: int) -> dict[str, Any]:
    libraries: dict[str, str | None] = {}
    for name in ("redis", "hiredis", "uvloop"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = None
    return {**about(ground, began), "rounds": rounds, **libraries}


# ---- what it comes to


def rows(chosen: Sequence[Measure], taken: Mapping[str, Sequence[float | None]]) -> list[Row]:
    """Make the lines of the table of what was read in each round."""
    once = {figure.name: one.once for one in chosen for figure in one.figures}
    found: dict[str, Row] = {}
    for figure in (figure for one in chosen for figure in one.figures):
        values = taken[figure.name]
        beside = _beside(taken, figure, len(values), once)
        found[figure.name] = _row(figure, values, beside)
    return [replace(row, met=_met(row, found)) for row in found.values()]


def _beside(
    taken: Mapping[str, Sequence[float | None]], figure: Figure, count: int, once: Mapping[str, bool]
) -> Sequence[float | None]:
    if figure.limit is None:
        return [None] * count
    limits = taken[figure.limit]
    return [limits[0 if once[figure.limit] else at] for at in range(count)] if limits else [None] * count


def _row(figure: Figure, values: Sequence[float | None], beside: Sequence[float | None]) -> Row:
    rounds: list[dict[str, float | None]] = []
    for value, limit in zip(values, beside, strict=True):
        both = None if value is None or not limit else value / limit
        rounds.append({"value": value, "limit": limit, "ratio": both})
    known = [value for value in values if value is not None]
    known_limits = [limit for limit in beside if limit is not None]
    ratios = [one["ratio"] for one in rounds if one["ratio"] is not None]
    value, low, high = _middle(known)
    middle, ratio_low, ratio_high = _middle(ratios)
    return Row(figure, value, low, high, _middle(known_limits)[0], middle, ratio_low, ratio_high, None, rounds)


def _middle(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return (median(values), min(values), max(values)) if values else (None, None, None)


def _met(row: Row, found: Mapping[str, Row]) -> bool | None:
    target = row.figure.target
    if target is None or row.value is None:
        return None
    if target.kind == "ratio":
        met = None if row.ratio is None else target.reached(row.ratio)
    elif target.kind == "above":
        met = None if row.limit is None else target.reached(row.value - row.limit)
    else:
        met = target.reached(row.value)
    if met is False and target.unless is not None:
        name, bound = target.unless
        excuse = found[name].value
        return excuse is not None and excuse >= bound
    return met


# ---- the table


COLUMNS = ("figure", "value", "unit", "low", "high", "limit", "limit value", "ratio", "ratio low", "ratio high",
           "target", "met")  # fmt: skip


def to_json(report: Report) -> dict[str, Any]:
    return {
        **report.about,
        "figures": [
            {
                "name": row.figure.name, "about": row.figure.about, "unit": row.figure.unit,
                **{name: getattr(row, name) for name in ("value", "low", "high")},
                "limit": row.figure.limit, "limit_value": row.limit,
                **{name: getattr(row, name) for name in ("ratio", "ratio_low", "ratio_high")},
                "target": aim(row.figure.target), "met": row.met, "rounds": list(row.rounds),
            }
            for row in report.rows
        ],
        "missed": report.missed,
    }  # fmt: skip


def lines(report: Report) -> list[tuple[str, ...]]:
    """Give the rows of the table as words, in the order of COLUMNS."""
    return [
        (
            row.figure.name, number(row.value), row.figure.unit, number(row.low), number(row.high),
            row.figure.limit or "-", number(row.limit), number(row.ratio), number(row.ratio_low),
            number(row.ratio_high), aim(row.figure.target) or "-", _MET[row.met],
        )
        for row in report.rows
    ]  # fmt: skip


_MET = {True: "met", False: "missed", None: "-"}


def aim(target: Target | None) -> str | None:
    """Write a target: its ratio with a × behind it, a value as it is, one above the limit with a + before it."""
    if target is None:
        return None
    mark = {"ratio": f"{target.bound:g}×", "value": f"{target.bound:,g}", "above": f"+{target.bound:g}"}[target.kind]
    return f"{target.sign} {mark}"


def show(report: Report) -> None:
    """Print the table: aligned on a terminal, lines of tabs elsewhere."""
    table = lines(report)
    if sys.stdout.isatty():
        table = [COLUMNS, *table]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        table = [tuple(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in table]
    for line in table:
        sys.stdout.write("\t".join(line) + "\n")
