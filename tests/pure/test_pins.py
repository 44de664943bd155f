"""The pins in pyproject.toml: exact versions of all that the tests install, none older than its floor."""

from __future__ import annotations

from typing import Any

import pytest

from tests import pins

A_PROJECT: dict[str, Any] = {
    "project": {
        "dependencies": ["redis[hiredis]>=5.3"],
        "optional-dependencies": {
            "demo": ["timeoutq[crawl]"],
            "crawl": ["httpx>=0.27"],
            "test": ["httpx==99.1", "PyTest==99.0", "redis==99.1; python_version >= '3.12'", "redis==99.0"],
        },
    },
    "dependency-groups": {"test": ["pytest>=8.2"]},
}


def pinned(*lines: str) -> dict[str, Any]:
    extras = {**A_PROJECT["project"]["optional-dependencies"], "test": list(lines)}
    return {**A_PROJECT, "project": {**A_PROJECT["project"], "optional-dependencies": extras}}


def test_the_pins_are_what_the_tests_ask_for_and_all_that_this_needs() -> None:
    said = pins.complaints(pins.project())
    assert not said, "write them again: python -m tests.pins\n" + "\n".join(said)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["httpx==99.1", "pytest==99.0"], "redis is not pinned"),
        (["httpx==99.1", "pytest==99.0", "redis==5.2"], "redis==5.2 is not among redis[hiredis]>=5.3"),
        (["httpx>=99.1", "pytest==99.0", "redis==99.1"], "'httpx>=99.1' is no exact version"),
        (["httpx==99.*", "pytest==99.0", "redis==99.1"], "'httpx==99.*' is no exact version"),
        (
            ["httpx==99.1", "pytest==99.0", "redis==99.1", "h11==1; pyhton < '3'"],
            "\"h11==1; pyhton < '3'\" cannot be",
        ),
    ],
)
def test_a_wrong_pin_is_told(lines: list[str], said: str) -> None:
    assert said in "\n".join(pins.complaints(pinned(*lines)))


def test_pins_are_written_between_their_marks() -> None:
    text = f"[\n{pins.BEGIN}{pins.END}]\n[\n{pins.BEGIN}    'old',\n{pins.END}]\n"
    after = pins.written(text, [["a==1"], ["b==2 ; python_version < '3.12'", "c==3"]])
    assert after == (
        f'[\n{pins.BEGIN}    "a==1",\n{pins.END}]\n'
        f'[\n{pins.BEGIN}    "b==2; python_version < \'3.12\'",\n    "c==3",\n{pins.END}]\n'
    )
    assert pins.written(after, [["a==1"], ["b==2 ; python_version < '3.12'", "c==3"]]) == after


@pytest.mark.parametrize("lost", [pins.BEGIN, pins.END], ids=["begin", "end"])
def test_a_lost_mark_is_told_and_nothing_is_written(lost: str) -> None:
    text = f"a = 1\n{pins.BEGIN}old{pins.END}b = 2\n{pins.BEGIN}old{pins.END}c = 3\n"
    with pytest.raises(SystemExit, match=r"pyproject\.toml has lost a mark"):
        pins.written(text.replace(lost, "", 1), [["x==1"], ["y==1"]])
