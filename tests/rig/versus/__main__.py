"""The command: runs the rounds, and prints the table of ratios."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

LOAD = Path(__file__).with_name("load.py")
LEAST = 0.95
"""No row may be worse than this, beyond what the A/A comparison strays by itself."""

Series = dict[str, list[float]]
"""By row: microseconds per task, one for each round."""


def once(tree: Path) -> dict[str, float]:
    """Run one round in a tree; give each row's microseconds per task."""
    done = subprocess.run(
        [sys.executable, "-P", str(LOAD)], env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the load failed in {tree}:\n{done.stderr}")
    costs: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return {f"{part}: {side}": cost[i] for part, cost in costs.items() for i, side in enumerate(("server", "client"))}


def rounds(old: Path, new: Path, count: int) -> list[Series]:
    """Run the rounds: OLD, OLD again and NEW in each, in an order that alternates."""
    series: list[Series] = [defaultdict(list) for _ in range(3)]
    trees = list(enumerate((old, old, new)))
    for number in track(range(count), "rounds", console=Console(stderr=True)):
        shift = number % 3
        for which, tree in trees[shift:] + trees[:shift]:
            for row, cost in once(tree).items():
                series[which][row].append(cost)
    return series


def ratio(before: Sequence[float], after: Sequence[float]) -> float:
    """Give how much speed is left: the median of the rounds' ratios, above 1 when it became quicker."""
    return median(b / a for b, a in zip(before, after, strict=True))


def stray(first: Sequence[float], second: Sequence[float]) -> float:
    """Give how far half of the rounds' ratios of A/A lie from 1, at least."""
    return median(abs(1 - b / a) for b, a in zip(first, second, strict=True))


def main() -> int:
    """Compare; exit 1 when a row became worse."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.rig.versus",
        description="Compare two trees of timeoutq by processor time per task. Rows above 1.00 became quicker.",
    )
    parser.add_argument("old", type=Path, help="checkout of the commit before")
    parser.add_argument("new", type=Path, help="checkout of the commit after")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of each tree (default: 7)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    words = parser.parse_args()
    for tree in (words.old, words.new):
        if not (tree / "timeoutq" / "__init__.py").exists():
            parser.error(f"{tree} is no checkout of timeoutq")
    first, second, new = rounds(words.old.resolve(), words.new.resolve(), words.rounds)
    table = Table("part", "old µs", "new µs", "A/B", "A/A", "A/A strays", "", title="processor time per task")
    rows: list[dict[str, object]] = []
    worse = False
    for row, before in first.items():
        gain = (ratio(before, new[row]) + ratio(second[row], new[row])) / 2
        same, noise = ratio(before, second[row]), stray(before, second[row])
        bad = gain < LEAST - noise
        worse |= bad
        rows.append({"part": row, "old": median(before), "new": median(new[row]), "ratio": gain, "same": same,
                     "strays": noise, "worse": bad})  # fmt: skip
        table.add_row(row, f"{median(before):.1f}", f"{median(new[row]):.1f}", f"{gain:.3f}", f"{same:.3f}",
                      f"{noise:.3f}", "worse" if bad else "")  # fmt: skip
    if words.json:
        print(json.dumps(rows, indent=1))
    else:
        Console(width=120).print(table)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
