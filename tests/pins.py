"""The exact versions that pyproject.toml names for tests, checkers and the build: pins of all that is installed.

`python -m tests.pins` asks PyPI, through uv, for the newest versions that fit together on every Python and every system
that timeoutq allows, and writes them between the marks. `tests/pure/test_pins.py` says when the pins are old.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "    # pins: python -m tests.pins\n", "    # the end of the pins\n"
EXTRAS = ["crawlee", "demo", "functions", "otel", "scrapy", "server", "testing", "web"]  # demo brings crawl
TESTED = [*(word for extra in EXTRAS for word in ("--extra", extra)), "--group", "test"]


class NoVersions(Exception):
    """No versions fit together, or PyPI cannot be asked."""


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def uv(*words: str) -> str:
    """Run uv, and give what it prints."""
    program = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if program is None:
        raise NoVersions("uv is missing: pip install uv")
    ran = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise NoVersions(f"uv {' '.join(words)}:\n{ran.stderr.strip()}")
    return ran.stdout


def resolved(*words: str) -> list[str]:
    """Ask for versions that fit together: lines `name==version`, with a marker where Pythons or systems differ."""
    said = uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", "pyproject.toml", *words)
    return said.splitlines()


def asked(settings: Mapping[str, Any]) -> list[Requirement]:
    """Give what the tests ask for by name: users' dependencies and extras, and the group `test`."""
    extras = settings["project"]["optional-dependencies"]  # those of django need a newer Python than the oldest
    lines = [*settings["project"]["dependencies"], *settings["dependency-groups"]["test"]]
    lines += [line for extra, more in extras.items() if extra not in ("test", "lint", "django") for line in more]
    wanted = [Requirement(line) for line in lines]
    return [one for one in wanted if one.name != "timeoutq"]


def complaints(settings: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with the pins of the tests, without asking PyPI; an empty list if nothing is."""
    said: list[str] = []
    pins: dict[str, list[Requirement]] = {}
    for line in settings["project"]["optional-dependencies"]["test"]:
        try:
            pin = Requirement(line)
        except InvalidRequirement as error:
            said.append(f"{line!r} cannot be read: {error}")
            continue
        if [one.operator for one in pin.specifier] != ["=="] or "*" in str(pin.specifier):
            said.append(f"{line!r} is no exact version")
            continue
        pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    for wanted in asked(settings):
        name = canonicalize_name(wanted.name)
        if name not in pins:
            said.append(f"{name} is not pinned")
        for pin in pins.get(name, []):
            version = str(pin.specifier).removeprefix("==")
            if not wanted.specifier.contains(version, prereleases=True):
                said.append(f"{pin} is not among {wanted}")
    return said + [f"{name} is not pinned, which {cause} needs" for name, cause in _unpinned(pins)]


def _unpinned(pins: Mapping[str, Sequence[Requirement]]) -> Iterable[tuple[str, str]]:
    """Give what a pinned package needs here, by what is installed in its pinned version, and is not pinned."""
    for name, versions in pins.items():
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not any(pin.specifier.contains(installed.version, prereleases=True) for pin in versions):
            continue
        for line in installed.requires or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                needed = canonicalize_name(wanted.name)
                if needed not in pins:
                    yield needed, name


def written(text: str, blocks: Sequence[Sequence[str]]) -> str:
    """Write each block of pins between its marks."""
    first, *rest = text.split(BEGIN)
    if len(rest) != len(blocks) or not all(END in part for part in rest):
        raise SystemExit(
            f"pyproject.toml has lost a mark: each of the {len(blocks)} blocks of pins begins and ends with one"
        )
    for block, part in zip(blocks, rest, strict=True):
        pins = "".join('    "' + line.replace(" ; ", "; ") + '",\n' for line in block)
        first += BEGIN + pins + END + part.partition(END)[2]
    return first


def main() -> int:
    """Write the pins of today into pyproject.toml."""
    oldest = project()["project"]["requires-python"].removeprefix(">=")
    everywhere = ["--universal", "--python-version", oldest]
    try:
        tests = resolved(*everywhere, *TESTED)
        checkers = resolved(*everywhere, *TESTED, "--group", "lint")
        build = uv(
            "pip", "compile", "--quiet", "--no-header", "--no-annotate", *everywhere, "--group", "pyproject.toml:build"
        ).splitlines()
    except NoVersions as error:
        print(error, file=sys.stderr)
        return 1
    page = ROOT / "pyproject.toml"
    blocks = [build, tests, [line for line in checkers if line not in tests]]
    page.write_text(written(page.read_text("utf-8"), blocks), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
