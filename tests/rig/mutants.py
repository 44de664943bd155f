"""Bugs that were seeded into the scripts and the client, one at a time, to see that the tests notice each of them.

A mutant is one replacement in one file of the package, made in a copy of the tree in which a killer is then run: the
schedules of the model against a server, or tests by name. A copy serves one mutant after the other, so that Python
compiles only what has changed. `python -m tests.rig.mutants [name…]` prints what killed each; the tests do the same,
and fail when one survives.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.rig import seeded
from tests.rig.seeded import POLITE_SCHEDULES, PROPERTIES, ROOT, SCHEDULES, Mutant

UNUSED = ("cacheprovider", "randomly", "anyio", "platformdirs", "valkey", "xdist.looponfail")
"""Plugins that take a good part of the time of a short run, and that no killer needs."""
ALONE = (*(f"-pno:{name}" for name in UNUSED), "-x", "-q", "-n", "0", "--timeout", "60")
"""One test after the other, until one fails, or hangs."""

MUTANTS: list[Mutant] = [
    mutant
    for found in pkgutil.iter_modules(seeded.__path__)
    for mutant in importlib.import_module(f"tests.rig.seeded.{found.name}").MUTANTS
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killed_by: str | None
    said: str
    seconds: float


def copy(tree: Path) -> None:
    """Copy the package and its tests."""
    skip = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("timeoutq", "tests", "demo", ".github"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for file in ("pyproject.toml", "README.md", "docker-compose.yml"):
        shutil.copy(ROOT / file, tree / file)


@contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Have the bug in a copy until the end of the block."""
    path = tree / "timeoutq" / mutant.file
    text, times = path.read_text("utf-8"), path.stat()
    assert text.count(mutant.old) >= 1, f"{mutant.name}: {mutant.file} has changed, and the bug has no place in it"
    path.write_text(text.replace(mutant.old, mutant.new, 1), "utf-8")
    try:
        yield
    finally:
        path.write_text(text, "utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        shutil.rmtree(tree / ".hypothesis", ignore_errors=True)  # what one mutant has shown is not tried on the next


def command(killer: str) -> list[str]:
    """Give the command of a killer; it succeeds where there is no bug."""
    if killer.startswith(SCHEDULES):
        return [
            sys.executable,
            "-m",
            "tests.rig.schedules",
            "600" if killer == SCHEDULES else "100",
            *killer.split()[1:],
        ]
    file, _, name = killer.partition(" -k ")
    return [sys.executable, "-m", "pytest", *ALONE, "-m", "", *file.split(), "-k", name]


def run(killer: str, tree: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a killer in a tree, with these settings in its environment."""
    return subprocess.run(
        command(killer),
        cwd=tree,
        env=_environment(tree, settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def _environment(tree: Path, settings: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CI")}
    environment |= {"PYTHONPATH": str(tree), "NO_SHRINK": "1", **settings}
    environment["CANARY"] = "of-mutants"  # a test that fails shows its values
    return environment


def run_tests(files: Sequence[str], tree: Path, seconds: float = 400) -> tuple[int, str]:
    """Run files of tests in a tree until one test fails; give the exit code, and what was said. A hang is a failure."""
    words = [sys.executable, "-m", "pytest", *ALONE, "-m", "", *files]
    settings = {"STEPS": "4000", "SCHEDULES": "300"}
    with subprocess.Popen(
        words,
        cwd=tree,
        env=_environment(tree, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 1, f"still running after {seconds:g} s"
    return process.returncode, said


def spared(at_once: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run a killer of each file where there is no bug, some at once: they must succeed, or nothing was killed by them.

    All of them succeed wherever the tests are run; these show that they do so in a copy, with the settings of killers.
    """
    played = (SCHEDULES, POLITE_SCHEDULES, PROPERTIES)
    of_files: dict[str, str] = {}
    for killer in sorted({killer for mutant in MUTANTS for killer in mutant.killers}.difference(played)):
        of_files.setdefault(killer.partition(" -k ")[0], killer)
    killers = [*played, *of_files.values()]
    with tempfile.TemporaryDirectory(prefix="timeoutq-mutant-") as folder, ThreadPoolExecutor(at_once) as pool:
        copy(Path(folder))
        return [*pool.map(lambda killer: run(killer, Path(folder), STEPS="400"), killers)]


def judge(mutant: Mutant, tree: Path) -> Verdict:
    """See whether anything notices the bug in a copy."""
    began = time.monotonic()
    said = ""
    with planted(mutant, tree):
        for killer in mutant.killers:
            done = run(killer, tree)
            said = done.stdout + done.stderr
            # 1: a difference or a failed test; anything else means that the killer itself could not run
            if done.returncode == 1 and ("Differs" in said or " failed" in said or " error" in said):
                return Verdict(mutant, killer, said, time.monotonic() - began)
            if done.returncode:
                break
    return Verdict(mutant, None, said, time.monotonic() - began)


def judge_all(mutants: Sequence[Mutant] = MUTANTS, at_once: int = 2) -> Iterator[Verdict]:
    """Judge many, some at once, each in a copy; give the verdicts in the order of the mutants."""
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
    """Print what killed each; give how many survive."""
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    survivors = 0
    for verdict in judge_all(chosen):
        survivors += verdict.killed_by is None
        print(f"{verdict.seconds:5.1f} s  {verdict.mutant.name}: {verdict.killed_by or 'SURVIVES'}", flush=True)
        if verdict.killed_by is None:
            print(verdict.said[-2000:])
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return survivors


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
