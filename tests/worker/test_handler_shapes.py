"""Every shape of handler and of exception, as one table: each row is run, or failed with its reason; never neither.

Three tasks go to a worker with one handler at once. A row that kills the consumer, or keeps its lease, leaves the
second and third task undone. Each row says what becomes of them: how often a body ran, and the error of the tasks.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from timeoutq import Ack, GiveUp, InvalidInput, Lease, Release, Retry, State, Worker
from timeoutq.testing import FakeAsyncQueue, fake_async_queue

TASKS = ("first", "second", "third")

ran: list[str] = []
"""The tasks whose handler's body has run."""


def begin(lease: Lease) -> None:
    ran.append(lease.task)


async def fetch(lease: Lease) -> None:
    begin(lease)
    await asyncio.sleep(0)


def plain(function: Any) -> Any:
    """Decorate as people do who think of no coroutine: the wrapper is a `def`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **settings: Any) -> Any:
        return function(*args, **settings)

    return wrapper


class Awaitable:
    """An object with `__await__`, as libraries return them."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def __await__(self) -> Generator[Any, None, None]:
        return fetch(self.lease).__await__()


async def endless(lease: Lease) -> Any:
    begin(lease)
    return endless(lease)


async def of_a_task(lease: Lease) -> Any:
    return asyncio.create_task(fetch(lease))


async def coroutine_run_twice(lease: Lease) -> Any:
    coroutine = fetch(lease)
    await coroutine
    return coroutine


def numbers(lease: Lease) -> Any:
    begin(lease)
    yield 1


async def pages(lease: Lease) -> Any:
    begin(lease)
    yield 1


HOW_RUN: dict[str, Callable[[Lease], Any]] = {
    "an async def": fetch,
    "a lambda that calls an async def": lambda lease: fetch(lease),
    "a def that gives an object with __await__": lambda lease: Awaitable(lease),
    "an async def that gives a task": of_a_task,
    "a def": begin,
}
"""Ways to write a handler that is run: done, and its body has run once for each task."""

RETURNED: dict[str, tuple[Callable[[Lease], Any], str]] = {
    "a generator, from a lambda": (lambda lease: numbers(lease), "a generator, so nothing of it has run"),
    "an async generator, from a lambda": (lambda lease: pages(lease), "an async generator, so nothing of it has run"),
    "a list of links": (lambda lease: ["a"], "a list; expected None, Ack, Release, Retry or GiveUp; links go into Ack"),
    "True": (lambda lease: True, "returned a bool"),
    "the class Ack": (lambda lease: Ack, r"the class Ack; expected None, Ack, Release, Retry or GiveUp; write Ack(…)"),
    "an exception of another kind": (lambda lease: ValueError("x"), "the exception ValueError; expected"),
    "awaitables without end": (endless, "an awaitable that gives an awaitable, 10 deep"),
    "a coroutine that was awaited already": (coroutine_run_twice, "cannot reuse already awaited coroutine"),
    "Ack of ids that are no text": (lambda lease: Ack(put=[1, 2]), "a task id is str or bytes, not int"),  # type: ignore[list-item]  # that is the point
    "Ack of links that raise while they are gone through": (lambda lease: Ack(put=broken_links()), "the page is cut"),
    "Ack with a payload and without again_in": (lambda lease: Ack(payload=1), "payload= needs again_in="),
    "Ack with again_in and a result": (
        lambda lease: Ack(again_in=5, result=b"1"),
        "result= and again_in= exclude each",
    ),
    "Ack with again_in and keep_id": (
        lambda lease: Ack(again_in=5, keep_id=False),
        "keep_id=False and again_in= exclude",
    ),
    "Release with a negative delay": (lambda lease: Release(delay=-1), "delay must be a finite number"),
    "Retry after a negative time": (lambda lease: Retry(after=-1), "must be a finite number of seconds"),
}
"""What a handler may return that fails its task, and a piece of the error."""


def broken_links() -> Any:
    yield "a"
    raise ValueError("the page is cut")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Base(BaseException):
    pass


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "ValueError": (lambda: ValueError("bad page"), "ValueError: bad page"),
    "an exception whose __str__ raises": (Unspeakable, "Unspeakable: its text cannot be had: __str__ raised Run"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "SystemExit": (lambda: SystemExit(0), "SystemExit: 0"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "a BaseException of its own": (lambda: Base("base"), "Base: base"),
    "a group": (
        lambda: ExceptionGroup("two", [ValueError("x"), KeyError("y")]),
        "ExceptionGroup: two (ValueError: x; KeyError: 'y')",
    ),
    "GiveUp": (lambda: GiveUp("HTTP 410"), "GiveUp: HTTP 410"),
    "Retry without attempts left": (lambda: Retry(reason="HTTP 503"), "Retry: HTTP 503"),
}
"""What a handler may raise that fails its task, and a piece of the error."""


async def cancels_itself_and_waits(lease: Lease) -> None:
    begin(lease)
    this_task().cancel()
    await asyncio.sleep(0)


async def cancels_itself_and_swallows(lease: Lease) -> None:
    begin(lease)
    this_task().cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def leaves_a_cancellation_to_the_next(lease: Lease) -> None:
    begin(lease)
    if len(ran) == 1:
        this_task().cancel()
    else:
        await asyncio.sleep(0)


async def cancels_all_who_run_handlers(lease: Lease) -> None:
    begin(lease)
    for task in asyncio.all_tasks():
        if task.get_name() in ("consumer", "handler"):
            task.cancel()
    await asyncio.sleep(0.01)


async def raises_in_a_task_group(lease: Lease) -> None:
    begin(lease)
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())


async def raises_while_it_is_cancelled(lease: Lease) -> None:
    begin(lease)
    try:
        this_task().cancel()
        await asyncio.sleep(0)
    finally:
        raise Base("in finally")


