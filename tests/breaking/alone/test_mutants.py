"""The tests are tested: each bug that is seeded into a copy of the package must make one of them fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.rig.beside import CORES
from tests.rig.mutants import MUTANTS, Verdict, judge_all, spared

pytestmark = pytest.mark.timeout(5400)  # the first test waits for all of them


@dataclass(frozen=True, slots=True)
class Trials:
    verdicts: Mapping[str, Verdict]
    spared: Future[list[tuple[int, str]]]


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> Iterator[Trials]:
    """Judge those that tests of this session ask for, some at once."""
    asked = {item.name for item in request.session.items}
    some = [mutant for mutant in MUTANTS if f"test_no_mutant_survives[{mutant.name}]" in asked]
    is_asked = test_those_who_kill_spare_the_package_as_it_is.__name__ in asked
    with ThreadPoolExecutor(1) as pool:
        without = pool.submit(lambda: spared(CORES) if is_asked else [])
        found = {verdict.mutant.name: verdict for verdict in judge_all(some, 2 * CORES)}
        yield Trials(found, without)


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_no_mutant_survives(name: str, trials: Trials) -> None:
    verdict = trials.verdicts[name]
    assert verdict.killed_by is not None, f"nothing noticed that {name}:\n{verdict.said[-2000:]}"


def test_those_who_kill_spare_the_package_as_it_is(trials: Trials) -> None:
    for code, said in trials.spared.result():
        assert code == 0, said[-2000:]
