"""timeoutq.testing.run: a handler worked until its queue is drained, in no time of the test's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from timeoutq import Ack, GiveUp, InvalidInput, Lease, Politeness, Release, Retry
from timeoutq.testing import NotDrained, fake_async_queue, fake_queue, run, running

pytest_plugins = ["timeoutq.testing.fixtures"]


async def busy_at_first(lease: Lease) -> None:
    if lease.attempt == 1:
        raise ConnectionError("HTTP 503")


def busy_in_a_thread(lease: Lease) -> None:
    if lease.attempt == 1:
        raise ConnectionError("HTTP 503")


@pytest.mark.parametrize("handler", [busy_at_first, "tests.faces.test_testing_run:busy_in_a_thread"])
def test_a_task_that_is_tried_again_in_an_hour_is_done_in_no_time(handler: Any) -> None:
    began = time.monotonic()
    with fake_queue(retry=[3600]) as queue:
        queue.put("a", "b")
        ran = run(handler, queue)
        assert ran.states == {"a": "done", "b": "done"}
        assert ran.runs == {"a": 2, "b": 2}
        assert (ran.tally.acked, ran.tally.failed) == (2, 2)
        assert 3600 <= ran.seconds < 3601
        assert queue.clock.now == pytest.approx(1_700_003_600, abs=1)
        assert queue.drained()
    assert time.monotonic() - began < 10


async def test_asyncio_awaits_it() -> None:
    async with fake_async_queue(retry=[60]) as queue:
        await queue.put("a")
        ran = await run(busy_at_first, queue)
        assert ran.states == {"a": "done"}
        assert ran.runs == {"a": 2}


def test_a_run_that_nobody_awaits_is_refused_at_once() -> None:
    queue = fake_async_queue()
    with pytest.raises(
        InvalidInput, match=r"must be awaited: write `await run\(…\)` in an async test, or use fake_queue"
    ):
        run(busy_at_first, queue)


def test_every_end_of_a_handler_is_what_it_is_on_a_server() -> None:
    async def handler(lease: Lease) -> Any:
        match lease.task, lease.attempt:
            case "page", _:
                return Ack(put=["found"])
            case "again", _:
                return Ack(again_in=600) if lease.payload is None else None
            case "later", _:
                return Release(delay=30) if queue.clock.now < 1_700_000_030 else None
            case "busy", 1:
                raise Retry(after=120)
            case "gone", _:
                raise GiveUp("HTTP 410")
            case "broken", _:
                raise ValueError("bad page")
            case _:
                return None

    async def once(lease: Lease) -> Any:
        result = await handler(lease)
        return Ack(again_in=600, payload="again") if isinstance(result, Ack) and result.again_in else result

    with fake_queue(retry=[1, 10]) as queue:
        queue.put("page", "again", "later", "busy", "gone", "broken")
        queue.schedule("tomorrow", after=86_400)
        ran = run(once, queue)
        assert ran.states == {
            "page": "done", "found": "done", "again": "done", "later": "done", "busy": "done", "tomorrow": "done",
            "gone": "failed", "broken": "failed",
        }  # fmt: skip
        assert [ran.runs[task] for task in ("page", "again", "later", "busy", "gone", "broken")] == [1, 2, 2, 2, 1, 3]
        assert ran.errors == {"gone": "GiveUp: HTTP 410", "broken": "ValueError: bad page"}
        assert 86_400 <= ran.seconds < 86_402


def test_hosts_of_a_polite_queue_have_their_turns() -> None:
    at: list[float] = []

    async def handler(lease: Lease) -> None:
        at.append(queue.clock.now)

    with fake_queue(politeness=Politeness(delay=10, per_host=1)) as queue:
        queue.put([f"https://a.example/{i}" for i in range(4)])
        ran = run(handler, queue)
        assert set(ran.states.values()) == {"done"}
        assert [round(b - a) for a, b in pairwise(at)] == [10, 10, 10]


def test_the_lifespan_is_entered_once_and_left_and_its_value_reaches_the_handler() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        events.append("enter")
        yield "state"
        events.append("leave")

    async def handler(lease: Lease, state: str) -> None:
        events.append(f"{lease.task} {state}")

    with fake_queue() as queue:
        queue.put("a")
        assert run(handler, queue, lifespan=lifespan).tally.acked == 1
        assert events == ["enter", "a state", "leave"]


# ---- what would never drain


def test_a_task_that_is_never_done_is_named() -> None:
    async def handler(lease: Lease) -> Any:
        return Ack(again_in=60) if lease.task == "recrawl" else None

    with fake_queue() as queue:
        queue.put("a", "recrawl")
        with pytest.raises(NotDrained, match="task 'recrawl' ran 20 times and is not done; runs_each= allows no more"):
            run(handler, queue, runs_each=20)


def test_a_paused_queue_is_not_waited_for() -> None:
    with fake_queue() as queue:
        queue.put("a", "b")
        queue.pause()
        with pytest.raises(NotDrained, match="queue test is paused, and 2 tasks wait"):
            run(busy_at_first, queue)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.3)

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(3600)

    with fake_queue() as queue:
        queue.put("slow")
        with pytest.raises(
            NotDrained,
            match=r"for 0\.3 real seconds on 'slow', and does not end; its sleeps and calls take real time: replace",
        ):
            run(handler, queue)
        assert queue.states("slow").counts() == {"todos": 1}


async def test_a_blocking_queue_in_a_coroutine_is_refused_with_what_to_write() -> None:
    with fake_queue() as queue:
        with pytest.raises(InvalidInput, match=r"use fake_async_queue\(\), and await run"):
            run(busy_at_first, queue)


# ---- leases by hand, fixtures, and what fakeredis lacks


async def test_fixtures_share_a_clock_and_a_server(
    timeoutq_queue: Any, timeoutq_async_queue: Any, timeoutq_clock: Any
) -> None:
    timeoutq_queue.put("a")
    assert (await timeoutq_async_queue.stats()).todos == 1
    timeoutq_clock.advance(5)
    assert timeoutq_queue.stats().now == (await timeoutq_async_queue.stats()).now == timeoutq_clock.now
    await timeoutq_async_queue.close()


# ---- max_runtime


async def waits_for_ever(lease: Lease) -> None:
    await asyncio.Event().wait()


def test_a_handler_that_waits_for_ever_fails_at_its_max_runtime_on_the_clock() -> None:
    began = time.monotonic()
    with fake_queue(timeout=2) as queue:
        queue.put("a")
        ran = run(waits_for_ever, queue, max_runtime=5, retry=[])
        assert ran.states == {"a": "failed"}
        assert "max_runtime of 5 s is over" in ran.errors["a"]
        assert ran.seconds == pytest.approx(5, abs=0.01)
        assert queue.inspect("a").crashes == 0
    assert time.monotonic() - began < 10


def test_handlers_that_wait_for_ever_fail_though_more_tasks_wait_than_run_at_once() -> None:
    with fake_queue() as queue:
        queue.put([f"t{i}" for i in range(15)])
        ran = run(waits_for_ever, queue, max_runtime=5, retry=[])
        assert set(ran.states.values()) == {"failed"}
        assert len(ran.states) == 15


def test_a_thread_that_waits_for_ever_fails_at_its_max_runtime_and_is_tried_again() -> None:
    over = threading.Event()

    def waits(lease: Lease) -> None:
        if lease.attempt == 1:
            over.wait(60)

    with fake_queue(max_runtime=5) as queue:
        queue.put("a")
        ran = run(waits, queue, retry=[100])
        over.set()
        assert (ran.states, ran.runs) == ({"a": "done"}, {"a": 2})
        assert ran.seconds == pytest.approx(105, abs=0.01)
