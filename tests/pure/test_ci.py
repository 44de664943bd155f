"""`.ci/run` and `.ci/long`: each test belongs to one of them, and `.ci/long` says what it cannot do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.rig import levels
from tests.rig.waiting import is_gone, wait_until

ROOT = Path(__file__).parents[2]
LONG = ROOT / ".ci" / "long"


def long(*words: str) -> subprocess.CompletedProcess[str]:
    """Call `.ci/long`."""
    return subprocess.run([LONG, *words], capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_part_that_does_not_exist_is_named_with_those_that_do() -> None:
    done = long("storms", "stroms")
    assert done.returncode == 2
    assert "there is no part 'stroms'. The parts: types core faces" in done.stderr


def test_the_list_names_each_part_and_what_it_does() -> None:
    done = long("--list")
    assert done.returncode == 0
    parts = [line.split()[0] for line in done.stdout.splitlines()]
    assert parts == re.findall(r"^part_(\w+)\(\)", LONG.read_text(), re.MULTILINE)
    assert all(len(line.split()) > 3 for line in done.stdout.splitlines())


def test_each_test_that_needs_the_machine_for_itself_belongs_to_one_part() -> None:
    files = sorted(path.stem for path in (ROOT / "tests" / "breaking" / "alone").glob("test_*.py"))
    named: list[str] = []
    for words in re.findall(r"tests/breaking/alone/test_(\S+)\.py", LONG.read_text()):
        named += [f"test_{word}" for word in words.strip("{}").split(",")]
    assert sorted(named) == files


def test_each_folder_of_tests_belongs_to_a_part() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    named = {
        word
        for words in re.findall(r"slower tests/(\S+); }", LONG.read_text())
        for word in words.strip("{}").split(",")
    }
    assert named == folders


def test_a_command_of_the_documents_that_names_a_file_of_the_slower_tier_runs_it() -> None:
    for page in (ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *ROOT.glob("timeoutq/help/*.md")):
        for command in re.findall(r"`([^`\n]*\bpytest [^`\n]*)`", page.read_text("utf-8")):
            if any(levels.is_breaking(file) for file in re.findall(r"tests/\S+\.py", command)):
                assert re.search(r"pytest .*-m ", command), f"{page.name}: {command} runs nothing without -m"


def test_each_program_that_tests_must_not_do_without_is_installed() -> None:
    needs = re.findall(r"^need (\S+)", LONG.read_text() + (ROOT / ".ci" / "machine").read_text(), re.MULTILINE)
    assert set().union(*levels.NEEDS.values()) <= set(needs)


def test_packages_for_node_that_cannot_be_installed_end_the_install(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nexit 7\n")
    npm.chmod(0o755)
    code = f". .ci/machine; PATH={tmp_path}:$PATH; make_node {tmp_path}/node redis"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 7


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout that holds `.ci` alone; every program that it runs writes its words to `ran`, and fails if told so.

    Its `.ci/machine` sets nothing up: an environment is a folder, and programs are those of `bin`.
    """
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    with (tree / ".ci" / "machine").open("a") as machine:
        machine.write(
            """
            install_missing() { return "${NO_INSTALL:-0}"; }
            make_environment() { mkdir -p "$1/bin" && : >"$1/bin/activate"; }
            make_node() { :; }
            """
        )
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ruff", "mypy", "basedpyright", "pytest", "python"):
        program = programs / name
        program.write_text(
            f"""#!/bin/bash
            echo {name} "$@" >>{tmp_path}/ran
            [[ -n "$HANGS" && "{name} $*" =~ $HANGS ]] && {{ echo $$ >{tmp_path}/hangs; exec sleep 600; }}
            [[ -z "$FAILS" || ! "{name} $*" =~ $FAILS ]]
            """
        )
        program.chmod(0o755)
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *words], cwd=tree, env=surroundings(tree), check=True)
    return tree


def surroundings(tree: Path, **more: str) -> dict[str, str]:
    """The environment in which the programs of the tree are found, and its marks of what has passed are kept."""
    path = f"{tree.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    kept = {"XDG_CACHE_HOME": str(tree.parent / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}
    return {**os.environ, "PATH": path, **kept, "FAILS": "", "HANGS": "", **more}


