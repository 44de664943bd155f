"""Several hundred bugs that were written without looking at the tests, and how many of them the tests notice.

`python -m tests.rig.wide [--sample N] [area…]` plants each bug of `wide.json` in a copy of the tree and runs the tests
of its area, the quick ones first, until one fails that passes where there is no bug. A bug that nobody notices is a gap
in the tests, or changes nothing: then `wide.json` says why (`equivalent`), and the bug does not count. The hundred or
so of `mutants.py` have killers by name and run in the slower tier; these take some hours.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.rig.mutants import copy, planted, run_tests
from tests.rig.seeded import FILES, ROOT, Mutant

ORDER: Mapping[str, Sequence[str]] = {
    "lua": [
        "scripts clock_steps wakes core_on_fakeredis again",
        "core core_details replay durations records",
        "odd_values repair ancestor polite",
        "transfer core_model",
    ],
    "hosts": [
        "wakes polite_why polite polite_names",
        "polite_bounds polite_servers groups",
        "cli_hosts polite_walk core_model",
    ],
    "worker": [
        "pace worker_decisions handlers retry handler_shapes heartbeat",
        "worker worker_life worker_records worker_exchanges worker_stuck worker_losses testing_run again",
        "worker_processes",
    ],
    "processes": [
        "endings roster ledger logs serving",
        "supervisor systemd worker_processes",
        "cli worker worker_life worker_records worker_losses",
    ],
    "transport": [
        "links core_on_fakeredis bad_input",
        "tls core_servers core core_details",
        "faults heavy hostile_arguments",
    ],
    "faces": [
        "text parity cli cli_words cli_queues transfer",
        "doctor health dashboard testing",
        "walks hostile_text why_precedence polite_why",
        "cli_hosts dashboard_hosts replay",
    ],
}
"""The tests of each area, in the order in which they are asked: `test_NAME.py`."""

FIRST: Mapping[str, str] = {
    "server/address.py": "tls bad_input replay",
    "server/connection.py": "links",
    "client/driving.py": "core replay",
    "verbs/flows.py": "core replay",
    "rooms/hosts/flows.py": "polite",
    "server/link.py": "links",
    "lua/verbs/beat.lua": "durations",
    "lua/tasks.lua": "again wakes core_on_fakeredis",
    "lua/failures.lua": "records",
    "lua/find.lua": "repair",
    "lua/verbs/repair.lua": "repair",
    "lua/verbs/restore.lua": "transfer",
    "client/methods.py": "core replay",
    "server/patience.py": "faults",
    "verbs/reads.py": "core walks",
    "verbs/sending.py": "core replay",
    "words/standing.py": "standing",
    "server/troubles.py": "tls core_servers",
    "server/wire.py": "links",
    "watch/doctor.py": "doctor health",
    "watch/facts.py": "doctor health",
    "watch/draw.py": "dashboard dashboard_hosts",
    "watch/metrics.py": "dashboard health",
    "watch/snapshot.py": "dashboard",
}
"""The tests that are asked before all others about a file of the package."""


LUCK = 3
"""So many tests of a stage may fail where there is no bug, too: they are left out, and the stage is asked again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a bug: the test that noticed it, or None."""

    name: str
    area: str
    noticed_by: str | None
    seconds: float


def read() -> list[tuple[str, Mutant, str]]:
    """Give the bugs with their areas, and why a bug changes nothing, or ''."""
    rows: list[dict[str, str]] = json.loads((Path(__file__).parent / "wide.json").read_text("utf-8"))
    return [
        (row["area"], Mutant(row["name"], row["file"], row["old"], row["new"]), row.get("equivalent", ""))
        for row in rows
    ]


def failed_in(said: str) -> list[str]:
    """Give the tests that failed: what `pytest -ra` names at the end."""
    return re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", said, re.MULTILINE)


def ask(stages: Iterable[str], tree: Path) -> str | None:
    """Give the first test that fails in this tree, also alone, and passes where there is no bug."""
    for stage in stages:
        files = [FILES[f"test_{name}"] for name in stage.split()]
        for _ in range(LUCK):
            # one of the two servers is asked: they run the same scripts
            code, said = run_tests(["-p", "no:randomly", "--timeout", "60", "-k", "not [redis", *files], tree, 600)
            if not code:
                break
            failed = failed_in(said)
            if not failed and said.startswith("still running"):
                break  # a test that hangs fails by its own limit; the machine had no time for these
            if failed and (run_tests(failed, ROOT)[0] or not run_tests(failed, tree)[0]):
                files += [word for name in failed for word in ("--deselect", name)]
                continue
            return (failed or [said[-200:]])[0]
    return None


def judge(area: str, mutant: Mutant) -> Verdict:
    """See whether a test of its area notices a bug."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder:
        copy(Path(folder))
        first = [FIRST[mutant.file]] if mutant.file in FIRST else []
        with planted(mutant, Path(folder)):
            return Verdict(mutant.name, area, ask([*first, *ORDER[area]], Path(folder)), time.monotonic() - began)


def judge_all(chosen: Sequence[tuple[str, Mutant]], at_once: int = 1) -> Iterator[Verdict]:
    """Judge many, some at once."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda each: judge(*each), chosen)


def main() -> int:
    """Print what noticed each; give 1 if any was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.wide", description="Bugs written blind.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help="only these areas")
    parser.add_argument("--sample", type=int, help="only so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="so many beside each other (default: 1)")
    parser.add_argument("--named", default="", metavar="WORDS", help="only those with these words in their names")
    given = parser.parse_args()
    chosen = list[tuple[str, Mutant]]()
    for area, mutant, equivalent in read():
        if (given.areas and area not in given.areas) or given.named not in mutant.name:
            continue
        if equivalent:
            print(f"changes nothing: {mutant.name}: {equivalent}")
        else:
            chosen.append((area, mutant))
    gone = [
        mutant.name for _, mutant in chosen if mutant.old not in (ROOT / "timeoutq" / mutant.file).read_text("utf-8")
    ]
    for name in gone:
        print(f"has no place any more: {name}")
    chosen = [each for each in chosen if each[1].name not in gone]
    if given.sample:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    noticed, all_of = Counter[str](), Counter[str]()
    for verdict in judge_all(chosen, given.at_once):
        all_of[verdict.area] += 1
        noticed[verdict.area] += verdict.noticed_by is not None
        print(f"{verdict.seconds:5.0f} s  {verdict.name}: {verdict.noticed_by or 'NOT NOTICED'}", flush=True)
    for area, count in all_of.items():
        print(f"{area}: {noticed[area]} of {count}")
    print(f"{noticed.total()} of {all_of.total()} noticed")
    return int(noticed.total() < all_of.total())


if __name__ == "__main__":
    sys.exit(main())
