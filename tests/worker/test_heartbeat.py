"""The heartbeat alone: when it calls, when it tries again after an error, what it says, and when it ends."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.rig.waiting import wait_until
from timeoutq import Lease, Unavailable
from timeoutq.client import heartbeat
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs.sending import Flow
from timeoutq.words.model import Answer, Outcome


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


def test_a_sign_of_life_that_was_not_answered_comes_again_soon(heart: Calls) -> None:
    heart.fails = True
    heart.start()
    wait_until(lambda: len(heart.times("beat")) == 1)
    heart.fails = False
    wait_until(lambda: len(heart.times("beat")) == 2)
    first, second = heart.times("beat")
    assert second - first < 0.8 * heartbeat.BEAT_EVERY


class Shipper(logging.Handler):
    """Sends log lines somewhere, and raises because it cannot."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("the log shipper is down")


def test_it_goes_on_though_whoever_listens_to_logs_raises(heart: Calls) -> None:
    shipper = Shipper()
    heartbeat.log.addHandler(shipper)
    try:
        heart.fails = True
        heart.start()
        wait_until(lambda: len(heart.calls) >= 3)
        heart.fails = False
        count = len(heart.times("extend"))
        wait_until(lambda: len(heart.times("extend")) >= count + 2)
    finally:
        heartbeat.log.removeHandler(shipper)
    assert heart.lives


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


def test_when_both_are_due_the_leases_are_extended_before_the_sign_of_life(
    heart: Calls, held: dict[int, Lease]
) -> None:
    held[1] = Lease("a", "token", 0.0, fence=1)
    heart.fails = True  # a sign of life that nobody answers must not keep the leases waiting
    heart.start()
    wait_until(lambda: len(heart.calls) >= 4)
    assert [call for call, *_ in heart.calls[:4]] == ["beat", "extend", "extend", "extend"]


def test_it_does_not_say_that_it_reaches_a_server_that_it_has_not_asked(
    heart: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    heart.fails = True
    with caplog.at_level(logging.INFO):
        heart.start()
        wait_until(lambda: len(heart.calls) >= 5)
        assert "again" not in caplog.text
        heart.fails = False
        wait_until(lambda: "reaches the server again" in caplog.text)


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


def test_of_many_leases_the_one_that_was_lost_is_reported_alone(heart: Calls, held: dict[int, Lease]) -> None:
    heart.face.put("a", "b", "c")
    leases = heart.face.claim(3)
    held.update({lease.fence: lease for lease in leases})
    (lost,) = [lease for lease in leases if lease.task == "b"]
    heart.face.forget("b")
    heart.start()
    wait_until(lambda: heart.lost)
    assert {(lease.task, answer) for lease, answer in list(heart.lost)} == {(lost.task, Answer.LOST)}


def test_a_lease_is_not_lost_when_only_its_shard_gives_no_answer(held: dict[int, Lease]) -> None:
    leases = [Lease(f"t{i}", f"w:1:2#1@{i}", 0.0, fence=i) for i in range(4)]
    held.update((lease.key, lease) for lease in leases[:3])

    def extension() -> Flow[Outcome]:
        yield from ()
        return Outcome([b"t0", b"t1", b"t2", b"t3"], b"O?LL")

    with pytest.raises(StopIteration) as end:
        next(heartbeat.extend_held(extension(), held, leases))
    assert end.value.value == [(leases[2], Answer.LOST)], "t1 is unanswered, and t3 was ended meanwhile"


def test_leases_that_could_not_be_extended_are_extended_long_before_the_next_third(
    held: dict[int, Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortest(low: float, high: float) -> float:
        return 0.05

    monkeypatch.setattr(random, "uniform", shortest)
    heart = Calls(fake_queue(timeout=6), held)
    heart.start()
    try:
        wait_until(lambda: heart.times("beat"))
        heart.fails = True
        wait_until(lambda: heart.times("extend"))
        heart.fails = False
        wait_until(lambda: len(heart.times("extend")) >= 2)
        first, second = heart.times("extend")[:2]
        assert second - first < 1, "the usual time between two extensions is 2 s"
    finally:
        heart.stop()


def test_a_sign_of_life_that_goes_apart_and_was_not_heard_comes_again_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pulse = heartbeat.Pulse("q", "w:1:2", 30.0, dict)
    assert pulse.is_to_beat()
    now[0] += 1.0
    assert not pulse.is_to_beat()
    pulse.not_heard(Unavailable("away"))
    now[0] += 1.0
    assert pulse.is_to_beat()


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


@pytest.mark.parametrize("unheard", [False, True])
def test_who_was_not_heard_says_no_farewell(unheard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = fake_queue()
    run = Mock(return_value=1)
    monkeypatch.setattr(queue, "run", run)
    monkeypatch.setattr(queue, "beats_apart", True)
    heart = Heartbeat(queue, {}, lambda _: None, dict)
    heart.pulse.unheard = unheard
    heart._farewell()
    assert run.call_count == (not unheard)


def test_a_worker_of_long_leases_gives_signs_of_life_more_often_than_it_extends(
    held: dict[int, Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY", 0.05)
    monkeypatch.setattr(heartbeat, "BEAT_AT_MOST", 0.1)
    heart = Calls(fake_queue(timeout=600), held)
    heart.start()
    try:
        wait_until(lambda: len(heart.times("beat")) >= 4)
        assert not heart.times("extend")
    finally:
        heart.stop()
