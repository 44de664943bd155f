"""Random calls on queues with an event log: after every step, the fold of the log is the sets on the server.

`STEPS=20000 SEED=7 pytest -m "" -n 0 tests/events/test_log_walk.py` walks farther, and elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig import log_walk
from tests.rig.log_walk import Differs
from timeoutq.rooms.events import Fold
from timeoutq.server.embedded import EmbeddedServer

STEPS = int(os.environ.get("STEPS", "600"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.fixture(scope="module")
def own_url() -> Iterator[str]:
    """A server for these tests alone: its library reads the clock of the rig."""
    with EmbeddedServer() as server:
        yield server.url


@pytest.mark.timeout(60 + STEPS / 20)
@pytest.mark.parametrize("kind", log_walk.KINDS)
def test_the_fold_of_the_log_is_the_sets_after_every_step(own_url: str, kind: str) -> None:
    found = log_walk.walk(own_url, kind, STEPS, SEED)
    assert found.steps == STEPS
    assert found.entries > STEPS / 5
    assert len(found.ways) > 10


def test_a_log_that_lacks_an_entry_is_found_out(own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Fold, *events: Any) -> None:
        add(self, *(event for event in events if event.verb != "forget"))

    add = Fold.add
    monkeypatch.setattr(Fold, "add", forgetful)
    with pytest.raises(Differs, match="only in the log"):
        log_walk.walk(own_url, "plain", 1000, SEED)
