"""Functions that are a plain `def`: how many run at once, and what runs in their thread around them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rig.waiting import until, wait_until
from timeoutq import AsyncQueue, Lease, Queue, Worker
from timeoutq.functions import App, BadFunction, CallExpired, CallFailed, CallNext, Calls, Context, threads
from timeoutq.functions.running import Hands
from timeoutq.verbs import sending
from timeoutq.worker.processes.ledger import SharedLedger
from timeoutq.worker.served import Place


@asynccontextmanager
async def working(calls: Calls, jobs: AsyncQueue) -> AsyncIterator[Worker]:
    worker = Worker(jobs, calls, signals=False)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


def holding(app: App) -> tuple[Any, threading.Event, list[int]]:
    """Give a def that waits, what lets it go on, and the numbers with which it has begun; the app is a mixed one."""
    goes_on, begun = threading.Event(), list[int]()

    @app.task(retry=[])
    def hold(number: int) -> None:
        begun.append(number)
        goes_on.wait(30)

    @app.task
    async def other() -> None: ...

    return hold, goes_on, begun


async def test_a_worker_of_functions_that_are_a_def_claims_no_more_than_it_has_threads_for(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    goes_on = threading.Event()

    @app.task
    def hold() -> str:
        goes_on.wait(30)
        return threading.current_thread().name

    calls = await app.aput([hold.call() for _ in range(9)])
    async with working(Calls(app, threads=3), jobs) as worker:
        await until(lambda: len(worker.running) == 3)
        assert (worker.concurrency, queue.stats().in_progress, queue.stats().todos) == (3, 3, 6)
        goes_on.set()
        assert len({await call for call in calls}) <= 3
    await app.aclose()


async def test_functions_that_wait_for_each_other_all_have_a_thread_also_behind_quick_ones(
    app: App, jobs: AsyncQueue
) -> None:
    meet = threading.Barrier(10)

    @app.task(retry=[])
    def work(number: int) -> int:
        if number % 50 >= 40:  # ten in fifty
            meet.wait(20)
        return number

    calls = await app.aput([work.call(number) for number in range(500)])
    async with working(Calls(app, threads=20), jobs):
        assert [await call for call in calls] == [*range(500)]
    await app.aclose()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let so many threads for functions start, and no more."""

    def limit(most: int) -> None:
        started = list[threading.Thread]()

        class Few(threading.Thread):
            def start(self) -> None:
                if len(started) == most:
                    raise RuntimeError("can't start new thread")
                started.append(self)
                super().start()

        monkeypatch.setattr(threads, "threading", SimpleNamespace(Thread=Few))

    return limit


async def test_where_no_more_threads_can_be_started_those_that_are_there_run_all_functions(
    app: App, jobs: AsyncQueue, few: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    few(1)

    @app.task(retry=[])
    def work(number: int) -> int:
        time.sleep(0.01)  # the others come meanwhile
        return number

    calls = await app.aput([work.call(number) for number in range(9)])
    async with working(Calls(app, threads=3), jobs):
        assert [await call for call in calls] == [*range(9)]
    told = [one for one in caplog.messages if one.startswith("no more than 1 threads run functions here, because")]
    assert len(told) == 1
    assert "can't start new thread: raise `ulimit -u`" in told[0]
    await app.aclose()


async def test_where_no_more_threads_can_be_started_the_end_of_a_call_is_told_before_the_next_begins(
    app: App, jobs: AsyncQueue, few: Callable[[int], None]
) -> None:
    few(1)
    signs = {name: threading.Event() for name in ("first", "others")}

    @app.task(retry=[])
    def waits(sign: str) -> bool:
        return signs[sign].wait(20)

    first = await waits.adelay("first")
    async with working(Calls(app, threads=3), jobs) as worker:
        await until(lambda: len(worker.running) == 1)
        others = await app.aput([waits.call("others")] * 2)
        await until(lambda: len(worker.running) == 3)
        signs["first"].set()
        async with asyncio.timeout(10):
            assert await first
        signs["others"].set()
        assert [await call for call in others] == [True, True]
    await app.aclose()


async def test_where_no_more_threads_can_be_started_the_time_of_a_call_counts_from_when_it_has_one(
    app: App, jobs: AsyncQueue, few: Callable[[int], None]
) -> None:
    few(1)
    goes_on, begun = threading.Event(), list[str]()

    @app.task(retry=[], max_runtime=0.1)
    def hold() -> None:
        begun.append("hold")
        goes_on.wait(30)

    @app.task(retry=[], max_runtime=0.1)
    def work() -> None:
        begun.append("work")

    async with working(Calls(app, threads=3), jobs) as worker:
        await hold.adelay()
        await until(lambda: worker.tally.failed == 1)  # and the function goes on, in the one thread
        await app.aput([work.call(), work.call()])
        await until(lambda: len(worker.running) == 2)
        await asyncio.sleep(0.3)  # longer than they may run
        assert (begun, worker.tally.failed) == (["hold"], 1)
        goes_on.set()
        await until(lambda: worker.tally.acked == 2)
    assert (begun, worker.tally.failed) == (["hold", "work", "work"], 1)
    await app.aclose()


async def test_where_threads_can_be_started_again_as_many_calls_run_as_before(
    app: App, jobs: AsyncQueue, few: Callable[[int], None]
) -> None:
    few(1)
    goes_on, meet = threading.Event(), threading.Barrier(3)

    @app.task(retry=[])
    def hold() -> bool:
        return goes_on.wait(30)

    @app.task(retry=[])
    def work() -> int:
        return meet.wait(20)

    async with working(Calls(app, threads=3), jobs) as worker:
        await hold.adelay()
        await until(lambda: len(worker.running) == 1)
        calls = await app.aput([work.call() for _ in range(3)])
        await until(lambda: len(worker.running) == 3)
        few(2)
        goes_on.set()
        assert sorted([int(await call) for call in calls]) == [0, 1, 2]
    await app.aclose()


async def threaded(crew: threads.Threads, call: Callable[[], Any]) -> Any:
    await crew.take()
    try:
        return await crew.run("task", call)
    finally:
        crew.give()


async def test_threads_can_be_started_again_also_while_all_that_are_there_hang(
    few: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "AGAIN", 0.05)
    few(1)
    crew, hangs = threads.Threads("worker", 2, print), threading.Event()
    hung = asyncio.create_task(threaded(crew, lambda: hangs.wait(30)))
    await asyncio.sleep(0)
    others = [asyncio.create_task(threaded(crew, lambda: "quick")) for _ in range(3)]
    hung.cancel()
    await asyncio.wait([hung])
    few(1)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*others) == ["quick"] * 3
    hangs.set()
    crew.close()


