"""How `python -m tests.drift` finds what broke the tests, and which Pythons there are."""

from __future__ import annotations

import pytest

from tests import drift

NAMES = ["httpx", "redis", "scrapy", "tenacity", "typer"]


@pytest.mark.parametrize("guilty", NAMES)
def test_the_package_that_broke_the_tests_is_found(guilty: str) -> None:
    assert drift.breaker(NAMES, lambda pinned: guilty in pinned) == guilty


def test_a_package_that_one_side_lacks_is_taken_away_or_added() -> None:
    these, pinned = {"h11": "0.14", "httpx": "0.27", "sniffio": "1.3"}, {"h11": "0.16", "httpx": "0.28", "anyio": "4"}
    assert drift.differing(these, pinned, ["httpx"]) == ["httpx", "anyio", "h11", "sniffio"]
    assert drift.mixed(these, pinned, ["httpx", "anyio", "sniffio"]) == {"h11": "0.14", "httpx": "0.28", "anyio": "4"}
    assert drift.mixed(these, pinned, []) == these


def test_the_files_that_fail_are_read_from_the_summary() -> None:
    said = "FAILED tests/pure/test_a.py::test_x[ERROR b.py] - no\nERROR tests/test_b.py\nFAILED tests/pure/test_a.py::y"
    assert drift.failing(said, ["tests"]) == ["tests/pure/test_a.py", "tests/test_b.py"]
    assert drift.failing("ImportError while loading conftest", ["tests/pure"]) == ["tests/pure"]
