"""How `python -m tests.drift` finds what broke the tests, and which Pythons there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests import drift

NAMES = ["httpx", "redis", "scrapy", "tenacity", "typer"]


@pytest.mark.parametrize("guilty", NAMES)
def test_the_package_that_broke_the_tests_is_found(guilty: str) -> None:
    assert drift.breaker(NAMES, lambda pinned: guilty in pinned) == guilty


def test_of_two_packages_that_broke_the_tests_the_last_one_is_named() -> None:
    assert drift.breaker(NAMES, lambda pinned: {"redis", "tenacity"} <= set(pinned)) == "tenacity"


def test_tests_that_fail_with_the_pinned_versions_blame_no_package() -> None:
    def passes(pinned: Sequence[str]) -> bool:
        return False

    assert drift.breaker(NAMES, passes) is None


def test_a_package_that_one_side_lacks_is_taken_away_or_added() -> None:
    these, pinned = {"h11": "0.14", "httpx": "0.27", "sniffio": "1.3"}, {"h11": "0.16", "httpx": "0.28", "anyio": "4"}
    assert drift.differing(these, pinned, ["httpx"]) == ["httpx", "anyio", "h11", "sniffio"]
    assert drift.mixed(these, pinned, ["httpx", "anyio", "sniffio"]) == {"h11": "0.14", "httpx": "0.28", "anyio": "4"}
    assert drift.mixed(these, pinned, []) == these


def test_the_files_that_fail_are_read_from_the_summary() -> None:
    said = "FAILED tests/pure/test_a.py::test_x[ERROR b.py] - no\nERROR tests/test_b.py\nFAILED tests/pure/test_a.py::y"
    assert drift.failing(said, ["tests"]) == ["tests/pure/test_a.py", "tests/test_b.py"]
    assert drift.failing("ImportError while loading conftest", ["tests/pure"]) == ["tests/pure"]


def test_the_newest_python_of_each_minor_version_is_found_and_no_shim_that_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python(place: str, version: str) -> Path:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{version}\n")
        path.chmod(0o755)
        return path

    python("bin/python3.12", "echo no such version >&2; exit 127")
    python("bin/python3.11", "echo 3.11.2")
    python("bin/python3.11-config", "echo 3.11.99")
    python(".pyenv/versions/3.10.1/bin/python3.10", "echo 3.10.1")
    newer = python(".pyenv/versions/3.11.10/bin/python3.11", "echo 3.11.10")
    other = python(".pyenv/versions/3.12.1/bin/python3.12", "echo 3.12.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    assert drift.pythons(SpecifierSet(">=3.11")) == {"3.11.10": newer, "3.12.1": other}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--which", "oldest,nonsense"], "--which nonsense: there are oldest, pinned, newest"),
        (["--only", "tests/pure,tests/nothere"], "--only tests/nothere: there are no tests"),
        (["--only", "tests/rig"], "--only tests/rig: there are no tests"),
        (["--python", "3.99"], "there is no such Python"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        drift.main(words)
    assert said in capsys.readouterr().err
