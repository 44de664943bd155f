"""The life of a worker: its lifespan, how many tasks it may run, signals, context variables, who may be its queue."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of
from timeoutq import AccessDenied, Ack, AsyncQueue, InvalidInput, Lease, Politeness, Queue, Retry, State, Worker
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import FakeAsyncQueue, fake_async_queue
from timeoutq.words.errors import TimeoutqError, WorkerBroken
from timeoutq.worker.crews import TaskCrew
from timeoutq.worker.desk import Tally
from timeoutq.worker.ends import Errand
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.processes import process
from timeoutq.worker.threads import ThreadCrew


@pytest.fixture
async def fake() -> AsyncIterator[FakeAsyncQueue]:
    async with fake_async_queue(timeout=5, retry=[]) as queue:
        yield queue


async def until(predicate: Callable[[], bool | Awaitable[bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.002)


async def drained(worker: Worker) -> Tally:
    async with asyncio.timeout(20):
        return await worker.run()


async def fetch(lease: Lease) -> None: ...


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


async def test_a_lifespan_can_be_named_like_a_handler(fake: FakeAsyncQueue) -> None:
    await fake.put("a")
    here = __name__
    await drained(Worker(fake, with_state, burst=True, lifespan=opened))
    with pytest.raises(ImportError, match=r"lifespan 'asyncio:nothing': module asyncio has no nothing"):
        Worker(fake, with_state, lifespan="asyncio:nothing")
    assert here
    worker = Worker(fake, fetch, burst=True, lifespan="contextlib:AsyncExitStack")
    await drained(worker)


async def test_a_handler_that_takes_the_lease_alone_may_have_a_lifespan(fake: FakeAsyncQueue) -> None:
    await fake.put("a")
    assert (await drained(Worker(fake, fetch, burst=True, lifespan=opened))).acked == 1
    assert story == ["enter", "exit"]


async def test_an_error_while_entering_ends_the_worker_before_any_claim(fake: FakeAsyncQueue) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    await fake.put("a")
    with pytest.raises(ConnectionError, match="no database"):
        await drained(Worker(fake, fetch, burst=True, lifespan=broken))
    assert (await fake.stats()).counters.get("claimed", 0) == 0


async def test_an_error_while_leaving_is_raised_when_all_is_given_back(fake: FakeAsyncQueue) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise ConnectionError("cannot close")

    await fake.put("a")
    with pytest.raises(ConnectionError, match="cannot close"):
        await drained(Worker(fake, fetch, burst=True, lifespan=broken))
    assert (await fake.stats()).done == 1


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


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_lifespan_that_leaves_the_program_when_it_is_left_is_an_error(
    fake: FakeAsyncQueue, error: type[BaseException]
) -> None:
    @asynccontextmanager
    async def leaving() -> AsyncIterator[None]:
        yield
        raise error

    await fake.put("a")
    with pytest.raises(WorkerBroken, match=f"the lifespan raised {error.__name__} when it was left"):
        await drained(Worker(fake, fetch, burst=True, lifespan=leaving))
    assert (await fake.stats()).done == 1


async def test_a_worker_ends_though_handlers_have_left_all_threads_of_the_loop_behind(fake: FakeAsyncQueue) -> None:
    free, loop = threading.Event(), asyncio.get_running_loop()
    threads = ThreadPoolExecutor(2)
    loop.set_default_executor(threads)
    hung = [loop.run_in_executor(None, free.wait) for _ in range(2)]
    try:
        await fake.put("a")
        assert (await drained(Worker(fake, fetch, burst=True, signals=False))).acked == 1
        assert not any(one.done() for one in hung)
    finally:
        free.set()
        await asyncio.gather(*hung)


def test_handlers_of_a_process_find_names_though_all_threads_of_the_loop_are_taken() -> None:
    free = threading.Event()

    async def look() -> object:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hung = loop.run_in_executor(None, free.wait)
        try:
            async with asyncio.timeout(10):
                return await loop.getaddrinfo("localhost", 6379)
        finally:
            free.set()
            await hung

    with process._runner() as runner:
        assert runner.run(look())


async def test_the_lifespan_is_left_after_the_last_handler_when_the_worker_is_cancelled(fake: FakeAsyncQueue) -> None:
    async def slow(lease: Lease) -> None:
        story.append("begins")
        try:
            await asyncio.sleep(60)
        finally:
            story.append("ends")

    await fake.put("a")
    running = asyncio.create_task(Worker(fake, slow, lifespan=opened, signals=False).run())
    await until(lambda: "begins" in story)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert story == ["enter", "begins", "ends", "exit"]
    assert (await fake.stats()).todos == 1


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
        assert (await asyncio.wait_for(running, 10)).end == "stopped"
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)
    assert story == ["entering", "gave up"]
    assert (await fake.stats()).counters.get("claimed", 0) == 0


async def test_leaving_that_takes_too_long_is_cut_short_by_another_stop(fake: FakeAsyncQueue) -> None:
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        yield
        story.append("leaving")
        await asyncio.sleep(60)

    worker = Worker(fake, fetch, burst=True, lifespan=slow, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: story == ["leaving"])
    worker.stop(now=True)
    await asyncio.wait_for(running, 10)


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


async def test_handlers_see_the_context_variables_that_the_lifespan_set(fake: FakeAsyncQueue) -> None:
    @asynccontextmanager
    async def binding() -> AsyncIterator[None]:
        variable.set("bound")
        yield

    async def look(lease: Lease) -> None:
        story.append(str(variable.get(None)))

    await fake.put("a")
    await drained(Worker(fake, look, burst=True, lifespan=binding))
    assert story == ["bound"]
    assert variable.get(None) is None


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


async def test_handlers_that_never_wait_leave_the_loop_to_others(fake: FakeAsyncQueue) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        time.sleep(0.01)  # noqa: ASYNC251  # a handler that only computes
        ran.append(lease.task)

    await fake.put([f"t{i}" for i in range(100)])
    working = asyncio.create_task(Worker(fake, handler, concurrency=1, prefetch=99, burst=True).run())
    seen = [0]
    while not working.done():
        seen.append(len(ran))
        await asyncio.sleep(0)
    assert working.result().acked == 100
    assert max(after - before for before, after in pairwise(seen)) <= 5


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


async def test_of_more_places_than_max_tasks_no_more_are_taken(fake: FakeAsyncQueue) -> None:
    go = asyncio.Event()
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)
        await go.wait()

    await fake.put([f"t{i}" for i in range(10)])
    working = asyncio.create_task(Worker(fake, handler, concurrency=6, max_tasks=2, signals=False).run())
    await until(lambda: len(ran) == 2)
    for _ in range(30):
        await asyncio.sleep(0.01)
        assert (await fake.stats()).in_progress == len(ran) == 2
    go.set()
    await until(working.done)
    assert (working.result().acked, working.result().end) == (2, "max_tasks")


async def test_a_worker_says_why_it_ended(fake: FakeAsyncQueue) -> None:
    await fake.put("a")
    assert (await drained(Worker(fake, fetch, burst=True, max_tasks=2))).end == "drained"
    worker = Worker(fake, fetch, signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.held == {})
    worker.stop()
    assert (await running).end == "stopped"
    with pytest.raises(InvalidInput, match="max_tasks must be a whole number from 1"):
        Worker(fake, fetch, max_tasks=0)


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


async def test_the_end_of_one_worker_leaves_the_signals_to_the_others(fake: FakeAsyncQueue) -> None:
    staying = asyncio.create_task(Worker(fake, fetch).run())
    async with fake_async_queue("other") as other:
        await drained(Worker(other, fetch, burst=True))
    os.kill(os.getpid(), signal.SIGINT)
    assert (await asyncio.wait_for(staying, 10)).end == "stopped"


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


async def at_work(fake: FakeAsyncQueue) -> asyncio.Task[Tally]:
    """Have a worker that hears signals run a task without end."""
    begun = asyncio.Event()

    async def forever(lease: Lease) -> None:
        begun.set()
        await asyncio.sleep(60)

    await fake.put("a")
    running = asyncio.create_task(Worker(fake, forever).run())
    await asyncio.wait_for(begun.wait(), 10)
    return running


async def test_a_second_signal_gives_everything_back_at_once(
    fake: FakeAsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    running = await at_work(fake)
    with caplog.at_level(logging.INFO):
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: "drains" in caplog.text)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await asyncio.wait_for(running, 10)).released == 1
    assert "stops at once, giving its tasks back" in caplog.text
    assert (await fake.inspect("a")).state == State.TODOS


async def test_ctrl_c_gives_everything_back_at_once(fake: FakeAsyncQueue) -> None:
    running = await at_work(fake)
    os.kill(os.getpid(), signal.SIGINT)
    await until(running.done)
    assert running.result().released == 1
    assert (await fake.inspect("a")).state == State.TODOS


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
    tally = await asyncio.wait_for(running, 10)
    assert 0.25 < time.monotonic() - asked < 5
    assert (tally.released, tally.acked) == (1, 0)
    assert (await fake.inspect("a")).state == State.TODOS
    release.set()


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
    tally = await asyncio.wait_for(running, 10)
    assert (tally.acked, tally.released) == (1, 1)


async def test_what_a_handler_still_returns_when_it_is_asked_to_end_counts(fake: FakeAsyncQueue) -> None:
    begun = asyncio.Event()

    async def handler(lease: Lease) -> Ack:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return Ack(put=["found"])

    await fake.put("a")
    worker = Worker(fake, handler, concurrency=1, prefetch=0, signals=False)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), 10)
    worker.stop(now=True)
    await until(running.done)
    assert (running.result().acked, running.result().released) == (1, 0)
    assert (await fake.inspect("a")).state is State.DONE
    assert (await fake.inspect("found")).state is State.TODOS


async def test_a_worker_that_does_not_run_yet_knows_of_itself_alone(fake: FakeAsyncQueue) -> None:
    worker = Worker(fake, fetch, signals=False)
    assert worker.peers == 1
    assert (worker.held, worker.running) == ({}, [])


async def test_a_worker_that_is_stopped_before_it_runs_does_nothing(fake: FakeAsyncQueue) -> None:
    await fake.put("a")
    worker = Worker(fake, fetch)
    worker.stop()
    assert (await drained(worker)).claimed == 0


# ---- leases that nothing works on


@pytest.mark.parametrize("threads", [False, True])
async def test_a_held_lease_that_nothing_works_on_is_given_back(
    threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = threading.Event(), threading.Event()
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)
        begun.set()
        await until(release.is_set)

    def handler_in_thread(lease: Lease) -> None:
        ran.append(lease.task)
        begun.set()
        release.wait(60)

    async with fake_async_queue(timeout=0.3) as queue:
        await queue.put("a", "b", "c")
        worker = Worker(queue, handler_in_thread if threads else handler, concurrency=1, prefetch=2, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun.is_set() and len(worker.held) == 3)
        # as a mistake in the worker would: it forgets one
        crew = pump_of(worker).crew
        forgotten = crew._inbox.popleft() if isinstance(crew, TaskCrew) else crew.give_back()[0]
        await until(lambda: forgotten.task in caplog.text)
        assert f"task {forgotten.task!r} is held, but no handler works on it: it is given back" in caplog.text
        release.set()
        await until(queue.drained)
        worker.stop()
        await asyncio.wait_for(running, 10)
        assert sorted({*ran}) == ["a", "b", "c"]
        assert (await queue.stats()).done == 3
        assert caplog.text.count("no handler works on it") == 1 + threads  # the queue of the crew was forgotten whole


@pytest.mark.parametrize("threads", [False, True])
async def test_a_lease_that_was_forgotten_and_given_back_does_not_count_against_max_tasks(threads: bool) -> None:
    begun, release = threading.Event(), threading.Event()

    async def handler(lease: Lease) -> None:
        begun.set()
        await until(release.is_set)

    def handler_in_thread(lease: Lease) -> None:
        begun.set()
        release.wait(60)

    async with fake_async_queue(timeout=0.3) as queue:
        await queue.put("a", "b", "c")
        handled = handler_in_thread if threads else handler
        worker = Worker(queue, handled, concurrency=1, prefetch=2, max_tasks=3, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun.is_set() and len(worker.held) == 3)
        crew = pump_of(worker).crew
        # as a thread that is ended from outside would, which has just taken a lease: it forgets the lease
        if isinstance(crew, ThreadCrew):
            assert crew._waiting.get_nowait() is not None
        else:
            assert isinstance(crew, TaskCrew)
            crew._inbox.popleft()
        await until(lambda: worker.tally.released == 1)
        release.set()
        tally = await asyncio.wait_for(running, 10)
        assert (tally.acked, tally.released, tally.end) == (3, 1, "max_tasks")
        assert crew.taken == 0


@pytest.mark.parametrize("how", ["drains", "stops at once", "is cancelled"])
async def test_the_heartbeat_ends_when_the_last_end_of_a_lease_was_sent(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    order: list[str] = []
    send, stop = Exchanges._send, Heartbeat.stop

    async def sends(self: Exchanges, claim: Any, errands: list[Errand]) -> TimeoutqError | None:
        trouble = await send(self, claim, errands)
        order.extend(errand.verb for errand in errands)
        return trouble

    def stops(self: Heartbeat) -> None:
        order.append("farewell")
        stop(self)

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(Exchanges, "_send", sends)
    monkeypatch.setattr(Heartbeat, "stop", stops)
    async with fake_async_queue() as queue:
        await queue.put("a")
        worker = Worker(queue, handler, drain_deadline=0.0, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: bool(worker.running))
        if how == "is cancelled":
            running.cancel()
        else:
            worker.stop(now=how == "stops at once")
        with suppress(asyncio.CancelledError):
            await running
    assert order == ["release", "farewell"]


@pytest.mark.breaking
async def test_what_is_worked_on_is_never_taken_for_forgotten(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> None:
        await asyncio.sleep(1.2)

    queue.put([f"t{i}" for i in range(12)])
    async with AsyncQueue(queue.name, url, timeout=0.3) as mine:
        tally = await drained(Worker(mine, handler, concurrency=4, prefetch=4, burst=True))
    assert (tally.acked, tally.released) == (12, 0)


# ---- Retry(block_host=)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_retry_that_blocks_its_host_fails_the_attempt_and_keeps_everybody_away(
    url: str, queue: Queue, threads: bool
) -> None:
    async def handler(lease: Lease) -> None:
        if "//slow." in lease.task:
            raise Retry(after=1, reason="HTTP 503", block_host=60)
        if "//broken." in lease.task:
            raise ValueError

    def handler_in_thread(lease: Lease) -> Any:
        return Retry(after=1, reason="HTTP 503", block_host=60) if "//slow." in lease.task else handler(lease)

    queue.configure(politeness=Politeness(delay=0, per_host=1))
    queue.put("https://slow.example/1", "https://slow.example/2", "https://good.example/1", "https://broken.example/1")
    async with AsyncQueue(queue.name, url, timeout=5, retry=[60]) as mine:
        worker = Worker(mine, handler_in_thread if threads else handler, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally.acked + worker.tally.failed == 3)
        worker.stop()
        assert (await running).failed == 2
    (failed,) = [one for one in ("https://slow.example/1", "https://slow.example/2") if queue.inspect(one).failures]
    assert queue.inspect(failed).state == State.SCHEDULED
    assert queue.inspect(failed).error == "Retry: HTTP 503"
    blocked = {host.host: host.blocked_until for host in queue.hosts.list().hosts}
    assert 50 < (blocked["slow.example"] or 0) - time.time() < 70
    assert not blocked["broken.example"]
    assert queue.stats().waiting == 1


# ---- who may be its queue


async def test_a_worker_on_a_plain_queue_is_told_what_to_write() -> None:
    with pytest.raises(InvalidInput, match=r"takes an AsyncQueue: write Worker\(AsyncQueue\('pages', …\), …\)"):
        Worker(Queue("pages"), fetch)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidInput, match=r"takes a queue, not its name: write Worker\(AsyncQueue\('pages', …\), …\)"):
        Worker("pages", fetch)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidInput, match="takes an AsyncQueue, not NoneType"):
        Worker(None, fetch)  # type: ignore[arg-type]  # that is the point


async def test_with_a_wrong_password_nobody_says_that_the_server_answers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedServer(config={"requirepass": "x"}) as server, caplog.at_level(logging.INFO):
        async with AsyncQueue("q", f"redis://127.0.0.1:{server.port}/0", deadline=1) as wrong:
            with pytest.raises(AccessDenied), suppress(asyncio.CancelledError):
                await asyncio.wait_for(Worker(wrong, fetch, signals=False).run(), 10)
    assert "again" not in caplog.text


async def test_a_worker_that_has_met_its_server_waits_while_its_password_is_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    with EmbeddedServer(config={"requirepass": "one"}) as server, caplog.at_level(logging.INFO):
        admin: Any = redis.Redis(port=server.port or 0, password="one")
        async with AsyncQueue("q", f"redis://:one@127.0.0.1:{server.port}/0", deadline=1) as mine:
            worker = Worker(mine, handler, signals=False)
            working = asyncio.create_task(worker.run())
            await mine.put("a")
            await until(lambda: ran == ["a"])
            admin.config_set("requirepass", "another")
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await until(lambda: working.done() or pump_of(worker).exchanges.failures >= 3)
            assert not working.done() and "waits for the server" in caplog.text
            admin.config_set("requirepass", "one")
            await mine.put("b")
            await until(lambda: ran == ["a", "b"])
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        admin.close()
