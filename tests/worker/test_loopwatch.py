"""A handler that blocks the event loop is told of while it does, and its attempt fails when max_runtime is over."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from timeoutq import Ack, AsyncQueue, Lease, Queue, Worker, loopwatch, troubles
from timeoutq.testing import FakeAsyncQueue, FakeQueue, fake_async_queue


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
    logging.getLogger("timeoutq.loopwatch").addHandler(found)
    yield found
    logging.getLogger("timeoutq.loopwatch").removeHandler(found)


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
    assert " in hang: meanwhile" in said
    assert "write the handler as a plain `def`, which gets a thread, or await asyncio.to_thread(…)" in said
    (over,) = lines(caplog, "turns again")
    assert float(over.getMessage().partition("it was blocked for ")[2].split()[0]) > 2
    assert over.getMessage().endswith("by the handler of task 'hang'")


async def test_each_blocking_is_told_of(caplog: pytest.LogCaptureFixture, block: Blocking) -> None:
    async def handler(lease: Lease) -> None:
        block()
        await asyncio.sleep(0.6)  # the loop turns meanwhile

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
        time.sleep(0.001)  # noqa: ASYNC251
        queue.clock.advance(4.99)

    async with fake_async_queue() as queue:
        await queue.put("a")
        await drained(queue, handler, max_runtime=5)
        assert (await queue.inspect("a")).state == "done"


async def test_a_lease_that_max_runtime_has_ended_does_not_blame_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(lease: Lease) -> None:
        time.sleep(0.001)  # noqa: ASYNC251
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


async def test_a_reply_that_a_blocked_loop_has_not_read_is_not_blamed_on_the_server(url: str, queue: Queue) -> None:
    async with AsyncQueue(queue.name, url, deadline=0.5) as mine:
        await mine.stats()
        asking = asyncio.create_task(mine._link().send([("BLPOP", f"{queue.name}-nothing", 1)]))
        await asyncio.sleep(0.01)
        time.sleep(1.0)  # noqa: ASYNC251  # longer than the reply may take
        with pytest.raises(redis.TimeoutError) as caught:
            await asking
    said = str(troubles.explain(caught.value, "redis://h"))
    assert "no answer was read from redis://h: the event loop of this process was blocked until " in said
    assert said.endswith("s after the reply was due; does an `async def` make a blocking call?")
    assert "is it stopped or busy" not in said
