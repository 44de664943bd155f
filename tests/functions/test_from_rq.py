"""What people had in RQ, row by row of the help page `from-functions`: each test is named after its row."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.functions.running import at_work, work
from tests.rig.calling import failure
from tests.rig.command import Say, say, server
from tests.rig.processes import Processes
from tests.rig.waiting import wait_until
from timeoutq import Answer, Queue, State
from timeoutq.functions import App, CallCancelled, CallFailed, CallGone, Context, Limit

__all__ = ["say", "server"]


def test_enqueue_a_function_with_its_arguments(app: App) -> None:
    @app.task
    def count_words(text: str, *, least: int = 1) -> int:
        return sum(len(word) >= least for word in text.split())

    first, second = count_words.delay("a few words"), count_words.delay("a few words", least=2)
    assert work(app).acked == 2
    assert (first.wait(10), second.wait(10)) == (3, 2)
    assert count_words("a few words") == 3  # a plain call runs here and now


def test_enqueue_many(app: App, queue: Queue) -> None:
    @app.task
    async def square(n: int) -> int:
        return n * n

    results = app.put(square.call(n) for n in range(1200))
    assert queue.stats().todos == 1200
    work(app)
    assert [result.wait(10) for result in results] == [n * n for n in range(1200)]


def test_job_id(app: App, queue: Queue) -> None:
    @app.task
    async def welcome(user: int) -> int:
        return user

    first, second = (welcome.options(id="welcome:42").delay(42) for _ in range(2))
    assert (first.id, first.answer, second.answer) == ("welcome:42", Answer.ADDED, Answer.TODOS)
    assert work(app).acked == 1
    assert app.result("welcome:42", welcome).wait(10) == 42
    assert welcome.options(id="welcome:42").delay(42).answer == Answer.ADDED  # it has ended: so it may run again


def test_unique_and_the_result_that_is_not_added(app: App) -> None:
    @app.task
    async def note(word: str) -> str:
        return word

    first, second = (note.options(id="same").delay(word) for word in ("one", "two"))
    assert (first.added, second.added) == (True, False)
    assert work(app).acked == 1
    assert second.wait(10) == "one"


def test_enqueue_at_and_enqueue_in(app: App, queue: Queue) -> None:
    began: list[float] = []

    @app.task
    async def remind(who: str) -> str:
        began.append(time.time())
        return who

    at = datetime.now(UTC) + timedelta(seconds=0.5)
    results = [remind.options(at=at).delay("ann"), remind.options(after=timedelta(seconds=0.5)).delay("bob")]
    assert [result.info().state for result in results] == [State.SCHEDULED] * 2
    due = [result.info().due for result in results]
    with at_work(app):
        assert [result.wait(20) for result in results] == ["ann", "bob"]
    assert min(began) >= at.timestamp() - 0.01
    assert due[0] == pytest.approx(at.timestamp(), abs=0.01)


@pytest.mark.parametrize(
    ("waits", "runs"), [([0, 0, 0], 4), ([0.1, 0.2], 3), ([], 1)], ids=["Retry(3)", "intervals", "no Retry"]
)
def test_retry_max_and_intervals(app: App, waits: list[float], runs: int) -> None:
    ran: list[tuple[int, float]] = []

    @app.task(retry=waits)
    async def fetch(ctx: Context[None]) -> None:
        ran.append((ctx.attempt, time.monotonic()))
        raise OSError("busy")

    result = fetch.options(keep_result=60).delay()
    work(app)
    assert failure(result).message == "busy"
    assert [attempt for attempt, _ in ran] == list(range(1, runs + 1))
    pauses = [later - before for (_, before), (_, later) in pairwise(ran)]
    assert all(pause >= wait - 0.01 for pause, wait in zip(pauses, waits, strict=True))


def test_get_status(app: App, queue: Queue) -> None:
    goes_on = threading.Event()

    @app.task
    def slow() -> bool:
        return goes_on.wait(20)

    result = slow.delay()
    assert [result.info().state, app.result("never-put").info().state] == ["todos", None]
    with at_work(app):
        wait_until(lambda: result.info().state == "in_progress")
        goes_on.set()
        assert result.wait(20)
    assert result.info().state == "done"


def test_job_attributes(app: App, queue: Queue) -> None:
    @app.task(retry=[3600])
    def parse(page: str) -> int:
        raise ValueError(f"no page {page}")

    result = parse.delay("x")
    queue.pause()
    info = result.info()
    assert (result.id, result.queue, info.state, info.failures) == (info.task, queue.name, State.TODOS, 0)
    assert info.payload == {"v": 1, "f": "parse", "a": [], "k": {"page": "x"}}  # job.func_name, job.args, job.kwargs
    queue.resume()
    with at_work(app):
        wait_until(lambda: result.info().state is State.SCHEDULED)
    info = result.info()
    assert (info.failures, info.error) == (1, "ValueError: no page x")
    assert info.due is not None and info.error_at is not None
    assert info.due - info.error_at == pytest.approx(3600, abs=1)


def test_job_holder_and_lease_while_it_runs(app: App, queue: Queue) -> None:
    goes_on = threading.Event()

    @app.task
    def slow() -> bool:
        return goes_on.wait(20)

    result = slow.delay()
    with at_work(app):
        wait_until(lambda: result.info().state is State.IN_PROGRESS)
        info = result.info()
        wait_until(lambda: info.holder in {worker.worker for worker in queue.workers()})
        assert info.lease_left is not None and 0 < info.lease_left <= 5
        goes_on.set()
        assert result.wait(10)


def test_result_ttl(app: App, raw: redis.Redis, queue: Queue) -> None:
    @app.task(keep_result=60)
    async def kept() -> list[int]:
        return [1, 2]

    @app.task(keep_result=0.2)
    async def soon_gone() -> int:
        return 3

    @app.task(keep_result=0)
    async def never() -> int:
        return 4

    results = kept.delay(), soon_gone.delay(), never.delay()
    work(app)
    assert [results[0].wait(10) for _ in range(2)] == [[1, 2], [1, 2]]  # it is read as often as you like
    key = queue.operations.key(f"result:{results[0].id}")
    assert 50_000 < raw.pttl(key) <= 60_000
    wait_until(lambda: not raw.exists(queue.operations.key(f"result:{results[1].id}")))
    with pytest.raises(CallGone, match="its result has expired"):
        results[1].wait(1)
    with pytest.raises(ValueError, match="its result is not kept"):
        results[2].wait(1)


def test_exc_info_and_failure_ttl(app: App, queue: Queue, raw: redis.Redis, say: Say) -> None:
    @app.task(retry=[])
    def divide(by: int) -> float:
        secret = "not in a traceback"
        return len(secret) / by

    result = divide.delay(0)
    work(app)
    told = failure(result)
    assert (told.error, told.message) == ("ZeroDivisionError", "division by zero")
    assert told.traceback is not None and "return len(secret) / by" in told.traceback
    assert "not in a traceback" not in told.traceback.replace('secret = "not', "")
    assert result.info().traceback is not None
    assert 6.9 * 86_400_000 < raw.pttl(queue.operations.key(f"result:{result.id}")) <= 7 * 86_400_000
    typed = say("result", queue.name, result.id)
    assert (typed.code, typed.texts[-1]) == (1, "ZeroDivisionError: division by zero")


def test_failed_job_registry_and_requeue(app: App, queue: Queue, say: Say) -> None:
    is_broken = [True]

    @app.task(retry=[])
    def flaky() -> int:
        if is_broken:
            raise OSError("down")
        return 5

    results = [flaky.delay() for _ in range(3)]
    work(app)
    assert {info.task for info in queue.each("failed")} == {result.id for result in results}
    is_broken.clear()
    assert say("retry", queue.name, "--all").code == 0
    work(app)
    assert [result.wait(10) for result in results] == [5] * 3


def test_a_worker_over_several_queues(url: str, name: str) -> None:
    names = [f"{name}-{end}" for end in ("high", "low")]
    app, seen = App(name, queues=names, url=url), list[str]()

    @app.task(queue=names[1])
    async def note(word: str) -> None:
        seen.append(word)

    for word in ("slow", "late"):
        note.delay(word)
    for word in ("quick", "first"):
        note.options(queue=names[0]).delay(word)
    work(app, concurrency=1, prefetch=0)
    assert ({*seen[:2]}, {*seen[2:]}) == ({"quick", "first"}, {"slow", "late"})
    app.close()
    for one in names:
        with Queue(one, url) as opened:
            opened.purge()


def test_rq_worker_burst_and_its_processes(queue: Queue, url: str, run: Processes) -> None:
    shop = App(queue.name, url=url)

    @shop.task(keep_result=60)
    async def greet(name: str) -> str: ...  # type: ignore[empty-body]  # the worker runs another

    calls = [greet.delay(str(n)) for n in range(20)]
    worker = run.start("worker", "--app", "tests.rig.shop:app", "--burst", "-p", "2", SHOP_QUEUE=queue.name)
    assert worker.wait(60) == 0, run.log(worker)
    assert [call.wait(10) for call in calls] == [f"hello {n}" for n in range(20)]
    shop.close()


def test_suspend_and_resume(app: App, queue: Queue, say: Say) -> None:
    @app.task
    async def one() -> int:
        return 1

    with at_work(app):
        assert one.delay().wait(20) == 1
        assert say("pause", queue.name).code == 0
        result = one.delay()
        with pytest.raises(TimeoutError):
            result.wait(0.5)
        assert result.info().state is State.TODOS
        assert "paused" in say("why", queue.name, result.id).out
        assert say("resume", queue.name).code == 0
        assert result.wait(20) == 1


def test_rq_info(app: App, queue: Queue, say: Say) -> None:
    @app.task
    async def one(n: int) -> int:
        return n

    queue.pause()
    app.put(one.call(n) for n in range(3))
    with at_work(app):
        wait_until(lambda: queue.stats().workers)
        wait_until(lambda: say("functions", queue.name).code == 0)
        row = next(line for line in say("queues").lines if line[0] == queue.name)
        assert row[1:9] == ["3", "3", "0", "0", "0", "0", "0", "1"]
        assert say("status", queue.name).facts["todos"] == "3"
        (document,) = say("status", queue.name, "--json").documents
        assert [worker["pid"] for worker in document["workers"]] == [os.getpid()]
        assert say("functions", queue.name).lines[0][:3] == ["one", queue.name, "n"]
    queue.resume()


def test_job_cancel_and_send_stop_job_command(app: App, queue: Queue) -> None:
    seen: list[str] = []

    @app.task
    async def slow() -> int:
        try:
            return await asyncio.sleep(60, 1)
        except asyncio.CancelledError:
            seen.append("stopped")
            raise

    later = slow.options(after=3600).delay()
    assert later.cancel(by="ops") is Answer.CANCELLED
    result = slow.delay()
    with at_work(app):
        wait_until(lambda: result.info().state is State.IN_PROGRESS)
        assert result.cancel(by="ops") is Answer.CANCELLING
        for one in (later, result):
            with pytest.raises(CallCancelled, match="was cancelled by ops"):
                one.wait(20)
    assert seen == ["stopped"]


def test_job_timeout(app: App) -> None:
    @app.task(max_runtime=0.2, retry=[])
    async def slow() -> int:
        return await asyncio.sleep(60, 1)

    result = slow.delay()
    with at_work(app):
        assert failure(result, 20).message == "max_runtime of 0.2 s is over"


def test_depends_on(app: App, queue: Queue) -> None:
    @app.task
    async def fetch(n: int) -> int:
        return n * 10

    @app.task
    def total(ctx: Context[None], start: int) -> int:
        assert ctx.batch is not None
        return start + sum(ctx.batch.results(int))

    after_one = fetch.call(1).then(fetch).delay()
    after_all = app.batch([fetch.call(n) for n in range(4)], then=total.call(5))
    with at_work(app):
        assert (after_one.wait(20), after_all.then.wait(20)) == (100, 65)


def test_group(app: App) -> None:
    @app.task
    async def square(n: int) -> int:
        return n * n

    group = app.batch([square.call(n) for n in range(3)])
    work(app)
    assert [result.wait(10) for result in group.calls] == [0, 1, 4]


def test_rate_limit(app: App) -> None:
    at_once, most = [0], [0]

    @app.task(limit=Limit(concurrency=2))
    async def fetch() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        await asyncio.sleep(0.05)
        at_once[0] -= 1

    app.put(fetch.call() for _ in range(8))
    assert work(app).acked == 8
    assert most == [2]


def test_the_context_of_an_app_that_the_program_of_the_worker_pushes(app: App) -> None:
    current: ContextVar[str] = ContextVar("current")

    @app.middleware
    async def inside(ctx: Context[Any], call_next: Any) -> Any:
        current.set("the app")
        return await call_next()

    @app.task
    def plain() -> str:
        return current.get()

    @app.task
    async def coroutine() -> str:
        return current.get()

    results = plain.delay(), coroutine.delay()
    work(app)
    assert [result.wait(10) for result in results] == ["the app", "the app"]


def test_on_success_and_on_failure(app: App) -> None:
    told: list[str] = []

    @app.middleware
    async def tell(ctx: Context[Any], call_next: Any) -> Any:
        try:
            found = await call_next()
        except Exception as error:
            told.append(f"{ctx.function} raised {error}")
            raise
        told.append(f"{ctx.function} returned {found}")
        return found

    @app.task(retry=[])
    def half(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    good, bad = half.delay(4), half.delay(3)
    work(app)
    assert (good.wait(10), failure(bad).message) == (2, "odd")
    assert sorted(told) == ["half raised odd", "half returned 2"]


def test_on_failure_once_after_the_last_attempt(app: App) -> None:
    ran: list[int] = []

    @app.task(retry=[0, 0])
    def half(ctx: Context[None]) -> int:
        ran.append(ctx.attempt)
        raise ValueError("odd")

    @app.task
    def ended(ctx: Context[None]) -> list[str]:
        assert ctx.batch is not None
        return [failed.message for failed in ctx.batch.failures()]

    batch = app.batch([half.call()], then=ended.call())
    work(app)
    assert (batch.then.wait(10), ran) == (["odd"], [1, 2, 3])


def test_get_current_job(app: App) -> None:
    @app.task
    async def whoami(ctx: Context[None], word: str) -> list[str]:
        return [ctx.function, ctx.task, str(ctx.attempt), word]

    result = whoami.options(id="me").delay("hi")
    work(app)
    assert result.wait(10) == ["whoami", "me", "1", "hi"]


def test_job_meta_and_a_def_that_is_cancelled(app: App, queue: Queue) -> None:
    @app.task
    def count(ctx: Context[None], to: int) -> None:
        for n in range(to):
            ctx.progress(n, to, f"page {n}")
            if ctx.cancelled:
                return
            time.sleep(0.01)

    result = count.options(keep_result=60).delay(100_000)
    with at_work(app):
        wait_until(lambda: result.info().progress)
        far = result.info().progress
        assert far is not None
        assert (far.total, far.text) == (100_000, f"page {far.done:g}")
        further = wait_until(lambda: (now := result.info().progress) and now.done > far.done and now)
        assert further
        result.cancel(by="kim")
        with pytest.raises(CallCancelled, match="cancelled by kim"):
            result.wait(20)
    assert result.info().progress is None


def test_job_meta_in_a_coroutine(app: App) -> None:
    goes_on = threading.Event()

    @app.task
    async def count(ctx: Context[None]) -> int:
        for n in range(50):  # the newest one is sent, and the others are not
            ctx.progress(n, text="counting")
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="done"):
            ctx.progress(float("nan"))
        assert not ctx.cancelled
        return 1

    result = count.delay()
    with at_work(app):
        wait_until(lambda: (far := result.info().progress) and far.done == 49)
        goes_on.set()
        assert result.wait(20) == 1


def test_is_async_false_in_tests(app: App) -> None:
    @app.task(retry=[3600])
    def flaky(ctx: Context[None]) -> int:
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.attempt

    began = time.monotonic()
    with app.test() as t:
        result = flaky.delay()
        assert t.run().seconds == 3600
        assert result.wait() == 2
    assert time.monotonic() < began + 60


def test_repeat(app: App, queue: Queue) -> None:
    ran: list[float | None] = []

    @app.task
    async def tick(ctx: Context[None]) -> None:
        ran.append(ctx.tick)

    app.schedules.set("three times", tick.call(), every=1, times=3)
    with at_work(app):
        wait_until(lambda: app.schedules.list()[queue.name][0].state == "ended", 30)
        wait_until(lambda: len(ran) == 3)
    assert ran == sorted(set(ran), key=lambda at: at or 0.0)
    assert None not in ran


def test_queue_jobs_and_job_delete_and_empty(app: App, queue: Queue, say: Say) -> None:
    @app.task
    async def one() -> int:
        return 1

    ids = {one.delay().id for _ in range(3)}
    assert {line[0] for line in say("list", queue.name, "todos").lines} == ids
    first = ids.pop()
    assert list(queue.forget(first)) == [Answer.TODOS]
    with pytest.raises(CallGone):
        app.result(first, one).wait(1)
    assert {info.task for info in queue.each("todos")} == ids
    assert queue.cancel(*ids) and queue.stats().todos == 0


def test_a_worker_that_is_killed_loses_no_job(queue: Queue, url: str, run: Processes) -> None:
    shop = App(queue.name, url=url)

    @shop.task(keep_result=60, name="hold")
    async def hold(seconds: float) -> int: ...  # type: ignore[empty-body]  # the worker runs another

    result = hold.delay(1.5)
    words = ("worker", "--app", "tests.rig.shop:app", "--no-supervise", "--timeout", "1s")
    first = run.start(*words, SHOP_QUEUE=queue.name)
    wait_until(lambda: result.info().state is State.IN_PROGRESS, 30)
    first.kill()
    first.wait()
    second = run.start(*words, SHOP_QUEUE=queue.name)
    assert result.wait(30) == second.pid
    assert queue.stats().counters["expired"] == 1
    shop.close()


def test_arguments_that_do_not_fit_are_refused_where_the_job_is_enqueued(app: App, queue: Queue) -> None:
    @app.task
    def send(to: str) -> None: ...

    wrong: Any = send
    with pytest.raises(TypeError, match=r"send\(\) got 1 for 'to'"):
        wrong.delay(1)
    with pytest.raises(TypeError, match="send"):
        wrong.delay("a", subject="b")
    assert queue.stats().known == 0


def test_pickle_is_not_used(app: App, queue: Queue) -> None:
    @app.task
    def send(at: datetime) -> datetime:
        return at + timedelta(days=1)

    result = send.delay(datetime(2026, 5, 1, tzinfo=UTC))
    assert json.loads(json.dumps(result.info().payload)) == {
        "v": 1, "f": "send", "a": [], "k": {"at": "2026-05-01T00:00:00Z"},
    }  # fmt: skip
    work(app)
    assert result.wait(10) == datetime(2026, 5, 2, tzinfo=UTC)
    with pytest.raises(CallFailed):
        queue.put({"bad": b"\x80\x04"})
        work(app)
        app.result("bad").wait(5)