async def test_a_call_that_is_cancelled_when_its_function_has_just_ended_gives_its_thread_back_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crew, goes_on = threads.Threads("worker", 2, print), threading.Event()
    first = asyncio.create_task(threaded(crew, lambda: None))
    await asyncio.sleep(0)
    wait_until(lambda: crew._told)  # the loop is blocked while the thread tells it of the end
    first.cancel()
    await asyncio.wait([first])
    slow = asyncio.create_task(threaded(crew, lambda: goes_on.wait(30)))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await threaded(crew, lambda: "quick") == "quick", "it has a thread of its own"
    goes_on.set()
    assert await slow
    assert (crew._taken, caplog.messages) == (0, [])
    crew.close()


async def test_a_call_for_which_no_thread_can_be_started_goes_back_and_no_attempt_counts(
    app: App, jobs: AsyncQueue, queue: Queue, few: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    few(0)

    @app.task(retry=[])
    def work() -> None: ...

    call, *_ = await app.aput([work.call() for _ in range(4)])
    async with working(Calls(app, threads=3), jobs) as worker:
        await until(lambda: queue.stats().scheduled == 4)
        assert (worker.tally.failed, queue.inspect(call.id).failures) == (0, 0)
    assert "no thread can be started to run functions: can't start new thread: raise `ulimit -u`" in caplog.text
    await app.aclose()


@pytest.mark.breaking
async def test_the_time_of_a_def_counts_from_when_it_has_a_thread_and_an_async_def_needs_none(
    app: App, jobs: AsyncQueue
) -> None:
    ended: list[str] = []

    @app.task(max_runtime=2, retry=[])
    def long(number: int) -> None:
        time.sleep(0.8)  # four times this are longer than max_runtime
        ended.append(f"long {number}")

    @app.task
    async def short() -> None:
        ended.append("short")

    calls: list[Any] = [long.call(number) for number in range(4)]
    put = await app.aput([*calls, short.call()])
    async with working(Calls(app, threads=1), jobs) as worker:
        assert worker.concurrency == 100
        await until(lambda: worker.tally.acked == len(put))
    assert ended[0] == "short"
    assert sorted(ended[1:]) == [f"long {number}" for number in range(4)]
    await app.aclose()


async def test_a_def_that_waits_for_a_thread_can_be_cancelled(app: App, jobs: AsyncQueue, queue: Queue) -> None:
    hold, goes_on, begun = holding(app)
    first, second = await app.aput([hold.call(1), hold.call(2)])
    async with working(Calls(app, threads=1), jobs) as worker:
        await until(lambda: begun and len(worker.running) == 2)
        await jobs.cancel(second.id if begun == [1] else first.id, "ann")
        await until(lambda: len(worker.running) == 1)
        goes_on.set()
        await until(lambda: worker.tally.acked == 1)
    assert (len(begun), queue.stats().failed) == (1, 1)
    await app.aclose()


async def test_a_def_that_waits_for_a_thread_is_blamed_for_the_end_of_its_process_only_when_it_has_begun(
    app: App, jobs: AsyncQueue
) -> None:
    gate, begun = threading.Semaphore(0), list[int]()

    @app.task(retry=[])
    def hold(number: int) -> None:
        begun.append(number)
        gate.acquire(timeout=30)

    @app.task
    async def other() -> None: ...

    def left() -> tuple[int, int]:
        """Say how many calls have begun, and how many wait, for a supervisor whose process was killed now."""
        found = ledger.read()
        return len(found.started), len(found.held)

    await app.aput(hold.call(number) for number in range(3))
    ledger = SharedLedger(100)
    worker = Worker(jobs, Calls(app, threads=1), signals=False, ledger=ledger)
    running = asyncio.create_task(worker.run())
    await until(lambda: begun and len(worker.running) == 3)
    assert (len(begun), left()) == (1, (1, 2))
    gate.release()
    await until(lambda: len(begun) == 2 and worker.tally.acked == 1)
    assert left() == (1, 1), "the one that waited has begun"
    gate.release(2)
    await until(lambda: worker.tally.acked == 3)
    assert not any(ledger.read()[:3])
    worker.stop()
    await running
    ledger.close()
    await app.aclose()


async def test_a_def_that_waits_for_a_thread_goes_back_when_the_worker_is_to_stop(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    goes_on, begun, ended = threading.Event(), list[int](), list[str]()

    @app.task(retry=[])
    def hold(number: int) -> None:
        begun.append(number)
        goes_on.wait(30)

    @app.task
    async def waits() -> None:
        await until(goes_on.is_set)
        ended.append("waits")

    calls: list[Any] = [hold.call(number) for number in range(4)]
    await app.aput([*calls, waits.call()])
    worker = Worker(jobs, Calls(app, threads=1), signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(worker.running) == 5 and len(begun) == 1)
    worker.stop()
    goes_on.set()
    await running
    assert (len(begun), ended, worker.tally.acked, worker.tally.released) == (1, ["waits"], 2, 3)
    assert (queue.stats().todos, queue.stats().counters.get("failed", 0)) == (3, 0)
    assert {lease.attempt for lease in queue.claim(9)} == {1}
    await app.aclose()


async def test_who_waits_for_a_thread_goes_back_at_once_and_who_has_one_may_end(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    hold, goes_on, begun = holding(app)
    await app.aput([hold.call(number) for number in range(5)])
    worker = Worker(jobs, Calls(app, threads=2), signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(worker.running) == 5 and len(begun) == 2)
    worker.stop()
    await until(lambda: worker.tally.released == 3)
    assert (queue.stats().todos, queue.stats().in_progress, len(begun)) == (3, 2, 2)
    goes_on.set()
    await running
    assert (worker.tally.acked, worker.tally.released, worker.tally.failed) == (2, 3, 0)
    await app.aclose()


async def test_a_def_whose_turn_comes_when_the_worker_is_to_stop_goes_back_and_leaves_its_thread_free(
    app: App, jobs: AsyncQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, places, wait = list[int](), list[Place](), Place.wait
    worker = Worker(jobs, Calls(app, threads=1), signals=False)

    def stopped(self: Place, lease: Lease) -> None:
        places.append(self)
        worker.stop()  # and a thread is free
        wait(self, lease)

    monkeypatch.setattr(Place, "wait", stopped)

    @app.task(retry=[])
    def hold(number: int) -> None:
        begun.append(number)

    call = await hold.adelay(1)
    async with asyncio.timeout(30):
        tally = await worker.run()
    assert (begun, tally.acked, tally.released, tally.failed) == ([], 0, 1, 0)
    assert [place.shared[Hands].threads.free.locked() for place in places] == [False]
    assert list(queue.states(call.id)) == ["todos"]
    await app.aclose()


async def test_the_record_of_a_def_that_waited_for_a_thread_begins_when_it_had_one(app: App, jobs: AsyncQueue) -> None:
    goes_on, begun = threading.Event(), list[int]()

    @app.task(keep_result=60)
    def hold(number: int) -> int:
        begun.append(number)
        goes_on.wait(30)
        return number

    @app.task
    async def other() -> None: ...

    calls = await app.aput([hold.call(0), hold.call(1)])
    async with working(Calls(app, threads=1), jobs) as worker:
        await until(lambda: begun and len(worker.running) == 2)
        await asyncio.sleep(1)
        goes_on.set()
        assert [await call for call in calls] == [0, 1]
    records = [(await calls[number].ainfo()).record for number in begun]
    first, second = (record.attempts[0].start for record in records if record is not None)
    assert first is not None
    assert second is not None
    assert second - first > 0.9
    await app.aclose()


async def test_a_def_that_waits_for_a_thread_stays_when_a_suspect_comes(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    hold, goes_on, begun = holding(app)
    suspect = hold.delay(0)
    for _ in range(2):
        queue.run(sending.answers(queue.talk, queue.operations.crash(queue.claim(1), "killed")))
    (lease,) = queue.claim(1)
    await app.aput([hold.call(1), hold.call(2)])
    async with working(Calls(app, threads=1), jobs) as worker:
        await until(lambda: begun and len(worker.running) == 2)
        queue.release(lease)
        await until(lambda: suspect.id in [lease.task for lease in worker.held.values()])
        goes_on.set()
        await until(lambda: worker.tally.acked == 3)
    assert (sorted(begun[:2]), begun[2:], worker.tally.released) == ([1, 2], [0], 0)
    await app.aclose()


async def test_a_def_whose_time_is_over_when_it_gets_a_thread_never_begins(app: App, jobs: AsyncQueue) -> None:
    goes_on, begun = threading.Event(), list[str]()

    @app.task
    def hold(name: str) -> bool:
        begun.append(name)
        return goes_on.wait(30)

    @app.task
    async def other() -> None: ...

    async with working(Calls(app, threads=1), jobs):
        await hold.adelay("first")
        await until(lambda: begun)
        late = await hold.options(expires=0.5).adelay("late")
        await asyncio.sleep(0.6)
        goes_on.set()
        with pytest.raises(CallExpired):
            await late
    assert begun == ["first"]
    await app.aclose()


def test_a_middleware_that_is_a_def_runs_in_the_thread_of_the_function_inside_of_all_others() -> None:
    app, seen = App("shop"), list[tuple[str, int]]()

    def note(what: str) -> None:
        seen.append((what, threading.get_ident()))

    @app.middleware
    def inner(ctx: Context[None], call_next: CallNext) -> Any:
        note("inner")
        return [*call_next(replace(ctx, attempt=7)), "inner"]

    @app.middleware
    async def outer(ctx: Context[None], call_next: CallNext) -> Any:
        note("outer")
        return [*await call_next(), "outer"]

    @app.middleware
    def innermost(ctx: Context[None], call_next: CallNext) -> Any:
        note("innermost")
        try:
            return call_next()
        finally:
            note("innermost again")

    @app.task
    def function(ctx: Context[None]) -> list[Any]:
        note("function")
        return [ctx.attempt]

    with app.test() as t:
        call = function.delay()
        t.run()
        assert call.wait() == [7, "inner", "outer"]
    assert [what for what, _ in seen] == ["outer", "inner", "innermost", "function", "innermost again"]
    assert len({thread for what, thread in seen if what != "outer"}) == 1
    assert seen[0][1] != seen[1][1]


def test_what_a_middleware_that_is_a_def_raises_fails_the_call_and_what_it_catches_does_not() -> None:
    app = App("shop")

    @app.middleware
    def careful(ctx: Context[None], call_next: Callable[..., Any]) -> Any:
        try:
            return call_next() if ctx.task != "odd" else call_next("odd")
        except ZeroDivisionError:
            return 0

    @app.task(retry=[])
    def divide(by: int) -> int:
        return 1 // by

    with app.test() as t:
        caught, odd = divide.delay(0), divide.options(id="odd").delay(1)
        t.run()
        assert caught.wait() == 0
        with pytest.raises(CallFailed, match=r"a middleware calls call_next\(\), or call_next\(ctx\), not with 'odd'"):
            odd.wait()


async def test_a_middleware_that_is_a_def_hears_that_the_function_was_given_up(app: App, jobs: AsyncQueue) -> None:
    goes_on, seen = threading.Event(), list[object]()

    @app.middleware
    def tells(ctx: Context[None], call_next: CallNext) -> Any:
        try:
            seen.append(call_next())
        except BaseException as error:
            seen.append((type(error), ctx.cancelled))
            raise

    @app.task(max_runtime=0.1, retry=[])
    def long() -> str:
        goes_on.wait(30)
        return "late"

    call = await long.adelay()
    async with working(Calls(app), jobs):
        with pytest.raises(CallFailed, match=r"max_runtime of 0\.1 s is over"):
            await call
        goes_on.set()
        await until(lambda: bool(seen))
    assert seen == [(asyncio.CancelledError, True)]
    await app.aclose()


def test_an_app_has_no_middleware_that_is_a_def_beside_a_function_that_is_an_async_def() -> None:
    def around(ctx: Context[None], call_next: CallNext) -> Any:
        return call_next()

    async def function() -> None: ...

    first = App("first")
    first.middleware(around)
    with pytest.raises(
        BadFunction, match=r"^function\(\) is an async def: a middleware that is a def runs in the thread"
    ):
        first.task(function)
    second = App("second")
    second.task(function)
    with pytest.raises(BadFunction, match=r"around is a def, and function\(\) an async def"):
        second.middleware(around)
