"""A crew of threads, which call `def` handlers; they are started as they are needed, and live as long as the worker.

If a handler gives an awaitable, the event loop awaits it; meanwhile the handler's thread runs no other handler. What
threads and event loop share are a queue of leases and a deque of ended runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any

from timeoutq import forks, handlers, telling
from timeoutq.found import listed, listed_here, listed_raised
from timeoutq.machine import THIS, Machine
from timeoutq.model import Lease
from timeoutq.worker.crews import Work
from timeoutq.worker.runs import Run

MOST = 1000
"""The most threads of one crew."""
SHORT_EVERY = 60.0
"""Seconds at least between two lines that say that no more threads can be started."""


class ThreadCrew:
    """Threads that call handlers."""

    def __init__(self, work: Work, size: int, broken: Callable[[str], None], machine: Machine = THIS) -> None:
        """Prepare; the threads are those of `machine`. `broken` is called with the reason when none can be started."""
        self._work = work
        self._desk = work.desk
        self._loop = asyncio.get_running_loop()
        self._size = min(size, MOST)
        self._broken = broken
        self._machine = machine
        self._waiting: SimpleQueue[Lease | None] = machine.pipe()
        self._done: deque[tuple[Run, list[Any] | None]] = deque()
        """Handlers that have ended, with what they returned and raised; None if both are None."""
        self._told = False
        self.taken = 0
        """How many leases are with the crew, begun or not."""
        self._threads = 0
        self._told_short = -SHORT_EVERY
        self._hung = 0
        """How many threads still run handlers that were given up; these threads do not count."""
        self.closing = False

    # ---- leases

    def take(self, leases: list[Lease]) -> None:
        self.taken += len(leases)
        for lease in leases:
            self._waiting.put(lease)
        while self._threads - self._hung < min(self._size, self.taken):
            name = f"handler-{self._work.voice.queue}-{self._threads}"
            thread = self._machine.thread(self._live, name)
            try:
                thread.start()
            except RuntimeError as error:
                self._run_short(error)
                return
            self._threads += 1

    def _run_short(self, error: RuntimeError) -> None:
        """Go on with the threads that are there, and say so once a minute at most; without any, the worker ends."""
        voice, free = self._work.voice, self._threads - self._hung
        cure = "raise `ulimit -u` or the pids limit of the container, or lower the concurrency"
        if free <= 0:
            self._broken(f"no thread can be started to run handlers ({error}): {cure}")
        elif time.monotonic() >= self._told_short + SHORT_EVERY:
            self._told_short = time.monotonic()
            voice.say(
                logging.WARNING, "worker %s: a thread for handlers cannot be started (%s), and it goes on with %d of "
                "%d threads: %s", voice.worker, error, free, self._size, cure, error=error,
            )  # fmt: skip

    @property
    def unstarted(self) -> int:
        return self._waiting.qsize()

    @property
    def queued(self) -> set[int]:
        waiting = self.give_back()
        self.take(waiting)
        return {lease.key for lease in waiting}

    def give_back(self) -> list[Lease]:
        found: list[Lease] = []
        leaving = 0
        with suppress(Empty):
            while True:
                lease = self._waiting.get_nowait()
                if lease is None:
                    leaving += 1
                else:
                    found.append(lease)
        for _ in range(leaving):
            self._waiting.put(None)  # the order to end is still for as many threads
        self.taken -= len(found)
        return found

    def take_out(self, lease: Lease) -> bool:
        waiting = self.give_back()
        self.take([one for one in waiting if one != lease])
        return lease in waiting

    def forget(self) -> None:
        self.taken -= 1

    # ---- threads

    def replace(self, run: Run) -> None:
        self._hung += 1
        self.taken -= 1
        self.take([])

    def cancel(self) -> set[asyncio.Task[None]]:
        return set()  # a thread cannot be cancelled

    def close(self) -> None:
        """End the threads that are free; threads at work are left alone, and end with the process."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _make_up(self) -> None:
        """Start another thread in the place of one that has ended.

        If it had a lease, the lease counts as taken until the worker finds that nothing works on it.
        """
        self._threads -= 1
        self.take([])

    def _come_back(self) -> None:
        # another thread may have taken its place
        self._hung -= 1
        if self._threads - self._hung > self._size:
            self._threads -= 1
            self._waiting.put(None)

    # ---- in the threads

    def _live(self) -> None:
        try:
            while self._work.around.fresh().run(self._serve):
                pass
        except BaseException as error:  # not from a handler: somebody raised it in this thread from outside
            voice = self._work.voice
            voice.say(logging.ERROR, "worker %s: a thread ended", voice.worker, exc_info=error)
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._make_up)

    def _serve(self) -> bool:
        """Call handlers until one has changed the context (True), or there are no more (False)."""
        work, running, ledger, me = self._work, self._desk.running, self._desk.ledger, threading.current_thread()
        around, bare, tell, fields = work.around, work.around.bare, telling.running.set, work.voice.fields()
        while True:
            lease = self._waiting.get()
            if lease is None:
                return False
            run = running[lease.key] = Run(lease, None, time.monotonic(), me)
            result: Any = None
            problem: BaseException | None = None
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                result = work.call(lease)
                waits = result is not None and inspect.isawaitable(result)
            except BaseException as error:  # whatever a handler raises is its task's failure
                problem, waits = error, False
            if forks.generation != work.generation:
                forks.leave(lease.task, problem)
            if not waits and (result is not None or problem is not None):
                result, problem = _listed(run, result, problem)
            if waits:
                self._await_in_loop(run, result)
                result = None
            else:
                run.spent = time.monotonic() - run.began
                came = None
                if result is None and problem is None:
                    if ledger is not None:
                        ledger.finish(lease)
                else:
                    came = [result, problem]  # what their end runs is the task's doing: the loop lets go of them last
                    result = problem = None
                self._hand_in(run, came)
                came = None
            if len(copy_context()) > 1 if bare else around.changed():
                return True

    def _hand_in(self, run: Run, came: list[Any] | None) -> None:
        self._done.append((run, came))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._collect)

    def _await_in_loop(self, run: Run, awaitable: Any) -> None:
        over = self._machine.event()
        try:
            self._loop.call_soon_threadsafe(self._start_awaiting, run, awaitable, copy_context(), over)
        except RuntimeError:  # the loop is closed already
            handlers.discard(awaitable)
            return
        over.wait()

    # ---- in the event loop

    def _start_awaiting(self, run: Run, awaitable: Any, context: Context, over: threading.Event) -> None:
        if run.end:
            handlers.discard(awaitable)
            over.set()
            self._come_back()
            return

        def leave(task: asyncio.Task[None]) -> None:
            if self._desk.running.get(run.lease.key) is run:  # the run was cancelled before it began
                handlers.discard(awaitable)
                self._desk.finished(run, None, asyncio.CancelledError())
            if run.left:
                self._come_back()
            else:
                self.taken -= 1
                self._desk.wake()  # the end of a lost lease is not sent: no answer to it wakes the pump
            over.set()

        run.task = self._loop.create_task(self._await(run, awaitable), name="handler", context=context)
        run.task.add_done_callback(leave)

    async def _await(self, run: Run, awaitable: Any) -> None:
        desk = self._desk
        result: Any = None
        problem: BaseException | None = None
        try:
            result = await listed(await handlers.resolve(awaitable))
        except BaseException as error:  # whatever an awaitable raises is the end of its handler
            problem = error
        if problem is not None:
            problem = await listed_raised(problem)
        if forks.generation != self._work.generation:
            forks.leave(run.lease.task, problem)
        if not run.left:
            desk.spans.add(time.monotonic() - run.began)
            if (over := self._work.runtime.overrun(run, problem)) is not None:
                result, problem = None, over
        desk.finished(run, result, problem)
        result = problem = None
        if desk.ledger is not None:
            desk.ledger.finish(run.lease)

    def _collect(self) -> None:
        desk = self._desk
        self._told = False
        while self._done:
            run, came = self._done.popleft()
            if run.end != "max_runtime":  # such a run was counted when its time was over
                desk.spans.add(run.spent)
            if run.end:
                self._come_back()  # the lease was lost, timed out or given back meanwhile
            else:
                self.taken -= 1
                if came is None:
                    desk.finished(run, None, None)
                else:
                    desk.finished(run, came[0], came[1])
            if came is not None:
                came.clear()
                if desk.ledger is not None:
                    desk.ledger.finish(run.lease)


def _listed(run: Run, result: Any, problem: BaseException | None) -> tuple[Any, BaseException | None]:
    """List what a handler found, in the thread that called it."""

    def given_up() -> str:
        return run.end

    try:
        if problem is None:
            return listed_here(result, given_up), None
        return None, listed_here(problem, given_up)
    except BaseException as error:  # whatever the iterable raises is the task's failure
        return None, error
