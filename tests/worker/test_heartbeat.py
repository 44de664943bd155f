"""The heartbeat alone: when it calls, when it tries again after an error, what it says, and when it ends."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.waiting import wait_until
from timeoutq import Lease, Unavailable
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.words.model import Answer


class Calls(Heartbeat):
    """A heartbeat whose calls are written down, take their time, and fail while they are told to."""

    def __init__(self, queue: FakeQueue, held: dict[int, Lease]) -> None:
        self.lost: list[tuple[Lease, Answer]] = []
        self.face = queue
        super().__init__(queue, held, self.lost.extend, lambda: {"held": len(held)})
        self.calls: list[tuple[str, float, float]] = []
        self.fails = False
        self.error: BaseException = Unavailable("no server")
        self.takes = 0.0

    def _take(self, name: str, call: Any) -> Any:
        began = time.monotonic()
        time.sleep(self.takes)
        try:
            if self.fails:
                raise self.error
            return call()
        finally:
            self.calls.append((name, began, time.monotonic()))

    def _beat(self, about: Any) -> None:
        self._take("beat", lambda: super(Calls, self)._beat(about))

    def _extend(self) -> bool:
        found: bool = self._take("extend", lambda: super(Calls, self)._extend())
        return found

    def times(self, name: str) -> list[float]:
        return [began for call, began, _ in list(self.calls) if call == name]


@pytest.fixture
def held() -> dict[int, Lease]:
    return {}


@pytest.fixture
def heart(held: dict[int, Lease]) -> Iterator[Calls]:
    queue = fake_queue(timeout=0.6)
    found = Calls(queue, held)
    yield found
    found.stop()


def test_leases_are_extended_each_third_of_the_timeout(heart: Calls, held: dict[int, Lease]) -> None:
    heart.face.put("a")
    (lease,) = heart.face.claim()
    held[lease.fence] = lease
    began = time.monotonic()
    heart.start()
    wait_until(lambda: len(heart.times("extend")) >= 4)
    first, *_, fourth = heart.times("extend")[:4]
    assert 0.19 < first - began < 0.5
    assert 0.59 < fourth - first < 1.2
    assert heart.face.stats().counters.get("extended", 0) != 0 or heart.face.inspect("a").lease_left


def test_after_an_error_it_tries_again_soon_and_then_goes_on_at_its_pace(
    heart: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spans: list[tuple[float, float]] = []

    def longest(low: float, high: float) -> float:
        spans.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", longest)
    heart.fails, heart.takes = True, 0.3  # longer than the pause: it must not begin before the call has ended
    with caplog.at_level(logging.INFO):
        heart.start()
        wait_until(lambda: len(heart.calls) >= 4)
        heart.fails, heart.takes = False, 0.0
        wait_until(lambda: "again" in caplog.text)
    assert {(low, round(high, 6)) for low, high in spans} == {(0, 0.2)}
    for (_, _, ended), (_, began, _) in zip(heart.calls[:3], heart.calls[1:4], strict=True):
        assert began - ended > 0.19, "the pause counts from the end of the call that failed"
    assert caplog.text.count("cannot reach the server") == 1
    count, since = len(heart.times("extend")), time.monotonic()
    wait_until(lambda: len(heart.times("extend")) >= count + 3)
    assert time.monotonic() - since > 0.35, "it is at its own pace again"


def test_it_goes_on_after_an_error_that_nobody_thought_of_and_tells_it_once(
    heart: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    heart.fails, heart.error = True, ZeroDivisionError("a bug")
    with caplog.at_level(logging.INFO):
        heart.start()
        wait_until(lambda: len(heart.calls) >= 3)
        heart.fails = False
        wait_until(lambda: "reaches the server again" in caplog.text)
    (line,) = (record for record in caplog.records if "unexpected error" in record.message)
    assert line.message.endswith("met an unexpected error, and tries again: ZeroDivisionError: a bug")
    assert "Calls._take" in (line.exc_text or "")
    assert heart.lives


def test_news_is_told_within_a_second_and_silence_is_not_broken_without(heart: Calls, held: dict[int, Lease]) -> None:
    heart.start()
    wait_until(lambda: len(heart.times("beat")) == 1)
    held[1] = Lease("a", "token", 0.0, fence=1)
    changed = time.monotonic()
    wait_until(lambda: len(heart.times("beat")) == 2)
    assert heart.times("beat")[1] - changed < 1.6
    wait_until(lambda: len(heart.times("extend")) > 8)
    assert len(heart.times("beat")) == 2


def test_what_is_refused_is_reported_once_it_is_known_and_still_held(heart: Calls, held: dict[int, Lease]) -> None:
    heart.face.put("a")
    (lease,) = heart.face.claim()
    held[lease.fence] = lease
    heart.face.forget("a")
    heart.start()
    wait_until(lambda: heart.lost)
    assert heart.lost[0] == (lease, Answer.LOST)


def test_a_server_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, asked, over = fake_queue(timeout=0.6), list[object](), threading.Event()

    def run(flow: object) -> None:
        asked.append(flow)
        if len(asked) == 1:
            raise Unavailable("no answer")
        over.wait()

    monkeypatch.setattr(queue, "run", run)
    heart = Heartbeat(queue, {}, lambda _: None, dict)
    heart.start()
    wait_until(lambda: len(asked) == 2)
    began = time.monotonic()
    heart.stop()
    assert time.monotonic() - began < queue.talk.deadline / 2
    assert heart.lives
    over.set()
    wait_until(lambda: not heart.lives)
