"""`app.test()`: an app on queues in memory, with a clock that the test advances. Nothing skips the wire.

Calls are encoded, put by the real scripts, claimed by a real worker, tried again and scheduled by the rules of the app:
only the server is fakeredis, and time passes when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from timeoutq.functions import limits
from timeoutq.functions.posting import Posting
from timeoutq.functions.running import Calls
from timeoutq.functions.scheduling import declare
from timeoutq.testing import Clock, FakeAsyncQueue, FakeQueue, Ran, fake_async_queue, fake_queue, run
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Ended, State, text
from timeoutq.worker.leases import added

ROUNDS = 1_000
"""How often `run` goes round the queues: calls in one may put calls into another."""


class FakePosting(Posting):
    """Puts calls into queues in memory, which share one clock."""

    def __init__(self, clock: Clock, app: Any) -> None:
        """Prepare; queues are made when they are needed first."""
        super().__init__()
        self.clock = clock
        self._app = app
        self._fakes: dict[str, FakeQueue] = {}
        self._async_fakes: dict[str, FakeAsyncQueue] = {}

    def queue(self, name: str) -> FakeQueue:
        """Give a queue in memory, for code that blocks."""
        if name not in self._fakes:
            queue = self._fakes[name] = fake_queue(name, clock=self.clock)
            if self._has_limits(name):
                queue.run(queue.flows.be_polite(limits.FREE))
        return self._fakes[name]

    async def aqueue(self, name: str) -> FakeAsyncQueue:
        """Give a queue in memory, for asyncio."""
        if name not in self._async_fakes:
            queue = self._async_fakes[name] = fake_async_queue(name, clock=self.clock)
            if self._has_limits(name):
                await queue.run(queue.flows.be_polite(limits.FREE))
        return self._async_fakes[name]

    def _has_limits(self, name: str) -> bool:
        found = (one.settings for one in self._app.functions.values())
        return any(one.limit is not None and one.queue == name for one in found)

    def ended(self, queue: str, id: bytes, seconds: float | None) -> Ended:
        """Tell how a call has ended; nobody waits, because no time passes."""
        return _there(id, self.queue(queue).results.look(id).get(text(id)))

    async def aended(self, queue: str, id: bytes) -> Ended:
        """Tell how a call has ended; nobody waits, because no time passes."""
        return _there(id, (await (await self.aqueue(queue)).results.look(id)).get(text(id)))

    def close(self) -> None:
        """Close the queues that block."""
        for queue in self._fakes.values():
            queue.close()

    async def aclose(self) -> None:
        """Close the queues for asyncio."""
        for queue in self._async_fakes.values():
            await queue.close()


def _there(id: bytes, ended: Ended | None) -> Ended:
    if ended is None:
        raise TimeoutError(f"call {text(id)!r} has not ended: carry it out first, with t.run()")
    return ended


class AppTest:
    """An app on queues in memory: `with app.test() as t`. In a coroutine, `async with`, and await `arun`."""

    __test__ = False
    """For pytest, which would take this class for a test."""

    def __init__(self, app: Any, start: float | None = None) -> None:
        """Prepare; `App.test` makes these. Raises `MissingExtra` without fakeredis, `InvalidInput` for a bad start."""
        self.clock = Clock() if start is None else Clock(start)
        """The clock of all queues: it stands still until it is advanced."""
        self._app = app
        self._posting = FakePosting(self.clock, app)
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        before = self._app.swap(self._posting)
        if isinstance(before, FakePosting):
            self._app.swap(before)
            raise InvalidInput(f"{self._app!r} is in a test already: use the t of that test, or leave it first")
        self._before.append(before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._app.swap(self._before.pop())
        self._posting.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
        await self._posting.aclose()

    def queue(self, name: str | None = None) -> FakeQueue:
        """Give one of the app's queues, to look into it: by default the first."""
        return self._posting.queue(self._name(name))

    def advance(self, seconds: float) -> None:
        """Let time pass: calls become due, and schedules tick, when they are run next.

        Raises `InvalidInput` below zero, and for a time after the year 9999.
        """
        self.clock.advance(seconds)

    def run(self, *, same_thread: bool = False, **options: Any) -> Ran:
        """Carry out the calls of all queues until there are none; `options` are those of `timeoutq.testing.run`.

        With `same_thread`, functions that are a plain `def` run one at a time in the thread that calls this, where no
        event loop runs: so they have the connection to a database, and the transaction, of the test.

        The clock goes to each next attempt, and to calls that are put for later. Schedules that decorators say are
        declared first, as a worker does at its start. Ticks that are due are put; for later ones, advance the clock and
        run again. Raises what `timeoutq.testing.run` raises, and `InvalidInput` in a coroutine: await `arun` there.
        """
        if _is_in_a_loop():
            raise InvalidInput("t.run() is for code that blocks: in a coroutine, write `await t.arun()`")
        handler = Calls(self._app)
        if not same_thread:
            return asyncio.run(self._closing(handler, options))
        caller = _Caller()
        handler.threads = lambda _name, _hangs: caller
        return caller.serve(self._closing(handler, options))

    async def arun(self, **options: Any) -> Ran:
        """Do as `run`, in a coroutine."""
        return await self._run(Calls(self._app), options)

    async def _run(self, handler: Calls, options: Mapping[str, Any]) -> Ran:
        began, ran = self.clock.now, list[Ran]()
        for name in self._app.queues.names:
            await declare(self._app, await self._posting.aqueue(name))
        for _ in range(ROUNDS):
            ready = [name for name in self._app.queues.names if await self._has_work(name)]
            if not ready:
                break
            ran += [await run(handler, await self._posting.aqueue(name), **options) for name in ready]
        return _together(ran, self.clock.now - began)

    async def _closing(self, handler: Calls, options: Mapping[str, Any]) -> Ran:
        try:
            return await self._run(handler, options)
        finally:
            await self._posting.aclose()  # connections belong to the event loop, which ends here

    async def _has_work(self, name: str) -> bool:
        queue = await self._posting.aqueue(name)
        await queue.schedules.tick()
        stats = await queue.stats()
        return not stats.drained

    def _name(self, name: str | None) -> str:
        found: str = self._app.queues.names[0] if name is None else self._app.queues.one(name)
        return found


