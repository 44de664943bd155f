"""A handler that blocks the event loop is told of while it does, and its attempt fails when max_runtime is over."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from timeoutq import Ack, AsyncQueue, Lease, Queue, Worker
from timeoutq.server import troubles
from timeoutq.testing import FakeAsyncQueue, FakeQueue, fake_async_queue
from timeoutq.words import telling
from timeoutq.worker import loopwatch


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if word in record.getMessage()]


async def drained(queue: FakeAsyncQueue, handler: Any, **settings: Any) -> None:
    worker = Worker(queue, handler, burst=True, signals=False, retry=[], **settings)
    await asyncio.wait_for(worker.run(), 30)


class Blocking(logging.Handler):
    """A call that blocks until the log has told of it."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "has been blocked" in record.getMessage():
            self.told.set()

    def __call__(self) -> None:
        self.told.clear()
        assert self.told.wait(20)


@pytest.fixture
def block() -> Iterator[Blocking]:
    found = Blocking()
    logging.getLogger("timeoutq.worker.loopwatch").addHandler(found)
    yield found
    logging.getLogger("timeoutq.worker.loopwatch").removeHandler(found)


async def turns_again(caplog: pytest.LogCaptureFixture, times: int) -> None:
    """Wait until it was told that often that the loop turns again."""
    async with asyncio.timeout(20):
        while len(lines(caplog, "turns again")) < times:
            await asyncio.sleep(0.01)


async def test_a_handler_that_blocks_the_loop_is_named_once_with_its_line_and_the_cure(
    caplog: pytest.LogCaptureFixture, block: Blocking
) -> None:
    async def hang(lease: Lease) -> None:
        if lease.task == "hang":
            block()
            time.sleep(1.3)  # noqa: ASYNC251  # longer than it takes until it is told of
        else:
            await asyncio.sleep(0.1)

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("other", "hang")
        await drained(queue, hang)
    (line,) = lines(caplog, "has been blocked")
    said = line.getMessage()
    assert line.levelname == "WARNING"
    assert (vars(line)["task"], vars(line)["queue"]) == ("hang", "test")
    assert "by the handler of task 'hang', at " in said
    assert "threading.py:" in said
    assert f"in wait, called from {__file__}:" in said
    assert " in hang. Meanwhile no other handler of this worker runs" in said
    assert "write the handler as a plain def (it runs in a thread), or use await asyncio.to_thread(…)" in said
    (over,) = lines(caplog, "turns again")
    assert float(over.getMessage().partition("it was blocked for ")[2].split()[0]) > 2
    assert over.getMessage().endswith("by the handler of task 'hang'")


async def test_each_blocking_is_told_of(caplog: pytest.LogCaptureFixture, block: Blocking) -> None:
    async def handler(lease: Lease) -> None:
        told = len(lines(caplog, "turns again"))
        block()
        await turns_again(caplog, told + 1)

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("a", "b")
        await drained(queue, handler, concurrency=1)
    assert sorted(vars(line)["task"] for line in lines(caplog, "has been blocked")) == ["a", "b"]
    assert len(lines(caplog, "turns again")) == 2


async def test_a_call_that_no_handler_makes_itself_names_those_that_run(
    caplog: pytest.LogCaptureFixture, block: Blocking
) -> None:
    async def handler(lease: Lease) -> None:
        asyncio.get_running_loop().call_soon(block)
        await asyncio.sleep(0.1)

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("a")
        await drained(queue, handler)
    (line,) = lines(caplog, "has been blocked")
    assert "by one of the handlers of tasks 'a', at " in line.getMessage()