def ends_its_thread(lease: Lease) -> None:
    begin(lease)
    sys.exit("thread")


def runs_a_loop_of_its_own(lease: Lease) -> None:
    asyncio.run(fetch(lease))


async def fails() -> None:
    raise ValueError("inside")


def this_task() -> asyncio.Task[Any]:
    found = asyncio.current_task()
    assert found is not None
    return found


DOES: dict[str, tuple[Callable[[Lease], Any], str]] = {
    "it cancels its own task and waits": (cancels_itself_and_waits, "CancelledError"),
    "it cancels its own task and swallows that": (cancels_itself_and_swallows, ""),
    "it leaves a cancellation to the next": (leaves_a_cancellation_to_the_next, ""),
    "it cancels everyone who runs handlers": (cancels_all_who_run_handlers, "CancelledError"),
    "a task of its group fails": (raises_in_a_task_group, "ExceptionGroup: unhandled errors in a TaskGroup"),
    "it raises something else when it is cancelled": (raises_while_it_is_cancelled, "Base: in finally"),
    "it ends its thread": (ends_its_thread, "SystemExit: thread"),
    "it runs an event loop of its own in its thread": (runs_a_loop_of_its_own, ""),
}
"""What a handler may do to those who run it, and a piece of the error, or nothing if the tasks are done."""


def as_async(body: Callable[[Lease], Any]) -> Callable[[Lease], Any]:
    async def handler(lease: Lease) -> Any:
        await asyncio.sleep(0)
        return body(lease)

    return handler


def as_def(body: Callable[[Lease], Any]) -> Callable[[Lease], Any]:
    def handler(lease: Lease) -> Any:
        return body(lease)

    return handler


KINDS = {"async def": as_async, "def": as_def}


async def serve(handler: Callable[[Lease], Any], caplog: pytest.LogCaptureFixture) -> FakeAsyncQueue:
    """Have a worker with one handler at once serve three tasks and be stopped; give the queue. Nothing is held."""
    ran.clear()
    queue = fake_async_queue(timeout=5, retry=[])
    await queue.put(*TASKS)
    with caplog.at_level(logging.INFO):
        worker = Worker(queue, handler, concurrency=1, prefetch=len(TASKS), signals=False)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(10):
            while (await queue.stats()).done + (await queue.stats()).failed < len(TASKS):
                await asyncio.sleep(0.002)
            worker.stop()
            tally = await running
            while any(thread.name.startswith("handler-") for thread in threading.enumerate()):
                await asyncio.sleep(0.002)
    assert not worker.held
    assert tally.claimed == tally.acked + tally.failed
    stats = await queue.stats()
    assert (stats.in_progress, stats.todos, stats.scheduled) == (0, 0, 0)
    return queue


async def is_done(queue: FakeAsyncQueue) -> None:
    assert [(await queue.inspect(task)).state for task in TASKS] == [State.DONE] * 3
    assert sorted(ran) == sorted(TASKS)


async def has_failed(queue: FakeAsyncQueue, error: str, caplog: pytest.LogCaptureFixture) -> None:
    for task in TASKS:
        info = await queue.inspect(task)
        assert info.state == State.FAILED
        assert error in (info.error or "")
        lines = [record.getMessage() for record in caplog.records if f"task {task!r}" in record.getMessage()]
        assert len(lines) == 1, lines
        assert "given up" in lines[0]


@pytest.mark.parametrize("handler", HOW_RUN.values(), ids=HOW_RUN)
async def test_it_is_run_once_for_each_task(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue = await serve(handler, caplog)
    await is_done(queue)
    await queue.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("body", "error"), RETURNED.values(), ids=RETURNED)
async def test_what_it_returns_fails_the_task_with_its_reason(
    kind: str, body: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await serve(KINDS[kind](body), caplog)
    await has_failed(queue, error, caplog)
    await queue.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("make", "error"), RAISED.values(), ids=RAISED)
async def test_what_it_raises_fails_the_task_with_its_reason(
    kind: str, make: Callable[[], BaseException], error: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(lease: Lease) -> None:
        begin(lease)
        raise make()

    queue = await serve(KINDS[kind](body), caplog)
    await has_failed(queue, error, caplog)
    assert sorted(ran) == sorted(TASKS)
    await queue.close()


@pytest.mark.parametrize(("handler", "error"), DOES.values(), ids=DOES)
async def test_what_it_does_to_others_ends_no_consumer(
    handler: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    for odd in (handler, plain(handler)):
        queue = await serve(odd, caplog)
        if error:
            await has_failed(queue, error, caplog)
        else:
            await is_done(queue)
        await queue.close()
        caplog.clear()


def takes_three(lease: Lease, state: object, more: object) -> None:
    pass


def takes_state(lease: Lease, database: object) -> None:
    pass


def takes_keyword(lease: Lease, *, page: int) -> None:
    pass


REFUSED: dict[str, tuple[Any, str]] = {
    "a generator function": (numbers, "the handler numbers is a generator function"),
    "a number": (3, "handler must be callable, not int"),
    "a def that takes three": (takes_three, "the handler takes_three takes (lease"),
    "a def with a keyword that it needs": (takes_keyword, "the handler takes_keyword takes (lease"),
    "a def that takes a state of which there is none": (takes_state, "takes (lease, database), but there is no state"),
}


@pytest.mark.parametrize(("handler", "message"), REFUSED.values(), ids=REFUSED)
async def test_it_is_refused_at_start_by_name(handler: Any, message: str) -> None:
    async with fake_async_queue() as queue:
        with pytest.raises(InvalidInput) as refused:
            Worker(queue, handler)
    assert message in str(refused.value)
