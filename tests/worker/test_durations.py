"""How long handlers ran: what a worker measures, what it tells, and what the queue makes of it."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Lease, Queue, Retry, Unavailable, Worker
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.testing import Clock, FakeQueue, fake_queue
from timeoutq.verbs import sending
from timeoutq.words import durations
from timeoutq.words.durations import LONGEST, QUICK, SHORTEST, Delta, Spans, bound, bucket, summary


def tell(face: Any, delta: Delta, worker: str = "w:1:a") -> None:
    face.run(sending.answer(face.talk, face.operations.beat(worker, {"pid": 1}, delta)))


# ---- buckets


def test_a_bound_is_at_most_an_eighth_above_what_falls_into_its_bucket() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        seconds = 2 ** rng.uniform(-12.99, 16.3)
        end = bound(bucket(seconds))
        assert seconds < end <= seconds * 1.125 * (1 + 1e-12), seconds


def test_what_is_too_short_or_too_long_to_tell_has_a_bucket_of_its_own() -> None:
    assert {bucket(seconds) for seconds in (-1.0, 0.0, 1e-9, SHORTEST)} == {QUICK}
    assert bound(QUICK) == SHORTEST
    assert bucket(SHORTEST * 1.001) == QUICK + 1
    assert bucket(LONGEST) == bucket(1e9)
    assert bound(bucket(1e9)) >= LONGEST


def test_buckets_grow_with_what_falls_into_them() -> None:
    numbers = [bucket(SHORTEST * 1.01**i) for i in range(1000)]
    assert numbers == sorted(numbers)
    assert [bound(number) for number in sorted(set(numbers))] == sorted({bound(number) for number in numbers})


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 100, 1000])
def test_percentiles_are_those_of_the_sorted_list(count: int) -> None:
    rng = random.Random(count)
    spent = sorted(rng.lognormvariate(-2, 1.5) for _ in range(count))
    counts: dict[int, int] = {}
    for seconds in spent:
        counts[bucket(seconds)] = counts.get(bucket(seconds), 0) + 1
    found = summary(counts)
    assert found is not None
    assert found.count == count
    assert found.p50 == bound(bucket(spent[-(-count // 2) - 1]))
    assert found.p95 == bound(bucket(spent[-(-count * 95 // 100) - 1]))
    assert found.max == bound(bucket(spent[-1]))


def test_nothing_measured_is_nothing_told() -> None:
    assert summary({}) is None
    assert Spans().delta() is None
    assert durations.read([[], []]) is None


def test_what_another_hand_wrote_into_the_sums_is_left_out() -> None:
    found = durations.read([[b"span", b"7", b"-8", b"2", b"odd", b"1", b"3", b"x"], [b"span", b"odd"]])
    assert found is not None
    assert found.count == 2


# ---- what a worker tells


def test_a_report_that_fails_is_made_again_as_it_was_and_nothing_is_lost_meanwhile() -> None:
    spans = Spans()
    spans.add(0.1)
    spans.quick += 2
    first = spans.delta()
    assert first is not None
    assert first.counts == {bucket(0.1): 1, QUICK: 2}
    spans.add(0.1)
    assert spans.delta() is first
    spans.told()
    second = spans.delta()
    assert second is not None
    assert second.counts == {bucket(0.1): 1}
    assert second.number != first.number
    spans.told()
    assert spans.delta() is None


def test_a_report_that_no_server_has_answered_goes_with_the_next_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, away = Spans(), Unavailable("no server")
    with fake_queue() as queue:
        heart = Heartbeat(queue, {}, lambda _: None, dict, spans)
        spans.add(0.5)
        with monkeypatch.context() as patch, pytest.raises(Unavailable):
            patch.setattr(queue, "run", Mock(side_effect=away))
            heart._beat({"pid": 1})
        heart._beat({"pid": 1})
        told = queue.stats().durations
        assert told is not None
        assert told.count == 1


def test_a_report_that_is_sent_again_counts_once(face: Any) -> None:
    delta = Delta(3, {bucket(0.5): 3})
    tell(face, delta)
    tell(face, delta)
    assert face.stats().durations.count == 3
    tell(face, delta, "another:1:b")
    tell(face, Delta(4, {bucket(2.0): 1}))
    found = face.stats().durations
    assert (found.count, found.p50, found.max) == (7, bound(bucket(0.5)), bound(bucket(2.0)))


def test_a_queue_of_which_no_worker_has_told_has_no_durations(face: Any) -> None:
    assert face.stats().durations is None
    face.run(sending.answer(face.talk, face.operations.beat("w:1:a", {"pid": 1})))
    assert face.stats().durations is None


def test_a_purge_forgets_how_long_handlers_ran(face: Any) -> None:
    tell(face, Delta(1, {QUICK: 1}))
    face.purge()
    assert face.stats().durations is None
    assert face.stats().ran == {}


def test_the_runs_of_all_time_only_grow_and_a_report_that_is_sent_again_counts_once() -> None:
    clock = Clock(1_800_000_000.0)
    with FakeQueue("q", clock) as queue:
        assert queue.stats().ran == {}
        for number in (1, 2, 2, 3):
            tell(queue, Delta(number, {QUICK: 2, bucket(1.0): 1}))
            clock.advance(86_400 if number == 1 else 0)
        assert queue.stats().ran == {SHORTEST: 6, bound(bucket(1.0)): 3}
        assert told(queue) == (6, bound(bucket(1.0))), "the other figures are those of the last span"


def test_what_another_hand_wrote_into_the_runs_of_all_time_is_left_out() -> None:
    flat = [b"-8", b"2", b"odd", b"1", b"3", b"x", b"999", b"1", b"4", b"-1", b"5", b"9" * 40, b"span", b"3"]
    assert durations.read_all(flat) == {bound(-8): 2}


def test_this_span_of_ten_minutes_and_the_one_before_count_and_stay_after_the_last_run() -> None:
    clock = Clock(1_800_000_000.0)  # a span begins
    with FakeQueue("q", clock) as queue:
        tell(queue, Delta(1, {bucket(1.0): 1}))
        clock.advance(600)
        tell(queue, Delta(2, {bucket(2.0): 1}))
        assert told(queue) == (2, bound(bucket(2.0)))
        clock.advance(600)
        assert told(queue) == (2, bound(bucket(2.0))), "nothing goes before something comes"
        tell(queue, Delta(3, {bucket(0.5): 1}))
        assert told(queue) == (2, bound(bucket(2.0))), "the first span makes room"
        clock.advance(86_400)
        assert told(queue) == (2, bound(bucket(2.0)))
        tell(queue, Delta(4, {bucket(0.1): 1}))
        assert told(queue) == (1, bound(bucket(0.1))), "what is older than ten minutes is not added to what is new"


def test_after_a_clock_that_stepped_back_new_runs_are_shown() -> None:
    clock = Clock(1_800_000_000.0)
    with FakeQueue("q", clock) as queue:
        for minutes in (0, 10, -60, -10):
            vars(clock)["_micros"] = clock.now_us + minutes * 60_000_000
            tell(queue, Delta(100 + minutes, {bucket(1.0 + abs(minutes)): 1}))
            found = queue.stats().durations
            assert found is not None
            assert bound(bucket(1.0 + abs(minutes))) <= found.max


def told(queue: Any) -> tuple[int, float]:
    found = queue.stats().durations
    return found.count, found.max


# ---- whole workers


@pytest.mark.parametrize("kind", ["async", "thread", "awaitable"])
async def test_every_run_of_a_handler_is_measured_however_it_ends(url: str, queue: Queue, kind: str) -> None:
    import asyncio
    import time

    async def fetch(lease: Lease) -> None:
        await asyncio.sleep(0.05)
        if lease.attempt == 1:
            raise Retry(after=0)

    def load(lease: Lease) -> None:
        time.sleep(0.05)
        if lease.attempt == 1:
            raise Retry(after=0)

    handler: Any = {"async": fetch, "thread": load, "awaitable": lambda lease: fetch(lease)}[kind]
    queue.put(str(number) for number in range(10))
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        tally = await Worker(mine, handler, burst=True).run()
    assert (tally.acked, tally.failed) == (10, 10)
    found = queue.stats().durations
    assert found is not None
    assert found.count == 20
    assert 0.05 <= found.p50 <= found.p95 <= found.max < 5


async def test_a_worker_that_runs_on_tells_with_its_signs_of_life(url: str, queue: Queue) -> None:
    import asyncio

    async def fetch(lease: Lease) -> None:
        pass

    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        worker = Worker(mine, fetch, signals=False)
        running = asyncio.create_task(worker.run())
        for total in (50, 100):
            queue.put(str(number) for number in range(total - 50, total))
            await asyncio.to_thread(wait_until, lambda: getattr(queue.stats().durations, "count", 0) == total)  # noqa: B023  # it has ended before the next round
        worker.stop()
        await running
    found = queue.stats().durations
    assert found is not None
    assert found.count == 100


async def test_a_run_that_max_runtime_ended_counts_with_the_time_it_had_run(url: str, queue: Queue) -> None:
    release = threading.Event()

    def hang(lease: Lease) -> None:
        release.wait(30)

    queue.put("a")
    async with AsyncQueue(queue.name, url, timeout=1, max_runtime=0.4, retry=[]) as mine:
        worker = Worker(mine, hang, burst=True, signals=False)
        await worker.run()
        ran = queue.stats().durations
        assert ran is not None
        assert ran.count == 1
        assert 0.2 < ran.max < 20
        release.set()
        for thread in threading.enumerate():
            if thread.name.startswith(f"handler-{queue.name}-"):
                thread.join(10)
        await asyncio.sleep(0)  # the loop learns that the thread has ended
        assert sum(worker._desk.spans.counts.values()) == 1


async def test_a_run_that_was_left_behind_counts_with_the_time_it_had_run(
    url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutq.worker.interrupts.CLEANUP", 0.2)
    go = asyncio.Event()

    async def hang(lease: Lease) -> None:
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()

    queue.put("a")
    async with AsyncQueue(queue.name, url, timeout=1, max_runtime=2, retry=[]) as mine:
        worker = Worker(mine, hang, burst=True, signals=False)
        await worker.run()
        ran = queue.stats().durations
        assert ran is not None
        assert (ran.count, ran.max > 1.5) == (1, True)
        go.set()
        await asyncio.sleep(0)
