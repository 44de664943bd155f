"""What the tests say of the oldest, the pinned and the newest versions, on every Python of this machine.

`python -m tests.drift` makes a new environment for each of them, runs the everyday tests in it, and prints a row. Where
tests fail, the row names which package broke which file, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests import pins

ASKED = {  # the lowest versions that the floors allow; what the extra `test` installs; what PyPI has today
    "oldest": ["--resolution", "lowest-direct", *pins.TESTED],
    "pinned": ["--extra", "test"],
    "newest": ["--resolution", "highest", *pins.TESTED],
}
Versions = Mapping[str, str]


def pythons(allowed: SpecifierSet) -> dict[str, Path]:
    """Find the Pythons that timeoutq allows, on PATH and among those of pyenv: of each minor version the newest."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += Path.home().glob(".pyenv/versions/*/bin")
    found: dict[tuple[int, ...], Path] = {}
    for path in (path for folder in folders for path in folder.glob("python3.*")):
        if not re.fullmatch(r"python3\.\d+", path.name):
            continue
        ask = [str(path), "-c", "import platform; print(platform.python_version())"]
        version = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
        if re.fullmatch(r"[\d.]+", version) and version in allowed:  # a shim of pyenv may lead nowhere
            found.setdefault(tuple(map(int, version.split("."))), path)
    newest = {numbers[:2]: numbers for numbers in sorted(found)}
    return {".".join(map(str, numbers)): found[numbers] for numbers in newest.values()}


def versions(which: str, python: Path) -> Versions:
    """Ask which version of each package belongs into an environment."""
    lines = pins.resolved("--python", str(python), *ASKED[which])
    return dict(line.split("==", 1) for line in lines)


def install(wanted: Versions, python: Path) -> None:
    """Make the environment hold these versions and nothing else."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in wanted.items())
        file.flush()
        pins.uv("pip", "sync", "--quiet", "--no-build", "--python", str(python), file.name)


def failing(said: str, files: Sequence[str]) -> list[str]:
    """Give the files of which pytest's summary tells a failure; all files, if it tells of none."""
    told = re.findall(r"^(?:FAILED|ERROR) ([^\s:]+\.py)", said, re.MULTILINE)
    return sorted(set(told)) or list(files)


def run(python: Path, files: Sequence[str], workers: int) -> list[str]:
    """Run the tests of these files, and give the files that fail."""
    ask = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-n",
        str(workers),
        *files,
    ]
    ran = subprocess.run(ask, cwd=pins.ROOT, capture_output=True, text=True, check=False)
    if ran.returncode in (0, 5):  # 5: all tests of these files belong to the slower tier
        return []
    said = ran.stdout + ran.stderr
    print(said[-20000:], file=sys.stderr, flush=True)
    return failing(said, files)


def differing(these: Versions, those: Versions, first: Sequence[str] = ()) -> list[str]:
    """Name the packages whose version is not the same, those that are asked for by name first."""
    names = [name for name in sorted({*these, *those}) if these.get(name) != those.get(name)]
    return sorted(names, key=lambda name: name not in first)


def mixed(these: Versions, pinned: Versions, names: Sequence[str]) -> Versions:
    """Give these versions, but of the named packages those that are pinned."""
    wanted = {name: version for name, version in these.items() if name not in names}
    return wanted | {name: pinned[name] for name in names if name in pinned}


def breaker(names: Sequence[str], passes: Callable[[Sequence[str]], bool]) -> str | None:
    """Find the package without whose pinned version the tests fail; None if they fail with all versions pinned.

    More and more of the packages are given their pinned version: the last one that is needed broke the tests.
    """
    if not passes(names):
        return None
    low, high = 0, len(names)  # they fail with `low` pinned, and pass with `high` pinned
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(names[:middle]) else (middle, high)
    return names[high - 1]


def blamed(file: str, python: Path, these: Versions, pinned: Versions, names: Sequence[str]) -> str:
    """Say which package broke a file of tests."""

    def passes(some: Sequence[str]) -> bool:
        install(mixed(these, pinned, some), python)
        return not run(python, [file], 0)

    broke = breaker(names, passes) if names else None
    if broke is None:
        return f"{file}: it fails with the pinned versions, too"
    return f"{file}: {broke} {these.get(broke, '(not there)')}; with {pinned.get(broke, 'none')} it passes"


def cell(title: str, which: str, base: Path, files: Sequence[str], workers: int) -> bool:
    """Run the tests in a new environment, print its row, and say whether they passed.

    Where the newest versions are the pinned ones, the row of these says all.
    """
    begun = time.monotonic()
    first = {canonicalize_name(wanted.name) for wanted in pins.asked(pins.project())}
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        try:
            pinned, these = versions("pinned", base), versions(which, base)
            if which == "newest" and these == pinned:
                print(f"{title:8} newest  these are the pinned versions", flush=True)
                return True
            pins.uv("venv", "--quiet", "--python", str(base), str(python.parent.parent))
            install(these, python)
        except pins.NoVersions as error:
            print(f"{title:8} {which}  cannot be installed: {error}", flush=True)
            return False
        names = differing(these, pinned, sorted(first))
        failed = run(python, files, workers)
        if failed:
            failed = run(python, failed, 0)  # the machine may have been busy
        shown = ", ".join(f"{name} {these.get(name, '-')}" for name in names if name in first) or "-"
        others = len([name for name in names if name not in first])
        minutes = (time.monotonic() - begun) / 60
        result = f"{len(failed)} files fail" if failed else "passed"
        print(f"{title:8} {which}  {result}  {minutes:.1f} min  {shown} and {others} more", flush=True)
        for file in failed:
            print(f"         {blamed(file, python, these, pinned, names)}", flush=True)
    return not failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests in each environment; 1 if they fail in one."""
    words = argparse.ArgumentParser(prog="python -m tests.drift", description=__doc__)
    words.add_argument("--only", default="tests", help="files and folders of tests, with commas (default: all)")
    words.add_argument("--which", default=",".join(ASKED), help="of oldest, pinned, newest (default: all)")
    words.add_argument("--python", help="of the Pythons that are found, such as 3.12 (default: all)")
    words.add_argument("-n", type=int, default=4, dest="workers", help="tests at once (default: 4)")
    given = words.parse_args(argv)
    files, asked = given.only.split(","), given.which.split(",")
    for which in asked:
        if which not in ASKED:
            words.error(f"--which {which}: there are {', '.join(ASKED)}")
    for file in files:
        if not any((pins.ROOT / file).rglob("test_*.py")) and not (pins.ROOT / file).is_file():
            words.error(f"--only {file}: there are no tests")
    found = pythons(SpecifierSet(pins.project()["project"]["requires-python"]))
    found = {title: path for title, path in found.items() if given.python is None or title.startswith(given.python)}
    if not found:
        words.error("there is no such Python on PATH or in ~/.pyenv/versions")
    print(f"{'python':8} which   result  minutes  versions other than the pinned ones", flush=True)
    passed = [cell(title, which, base, files, given.workers) for title, base in found.items() for which in asked]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
