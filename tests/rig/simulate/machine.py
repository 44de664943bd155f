"""Threads for a simulation: real ones, of which only one goes on at a time, when the event loop says so."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from tests.rig.simulate.clock import Owner, VirtualLoop, owner_of
from timeoutq.worker.threads import Machine

MOMENT = 0.002
"""Seconds: the longest that a thread waits for its turn."""


class Over(BaseException):
    """Raised in a thread when its process, or the run, has ended."""


def baton() -> threading.Lock:
    """Make what one thread waits for (`acquire`), and another hands over (`release`)."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Strand(threading.Thread):
    """A thread that takes turns with the loop."""

    def __init__(self, machine: SimulatedMachine, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._machine = machine
        self._call = target
        self._go = baton()
        self._waits_until: Callable[[], bool] | None = None
        self._timer: Any = None
        self.ended = False
        self.over = False
        self.began = False

    # ---- called in other strands, or in the loop

    def start(self) -> None:
        self._machine.strands.append(self)
        self._machine.soon(self._begin)

    def _begin(self) -> None:
        self.began = True
        super().start()
        self._machine.loop_waits.acquire()

    def is_alive(self) -> bool:
        return not self.ended

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended; in a strand, others go on meanwhile."""
        wait_in_strand(lambda: self.ended, timeout)

    def turn(self) -> None:
        """Let the thread go on until it waits or ends. Called in the loop."""
        if self.ended or not self.began:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waits_until = None
        self._go.release()
        self._machine.loop_waits.acquire()

    def look(self) -> None:
        """Let the thread go on soon, if what it waits for has come."""
        if self._waits_until is not None and self._waits_until():
            self._waits_until = None
            self._machine.soon(self.turn)

    # ---- called in the thread itself

    def run(self) -> None:
        try:
            self._call()
        except Over:
            pass
        finally:
            self.ended = True
            self._machine.changed()
            self._machine.loop_waits.release()

    def wait(self, until: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until something is so; say whether it is."""
        if self.over:
            raise Over
        if until():
            return True
        self._waits_until = until
        if timeout is not None:
            self._timer = self._machine.later(timeout, self.turn)
        self._machine.loop_waits.release()
        self._go.acquire()
        if self.over:
            raise Over
        return until()


def wait_in_strand(until: Callable[[], bool], timeout: float | None) -> bool:
    """Wait in the strand that calls; whoever is no strand does not wait."""
    me = threading.current_thread()
    return me.wait(until, timeout) if isinstance(me, Strand) else until()


class _Event(threading.Event):
    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__()
        self._machine = machine

    def set(self) -> None:
        super().set()
        self._machine.changed()

    def wait(self, timeout: float | None = None) -> bool:
        return wait_in_strand(self.is_set, timeout)


class _Pipe:
    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._machine.changed()

    def get(self) -> Any:
        while not self._items:
            wait_in_strand(lambda: bool(self._items), None)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class SimulatedMachine(Machine):
    """The machine of one process of a simulation."""

    def __init__(self, loop: VirtualLoop, owner: Owner, seed: object, chaos: float = MOMENT) -> None:
        self._loop = loop
        self._owner = owner
        self._context = contextvars.Context()
        self._context.run(owner_of.set, owner)
        self._random = random.Random(f"threads {seed}")
        self._chaos = chaos
        self.strands: list[Strand] = []
        self.loop_waits = baton()

    # ---- what a worker asks for

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return Strand(self, target, name)

    def event(self) -> threading.Event:
        return _Event(self)

    def pipe(self) -> Any:
        return _Pipe(self)

    # ---- what strands ask for

    def later(self, seconds: float, call: Callable[[], None]) -> Any:
        return self._loop.call_later(max(0.0, seconds), call, context=self._context)

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the loop, in a moment that the seed decides."""
        self.later(self._random.uniform(0, self._chaos), call)

    def changed(self) -> None:
        for strand in list(self.strands):
            if strand.ended:
                self.strands.remove(strand)
            else:
                strand.look()

    def sleep(self, seconds: float) -> None:
        """Let time pass for the strand that calls."""
        wait_in_strand(lambda: False, seconds)

    def block(self, start: Callable[[], Any]) -> Any:
        """Carry out a coroutine in the loop, and wait for it in the strand that calls."""
        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            task = self._loop.create_task(start(), context=self._context.copy())
            tasks.append(task)
            task.add_done_callback(lambda _: self.changed(), context=self._context)

        self._loop.call_soon(begin, context=self._context)
        wait_in_strand(lambda: bool(tasks) and tasks[0].done(), None)
        return tasks[0].result()

    def end(self) -> None:
        """End all strands, because their process has ended."""
        for strand in list(self.strands):
            strand.over = True
            if strand.began and not strand.ended:
                strand.turn()
        self.strands.clear()