class _Caller:
    """Has functions carried out by the thread that serves it, while an event loop in another thread waits for them."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    async def run(self, task: str, call: Callable[[], Any]) -> Any:
        over: Future[Any] = Future()
        self._calls.put((over, partial(copy_context().run, call)))
        return await asyncio.wrap_future(over)

    def close(self) -> None:
        pass

    def serve(self, coroutine: Coroutine[Any, Any, Ran]) -> Ran:
        """Carry out functions until the coroutine has ended; give what it returns."""
        with ThreadPoolExecutor(1) as other:
            done = other.submit(copy_context().run, asyncio.run, coroutine)
            done.add_done_callback(lambda _: self._calls.put(None))
            while (one := self._calls.get()) is not None:
                over, call = one
                if not over.set_running_or_notify_cancel():
                    continue
                try:
                    over.set_result(call())
                except BaseException as error:  # whatever a function raises is the end of its call
                    over.set_exception(error)
            return done.result()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _together(ran: list[Ran], seconds: float) -> Ran:
    states: dict[str, State] = {}
    runs: dict[str, int] = {}
    errors: dict[str, str] = {}
    for one in ran:
        states.update(one.states)
        errors.update(one.errors)
        for task, times in one.runs.items():
            runs[task] = runs.get(task, 0) + times
    still = {task: error for task, error in errors.items() if states.get(task) is State.FAILED}
    return Ran(added(one.tally for one in ran), states, runs, still, seconds)
