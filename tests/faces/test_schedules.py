"""The scripts on a real server answer as the model does, whatever the order of requests, faults and time.

The server is Redis: Valkey adds a monotonic clock to its own idea of the time, and cannot be made to stand still.
"""

from __future__ import annotations

import os

import pytest

from tests.rig import schedules
from tests.rig.model import Model

SCHEDULES = int(os.environ.get("SCHEDULES", "300"))


def test_every_reply_and_every_key_is_the_models() -> None:
    with schedules.still_server():  # which is skipped here where it cannot be had
        pass
    schedules.play_many(SCHEDULES)


@pytest.mark.breaking
def test_every_reply_and_every_key_of_a_polite_queue_is_the_models() -> None:
    with schedules.still_server():
        pass
    count = max(1, SCHEDULES // 6)
    schedules.play_many(count, limits=None)


def test_a_difference_is_told_with_its_seed_and_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = Model.holds
    monkeypatch.setattr(Model, "holds", lambda self, pair: not self.crashes and holds(self, pair))
    with schedules.still_server() as (server, clock):
        player = schedules.Player(server.url, clock)
        with pytest.raises(schedules.Differs, match=r"seed \d+: \w+: the server answers .*\n(.*\n)*.*producer put"):
            for seed in range(500):
                player.play(seed)
        player.close()
