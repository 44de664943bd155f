"""The face of a worker: its settings, `run`, `stop`, and what it says of itself.

`run` puts the parts of the room together, starts each, waits for the pump, and has everything ended by `closing.py`.
What each queue of the worker needs is put together by `_begin` and `_open`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from timeoutq.client import AsyncDriver, Driver, sibling
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.verbs import flows
from timeoutq.verbs.sending import Flow
from timeoutq.words import arguments, retry
from timeoutq.words.errors import InvalidInput, TimeoutqError, WorkerBroken
from timeoutq.words.model import Lease
from timeoutq.words.retry import Retries, RetryPolicy
from timeoutq.worker import forks, handlers, signals
from timeoutq.worker.beats import Beat, Beats
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.closing import Closing
from timeoutq.worker.crews import Crew, TaskCrew, Work
from timeoutq.worker.desk import Desk, Ledger, Rules, Tally, added
from timeoutq.worker.exchanges import Common
from timeoutq.worker.failures import Failures
from timeoutq.worker.handlers import Handler, Lifespan, Returned, Surroundings
from timeoutq.worker.health import Sheet
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.lanes import Lane, Shared
from timeoutq.worker.lifespan import Span, checked
from timeoutq.worker.loopwatch import LoopWatch
from timeoutq.worker.machine import THIS, Machine
from timeoutq.worker.pace import Pace
from timeoutq.worker.places import Place, tell_functions
from timeoutq.worker.pump import Pump
from timeoutq.worker.runs import MaxRuntime, Run
from timeoutq.worker.sharing import Sharing, Strict, Weighted
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import Limits, Stopping
from timeoutq.worker.tending import Tending
from timeoutq.worker.threads import ThreadCrew
from timeoutq.worker.vitals import Vitals
from timeoutq.worker.voice import Voice

Q = TypeVar("Q", bound=AsyncDriver)
S = TypeVar("S")

LOOK_EVERY = 1.0
"""Seconds between two looks whether a queue is there, if nobody knows before of which parts it will consist."""
MOST_QUEUES, MOST_WEIGHT = 100, 1000
CURE = "Does a handler cancel asyncio tasks that it did not start? Have it cancel only those that it has started"
"""What to look for when something has cancelled a part of a worker, and what mends it."""
UNBOUNDED = 1_000_000_000
"""More releases than any task will have."""


def load_handler(path: str) -> Handler:
    """Import `module:function`; raises `HandlerNotFound`, which says what is missing."""
    return cast("Handler", handlers.load(path))


class Worker:
    """Works on one queue, or on several, until it is stopped, or drained with `burst=True`."""

    machine: Machine = THIS
    """Where the worker's threads come from."""
    sheet: Sheet | None = None
    """Where the worker writes its signs of health, if anybody wants to know."""
    _vitals: Vitals | None = None

    def __init__(
        self,
        queue: AsyncDriver | Sequence[AsyncDriver] | Mapping[Q, int] | handlers.Hires | handlers.Staff,
        handler: Callable[[Lease], Returned] | Callable[[Lease, S], Returned] | str | None = None,
        *,
        concurrency: int = 100,
        prefetch: int | None = None,
        retry: Retries = None,
        max_runtime: float | None = None,
        burst: bool = False,
        drain_deadline: float = 25.0,
        signals: bool = True,
        ledger: Ledger | Sequence[Ledger] | None = None,
        lifespan: Lifespan[S] | str | None = None,
        max_tasks: int | None = None,
        max_releases: int | None = 100,
    ) -> None:
        """Prepare a worker; `await run()` starts it.

        Several queues share the handlers of the worker. `[high, low]` is a strict order: from a queue, the worker
        claims only while the queues before it have no tasks that are ready. `{high: 3, low: 1}` are weights: while both
        queues have tasks, three of four tasks come from the first; while one has none, the other has all handlers.
        Queues may be on different servers, and the trouble of one does not stop the others. `timeout`, and `retry` and
        `max_runtime` unless they are given here, are those of each queue.

        `handler` is a callable or `module:function`. `concurrency` is how many handlers run at once; `prefetch` is how
        many claimed tasks wait here for a handler (None: as many as handlers finish in two exchanges). `retry`
        replaces the queue's policy, `max_runtime` (seconds) its limit. `burst` ends the worker when all its queues are
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

        An `App` stands for its queues and a handler.
        Raises `InvalidInput` for a handler that cannot be called like this, `HandlerNotFound` if there is no handler.
        """
        given, self.handler, lifespan, self._closes = _hired(queue, handler, lifespan)
        self.queues, self._sharing = _queues_of(given)
        self.queue = self.queues[0]
        """The first of its queues."""
        self._span = Span(checked(lifespan), self._break)
        self._shape = handlers.shape_of(self.handler, has_state=lifespan is not None)
        self.concurrency = arguments.count(concurrency, "concurrency", high=100_000)
        self._ahead = None if prefetch is None else arguments.count(prefetch, "prefetch", low=0, high=100_000)
        self.burst = burst
        self.drain_deadline = arguments.seconds(drain_deadline, "drain_deadline")
        most_runs = None if max_tasks is None else arguments.count(max_tasks, "max_tasks")
        self._stopping = Stopping(self.drain_deadline, Limits(burst, most_runs))
        self._signals, self._woken, self._ran = signals, asyncio.Event(), False
        self._voice = Voice(self.queue, [other.name for other in self.queues[1:]])
        self._max_runtime = max_runtime
        self._retry = None if retry is None else RetryPolicy.of(retry)
        self._most_releases = arguments.count(max_releases or UNBOUNDED, "max_releases")
        pages = ledger if isinstance(ledger, Sequence) else [ledger] * len(self.queues)
        self._desks = [self._new_desk(lane, page) for lane, page in enumerate(pages[: len(self.queues)])]
        self._desk = self._desks[0]
        self._pump: Pump | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._heartbeat: Heartbeat | Beats | None = None
        self.ending: Callable[[str], None] | None = None
        """Called with `tally.end` when all work has ended, before the lifespan is left; it may be called twice."""

    def _new_desk(self, lane: int, ledger: Ledger | None) -> Desk:
        queue = self.queues[lane]
        voice = self._voice if len(self.queues) == 1 else Voice(queue, is_one_of_several=True)
        failures = Failures(queue.retry if self._retry is None else self._retry, voice, self._shape.judge)
        read = bytes_as_they_stand if isinstance(self.handler, handlers.Serves) else arguments.unpack
        rules = Rules(self._shape.name, MaxRuntime(queue, self._max_runtime), failures, self._most_releases, read)
        return Desk(queue, rules, voice, ledger, self._end_cancelled, self._woken, lane)

    # ---- what it says of itself

    @property
    def tally(self) -> Tally:
        """What the worker has done so far, on all its queues together."""
        return self._desk.tally if len(self._desks) == 1 else added(desk.tally for desk in self._desks)

    @property
    def tallies(self) -> dict[AsyncDriver, Tally]:
        """What the worker has done so far on each of its queues."""
        return {desk.queue: desk.tally for desk in self._desks}

    @property
    def held(self) -> dict[int, Lease]:
        """The leases that the worker holds, by their keys: on a plain queue, their fences."""
        if len(self._desks) == 1:
            return self._desk.held
        return {key: lease for desk in self._desks for key, lease in desk.held.items()}

    def queue_of(self, lease: Lease) -> AsyncDriver:
        """Give the queue that a lease is of; raises `InvalidInput` if the worker does not hold the lease any more."""
        for desk in self._desks:
            if desk.held.get(lease.key) is lease:
                return desk.queue
        raise InvalidInput(f"worker {self.queue.worker} does not hold this lease on task {lease.task!a:.80}")

    def give_back_unread(self) -> Flow[None]:
        """Give a flow that releases what claims from the first queue have taken whose replies nobody has read.

        It is for a process whose event loop has ended before the worker has: a blocking queue of the same name runs it.
        """
        for source in self._pump.lanes[0].sources if self._pump is not None else ():
            yield from source.give_back_unread()

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running. Any thread may ask."""
        runs = (desk.running.get(lease.key) for desk in self._desks)
        return any(run is not None and run.cancelled and run.lease is lease for run in runs)

    @property
    def running(self) -> list[Lease]:
        """The leases whose handlers are running."""
        return [lease for leases in self.running_on.values() for lease in leases]

    @property
    def running_on(self) -> dict[AsyncDriver, list[Lease]]:
        """The leases whose handlers are running, for each queue."""
        return {desk.queue: [run.lease for run in list(desk.running.values())] for desk in self._desks}

    @property
    def limited(self) -> list[Run]:
        """The handlers at work that have a limit of their own."""
        return [run for desk in self._desks for run in list(desk.running.values()) if run.limit is not None]

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, as the heartbeat last heard; 1 before it has heard anything.

        Of several queues, the one counts that has the most.
        """
        return 1 if self._heartbeat is None else self._heartbeat.peers

    def _about(self, desk: Desk) -> dict[str, object]:
        host, pid, _ = desk.queue.worker.split(":")
        about: dict[str, object] = {
            "host": host,
            "pid": int(pid),
            "concurrency": self.concurrency,
            "held": len(desk.held),
            "acked": desk.tally.acked,
            "failed": desk.tally.failed,
            "started": desk.started,
        }
        lane = None if self._pump is None else self._pump.lanes[desk.lane]
        if lane is not None and lane.tends is not None:
            about["tends"] = lane.tends()
        if lane is not None and (trouble := lane.trouble):
            about["trouble"] = trouble
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
        voice = self._voice
        loop, generation = asyncio.get_running_loop(), forks.generation
        shortest = min(queue.timeout for queue in self.queues)
        runtimes = [desk.rules.runtime.ms / 1000 for desk in self._desks if desk.rules.runtime.ms]
        running = [desk.running for desk in self._desks]
        watch = LoopWatch(voice.queue, running, voice.fields(), shortest, min(runtimes, default=0.0), self.machine)
        if self.sheet is not None:
            self._vitals = Vitals(self.sheet, shortest, self._stopping)
            self._vitals.start()
        try:
            with watch, forks.watched(loop), signals.heeded(self.stop) if self._signals else nullcontext():
                if not self._stopping.level:
                    async with self._span:
                        if self._span.entered:
                            await self._serve(generation)
                        self._note_end()
        finally:
            if self._vitals is not None:
                self._vitals.stop()
            for queue in self.queues if self._closes else ():
                await queue.close()
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
        self._woken.set()
        if self._pump is not None and self._pumping is not None and not self.held and self._pump.is_away:
            # no lease is held and the server does not answer: there is nothing to wait for
            self._pumping.cancel()

    def _note_end(self) -> None:
        if self._stopping.level and not self._desk.tally.end:
            self._desk.tally.end = "stopped"
        end = self._desk.tally.end
        for desk in self._desks:
            desk.tally.end = end
        if self.ending is not None and end:
            self.ending(end)

    def _break(self, reason: BaseException | str) -> None:
        """End the worker because a part of it is gone: a worker that claims on would do harm."""
        if isinstance(reason, str):
            reason = WorkerBroken(f"worker {self.queue.worker}: {reason}")
        if self._pump is not None:
            self._pump.fail(reason)

    async def _serve(self, generation: int) -> None:
        desks, voice, alone = self._desks, self._voice, len(self._desks) == 1
        if alone and not await self._knows_parts(self._desk):
            return
        crew = self._crew(generation)
        shared = Shared(self.concurrency, crew, self._sharing, self._stopping, common=Common(lanes=len(desks)))
        now = time.monotonic()
        shared.lanes += [
            Lane(desk, Pace(self.concurrency, self._ahead, desk.queue.timeout, now), shared) for desk in desks
        ]
        self._pump = pump = Pump(shared, voice)
        if self._vitals is not None:
            self._vitals.watch(pump)
        self._heartbeat = heartbeat = self._new_heartbeat(pump)
        try:
            for lane in pump.lanes:
                if lane.desk.queue.division.is_known:
                    self._open(lane)
            heartbeat.start()
            for lane in pump.lanes:
                self._begin(lane, heartbeat)
            voice.say(
                logging.INFO, "worker %s starts on queue%s %s: concurrency %d, timeout %s",
                voice.worker, "" if alone else "s", voice.queue, self.concurrency,
                ", ".join(f"{timeout:g} s" for timeout in dict.fromkeys(queue.timeout for queue in self.queues)),
            )  # fmt: skip
            await self._await_pump(pump, generation)
        finally:
            await Closing(pump, heartbeat, self._stopping, self.machine).close()
            for close in [close for desk in desks for close in desk.at_end]:
                close()

    def _new_heartbeat(self, pump: Pump) -> Heartbeat | Beats:
        lanes = pump.lanes
        if len(lanes) == 1:
            client, lose = self.machine.client(self.queue), lanes[0].interrupts.lose_soon
            about = partial(self._about, self._desk)
            beat = Heartbeat(client, self._desk.held, lose, about, self._desk.spans, self.machine)
            beat.over_at = self._desk.over_at
            lanes[0].beating = beat
            return beat
        beats: list[Beat] = []
        for lane in lanes:
            desk = lane.desk
            one = Beat(
                sibling(desk.queue), desk.held, lane.interrupts.lose_soon, partial(self._about, desk), desk.spans,
                lane.is_open,
            )  # fmt: skip
            one.over_at = desk.over_at
            lane.beating = one
            beats.append(one)
        return Beats(beats, self.machine)

    def _begin(self, lane: Lane, heartbeat: Heartbeat | Beats) -> None:
        """Start what a queue needs besides the pump."""
        if lane.parts:
            self._clean(lane)
            self._tell(lane)
        else:
            lane.beside.start("opening", self._open_later(lane))
        lane.beside.start("watch of leases", lane.interrupts.watch_held(heartbeat, self._break))
        if lane.desk.rules.runtime.ms:
            lane.beside.start("watch of max_runtime", lane.interrupts.watch_runtime())

    async def _open_later(self, lane: Lane) -> None:
        """Begin to claim from a queue as soon as it is known of which parts it consists."""
        try:
            if await self._knows_parts(lane.desk, lane):
                self._open(lane)
                self._clean(lane)
                self._tell(lane)
                self._woken.set()
        except TimeoutqError as error:
            self._break(error)

    def _open(self, lane: Lane) -> None:
        desk, queue, alone = lane.desk, lane.desk.queue, len(self._desks) == 1
        desk.divide()
        lane.open([
            (Source(desk, lane.pace, is_burst=self.burst, part=part), Cleaner(queue, talk=talk))
            for part, talk in enumerate(queue.division.talks)
        ])  # fmt: skip
        for cleaner in lane.cleaners:
            cleaner.heed_cancels = partial(lane.interrupts.heed_cancels, cleaner.talk)
            cleaner.met = not alone  # a server that refuses one queue must not end the work on the others

    def _clean(self, lane: Lane) -> None:
        clean = lane.cleaners[0].run
        if len(lane.cleaners) > 1:
            tending = Tending(lane, self.concurrency)
            lane.tends, clean = (lambda: tending.tended), tending.run
        lane.beside.start("cleaner", clean())

    def _tell(self, lane: Lane) -> None:
        if lane.desk.functions:
            lane.beside.start("telling of functions", tell_functions(lane.desk))

    async def _knows_parts(self, desk: Desk, lane: Lane | None = None) -> bool:
        """Wait until it is known of which parts a queue consists; false if the worker was stopped before that.

        `lane` is that of the queue, if the worker has several queues: then the others do not wait.
        """
        queue, stopping, failures = desk.queue, self._stopping, 0
        while not queue.division.is_known and not stopping.level:
            try:
                await queue.run(queue.division.look())
                failures = 0
            except TimeoutqError as error:
                if lane is None and flows.is_final(error):
                    raise
                failures += 1
                if lane is not None:
                    lane.tell_unknown(error, failures)
            if not queue.division.is_known:
                if lane is not None:
                    lane.is_missing = not failures
                elif self.burst and not failures:
                    self._desk.tally.end = "drained"
                    return False
                await self._pause(retry.pause(failures) if failures else LOOK_EVERY, lane)
        return queue.division.is_known

    async def _pause(self, seconds: float, lane: Lane | None) -> None:
        if lane is not None:
            self._woken.set()  # a burst looks whether anything is left
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _crew(self, generation: int) -> Crew:
        span = self._span
        around = Surroundings(copy_context() if span.context is None else span.context)
        call = cast("Callable[[Lease], Any]", self.handler)
        if self._shape.takes_state:
            call = partial(_with_state, cast("Callable[[Lease, Any], Any]", self.handler), span.state)
        serve = self.handler.serve if isinstance(self.handler, handlers.Serves) else None
        works = [
            Work(
                call if serve is None else serve(self._place(desk)), around, desk.rules.runtime, desk, desk.voice,
                generation, self._sharing.rank(desk.lane),
            )
            for desk in self._desks
        ]  # fmt: skip
        return (
            TaskCrew(works, self.concurrency)
            if self._shape.is_async
            else ThreadCrew(works, self.concurrency, self._break, self.machine)
        )

    def _place(self, desk: Desk) -> Place:
        def interrupts() -> Interrupts:
            assert self._pump is not None
            return self._pump.lanes[desk.lane].interrupts

        return Place(desk, self._span.state, self.queues, interrupts, self._wear_out)

    def _wear_out(self) -> None:
        """Drain, so that the supervisor puts another process in the place of this one."""
        if not self._stopping.level:
            self._desk.tally.end = "worn_out"
            self.stop()

    async def _await_pump(self, pump: Pump, generation: int) -> None:
        def check() -> None:
            if forks.generation != generation:
                forks.leave("a task", None)
            for lane in pump.lanes:
                lane.check()

        flow = pump.run(check, self.stop)
        self._pumping = pumping = asyncio.create_task(flow, name=f"pump-{self.queue.name}")
        try:
            await pumping
        except asyncio.CancelledError as error:
            if not self._stopping.level:
                me, ran = asyncio.current_task(), self._told_of_begun()
                if me is None or not me.cancelling():
                    self._end_cancelled("pump")
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)
                if pump.common.broken is not None and (me is None or not me.cancelling()):
                    raise pump.common.broken from None
                error.add_note(ran)
                raise

    def _end_cancelled(self, part: str) -> None:
        """End the worker because somebody else has cancelled an asyncio task of it; not if it ends already."""
        if not self._stopping.level:
            self._break(f"its {part} was cancelled, and not by the worker. {CURE}; {self._told_of_begun()}")

    def _told_of_begun(self) -> str:
        names = [f"{lease.task!a:.80}" for desk in self._desks for lease in desk.begun]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return f"these tasks were running, or were the last to end: {', '.join(names[:5]) or 'none'}{more}"


