"""What people had in rpqueue, row by row of the help page `from-functions`: each test is named after its row."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import redis

from tests.functions.running import at_work, work
from tests.rig.calling import failure
from tests.rig.command import Say, say, server
from tests.rig.waiting import wait_until
from timeoutq import Answer, InvalidInput, Politeness, Queue, State
from timeoutq.functions import App, Context, Limit
from timeoutq.functions.posting import Posting

__all__ = ["say", "server"]


def test_task_and_execute(app: App, queue: Queue) -> None:
    @app.task(retry=[0, 0])  # attempts=3, retry_delay=0
    def resize(path: str, size: int = 64) -> str:
        return f"{path} {size}"

    result = resize.delay("a.png", size=32)
    assert result.info().state is State.TODOS
    work(app)
    assert result.wait(10) == "a.png 32"
    assert queue.stats().known == 0  # a call with a random id leaves no trace but its result


def test_execute_with_a_delay_and_a_taskid(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    first = one.options(after=timedelta(hours=1), id="t1").delay()
    second = one.options(after=timedelta(hours=1), id="t1").delay()
    assert (first.answer, second.answer, second.info().state) == (Answer.ADDED, Answer.SCHEDULED, State.SCHEDULED)
    assert queue.stats().scheduled == 1


def test_attempts_and_retry_delay(app: App) -> None:
    ran: list[float] = []

    @app.task(retry=[0.2, 0.2], keep_result=60)
    def flaky(ctx: Context[None]) -> int:
        ran.append(time.monotonic())
        if ctx.attempt < 3:
            raise OSError("busy")
        return ctx.attempt

    result = flaky.delay()
    work(app)
    assert result.wait(10) == 3
    assert len(ran) == 3
    assert min(ran[1] - ran[0], ran[2] - ran[1]) > 0.19


def test_the_name_of_a_function_on_the_command_line(app: App, say: Say) -> None:
    done = say("call", "tests.rig.post:app", "write", '["ann"]', "--id", "by-name")
    assert (done.code, done.lines) == (0, [["by-name", "added"]])
    assert "has no function 'wrte'; it has write" in say("call", "tests.rig.post:app", "wrte", '["ann"]').err


def test_periodic_task_and_run_every(app: App, queue: Queue) -> None:
    ran: list[tuple[str, float | None]] = []

    @app.task(every=timedelta(seconds=1))
    async def sweep(ctx: Context[None]) -> None:
        ran.append((ctx.task, ctx.tick))

    with at_work(app), at_work(app):  # two workers, and each tick runs once
        wait_until(lambda: len(ran) >= 3, 30)
    ticks = [tick for _, tick in ran]
    assert {task for task, _ in ran} == {"sweep"}
    assert len(set(ticks)) == len(ticks) and None not in ticks
    assert {(float(tick or 0) - float(ticks[0] or 0)) % 1 for tick in ticks} == {0.0}


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


def test_priorities_of_queues(url: str, name: str) -> None:
    names = [f"{name}-{end}" for end in ("high", "low")]
    app, seen = App(name, queues=names, url=url), list[int]()

    @app.task(queue=names[1])
    def note(n: int) -> None:
        seen.append(n)

    app.put(note.call(n) for n in range(10))
    app.put(note.options(queue=names[0]).call(n) for n in range(100, 110))
    work(app, concurrency=1, prefetch=0)
    assert {*seen[:10]} == {*range(100, 110)}
    assert len(seen) == 20
    app.close()
    for one in names:
        with Queue(one, url) as opened:
            opened.purge()


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


def test_queue_weights(url: str, name: str) -> None:
    high, low = f"{name}-high", f"{name}-low"
    app, seen = App(name, queues={high: 3, low: 1}, url=url), list[str]()

    @app.task(queue=low)
    async def note(word: str) -> None:
        seen.append(word)

    app.put(note.call("low") for _ in range(100))
    app.put(note.options(queue=high).call("high") for _ in range(100))
    work(app, concurrency=4, prefetch=0)
    assert 50 <= seen[:80].count("high") <= 70
    app.close()
    for one in (high, low):
        with Queue(one, url) as opened:
            opened.purge()


def test_results_are_handed_back_to_who_waits(app: App, queue: Queue, raw: redis.Redis) -> None:
    goes_on, awaited = threading.Event(), queue.operations.key("awaited")

    @app.task
    def slow() -> str:
        goes_on.wait(20)
        return "there"

    result, found = slow.delay(), list[str]()
    waits = threading.Thread(target=lambda: found.append(result.wait(30)))
    with at_work(app):
        waits.start()
        wait_until(lambda: raw.hexists(awaited, result.id))
        assert found == []
        goes_on.set()
        waits.join(20)
    assert found == ["there"]
    assert not raw.hexists(awaited, result.id)


def test_status_and_cancel(app: App, queue: Queue) -> None:
    @app.task
    async def one() -> int:
        return 1

    done, cancelled = one.delay(), one.options(after=3600).delay()
    assert [one.info().state for one in (done, cancelled)] == [State.TODOS, State.SCHEDULED]
    assert cancelled.cancel() is Answer.CANCELLED
    assert cancelled.info().state is State.FAILED
    work(app)
    assert done.info().state is State.DONE  # it has ended, and left its result
    assert done.wait(5) == 1
    assert done.cancel() is Answer.DONE


def test_data_queues_with_a_visibility_timeout(queue: Queue) -> None:
    queue.put({"a": {"n": 1}, "b": {"n": 2}})  # Data(…).put_data
    leases = queue.claim(2, timeout=0.3)  # get_data(items=2, vis_timeout=0.3)
    assert {lease.task: lease.payload for lease in leases} == {"a": {"n": 1}, "b": {"n": 2}}
    (mine,) = [lease for lease in leases if lease.task == "a"]
    queue.ack(mine)  # done_data
    again = wait_until(lambda: queue.claim(2))  # nobody has acked b in time: it is given out again
    assert [lease.task for lease in again] == ["b"]
    queue.ack(again[0])
    assert (queue.stats().done, queue.drained()) == (2, True)


def test_dead_letters_of_data_queues(url: str, name: str, say: Say) -> None:
    with Queue(name, url, timeout=0.2, max_crashes=2) as queue:
        queue.put({"poison": {"n": 1}})
        for _ in range(2):  # two readers die with it
            assert [lease.task for lease in wait_until(lambda: queue.claim(1))] == ["poison"]
        wait_until(lambda: queue.requeue_expired() or queue.stats().failed)
        wait_until(lambda: queue.stats().failed == 1)
        info = queue.inspect("poison")
        assert (info.state, info.crashes, info.payload) == (State.FAILED, 2, {"n": 1})
        assert queue.claim(1) == []
        assert say("list", name, "failed").lines[0][0] == "poison"
        assert say("retry", name, "poison").code == 0  # back from the dead letters
        assert [lease.payload for lease in queue.claim(1)] == [{"n": 1}]
        queue.purge()


def test_dead_letters_of_calls(app: App, queue: Queue) -> None:
    @app.task(retry=[0])
    async def broken(n: int) -> None:
        raise OSError(f"no {n}")

    result = broken.options(keep_result=60).delay(7)
    work(app)
    assert failure(result).message == "no 7"
    (dead,) = queue.each("failed")
    assert (dead.task, dead.error) == (result.id, "OSError: no 7")


def test_queue_sizes_and_clear_queue(app: App, queue: Queue, say: Say) -> None:
    @app.task
    async def one(n: int) -> int:
        return n

    app.put(one.call(n) for n in range(3))
    one.options(after=60).delay(9)
    stats = queue.stats()
    assert (stats.todos, stats.scheduled) == (3, 1)
    assert next(line[1:5] for line in say("queues").lines if line[0] == queue.name) == ["4", "3", "0", "1"]
    assert say("purge", queue.name, "--yes").code == 0
    assert queue.stats().known == 0


def test_a_server_of_its_own_for_an_app(app: App, url: str, queue: Queue) -> None:
    other = App(queue.name, sender=Posting(url))

    @other.task
    async def one() -> int:
        return 1

    assert one.delay().answer is Answer.ADDED
    assert queue.stats().todos == 1
    other.close()
