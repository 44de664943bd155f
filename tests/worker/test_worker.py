"""The worker in one event loop: what handlers may return and raise, leases that are lost, limits, the cleaner."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis
from tenacity import stop_after_attempt, wait_none

from tests.rig.inside import pump_of, seen
from tests.rig.waiting import wait_until
from timeoutq import Ack, AsyncQueue, Cleaner, GiveUp, Lease, Queue, Release, Retry, Worker
from timeoutq.client import heartbeat
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Plan, Swept
from timeoutq.worker.threads import ThreadCrew


@pytest.fixture
async def jobs(url: str, queue: Queue) -> AsyncIterator[AsyncQueue]:
    """The queue of the test, for a worker; `queue` is the test's own look at it."""
    async with AsyncQueue(queue.name, url, timeout=1, retry=(wait_none(), stop_after_attempt(3))) as opened:
        yield opened


async def until(predicate: Callable[[], bool | Awaitable[bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


async def burst(queue: AsyncQueue, handler: Any, **settings: Any) -> Any:
    async with asyncio.timeout(30):
        return await Worker(queue, handler, burst=True, **settings).run()


async def test_async_and_plain_handlers_both_do_all(jobs: AsyncQueue, queue: Queue) -> None:
    seen: list[str] = []

    async def one(lease: Lease) -> None:
        seen.append(lease.task)

    def two(lease: Lease) -> None:
        seen.append(lease.task)

    for handler in (one, two):
        queue.put([f"{handler.__name__}{i}" for i in range(700)])
        tally = await burst(jobs, handler)
        assert tally.acked == 700
    assert len(seen) == len(set(seen)) == 1400


async def test_what_a_handler_returns_and_raises(jobs: AsyncQueue, queue: Queue) -> None:
    runs: dict[str, list[int]] = {}

    async def handler(lease: Lease) -> Any:
        runs.setdefault(lease.task, []).append(lease.attempt)
        first = lease.attempt == 1
        match lease.task:
            case "links":
                return Ack(put=["found", "found2"])
            case "many":
                return Ack(put=[f"x{i}" for i in range(700)])
            case "later" if len(runs["later"]) == 1:
                return Release(delay=0.05)
            case "back" if len(runs["back"]) == 1:
                return Release()
            case "retry" if first:
                raise Retry(after=0.02)
            case "flaky" if lease.attempt < 3:
                raise ValueError("not yet")
            case "broken":
                raise ValueError("never")
            case "gone":
                raise GiveUp("HTTP 404")
            case "exit":
                raise SystemExit(3)
            case "dict":
                return {"ignored": 1}
            case _:
                return None

    queue.put("links", "many", "later", "back", "retry", "flaky", "broken", "gone", "exit", "dict", "plain")
    await burst(jobs, handler)
    assert {entry.task: entry.error for entry in queue.list("failed").entries} == {
        "broken": "ValueError: never",
        "gone": "GiveUp: HTTP 404",
        "exit": "SystemExit: 3",
        "dict": "WrongResult: the handler handler returned a dict; expected None, Ack, Release, Retry or GiveUp; "
        "links go into Ack(put=[…])",
    }
    assert runs["retry"] == [1, 2]
    assert runs["later"] == runs["back"] == [1, 1]
    assert runs["flaky"] == runs["broken"] == [1, 2, 3]
    assert runs["gone"] == [1]
    assert "found" in runs
    assert queue.stats().done == 7 + 2 + 700


async def test_a_lost_lease_cancels_the_handler_and_is_not_acked(
    jobs: AsyncQueue, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(lease: Lease) -> None:
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    queue.put("a")
    worker = Worker(jobs, handler, signals=False)
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(started.wait(), 5)
        queue.forget("a")
        await asyncio.wait_for(cancelled.wait(), 5)
        await until(lambda: "forgotten" in caplog.text)
        worker.stop()
        tally = await asyncio.wait_for(running, 10)
    assert (tally.acked, tally.lost) == (0, 1)
    assert queue.stats().known == 0


@pytest.mark.parametrize("threads", [False, True])
async def test_leases_are_extended_while_the_handler_works(jobs: AsyncQueue, queue: Queue, threads: bool) -> None:
    async def slow(lease: Lease) -> None:
        await asyncio.sleep(2.5)

    def slow_thread(lease: Lease) -> None:
        time.sleep(2.5)

    queue.put("a", "b")
    tally = await burst(jobs, slow_thread if threads else slow)
    assert tally.acked == 2
    assert queue.stats().counters.get("expired", 0) == 0


@pytest.mark.parametrize("threads", [False, True])
async def test_max_runtime_fails_a_hung_handler_with_its_reason(
    jobs: AsyncQueue, queue: Queue, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    async def hang(lease: Lease) -> None:
        await asyncio.sleep(60)

    def hang_thread(lease: Lease) -> None:
        release.wait(60)

    queue.put("a")
    with caplog.at_level("WARNING"):
        await burst(jobs, hang_thread if threads else hang, max_runtime=0.4, retry=(wait_none(), stop_after_attempt(1)))
    release.set()
    said = [record for record in caplog.records if "over its max_runtime" in record.getMessage()]
    # once more on a machine that is so busy that the fail came too late
    assert {(record.levelname, vars(record)["task"], vars(record)["queue"]) for record in said} == (
        {("WARNING", "a", queue.name)} if threads else set()
    )
    assert all("its thread still runs and may go on beside the next attempt" in record.getMessage() for record in said)
    info = queue.inspect("a")
    assert info.state == "failed"
    assert info.error is not None
    assert "max_runtime of 0.4 s is over" in info.error


async def test_threads_that_hang_hold_up_nobody_and_leave_no_more_at_work(jobs: AsyncQueue, queue: Queue) -> None:
    release, lock = threading.Event(), threading.Lock()
    at_work: set[str] = set()
    most: list[int] = []

    def handler(lease: Lease) -> None:
        with lock:
            at_work.add(lease.task)
            most.append(len(at_work))
        if lease.task.startswith("hung"):
            release.wait(60)
        else:
            time.sleep(0.005)
        with lock:
            at_work.discard(lease.task)

    queue.put([f"hung{i}" for i in range(4)])
    worker = Worker(jobs, handler, concurrency=4, max_runtime=2, retry=[], signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: queue.stats().failed == 4)
    queue.put([f"late{i}" for i in range(20)])
    await until(lambda: queue.stats().done == 20)
    release.set()
    await until(lambda: not at_work)
    assert pump_of(worker).crew.queued() == set()  # a look at the queue keeps no thread from ending
    most.clear()
    queue.put([f"after{i}" for i in range(100)])
    await until(lambda: queue.stats().done == 120)
    assert max(most) <= 4
    worker.stop()
    await running
    assert queue.stats().counters.get("expired", 0) == 0


async def test_a_thread_that_hung_and_came_back_leaves_room_for_another_in_the_place_of_the_next(
    jobs: AsyncQueue, queue: Queue
) -> None:
    release = {"hung0": threading.Event(), "hung1": threading.Event()}

    def handler(lease: Lease) -> None:
        if lease.task in release:
            release[lease.task].wait(60)

    async def count(failed: int, done: int) -> None:
        await until(lambda: (queue.stats().failed, queue.stats().done) == (failed, done))

    worker = Worker(jobs, handler, concurrency=1, max_runtime=0.5, retry=[], signals=False)
    running = asyncio.create_task(worker.run())
    for n, hung in enumerate(release, 1):
        queue.put(hung)
        await count(n, n - 1)
        queue.put(f"after {hung}")
        await count(n, n)
        release[hung].set()
        await until(seen(worker, lambda pump: isinstance(pump.crew, ThreadCrew) and pump.crew._hung == 0))
    worker.stop()
    await running


async def test_many_leases_that_are_lost_at_once_open_no_connection_each(
    jobs: AsyncQueue, queue: Queue, raw: redis.Redis
) -> None:
    async def forever(lease: Lease) -> None:
        await asyncio.sleep(60)

    tasks = [f"t{i}" for i in range(100)]
    queue.put(tasks)
    worker = Worker(jobs, forever, concurrency=100, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(worker.held) == 100)
    before = len(raw.client_list())
    queue.forget(*tasks)
    await until(lambda: worker.tally.lost == 100)
    assert len(raw.client_list()) <= before + 10
    worker.stop()
    await running


async def test_two_idle_workers_share_ten_tasks(url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY", 0.3)
    monkeypatch.setattr(heartbeat, "BEAT_AT_MOST", 0.3)
    took: dict[str, int] = {"one": 0, "two": 0}
    async with AsyncQueue(queue.name, url) as first, AsyncQueue(queue.name, url) as second:

        def handler(who: str) -> Any:
            async def handle(lease: Lease) -> None:
                took[who] += 1
                await asyncio.sleep(0.2)

            return handle

        workers = [Worker(first, handler("one"), signals=False), Worker(second, handler("two"), signals=False)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        await until(lambda: queue.stats().workers == 2)
        # a worker learns of the other with its next sign of life
        await until(lambda: all(worker.peers == 2 for worker in workers), 15)
        await until(lambda: blocked(url) >= 4)
        queue.put([f"t{i}" for i in range(10)])
        await until(queue.drained)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
    assert sum(took.values()) == 10
    assert min(took.values()) > 0


def blocked(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        raw: Any = client
        return int(raw.info("clients")["blocked_clients"])


async def test_a_burst_ends_soon_after_somebody_else_has_done_the_last_task(jobs: AsyncQueue, queue: Queue) -> None:
    async def handler(lease: Lease) -> None:
        raise AssertionError("nothing comes")

    queue.put("a")
    leases = queue.claim(timeout=60)
    worker = Worker(jobs, handler, burst=True, signals=False)
    running = asyncio.create_task(worker.run())
    await until(seen(worker, lambda pump: pump.source.bell and pump.source.strokes))  # the put has rung once
    queue.ack(leases)
    began = time.monotonic()
    assert (await running).end == "drained"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("count", [3, 1200])
@pytest.mark.parametrize("threads", [False, True])
async def test_links_that_can_be_gone_through_only_once_are_all_put(
    jobs: AsyncQueue, queue: Queue, count: int, threads: bool
) -> None:
    def links(lease: Lease) -> Ack | None:
        return Ack(put=(f"x{i}" for i in range(count))) if lease.task == "page" else None

    async def links_async(lease: Lease) -> Ack | None:
        return links(lease)

    queue.put("page")
    await burst(jobs, links if threads else links_async)
    assert queue.stats().done == count + 1


@pytest.mark.parametrize("threads", [False, True])
async def test_a_lost_lease_that_has_not_begun_is_not_run(
    jobs: AsyncQueue, queue: Queue, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    release = threading.Event()

    async def handler(lease: Lease) -> None:
        begun.append(lease.task)
        await until(release.is_set)

    def handler_thread(lease: Lease) -> None:
        begun.append(lease.task)
        release.wait(60)

    queue.put("a", "b", "c")
    worker = Worker(jobs, handler_thread if threads else handler, concurrency=1, prefetch=2, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(begun) == 1 and len(worker.held) == 3)
    (lost, kept) = sorted({"a", "b", "c"} - {*begun})
    queue.forget(lost)
    await until(lambda: len(worker.held) == 2)
    release.set()
    await until(lambda: queue.stats().done == 2)
    worker.stop()
    assert (await running).lost == 1
    assert begun[1:] == [kept]
    assert f"{lost!r} " in caplog.text


async def test_what_a_worker_claims_begins_while_it_asks_why_other_leases_were_lost(
    jobs: AsyncQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    asking = flows.lost

    def ask_slowly(*words: Any) -> Any:
        until = time.monotonic() + 5
        while "next" not in begun and time.monotonic() < until:
            yield sending.Sleep(0.01)
        begun.append("why")
        return (yield from asking(*words))

    def handler(lease: Lease) -> None:
        begun.append(lease.task)
        if lease.task == "lost":
            queue.forget("lost")
            queue.put("next")

    monkeypatch.setattr(flows, "lost", ask_slowly)
    queue.put("lost")
    tally = await burst(jobs, handler, concurrency=1)
    assert (tally.acked, tally.lost) == (1, 1)
    assert begun == ["lost", "next", "why"]
    assert "the ack of a task came too late: lease on 'lost' is gone" in caplog.text


class Ended(BaseException):
    """Raised in a thread from outside."""


def waits_for_a_lease(thread: threading.Thread) -> bool:
    lines, first = inspect.getsourcelines(ThreadCrew._serve)
    (waiting,) = [number for number, line in enumerate(lines, first) if "self._waiting.get()" in line]
    assert thread.ident is not None
    frame = sys._current_frames()[thread.ident]
    return (frame.f_code.co_name, frame.f_lineno) == ("_serve", waiting)


async def test_a_thread_that_ends_before_it_has_taken_a_lease_is_replaced(
    url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    struck: list[str] = []
    usual = ThreadCrew._serve

    def serve(crew: ThreadCrew) -> bool:
        if len(struck) < 2:
            struck.append(threading.current_thread().name)
            raise Ended
        return usual(crew)

    monkeypatch.setattr(ThreadCrew, "_serve", serve)
    queue.put("a")
    async with AsyncQueue(queue.name, url, timeout=30) as mine:
        worker = Worker(mine, lambda lease: None, concurrency=1, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: queue.stats().done == 1)
        await until(seen(worker, lambda pump: pump.crew.taken == 0))
        queue.put("b")
        await until(lambda: queue.stats().done == 2)
        worker.stop()
        assert (await running).acked == 2
    assert len(struck) == 2
    assert caplog.text.count("a thread ended") == 2


@pytest.mark.breaking
async def test_a_thread_that_is_ended_from_outside_is_replaced_and_its_task_given_back(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def handler(lease: Lease) -> None:
        ran.append(lease.task)

    # a lease that no load makes run out; one that nothing works on is noticed after as long
    async with AsyncQueue(queue.name, url, timeout=4) as mine:
        queue.put("a")
        worker = Worker(mine, handler, concurrency=1, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: queue.stats().done == 1)
        (thread,) = [one for one in threading.enumerate() if one.name.startswith(f"handler-{queue.name}")]
        assert thread.ident is not None
        await until(lambda: waits_for_a_lease(thread))
        # it strikes as soon as the thread has taken the next lease
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended)) == 1
        queue.put("b", "c")
        await until(lambda: queue.stats().done == 3, 30)
        assert sorted(ran) == ["a", "b", "c"]
        assert "a thread ended" in caplog.text
        assert "no handler works on it: it is given back" in caplog.text
        worker.stop()
        assert (await running).released == 1


async def test_a_retry_policy_that_raises_does_not_hold_the_task(jobs: AsyncQueue, queue: Queue) -> None:
    def broken(state: object) -> float:
        raise RuntimeError("no")

    async def handler(lease: Lease) -> None:
        if lease.attempt == 1:
            raise ValueError("once")

    queue.put("a")
    await burst(jobs, handler, retry=(broken, stop_after_attempt(3)))
    assert queue.stats().done == 1


async def test_a_wrong_password_ends_the_worker_at_once(url: str) -> None:
    from timeoutq import AccessDenied
    from timeoutq.server.embedded import EmbeddedServer

    with EmbeddedServer(config={"requirepass": "x"}) as server:
        async with AsyncQueue("q", f"redis://127.0.0.1:{server.port}/0", deadline=1) as wrong:
            with pytest.raises(AccessDenied):
                await asyncio.wait_for(Worker(wrong, lambda lease: None, signals=False).run(), 10)


# ---- the cleaner


async def sleeping(jobs: AsyncQueue, raw: Any) -> asyncio.Task[None]:
    """Start a cleaner that sleeps: it must be woken by what is due, not find it by chance."""
    cleaner = Cleaner(jobs)
    task = asyncio.create_task(cleaner.run())
    await until(lambda: cleaner.met and any(one["cmd"] == "xread" for one in raw.client_list()))
    await until(lambda: not (cleaner._alarm.is_set() or cleaner._asking.locked()))
    return task


async def test_expired_leases_are_back_within_a_quarter_of_a_second(jobs: AsyncQueue, queue: Queue, raw: Any) -> None:
    cleaner = await sleeping(jobs, raw)
    queue.put([f"t{i}" for i in range(100)])
    (first, *_) = queue.claim(100, timeout=0.5)
    await until(lambda: queue.stats().todos == 100)
    late = queue.stats().now - first.deadline
    assert late < 0.25
    cleaner.cancel()
    await asyncio.gather(cleaner, return_exceptions=True)


async def test_due_tasks_are_ready_within_fifty_milliseconds(jobs: AsyncQueue, queue: Queue, raw: redis.Redis) -> None:
    cleaner = await sleeping(jobs, raw)
    lateness: list[float] = []
    for _ in range(10):
        queue.schedule("a", after=0.12)
        due = queue.inspect("a").due
        assert due is not None
        (lease,) = await asyncio.to_thread(queue.claim, wait=5)
        lateness.append(lease.deadline - queue.timeout - due)
        queue.ack(lease)
        queue.forget("a")
    assert sorted(lateness)[5] < 0.05
    cleaner.cancel()
    await asyncio.gather(cleaner, return_exceptions=True)


@pytest.mark.breaking
async def test_an_idle_cleaner_costs_less_than_a_command_a_second(jobs: AsyncQueue, queue: Queue, url: str) -> None:
    queue.schedule("far", after=3600)
    one = Cleaner(jobs)
    cleaner = asyncio.create_task(one.run())
    await until(lambda: blocked(url) == 1 and min(one._prune_at, one._repair_at) > time.monotonic())
    with redis.Redis.from_url(url) as client:
        raw: Any = client
        raw.config_resetstat()
        await asyncio.sleep(4)  # the span that is measured
        calls = {name: stat["calls"] for name, stat in raw.info("commandstats").items()}
    spent = sum(calls.get(name, 0) for name in ("cmdstat_fcall", "cmdstat_xread", "cmdstat_blpop", "cmdstat_time"))
    assert spent < 4
    cleaner.cancel()
    await asyncio.gather(cleaner, return_exceptions=True)


async def test_a_cleaner_to_which_another_client_is_quicker_is_in_time_for_what_is_due_next(
    jobs: AsyncQueue, queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted: list[int] = []
    clean = flows.clean_and_plan

    def beaten(talk: sending.Talk, longest_ms: int) -> sending.Flow[tuple[Swept, Swept, Plan]]:
        time.sleep(0.003)  # the cleaner may come a few µs before the task is due
        promoted.append(queue.promote_due())
        return clean(talk, longest_ms)

    monkeypatch.setattr(flows, "clean_and_plan", beaten)
    one = Cleaner(jobs, longest=60.0)
    cleaner = asyncio.create_task(one.run())
    await until(lambda: blocked(url) == 1 and min(one._prune_at, one._repair_at) > time.monotonic())
    queue.schedule("a", after=0.3)
    queue.schedule("b", after=0.6)
    try:
        await until(lambda: queue.stats().todos == 2)
        assert (sum(promoted), one.promoted) == (2, 0)
    finally:
        cleaner.cancel()
        await asyncio.gather(cleaner, return_exceptions=True)


async def test_any_number_of_cleaners_take_a_task_back_once(url: str, queue: Queue) -> None:
    queues = [AsyncQueue(queue.name, url) for _ in range(5)]
    cleaners = [asyncio.create_task(Cleaner(one).run()) for one in queues]
    queue.put([f"t{i}" for i in range(900)])
    for _ in range(9):
        queue.claim(100, timeout=0.2)
    await until(lambda: queue.stats().todos == 900)
    assert queue.stats().counters["expired"] == 900
    for cleaner in cleaners:
        cleaner.cancel()
    await asyncio.gather(*cleaners, return_exceptions=True)
    for one in queues:
        await one.close()


def test_a_worker_says_that_it_lives(url: str, queue: Queue) -> None:
    def serve() -> None:
        async def body() -> None:
            async with AsyncQueue(queue.name, url) as mine:
                worker = Worker(mine, lambda lease: None, concurrency=7, signals=False)
                workers.append(worker)
                loops.append(asyncio.get_running_loop())
                await worker.run()

        asyncio.run(body())

    workers: list[Worker] = []
    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=serve)
    thread.start()
    (info,) = wait_until(queue.workers)
    assert info.concurrency == 7
    assert info.pid > 0
    queue.put("a", "b", "c")
    wait_until(lambda: [worker.acked for worker in queue.workers()] == [3], timeout=4)
    loops[0].call_soon_threadsafe(workers[0].stop)
    thread.join(10)
    assert queue.workers() == []
