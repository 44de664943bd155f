"""A random walk over the calls of a polite queue: each reply and each key is the model's, and no host is visited early.

`STEPS=20000 SEED=7 pytest -m "" -n 0 tests/hosts/test_polite_walk.py` walks farther, and elsewhere.
"""

from __future__ import annotations

import os

import pytest

from tests.rig import levels
from tests.rig.follower import Differs
from tests.rig.polite import Known, Visit, Walk
from tests.rig.polite_model import PoliteModel
from timeoutq import Lease

STEPS = int(os.environ.get("STEPS", "600"))
PART = 200
"""The steps of one queue."""
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.timeout(60 + STEPS / 5)
def test_every_answer_is_the_models_and_no_host_is_visited_early(url: str, name: str) -> None:
    claimed = calls = 0
    for first in range(0, STEPS, PART):
        # what happens for the first time in a queue happens often so
        walk = Walk(url, f"{name}.{first}", SEED * 1_000_000 + first)
        try:
            for _ in range(min(PART, STEPS - first)):
                walk.step()
            walk.finish()
            walk.queues[0].purge()
            assert list(walk.raw.scan_iter(f"timeoutq:{{{walk.name}}}:*")) == []
        except AssertionError as error:
            raise AssertionError(f"the walk from step {first} on: {error}") from error
        finally:
            walk.close()
        claimed, calls = claimed + walk.did["claimed"], calls + walk.follower.calls
    assert claimed > STEPS / 20
    levels.count("hosts", steps=STEPS, calls=calls, visits=claimed)


def test_a_model_that_errs_is_found_out(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoliteModel, "_rank", lambda self, task: min(2, self.priorities.get(task, 0)))
    walk = Walk(url, name, SEED)
    with pytest.raises(Differs, match=r"the server (has|answers) .*, the model .*\n(.*\n)*\d+ \w+ \["):
        for _ in range(1000):
            walk.step()
    walk.close()


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
