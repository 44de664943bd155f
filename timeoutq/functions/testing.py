"""`app.test()`: an app on queues in memory, with a clock that the test advances. Nothing skips the wire."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, cast

from timeoutq.functions.calls import Program
from timeoutq.functions.client import Sender, Steps
from timeoutq.functions.context import is_in_a_loop
from timeoutq.functions.running import Calls
from timeoutq.functions.scheduling import declaring
from timeoutq.functions.threads import Threads
from timeoutq.testing import Clock, FakeAsyncQueue, FakeQueue, Ran, fake_async_queue, fake_queue, run
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Ended, State, text
from timeoutq.worker.leases import added

ROUNDS = 1_000  # how often `run` goes round the queues: calls in one may put calls into another


class FakeSender(Sender):
    """Puts calls into queues in memory, which share one clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.now = clock, lambda: clock.now

    def _open(self, name: str) -> FakeQueue:
        return fake_queue(name, clock=self.clock)

    async def _aopen(self, name: str) -> FakeAsyncQueue:
        return fake_async_queue(name, clock=self.clock)

    def hearing(self, queue: str, id: bytes, seconds: float | None) -> Steps[Ended]:
        """Tell how a call has ended; nobody waits, because no time passes."""
        ends = yield queue, lambda opened: opened.results.look(id)
        if text(id) not in ends:
            raise TimeoutError(f"call {text(id)!r} has not ended: carry it out first, with t.run()")
        return cast("Ended", ends[text(id)])


class AppTest:
    """An app on queues in memory: `with app.test() as t`. In a coroutine, `async with`, and await `arun`."""

    __test__ = False  # for pytest, which would take this class for a test

    def __init__(self, app: Program, start: float | None = None) -> None:
        """Prepare; `App.test` makes these. Raises `MissingExtra` without fakeredis, `InvalidInput` for a bad start."""
        self.clock = Clock() if start is None else Clock(start)
        """The clock of all queues: it stands still until it is advanced."""
        self._app = app
        self._sender = FakeSender(self.clock)
        self._before = app.sender

    def __enter__(self) -> Self:
        if isinstance(self._app.sender, FakeSender):
            raise InvalidInput(f"{self._app!r} is in a test already: use the t of that test, or leave it first")
        self._before, self._app.sender = self._app.sender, self._sender
        return self

    def __exit__(self, *error: object) -> None:
        self._app.sender = self._before
        self._sender.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()
        await self._sender.aclose()

    def queue(self, name: str | None = None) -> FakeQueue:
        """Give one of the app's queues, to look into it: by default the first."""
        found = self._app.queues.names[0] if name is None else self._app.queues.one(name)
        return cast("FakeQueue", self._sender.queue(found))

    def advance(self, seconds: float) -> None:
        """Let time pass: calls become due, and schedules tick, when they are run next."""
        self.clock.advance(seconds)

    def run(self, *, same_thread: bool = False, **options: Any) -> Ran:
        """Carry out the calls of all queues until there are none; `options` are those of `timeoutq.testing.run`.

        The clock goes to each next attempt, and to calls that are put for later. Schedules that decorators say are
        declared first, and ticks that are due are put. With `same_thread`, functions that are a plain `def` run one at
        a time in the thread that calls this: so they have the connection to a database, and the transaction, of the
        test. Raises what `timeoutq.testing.run` raises.
        """
        if is_in_a_loop():
            raise InvalidInput("t.run() is for code that blocks: in a coroutine, write `await t.arun()`")
        handler = self._calls()
        if not same_thread:
            return asyncio.run(self._closing(handler, options))
        caller = _Caller()
        handler.new_threads = lambda _name, _most, _hangs: caller
        return caller.serve(self._closing(handler, options))

    async def arun(self, **options: Any) -> Ran:
        """Do as `run`, in a coroutine."""
        return await self._run(self._calls(), options)

    def _calls(self) -> Calls:
        handler = Calls(self._app)
        handler.in_processes = False  # what the test has put in the place of others is here
        return handler

    async def _run(self, handler: Calls, options: Mapping[str, Any]) -> Ran:
        if self._app.sender is not self._sender:
            # a function that puts a call now would put it where the app itself puts calls
            raise InvalidInput("this test has ended: t.run() and t.arun() belong into `with app.test() as t:`")
        began, ran = self.clock.now, list[Ran]()
        queues: list[Any] = [await self._sender.aqueue(name) for name in self._app.queues.names]
        for queue in queues:
            declare = declaring(self._app, queue.name, queue.flows)
            if declare is not None:
                await queue.run(declare())
        for _ in range(ROUNDS):
            ready: list[Any] = []
            for queue in queues:
                await queue.schedules.tick()
                ready += [] if (await queue.stats()).drained else [queue]
            if not ready:
                break
            ran += [await run(handler, queue, **options) for queue in ready]
        return _together(ran, self.clock.now - began)

    async def _closing(self, handler: Calls, options: Mapping[str, Any]) -> Ran:
        try:
            return await self._run(handler, options)
        finally:
            await self._sender.aclose()  # connections belong to the event loop, which ends here


class _Caller(Threads):
    """Has functions carried out by the thread that serves it, while an event loop in another thread waits for them."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]  # it has no threads of its own
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.free = asyncio.Semaphore(1)

    async def take(self) -> None:
        """Wait for the one thread."""
        await self.free.acquire()

    def give(self) -> None:
        """Leave it to the next call."""
        self.free.release()

    async def run(self, task: str, call: Callable[[], Any]) -> Any:
        """Have a function called by the thread of the test."""
        over: Future[tuple[Any, BaseException | None]] = Future()
        self._calls.put((over, partial(copy_context().run, call)))
        value, error = await asyncio.wrap_future(over)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Leave the thread to the test."""

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
                    over.set_result((call(), None))
                except BaseException as error:  # whatever a function raises is the end of its call
                    over.set_result((None, error))
            return done.result()


def _together(ran: list[Ran], seconds: float) -> Ran:
    runs: Counter[str] = Counter()
    for one in ran:
        runs.update(one.runs)
    states = {task: state for one in ran for task, state in one.states.items()}
    errors = {task: error for one in ran for task, error in one.errors.items() if states.get(task) is State.FAILED}
    return Ran(added(one.tally for one in ran), states, dict(runs), errors, seconds)
