"""Apps in tests of their users: real scripts in memory, and a clock that the test advances."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from timeoutq import InvalidInput, State
from timeoutq.functions import App, CallFailed, CallNext, Context

app = App("shop", queues=["shop", "mail"], secret="a secret of 21 bytes.")
sent: list[str] = []


@app.task(retry=[10, 3600])
def pay(amount: int, ctx_is_given: bool = True) -> int:
    sent.append(f"pay {amount}")
    if amount < 0 or (amount > 100 and len(sent) < 3):
        raise ValueError("no such amount")
    return amount


@app.task(queue="mail")
async def thank(ctx: Context[None], to: str) -> str:
    sent.append(f"{ctx.function} {to} {ctx.attempt}")
    return f"thanks, {to}"


@app.task
def buy(to: str) -> None:
    thank.delay(to)


@app.task(cron="0 9 * * *", tz="UTC")
def report() -> int:
    sent.append("report")
    return 1


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


def test_a_call_is_carried_out_in_memory() -> None:
    with app.test() as t:
        result = pay.delay(5)
        assert t.queue().inspect(result.id).state is State.TODOS
        with pytest.raises(TimeoutError, match=r"has not ended: carry it out first, with t\.run\(\)"):
            result.wait()
        ran = t.run()
        assert result.wait() == 5
        assert (dict(ran.runs), ran.seconds) == ({result.id: 1}, 0.0)


def test_functions_run_in_the_thread_of_the_test_if_it_asks_for_that() -> None:
    """So they see what the test has written, in a transaction that is never committed: as in Django's TestCase."""
    own, said = App("threads"), ContextVar("said", default="nothing")
    met: list[tuple[bool, str]] = []
    here = threading.get_ident()

    @own.task(retry=[10])
    def write(n: int) -> int:
        with suppress(RuntimeError):
            pytest.fail(f"an event loop runs here: {asyncio.get_running_loop()}")
        met.append((threading.get_ident() == here, said.get()))
        if n < 0:
            raise ValueError("below zero")
        return n

    said.set("by the test")
    with own.test() as t:
        calls = [write.delay(n) for n in (1, -1)]
        t.run(same_thread=True)
        assert calls[0].wait() == 1
        with pytest.raises(CallFailed, match="ValueError: below zero"):
            calls[1].wait()
        assert met == [(True, "by the test")] * 3
        write.delay(2)
        t.run()
        assert met[3] == (False, "by the test")


@pytest.mark.parametrize("same_thread", [False, True])
def test_a_function_that_raises_what_ends_an_iterator_fails(same_thread: bool) -> None:
    own = App("own")

    @own.task(retry=[])
    def first() -> int:
        return next(iter(list[int]()))

    with own.test() as t:
        call = first.delay()
        t.run(same_thread=same_thread)
        with pytest.raises(CallFailed, match="StopIteration"):
            call.wait()


def test_a_function_in_the_thread_of_the_test_sees_what_a_middleware_has_set() -> None:
    own, said, met = App("threads"), ContextVar("said", default="nothing"), list[str]()

    @own.middleware
    async def names(ctx: Context[Any], call_next: CallNext) -> Any:
        said.set(ctx.task)
        return await call_next()

    @own.task
    def look() -> None:
        met.append(said.get())

    with own.test() as test:
        call = look.delay()
        test.run(same_thread=True)
    assert met == [call.id]


def test_calls_of_calls_are_carried_out_in_all_queues() -> None:
    with app.test() as t:
        buy.delay("ann")
        t.run()
        assert sent == ["thank ann 1"]
        assert t.queue("mail").stats().drained


def test_schedules_tick_by_the_clock_of_the_test() -> None:
    with app.test() as t:
        t.run()
        assert sent == []
        t.advance(24 * 3600)
        t.run()
        assert sent == ["report"]
        app.schedules.set("thanks", thank.call("bob"), every=60)
        t.advance(60)
        t.run()
        assert sent == ["report", "thank bob 1"]
        assert app.result("thanks", thank).wait() == "thanks, bob"


async def test_a_coroutine_has_the_same() -> None:
    async with app.test() as t:
        result = await pay.adelay(5)
        with pytest.raises(TimeoutError):
            await result
        with pytest.raises(InvalidInput, match=r"await t\.arun\(\)"):
            t.run()
        await t.arun()
        assert await result == 5


def test_an_app_is_in_one_test_at_a_time() -> None:
    before = app.sender
    with app.test() as t:
        with pytest.raises(InvalidInput, match=r"App\('shop'\) is in a test already"), app.test():
            raise AssertionError
        pay.delay(1)
        assert len(t.run().runs) == 1
    assert app.sender is before


@pytest.mark.parametrize("seconds", [1e18, -1])
def test_the_clock_ends_in_the_year_9999(seconds: float) -> None:
    with app.test() as t:
        now = t.clock.now
        with pytest.raises(InvalidInput, match=r"seconds must be|the clock ends with the year 9999"):
            t.advance(seconds)
        assert t.clock.now == now
        result = pay.delay(5)
        t.run()
        assert result.wait() == 5


@pytest.mark.breaking
def test_a_function_that_hangs_is_stopped_by_its_own_max_runtime_without_waiting_for_it() -> None:
    app = App("hangs")

    @app.task(max_runtime=300, retry=[60])
    async def hang() -> int:
        await asyncio.Event().wait()
        return 1

    @app.task(max_runtime=40, retry=[])
    async def goes_on() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with app.test() as t:
        calls = [hang.options(max_runtime=30).delay(), goes_on.delay()]
        began = time.monotonic()
        ran = t.run()
        assert time.monotonic() - began < 15, "not the real time, and not the patience of a run"
        assert ran.seconds == pytest.approx(30 + 60 + 30, abs=1)
        assert [ran.runs[call.id] for call in calls] == [2, 1]
        assert ran.errors[calls[0].id] == "TimeoutError: max_runtime of 30 s is over"
        assert ran.errors[calls[1].id].startswith("TimeoutError: max_runtime of 40 s is over")


def test_a_clock_that_starts_now_lets_a_call_of_an_hour_from_now_wait_and_its_result_stay() -> None:
    begin = 1_800_000_000.0
    with app.test(start=begin) as t:
        result = pay.options(at=begin + 3600).delay(5)
        assert t.queue().inspect(result.id).due == begin + 3600
        assert t.run().seconds == 3600
        assert result.wait() == 5
    with pytest.raises(InvalidInput, match="start must be"):
        app.test(start=-1)


def test_calls_are_not_run_after_the_end_of_a_test_where_they_would_put_calls_for_real() -> None:
    app = App("shop", url="redis://nobody.invalid")

    @app.task
    def outer() -> None:
        raise AssertionError("it runs")

    with app.test() as t:
        outer.delay()
    with pytest.raises(InvalidInput, match="this test has ended"):
        t.run()
