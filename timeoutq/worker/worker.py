"""The face of a worker: its settings, `run`, `stop`, and its counts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar, cast

from timeoutq.client import AsyncDriver, Driver
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.verbs.sending import Flow
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, WorkerBroken
from timeoutq.words.model import Lease
from timeoutq.words.retry import Retries, RetryPolicy
from timeoutq.worker import forks, handlers, signals
from timeoutq.worker.crews import Calling, Crew, TaskCrew
from timeoutq.worker.decisions import Life, Pace, Strict, Weighted
from timeoutq.worker.handlers import Handler, Lifespan, Returned, Surroundings
from timeoutq.worker.health import Phase, Sheet, Signs, Vitals
from timeoutq.worker.leases import Leases, Ledger, Rules, Tally, added
from timeoutq.worker.lifespan import Span, checked
from timeoutq.worker.loopwatch import LoopWatch
from timeoutq.worker.pump import Pump, close
from timeoutq.worker.queue_work import QueueWork
from timeoutq.worker.runs import Run
from timeoutq.worker.served import Place
from timeoutq.worker.threads import THIS, Machine, ThreadCrew
from timeoutq.worker.worker_log import WorkerLog, named

Q = TypeVar("Q", bound=AsyncDriver)
S = TypeVar("S")

MOST_QUEUES, MOST_WEIGHT = 100, 1000
CURE = "Does a handler cancel asyncio tasks that it did not start? Have it cancel only those that it has started"
"""The cure when something has cancelled a part of a worker."""
UNBOUNDED = 1_000_000_000  # more releases than any task will have


class Worker:
    """Works on one queue, or on several, until it is stopped, or drained with `burst=True`."""

    machine: Machine = THIS  # where the worker's threads come from
    sheet: Sheet | None = None  # where the worker writes its signs of health, if anybody wants to know
    leaving: Callable[[], None] | None = None  # called if a thread hangs: has another process take this one's place
    _ran = False
    _pump: Pump | None = None
    _pumping: asyncio.Task[None] | None = None
    _heartbeat: Heartbeat | None = None
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
        many claimed tasks wait here for a handler (None: as many as handlers end in two exchanges and 10 ms). `retry`
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
        self._shortest = min(queue.timeout for queue in self.queues)
        self.concurrency = arguments.count(concurrency, "concurrency", high=100_000)
        self._ahead = None if prefetch is None else arguments.count(prefetch, "prefetch", low=0, high=100_000)
        self.burst = burst
        self.drain_deadline = arguments.seconds(drain_deadline, "drain_deadline")
        self._life = Life(self.drain_deadline, burst=burst, max_tasks=max_tasks, queues=len(self.queues))
        self._signals, self._woken = signals, asyncio.Event()
        self._log = WorkerLog(self.queue, [other.name for other in self.queues[1:]])
        self._serves = self.handler if isinstance(self.handler, handlers.Serves) else None
        self._places: list[Place] = []
        self._rules = Rules(
            self._shape.name, self._serves.judge if self._serves else lambda lease, error: None,
            None if retry is None else RetryPolicy.of(retry), max_runtime,
            arguments.count(max_releases or UNBOUNDED, "max_releases"),
            (lambda payload: payload) if self._serves else arguments.unpack,
        )  # fmt: skip
        ledgers = ledger if isinstance(ledger, Sequence) else [ledger] * len(self.queues)
        self._leases = [self._new_leases(number, ledgers[number]) for number in range(len(self.queues))]
        self.ending: Callable[[str], None] | None = None
        """Called once with `tally.end`: when all work has ended, before the lifespan is left."""

    def _new_leases(self, number: int, ledger: Ledger | None) -> Leases:
        queue = self.queues[number]
        worker_log = self._log if len(self.queues) == 1 else WorkerLog(queue, is_one_of_several=True)
        return Leases(queue, number, self._rules, worker_log, ledger, self._end_cancelled, self._woken)

    # ---- how it stands

    @property
    def tally(self) -> Tally:
        """The counts of the worker so far, of all its queues together."""
        return self._leases[0].tally if len(self._leases) == 1 else added(each.tally for each in self._leases)

    @property
    def tallies(self) -> dict[AsyncDriver, Tally]:
        """The counts of the worker so far, for each of its queues."""
        return {each.queue: each.tally for each in self._leases}

    @property
    def held(self) -> dict[int, Lease]:
        """The leases that the worker holds, by their keys: on a plain queue, their fences."""
        if len(self._leases) == 1:
            return self._leases[0].held
        return {key: lease for each in self._leases for key, lease in each.held.items()}

    def queue_of(self, lease: Lease) -> AsyncDriver:
        """Give the queue that a lease is of; raises `InvalidInput` if the worker does not hold the lease any more."""
        for each in self._leases:
            if each.held.get(lease.key) is lease:
                return each.queue
        raise InvalidInput(f"worker {self.queue.worker} does not hold this lease on task {lease.task!a:.80}")

    def give_back_unread(self) -> Flow[None]:
        """Release the leases of claims whose replies nobody has read, after the event loop has ended: for a twin."""
        for shard in self._pump.works[0].shards if self._pump else ():
            yield from shard.claims.give_back_unread()

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running. Any thread may ask."""
        return any(leases.is_cancelled(lease) for leases in self._leases)

    @property
    def running(self) -> list[Lease]:
        """The leases whose handlers are running."""
        return [lease for leases in self.running_on.values() for lease in leases]

    @property
    def running_on(self) -> dict[AsyncDriver, list[Lease]]:
        """The leases whose handlers are running, for each queue."""
        return {each.queue: [run.lease for run in list(each.running.values())] for each in self._leases}

    def give_up_running(self) -> dict[AsyncDriver, list[Lease]]:
        """Give the leases whose handlers are running, for each queue; the caller ends them."""
        for each in self._leases:
            for run in list(each.running.values()):
                run.settled = True
        return self.running_on

    @property
    def limited(self) -> list[Run]:
        """The handlers at work that have a limit of their own."""
        return [run for each in self._leases for run in list(each.running.values()) if run.limit is not None]

    @property
    def peers(self) -> int:
        """How many workers are alive, on the queue that has the most; 1 before the heartbeat has heard anything."""
        return 1 if self._heartbeat is None else self._heartbeat.peers

    def _signs(self, now: float) -> Signs:
        if self._pump is not None:
            return self._pump.signs(now, self._shortest)
        return Signs(Phase.DRAINING if self._life.level else Phase.STARTING, self._shortest, looped=now, turned=now)

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
        if forks.importing:
            raise InvalidInput(
                f"importing {forks.importing} starts a worker, and a pool process imports it to find a function with "
                'executor="process": put what starts the worker under `if __name__ == "__main__":`'
            )
        self._ran = True
        loop, generation = asyncio.get_running_loop(), forks.generation
        watch = LoopWatch(self._leases, self._log, self.machine)
        if self.sheet is not None:
            self._vitals = Vitals(self.sheet, self._shortest, self._signs, self._woken.set)
        try:
            with (
                self._vitals or nullcontext(), watch, forks.watched(loop),
                signals.heeded(self.stop) if self._signals else nullcontext(),
            ):  # fmt: skip
                if not self._life.level:
                    async with self._span:
                        if self._span.entered:
                            await self._serve(generation)
                        self._note_end()
        finally:
            for queue in self.queues if self._closes else ():
                await queue.close()
        self._note_end()
        self._log.of_worker(logging.INFO, "ends: %s", self.tally)
        return self.tally

    def stop(self, *, now: bool = False) -> None:
        """Claim no more and finish what runs; with `now`, or when called again, give everything back at once."""
        at_once = self._life.order(now=now)
        self._log.of_worker(logging.INFO, "%s", "stops at once, giving its tasks back" if at_once else "drains")
        if not self._span.entered or at_once:
            self._span.give_up()
        self._woken.set()
        if self._pump is not None and self._pumping is not None and not self.held and self._pump.is_away:
            # no lease is held and the server does not answer: there is nothing to wait for
            self._pumping.cancel()

    def _note_end(self) -> None:
        first = self._leases[0].tally
        first.end = first.end or ("stopped" if self._life.level else "")
        for each in self._leases:
            each.tally.end = first.end
        if self.ending is not None and first.end:
            ending, self.ending = self.ending, None
            ending(first.end)

    def _break(self, reason: BaseException | str) -> None:
        """End the worker because a part of it is gone: a worker that claims on would do harm."""
        if isinstance(reason, str):
            reason = WorkerBroken(f"worker {self.queue.worker}: {reason}")
        if self._pump is not None:
            self._pump.fail(reason)

    async def _serve(self, generation: int) -> None:
        if self._serves is not None:
            self.concurrency = self._serves.most(self.concurrency)
        crew, now = self._crew(generation), time.monotonic()
        self._pump = pump = Pump(self.concurrency, crew, self._sharing, self._life, self._woken, self._log)
        for each, place in zip_longest(self._leases, self._places):
            pace = Pace(self.concurrency, self._ahead, each.queue.timeout, now)
            pump.works.append(QueueWork(each, pace, pump, place))
        if self._vitals is not None:
            self._vitals.write()  # the first task may block the event loop
        heart_is_over = asyncio.Event()
        self._heartbeat = heartbeat = self._new_heartbeat(pump, heart_is_over)
        try:
            for work in pump.works:
                work.open()
            heartbeat.start()
            self._log.of_worker(
                logging.INFO, "starts on queue%s %s: concurrency %d, timeout %s",
                "s" * (len(pump.works) > 1), self._log.queue, self.concurrency,
                ", ".join(f"{timeout:g} s" for timeout in dict.fromkeys(queue.timeout for queue in self.queues)),
            )  # fmt: skip
            await self._await_pump(pump, generation)
        finally:
            await close(pump, heartbeat, heart_is_over)
            for place in self._places:
                for end in place.closes:
                    end()

    def _new_heartbeat(self, pump: Pump, is_over: asyncio.Event) -> Heartbeat:
        loop, context = asyncio.get_running_loop(), copy_context()

        def end() -> None:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(noted, context=context)

        def noted() -> None:
            assert self._heartbeat is not None
            is_over.set()
            self._break(self._heartbeat.told_of_end())

        return Heartbeat([work.beat for work in pump.works], self.machine.thread, end)

    def _crew(self, generation: int) -> Crew:
        around, state = Surroundings(self._span.context), self._span.state
        plain = cast("Callable[..., Any]", self.handler)
        call: Callable[[Lease], Any] = (lambda lease: plain(lease, state)) if self._shape.takes_state else plain
        callings, shared = list[Calling](), dict[Any, Any]()
        for each in self._leases:
            if self._serves is not None:
                end_run = partial(self._end_run, each)
                self._places.append(Place(each, state, self.queues, end_run, self._leave, shared, self._life))
                call = self._serves.serve(self._places[-1])
            callings.append(Calling(call, around, each, generation, self._sharing.rank(each.number)))
        if self._shape.is_async:
            return TaskCrew(callings, self.concurrency, self._break)
        return ThreadCrew(callings, self.concurrency, self._break, self.machine)

    def _end_run(self, leases: Leases, run: Run) -> None:
        assert self._pump is not None
        self._pump.works[leases.number].interrupts.cancel(run, "max_runtime")

    def _leave(self) -> bool:
        """Have a supervisor put another process here now, and finish what runs; say whether there is a supervisor."""
        if self.leaving is not None and not self._life.level:
            self._leases[0].tally.end = "worn_out"
            self.stop()
            self._life.take_time()
            self.leaving()
        return self.leaving is not None

    async def _await_pump(self, pump: Pump, generation: int) -> None:
        def check() -> None:
            if forks.generation != generation:
                forks.leave("a task", None)
            for work in pump.works:
                work.check()

        flow = pump.run(check, self.stop)
        self._pumping = pumping = asyncio.create_task(flow, name=f"pump-{self.queue.name}")
        try:
            await pumping
        except asyncio.CancelledError as error:
            if not self._life.level:
                me, ran = cast("asyncio.Task[Any]", asyncio.current_task()), self._told_of_begun()
                if not me.cancelling():
                    self._end_cancelled("pump")
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)
                if self._life.broken is not None and not me.cancelling():
                    raise self._life.broken from None
                error.add_note(ran)
                raise

    def _end_cancelled(self, part: str) -> None:
        """End the worker because somebody else has cancelled an asyncio task of it; not if it ends already."""
        if not self._life.level:
            self._break(f"its {part} was cancelled, and not by the worker. {CURE}; {self._told_of_begun()}")

    def _told_of_begun(self) -> str:
        names = named([lease for each in self._leases for lease in each.begun])
        return f"these tasks were running, or were the last to end: {names or 'none'}"


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
    found = cast("Handler", handlers.load(handler) if isinstance(handler, str) else handler)
    if lifespan is None and isinstance(found, handlers.Serves):
        lifespan = found.lifespan
    return queue, found, lifespan, isinstance(staff, handlers.Staff)


def _queues_of(given: object) -> tuple[tuple[AsyncDriver, ...], Strict]:
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
        queue.name_as(found[0])  # each queue knows the worker by the same name
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
