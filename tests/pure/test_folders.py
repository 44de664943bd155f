"""The folders of the tests: each file says what it is for, and the tier of a test follows from its folder."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.rig import levels
from tests.rig.house import ROOT

TESTS = ROOT / "tests"
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def test_each_folder_and_each_file_says_what_it_is_for() -> None:
    for path in [*TESTS.rglob("__init__.py"), *TESTS.rglob("test_*.py")]:
        assert re.match(r'r?"""\S', path.read_text("utf-8")), path


def test_what_is_pure_asks_for_no_server() -> None:
    for path in sorted((TESTS / "pure").glob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        asked = {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
        assert not asked & {"server", "url", "raw", "queue", "face"}, path
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not modules & {"timeoutq.server.embedded", "tests.rig.servers", "tests.rig.processes"}, path


def test_no_two_files_have_the_same_name() -> None:
    """Mutants name the file of their killer without its folder."""
    names = Counter(path.rpartition("/")[2] for path in FILES)
    assert [name for name, count in names.items() if count > 1] == []


def test_the_lists_of_the_tiers_name_files_that_are_there() -> None:
    assert set(levels.ALL_COPIES) <= set(FILES)
    names = {path.rpartition("/")[2] for path in FILES}
    assert {f"test_{name}.py" for name in levels.NEEDS} <= names


@pytest.mark.parametrize(
    ("path", "is_copy", "breaking", "alone"),
    [
        ("breaking/alone/test_storms.py", False, True, True),
        ("breaking/test_bench.py", False, True, False),
        ("core/test_core.py", True, False, False),
        ("core/test_wakes.py", True, True, False),
        ("worker/test_worker.py", True, True, False),
    ],
)
def test_the_tier_of_a_test_follows_from_its_folder(path: str, is_copy: bool, breaking: bool, alone: bool) -> None:
    for file in (str(TESTS / path), f"tests/{path}"):
        assert levels.is_breaking(file, is_copy=is_copy) is breaking
        assert levels.is_alone(file) is alone