def ci(tree: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the tree's `.ci`."""
    here = surroundings(tree, **more)
    return subprocess.run(
        [f".ci/{words[0]}", *words[1:]], cwd=tree, env=here, capture_output=True, text=True, check=False
    )


def ran(tree: Path) -> list[str]:
    """Give what the tree's programs were called with since this was last asked."""
    file = tree.parent / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize(
    "fails", ["", "ruff check", "ruff format", "mypy", "basedpyright", "pytest", "simulate", "storm"]
)
def test_the_gate_fails_with_any_of_its_steps(tree: Path, fails: str) -> None:
    done = ci(tree, "run", FAILS=fails)
    assert (done.returncode == 0) is (fails == "")
    steps = ["ruff check .", "ruff format --check .", "basedpyright", "mypy", "pytest"]
    steps += ["python -m tests.rig.simulate --seeds 30", "python -m tests.rig.storm --for 20s --workers 4"]
    if not fails:
        assert sorted(ran(tree)) == sorted(steps)
        assert re.findall(r"^(\w+): \d+ s$", done.stdout, re.MULTILINE) == [
            "install",
            "checkers",
            "tests",
            "simulation",
            "storm",
        ]


def test_a_part_that_fails_does_not_stop_the_others_and_is_the_only_one_that_runs_again(tree: Path) -> None:
    done = ci(tree, "long", FAILS="tests/core")
    assert done.returncode == 1
    assert "failed: core. Again with: .ci/long core" in done.stderr
    times = re.findall(r"^(\w+) +(passed|FAILED) +\d+ s$", done.stdout.partition("== times")[2], re.MULTILINE)
    listed = ci(tree, "long", "--list").stdout
    parts = re.findall(r"^(\w+) +(passed|-) ", listed, re.MULTILINE)
    assert [name for name, _ in times] == [name for name, _ in parts]
    assert [name for name, outcome in times if outcome == "FAILED"] == ["core"]
    assert [name for name, mark in parts if mark == "-"] == ["core"]
    ran(tree)
    again = ci(tree, "long")
    assert again.returncode == 0
    assert [line for line in ran(tree) if not line.startswith("pytest -m breaking and not alone tests/core")] == []
    assert again.stdout.count("has passed on this commit") == len(parts) - 1


def test_a_part_of_two_steps_fails_with_either(tree: Path) -> None:
    for part, steps in {
        "types": ["darwin", "win32"],
        "faults": ["outages", "test_server_faults"],
        "simulation": ["simulate", "test_explorer"],
        "schedules": ["schedules", "test_core_model"],
        "scrapy": ["test_mapping", "test_spider_storms"],
    }.items():
        for step in steps:
            assert ci(tree, "long", part, FAILS=step).returncode == 1, f"{part}: {step}"


def test_a_part_that_is_named_runs_even_if_it_has_passed(tree: Path) -> None:
    for _ in range(2):
        assert ci(tree, "long", "power").returncode == 0
        assert ran(tree) == ["pytest -m alone -n 0 tests/breaking/alone/test_power_cuts.py"]
    assert ci(tree, "long", "power", FAILS="power").returncode == 1
    assert re.search(r"^power +- ", ci(tree, "long", "--list").stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("number", "background"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        pytest.param(signal.SIGTERM, "trap '' INT;", marks=pytest.mark.breaking),
    ],
)
def test_cut_off_it_ends_what_it_has_started_and_says_how_to_go_on(
    tree: Path, number: signal.Signals, background: str
) -> None:
    here = surroundings(tree, HANGS="power")
    asked = ["bash", "-c", f"{background} exec .ci/long types power"]
    running = subprocess.Popen(asked, cwd=tree, env=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hangs = tree.parent / "hangs"
    wait_until(lambda: hangs.exists() and hangs.read_text())
    running.send_signal(number)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "cut off in the part 'power'. Call it again: parts that have passed on this commit are left out" in said
    assert is_gone(int(hangs.read_text()))
    assert re.search(r"^types +passed ", ci(tree, "long", "--list").stdout, re.MULTILINE)


def test_an_install_that_fails_is_told_and_nothing_runs(tree: Path) -> None:
    done = ci(tree, "long", NO_INSTALL="3")
    assert (done.returncode, ran(tree)) == (1, [])
    assert "the install failed, see above" in done.stderr
    assert ci(tree, "run", NO_INSTALL="3").returncode != 0


def test_a_part_counts_as_passed_only_while_no_file_has_changed_or_been_added(tree: Path) -> None:
    (tree / "tests").mkdir()
    for file in ("tests/new.py", ".ci/long"):
        assert ci(tree, "long", "power").returncode == 0
        assert re.search(r"^power +passed ", ci(tree, "long", "--list").stdout, re.MULTILINE)
        with (tree / file).open("a") as changed:
            changed.write("# changed\n")
        assert re.search(r"^power +- ", ci(tree, "long", "--list").stdout, re.MULTILINE)
        subprocess.run(["git", "add", file], cwd=tree, check=True)
        assert re.search(r"^power +- ", ci(tree, "long", "--list").stdout, re.MULTILINE)


def test_an_environment_in_the_checkout_is_no_change_of_it(tree: Path) -> None:
    assert ci(tree, "long", "power").returncode == 0
    packages = tree / "myenv" / "lib"
    packages.mkdir(parents=True)
    (packages / "package.py").touch()
    (tree / "myenv" / "lib64").symlink_to("lib")
    assert re.search(r"^power +passed ", ci(tree, "long", "--list").stdout, re.MULTILINE)
