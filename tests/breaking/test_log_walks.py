"""The longer walk over queues with an event log; the whole of it is `python -m tests.rig.log_walk --steps 20000`."""

from __future__ import annotations

import pytest

from tests.rig import log_walk


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", log_walk.KINDS)
def test_the_fold_of_the_log_is_the_sets_for_thousands_of_steps(url: str, kind: str) -> None:
    found = log_walk.walk(url, kind, 2000, 77)
    assert found.differences == 0
    assert found.moves > 2000
