"""Bugs of `bugs.json` that were written without looking at the tests, and how many of them the tests notice."""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rig.mutants import ALONE, EVERY, FILES, Mutant, Verdict, copy, planted, run
from tests.rig.processes import ROOT

ORDER = (
    "clock_steps wakes core_on_fakeredis again polite_why polite polite_names",
    "core core_details replay durations records polite_bounds polite_servers conversions groups",
    "odd_values repair ancestor cli_hosts",
    "transfer core_model",
)
"""The tests of the library, in the order in which they are asked: `test_NAME.py`."""

FIRST = {
    "verbs/beat.lua": "durations", "tasks.lua": "again wakes core_on_fakeredis", "failures.lua": "records",
    "find.lua": "repair", "verbs/repair.lua": "repair", "verbs/restore.lua": "transfer",
}  # fmt: skip
"""The tests that are asked before all others about a file."""

LUCK = 3
"""So many tests of a stage may fail where there is no bug, too: they are left out, and the stage is asked again."""


def failed_in(said: str) -> list[str]:
    """Give the tests that failed: what `pytest -ra` names at the end."""
    return re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", said, re.MULTILINE)


def run_tests(words: Sequence[str], tree: Path) -> tuple[int, str]:
    return run(["-m", "pytest", *ALONE, *words], tree, 600, STEPS="4000", SCHEDULES="300")


def ask(stages: Iterable[str], tree: Path) -> str | None:
    """Give the first test that fails in this tree, also alone, and passes where there is no bug."""
    for stage in stages:
        words = [FILES[f"test_{name}"] for name in stage.split()]
        for _ in range(LUCK):
            # one of the two servers is asked: they run the same functions
            code, said = run_tests(["-k", "not [redis", *words], tree)
            failed = failed_in(said)
            if not code or (not failed and said.startswith("still running")):
                break
            if failed and (run_tests(failed, ROOT)[0] or not run_tests(failed, tree)[0]):
                words += [word for name in failed for word in ("--deselect", name)]
                continue
            return (failed or [said[-200:]])[0]
    return None


def judge(mutant: Mutant) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder:
        copy(Path(folder))
        with planted(mutant, Path(folder)):
            first = [FIRST[mutant.file]] if mutant.file in FIRST else []
            return Verdict(mutant, ask([*first, *ORDER], Path(folder)), "", time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.wide", description="Bugs written blind.")
    parser.add_argument("--sample", type=int, help="only so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="so many beside each other (default: 1)")
    parser.add_argument("--named", default="", metavar="WORDS", help="only those with these words in their names")
    given = parser.parse_args()
    chosen = [mutant for mutant in EVERY if not mutant.killers and given.named in mutant.name]
    if given.sample:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    noticed = 0
    with ThreadPoolExecutor(given.at_once) as pool:
        for verdict in pool.map(judge, chosen):
            noticed += verdict.killed_by is not None
            print(f"{verdict.seconds:5.0f} s  {verdict.mutant.name}: {verdict.killed_by or 'NOT NOTICED'}", flush=True)
    print(f"{noticed} of {len(chosen)} noticed")
    return int(noticed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
