"""Runs `def` handlers: a crew of threads, started as they are needed, which live as long as the worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any

from timeoutq.words import telling
from timeoutq.words.arguments import error_words
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.background import THIS, Machine
from timeoutq.worker.crews import Calling, TaskCrew
from timeoutq.worker.ends import may_be_long
from timeoutq.worker.found import listed, listed_here
from timeoutq.worker.runs import Run

MOST = 1000  # the most threads of one crew
LAST = 1_000_000  # the rank of the order to end: if the worker has several queues, all leases come before it

Waiting = tuple[int, int, Calling, Lease | None]
"""A place in the pipe to the threads: rank, number, and a lease; no lease means that the thread is to end."""


class ThreadCrew:
    """Threads that call handlers; its methods are those of `TaskCrew`."""

    def __init__(
        self, callings: Sequence[Calling], size: int, broken: Callable[[str], None], machine: Machine = THIS
    ) -> None:
        """Prepare; `broken` is called with the reason when no thread can be started."""
        self._callings = callings
        self._first = callings[0]
        self._loop = asyncio.get_running_loop()
        self._size = min(size, MOST)
        self._broken = broken
        self._machine = machine
        self._waiting: SimpleQueue[Waiting] | PriorityQueue[Waiting]
        self._waiting = machine.pipe() if len(callings) == 1 else PriorityQueue()
        self._numbers = count()
        self._done: deque[tuple[Run, Calling, list[Any] | None]] = deque()
        """Handlers that have ended, with their results and errors; None if both are None."""
        self._told = False
        self.taken = 0  # how many leases are with the crew, begun or not
        self._threads = 0
        self._told_short = False
        self._hung = 0  # how many threads still run handlers that were given up; these threads do not count
        self.closing = False

    # ---- leases

    def take(self, leases: list[Lease], number: int = 0) -> None:
        calling = self._callings[number]
        self._put([(calling.rank, next(self._numbers), calling, lease) for lease in leases])

    def _put(self, places: list[Waiting]) -> None:
        self.taken += len(places)
        for place in places:
            self._waiting.put(place)
        while self._threads - self._hung < min(self._size, self.taken):
            name = f"handler-{self._first.leases.log.queue}-{self._threads}"
            thread = self._machine.thread(self._live, name)
            try:
                thread.start()
            except RuntimeError as error:
                self._run_short(error)
                return
            self._threads += 1

    def _run_short(self, error: RuntimeError) -> None:
        """Go on with the threads that are there, and say so once; without any, the worker ends."""
        worker_log, free = self._first.leases.log, self._threads - self._hung
        cure = "raise `ulimit -u` or the pids limit of the container, or lower the concurrency"
        if free <= 0:
            self._broken(f"no thread can be started to run handlers ({error}): {cure}")
        elif not self._told_short:
            self._told_short = True
            worker_log.say(
                logging.WARNING, "worker %s: a thread for handlers cannot be started (%s), and it goes on with %d of "
                "%d threads: %s", worker_log.worker, error, free, self._size, cure, error=error,
            )  # fmt: skip

    @property
    def unstarted(self) -> int:
        return self._waiting.qsize()

    def before(self, number: int) -> int:
        if isinstance(self._waiting, PriorityQueue):
            rank = self._callings[number].rank
            return sum(place[0] <= rank for place in list(self._waiting.queue))
        return self._waiting.qsize()

    def give_back(self, number: int = 0, most: int | None = None) -> list[Lease]:
        calling, waiting = self._callings[number], self._take_all()
        found = [place for place in waiting if place[2] is calling]
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
        self._waiting.put((LAST, next(self._numbers), self._first, None))

    def take_out(self, lease: Lease, number: int = 0) -> bool:
        calling, waiting = self._callings[number], self._take_all()
        found = [place for place in waiting if place[2] is calling and place[3] == lease]
        self._put([place for place in waiting if place not in found])
        return bool(found)

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

    def _come_back(self) -> None:
        # another thread may have taken its place
        self._hung -= 1
        if self._threads - self._hung > self._size:
            self._threads -= 1
            self._end_one()

    # ---- in the threads

    def _live(self) -> None:
        try:
            while self._first.around.fresh().run(self._serve):
                pass
        except BaseException as error:  # not from a handler: somebody raised it in this thread from outside
            words = f"a thread that ran handlers has ended: {error_words(error)}"
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._broken, words)

    def _serve(self) -> bool:
        """Call handlers until one has changed the context (True), or there are no more (False)."""
        calling, tell = self._first, telling.running.set
        around, bare, leases = calling.around, calling.around.bare, calling.leases
        running, ledger, fields = leases.running, leases.ledger, leases.log.fields()
        while True:
            _, _, its, lease = self._waiting.get()
            if lease is None:
                return False
            if its is not calling:
                calling, leases = its, its.leases
                running, ledger, fields = leases.running, leases.ledger, leases.log.fields()
            run = running[lease.key] = Run(lease, None, time.monotonic())
            result: Any = None
            problem: BaseException | None = None
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                result = calling.call(lease)
                waits = result is not None and inspect.isawaitable(result)
            except BaseException as error:  # whatever a handler raises is its task's failure
                problem, waits = error, False
            if forks.generation != calling.generation:
                forks.leave(lease.task, problem)
            if not waits and (result is not None or problem is not None):
                result, problem = _listed(run, result, problem)
                waits = not run.cancelled and (may_be_long(result) or may_be_long(problem))
                if waits:  # the thread keeps its place while the event loop puts the rest
                    result, problem = _given(result, problem), None
            came = None
            if waits:
                came = self._await_in_loop(run, calling, result)
            elif result is not None or problem is not None:
                came = [result, problem]  # the loop lets go of them last: their end may run code of the user
            elif ledger is not None:
                ledger.finish(lease)
            result = problem = None
            run.spent = time.monotonic() - run.began
            self._hand_in(run, calling, came)
            came = None
            if len(copy_context()) > 1 if bare else around.changed():
                return True

    def _hand_in(self, run: Run, calling: Calling, came: list[Any] | None) -> None:
        self._done.append((run, calling, came))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._collect)

    def _await_in_loop(self, run: Run, calling: Calling, awaitable: Any) -> list[Any]:
        """Have the event loop await something; give its result and its error."""
        over, came = self._machine.event(), list[Any]()

        def start(context: Context) -> None:
            if run.end:  # the handler was given up meanwhile
                over.set()
                return
            flow = self._await(run, calling, awaitable, came)
            run.task = self._loop.create_task(flow, name="handler", context=context)
            run.task.add_done_callback(lambda _: over.set())

        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(start, copy_context())
            over.wait()
        if not came:  # nothing was awaited, or it was cancelled before it began
            handlers.discard(awaitable)
            came = [None, asyncio.CancelledError()]
        return came

    # ---- in the event loop

    async def _await(self, run: Run, calling: Calling, awaitable: Any, came: list[Any]) -> None:
        result: Any = None
        problem: BaseException | None = None
        try:
            result = await listed(await handlers.resolve(awaitable))
        except BaseException as error:  # whatever an awaitable raises is the end of its handler
            problem = error
        came += await calling.leases.given(run, result, problem)
        if forks.generation != calling.generation:
            forks.leave(run.lease.task, problem)

    def _collect(self) -> None:
        self._told = False
        while self._done:
            run, calling, came = self._done.popleft()
            leases = calling.leases
            was_given_up = run.left or (bool(run.end) and run.task is None)
            if not (was_given_up and (run.left or run.end == "max_runtime")):  # such a run was counted then
                leases.spans.add(run.spent)
            if was_given_up:
                self._come_back()  # the lease was lost, timed out or given back meanwhile
            else:
                self.taken -= 1
                result, problem = came or (None, None)
                if run.task is not None and (over := leases.rules.runtime.overrun(run, problem)) is not None:
                    result, problem = None, over
                leases.finished(run, result, problem)
                result = problem = None
            if came is not None:
                came.clear()
                if leases.ledger is not None:
                    leases.ledger.finish(run.lease)


async def _given(result: Any, problem: BaseException | None) -> Any:
    if problem is not None:
        raise problem
    return result


def _listed(run: Run, result: Any, problem: BaseException | None) -> tuple[Any, BaseException | None]:
    """List the tasks that a handler found, in the thread that called it."""
    try:
        if problem is None:
            return listed_here(result, lambda: run.end), None
        return None, listed_here(problem, lambda: run.end)
    except BaseException as error:  # whatever the iterable raises is the task's failure
        return None, error


Crew = TaskCrew | ThreadCrew  # runs handlers, many at once
