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
from unittest.mock import AsyncMock

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


def bare(function: Any) -> Any:
    """Decorate without functools.wraps."""

    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class AsyncCall:
    async def __call__(self, lease: Lease) -> None:
        await fetch(lease)

    async def method(self, lease: Lease) -> None:
        await fetch(lease)

    @staticmethod
    async def static(lease: Lease) -> None:
        await fetch(lease)

    @classmethod
    async def of_class(cls, lease: Lease) -> None:
        await fetch(lease)


class CallThatGivesCoroutine:
    def __call__(self, lease: Lease) -> Any:
        return fetch(lease)


class Awaitable:
    """An object with `__await__`, as libraries return them."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def __await__(self) -> Generator[Any, None, None]:
        return fetch(self.lease).__await__()


class AwaitableThatRaises:
    def __init__(self, lease: Lease) -> None:
        begin(lease)

    def __await__(self) -> Generator[Any, None, None]:
        raise ValueError("its __await__ raises")


def with_default(lease: Lease, times: int = 3) -> None:
    begin(lease)


async def two_deep(lease: Lease) -> Any:
    return fetch(lease)


async def endless(lease: Lease) -> Any:
    begin(lease)
    return endless(lease)


async def of_a_task(lease: Lease) -> Any:
    return asyncio.create_task(fetch(lease))


async def of_a_gather(lease: Lease) -> Any:
    return asyncio.gather(fetch(lease), return_exceptions=True)


async def of_another_loop(lease: Lease) -> Any:
    begin(lease)
    other = asyncio.new_event_loop()
    future = other.create_future()
    other.close()
    return future


async def coroutine_run_twice(lease: Lease) -> Any:
    coroutine = fetch(lease)
    await coroutine
    return coroutine


def asks_for_a_loop(lease: Lease) -> Any:
    begin(lease)
    return asyncio.get_running_loop().create_future()


def numbers(lease: Lease) -> Any:
    begin(lease)
    yield 1


async def pages(lease: Lease) -> Any:
    begin(lease)
    yield 1


HOW_RUN: dict[str, Callable[[Lease], Any]] = {
    "an async def": fetch,
    "an async def behind a def wrapper": plain(fetch),
    "an async def behind two def wrappers": plain(plain(fetch)),
    "an async def behind a wrapper without wraps": bare(fetch),
    "a lambda that calls an async def": lambda lease: fetch(lease),
    "a def that returns a coroutine": plain(lambda lease: fetch(lease)),
    "a partial of an async def": functools.partial(fetch),
    "a partial of a partial of an async def": functools.partial(functools.partial(fetch)),
    "an object with async __call__": AsyncCall(),
    "a partial of an object with async __call__": functools.partial(AsyncCall()),
    "an async method": AsyncCall().method,
    "an async static method": AsyncCall.static,
    "an async class method": AsyncCall.of_class,
    "a partial of an async method": functools.partial(AsyncCall().method),
    "a wrapped async method": plain(AsyncCall().method),
    "an object whose __call__ gives a coroutine": CallThatGivesCoroutine(),
    "a def that gives an object with __await__": lambda lease: Awaitable(lease),
    "a class whose instances are awaitable": Awaitable,
    "an async def that gives a coroutine": two_deep,
    "an async def that gives a task": of_a_task,
    "an async def that gives a gathering of none": lambda lease: two_deep(lease),
    "an AsyncMock": AsyncMock(side_effect=fetch, return_value=None),
    "a def": begin,
    "a lambda of a def": lambda lease: begin(lease),
    "a partial of a def": functools.partial(begin),
    "a def with a default": with_default,
}
"""Ways to write a handler that is run: done, and its body has run once for each task."""

RETURNED: dict[str, tuple[Callable[[Lease], Any], str]] = {
    "a generator, from a lambda": (lambda lease: numbers(lease), "a generator, so nothing of it has run"),
    "an async generator, from a lambda": (lambda lease: pages(lease), "an async generator, so nothing of it has run"),
    "a generator, from a wrapped function": (bare(numbers), "a generator, so nothing of it has run"),
    "an async generator, from a wrapped function": (bare(pages), "an async generator, so nothing of it has run"),
    "a generator expression": (lambda lease: (x for x in "ab"), "a generator, so nothing of it has run"),
    "a list of links": (lambda lease: ["a"], "a list; expected None, Ack, Release, Retry or GiveUp; links go into Ack"),
    "an empty list": (lambda lease: [], "returned a list"),
    "a tuple": (lambda lease: ("a", "b"), "returned a tuple"),
    "a set": (lambda lease: {"a"}, "returned a set"),
    "a dict": (lambda lease: {"a": 1}, "returned a dict"),
    "a string": (lambda lease: "a", "returned a str"),
    "bytes": (lambda lease: b"a", "returned a bytes"),
    "True": (lambda lease: True, "returned a bool"),
    "zero": (lambda lease: 0, "returned an int"),
    "the class Ack": (lambda lease: Ack, r"the class Ack; expected None, Ack, Release, Retry or GiveUp; write Ack(…)"),
    "the class Release": (lambda lease: Release, "the class Release"),
    "the class Retry": (lambda lease: Retry, "the class Retry"),
    "the class GiveUp": (lambda lease: GiveUp, "the class GiveUp"),
    "an exception of another kind": (lambda lease: ValueError("x"), "the exception ValueError; expected"),
    "NotImplemented": (lambda lease: NotImplemented, "a NotImplementedType"),
    "itself": (lambda lease: RETURNED["itself"][0], "returned a function"),
    "the lease": (lambda lease: lease, "returned a Lease"),
    "awaitables without end": (endless, "an awaitable that gives an awaitable, 10 deep"),
    "a future of another loop": (of_another_loop, "attached to a different loop"),
    "a coroutine that was awaited already": (coroutine_run_twice, "cannot reuse already awaited coroutine"),
    "an awaitable whose __await__ raises": (AwaitableThatRaises, "its __await__ raises"),
    "a list, from an awaitable": (lambda lease: two_deep_list(lease), "returned a list"),
    "Ack of ids that are no text": (lambda lease: Ack(put=[1, 2]), "a task id is str or bytes, not int"),  # type: ignore[list-item]  # that is the point
    "Ack of what is not iterable": (lambda lease: Ack(put=3), "a task id is str or bytes, not int"),  # type: ignore[arg-type]  # that is the point
    "Ack of links that raise while they are gone through": (lambda lease: Ack(put=broken_links()), "the page is cut"),
    "Ack with a payload and without again_in": (lambda lease: Ack(payload=1), "payload= needs again_in="),
    "Ack with again_in that is no number": (lambda lease: Ack(again_in="soon"), "again_in must be a finite number"),  # type: ignore[arg-type]  # that is the point
    "Release with a negative delay": (lambda lease: Release(delay=-1), "delay must be a finite number"),
    "Release until a day": (lambda lease: Release("tomorrow"), "delay must be a finite number"),  # type: ignore[arg-type]  # that is the point
    "Retry after a negative time": (lambda lease: Retry(after=-1), "must be a finite number of seconds"),
    "GiveUp": (lambda lease: GiveUp("HTTP 410"), "GiveUp: HTTP 410"),
    "Retry": (lambda lease: Retry(reason="HTTP 503"), "Retry: HTTP 503"),
}
"""What a handler may return that fails its task, and a piece of the error."""


async def two_deep_list(lease: Lease) -> Any:
    return ["a"]


def broken_links() -> Any:
    yield "a"
    raise ValueError("the page is cut")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class SpeaksInNumbers(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # that is the point


class LeavesWhenAsked(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Base(BaseException):
    pass


class Unequal(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no likeness")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "ValueError": (lambda: ValueError("bad page"), "ValueError: bad page"),
    "an exception without words": (lambda: KeyError(), "KeyError"),
    "an exception whose __str__ raises": (Unspeakable, "Unspeakable: its text cannot be had: __str__ raised Run"),
    "an exception whose __str__ gives a number": (SpeaksInNumbers, "its text cannot be had: __str__ raised TypeError"),
    "an exception whose __str__ raises KeyboardInterrupt": (LeavesWhenAsked, "__str__ raised KeyboardInterrupt"),
    "an exception that has no likeness and no hash": (Unequal, "Unequal"),
    "an exception of lone surrogates": (lambda: ValueError("\ud800"), r"ValueError: \ud800"),
    "an exception of a megabyte": (lambda: ValueError("x" * 1_000_000), "ValueError: xxx"),
    "GeneratorExit": (lambda: GeneratorExit("out"), "GeneratorExit: out"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "SystemExit": (lambda: SystemExit(0), "SystemExit: 0"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "StopAsyncIteration": (StopAsyncIteration, "StopAsyncIteration"),
    "a BaseException of its own": (lambda: Base("base"), "Base: base"),
    "a group": (
        lambda: ExceptionGroup("two", [ValueError("x"), KeyError("y")]),
        "ExceptionGroup: two (ValueError: x; KeyError: 'y')",
    ),
    "a group of BaseExceptions": (lambda: BaseExceptionGroup("one", [Base()]), "BaseExceptionGroup: one (Base"),
    "a group with KeyboardInterrupt": (lambda: BaseExceptionGroup("k", [KeyboardInterrupt()]), "BaseExceptionGroup: k"),
    "RecursionError": (lambda: RecursionError("deep"), "RecursionError: deep"),
    "MemoryError": (MemoryError, "MemoryError"),
    "TimeoutError": (TimeoutError, "TimeoutError"),
    "GiveUp": (lambda: GiveUp("HTTP 410"), "GiveUp: HTTP 410"),
    "GiveUp for what is no text": (lambda: GiveUp(410), "GiveUp: 410"),  # type: ignore[arg-type]  # that is the point
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


async def cancels_itself_and_returns(lease: Lease) -> None:
    begin(lease)
    this_task().cancel()


async def leaves_a_cancellation_to_the_next(lease: Lease) -> None:
    begin(lease)
    if len(ran) == 1:
        this_task().cancel()
    else:
        await asyncio.sleep(0)


async def cancels_itself_thrice(lease: Lease) -> None:
    begin(lease)
    for _ in range(3):
        this_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def cancels_all_who_run_handlers(lease: Lease) -> None:
    begin(lease)
    for task in asyncio.all_tasks():
        if task.get_name() in ("consumer", "handler"):
            task.cancel()
    await asyncio.sleep(0.01)


async def awaits_what_was_cancelled(lease: Lease) -> None:
    begin(lease)
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


async def times_out(lease: Lease) -> None:
    begin(lease)
    async with asyncio.timeout(0.001):
        await asyncio.sleep(60)


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
    "it cancels its own task and returns": (cancels_itself_and_returns, ""),
    "it leaves a cancellation to the next": (leaves_a_cancellation_to_the_next, ""),
    "it cancels its own task three times": (cancels_itself_thrice, ""),
    "it cancels everyone who runs handlers": (cancels_all_who_run_handlers, "CancelledError"),
    "it awaits what was cancelled": (awaits_what_was_cancelled, "CancelledError"),
    "its own timeout is over": (times_out, "TimeoutError"),
    "a task of its group fails": (raises_in_a_task_group, "ExceptionGroup: unhandled errors in a TaskGroup"),
    "it raises something else when it is cancelled": (raises_while_it_is_cancelled, "Base: in finally"),
    "it ends its thread": (ends_its_thread, "SystemExit: thread"),
    "it asks for the event loop in its thread": (asks_for_a_loop, "RuntimeError: no running event loop"),
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


def as_def_of_coroutine(body: Callable[[Lease], Any]) -> Callable[[Lease], Any]:
    return lambda lease: as_async(body)(lease)


KINDS = {"async def": as_async, "def": as_def, "def of a coroutine": as_def_of_coroutine}


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


MEANT: dict[str, tuple[Callable[[], BaseException], State]] = {
    "Ack": (Ack, State.DONE),
    "Ack with links": (lambda: Ack(put=["first"]), State.DONE),
    "Ack until later": (lambda: Ack(again_in=60), State.SCHEDULED),
    "Release until later": (lambda: Release(delay=60), State.SCHEDULED),
    "Retry": (lambda: Retry(after=60), State.SCHEDULED),
    "GiveUp": (lambda: GiveUp("gone"), State.FAILED),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("make", "state"), MEANT.values(), ids=MEANT)
async def test_returned_and_raised_mean_the_same(kind: str, make: Callable[[], BaseException], state: State) -> None:
    def returns(lease: Lease) -> Any:
        return make()

    def raises(lease: Lease) -> Any:
        raise make()

    for body in (returns, raises):
        async with fake_async_queue(timeout=5, retry=[1, 1]) as queue:
            await queue.put("a")
            worker = Worker(queue, KINDS[kind](body), concurrency=1, signals=False)
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(10):
                while (await queue.inspect("a")).state in (State.TODOS, State.IN_PROGRESS):
                    await asyncio.sleep(0.002)
                worker.stop()
                await running
            assert (await queue.inspect("a")).state == state


def takes_nothing() -> None:
    pass


def takes_three(lease: Lease, state: object, more: object) -> None:
    pass


def takes_state(lease: Lease, database: object) -> None:
    pass


def takes_keyword(lease: Lease, *, page: int) -> None:
    pass


REFUSED: dict[str, tuple[Any, str]] = {
    "a generator function": (numbers, "the handler numbers is a generator function"),
    "an async generator function": (pages, "the handler pages is a generator function"),
    "a partial of a generator function": (functools.partial(numbers), "the handler numbers is a generator function"),
    "a number": (3, "handler must be callable, not int"),
    "None": (None, "a worker takes a queue and a handler: write Worker(queue, handler)"),
    "a coroutine": (AsyncCall, "the handler AsyncCall takes ()"),
    "a def that takes nothing": (takes_nothing, r"the handler takes_nothing takes ()"),
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


def test_the_table_has_at_least_a_hundred_rows() -> None:
    rows = len(HOW_RUN) + 3 * (len(RETURNED) + len(RAISED) + len(MEANT)) + 2 * len(DOES) + len(REFUSED)
    assert rows > 250
