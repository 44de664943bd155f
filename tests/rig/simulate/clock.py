"""Virtual time, and an event loop that lives in it: while nothing can happen, time goes on to the next timer."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVarTuple

from timeoutq.testing import Clock as FakeClock

Ts = TypeVarTuple("Ts")

BEGIN = 1000.0
"""The time that `time.monotonic` shows when a run begins."""
STEP = 20e-6
"""Seconds that one turn of the event loop takes: so time goes on even when somebody never waits."""
MOST_TURNS = 400_000
"""A run with more turns of its loop than this spins."""


class Stuck(Exception):
    """Nothing can happen any more, or the same happens again and again."""


class Owner:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen: list[asyncio.Handle] | None = None
        """While the process stands still: what it is to do when it goes on."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_exit: Callable[[int], None] = lambda code: None
        """Called when code of this process raises SystemExit or KeyboardInterrupt out of the event loop."""


owner_of: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("owner", default=None)
"""Whose code is running; inherited by all that this code starts."""


class VirtualClock(FakeClock):
    def __init__(self) -> None:
        self.now_monotonic = BEGIN
        super().__init__()
        self._start_us = super().now_us

    @property
    def passed(self) -> float:
        return self.now_monotonic - BEGIN

    @property
    def now_us(self) -> int:
        return self._micros + round(self.passed * 1e6)

    @property
    def now(self) -> float:
        return self.now_us / 1e6

    @property
    def wall(self) -> float:
        """The time on the clocks of the clients."""
        return self._start_us / 1e6 + self.passed

    def sleep(self, seconds: float) -> None:
        """Let time pass while nothing else happens."""
        self.now_monotonic += max(0.0, seconds)


class _Handle(asyncio.TimerHandle):
    """A call that is made only while the process that asked for it lives, and not while the process stands still."""

    __slots__ = ("owner",)
    owner: Owner | None
    _scheduled: bool

    def _run(self) -> None:
        owner = self.owner
        if owner is not None:
            if not owner.alive:
                return
            if owner.frozen is not None:
                owner.frozen.append(self)
                return
        try:
            super()._run()
        except (SystemExit, KeyboardInterrupt) as error:
            if owner is None:
                raise
            code = error.code if isinstance(error, SystemExit) else 130
            owner.on_exit(code if isinstance(code, int) else 1)


class _Numbered:
    """Hashes by the order in which it was made: an address in memory would differ from run to run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(_Numbered, asyncio.Task[Any]):
    def __init__(self, coro: Any, number: int, **settings: Any) -> None:
        self.number = number
        super().__init__(coro, **settings)


class _Future(_Numbered, asyncio.Future[Any]):
    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self.number = number
        super().__init__(loop=loop)


class _Selector:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        self.turns += 1
        if timeout is None:
            raise Stuck("nothing can happen any more")
        if self.turns > MOST_TURNS:
            raise Stuck(f"the loop spins: {MOST_TURNS:,} turns")
        self._clock.sleep(max(timeout, STEP))
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. Its network is put in by `network.py`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.network: Any = None
        self._selector = _Selector(clock)
        self._ready: Any
        self._scheduled: list[_Handle]
        self._made = 0
        self.set_task_factory(self._make)
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks that were started, in their order."""

    def time(self) -> float:
        return self.clock.now_monotonic

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, **settings: Any) -> asyncio.Task[Any]:
        number = self._number()
        task = _Task(coro, number, loop=self, **{"name": f"task-{number}", **settings})
        context: contextvars.Context | None = settings.get("context")
        owner = (contextvars.copy_context() if context is None else context).get(owner_of)
        self.tasks.append(task)
        if owner is not None:
            owner.tasks.append(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self, self._number())

    # ---- what a process has started goes on only while the process lives

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = self._handle(0.0, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # threads take turns with the loop

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = self._handle(when, callback, args, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _handle(self, when: float, callback: Any, args: Any, context: contextvars.Context | None) -> _Handle:
        context = contextvars.copy_context() if context is None else context
        handle = _Handle(when, callback, args, self, context)
        handle.owner = context.get(owner_of)
        return handle

    def freeze(self, owner: Owner) -> None:
        owner.frozen = []

    def thaw(self, owner: Owner) -> None:
        """Let a process go on with what it would have done."""
        held, owner.frozen = owner.frozen or [], None
        self._ready.extend(held)

    # ---- what the base class asks of a loop

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self.network.connect(address)

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        sock.close()  # it was never connected to anything
        return self.network.open(protocol_factory())


@contextmanager
def running(clock: VirtualClock, seed: int) -> Iterator[None]:
    """Have all code of this process see virtual time, and random numbers that follow from the seed."""
    real = time.monotonic, time.time, time.perf_counter
    state = random.getstate()
    random.seed(seed)
    time.monotonic = lambda: clock.now_monotonic
    time.time = lambda: clock.wall
    time.perf_counter = time.monotonic
    try:
        yield
    finally:
        time.monotonic, time.time, time.perf_counter = real
        random.setstate(state)
