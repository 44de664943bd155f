"""A random walk over the calls of a polite queue: after every step all invariants hold, and no host is visited early.

`STEPS=100000 SEED=7 pytest tests/hosts/test_polite_walk.py` walks farther, and elsewhere.
"""

from __future__ import annotations

import os

import pytest

from tests.rig import levels
from tests.rig.polite import Known, Visit, Walk
from timeoutq import Lease

STEPS = int(os.environ.get("STEPS", "2000"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.timeout(60 + STEPS / 20)
def test_no_host_is_visited_early_or_too_often_whatever_is_called(url: str, name: str) -> None:
    walk = Walk(url, name, SEED)
    try:
        for _ in range(STEPS // 2):  # on either server
            walk.step()
        walk.finish()
        walk.queues[0].purge()
        assert list(walk.raw.scan_iter(f"timeoutq:{{{name}}}:*")) == []
    finally:
        walk.close()
    assert walk.did["claimed"] > STEPS / 20
    levels.count("hosts", steps=STEPS // 2, visits=walk.did["claimed"])


def visit(task: str, ends_ms: int) -> Visit:
    return Visit(Lease(task, "w#1", ends_ms / 1000), ends_ms, 10)


def test_the_history_sees_a_visit_that_is_early() -> None:
    known = Known(delay_ms=10)
    known.ended(100)
    with pytest.raises(AssertionError, match="1 ms early"):
        known.begins("a", 109, 109)
    known.begins("a", 110, 110)


def test_the_history_sees_two_visits_at_once_and_one_too_many() -> None:
    known = Known(open=[visit("x", 100)])
    with pytest.raises(AssertionError, match="2 visits at once, of 1"):
        known.begins("a", 99, 99)
    with pytest.raises(AssertionError, match="9 ms early"):
        known.begins("a", 101, 101)
    with pytest.raises(AssertionError, match="its visit number 6, of 5"):
        Known(budget=5, visited=5).begins("a", 1, 1)


def test_the_history_sees_visits_of_hosts_that_must_not_be_visited() -> None:
    with pytest.raises(AssertionError, match="is banned"):
        Known(banned=True).begins("a", 1, 1)
    with pytest.raises(AssertionError, match="3 ms early"):
        Known(blocked_ms=10).begins("a", 7, 7)
