"""How often a client asks a server that does not answer: eagerly at first, seldom when it has been away for long."""

from __future__ import annotations

import random
import time

import pytest
import redis

from timeoutq import Unavailable
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.verbs.sending import Send, Sleep, Talk


class Outage:
    """A clock that only pauses advance, and a server that gives no answer until it is back."""

    def __init__(self, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.talk, self.now, self.attempts, self.is_over = talk, 1000.0, list[float](), False
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)

    def ask(self) -> None:
        """Carry out one call, as a worker does again and again."""
        flow = sending.answer(self.talk, self.talk.operations.states(("a",))[0])
        reply: object = None
        try:
            while True:
                match flow.send(reply):
                    case Send():
                        self.attempts.append(self.now)
                        reply = [b"u"] if self.is_over else redis.ConnectionError("refused")
                    case Sleep(seconds):
                        self.now, reply = self.now + seconds, None
                    case step:
                        raise AssertionError(step)
        except (StopIteration, Unavailable):
            return

    def during(self, begin: float, end: float) -> int:
        return sum(begin <= at - 1000 < end for at in self.attempts)


def test_a_server_that_has_been_away_for_long_is_asked_seldom_and_one_that_has_just_gone_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_queue() as queue:
        outage = Outage(queue.talk, monkeypatch)
        while outage.now < 1120:
            outage.ask()
        assert outage.during(0, 1) >= 6
        assert outage.during(60, 120) <= 80
        outage.is_over = True
        outage.ask()
        outage.is_over, began = False, outage.now - 1000
        outage.ask()
        assert outage.during(began, began + 1) >= 6
