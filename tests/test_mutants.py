"""The tests are tested: each bug that is seeded into a copy of the package must make one of them fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig import levels
from tests.rig.beside import CORES
from tests.rig.mutants import MUTANTS, Verdict, judge_all, spared

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all of them

AT_ONCE = CORES + 1
"""Some of the killers wait most of the time."""


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, Verdict]]:
    """Judge them all, some at once."""
    found = {verdict.mutant.name: verdict for verdict in judge_all(MUTANTS, AT_ONCE)}
    levels.tell("mutants", *(f"{name}: killed by {each.killed_by or 'NOBODY'}" for name, each in found.items()))
    yield found


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_no_mutant_survives(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[name]
    assert verdict.killed_by is not None, f"nothing noticed that {name}:\n{verdict.said[-2000:]}"
    levels.count("mutants", killed=1)


def test_those_who_kill_spare_the_package_as_it_is() -> None:
    for done in spared():
        assert done.returncode == 0, f"{done.args}:\n{(done.stdout + done.stderr)[-2000:]}"


def test_no_two_mutants_are_the_same() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
