"""Plants the bugs of `bugs.json` in copies of the tree, one at a time: a test must notice each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.rig.processes import ROOT

SCHEDULES = "schedules"
FILES = {path.stem: path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
"""Where each file of tests is: no two files have the same name."""
UNUSED = ("cacheprovider", "randomly", "anyio", "platformdirs", "valkey", "xdist.looponfail")
"""Plugins that take a good part of the time of a short run, and that no killer needs."""
ALONE = (*(f"-pno:{name}" for name in UNUSED), "-x", "-q", "-n", "0", "--timeout", "60", "-m", "")
"""One test after the other, until one fails, or hangs."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, and what is expected to notice it: nothing in particular if it has no killers."""

    name: str
    file: str
    old: str
    new: str
    killers: Sequence[str] = ()

    @property
    def path(self) -> Path:
        return Path("timeoutq", "lua", self.file)


EVERY = [Mutant(**row) for row in json.loads((Path(__file__).parent / "bugs.json").read_text("utf-8"))]
MUTANTS = [mutant for mutant in EVERY if mutant.killers]


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    killed_by: str | None
    said: str
    seconds: float


def copy(tree: Path) -> None:
    skip = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("timeoutq", "tests", "demo", ".github"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for file in ("pyproject.toml", "README.md", "docker-compose.yml"):
        shutil.copy(ROOT / file, tree / file)


@contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    path = tree / mutant.path
    text = path.read_text("utf-8")
    assert text.count(mutant.old) >= 1, f"{mutant.name}: {mutant.file} has changed, and the bug has no place in it"
    path.write_text(text.replace(mutant.old, mutant.new, 1), "utf-8")
    try:
        yield
    finally:
        path.write_text(text, "utf-8")
        shutil.rmtree(tree / ".hypothesis", ignore_errors=True)  # what one bug has shown is not tried on the next


def command(killer: str) -> list[str]:
    """Give the command of a killer, which succeeds where there is no bug: `schedules`, or a file and names in it."""
    if killer.startswith(SCHEDULES):
        return ["-m", "tests.rig.schedules", "600" if killer == SCHEDULES else "100", *killer.split()[1:]]
    file, _, name = killer.partition(" -k ")
    return ["-m", "pytest", *ALONE, FILES[file], "-k", name]


def run(words: Sequence[str], tree: Path, seconds: float = 900, **settings: str) -> tuple[int, str]:
    """Run Python in a tree; give the exit code, and what was said. A hang is a failure."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CI")}
    # a test that fails shows its values, but not the canary
    environment |= {"PYTHONPATH": str(tree), "NO_SHRINK": "1", "CANARY": "of-mutants", **settings}
    with subprocess.Popen(
        [sys.executable, *words], cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 1, f"still running after {seconds:g} s"
    return process.returncode, said


def spared(at_once: int = 2) -> list[tuple[int, str]]:
    """Run a killer of each file in a copy without a bug: all must succeed, or nothing was killed by them."""
    of_files = {killer.partition(" -k ")[0]: killer for mutant in MUTANTS for killer in mutant.killers}
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder, ThreadPoolExecutor(at_once) as pool:
        copy(Path(folder))
        return [*pool.map(lambda killer: run(command(killer), Path(folder), STEPS="400"), of_files.values())]


def judge(mutant: Mutant, tree: Path) -> Verdict:
    began = time.monotonic()
    said = ""
    with planted(mutant, tree):
        for killer in mutant.killers:
            code, said = run(command(killer), tree)
            # 1: a difference or a failed test; anything else means that the killer itself could not run
            if code == 1 and ("Differs" in said or " failed" in said or " error" in said):
                return Verdict(mutant, killer, said, time.monotonic() - began)
            if code:
                break
    return Verdict(mutant, None, said, time.monotonic() - began)


def judge_all(mutants: Sequence[Mutant] = MUTANTS, at_once: int = 2) -> Iterator[Verdict]:
    """Judge many, some at once, each in a copy; give the verdicts in the order of the bugs."""
    free = SimpleQueue[Path]()
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder, ThreadPoolExecutor(at_once) as pool:
        for number in range(at_once):
            copy(Path(folder, str(number)))
            free.put(Path(folder, str(number)))

        def judged(mutant: Mutant) -> Verdict:
            tree = free.get()
            try:
                return judge(mutant, tree)
            finally:
                free.put(tree)

        yield from pool.map(judged, mutants)


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    survivors = 0
    for verdict in judge_all(chosen):
        survivors += verdict.killed_by is None
        print(f"{verdict.seconds:5.1f} s  {verdict.mutant.name}: {verdict.killed_by or 'SURVIVES'}", flush=True)
        if verdict.killed_by is None:
            print(verdict.said[-2000:])
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return min(1, survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