async def test_a_loop_that_turns_is_never_told_of(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(loopwatch, "SHORTEST", 0.2)

    async def handler(lease: Lease) -> None:
        for _ in range(50):
            await asyncio.sleep(0.01)

    async with fake_async_queue(timeout=0.6) as queue:
        await queue.put("waits")
        await drained(queue, handler)
    assert lines(caplog, "has been blocked") == []


async def test_a_call_of_no_handler_is_named_by_its_asyncio_task_or_as_nobodys(
    caplog: pytest.LogCaptureFixture, block: Blocking
) -> None:
    go_on = threading.Event()

    def handler(lease: Lease) -> None:  # it runs in a thread: it cannot block the loop
        go_on.wait(20)

    async def blocks() -> None:
        block()

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("a")
        worker = Worker(queue, handler, burst=True, signals=False)
        working = asyncio.create_task(worker.run())
        while not worker.running:
            await asyncio.sleep(0.01)
        await asyncio.create_task(blocks(), name="of-the-user")
        await turns_again(caplog, 1)
        asyncio.get_running_loop().call_soon(block)
        await turns_again(caplog, 2)
        go_on.set()
        await working
    first, second = [line.getMessage() for line in lines(caplog, "has been blocked")]
    assert "by the asyncio task 'of-the-user', at " in first
    assert "Does it make a blocking call? Then use await asyncio.to_thread(…)" in first
    assert "by code that belongs to no handler, at " in second
    assert "write the handler" not in first + second


class Sleeps:
    """A call that holds the GIL for so many seconds; it sleeps, so that no busy machine makes it longer."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._sleep = ctypes.PyDLL(None).sleep

    def __call__(self) -> None:
        assert self._sleep(self._seconds) == 0


@pytest.mark.parametrize("threads", [False, True])
async def test_a_call_that_holds_the_gil_is_told_of_when_it_is_over(
    threads: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", time.monotonic)  # as if it computed
    hold = Sleeps(2)

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(1)
        hold()

    def in_thread(lease: Lease) -> None:
        time.sleep(1)
        hold()

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("a")
        await drained(queue, in_thread if threads else handler)
    (line,) = lines(caplog, "GIL")
    said = line.getMessage()
    assert 1 < float(said.partition("for ")[2].split()[0]) < 3
    assert "Then run it in another process" in said
    one = "a call by one of the handlers of tasks 'a' held Python's global interpreter lock"
    # on a very busy machine the handler of a coroutine may have ended before the other thread has its turn
    assert one in said or (not threads and f"a call by the handler of task 'a', at {__file__}:" in said)
    assert lines(caplog, "has been blocked") == []


async def test_a_process_that_was_stopped_is_not_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", float)  # nothing of the process ran
    stop = Sleeps(2)

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0.3)
        stop()

    async with fake_async_queue(timeout=3) as queue:
        await queue.put("a")
        await drained(queue, handler)
    assert lines(caplog, "queue test: ") == []


def watch_of(*leases: Lease) -> loopwatch.LoopWatch:
    return loopwatch.LoopWatch("mine", [{lease.fence: Running(lease) for lease in leases}], {}, 3.0)


class Running:
    """A handler at work in a thread."""

    task: asyncio.Task[None] | None = None

    def __init__(self, lease: Lease) -> None:
        self.lease = lease


def test_a_handler_of_another_worker_is_not_taken_for_the_one_with_the_same_fence() -> None:
    mine, other = (Lease(name, f"{name}#1", 0.0, 1, 0, 7) for name in ("mine", "other"))

    class Task:
        """An asyncio task since Python 3.12, which gives its context."""

        def get_context(self) -> contextvars.Context:
            return contextvars.copy_context()

    def found(lease: Lease) -> Lease | None:
        telling.running.set(({}, lease))
        return watch_of(mine)._lease(Task())

    assert contextvars.copy_context().run(found, mine) is mine
    assert contextvars.copy_context().run(found, other) is None


def test_the_line_of_a_callback_is_found_where_no_frame_of_events_is_above_it() -> None:
    watch = watch_of()
    watch._ident = threading.get_ident()
    frames: dict[str, Any] = {}
    exec(compile("def run(call): return call()", str(asyncio.runners.__file__), "exec"), frames)  # as with uvloop
    place = frames["run"](lambda: watch._place())
    assert " in <lambda>" in place.partition(f", called from {__file__}:")[2]


def test_a_long_id_is_cut_with_a_sign() -> None:
    run = Running(Lease("x" * 100, "w#1", 0.0, 1, 0, 7))
    assert loopwatch._names([run] * 7) == ", ".join(["'" + "x" * 78 + "…"] * 5) + " and 2 more"


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("end", [None, Ack(put=["found"]), ValueError("late")])
async def test_a_handler_that_blocks_the_loop_beyond_its_max_runtime_has_failed(threads: bool, end: Any) -> None:
    async def handler(lease: Lease) -> Any:
        time.sleep(0.001)  # noqa: ASYNC251  # it takes some time
        queue.clock.advance(7)  # and the loop does not turn meanwhile
        if isinstance(end, ValueError):
            raise end
        return end

    def in_thread(lease: Lease) -> Any:
        return handler(lease)

    async with fake_async_queue() as queue:
        await queue.put("a")
        await drained(queue, in_thread if threads else handler, max_runtime=5)
        info = await queue.inspect("a")
        assert (await queue.stats()).known == 1
    assert info.state == "failed"
    assert "max_runtime of 5 s is over: the handler ended 2.0 s later" in (info.error or "")
    assert "because the event loop was blocked" in (info.error or "")
    assert ("ValueError: late" in (info.traceback or "")) == isinstance(end, ValueError)


async def test_a_handler_that_ends_just_before_its_max_runtime_is_done() -> None:
    async def handler(lease: Lease) -> None:
        time.sleep(0.001)  # noqa: ASYNC251  # it blocks the loop
        queue.clock.advance(4.99)

    async with fake_async_queue() as queue:
        await queue.put("a")
        await drained(queue, handler, max_runtime=5)
        assert (await queue.inspect("a")).state == "done"


async def test_a_lease_that_max_runtime_has_ended_does_not_blame_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(lease: Lease) -> None:
        time.sleep(0.001)  # noqa: ASYNC251  # it blocks the loop
        queue.clock.advance(7)
        with FakeQueue(queue.name, queue.clock) as other:
            other.requeue_expired()
            (mine,) = other.claim()
            worker.stop()
            other.ack(mine)

    async with fake_async_queue(timeout=2) as queue:
        await queue.put("a")
        worker = Worker(queue, handler, signals=False, max_runtime=5)
        await asyncio.wait_for(worker.run(), 30)
    (line,) = lines(caplog, "came too late")
    said = line.getMessage()
    assert "ended 2.0 s ago with its max_runtime, which nothing extends, and another worker has finished" in said
    assert "raise max_runtime=, or find what kept the handler from ending" in said
    assert "raise timeout=" not in said


async def test_a_reply_that_a_blocked_loop_has_not_read_is_not_blamed_on_the_server(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async with AsyncQueue(queue.name, url, deadline=2.5) as mine:
        await mine.stats()
        asking = asyncio.create_task(mine._link().send([("BLPOP", f"{queue.name}-nothing", 5)]))
        client: Any = raw
        while client.info("clients")["blocked_clients"] == 0:
            await asyncio.sleep(0.001)
        time.sleep(1.5)  # noqa: ASYNC251  # longer than the reply may take
        with pytest.raises(redis.TimeoutError) as caught:
            await asking
    said = str(troubles.explain(caught.value, "redis://h"))
    assert "no answer was read from redis://h: the event loop of this process was blocked until " in said
    assert said.endswith("s after the reply was due; does an `async def` make a blocking call?")
    assert "is it stopped or busy" not in said
