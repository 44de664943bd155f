"""The mistakes that the rigs plant: each changes one place of the package as it is today."""

from __future__ import annotations

import pytest

from tests.rig import library, storm
from tests.rig.mutants import EVERY
from tests.rig.processes import ROOT
from tests.rig.simulate import defects
from timeoutq.server import scripts


def test_every_bug_of_the_mutants_has_its_place() -> None:
    assert [mutant.name for mutant in EVERY if mutant.old not in (ROOT / mutant.path).read_text("utf-8")] == []


def test_no_two_bugs_are_the_same() -> None:
    assert len({mutant.name for mutant in EVERY}) == len({(m.file, m.old, m.new) for m in EVERY}) == len(EVERY)


@pytest.mark.parametrize("name", defects.DEFECTS)
def test_every_defect_of_the_simulation_has_its_place(name: str) -> None:
    for change in defects.DEFECTS[name].changes:
        text = (ROOT / "timeoutq" / change.path).read_text("utf-8")
        assert text.count(change.old) == 1, f"{change.path} has changed"


@pytest.mark.parametrize("name", storm.BUGS)
def test_every_bug_of_a_storm_has_its_place(name: str) -> None:
    assert scripts.library().count(storm.BUGS[name].right) == 1


@pytest.mark.parametrize("name", library.PLANTS)
def test_every_mistake_for_the_comparison_of_libraries_has_its_place(name: str) -> None:
    assert scripts.library().count(library.PLANTS[name][0]) == 1
