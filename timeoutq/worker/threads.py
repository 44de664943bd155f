"""Runs `def` handlers: a crew of threads, started as they are needed, which live as long as the worker."""

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
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, cast

from timeoutq.client.heartbeat import daemon_thread
from timeoutq.words import telling
from timeoutq.words.arguments import error_words
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.crews import Calling, Crew
from timeoutq.worker.ends import may_be_long
from timeoutq.worker.found import listed_here
from timeoutq.worker.runs import Run

MOST = 1000  # the most threads of one crew


class Machine:
    """Where a worker takes threads, events for which they can wait, and pipes; a simulation has another machine."""

    thread = staticmethod(daemon_thread)
    event = staticmethod(threading.Event)
    pipe = staticmethod(SimpleQueue[Any])


THIS = Machine()  # the machine of every worker that was given no other


class ThreadCrew(Crew):
    """Threads that call handlers."""

    def __init__(
        self,
        callings: Sequence[Calling],
        size: int,
        broken: Callable[[BaseException | str], None],
        machine: Machine = THIS,
    ) -> None:
        """Prepare; threads are started when there are leases."""
        super().__init__(callings, min(size, MOST), broken)
        self._machine = machine
        self._calls = machine.pipe()  # True has a thread look for a lease, False ends it
        self._done: deque[tuple[Run, Calling]] = deque()  # handlers that have ended
        self._told = False
        self._threads = 0
        self._told_short = False
        self._hung = 0  # how many threads still run handlers that were given up; these threads do not count

    def _call(self, leases: int) -> None:
        for _ in range(leases):
            self._calls.put(True)
        while self._threads - self._hung < min(self._size, self.taken):
            name = f"handler-{self._first.leases.log.queue}-{self._threads}"
            try:
                self._machine.thread(self._live, name).start()
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

    def _take_out(self, number: int, choose: Callable[[list[Lease]], list[Lease]]) -> list[Lease]:
        ends = 0
        with suppress(Empty):
            while True:  # there are to be as many calls as leases: those that stay are called for again
                ends += not self._calls.get_nowait()
        gone = super()._take_out(number, choose)
        for _ in range(ends):
            self._calls.put(False)
        return gone

    def replace(self, run: Run) -> None:
        self._hung += 1
        self.taken -= 1
        self._call(0)

    def close(self) -> set[asyncio.Task[None]]:
        for _ in range(self._threads):  # threads at work are left alone, and end with the process
            self._calls.put(False)
        return set()

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
        while self._calls.get():
            found = self._next()
            if found is None:
                continue  # the lease was given back
            its, lease = found
            if its is not calling:
                calling, leases = its, its.leases
                running, ledger, fields = leases.running, leases.ledger, leases.log.fields()
            run = running[lease.key] = Run(lease, None, time.monotonic())
            came: Any = None
            raised = False
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                came = calling.call(lease)
                waits = came is not None and inspect.isawaitable(cast("object", came))
            except BaseException as error:  # whatever a handler raises is its task's failure
                came, raised, waits = error, True, False
            if forks.generation != calling.generation:
                forks.leave(lease.task, came if raised else None)
            if came is not None and not waits:
                try:
                    came = listed_here(came, partial(getattr, run, "end"))
                except BaseException as error:  # whatever the iterable raises is the task's failure
                    came, raised = error, True
                if not run.cancelled and may_be_long(came):
                    # the thread keeps its place while the event loop puts the rest
                    came, raised, waits = _given(came, raised), False, True
            if waits:
                came, raised = self._await_in_loop(run, calling, came)
            if came is None and not raised and ledger is not None:
                ledger.finish(lease)
            run.spent = time.monotonic() - run.began
            run.came, run.raised = came, raised
            came = None  # the loop lets go of it last: its end may run code of the user
            self._hand_in(run, calling)
            if len(copy_context()) > 1 if bare else around.changed():
                return True
        return False

    def _hand_in(self, run: Run, calling: Calling) -> None:
        self._done.append((run, calling))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._collect)

    def _await_in_loop(self, run: Run, calling: Calling, awaitable: Any) -> tuple[Any, bool]:
        """Have the event loop await something; give what came, and whether it was raised."""
        over, ended = self._machine.event(), list[tuple[Any, bool]]()

        def start(context: Context) -> None:
            if run.end:  # the handler was given up meanwhile
                over.set()
                return
            flow = self._await(run, calling, awaitable, ended)
            run.task = self._loop.create_task(flow, name="handler", context=context)
            run.task.add_done_callback(lambda _: over.set())

        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(start, copy_context())
            over.wait()
        if not ended:  # nothing was awaited, or it was cancelled before it began
            handlers.discard(awaitable)
        return ended[0] if ended else (asyncio.CancelledError(), True)

    # ---- in the event loop

    async def _await(self, run: Run, calling: Calling, awaitable: Any, ended: list[tuple[Any, bool]]) -> None:
        came: Any = None
        raised = False
        try:
            came = await handlers.resolve(awaitable)
        except BaseException as error:  # whatever an awaitable raises is the end of its handler
            came, raised = error, True
        came, raised = await calling.leases.given(run, came, raised)
        ended.append((came, raised))
        if forks.generation != calling.generation:
            forks.leave(run.lease.task, came if raised else None)

    def _collect(self) -> None:
        self._told = False
        while self._done:
            run, calling = self._done.popleft()
            leases, came, raised = calling.leases, run.came, run.raised
            is_nothing, run.came = came is None and not raised, None
            was_given_up = run.left or (bool(run.end) and run.task is None)
            if not (was_given_up and (run.left or run.end == "max_runtime")):  # such a run was counted then
                leases.spans.add(run.spent)
            if was_given_up:  # the lease was lost, timed out or given back meanwhile
                self._hung -= 1
                if self._threads - self._hung > self._size:  # another thread has taken its place
                    self._threads -= 1
                    self._calls.put(False)
            else:
                self.taken -= 1
                over = None if run.task is None else leases.runtime.overrun(run, came if raised else None)
                leases.finished(run, *((came, raised) if over is None else (over, True)))
            del came
            if not is_nothing and leases.ledger is not None:
                leases.ledger.finish(run.lease)


async def _given(came: Any, raised: bool) -> Any:
    if raised:
        raise came
    return came
