"""The worker in one event loop: what handlers may return and raise, leases that are lost, limits, the cleaner."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import redis
from tenacity import stop_after_attempt, wait_none

from tests.worker.working import at_work, ended, until
from timeoutq import Ack, AsyncQueue, Cleaner, GiveUp, Lease, Queue, Release, Retry, Worker
from timeoutq.verbs import flows
from timeoutq.worker import cleaner as cleaning


@pytest.fixture
async def jobs(url: str, queue: Queue) -> AsyncIterator[AsyncQueue]:
    """The queue of the test, for a worker; `queue` is the test's own look at it."""
    async with AsyncQueue(queue.name, url, timeout=1, retry=(wait_none(), stop_after_attempt(3))) as opened:
        yield opened


async def burst(queue: AsyncQueue, handler: Any, **settings: Any) -> Any:
    async with asyncio.timeout(30):
        return await Worker(queue, handler, burst=True, **settings).run()


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


def has_acked(worker: Worker, tasks: int) -> bool:
    return worker.tally.acked == tasks


async def test_all_handlers_of_a_worker_that_was_idle_run_at_once(jobs: AsyncQueue, queue: Queue) -> None:
    all_run = asyncio.Barrier(60)

    async def handler(lease: Lease) -> None:
        async with asyncio.timeout(10):
            await all_run.wait()

    worker = Worker(jobs, handler, concurrency=60, signals=False)
    async with at_work(worker):
        for number in range(1, 4):
            queue.put(f"{number}-{i}" for i in range(60))
            await until(partial(has_acked, worker, 60 * number))


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


async def test_a_task_that_is_to_run_again_at_once_does(jobs: AsyncQueue, queue: Queue) -> None:
    runs: list[Any] = []

    async def handler(lease: Lease) -> Ack | None:
        runs.append(lease.payload)
        return Ack(again_in=0, payload="second") if len(runs) == 1 else None

    queue.put({"a": "first"})
    await burst(jobs, handler)
    assert runs == ["first", "second"]


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


async def test_what_is_scheduled_before_a_cleaner_listens_is_not_late(
    jobs: AsyncQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = flows.newest_alarm

    def late(talk: Any) -> Any:
        monkeypatch.undo()
        queue.schedule("a", after=0.2)  # nobody hears this alarm
        return newest(talk)

    monkeypatch.setattr(flows, "newest_alarm", late)
    cleaner = asyncio.create_task(Cleaner(jobs, longest=60).run())
    await until(lambda: queue.stats().todos == 1, 5)
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


async def test_the_ids_of_calls_on_an_idle_queue_are_cut_again_and_again_within_two_minutes(
    jobs: AsyncQueue, queue: Queue, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cleaning.PRUNE_EVERY <= 60, "an id counts for the other minute"
    monkeypatch.setattr(cleaning, "PRUNE_EVERY", 0.05)
    calls, old = queue.operations.key("calls"), raw.time()[0] * 1000 - 61_000
    cleaner = await sleeping(jobs, raw)
    for _ in range(2):
        raw.zadd(calls, {f"old{i}": old for i in range(9_000)})
        await until(lambda: raw.zcount(calls, "-inf", old) == 0)
    cleaner.cancel()
    await asyncio.gather(cleaner, return_exceptions=True)


async def test_a_lost_lease_cancels_the_handler_and_is_not_acked(
    jobs: AsyncQueue, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().set_debug(True)  # then a call of another thread that would not wake the loop is refused

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
        tally = await ended(running, 10)
    assert (tally.acked, tally.lost) == (0, 1)
    assert queue.stats().known == 0
