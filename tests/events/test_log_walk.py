"""Random calls on queues with an event log: after every step, the fold of the log is the sets on the server.

`STEPS=20000 SEED=7 pytest -m "" -n 0 tests/events/test_log_walk.py` walks farther, and elsewhere.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.rig import log_walk
from tests.rig.log_walk import Differs, Walk
from timeoutq.rooms.events import Fold

STEPS = int(os.environ.get("STEPS", "300"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.timeout(60 + STEPS / 20)
@pytest.mark.parametrize("kind", log_walk.KINDS)
def test_the_fold_of_the_log_is_the_sets_after_every_step(url: str, kind: str) -> None:
    found = log_walk.walk(url, kind, STEPS, SEED)
    assert found.differences == 0
    assert found.steps == STEPS
    assert found.entries > STEPS / 5
    assert len(found.ways) > 10


def test_a_log_that_lacks_an_entry_is_found_out(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Fold, *events: Any) -> None:
        add(self, *(event for event in events if event.verb != "forget"))

    add = Fold.add
    monkeypatch.setattr(Fold, "add", forgetful)
    walk = Walk(url, name, "plain", SEED)
    monkeypatch.setattr(walk, "steps", [walk.put, walk.forget])
    with pytest.raises(Differs, match="only in the log"):
        for _ in range(100):
            walk.step()
    walk.queue.purge()
    walk.queue.close()
    walk.raw.close()
