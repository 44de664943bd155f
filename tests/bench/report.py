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
from tests.bench.ground import FULL, QUICK, Figure, Ground, Measure, Readings, Sizes, told
from timeoutq.cli.bench import about, number
from timeoutq.words.errors import InvalidInput

# each limit stands right before the figures that are compared with it
MEASURES: Sequence[Measure] = (
    limits.ping, limits.evalsha, clients.put_one, limits.sadd, clients.put_bulk,
    limits.BARE_100_APART, limits.BARE_100, clients.claim, workers.WORKER, workers.WORKER_2,
    calls.run_calls, workers.WORKER_DEF, workers.PICKUP, calls.put_calls, calls.wait_for_results,
    workers.COLD, workers.late, workers.killed, workers.idle, clients.requeue, clients.memory, clients.starts,
    hosts.polite, hosts.fair, workers.burst, clients.growth, hosts.claims,
    gateway.claim_one, gateway.claim_batches, gateway.put_lines, gateway.polls, gateway.with_log,
    pauses.pauses, seen.seen, latency.latency,
)  # fmt: skip
Row = dict[str, Any]
"""A line of the table: the names of COLUMNS, and what was read and met; and what each round gave."""


@dataclass(frozen=True, slots=True)
class Report:
    rows: Sequence[Row]
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def missed(self) -> list[str]:
        return [row["name"] for row in self.rows if row["met"] is False]


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
        names = [latency.latency.name]
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
        if seen.seen not in chosen:
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
    once = {figure.name for one in chosen if one.once for figure in one.figures}
    found: dict[str, Row] = {}
    for figure in (figure for one in chosen for figure in one.figures):
        values, limits = taken[figure.name], taken.get(figure.limit or "") or [None] * len(taken[figure.name])
        rounds: list[dict[str, float | None]] = []
        for at, value in enumerate(values):
            limit = limits[0 if figure.limit in once else at]
            ratio = None if value is None or not limit else value / limit
            rounds.append({"value": value, "limit": limit, "ratio": ratio})
        value, low, high = _middle([one["value"] for one in rounds])
        ratio, ratio_low, ratio_high = _middle([one["ratio"] for one in rounds])
        row = found[figure.name] = {
            "name": figure.name, "about": figure.about, "unit": figure.unit, "value": value, "low": low, "high": high,
            "limit": figure.limit, "limit_value": _middle([one["limit"] for one in rounds])[0],
            "ratio": ratio, "ratio_low": ratio_low, "ratio_high": ratio_high,
            "target": figure.target, "met": None, "rounds": rounds,
        }  # fmt: skip
        row["met"] = _met(figure, row)
    for figure in (figure for one in chosen for figure in one.figures if figure.unless):
        name, bound = figure.unless or ("", 0)
        if found[figure.name]["met"] is False:
            found[figure.name]["met"] = (found[name]["value"] or 0) >= bound
    return [*found.values()]


def _middle(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    known = [value for value in values if value is not None]
    return (median(known), min(known), max(known)) if known else (None, None, None)


def _met(figure: Figure, row: Row) -> bool | None:
    if figure.target is None or row["value"] is None:
        return None
    sign, bound = figure.target.split()
    if bound.endswith("×"):
        reached = row["ratio"]
    elif bound.startswith("+"):
        reached = None if row["limit_value"] is None else row["value"] - row["limit_value"]
    else:
        reached = row["value"]
    if reached is None:
        return None
    most = float(bound.strip("×+").replace(",", ""))
    return bool(reached >= most if sign == "≥" else reached <= most)


# ---- the table


COLUMNS = ("name", "value", "unit", "low", "high", "limit", "limit_value", "ratio", "ratio_low", "ratio_high",
           "target", "met")  # fmt: skip


def to_json(report: Report) -> dict[str, Any]:
    return {**report.about, "figures": list(report.rows), "missed": report.missed}


def show(report: Report) -> None:
    """Print the table: aligned on a terminal, lines of tabs elsewhere."""
    table = [[_word(row[name]) for name in COLUMNS] for row in report.rows]
    if sys.stdout.isatty():
        table = [[name.replace("_", " ") for name in COLUMNS], *table]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        table = [[word.ljust(width) for word, width in zip(row, widths, strict=True)] for row in table]
    for line in table:
        sys.stdout.write("\t".join(line) + "\n")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "met" if value else "missed"
    return value or "-" if isinstance(value, str) else number(value)
