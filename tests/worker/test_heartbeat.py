"""The heartbeat alone: when it calls, when it tries again after an error, what it says, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.waiting import wait_until
from timeoutq import Lease, Unavailable
from timeoutq.client.heartbeat import Beat, Heartbeat
from timeoutq.testing import FakeQueue, fake_async_queue, fake_queue
from timeoutq.verbs.sending import answer
from timeoutq.words.model import Answer


class Calls(Beat):
    """A beat whose calls are written down, take their time, and fail while they are told to."""

    def __init__(self, held: dict[int, Lease]) -> None:
        self.lost: list[tuple[Lease, Answer]] = []
        queue = fake_async_queue(timeout=0.6)
        self.face = fake_queue(timeout=0.6, clock=queue.clock)
        super().__init__(queue, held, self.lost.extend, lambda: {"held": len(held)})
        self.heart = Heartbeat([self], on_end=lambda: None)
        self.calls: list[tuple[str, float, float]] = []
        self.fails = False
        self.error: BaseException = Unavailable("no server")
        self.takes = 0.0

    async def _take(self, name: str, call: Any) -> Any:
        began = time.monotonic()
        await asyncio.sleep(self.takes)
        try:
            if self.fails:
                raise self.error
            return await call
        finally:
            call.close()
            self.calls.append((name, began, time.monotonic()))

    async def _beat(self, about: Any) -> None:
        await self._take("beat", super()._beat(about))

    async def _extend(self) -> bool:
        found: bool = await self._take("extend", super()._extend())
        return found

    def times(self, name: str) -> list[float]:
        return [began for call, began, _ in list(self.calls) if call == name]


@pytest.fixture
def held() -> dict[int, Lease]:
    return {}


@pytest.fixture
def beat(held: dict[int, Lease]) -> Iterator[Calls]:
    found = Calls(held)
    yield found
    found.heart.stop()


def test_leases_are_extended_each_third_of_the_timeout(beat: Calls, held: dict[int, Lease]) -> None:
    beat.face.put("a")
    (lease,) = beat.face.claim()
    held[lease.fence] = lease
    began = time.monotonic()
    beat.heart.start()
    wait_until(lambda: len(beat.times("extend")) >= 4)
    first, *_, fourth = beat.times("extend")[:4]
    assert first - began < 0.5
    assert 0.59 < fourth - first < 1.2
    assert beat.face.inspect("a").lease_left


@pytest.mark.parametrize("first", ["beat", "extend"])
def test_after_an_error_it_tries_again_soon_and_then_goes_on_at_its_pace(
    beat: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    spans: list[tuple[float, float]] = []

    def longest(low: float, high: float) -> float:
        spans.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", longest)
    if first == "extend":
        beat.hurry()  # it has not told its news yet when the first call fails: they wait, too
    beat.fails, beat.takes = True, 0.3  # longer than the pause: it must not begin before the call has ended
    with caplog.at_level(logging.INFO):
        beat.heart.start()
        wait_until(lambda: len(beat.calls) >= 4)
        beat.fails, beat.takes = False, 0.0
        wait_until(lambda: "again" in caplog.text)
    assert {(low, round(high, 6)) for low, high in spans} == {(0, 0.2)}
    for (_, _, ended), (_, began, _) in zip(beat.calls[:3], beat.calls[1:4], strict=True):
        assert began - ended > 0.19, "the pause counts from the end of the call that failed"
    assert caplog.text.count("cannot reach the server") == 1
    count, since = len(beat.times("extend")), time.monotonic()
    wait_until(lambda: len(beat.times("extend")) >= count + 3)
    assert time.monotonic() - since > 0.35, "it is at its own pace again"


def test_it_goes_on_after_an_error_that_nobody_thought_of_and_tells_it_once(
    beat: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    beat.fails, beat.error = True, ZeroDivisionError("a bug")
    with caplog.at_level(logging.INFO):
        beat.heart.start()
        wait_until(lambda: len(beat.calls) >= 3)
        beat.fails = False
        wait_until(lambda: "reaches the server again" in caplog.text)
    (line,) = (record for record in caplog.records if "unexpected error" in record.message)
    assert line.message.endswith("met an unexpected error, and tries again: ZeroDivisionError: a bug")
    assert "Calls._take" in (line.exc_text or "")
    assert beat.heart.lives


def test_news_is_told_within_a_second_and_silence_is_not_broken_without(beat: Calls, held: dict[int, Lease]) -> None:
    beat.heart.start()
    wait_until(lambda: len(beat.times("beat")) == 1)
    held[1] = Lease("a", "token", 0.0, fence=1)
    changed = time.monotonic()
    wait_until(lambda: len(beat.times("beat")) == 2)
    assert beat.times("beat")[1] - changed < 1.6
    wait_until(lambda: len(beat.times("extend")) > 8)
    assert len(beat.times("beat")) == 2


def test_an_error_that_ends_the_thread_is_named(beat: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(stop: asyncio.Event) -> None:
        raise MemoryError("from outside")

    monkeypatch.setattr(beat, "run", end)
    beat.heart.start()
    wait_until(lambda: not beat.heart.lives)
    assert "heartbeat has ended: MemoryError: from outside; without it" in beat.heart.told_of_end()


def test_each_sign_of_life_tells_how_many_workers_are_alive(beat: Calls) -> None:
    face = beat.face
    face.run(answer(face.talk, face.operations.beat("other:1:2", {"holds_for": 60})))
    beat.heart.start()
    wait_until(lambda: beat.heart.peers == 2)


def test_a_worker_that_has_gone_silent_holds_nothing_when_its_leases_have_run_out(beat: Calls) -> None:
    face = beat.face
    face.run(answer(face.talk, face.operations.beat("other:1:2", {"held": 4, "holds_for": 6})))
    assert [one.held for one in face.workers()] == [4]
    face.clock.advance(6.1)
    assert [one.held for one in face.workers()] == [0]


def test_what_is_refused_is_reported_once_it_is_known_and_still_held(beat: Calls, held: dict[int, Lease]) -> None:
    beat.face.put("a")
    (lease,) = beat.face.claim()
    held[lease.fence] = lease
    beat.face.forget("a")
    beat.heart.start()
    wait_until(lambda: beat.lost)
    assert beat.lost[0] == (lease, Answer.LOST)


def test_a_server_that_is_away_holds_up_neither_the_end_nor_the_other_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other, asked = fake_async_queue(timeout=0.6), fake_async_queue("other", timeout=0.6), list[object]()
    mine: FakeQueue = fake_queue("other", timeout=0.6, clock=other.clock)

    async def run(flow: object) -> None:
        asked.append(flow)
        if len(asked) == 1:
            raise Unavailable("no answer")
        await asyncio.Event().wait()

    monkeypatch.setattr(queue, "run", run)
    mine.put("a")
    (lease,) = mine.claim()
    away, there = Beat(queue, {}, lambda _: None, dict), Beat(other, {lease.fence: lease}, lambda _: None, dict)
    heart = Heartbeat([away, there], on_end=lambda: None)
    heart.start()
    wait_until(lambda: len(asked) == 2)
    answered = there.answered
    wait_until(lambda: there.answered > answered)
    began = time.monotonic()
    heart.stop()
    assert time.monotonic() - began < queue.talk.deadline / 2
    wait_until(lambda: not heart.lives)
    assert mine.workers() == [], "the other queue has heard the farewell"
