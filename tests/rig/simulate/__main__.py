"""The command: runs seeds, says which of them fail, and shows the smallest plan that fails with its transcript."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tests.rig.simulate import defects
from tests.rig.simulate.plan import WORKERS, Plan, planned

CHUNK = 10
"""Seeds that a process takes at once, unless the first that fails ends the command."""
AT_MOST = 200
SHOWN = 5
TAIL = 400

Result = tuple[int, str, int, str]
"""A seed, its violation or nothing, how many calls it made, and the digest of its transcript."""


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    given = _parser().parse_args(words)
    if given.put_back:
        at = words.index("--put-back")
        return defects.run_with(given.put_back, [*words[:at], *words[at + 2 :]])
    if given.seed is not None:
        return _show(given.seed, given.kind, whole=True)
    seeds = range(given.first, given.first + given.seeds)
    return _run(seeds, given.kind, given.jobs, given.digests, given.until_found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rig.simulate",
        description="Run whole workers in virtual time; one seed is one run. Ends with 1 if a seed breaks a rule: then "
        "the plan of that seed is made smaller, and shown with its transcript.",
    )
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="how many seeds to run (300)")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="the first seed (0)")
    parser.add_argument("--seed", type=int, metavar="K", help="run this seed only, and print its transcript")
    parser.add_argument("--kind", default="", choices=WORKERS, metavar="KIND", help="run this kind of worker only: "
        + ", ".join(WORKERS))  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many processes run seeds (2)")
    parser.add_argument("--digests", action="store_true", help="print the digest of each transcript")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed that fails")
    parser.add_argument(
        "--put-back", choices=sorted(defects.DEFECTS), metavar="D", help="put a defect into the code: "
        + "; ".join(f"{name}: {defect.what}" for name, defect in defects.DEFECTS.items()),
    )  # fmt: skip
    return parser


def _run(seeds: range, kind: str, jobs: int, digests: bool, until_found: bool) -> int:
    began = told = time.monotonic()
    failed: list[tuple[int, str]] = []
    done = calls = 0
    for seed, violation, made, digest in _results(seeds, kind, jobs, 1 if until_found else CHUNK):
        done, calls = done + 1, calls + made
        if digests:
            print(seed, digest, flush=True)
        if violation:
            failed.append((seed, violation))
            if len(failed) <= SHOWN:
                print(f"seed {seed}: {violation}", flush=True)
            if until_found:
                break
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{done:,} of {len(seeds):,} seeds, {done / (told - began):.1f} a second", flush=True)
    took = time.monotonic() - began
    print(
        f"{done:,} seeds in {took:.0f} s ({done / took:.1f} a second, {calls / max(1, done):.0f} calls each): "
        f"{len(failed)} violations"
    )
    if failed:
        _show_smallest(failed[0][0], kind)
    return 1 if failed else 0


def _results(seeds: range, kind: str, jobs: int, chunk: int) -> Iterator[Result]:
    several = partial(_several, kind=kind)
    chunks = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    if jobs <= 1:
        for some in chunks:
            yield from several(some)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=AT_MOST // chunk) as pool:
        for results in pool.imap(several, chunks):
            yield from results


def _several(seeds: range, kind: str) -> list[Result]:
    from tests.rig.simulate.world import play

    found: list[Result] = []
    for seed in seeds:
        outcome = play(planned(seed, kind))
        found.append((seed, outcome.violation, outcome.calls, outcome.digest))
    return found


def _show(seed: int, kind: str, *, whole: bool) -> int:
    from tests.rig.simulate.world import play

    plan = planned(seed, kind)
    _tell(plan)
    outcome = play(plan)
    print("\n".join(outcome.transcript if whole else outcome.transcript[-TAIL:]))
    print(f"seed {seed}: {outcome.violation or 'no violation'}; {outcome.calls} calls; {outcome.digest}")
    return 1 if outcome.violation else 0


def _show_smallest(seed: int, kind: str) -> None:
    from tests.rig.simulate.shrink import shrunk
    from tests.rig.simulate.world import play

    plan = shrunk(planned(seed, kind), lambda candidate: bool(play(candidate).violation))
    outcome = play(plan)
    print(f"\nthe smallest plan of seed {seed} that fails:")
    _tell(plan)
    print("\n".join(outcome.transcript[-TAIL:]))
    print(f"seed {seed}, made smaller: {outcome.violation}")


def _tell(plan: Plan) -> None:
    print(replace(plan, tasks=(), faults=(), calm=(), second=()))
    for part in (*plan.tasks, *plan.second, *plan.faults, *plan.calm):
        print(f"  {part}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # sets of bytes would come in another order in each process
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.rig.simulate", *sys.argv[1:]])
    sys.exit(main())
