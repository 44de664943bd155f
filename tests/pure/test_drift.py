"""How `python -m tests.drift` finds what broke the tests, and which Pythons there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests import drift, pins

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


class Machine:
    """What the command does on a machine where the tests of a file fail with some version of a package."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has = {which: {"redis": "6.0", "h11": "0.16"} for which in ("oldest", "pinned", "newest")}
        self.fails: dict[str, tuple[str, str]] = {}  # by file
        self.once: set[str] = set()  # files that fail at the first run alone
        self.installed: Mapping[str, str] = {}
        self.ran: list[tuple[list[str], int]] = []
        monkeypatch.setattr(drift, "pythons", lambda allowed: {"3.11.10": Path("a"), "3.12.1": Path("b")})
        monkeypatch.setattr(drift, "versions", lambda which, python: self.has[which])
        monkeypatch.setattr(drift, "install", self.install)
        monkeypatch.setattr(drift, "run", self.run)
        monkeypatch.setattr(pins, "uv", lambda *words: "")

    def install(self, wanted: Mapping[str, str], python: Path) -> None:
        self.installed = wanted

    def run(self, python: Path, files: Sequence[str], workers: int) -> list[str]:
        self.ran.append((list(files), workers))
        failing = [file for file, (name, version) in self.fails.items() if self.installed.get(name) == version]
        failing += [file for file in self.once if workers]
        return [file for file in failing if file in files or files == ["tests"]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def rows(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]]


def test_each_python_has_a_row_of_each_kind_of_versions(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.has["oldest"] = {"redis": "5.3", "h11": "0.14"}
    machine.has["newest"] = {"redis": "7.0", "h11": "0.16"}
    assert drift.main([]) == 0
    assert rows(capsys) == [
        f"{python} {row}"
        for python in ("3.11.10", "3.12.1")
        for row in (
            "oldest passed 0.0 min redis 5.3 and 1 more",
            "pinned passed 0.0 min - and 0 more",
            "newest passed 0.0 min redis 7.0 and 0 more",
        )
    ]
    assert machine.ran == [(["tests"], 4)] * 6


def test_the_row_of_newest_says_that_they_are_pinned_and_runs_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drift.main(["--python", "3.12", "--which", "newest"]) == 0
    assert rows(capsys) == ["3.12.1 newest these are the pinned versions"]
    assert machine.ran == []


def test_files_that_fail_are_named_with_the_package_that_broke_them(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has["oldest"] = {"redis": "5.3", "h11": "0.14"}
    machine.fails = {"tests/a.py": ("redis", "5.3"), "tests/b.py": ("h11", "0.14")}
    assert drift.main(["--python", "3.11", "--which", "oldest,pinned"]) == 1
    assert rows(capsys) == [
        "3.11.10 oldest 2 files fail 0.0 min redis 5.3 and 1 more",
        "tests/a.py: redis 5.3; with 6.0 it passes",
        "tests/b.py: h11 0.14; with 0.16 it passes",
        "3.11.10 pinned passed 0.0 min - and 0 more",
    ]


def test_a_file_that_fails_with_the_pinned_versions_blames_no_package(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails = {"tests/a.py": ("redis", "6.0")}
    assert drift.main(["--python", "3.11", "--which", "pinned"]) == 1
    assert rows(capsys)[1] == "tests/a.py: it fails with the pinned versions, too"


def test_a_file_that_fails_on_a_busy_machine_runs_again_alone(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.once = {"tests/a.py"}
    assert drift.main(["--python", "3.11", "--which", "pinned", "-n", "2"]) == 0
    assert machine.ran == [(["tests"], 2), (["tests/a.py"], 0)]
    assert "passed" in rows(capsys)[0]


def test_versions_that_cannot_be_installed_fail_and_stop_no_other_row(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_fit(which: str, python: Path) -> drift.Versions:
        if which == "oldest":
            raise pins.NoVersions("no version of h11 fits")
        return machine.has[which]

    monkeypatch.setattr(drift, "versions", none_fit)
    assert drift.main(["--python", "3.11"]) == 1
    assert [row.split(" ", 1)[1] for row in rows(capsys)] == [
        "oldest cannot be installed: no version of h11 fits",
        "pinned passed 0.0 min - and 0 more",
        "newest these are the pinned versions",
    ]


def test_the_tests_of_an_environment_are_run_by_its_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"

    def says(text: str, code: int) -> list[str]:
        python.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path / 'asked'}\necho '{text}'\nexit {code}\n")
        python.chmod(0o755)
        return drift.run(python, ["tests/a.py", "tests/b.py"], 3)

    assert says("2 passed", 0) == []
    assert says("no tests ran", 5) == []
    assert says("FAILED tests/b.py::test_x - AssertionError", 1) == ["tests/b.py"]
    assert says("the runner crashed", 3) == ["tests/a.py", "tests/b.py"]
    assert "the runner crashed" in capfd.readouterr().err
    assert (tmp_path / "asked").read_text().split()[:3] == ["-m", "pytest", "-q"]
    assert "-n 3 tests/a.py tests/b.py" in (tmp_path / "asked").read_text()


def test_oldest_versions_are_the_floors_and_newest_are_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def resolved(*words: str) -> list[str]:
        asked.append(words)
        return ["redis==6.0", "h11==0.16"]

    monkeypatch.setattr(pins, "resolved", resolved)
    for which in ("oldest", "pinned", "newest"):
        assert drift.versions(which, Path("/a/python")) == {"redis": "6.0", "h11": "0.16"}
    oldest, pinned, newest = (" ".join(words) for words in asked)
    assert oldest.startswith("--python /a/python --resolution lowest-direct --extra crawlee --extra demo")
    assert pinned == "--python /a/python --extra test"
    assert newest.startswith("--python /a/python --resolution highest --extra crawlee --extra demo")


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
