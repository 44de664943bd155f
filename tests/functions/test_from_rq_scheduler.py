"""What people had in rq-scheduler, row by row of the help page `from-functions`: each test is named after its row."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.functions.running import at_work, work
from tests.rig.command import Say, say, server
from tests.rig.waiting import wait_until
from timeoutq import Answer, InvalidInput, Queue, State
from timeoutq.functions import App, CallCancelled, Context

__all__ = ["say", "server"]


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
    assert ran[0] == begins.timestamp()


def test_enqueue_at_and_enqueue_in(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    at = datetime.now(UTC) + timedelta(hours=1)
    assert one.options(at=at).delay().info().due == pytest.approx(at.timestamp(), abs=0.01)
    assert one.options(after=timedelta(minutes=5)).delay().info().due == pytest.approx(time.time() + 300, abs=5)
    with pytest.raises(InvalidInput, match="zone"):
        one.options(at=datetime.now()).delay()  # noqa: DTZ005  # that is the point


def test_scheduler_cancel(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    once = one.options(after=0.3).delay()
    app.schedules.set("often", one.call(), every=1)
    assert once.cancel(by="kim") is Answer.CANCELLED
    assert app.schedules.cancel("often")
    with at_work(app), pytest.raises(CallCancelled, match="cancelled by kim"):
        once.wait(10)
    assert app.schedules.list() == {queue.name: []}
    assert queue.stats().counters.get("ticked", 0) == 0


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


def test_get_jobs_with_times(app: App, queue: Queue, say: Say) -> None:
    @app.task
    async def one() -> int:
        return 1

    one.options(after=3600, id="later").delay()
    one.options(after=60, id="sooner").delay()
    app.schedules.set("often", one.call(), every=60)
    assert [info.task for info in queue.list("scheduled")] == ["sooner", "later"]
    assert [line[0] for line in say("list", queue.name, "scheduled").lines] == ["sooner", "later"]
    row = say("schedules", "list", queue.name).lines[0]
    assert (row[:3], row[8:]) == (["often", "running", "every 1m"], ["often", "set"])


def test_job_in_scheduler(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    one.options(after=60, id="later").delay()
    app.schedules.set("often", one.call(), every=60)
    found = queue.states("later", "other")
    assert (found["later"], found["other"]) == (Answer.SCHEDULED, Answer.UNKNOWN)
    assert queue.schedules.get("often") is not None
    assert queue.schedules.get("other") is None


def test_a_scheduler_process_is_not_needed_and_two_put_no_tick_twice(app: App, queue: Queue) -> None:
    ran: list[float | None] = []

    @app.task(every=1, overlap=True)
    async def sweep(ctx: Context[None]) -> None:
        ran.append(ctx.tick)

    with at_work(app), at_work(app), at_work(app):
        wait_until(lambda: len(ran) >= 4, 30)
    assert len(set(ran)) == len(ran)
    (info,) = app.schedules.list()[queue.name]
    assert info.put == queue.stats().counters["ticked"] == len(ran) + queue.stats().todos


def test_an_idle_worker_wakes_for_a_task_that_is_due_before_the_one_it_waits_for(app: App, queue: Queue) -> None:
    @app.task
    async def now() -> float:
        return time.time()

    later = now.options(after=3600).delay()
    with at_work(app):
        wait_until(queue.workers)
        sooner = now.options(after=0.3).delay()
        due = sooner.info().due
        assert due is not None
        assert sooner.wait(20) < due + 1.0
        assert later.info().state is State.SCHEDULED


def test_a_queue_that_nobody_served_for_a_while_puts_the_last_tick_alone(app: App, queue: Queue) -> None:
    ran: list[float | None] = []

    @app.task
    async def poll(ctx: Context[None]) -> None:
        ran.append(ctx.tick)

    with app.test() as t:
        set_ = app.schedules.set("poll", poll.call(), every=60)
        t.advance(3600)
        t.run()
        assert set_.next is not None
        assert ran == [set_.next + 3540]


def test_what_is_in_progress_at_a_tick_is_not_put_again(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    app.schedules.set("one", one.call(), every=1)
    wait_until(lambda: queue.schedules.tick(), 10)
    (lease,) = queue.claim()

    def skipped() -> int:
        queue.schedules.tick()
        return sum(info.skipped for info in queue.schedules.each())

    wait_until(skipped)
    assert ([info.put for info in queue.schedules.each()], queue.stats().todos) == ([1], 0)
    queue.ack(lease)
    wait_until(lambda: queue.schedules.tick(), 10)
    assert queue.stats().todos == 1
    app.schedules.cancel("one")
    assert work(app).acked == 1
