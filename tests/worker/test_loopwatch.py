"""A handler that blocks the event loop is told of while it does, and its attempt fails when max_runtime is over."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.working import ended
from timeoutq import Ack, Lease, Worker
from timeoutq.testing import FakeAsyncQueue, fake_async_queue
from timeoutq.worker.runs import MaxRuntime, Run


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if word in record.getMessage()]


async def drained(queue: FakeAsyncQueue, handler: Any, **settings: Any) -> None:
    worker = Worker(queue, handler, burst=True, signals=False, retry=[], **settings)
    await ended(worker.run(), 30)


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
    logging.getLogger("timeoutq.worker").addHandler(found)
    yield found
    logging.getLogger("timeoutq.worker").removeHandler(found)


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


async def test_a_handler_that_is_to_be_stopped_when_it_has_ended_already_has_failed_for_the_same_reason() -> None:
    async with fake_async_queue(timeout=5) as queue:
        await queue.put("a")
        (lease,) = await queue.claim()
        queue.clock.advance(7)
        run = Run(lease, task=None, began=0.0, end="max_runtime")
        error = MaxRuntime(queue, 5).overrun(run, None)
        assert "the handler ended 2.0 s later" in str(error)
        assert run.end == ""  # `finished` goes by the error
        assert MaxRuntime(queue, 5).overrun(Run(lease, None, 0.0, end="shutdown"), None) is None


async def test_a_loop_that_is_blocked_is_told_of_before_a_short_max_runtime_is_over(
    caplog: pytest.LogCaptureFixture, block: Blocking
) -> None:
    async def hang(lease: Lease) -> None:
        block()

    async with fake_async_queue(timeout=60) as queue:
        await queue.put("a")
        await drained(queue, hang, max_runtime=3)
    assert "the event loop has been blocked for 1" in caplog.text
