"""Python and Node on one queue, under kill -9: nothing is lost, and nothing overlaps."""

from __future__ import annotations

import pytest

from tests.rig.languages import Run, Verdict, judge, run
from tests.rig.node import node


@pytest.mark.timeout(180)
def test_workers_in_python_and_node_lose_nothing_and_do_nothing_at_once_under_kills() -> None:
    node()
    verdict = run(4, kill=True, workers=1)
    assert verdict.is_good, f"{verdict}: {verdict.lost[:5]} {verdict.overlaps[:5]} {verdict.backwards[:5]}"
    assert sum(verdict.kills.values()) >= 2, verdict


def test_the_judge_sees_two_runs_of_a_task_at_once_and_a_fence_that_does_not_grow() -> None:
    verdict = Verdict()
    judge([Run("a", 1, 10, "python", 1, end=20), Run("a", 2, 19, "node", 2, end=30)], verdict)
    assert verdict.overlaps == ["a: python pid 1 and node pid 2"]
    judge([Run("b", 5, 10, "python", 1, end=20), Run("b", 5, 25, "node", 2, end=30)], verdict)
    assert verdict.backwards == ["b: python 5, then node 5"]
    judge([Run("c", 1, 10, "node", 1), Run("c", 2, 19, "python", 2, end=30)], verdict)
    assert len(verdict.overlaps) == 2
    assert not verdict.is_good
