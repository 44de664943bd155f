"""Threads in which a worker calls functions that are a plain `def`, while a coroutine of the worker waits for each."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from timeoutq.functions.errors import NoProcess
from timeoutq.words import telling
from timeoutq.worker import forks

log = logging.getLogger(__name__)

AGAIN = 1.0  # seconds after which it is tried again to start a thread
PATIENCE = 5.0  # seconds that a function may go on after it was to end; then its thread hangs


@dataclass(slots=True, eq=False)
class Threaded:
    """One call in a thread."""

    task: str
    call: Callable[[], Any]
    context: Context
    over: asyncio.Future[None]
    left: bool = False  # nobody waits for it, and it has the thread of its call
    ended: bool = False
    value: Any = None
    error: BaseException | None = None


class Threads:
    """As many threads as there are calls at once; they live as long as the worker.

    A call takes a thread, runs functions in it, and gives it back. A thread cannot be stopped: a call that nobody waits
    for any more keeps its thread, and the next call gets another.
    """

    def __init__(self, name: str, most: int, hangs: Callable[[str], None]) -> None:
        """Prepare, in the event loop of the worker; `name` is what the names of the threads begin with.

        `most` calls have a thread at once. `hangs` is called, with the words, when a function still runs though nobody
        has waited for it for a while.
        """
        self._name, self._hangs = name, hangs
        self.free = asyncio.Semaphore(most)
        self._loop, self._generation = asyncio.get_running_loop(), forks.generation
        self._waiting: deque[Threaded] = deque()
        self._bell: SimpleQueue[bool] = SimpleQueue()  # True has a thread look for calls, False ends it
        self._rung = False  # whether a thread is to look that has not come yet
        self._done: deque[Threaded] = deque()
        self._told = self._closed = self._short = False
        self._threads: int = 0
        self._taken: int = 0  # by calls, and by functions for which nobody waits any more

    async def take(self) -> None:
        """Wait until a thread is free. Raises `NoProcess` if there is no thread at all, and none can be started."""
        await self.free.acquire()
        while self._taken >= self._threads and not self._start():
            self._loop.call_later(AGAIN, self.free.release)
            await self.free.acquire()
        self._taken += 1

    def give(self) -> None:
        """Give back a thread that was taken."""
        self._taken -= 1
        self.free.release()

    async def run(self, task: str, call: Callable[[], Any]) -> Any:
        """Call a function in the thread that was taken, with the caller's context; give what it returns, or raises."""
        one = Threaded(task, call, copy_context(), self._loop.create_future())
        self._waiting.append(one)
        self._ring()
        try:
            await one.over
        except asyncio.CancelledError:
            if not one.ended:
                one.left = True
                self._taken += 1
            self._loop.call_later(PATIENCE, self._look, one)
            raise
        if one.error is not None:
            raise one.error
        return one.value

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._live, name=f"{self._name}-{self._threads}", daemon=True).start()
        except RuntimeError as error:
            cure = "raise `ulimit -u` or the pids limit of the container, or lower --threads"
            if not self._threads:
                self.free.release()
                raise NoProcess(f"no thread can be started to run functions: {error}: {cure}") from None
            if not self._short:
                self._short = True
                words = "no more than %d threads run functions here, because another cannot be started: %s: %s"
                telling.say(log, logging.WARNING, words, self._threads, error, cure)
            return False
        self._threads += 1
        return True

    def close(self) -> None:
        """End the threads that are free; those at work end with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._bell.put(False)

    def _look(self, one: Threaded) -> None:
        if not one.ended and not self._closed:
            what = f"the function of task {one.task!a:.80} still runs in its thread, {PATIENCE:g} s after it was to end"
            self._hangs(what)

    def _collect(self) -> None:
        self._told = False
        while self._done:
            one = self._done.popleft()
            one.ended = True
            if one.left:  # its thread is free only now
                self._taken -= 1
            elif not one.over.done():  # else the coroutine is being cancelled
                one.over.set_result(None)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.put(True)

    # ---- in the threads

    def _live(self) -> None:
        """Run calls. To wake a thread, or the event loop, costs more than a quick call.

        So a thread wakes one other while more calls wait, and tells the loop what has ended when none waits: before it
        runs the last one. If it goes on with a slow call earlier, the thread that it has woken does all this.
        """
        while self._bell.get():
            self._rung = False
            while self._waiting:
                try:
                    one = self._waiting.popleft()
                except IndexError:  # another thread was quicker
                    break
                if self._waiting:
                    self._ring()
                if not self._waiting:
                    self._tell()
                try:
                    if not one.over.done():  # else nobody waits for it any more
                        one.value = one.context.run(one.call)
                except BaseException as error:  # whatever a function raises is the end of its call
                    one.error = error
                if forks.generation != self._generation:
                    forks.leave(one.task, one.error)
                self._done.append(one)
                del one
            self._tell()

    def _tell(self) -> None:
        if self._done and not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._collect)
