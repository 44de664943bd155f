"""Acks that are too long for one call: the handler keeps its place while the rest is put, and there is a bound."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.rig.inside import pump_of
from tests.rig.proxy import Fault, Proxy
from tests.worker.working import at_work, know_the_library, until
from timeoutq import Ack, Answer, AsyncQueue, Lease, Queue, State, Worker
from timeoutq.server.calls import BYTES, fitting
from timeoutq.worker import found

HALF = BYTES // 2 + 1
YET = "not all of it could be put yet. The worker tries again"


def links(page: str, n: int = 2, size: int = HALF) -> dict[str, bytes]:
    """Give the links of a page; two of more than half a mebibyte are too long for one exchange."""
    return {f"link-{page}-{i}": b"x" * size for i in range(n)}


async def pages(lease: Lease) -> Ack | None:
    return Ack(put=links(lease.task)) if lease.task.startswith("page") else None


@asynccontextmanager
async def slow(url: str, queue: Queue, rate: int) -> AsyncIterator[tuple[Proxy, AsyncQueue]]:
    """Give a queue whose link carries so many bytes a second."""
    know_the_library(queue)
    with Proxy(url, rate=rate) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=10, deadline=2) as mine:
            yield proxy, mine


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_that_has_returned_has_not_failed_when_the_heartbeat_hears_that_its_max_runtime_is_over(
    url: str, queue: Queue, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def in_thread(lease: Lease) -> Ack:
        proxy.arm(Fault.RESET_BEFORE, b"", times=None)
        proxy.cut()
        return Ack(put=links(lease.task))

    async def in_loop(lease: Lease) -> Ack:
        return in_thread(lease)

    know_the_library(queue)
    queue.put("page")
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=10, deadline=0.3, max_runtime=600) as mine:
            async with at_work(Worker(mine, in_thread if threads else in_loop, signals=False)) as worker:
                await until(lambda: YET in caplog.text)
                told = [(lease, Answer.MAX_RUNTIME) for lease in worker.held.values()]
                pump_of(worker).works[0].interrupts.lose_soon(told)
                await until(lambda: not worker.running)
                proxy.disarm()
                await until(lambda: not worker.held)
            assert (worker.tally.failed, worker.tally.lost) == (0, 1)


# ---- the handler keeps its place


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_keeps_its_place_until_what_its_ack_cannot_carry_is_put(
    url: str, queue: Queue, threads: bool
) -> None:
    seen: list[tuple[str, State | None]] = []

    def found(lease: Lease) -> Ack:
        other = "page2" if lease.task == "page1" else "page1"
        seen.append((lease.task, queue.inspect(f"link-{other}-1").state))
        queue.pause()  # or the links would be claimed
        return Ack(put=links(lease.task))

    async def in_loop(lease: Lease) -> Ack:
        return found(lease)

    async with slow(url, queue, 2_000_000) as (_, mine):
        queue.put("page1", "page2")
        worker = Worker(mine, found if threads else in_loop, concurrency=1, prefetch=1, signals=False)
        async with at_work(worker):
            await until(lambda: worker.tally.acked == 2)
    assert [state for _, state in seen] == [None, State.TODOS]
    assert queue.stats().todos == 4


@pytest.mark.parametrize("threads", [False, True])
async def test_nothing_is_lost_or_put_twice_when_a_worker_ends_between_the_puts_and_the_ack(
    url: str, queue: Queue, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def found(lease: Lease) -> Ack | None:
        ran.append(lease.task)
        if lease.task != "page":
            return None
        raise Ack(put=[f"link-{i:04}" for i in range(1200)])

    async def in_loop(lease: Lease) -> Ack | None:
        return found(lease)

    handler = found if threads else in_loop
    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=10, deadline=1) as mine:
            proxy.arm(Fault.RESET_BEFORE, b"link-1199", times=None)
            queue.put("page")
            worker = Worker(mine, handler, concurrency=1, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            await until(lambda: YET in caplog.text)
            queue.pause()
            worker.stop(now=True)
            await running
    states = [queue.inspect(task).state for task in ("page", "link-0000", "link-0600", "link-1199")]
    assert states == [State.TODOS, None, State.TODOS, None]
    queue.resume()
    async with AsyncQueue(queue.name, url, timeout=10) as mine:
        tally = await Worker(mine, handler, concurrency=10, burst=True, signals=False).run()
    assert (tally.acked, tally.lost) == (1201, 0)
    assert (ran.count("page"), len(ran), len(set(ran))) == (2, 1202, 1201)


# ---- drains


async def test_after_the_drain_deadline_a_long_ack_is_given_back_and_told_of(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow(url, queue, 400_000) as (proxy, mine):
        queue.put("page")
        worker = Worker(mine, pages, concurrency=1, prefetch=0, signals=False, drain_deadline=0.5)
        with caplog.at_level(logging.WARNING):
            async with at_work(worker):
                await until(lambda: proxy.carried > 50_000)
    assert (worker.tally.acked, worker.tally.released) == (0, 1)
    assert queue.inspect("page").state == State.TODOS
    assert "task 'page' is cut off: the drain deadline of 0.5 s is over" in caplog.text
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_ends_that_cannot_be_sent_are_told_of_with_the_reason(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def handler(lease: Lease) -> None:
        begun.set()
        await asyncio.sleep(60)

    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=5, deadline=0.5) as mine:
            queue.put("page")
            worker = Worker(mine, handler, concurrency=1, signals=False, drain_deadline=0)
            running = asyncio.create_task(worker.run())
            await begun.wait()
            proxy.arm(Fault.HALF_OPEN, b"", times=None)
            with caplog.at_level(logging.WARNING):
                worker.stop()
                await running
    (line,) = [record.getMessage() for record in caplog.records if "could not end" in record.getMessage()]
    assert "could not end 1 leases: " in line
    assert ": ;" not in line


# ---- what a handler found is listed where it ran


@pytest.mark.parametrize("threads", [False, True])
async def test_max_runtime_ends_links_that_never_end(url: str, queue: Queue, threads: bool) -> None:
    ended = threading.Event()

    def endless() -> Iterator[str]:
        try:
            for _ in itertools.count():
                time.sleep(0.01)
                yield "again"
        finally:
            ended.set()

    def in_thread(lease: Lease) -> Ack:
        raise Ack(put=endless())

    async def in_loop(lease: Lease) -> Ack:
        return Ack(put=endless())

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, in_thread if threads else in_loop, max_runtime=0.5, burst=True, retry=[], signals=False)
        async with asyncio.timeout(20):
            tally = await worker.run()
    assert (tally.acked, tally.failed) == (0, 1)
    assert "max_runtime of 0.5 s is over" in (queue.inspect("page").error or "")
    await until(ended.is_set)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("bound", ["MOST", "MOST_BYTES"])
async def test_a_task_that_finds_more_than_the_limit_fails_with_the_cure(
    url: str, queue: Queue, threads: bool, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, bound, 1000)

    def given(task: str) -> Ack:
        match task:
            case "lazy":
                return Ack(put=(f"t{i}" for i in itertools.count()))
            case "list":
                return Ack(put=[f"t{i}" for i in range(1001)])
            case _:
                raise Ack(put={f"t{i}": "x" for i in range(1001)})

    def in_thread(lease: Lease) -> Ack:
        return given(lease.task)

    async def in_loop(lease: Lease) -> Ack:
        return given(lease.task)

    queue.put("lazy", "list", "mapping")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, in_thread if threads else in_loop, burst=True, retry=[0], signals=False)
        async with asyncio.timeout(20):
            assert (await worker.run()).failed == 3
    errors = {task: queue.inspect(task).error or "" for task in ("lazy", "list", "mapping")}
    for error in errors.values():
        assert "Ack(put=…) holds more than" in error
        assert "Put the tasks in parts with the queue's put() inside the handler" in error
    assert queue.stats().known == 3


# ---- how acks are cut


def test_an_ack_with_more_than_fits_puts_the_surplus_first(queue: Queue) -> None:
    page = os.urandom(10_000)
    queue.put("page")
    (lease,) = queue.claim()
    queue.ack(lease, {f"link{i}": page for i in range(499)}, again_in=60, payload=b"x" * BYTES)
    stats = queue.stats()
    assert (stats.todos, stats.scheduled) == (499, 1)
    assert {lease.payload for lease in queue.claim(500)} == {page}


def test_an_ack_takes_499_tasks_or_a_mebibyte_of_what_was_found() -> None:
    ids = [b"%d" % i for i in range(600)]
    assert fitting(ids, {}) == 499
    assert fitting(ids[:3], {}) == 3
    half = b"x" * (BYTES // 2)
    assert fitting(ids, {1: half, 5: half, 9: half}) == 9
    assert fitting(ids, {1: half * 3, 5: b"x"}) == 5
    assert fitting(ids, {520: half * 3}) == 499
