"""The life of a worker: its lifespan, how many tasks it may run, signals, context variables, who may be its queue."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of
from tests.worker.working import ended, until
from timeoutq import AsyncQueue, InvalidInput, Lease, Queue, State, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import FakeAsyncQueue, fake_async_queue
from timeoutq.words.errors import WorkerBroken
from timeoutq.worker.health import Sheet, judge
from timeoutq.worker.leases import Tally
from timeoutq.worker.processes.process import Orders
from timeoutq.worker.threads import ThreadCrew


@pytest.fixture
async def fake() -> AsyncIterator[FakeAsyncQueue]:
    async with fake_async_queue(timeout=5, retry=[]) as queue:
        yield queue


async def drained(worker: Worker) -> Tally:
    async with asyncio.timeout(20):
        return await worker.run()


async def fetch(lease: Lease) -> None: ...


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_that_comes_before_a_process_has_its_worker_is_obeyed(
    fake: FakeAsyncQueue, number: signal.Signals
) -> None:
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    reading, writing = os.pipe()
    orders = Orders(reading)
    try:
        signal.raise_signal(number)
        worker = Worker(fake, fetch, signals=False)
        orders.obey(worker)
        assert (await ended(worker.run(), 10)).end == "stopped"
    finally:
        asyncio.get_running_loop().remove_reader(reading)
        orders.let_go()
        for one, handler in handlers.items():
            signal.signal(one, handler)
        os.close(reading)
        os.close(writing)


# ---- the lifespan

story: list[str] = []


@asynccontextmanager
async def opened() -> AsyncIterator[str]:
    story.append("enter")
    try:
        yield "state"
    finally:
        story.append("exit")


async def with_state(lease: Lease, state: str) -> None:
    story.append(f"{lease.task} with {state}")


def with_state_in_thread(lease: Lease, state: str) -> None:
    story.append(f"{lease.task} with {state}")


@pytest.fixture(autouse=True)
def _new_story() -> None:
    story.clear()


@pytest.mark.parametrize("handler", [with_state, with_state_in_thread, lambda lease, state: with_state(lease, state)])
async def test_what_the_lifespan_yields_is_given_to_the_handler(fake: FakeAsyncQueue, handler: Any) -> None:
    await fake.put("a")
    await drained(Worker(fake, handler, burst=True, lifespan=opened))
    assert story == ["enter", "a with state", "exit"]


async def test_a_worker_whose_lifespan_ends_before_it_gives_its_tasks_back_and_says_why(fake: FakeAsyncQueue) -> None:
    pool: list[str] = []

    @asynccontextmanager
    async def pooled() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_alive())
            pool.append("open")
            try:
                yield
            finally:
                pool.clear()

    async def keep_alive() -> None:
        await until(lambda: pool == ["open", "used"])
        raise ConnectionError("the pool has lost its server")

    async def use(lease: Lease) -> None:
        pool.append("used")
        await asyncio.sleep(3600)

    await fake.put("a", "b", "c")
    with pytest.raises(WorkerBroken, match="the lifespan ended though the worker had not") as caught:
        await drained(Worker(fake, use, lifespan=pooled, signals=False, concurrency=1))
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert "the pool has lost its server" in str(caught.value.__cause__.exceptions)  # pyright: ignore[reportUnknownMemberType]  # of any group
    found = await fake.stats()
    assert (found.todos, found.failed, found.in_progress) == (3, 0, 0)


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_worker_that_is_stopped_while_it_enters_claims_nothing(fake: FakeAsyncQueue, how: str) -> None:
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        story.append("entering")
        try:
            await asyncio.sleep(60)
            yield
        finally:
            story.append("gave up")

    await fake.put("a")
    worker = Worker(fake, fetch, lifespan=slow, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: story == ["entering"])
    if how == "stopped":
        worker.stop()
        assert (await ended(running, 10)).end == "stopped"
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(running, 10)
    assert story == ["entering", "gave up"]
    assert (await fake.stats()).counters.get("claimed", 0) == 0


@asynccontextmanager
async def never_used() -> AsyncIterator[None]:
    yield


async def undecorated() -> AsyncIterator[None]:
    yield


async def a_coroutine() -> None: ...


@pytest.mark.parametrize("lifespan", [undecorated, 3, never_used(), a_coroutine, dict])
async def test_a_lifespan_that_is_no_context_manager_is_refused(fake: FakeAsyncQueue, lifespan: Any) -> None:
    with pytest.raises(InvalidInput, match="@asynccontextmanager"):
        await drained(Worker(fake, fetch, burst=True, lifespan=lifespan))


# ---- signs of health


async def test_a_worker_writes_what_shows_that_it_is_healthy_while_its_handler_runs(fake: FakeAsyncQueue) -> None:
    sheet = Sheet()

    async def look(lease: Lease) -> None:
        await until(lambda: judge(sheet.read(), time.monotonic()).words == "busy: 1 handler runs", 5)

    await fake.put("a")
    worker = Worker(fake, look, burst=True)
    worker.sheet = sheet
    assert (await drained(worker)).acked == 1


# ---- context variables

variable: ContextVar[object] = ContextVar("variable", default=None)


def in_thread(lease: Lease) -> None:
    story.append(f"{lease.task} found {variable.get()}")
    variable.set(lease.task)


async def in_loop(lease: Lease) -> None:
    in_thread(lease)
    await asyncio.sleep(0)
    assert variable.get() == lease.task


async def in_inner_task(lease: Lease) -> None:
    await asyncio.create_task(in_loop(lease))
    in_thread(lease)


def in_both(lease: Lease) -> Any:
    in_thread(lease)
    return see_it(lease)


async def see_it(lease: Lease) -> None:
    assert variable.get() == lease.task, "what its own thread has set"


@pytest.mark.parametrize("handler", [in_thread, in_loop, in_inner_task, in_both])
@pytest.mark.parametrize("before", [None, "before"])
async def test_context_variables_do_not_leak_from_task_to_task(
    fake: FakeAsyncQueue, handler: Any, before: object
) -> None:
    token = variable.set(before)
    await fake.put([f"t{i}" for i in range(20)])
    tally = await drained(Worker(fake, handler, burst=True, concurrency=2))
    assert tally.acked == 20
    assert {line.partition(" found ")[2] for line in story} == {str(before)}
    assert variable.get() == before
    variable.reset(token)


# ---- max_tasks


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("concurrency", [1, 7, 100])
async def test_after_max_tasks_the_worker_ends_and_says_so(
    url: str, queue: Queue, threads: bool, concurrency: int
) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)
        if lease.task.endswith("3"):
            raise ValueError("counts as well")

    def handler_in_thread(lease: Lease) -> None:
        ran.append(lease.task)

    queue.put([f"t{i}" for i in range(300)])
    async with AsyncQueue(queue.name, url, timeout=5, retry=[]) as mine:
        worker = Worker(mine, handler_in_thread if threads else handler, concurrency=concurrency, max_tasks=50)
        tally = await drained(worker)
    assert tally.end == "max_tasks"
    assert len(ran) == tally.acked + tally.failed == 50
    assert queue.stats().todos == 250


async def test_handlers_that_run_count_as_tasks_so_no_more_than_max_tasks_are_ever_claimed(
    url: str, queue: Queue
) -> None:
    begun, first, others = list[str](), asyncio.Event(), asyncio.Event()

    async def handler(lease: Lease) -> None:
        begun.append(lease.task)
        await (first if len(begun) == 1 else others).wait()

    queue.put([f"t{i}" for i in range(50)])
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, handler, concurrency=20, max_tasks=5, signals=False)
        running = asyncio.create_task(drained(worker))
        await until(lambda: len(begun) >= 5)
        first.set()
        await until(lambda: worker.tally.acked)  # a claim, if one is wanted, goes with this ack
        others.set()
        tally = await running
    assert (tally.claimed, len(begun), tally.end) == (5, 5, "max_tasks")
    assert queue.stats().todos == 45


# ---- signals


async def test_a_signal_stops_all_workers_of_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    queues = [fake_async_queue(f"q{i}", retry=[]) for i in range(3)]
    begun: list[str] = []

    async def handler(lease: Lease) -> None:
        begun.append(lease.task)
        await asyncio.sleep(0.05)

    for queue in queues:
        await queue.put("a")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with caplog.at_level(logging.INFO):
        running = [asyncio.create_task(Worker(queue, handler).run()) for queue in queues]
        await until(lambda: len(begun) == 3)
        os.kill(os.getpid(), signal.SIGTERM)
        tallies = await asyncio.wait_for(asyncio.gather(*running), 10)
    assert [tally.acked for tally in tallies] == [1, 1, 1]
    assert len([line for line in caplog.messages if line.endswith(" drains")]) == 3
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    for queue in queues:
        await queue.close()


async def test_signal_handlers_of_before_are_put_back(fake: FakeAsyncQueue) -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.append, "of the loop")
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("of the program"))
    try:
        await drained(Worker(fake, fetch, burst=True))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: sorted(heard) == ["of the loop", "of the program"])
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("threads", [False, True])
async def test_after_the_drain_deadline_what_still_runs_is_given_back(fake: FakeAsyncQueue, threads: bool) -> None:
    begun, release = threading.Event(), threading.Event()

    async def forever(lease: Lease) -> None:
        begun.set()
        await asyncio.sleep(60)

    def forever_in_thread(lease: Lease) -> None:
        begun.set()
        release.wait(60)

    await fake.put("a")
    worker = Worker(fake, forever_in_thread if threads else forever, drain_deadline=0.3, signals=False)
    running = asyncio.create_task(worker.run())
    await until(begun.is_set)
    worker.stop()
    asked = time.monotonic()
    tally = await ended(running, 10)
    assert 0.25 < time.monotonic() - asked < 5
    assert (tally.released, tally.acked) == (1, 0)
    assert (await fake.inspect("a")).state == State.TODOS
    release.set()


# ---- a thread that ends


async def test_a_worker_whose_thread_is_ended_from_outside_gives_its_tasks_back_and_says_why(
    fake: FakeAsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised_from_outside(*_: object) -> None:
        raise SystemExit("from outside")

    monkeypatch.setattr(ThreadCrew, "_hand_in", raised_from_outside)
    await fake.put("a", "b", "c")
    with pytest.raises(WorkerBroken, match="a thread that ran handlers has ended: SystemExit: from outside"):
        await drained(Worker(fake, lambda lease: None, concurrency=1, prefetch=2, signals=False))
    assert (await fake.stats()).todos == 3


# ---- who may be its queue


async def test_a_worker_that_has_met_its_server_waits_while_its_password_is_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    with EmbeddedServer(config={"requirepass": "one"}) as server, caplog.at_level(logging.INFO):
        admin: Any = redis.Redis(port=server.port or 0, password="one")
        async with AsyncQueue("q", f"redis://:one@127.0.0.1:{server.port}/0", deadline=5) as mine:
            worker = Worker(mine, handler, signals=False)
            working = asyncio.create_task(worker.run())
            await mine.put("a")
            await until(lambda: ran == ["a"])
            admin.config_set("requirepass", "another")
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await until(lambda: working.done() or pump_of(worker).shards[0].failures >= 3)
            assert not working.done() and "waits for the server" in caplog.text
            admin.config_set("requirepass", "one")
            await mine.put("b")
            await until(lambda: ran == ["a", "b"])
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        admin.close()


@pytest.mark.parametrize("threads", [False, True])
async def test_what_ends_within_the_drain_deadline_is_acked(fake: FakeAsyncQueue, threads: bool) -> None:
    begun, release = threading.Event(), threading.Event()

    async def handler(lease: Lease) -> None:
        begun.set()
        await until(release.is_set)

    def handler_in_thread(lease: Lease) -> None:
        begun.set()
        release.wait(60)

    await fake.put("a", "b")
    worker = Worker(fake, handler_in_thread if threads else handler, concurrency=1, prefetch=1, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: begun.is_set() and len(worker.held) == 2)
    worker.stop()
    await until(lambda: len(worker.held) == 1)  # what had not begun is given back at once
    assert (await fake.stats()).todos == 1
    release.set()
    tally = await ended(running, 10)
    assert (tally.acked, tally.released) == (1, 1)


async def test_a_second_stop_ends_a_lifespan_that_does_not_end(fake: FakeAsyncQueue) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def stays() -> AsyncIterator[None]:
        told.append("entered")
        yield
        told.append("leaving")
        await asyncio.Event().wait()

    worker = Worker(fake, fetch, lifespan=stays, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: told)
    worker.stop()
    await until(lambda: len(told) == 2)
    worker.stop()
    assert (await ended(running, 10)).end == "stopped"
