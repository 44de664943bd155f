"""The command: runs the rounds, and prints the table of ratios."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from timeoutq.server.embedded import EmbeddedServer

LOAD = Path(__file__).with_name("load.py")
TURNS = 3
"""How often each tree runs a part in a round; the median counts."""
MORE = 3
"""A part with a row that looks worse is measured for so many times as many rounds; all of them count."""
LEAST = 0.95
"""No row may be worse than this, beyond what the A/A comparison strays by itself."""

HEAD = ("part", "rounds", "old µs", "new µs", "A/B", "A/A", "A/A strays", "")

Series = dict[str, list[float]]
"""By row: microseconds per task, one for each round."""


class Side:
    """The load in one tree: a process with a server of its own, idle while the others run."""

    def __init__(self, tree: Path) -> None:
        """Start it; it has run each part once when it names them."""
        self._server = EmbeddedServer().start()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(LOAD), self._server.url], env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._tree = tree
        self.parts: list[str] = self._answer()
        self.costs: Series = defaultdict(list)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the load failed in {self._tree}")
        return json.loads(line)

    def once(self, part: int) -> list[float]:
        """Run a part; give the microseconds per task of the server and of the client."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{part}\n")
        self._process.stdin.flush()
        return [float(cost) for cost in self._answer()]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._server.stop()


def compare(old: Path, new: Path, count: int, only: str = "") -> list[Row]:
    """Run the rounds: OLD, OLD again and NEW, in turns of a fraction of a second and in an order that alternates."""
    sides: list[Side] = []
    try:
        sides += [Side(tree) for tree in (old, old, new)]
        names = sides[0].parts
        chosen = [part for part, name in enumerate(names) if only in name]
        for number in track(range(count), "rounds", console=Console(stderr=True)):
            for part in chosen:
                measure(sides, part, number)
        found = judged(sides)
        again = [part for part in chosen if any(row.worse for row in found if row.of(names[part]))]
        for number in track(range(count, count * MORE), f"{len(again)} parts again", console=Console(stderr=True)):
            for part in again:
                measure(sides, part, number)
        return judged(sides)
    finally:
        for side in sides:
            side.close()


def measure(sides: Sequence[Side], part: int, number: int) -> None:
    turns: list[list[list[float]]] = [[] for _ in sides]
    for turn in range(TURNS):
        shift = (number + turn) % 3
        for which in (*range(shift, 3), *range(shift)):
            turns[which].append(sides[which].once(part))
    for side, costs in zip(sides, turns, strict=True):
        for row, of_row in zip(("server", "client"), zip(*costs, strict=True), strict=True):
            side.costs[f"{side.parts[part]}: {row}"].append(median(of_row))


@dataclass(frozen=True, slots=True)
class Row:
    """The rounds of one part, by the processor time of the server or of the client."""

    part: str
    rounds: int
    old: float
    new: float
    ratio: float
    same: float
    strays: float
    worse: bool

    def of(self, name: str) -> bool:
        return self.part.rpartition(": ")[0] == name


def judged(sides: Sequence[Side]) -> list[Row]:
    first, second, new = (side.costs for side in sides)
    rows: list[Row] = []
    for part, before in first.items():
        gain = (ratio(before, new[part]) + ratio(second[part], new[part])) / 2
        same, noise = ratio(before, second[part]), stray(before, second[part])
        rows.append(Row(part, len(before), median(before), median(new[part]), gain, same, noise, gain < LEAST - noise))
    return rows


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
        description="Compare two trees of timeoutq by processor time per task. Rows above 1.00 became quicker. Parts "
        f"that look worse are measured for {MORE} times as many rounds, and all rounds count.",
    )
    parser.add_argument("old", type=Path, help="checkout of the commit before")
    parser.add_argument("new", type=Path, help="checkout of the commit after")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of each tree (default: 7)")
    parser.add_argument("--only", default="", metavar="WORD", help="only the parts whose name holds this word")
    parser.add_argument("--json", action="store_true", help="print JSON")
    words = parser.parse_args()
    for tree in (words.old, words.new):
        if not (tree / "timeoutq" / "__init__.py").exists():
            parser.error(f"{tree} is no checkout of timeoutq")
    rows = compare(words.old.resolve(), words.new.resolve(), words.rounds, words.only)
    if words.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        table = Table(*HEAD, title="processor time per task")
        for row in rows:
            table.add_row(
                row.part, str(row.rounds), f"{row.old:.1f}", f"{row.new:.1f}", f"{row.ratio:.3f}", f"{row.same:.3f}",
                f"{row.strays:.3f}", "worse" if row.worse else "",
            )  # fmt: skip
        Console(width=120).print(table)
    return int(any(row.worse for row in rows))


if __name__ == "__main__":
    sys.exit(main())
