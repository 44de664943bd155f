"""A crew of threads, which call `def` handlers; they are started as they are needed, and live as long as the worker.

If a handler gives an awaitable, the event loop awaits it; meanwhile the handler's thread runs no other handler. What
threads and event loop share are a pipe of leases and a deque of ended runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any

from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.crews import Work
from timeoutq.worker.ends import may_be_long
from timeoutq.worker.found import listed, listed_here
from timeoutq.worker.machine import THIS, Machine
from timeoutq.worker.runs import Run

MOST = 1000
"""The most threads of one crew."""
SHORT_EVERY = 60.0
"""Seconds at least between two lines that say that no more threads can be started."""
LAST = 1_000_000
"""The rank of the order to end: if the worker has several queues, all leases come before it."""

Waiting = tuple[int, int, Work, Lease | None]
"""What waits for a thread: its rank, its number, and a lease; no lease means that the thread is to end."""


class ThreadCrew:
    """Threads that call handlers."""

    def __init__(
        self, works: Sequence[Work], size: int, broken: Callable[[str], None], machine: Machine = THIS
    ) -> None:
        """Prepare; the threads are those of `machine`, and `works` has the work of each queue.

        `broken` is called with the reason when no thread can be started.
        """
        self._works = works
        self._work = works[0]
        self._loop = asyncio.get_running_loop()
        self._size = min(size, MOST)
        self._broken = broken
        self._machine = machine
        self._waiting: SimpleQueue[Waiting] | PriorityQueue[Waiting]
        self._waiting = machine.pipe() if len(works) == 1 else PriorityQueue()
        self._numbers = count()
        self._done: deque[tuple[Run, Work, list[Any] | None]] = deque()
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

    def take(self, leases: list[Lease], lane: int = 0) -> None:
        work = self._works[lane]
        self._put([(work.rank, next(self._numbers), work, lease) for lease in leases])

    def _put(self, places: list[Waiting]) -> None:
        self.taken += len(places)
        for place in places:
            self._waiting.put(place)
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

    def before(self, lane: int) -> int:
        if isinstance(self._waiting, PriorityQueue):
            rank = self._works[lane].rank
            return sum(place[0] <= rank for place in list(self._waiting.queue))
        return self._waiting.qsize()

    def queued(self, lane: int = 0) -> set[int]:
        work, waiting = self._works[lane], self._take_all()
        self._put(waiting)
        return {lease.key for _, _, its, lease in waiting if its is work and lease is not None}

    def give_back(self, lane: int = 0, most: int | None = None) -> list[Lease]:
        work, waiting = self._works[lane], self._take_all()
        found = [place for place in waiting if place[2] is work]
        if most is not None:
            found = found[max(0, len(found) - most) :]
        self._put([place for place in waiting if place not in found])
        return [place[3] for place in found if place[3] is not None]

    def _take_all(self) -> list[Waiting]:
        """Take out what waits, in the order in which it would come out."""
        found: list[Waiting] = []
        with suppress(Empty):
            while True:
                found.append(self._waiting.get_nowait())
        places = [place for place in found if place[3] is not None]
        for _ in range(len(found) - len(places)):
            self._end_one()  # the order to end is still for as many threads
        self.taken -= len(places)
        return places

    def _end_one(self) -> None:
        self._waiting.put((LAST, next(self._numbers), self._work, None))

    def take_out(self, lease: Lease, lane: int = 0) -> bool:
        work, waiting = self._works[lane], self._take_all()
        found = [place for place in waiting if place[2] is work and place[3] == lease]
        self._put([place for place in waiting if place not in found])
        return bool(found)

    def forget(self) -> None:
        self.taken -= 1

    # ---- threads

    def replace(self, run: Run) -> None:
        self._hung += 1
        self.taken -= 1
        self._put([])

    def cancel(self) -> set[asyncio.Task[None]]:
        return set()  # a thread cannot be cancelled

    def close(self) -> None:
        """End the threads that are free; threads at work are left alone, and end with the process."""
        for _ in range(self._threads):
            self._end_one()

    def _make_up(self) -> None:
        """Start another thread in the place of one that has ended.

        If it had a lease, the lease counts as taken until the worker finds that nothing works on it.
        """
        self._threads -= 1
        self._put([])

    def _come_back(self) -> None:
        # another thread may have taken its place
        self._hung -= 1
        if self._threads - self._hung > self._size:
            self._threads -= 1
            self._end_one()

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
        work, me, tell = self._work, threading.current_thread(), telling.running.set
        around, bare = work.around, work.around.bare
        running, ledger, fields = work.desk.running, work.desk.ledger, work.voice.fields()
        while True:
            _, _, its, lease = self._waiting.get()
            if lease is None:
                return False
            if its is not work:
                work = its
                running, ledger, fields = work.desk.running, work.desk.ledger, work.voice.fields()
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
                waits = not run.cancelled and (may_be_long(result) or may_be_long(problem))
                if waits:  # the thread keeps its place while the event loop puts what the ack cannot carry
                    result, problem = _given(result, problem), None
            if waits:
                self._await_in_loop(run, work, result)
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
                self._hand_in(run, work, came)
                came = None
            if len(copy_context()) > 1 if bare else around.changed():
                return True

    def _hand_in(self, run: Run, work: Work, came: list[Any] | None) -> None:
        self._done.append((run, work, came))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._collect)

    def _await_in_loop(self, run: Run, work: Work, awaitable: Any) -> None:
        over = self._machine.event()
        try:
            self._loop.call_soon_threadsafe(self._start_awaiting, run, work, awaitable, copy_context(), over)
        except RuntimeError:  # the loop is closed already
            handlers.discard(awaitable)
            return
        over.wait()

    # ---- in the event loop

    def _start_awaiting(self, run: Run, work: Work, awaitable: Any, context: Context, over: threading.Event) -> None:
        desk = work.desk
        if run.end:
            handlers.discard(awaitable)
            over.set()
            self._come_back()
            return

        def leave(task: asyncio.Task[None]) -> None:
            if desk.running.get(run.lease.key) is run:  # the run was cancelled before it began
                handlers.discard(awaitable)
                desk.finished(run, None, asyncio.CancelledError())
            if run.left:
                self._come_back()
            else:
                self.taken -= 1
                desk.wake()  # the end of a lost lease is not sent: no answer to it wakes the pump
            over.set()

        run.task = self._loop.create_task(self._await(run, work, awaitable), name="handler", context=context)
        run.task.add_done_callback(leave)

    async def _await(self, run: Run, work: Work, awaitable: Any) -> None:
        desk = work.desk
        result: Any = None
        problem: BaseException | None = None
        try:
            result = await listed(await handlers.resolve(awaitable))
        except BaseException as error:  # whatever an awaitable raises is the end of its handler
            problem = error
        result, problem = await desk.given(run, result, problem)
        if forks.generation != work.generation:
            forks.leave(run.lease.task, problem)
        if not run.left:
            desk.spans.add(time.monotonic() - run.began)
            if (over := work.runtime.overrun(run, problem)) is not None:
                result, problem = None, over
        desk.finished(run, result, problem)
        result = problem = None
        if desk.ledger is not None:
            desk.ledger.finish(run.lease)

    def _collect(self) -> None:
        self._told = False
        while self._done:
            run, work, came = self._done.popleft()
            desk = work.desk
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


async def _given(result: Any, problem: BaseException | None) -> Any:
    if problem is not None:
        raise problem
    return result


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