def bytes_as_they_stand(payload: bytes | None) -> bytes | None:
    """Give a payload as it stands in Redis."""
    return payload


def _with_state(handler: Callable[[Lease, Any], Any], state: Any, lease: Lease) -> Any:
    return handler(lease, state)


def _hired(
    queue: object, handler: object, lifespan: Lifespan[Any] | str | None
) -> tuple[object, Handler, Lifespan[Any] | str | None, bool]:
    """Give the queues, the handler and the lifespan of a worker, and whether the worker closes the queues."""
    staff = queue.at_work() if isinstance(queue, handlers.Hires) else queue
    if isinstance(staff, handlers.Staff):
        if handler is not None:
            raise InvalidInput("an App brings its handler: leave the handler out, or pass queues and Calls(app)")
        queue, handler = staff.queues, staff.handler
    elif handler is None:
        raise InvalidInput("a worker takes a queue and a handler: write Worker(queue, handler)")
    found = load_handler(handler) if isinstance(handler, str) else cast("Handler", handler)
    if lifespan is None and isinstance(found, handlers.Serves):
        lifespan = found.lifespan
    return queue, found, lifespan, isinstance(staff, handlers.Staff)


def _queues_of(given: object) -> tuple[tuple[AsyncDriver, ...], Sharing]:
    """Give the queues of a worker, and how they share its handlers."""
    weights: list[object] | None = None
    if isinstance(given, Mapping):
        table = cast("Mapping[object, object]", given)
        queues, weights = list(table), list(table.values())
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        queues = list(cast("Sequence[object]", given))
    else:
        queues = [given]
    if not 1 <= len(queues) <= MOST_QUEUES:
        raise InvalidInput(f"a worker takes 1 to {MOST_QUEUES} queues, not {len(queues)}")
    known: dict[tuple[str, str], AsyncDriver] = {}
    for queue in queues:
        if not isinstance(queue, AsyncDriver):
            raise InvalidInput(_not_async(queue))
        if known.setdefault((queue.name, queue.url), queue) is not queue or queues.count(queue) > 1:
            raise InvalidInput(f"queue {queue.name} is given twice: a worker takes each of its queues once")
    found = tuple(known.values())
    for queue in found:
        queue.worker = found[0].worker  # each queue knows the worker by the same name
    if weights is None or len(found) == 1:
        return found, Strict()
    return found, Weighted([arguments.count(weight, "weight", high=MOST_WEIGHT) for weight in weights])


def _not_async(queue: object) -> str:
    if isinstance(queue, Driver):
        kind = f"Async{type(queue).__name__}"
        return f"a worker takes an {kind}: write Worker({kind}({queue.name!r}, …), …)"
    if isinstance(queue, str):
        return f"a worker takes a queue, not its name: write Worker(AsyncQueue({queue!r:.80}, …), …)"
    return f"a worker takes an AsyncQueue, not {type(queue).__name__}: write Worker(AsyncQueue(…), …)"
