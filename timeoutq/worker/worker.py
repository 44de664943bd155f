"""The face of a worker: its settings, `run`, `stop`, and what it says of itself.

`run` puts the parts of the room together, starts each, waits for the pump, and has everything ended by `closing.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from timeoutq import arguments, flows, forks, handlers, retry, signals
from timeoutq.cleaner import Cleaner
from timeoutq.client import AsyncDriver, Driver
from timeoutq.errors import InvalidInput, TimeoutqError, WorkerBroken
from timeoutq.handlers import Handler, Lifespan, Returned, Surroundings
from timeoutq.heartbeat import Heartbeat
from timeoutq.lifespan import Span, checked
from timeoutq.loopwatch import LoopWatch
from timeoutq.machine import THIS, Machine
from timeoutq.model import Lease
from timeoutq.retry import Retries, RetryPolicy
from timeoutq.sending import Flow
from timeoutq.worker.closing import Closing
from timeoutq.worker.crews import Crew, TaskCrew, Work
from timeoutq.worker.desk import Desk, Ledger, Rules, Tally
from timeoutq.worker.failures import Failures
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.pace import Pace
from timeoutq.worker.parts import Parts
from timeoutq.worker.pump import Pump
from timeoutq.worker.runs import MaxRuntime
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import Limits, Stopping
from timeoutq.worker.suspects import Suspects
from timeoutq.worker.tending import Tending
from timeoutq.worker.threads import ThreadCrew
from timeoutq.worker.voice import Voice

S = TypeVar("S")

LOOK_EVERY = 1.0
"""Seconds between two looks whether a queue is there, if nobody knows before of which parts it will consist."""
UNBOUNDED = 1_000_000_000
"""More releases than any task will have."""


def load_handler(path: str) -> Handler:
    """Import `module:function`; raises `HandlerNotFound`, which says what is missing."""
    return cast("Handler", handlers.load(path))


class Worker:
    """Works on one queue until it is stopped, or drained with `burst=True`."""

    machine: Machine = THIS
    """Where the worker's threads come from."""

    def __init__(
        self,
        queue: AsyncDriver,
        handler: Callable[[Lease], Returned] | Callable[[Lease, S], Returned] | str,
        *,
        concurrency: int = 100,
        prefetch: int | None = None,
        retry: Retries = None,
        max_runtime: float | None = None,
        burst: bool = False,
        drain_deadline: float = 25.0,
        signals: bool = True,
        ledger: Ledger | None = None,
        lifespan: Lifespan[S] | str | None = None,
        max_tasks: int | None = None,
        max_releases: int | None = 100,
    ) -> None:
        """Prepare a worker; `await run()` starts it.

        `handler` is a callable or `module:function`. `concurrency` is how many handlers run at once; `prefetch` is how
        many claimed tasks wait here for a handler (None: as many as handlers finish in two exchanges). `retry`
        replaces the queue's policy, `max_runtime` (seconds) its limit. `burst` ends the worker when the queue is
        drained. On SIGTERM the worker claims no more, lets running handlers finish, sends what they gave, all within
        `drain_deadline` seconds, and gives the other tasks back; on SIGINT or a second SIGTERM it gives all tasks back
        at once (`signals=False` leaves signals to the caller, see `stop`).

        `lifespan` is a function without arguments that gives an async context manager, such as a function that
        `@asynccontextmanager` decorates, or `module:function`. The context manager is entered before the first claim
        and left after the last handler; what it yields is given to handlers that take `(lease, state)`. After
        `max_tasks` runs of handlers the worker ends.

        A task that its handler has released `max_releases` times goes to failed; each release waits longer than the one
        before, up to a minute. 0 or None is no limit. Releases that block a host do not count; the worker warns when
        tasks of a host were put back like this ten times in a row, a hundred times, and so on.

        Raises `InvalidInput` for a handler that cannot be called like this, `HandlerNotFound` if there is no handler.
        """
        if not isinstance(queue, AsyncDriver):
            raise InvalidInput(_not_async(queue))
        self.queue = queue
        self.handler: Handler = load_handler(handler) if isinstance(handler, str) else handler
        self._voice = Voice(queue)
        self._span = Span(checked(lifespan), self._break)
        most_runs = None if max_tasks is None else arguments.count(max_tasks, "max_tasks")
        most_releases = arguments.count(max_releases or UNBOUNDED, "max_releases")
        self._shape = handlers.shape_of(self.handler, has_state=lifespan is not None)
        self.concurrency = arguments.count(concurrency, "concurrency", high=100_000)
        ahead = None if prefetch is None else arguments.count(prefetch, "prefetch", low=0, high=100_000)
        self._pace = Pace(self.concurrency, ahead, queue.timeout, time.monotonic())
        self.policy = queue.retry if retry is None else RetryPolicy.of(retry)
        self._runtime = MaxRuntime(queue, max_runtime)
        self.burst = burst
        self.drain_deadline = arguments.seconds(drain_deadline, "drain_deadline")
        self._stopping = Stopping(self.drain_deadline, Limits(burst, most_runs))
        self._signals = signals
        rules = Rules(self._shape.name, self._runtime, Failures(self.policy, self._voice), most_releases)
        self._desk = Desk(queue, rules, self._voice, ledger)
        self._ran = False
        self._pump: Pump | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._heartbeat: Heartbeat | None = None
        self._tending: Tending | None = None
        self.ending: Callable[[str], None] | None = None
        """Called with `tally.end` when all work has ended, before the lifespan is left; it may be called twice."""

    # ---- what it says of itself

    @property
    def tally(self) -> Tally:
        """What the worker has done so far."""
        return self._desk.tally

    @property
    def held(self) -> dict[int, Lease]:
        """The leases that the worker holds, by their keys: on a plain queue, their fences."""
        return self._desk.held

    def give_back_unread(self) -> Flow[None]:
        """Give a flow that releases what claims have taken whose replies the worker has not read.

        It is for a process whose event loop has ended before the worker has: a blocking queue of the same name runs it.
        """
        for source in self._pump.sources if self._pump is not None else ():
            yield from source.give_back_unread()

    @property
    def running(self) -> list[Lease]:
        """The leases whose handlers are running."""
        return [run.lease for run in list(self._desk.running.values())]

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, as the heartbeat last heard; 1 before it has heard anything."""
        return 1 if self._heartbeat is None else self._heartbeat.peers

    def _about(self) -> dict[str, object]:
        host, pid, _ = self.queue.worker.split(":")
        about: dict[str, object] = {
            "host": host,
            "pid": int(pid),
            "concurrency": self.concurrency,
            "held": len(self.held),
            "acked": self.tally.acked,
            "failed": self.tally.failed,
            "started": self._desk.started,
        }
        if self._tending is not None:
            about["tends"] = self._tending.tended
        if self._pump is not None and self._pump.unconfirmed:
            about["trouble"] = self._pump.unconfirmed
        return about

    # ---- its life

    async def run(self) -> Tally:
        """Work until stopped (or drained, in a burst); give the tally. Waits for a server that is away.

        Raises at once the errors that waiting cannot mend: `AccessDenied`, `NotRedis`, `SchemaMismatch`,
        `UnsafeServer`. Raises what the lifespan raises (`WorkerBroken` in place of what is no `Exception`, such as
        `SystemExit`); when it is left, all work has ended, and `tally.end` says why. Raises `WorkerBroken` when a part
        of the worker is gone. A worker runs once: raises `InvalidInput` when it is run again.
        """
        if self._ran:
            raise InvalidInput("a Worker runs once: make another")
        self._ran = True
        voice, running = self._voice, self._desk.running
        loop, generation = asyncio.get_running_loop(), forks.generation
        watch = LoopWatch(
            voice.queue, running, voice.fields(), self.queue.timeout, self._runtime.ms / 1000, self.machine
        )
        with watch, forks.watched(loop), signals.heeded(self.stop) if self._signals else nullcontext():
            if not self._stopping.level:
                async with self._span:
                    if self._span.entered:
                        await self._serve(generation)
                    self._note_end()
        self._note_end()
        voice.say(logging.INFO, "worker %s ends: %s", voice.worker, self.tally)
        return self.tally

    def stop(self, *, now: bool = False) -> None:
        """Claim no more and finish what runs; with `now`, or when called again, give everything back at once."""
        at_once = self._stopping.order(now=now)
        what = "stops at once, giving its tasks back" if at_once else "drains"
        self._voice.say(logging.INFO, "worker %s %s", self._voice.worker, what)
        if not self._span.entered or at_once:
            self._span.give_up()
        self._desk.wake()
        if self._pump is not None and self._pumping is not None and not self.held and self._pump.is_away:
            # no lease is held and the server does not answer: there is nothing to wait for
            self._pumping.cancel()

    def _note_end(self) -> None:
        if self._stopping.level and not self.tally.end:
            self.tally.end = "stopped"
        if self.ending is not None and self.tally.end:
            self.ending(self.tally.end)

    def _break(self, reason: BaseException | str) -> None:
        """End the worker because a part of it is gone: a worker that claims on would do harm."""
        if isinstance(reason, str):
            reason = WorkerBroken(f"worker {self.queue.worker}: {reason}")
        if self._pump is not None:
            self._pump.exchanges.fail(reason)

    async def _serve(self, generation: int) -> None:
        queue, desk, voice, stopping = self.queue, self._desk, self._voice, self._stopping
        if not await self._knows_parts():
            return
        desk.divide()
        crew, suspects = self._crew(generation), Suspects()
        talks = list(enumerate(queue.division.talks))
        sources = [Source(desk, self._pace, is_burst=self.burst, part=part) for part, _ in talks]
        cleaners = {part: Cleaner(queue, talk=talk) for part, talk in talks}
        interrupts = Interrupts(desk, crew, suspects)
        client = self.machine.client(queue)
        self._heartbeat = heartbeat = Heartbeat(
            client, desk.held, interrupts.lose_soon, self._about, desk.spans, self.machine
        )
        both = list(zip(sources, cleaners.values(), strict=True))
        self._pump = pump = Pump(desk, crew, both, suspects, stopping, heartbeat)
        parts = Parts(voice, desk.wake)
        if len(talks) > 1:
            self._tending = Tending(desk, pump, cleaners, self.concurrency)
        try:
            heartbeat.start()
            parts.keep("cleaner", cleaners[0].run if self._tending is None else self._tending.run)
            parts.keep("held", partial(interrupts.watch_held, heartbeat, self._break))
            if self._runtime.ms:
                parts.keep("runtime", interrupts.watch_runtime)
            voice.say(
                logging.INFO, "worker %s starts on queue %s: concurrency %d, timeout %g s",
                voice.worker, voice.queue, self.concurrency, queue.timeout,
            )  # fmt: skip
            await self._await_pump(pump, parts, generation)
        finally:
            await Closing(desk, pump, parts, interrupts, heartbeat, stopping, self.machine).close()

    async def _knows_parts(self) -> bool:
        """Wait until it is known of which parts the queue consists; false if the worker was stopped before that."""
        queue, stopping, failures = self.queue, self._stopping, 0
        while not queue.division.is_known and not stopping.level:
            try:
                await queue.run(queue.division.look())
                failures = 0
            except TimeoutqError as error:
                if flows.is_final(error):
                    raise
                failures += 1
            if not queue.division.is_known:
                if self.burst and not failures:
                    self.tally.end = "drained"
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry.pause(failures) if failures else LOOK_EVERY):
                        await self._desk.woken.wait()
        return queue.division.is_known

    def _crew(self, generation: int) -> Crew:
        span = self._span
        around = Surroundings(copy_context() if span.context is None else span.context)
        call = cast("Callable[[Lease], Any]", self.handler)
        if self._shape.takes_state:
            call = partial(_with_state, cast("Callable[[Lease, Any], Any]", self.handler), span.state)
        work = Work(call, around, self._runtime, self._desk, self._voice, generation)
        return (
            TaskCrew(work, self.concurrency)
            if self._shape.is_async
            else ThreadCrew(work, self.concurrency, self._break, self.machine)
        )

    async def _await_pump(self, pump: Pump, parts: Parts, generation: int) -> None:
        def check() -> None:
            if forks.generation != generation:
                forks.leave("a task", None)
            parts.check("cleaner")

        flow = pump.run(check, self.stop)
        self._pumping = pumping = asyncio.create_task(flow, name=f"pump-{self.queue.name}")
        try:
            await pumping
        except asyncio.CancelledError:
            if not self._stopping.level:
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)
                me = asyncio.current_task()
                if me is None or not me.cancelling():
                    raise WorkerBroken(self._told_of_cancelled_pump()) from None
                parts.tell_cancelled()
                raise

    def _told_of_cancelled_pump(self) -> str:
        names = ", ".join(f"{lease.task!a:.80}" for lease in self.running[:5]) or "no tasks"
        return (
            f"the pump of worker {self.queue.worker} was cancelled by somebody else: does a handler cancel "
            f"asyncio tasks that it did not start? Running were {names}"
        )


def _with_state(handler: Callable[[Lease, Any], Any], state: Any, lease: Lease) -> Any:
    return handler(lease, state)


def _not_async(queue: object) -> str:
    if isinstance(queue, Driver):
        kind = f"Async{type(queue).__name__}"
        return f"a worker takes an {kind}: write Worker({kind}({queue.name!r}, …), …)"
    if isinstance(queue, str):
        return f"a worker takes a queue, not its name: write Worker(AsyncQueue({queue!r:.80}, …), …)"
    return f"a worker takes an AsyncQueue, not {type(queue).__name__}: write Worker(AsyncQueue(…), …)"
