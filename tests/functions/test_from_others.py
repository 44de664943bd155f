"""What people had elsewhere, by the help pages from-rq and from-functions: each test is named after its row."""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.functions.running import at_work, work
from tests.rig.waiting import wait_until
from timeoutq import Answer, InvalidInput, Politeness, Queue, State
from timeoutq.functions import App, Context, Limit


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


def test_job_attributes(app: App, queue: Queue) -> None:
    @app.task(retry=[3600])
    def parse(page: str) -> int:
        raise ValueError(f"no page {page}")

    result = parse.delay("x")
    queue.pause()
    info = result.info()
    assert (result.id, result.queue, info.state, info.failures) == (info.task, queue.name, State.TODOS, 0)
    # job.func_name, job.args, job.kwargs; and when it was put, for the record of the call
    assert info.payload == {"v": 1, "f": "parse", "a": [], "k": {"page": "x"}, "c": info.payload["c"]}
    queue.resume()
    with at_work(app):
        wait_until(lambda: result.info().state is State.SCHEDULED)
    info = result.info()
    assert (info.failures, info.error) == (1, "ValueError: no page x")
    assert info.due is not None and info.error_at is not None
    assert info.due - info.error_at == pytest.approx(3600, abs=1)


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


def test_scheduler_schedule_with_an_interval_and_repeat(app: App, queue: Queue) -> None:
    ran: list[float | None] = []

    @app.task
    async def poll(ctx: Context[None], source: str) -> None:
        assert source == "feed"
        ran.append(ctx.tick)

    begins = datetime.fromtimestamp(int(time.time()) + 1, UTC)
    app.schedules.set("poll", poll.call("feed"), every=1, start=begins, times=3)
    with at_work(app):
        (info,) = wait_until(lambda: [one for one in app.schedules.list()[queue.name] if one.state == "ended"], 30)
        wait_until(lambda: len(ran) == info.put)
    assert (info.put + info.skipped, info.next) == (3, None)
    assert set(ran) <= {begins.timestamp() + after for after in range(3)}


def test_change_execution_time(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    first = one.options(after=3600, id="later").delay()
    due = first.info().due
    moved = one.options(after=7200, id="later").delay()  # put again with another time
    assert (moved.answer, queue.stats().scheduled) == (Answer.SCHEDULED, 1)
    assert due is not None and moved.info().due == pytest.approx(due + 3600, abs=5)
    app.schedules.set("often", one.call(), every=60)
    info = app.schedules.move("often", cron="0 9 * * *", tz="Asia/Tokyo")
    assert (info.timing["cron"], info.task) == ("0 9 * * *", "often")


def test_cron_task_and_never_skip(app: App, queue: Queue) -> None:
    ran: list[float | None] = []

    with app.test() as t:

        @app.task(cron="0 * * * *", tz="Europe/Berlin", missed="all", overlap=True)
        async def hourly(ctx: Context[None]) -> None:
            ran.append(ctx.tick)

        t.run()
        assert ran == []  # what was due before the first declaration is not put
        t.advance(5 * 3600)  # nobody was there for five hours
        t.run()
        assert len(set(ran)) == 5
        assert {(tick or 1) % 3600 for tick in ran} == {0}


def test_priorities_within_a_queue(app: App, queue: Queue) -> None:
    seen: list[int] = []

    @app.task
    def plain(n: int) -> None: ...

    with pytest.raises(InvalidInput, match="polite"):
        plain.options(priority=5).delay(1)
    queue.configure(politeness=Politeness(delay=0, per_host=10_000))

    @app.task(limit=Limit(concurrency=1))
    def note(n: int) -> None:
        seen.append(n)

    app.put(note.options(priority=n).call(n) for n in (0, 1, 3, 2))
    work(app)
    assert seen == [3, 2, 1, 0]


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


def test_scheduler_cron_with_a_time_zone(app: App, queue: Queue) -> None:
    @app.task
    def report(to: str) -> str:
        return to

    info = app.schedules.set("report:ann", report.call("ann"), cron="30 7 * * 1-5", tz="Europe/Berlin")
    assert info.next is not None
    at = datetime.fromtimestamp(info.next, ZoneInfo("Europe/Berlin"))
    assert (at.hour, at.minute, at.weekday() < 5) == (7, 30, True)
    assert info.next > time.time()
    assert queue.stats().known == 0  # nothing is put before its time


@pytest.mark.parametrize("where", ["a server", "a test"])
def test_queue_jobs_and_job_delete(app: App, queue: Queue, where: str) -> None:
    @app.task
    def parse(page: str) -> None: ...

    def jobs() -> None:
        result = parse.delay("x")
        assert [entry.task for entry in app.queue().each("todos")] == [result.id]
        app.queue().forget(result.id)
        assert result.info().state is None

    if where == "a server":
        jobs()
        return
    with app.test():
        jobs()
