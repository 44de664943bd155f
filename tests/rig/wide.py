"""Several hundred bugs that were written without looking at the tests, and how many of them the tests notice.

`python -m tests.rig.wide [--sample N] [area…]` plants each bug of `wide.json` in a copy of the tree and runs the tests
of its area, the quick ones first, until one fails. A bug that nobody notices is a gap in the tests, or changes nothing.
The hundred or so of `mutants.py` have killers by name and run in the slower tier; these take an hour or more.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.rig.beside import CORES
from tests.rig.mutants import ROOT, Mutant, plant, run_tests

ORDER: Mapping[str, Sequence[str]] = {
    "lua": [
        "core_on_fakeredis wakes scripts",
        "core core_details again replay",
        "repair transfer ancestor",
        "core_model",
    ],
    "hosts": [
        "polite polite_names polite_why wakes",
        "polite_bounds polite_servers cli_hosts",
        "polite_walk core_model",
    ],
    "worker": [
        "handlers retry handler_shapes",
        "worker worker_life worker_records worker_exchanges",
        "worker_processes",
    ],
    "processes": ["endings ledger logs serving", "supervisor systemd worker_processes", "cli worker"],
    "transport": ["links bad_input hostile_arguments heavy", "tls core_servers faults", "core_on_fakeredis"],
    "faces": ["text parity cli cli_words cli_queues transfer", "doctor health dashboard testing", "walks hostile_text"],
}
"""The tests of each area, in the order in which they are asked: `tests/test_NAME.py`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a bug: the test that noticed it, or None."""

    name: str
    area: str
    noticed_by: str | None
    seconds: float


def read() -> list[tuple[str, Mutant]]:
    """Give the bugs with their areas."""
    rows: list[dict[str, str]] = json.loads((Path(__file__).parent / "wide.json").read_text("utf-8"))
    return [(row["area"], Mutant(row["name"], row["file"], row["old"], row["new"])) for row in rows]


def judge(area: str, mutant: Mutant) -> Verdict:
    """See whether a test of its area notices a bug."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder:
        tree = Path(folder)
        plant(mutant, tree)
        for stage in ORDER[area]:
            files = [f"tests/test_{name}.py" for name in stage.split()]
            code, said = run_tests(files, tree)
            if code:
                failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return Verdict(mutant.name, area, (failed or [said[-200:]])[0], time.monotonic() - began)
    return Verdict(mutant.name, area, None, time.monotonic() - began)


def judge_all(chosen: Sequence[tuple[str, Mutant]], at_once: int = CORES) -> Iterator[Verdict]:
    """Judge many, some at once."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda each: judge(*each), chosen)


def main() -> int:
    """Print what noticed each; give 1 if any was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.wide", description="Bugs written blind.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help="only these areas")
    parser.add_argument("--sample", type=int, help="only so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chosen = [(area, mutant) for area, mutant in read() if not given.areas or area in given.areas]
    gone = [
        mutant.name for _, mutant in chosen if mutant.old not in (ROOT / "timeoutq" / mutant.file).read_text("utf-8")
    ]
    for name in gone:
        print(f"has no place any more: {name}")
    chosen = [each for each in chosen if each[1].name not in gone]
    if given.sample:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    noticed, all_of = Counter[str](), Counter[str]()
    for verdict in judge_all(chosen):
        all_of[verdict.area] += 1
        noticed[verdict.area] += verdict.noticed_by is not None
        print(f"{verdict.seconds:5.0f} s  {verdict.name}: {verdict.noticed_by or 'NOT NOTICED'}", flush=True)
    for area, count in all_of.items():
        print(f"{area}: {noticed[area]} of {count}")
    print(f"{noticed.total()} of {all_of.total()} noticed")
    return int(noticed.total() < all_of.total())


if __name__ == "__main__":
    sys.exit(main())
