"""`.ci/run` and `.ci/long`: each test belongs to one of them, and `.ci/long` says what it cannot do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.rig import levels

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


def test_a_part_counts_as_passed_only_while_no_file_has_been_added(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".ci").mkdir(parents=True)
    for name in ("long", "machine"):
        shutil.copy(ROOT / ".ci" / name, tree / ".ci" / name)
    here = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}

    def ask(*words: str) -> str:
        done = subprocess.run(words, cwd=tree, env=here, capture_output=True, text=True, check=True)
        return done.stdout

    ask("git", "init", "-q")
    ask("git", "add", "-A")
    ask("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "a")
    key = ask("bash", "-c", "eval \"$(sed -n '/^changed()/,/^commit=/p' .ci/long)\"; echo $commit")
    (tree / "new.py").write_text("assert 0")
    assert ask("bash", "-c", "eval \"$(sed -n '/^changed()/,/^commit=/p' .ci/long)\"; echo $commit") != key
