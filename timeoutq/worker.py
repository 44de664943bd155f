"""Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in threads.

`timeoutq worker` and user code start it; `run` starts and ends each of its parts. The pump starts all exchanges with
the queue, at most two side by side, and sends the ends that have gathered: so batches form by themselves under load,
and the server works on one exchange while handlers work on the tasks of the other. Consumers live as long as the worker
and run handlers. The other parts are a heartbeat thread, a cleaner and, while nothing is to do, a wait on the bell.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from tenacity import RetryCallState, wait_random_exponential

from timeoutq import arguments, flows, forks, handlers, signals, telling, tracebacks, unending
from timeoutq.cleaner import Cleaner
from timeoutq.client import AsyncQueue, Queue, twin
from timeoutq.durations import SHORTEST, Spans
from timeoutq.errors import InvalidInput, LeaseLost, TimeoutqError, WorkerBroken
from timeoutq.found import Found, listed, listed_here, listed_raised
from timeoutq.handlers import Handler, Lifespan, Returned, Surroundings
from timeoutq.heartbeat import Heartbeat
from timeoutq.lifespan import Span, is_manager
from timeoutq.long_acks import LongAcks
from timeoutq.loopwatch import LoopWatch
from timeoutq.model import Ack, Answer, Lease, Outcome, Release
from timeoutq.operations import BATCH, Call, Claimed, fitting, flushes
from timeoutq.patience import SLOWEST
from timeoutq.refusals import Refusals
from timeoutq.retry import GiveUp, Retries, Retry, RetryPolicy, decision
from timeoutq.troubles import LINK_ERRORS

log = logging.getLogger(__name__)
_say = partial(telling.say, log)

S = TypeVar("S")

BELL_RETRY = 0.5
THREAD_LIMIT = 1000
LOOKS = 3
"""A lease on which nothing works is given back when it was seen like this that many times."""
SIDE_BY_SIDE = 2
"""How many exchanges are under way at once, at most; each has a connection of its own."""
UNBOUNDED = 1_000_000_000
"""More releases than any task will have."""
ENOUGH = 64
"""This many ends, or tasks to claim, are always worth an exchange beside another one."""
CLEANUP = 5.0
"""Seconds that a cancelled handler may clean up; then it is left behind, and another takes its place."""
SHORT_EVERY = 60.0
"""Seconds at least between two lines that say that no more threads can be started."""
SOLO_WAIT = 5.0
"""A suspect waits this many seconds at most, or a third of its lease, for the other handlers to end."""
SOLO_LONGEST = 60.0
"""A suspect that has waited in vain again and again comes back after this many seconds at most."""


class Ledger(Protocol):
    """Where a supervisor reads, after this process died, which leases it held and which handlers were running."""

    def hold(self, leases: Iterable[Lease]) -> None: ...
    def start(self, lease: Lease) -> None: ...
    def finish(self, lease: Lease) -> None: ...
    def end(self, leases: Iterable[Lease]) -> None: ...


@dataclass(slots=True)
class Tally:
    """What a worker did."""

    claimed: int = 0
    acked: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    end: str = ""
    """Why the worker ended: "stopped", "drained" (a burst), or "max_tasks"; empty while it works and after an error."""


def load_handler(path: str) -> Handler:
    """Import `module:function`; raises `HandlerNotFound`, which says what is missing."""
    return cast("Handler", handlers.load(path))


@dataclass(slots=True, eq=False)
class _Run:
    """A handler at work."""

    lease: Lease
    task: asyncio.Task[None] | None = None
    end: str = ""
    """Why the handler is being stopped: lost, max_runtime, shutdown; empty while it is not being stopped."""
    settled: bool = False
    """Whether the lease is being ended already, although the handler has not ended."""
    left: bool = False
    """Whether the handler was left behind, because it does not end."""
    thread: threading.Thread | None = None
    began: float = 0.0
    spent: float = 0.0
    """When the handler was called, by the monotonic clock, and how long its call in a thread took, seconds."""

    @property
    def lives(self) -> bool:
        """Whether a task or a thread is still there to run the handler to its end."""
        if self.task is not None:
            return not self.task.done()
        return self.thread is None or self.thread.is_alive()


@dataclass(slots=True)
class _Errand:
    """A call that ends leases; it is kept whole, and sent again until the server has answered."""

    verb: str
    leases: list[Lease]
    call: Call[Outcome]


@dataclass(slots=True)
class _Gathered:
    """The leases that have ended since the last exchange."""

    acks: list[Lease] = field(default_factory=list[Lease])
    errands: list[_Errand] = field(default_factory=list[_Errand])
    fails: list[tuple[Lease, int, bytes, bytes]] = field(default_factory=list[tuple[Lease, int, bytes, bytes]])
    """Leases with their delay, ms or -1, their error and its traceback."""
    blocks_ms: dict[int, int] = field(default_factory=dict[int, int])
    """For how long the host of a failed task is blocked, by the position in `fails`."""
    releases: list[Lease] = field(default_factory=list[Lease])
    """Leases that the worker itself gives back."""
    refused: list[Lease] = field(default_factory=list[Lease])
    """Leases that handlers released: these releases are counted."""

    def __len__(self) -> int:
        return len(self.acks) + len(self.errands) + len(self.fails) + len(self.releases) + len(self.refused)

    @property
    def leases(self) -> Iterator[Lease]:
        """All leases that are to be ended."""
        yield from self.acks
        yield from self.releases
        yield from self.refused
        for errand in self.errands:
            yield from errand.leases
        for lease, *_ in self.fails:
            yield lease


class Worker:
    """Works on one queue until it is stopped, or drained with `burst=True`."""

    def __init__(
        self,
        queue: AsyncQueue,
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
        if not isinstance(queue, AsyncQueue):
            raise InvalidInput(_not_async(queue))
        self.queue = queue
        self.handler: Handler = load_handler(handler) if isinstance(handler, str) else handler
        self._span = Span(_checked(lifespan), self._lose_span)
        self._max_tasks = None if max_tasks is None else arguments.count(max_tasks, "max_tasks")
        self._most_releases = arguments.count(max_releases or UNBOUNDED, "max_releases")
        self._spans = Spans()
        self._refusals = Refusals()
        self._runs = 0
        """How many handlers have run to their end, for `max_tasks`."""
        self._shape = handlers.shape_of(self.handler, has_state=lifespan is not None)
        self._call = cast("Callable[[Lease], Any]", self.handler)
        self.concurrency = arguments.count(concurrency, "concurrency", high=100_000)
        self._prefetch = None if prefetch is None else arguments.count(prefetch, "prefetch", low=0, high=100_000)
        self.policy = queue.retry if retry is None else RetryPolicy.of(retry)
        runtime = queue.max_runtime if max_runtime is None else max_runtime
        self._runtime_ms = 0 if runtime is None else arguments.timeout_ms(runtime, "max_runtime")
        self._margin_ms = min(300, self._runtime_ms // 10)
        self._timeout_ms = round(queue.timeout * 1000)
        self.burst = burst
        self.drain_deadline = arguments.seconds(drain_deadline, "drain_deadline")
        self._signals = signals
        self._ledger = ledger
        self.tally = Tally()
        self._wake = asyncio.Event()
        self.held: dict[int, Lease] = {}
        self._inbox: deque[Lease] = deque()
        self._running: dict[int, _Run] = {}
        self._gathered = _Gathered()
        self._ran = False
        self._solo: Lease | None = None
        self._solo_until = 0.0
        self._in_vain: dict[str, int] = {}
        """How often each suspect has waited here and did not have its turn."""
        self._alone = 0
        self._closing = False
        self._met = False
        self._idle = False
        self._stop_level = 0
        self._started = time.time()
        self._rate, self._trip, self._sway = 0.0, 0.005, 0.0
        self._counted, self._counted_at = 0, time.monotonic()
        self._failures = 0
        self._pumping: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._claiming = 0
        """How many tasks may come from the claims that are under way."""
        self._leaving = False
        """Whether the worker ends early: what a claim brings now is given back."""
        self._plenty = False
        """Whether the last claim got as many tasks as it asked for."""
        self._strokes = 0
        self._waiting_out = False
        self._crew: _Crew | None = None
        self._consumers: set[asyncio.Task[None]] = set()
        self._background: dict[str, asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[None]] = set()
        """Consumers that were left behind, because their handlers do not end."""
        self._sent: dict[object, list[_Errand]] = {}
        """The errands of the exchanges that are under way."""
        self._long_acks = LongAcks(queue, self._long_ack_over, self._wake.set, self._fields)
        self._tellers: set[asyncio.Task[None]] = set()
        """They ask why leases were lost, and log it."""
        self._drain_until = 0.0
        """When the drain is over, by the monotonic clock; 0 while there is none."""
        self._own_end = False
        """Whether the worker drains by itself, because it has run its tasks; nobody has asked it to stop."""
        self._asking = asyncio.Lock()
        self.ending: Callable[[str], None] | None = None
        """Called with `tally.end` when all work has ended, before the lifespan is left; it may be called twice."""

    # ---- the whole

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
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._heartbeat = Heartbeat(twin(self.queue), self.held, self._lost_in_thread, self._about, self._spans)
        self._bell_task: asyncio.Task[None] | None = None
        self._generation = forks.generation
        watch = LoopWatch(
            self.queue.name, self._running, self._fields(), self.queue.timeout, max_runtime=self._runtime_ms / 1000
        )
        with watch, forks.watched(self._loop), signals.heeded(self.stop) if self._signals else nullcontext():
            if not self._stop_level:
                async with self._span:
                    if self._span.entered:
                        await self._serve(self._span)
                    self._note_end()
        self._note_end()
        _say(logging.INFO, "worker %s ends: %s", self.queue.worker, self.tally, fields=self._fields())
        return self.tally

    def _note_end(self) -> None:
        if self._stop_level and not self.tally.end:
            self.tally.end = "stopped"
        if self.ending is not None and self.tally.end:
            self.ending(self.tally.end)

    async def _serve(self, span: Span) -> None:
        self._around = Surroundings(copy_context() if span.context is None else span.context)
        if self._shape.takes_state:
            self._call = partial(_with_state, cast("Callable[[Lease, Any], Any]", self.handler), span.state)
        self._cleaner = cleaner = Cleaner(self.queue)
        try:
            self._heartbeat.start()
            self._keep("cleaner", cleaner.run)
            self._keep("held", self._watch_held)
            if self._runtime_ms:
                self._keep("runtime", self._watch_runtime)
            if self._shape.is_async:
                for _ in range(self.concurrency):
                    self._start_consumer()
            else:
                self._crew = _Crew(self, min(self.concurrency, THREAD_LIMIT))
            _say(
                logging.INFO, "worker %s starts on queue %s: concurrency %d, timeout %g s",
                self.queue.worker, self.queue.name, self.concurrency, self.queue.timeout, fields=self._fields(),
            )  # fmt: skip
            self._pumping = asyncio.create_task(self._pump(), name=f"pump-{self.queue.name}")
            try:
                await self._pumping
            except asyncio.CancelledError:
                if not self._stop_level:
                    self._pumping.cancel()
                    await asyncio.gather(self._pumping, return_exceptions=True)
                    me = asyncio.current_task()
                    if me is None or not me.cancelling():
                        raise WorkerBroken(self._cancelled_pump()) from None
                    self._tell_cancelled()
                    raise
        finally:
            await self._shut_down(list(self._background.values()))

    def _keep(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a part of the worker, and start it again when a handler has cancelled it."""
        task = asyncio.create_task(run(), name=f"{name}-{self.queue.name}")
        self._background[name] = task

        def start_again(_: asyncio.Task[None]) -> None:
            if task.cancelled() and not self._closing:
                _say(
                    logging.WARNING, "worker %s: its %s was cancelled by somebody else, and is started again; does a "
                    "handler cancel tasks that it did not start?", self.queue.worker, name, fields=self._fields(),
                )  # fmt: skip
                self._keep(name, run)
            self._wake.set()

        task.add_done_callback(start_again)

    def _tell_cancelled(self) -> None:
        parts = [name for name, task in self._background.items() if task.cancelling()]
        if parts:  # a part that was started again has been told of
            _say(
                logging.WARNING, "worker %s was cancelled together with its %s: does a handler cancel tasks that it "
                "did not start?", self.queue.worker, ", ".join(parts), fields=self._fields(),
            )  # fmt: skip

    def _cancelled_pump(self) -> str:
        names = ", ".join(f"{run.lease.task!a:.80}" for run in list(self._running.values())[:5]) or "no tasks"
        return (
            f"the pump of worker {self.queue.worker} was cancelled by somebody else: does a handler cancel "
            f"asyncio tasks that it did not start? Running were {names}"
        )

    @property
    def _away(self) -> bool:
        return self._failures > 0 or (not self._met and time.time() - self._started > 1)

    @property
    def running(self) -> list[Lease]:
        """The leases whose handlers are running."""
        return [run.lease for run in list(self._running.values())]

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, as the heartbeat last heard."""
        return self._heartbeat.peers

    def stop(self, *, now: bool = False) -> None:
        """Claim no more and finish what runs; with `now`, or when called again, give everything back at once."""
        self._stop_level = 2 if now or (self._stop_level and not self._own_end) else 1
        if self._own_end:
            self._own_end, self._drain_until = False, 0.0  # the deadline counts from this order on
        at_once = self._stop_level == 2
        what = "stops at once, giving its tasks back" if at_once else "drains"
        _say(logging.INFO, "worker %s %s", self.queue.worker, what, fields=self._fields())
        if not self._span.entered or at_once:
            self._span.give_up()
        self._wake.set()
        if not self.held and self._away and self._pumping is not None:
            # no lease is held and the server does not answer: there is nothing to wait for
            self._pumping.cancel()

    def _about(self) -> dict[str, object]:
        host, pid, _ = self.queue.worker.split(":")
        return {
            "host": host,
            "pid": int(pid),
            "concurrency": self.concurrency,
            "held": len(self.held),
            "acked": self.tally.acked,
            "failed": self.tally.failed,
            "started": self._started,
        }

    def _fields(self, lease: Lease | None = None, error: object = None) -> dict[str, object]:
        """Give what a line of the log tells in fields of its own, see `logs.JsonFormatter`."""
        fields: dict[str, object] = {"queue": self.queue.name, "worker": self.queue.worker}
        if lease is not None:
            fields |= {"task": lease.task, "attempt": lease.attempt}
        if error is not None:
            fields["error"] = error if isinstance(error, str) else str(error)
        return fields

    # ---- the pump: all exchanges with the queue

    async def _pump(self) -> None:
        try:
            await self._turn()
        except BaseException:
            await self._await_claims()
            raise
        finally:
            # tasks that the exchanges still bring are given back at the end
            if self._exchanges:
                await self._end_exchanges()
        if self._broken is not None:
            raise self._broken

    async def _await_claims(self) -> None:
        """Wait for what the claims under way bring, at most for the deadline of a call; then cancel all exchanges."""
        self._leaving = True
        self._give_back_unstarted()
        until = time.monotonic() + self.queue.talk.deadline
        try:
            # who stops the worker while the server does not answer is not kept waiting
            while self._claiming and self._exchanges and not (self._stop_level and self._away):
                left = until - time.monotonic()
                if left <= 0:
                    break
                await asyncio.wait(self._exchanges, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._exchanges:
                task.cancel()

    async def _end_exchanges(self) -> None:
        if self._drain_until:
            # heavy ends over a slow link take longer than a drain may
            seconds = max(0.0, self._drain_until - time.monotonic()) if self._stop_level < 2 else 0.0
            _, slow = await asyncio.wait(self._exchanges, timeout=seconds + self.queue.talk.deadline)
            for task in slow:
                task.cancel()
        if self._exchanges:
            await asyncio.wait(self._exchanges)

    @property
    def _unsent(self) -> bool:
        """Whether something that handlers have given is still to be sent, and the server takes it."""
        return bool(self._long_acks) or (self._failures == 0 and bool(self._gathered or self._exchanges))

    def _is_cut_off(self) -> bool:
        """Say whether the drain must end now, whatever still runs or is not sent yet."""
        if self._stop_level == 2:
            return True
        if time.monotonic() < self._drain_until:
            return False
        # nobody waits for a worker that ends by itself: its acks have the time that they need, as long as they get on
        return not (self._own_end and self._unsent and self._long_acks.trouble is None)

    async def _turn(self) -> None:
        while True:
            if forks.generation != self._generation:
                forks.leave("a task", None)
            cleaner = self._background["cleaner"]
            if cleaner.done() and not cleaner.cancelled():
                cleaner.result()  # raises the error, which waiting cannot mend
            if self._broken is not None:
                raise self._broken
            self._wake.clear()
            if self._max_tasks is not None and self._runs >= self._max_tasks and not self._stop_level:
                _say(
                    logging.INFO, "worker %s has run %d tasks, the most that it may", self.queue.worker, self._runs,
                    fields=self._fields(),
                )  # fmt: skip
                self.tally.end = "max_tasks"
                self.stop()
                self._own_end = True
            if self._stop_level:
                self._drain_until = self._drain_until or time.monotonic() + self.drain_deadline
                self._give_back_unstarted()
                if self._is_cut_off() or not (self._running or self._unsent):
                    return
            self._long_acks.go_on()
            self._start_solo()
            if self._begin():
                await asyncio.sleep(0)  # lets the exchange take the ends that have gathered, and send them
                continue
            if (
                self.burst and self._idle and not self._exchanges and not self.held and not self._gathered
                and not self._running and await self._is_drained()
            ):  # fmt: skip
                self.tally.end = "drained"
                return
            await self._rest()

    def _begin(self) -> bool:
        """Start an exchange, if there is something to send and nothing against it; say whether it was started."""
        under_way = len(self._exchanges)
        if under_way >= SIDE_BY_SIDE or self._waiting_out or (under_way and self._failures):
            return False
        want, ended = self._wanted(), len(self._gathered)
        if under_way:
            enough = min(ENOUGH, max(1, self.concurrency // 4))
            if ended < enough and want < enough:
                return False
        elif not ended and not want:
            return False
        claim = self._claim_call(want) if want else None
        self._claiming += want
        task = self._loop.create_task(self._exchange(claim), name=f"exchange-{self.queue.name}")
        self._exchanges.add(task)
        task.add_done_callback(self._over)
        return True

    def _over(self, task: asyncio.Task[None]) -> None:
        self._exchanges.discard(task)
        if not task.cancelled():
            self._broken = self._broken or task.exception()
        self._wake.set()

    def _break(self, words: str) -> None:
        """End the worker with WorkerBroken, because a part of it is gone: a worker that claims on would do harm."""
        self._broken = self._broken or WorkerBroken(f"worker {self.queue.worker}: {words}")
        self._wake.set()

    def _lose_span(self, reason: BaseException) -> None:
        self._broken = self._broken or reason
        self._wake.set()

    async def _rest(self) -> None:
        if self._idle and self._bell_task is None and not self._stop_level:
            self._bell_task = asyncio.create_task(self._await_bell(), name=f"bell-{self.queue.name}")
        now = time.monotonic()
        drain_until = self._drain_until if self._drain_until > now else 0.0
        until = [at for at in (drain_until, self._solo_until if self._solo is not None else 0.0) if at]
        timeout = max(0.0, min(until) - now) if until else None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    def _wanted(self) -> int:
        if self._stop_level or self._idle or self._solo is not None or self._alone in self.held:
            return 0
        self._measure()
        # handlers that are quicker than their long acks can be sent must not fill the memory
        slots = self.concurrency + self._ahead() - max(0, len(self._long_acks) - self.concurrency)
        unstarted = len(self._inbox) if self._crew is None else self._crew.unstarted
        want = slots - len(self._running) - unstarted - self._claiming
        if self._max_tasks is not None:
            begun = len(self._running) + unstarted if self._crew is None else self._crew.taken
            want = min(want, self._max_tasks - self._runs - begun - self._claiming)
        # a claim for few slots would be an exchange for little: wait until more slots are free
        if want < max(1, slots // 8) and unstarted + self._claiming > 0:
            return 0
        # while there are plenty of tasks, claim for half of the slots: these tasks run during the next claim
        return max(0, min(want, max(ENOUGH, (slots + 1) // 2) if self._plenty else BATCH, BATCH))

    def _claim_call(self, n: int) -> Call[Claimed]:
        return self.queue.operations.claim(
            self.queue.token(), n, self._timeout_ms, self._runtime_ms, self._heartbeat.peers
        )

    def _ahead(self) -> int:
        if self._prefetch is not None:
            return self._prefetch
        # what is done during two exchanges, slow ones as TCP expects them (RFC 6298: the mean and four deviations, here
        # two), and no more than is done in a third of a lease
        trips = self._rate * (2 * (self._trip + 2 * self._sway) + 0.002)
        return int(min(trips, self._rate * self.queue.timeout / 3, 2 * BATCH))

    def _measure(self) -> None:
        now = time.monotonic()
        span = now - self._counted_at
        if span >= 0.05:
            done = self.tally.acked + self.tally.failed
            rate = (done - self._counted) / span
            self._rate += (rate - self._rate) * (min(1.0, 4 * span) if self._rate else 1.0)
            self._counted, self._counted_at = done, now

    def _errands(self) -> list[_Errand]:
        gathered, self._gathered = self._gathered, _Gathered()
        ops, errands = self.queue.operations, gathered.errands
        for call, part in zip(ops.ack(gathered.acks), _parts(gathered.acks), strict=True):
            errands.append(_Errand("ack", part, call))
        leases = [lease for lease, *_ in gathered.fails]
        calls = ops.fail(
            leases,
            [retry_ms for _, retry_ms, _, _ in gathered.fails],
            [text for _, _, text, _ in gathered.fails],
            [trace for *_, trace in gathered.fails],
            blocks_ms=gathered.blocks_ms,
        )
        for call in calls:
            n = cast("int", call.args[0])  # as many as fit into one call
            errands.append(_Errand("fail", leases[:n], call))
            del leases[:n]
        for call, part in zip(ops.release(gathered.releases), _parts(gathered.releases), strict=True):
            errands.append(_Errand("release", part, call))
        refused = gathered.refused
        for call, part in zip(ops.release(refused, most=self._most_releases), _parts(refused), strict=True):
            errands.append(_Errand("release", part, call))
        # heavy calls go one flush at a time, so that claims and other ends need not wait for all of them
        light = len(next(flushes([errand.call for errand in errands])))
        self._gathered.errands = errands[light:]
        return errands[:light]

    async def _exchange(self, claim: Call[Claimed] | None) -> None:
        me, errands = object(), self._errands()
        self._sent[me] = errands
        try:
            await self._send(claim, errands)
        finally:
            del self._sent[me]

    async def _send(self, claim: Call[Claimed] | None, errands: list[_Errand]) -> None:
        calls: list[Call[Any]] = [errand.call for errand in errands]
        if claim is not None:
            calls.append(claim)
        n = 0 if claim is None else cast("int", claim.args[0])
        began, strokes = time.monotonic(), self._strokes
        try:
            results = await self.queue.run(flows.settle(self.queue.talk, calls))
        except TimeoutqError as error:
            results = [error] * len(calls)
        except BaseException:
            self._gathered.errands[:0] = errands
            self._claiming -= n
            raise
        off = time.monotonic() - began - self._trip
        self._trip += off / 8
        self._sway += (abs(off) - self._sway) / 4
        trouble: TimeoutqError | None = None
        for errand, result in zip(errands, results, strict=False):
            if isinstance(result, TimeoutqError):
                trouble = result
                self._gathered.errands.append(errand)
            else:
                await self._settled(errand, result)
        if claim is not None:
            found = results[-1]
            try:
                if isinstance(found, Claimed) and found.rest is not None:
                    found = await self.queue.run(flows.whole(self.queue.talk, found))
            except TimeoutqError as error:
                found = error
            finally:
                self._claiming -= n
            if isinstance(found, TimeoutqError):
                trouble = found
            else:
                self._receive(found, n, began, strokes)
        if trouble is not None:
            if not self._waiting_out:  # one waits for both
                self._waiting_out = True
                try:
                    await self._wait_out(trouble)
                finally:
                    self._waiting_out = False
        else:
            self._met = self._cleaner.met = True
            if self._failures:
                _say(logging.INFO, "worker %s: the server answers again", self.queue.worker, fields=self._fields())
            self._failures = 0

    async def _wait_out(self, trouble: TimeoutqError) -> None:
        if not self._met and flows.is_final(trouble):
            raise trouble
        self._failures += 1
        if self._failures == 1:
            fields = self._fields(error=trouble)
            _say(logging.WARNING, "worker %s waits for the server: %s", self.queue.worker, trouble, fields=fields)
        state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]  # only its number is read
        state.attempt_number = self._failures
        pause = wait_random_exponential(multiplier=0.1, max=3)(state)
        if self._stop_level == 2 or self._leaving:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopped()

    async def _stopped(self) -> None:
        while not self._stop_level:
            self._wake.clear()
            await self._wake.wait()

    async def _settled(self, errand: _Errand, outcome: Outcome) -> None:
        leases = errand.leases
        for lease in leases:
            self.held.pop(lease.fence, None)
        if self._ledger is not None:
            self._ledger.end(leases)
        good = outcome.ok
        if self._refusals.rows and errand.verb != "release":
            self._refusals.over(leases)
        if errand.verb == "ack":
            self.tally.acked += good
        elif errand.verb == "fail":
            self.tally.failed += good
        else:
            self.tally.released += good
        if good < len(leases):
            for lease, answer in zip(leases, outcome, strict=True):
                if answer is Answer.LOST and errand.verb != "release":
                    await self._tell_lost(lease, errand.verb)
                elif answer is Answer.FAILED:
                    self._given_up(lease)

    def _given_up(self, lease: Lease) -> None:
        self.tally.failed += 1
        error = f"released {self._most_releases} times by its handler"
        _say(
            logging.WARNING, "queue %s: task %a is given up: %s", self.queue.name, lease.task, error,
            fields=self._fields(lease, error),
        )  # fmt: skip

    async def _tell_lost(self, lease: Lease, verb: str) -> None:
        self.tally.lost += 1
        try:
            # many leases may be lost at once: ask one question at a time, or each would open and keep a connection
            async with self._asking:
                loss: object = await self.queue.run(flows.lost(self.queue.talk, lease, self._ends_ms(lease)))
        except TimeoutqError as error:
            loss = f"lease on {lease.task!a} is lost; why cannot be asked: {error}"
        fields = self._fields(lease, loss)
        what = "queue %s: the %s of a task came too late: %s"
        _say(logging.WARNING, what, self.queue.name, verb, loss, fields=fields)

    def _receive(self, found: Claimed, n: int, asked: float, strokes: int) -> None:
        self.queue.talk.clock.seen(found.now_ms, asked)
        self._cleaner.peers = self._heartbeat.peers
        leases = found.leases
        self._plenty = len(leases) >= n
        if not self._plenty and strokes == self._strokes:
            # there were no more tasks, or no more for us: tasks that are left ring the bell for the longest waiter
            self._idle = True
        if not leases:
            return
        self.tally.claimed += len(leases)
        for lease in leases:
            self.held[lease.fence] = lease
        if self._ledger is not None:
            self._ledger.hold(leases)
        if self._stop_level or self._leaving or self._solo is not None:
            # the claim was under way before the stop, or before the suspect came
            self._gathered.releases.extend(leases)
            return
        if leases[0].crashes >= 2:
            # a suspect may kill this process: it runs alone, and no other lease is held that could go down with it
            self._solo = leases[0]
            self._solo_until = time.monotonic() + min(SOLO_WAIT, self.queue.timeout / 3)
            self._idle = False
            self._give_back_unstarted()
            return
        self._hand_out(leases)

    def _hand_out(self, leases: list[Lease]) -> None:
        if self._crew is not None:
            self._crew.take(leases)
            return
        self._inbox.extend(leases)
        asleep = len(leases)
        while asleep and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # if the waiter is done, its consumer has ended, and another was started
                waiter.set_result(None)
                asleep -= 1

    def _start_solo(self) -> None:
        if self._solo is not None and time.monotonic() >= self._solo_until:
            self._postpone(self._solo)
        elif (
            self._solo is not None
            and not self._running
            and not self._inbox
            and not self._claiming
            and not self.held.keys() - {self._solo.fence}
        ):
            lease, self._solo = self._solo, None
            self._alone = lease.fence
            self._in_vain.pop(lease.task, None)
            self._hand_out([lease])

    def _postpone(self, lease: Lease) -> None:
        """Give a suspect back, because handlers that do not end keep it from its turn; others may take it meanwhile."""
        self._solo = None
        if len(self._in_vain) >= BATCH:
            self._in_vain.clear()
        times = self._in_vain[lease.task] = self._in_vain.get(lease.task, 0) + 1
        delay = min(SOLO_LONGEST, 2.0 ** (times - 1))
        _say(
            logging.INFO, "worker %s: task %a must run alone, but %d handlers do not end: it is given back for %g s",
            self.queue.worker, lease.task, len(self._running), delay, fields=self._fields(lease),
        )  # fmt: skip
        call = self.queue.operations.release([lease], round(delay * 1000))[0]
        self._gathered.errands.append(_Errand("release", [lease], call))

    def _give_back_unstarted(self) -> None:
        unstarted = list(self._inbox)
        self._inbox.clear()
        if self._crew is not None:
            unstarted += self._crew.give_back()
        if self._stop_level and self._solo is not None:
            unstarted.append(self._solo)
            self._solo = None
        self._gathered.releases.extend(unstarted)

    # ---- waiting

    async def _await_bell(self) -> None:
        seconds = BELL_RETRY if self.burst else flows.BELL_WAIT
        try:
            await self.queue.link.wait_bell(self.queue.operations.key("bell"), seconds)
        except LINK_ERRORS:
            await asyncio.sleep(BELL_RETRY)
        finally:
            self._bell_task = None
        self._strokes += 1
        self._idle = False
        self._wake.set()

    async def _is_drained(self) -> bool:
        try:
            return await self.queue.drained()
        except TimeoutqError as error:
            await self._wait_out(error)
            return False

    # ---- running handlers

    def _start_consumer(self) -> None:
        task = self._loop.create_task(self._consume(), name="consumer", context=self._around.fresh())
        self._consumers.add(task)
        task.add_done_callback(self._replace_consumer)

    def _replace_consumer(self, task: asyncio.Task[None]) -> None:
        self._consumers.discard(task)
        if task in self._left:  # another one was started long ago
            self._left.discard(task)
            return
        if not task.cancelled() and task.exception() is not None:
            _say(
                logging.ERROR, "worker %s: a consumer ended", self.queue.worker,
                exc_info=task.exception(), fields=self._fields(),
            )  # fmt: skip
        if not self._closing:
            self._start_consumer()

    async def _consume(self) -> None:
        """Run handlers, one after the other. Ends when a handler has left traces: in its context, or a cancellation."""
        inbox, running, around, wake, ledger = self._inbox, self._running, self._around, self._wake, self._ledger
        call, bare = self._call, around.bare
        me = asyncio.current_task()
        assert me is not None
        spans, generation = self._spans, self._generation
        tell, fields = telling.running.set, self._fields()
        began = since = time.monotonic()
        while not self._closing:
            if not inbox:
                waiter = self._loop.create_future()
                self._waiters.append(waiter)
                await waiter
                began = since = time.monotonic()
                continue
            lease = inbox.popleft()
            run = _Run(lease, me)
            run.began = began
            running[lease.fence] = run
            result: Any = None
            problem: BaseException | None = None
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                result = await call(lease)
                if result is not None:
                    result = await listed(await handlers.resolve(result))
            except BaseException as error:  # whatever a handler raises is its task's failure
                problem = error
            if problem is not None:
                problem = await listed_raised(problem)
            if forks.generation != generation:
                forks.leave(lease.task, problem)
            # one look at the clock serves as the end of this run and the beginning of the next
            ended = time.monotonic()
            if ended - began < SHORTEST:
                spans.quick += 1
            elif not run.left:
                spans.add(ended - began)
                if self._runtime_ms and (over := self._overrun(run, problem)) is not None:
                    result, problem = None, over
            began = ended
            if result is None and problem is None and not run.end:  # the usual case: as _leave, without the call
                running.pop(lease.fence, None)
                self._runs += 1
                self._gathered.acks.append(lease)
                if not wake.is_set():
                    wake.set()
            else:
                ends = run.left or (problem is not None and not issubclass(type(problem), Exception))
                self._leave(run, result, problem)
                result = problem = None  # what their end runs is the task's doing, too
                if ends:
                    if ledger is not None:
                        ledger.finish(lease)
                    return
            if ledger is not None:
                ledger.finish(lease)
            if (len(copy_context()) > 1 if bare else around.changed()) or me.cancelling():
                return  # another consumer begins, without the traces that the handler left in this one
            if ended - since > 0.005:
                # handlers that never wait would keep all others from the loop
                await asyncio.sleep(0)
                began = since = time.monotonic()

    def _leave(self, run: _Run, result: Any, problem: BaseException | None) -> None:
        """End the lease by what its handler returned or raised; whatever it was, this does not raise."""
        if run.left:
            return
        lease = run.lease
        self._running.pop(lease.fence, None)
        self._runs += 1
        try:
            if run.settled:
                pass
            elif problem is None and result is None:
                self._gathered.acks.append(lease)
            elif problem is not None and run.end:
                self._ended(run)
            elif isinstance(problem, asyncio.CancelledError) and not problem.args and _was_cancelled(run.task):
                self._fail(lease, _cancelled_by_others(problem))
            else:
                self._finish(lease, result if problem is None else problem, raised=problem is not None)
        except BaseException as error:  # the result cannot be used: that is a failure of the task
            self._fail(lease, error)
        if not self._wake.is_set():
            self._wake.set()

    def _finish(self, lease: Lease, came: Any, *, raised: bool) -> None:
        """End the lease as the handler says: the same for what it returned and what it raised."""
        if raised:
            came = handlers.released(came)
        if isinstance(came, Ack):
            self._finish_found(lease, came)
        elif isinstance(came, Release):
            self._finish_release(lease, came)
        elif raised or isinstance(came, Retry | GiveUp):
            self._fail(lease, came)
        else:
            self._fail(lease, handlers.wrong_result(self._shape.name, came))

    def _finish_release(self, lease: Lease, result: Release) -> None:
        delay_ms = arguments.delay_ms(result.delay, "delay")
        block_ms = arguments.delay_ms(result.block_host, "block_host")
        if block_ms:
            self._tell_refusal(lease, block_ms)
        if delay_ms or block_ms:
            call = self.queue.operations.release([lease], delay_ms, block_ms, self._most_releases)[0]
            self._gathered.errands.append(_Errand("release", [lease], call))
        else:
            self._gathered.refused.append(lease)

    def _tell_refusal(self, lease: Lease, block_ms: int) -> None:
        row = self._refusals.add(lease.task)
        if row is not None:
            _say(
                logging.WARNING, "queue %s: handlers have put tasks back %d times in a row to block host %a, the last "
                "time %a, for %g s; releases that block a host do not count against max_releases: its visits go on",
                self.queue.name, row[1], row[0], lease.task, block_ms / 1000,
                fields={**self._fields(lease), "host": row[0], "times": row[1]},
            )  # fmt: skip

    def _finish_found(self, lease: Lease, result: Ack) -> None:
        put: object = result.put
        found = put if isinstance(put, Found) else Found(*arguments.tasks((result.put,)))
        ids, payloads = found.ids, found.payloads
        again_ms, payload = arguments.again(result.again_in, result.payload, lease.task)
        if not ids and again_ms < 0:
            self._gathered.acks.append(lease)
        elif fitting(ids, payloads) == len(ids):
            call = self.queue.operations.ack_put(lease, ids, payloads, again_ms, payload)
            self._gathered.errands.append(_Errand("ack", [lease], call))
        elif not self._long_acks.add(lease, found, again_ms, payload):  # the worker ends
            self._gathered.releases.append(lease)
            self._tell_unsent([lease], None)

    def _long_ack_over(self, lease: Lease, end: Answer | Exception) -> None:
        if isinstance(end, Exception) and not isinstance(end, LeaseLost):
            self._fail(lease, end)
        else:
            if isinstance(end, LeaseLost):
                self.tally.lost += 1
                _say(
                    logging.WARNING, "queue %s: the ack of a task came too late: %s", self.queue.name, end,
                    fields=self._fields(lease, end),
                )  # fmt: skip
            else:
                self.tally.acked += 1
            if self._refusals.rows:
                self._refusals.over([lease])
            self.held.pop(lease.fence, None)
            if self._ledger is not None:
                self._ledger.end([lease])
        self._wake.set()

    def _fail(self, lease: Lease, error: BaseException) -> None:
        """End the lease as a failed attempt; whatever the error and the retry policy do, this does not raise."""
        retry_ms, text = self._retry_ms(lease, error), arguments.error_text(error)
        trace = tracebacks.trace(error)
        block_ms = _block_ms(error)
        if block_ms:
            self._gathered.blocks_ms[len(self._gathered.fails)] = block_ms
        self._gathered.fails.append((lease, retry_ms, text, trace))
        given_up, said = retry_ms < 0, text.decode("utf-8", "replace")
        _say(
            logging.WARNING if given_up else logging.INFO, "queue %s: task %a failed on attempt %d, %s: %a",
            self.queue.name, lease.task, lease.attempt,
            "given up" if given_up else f"again in {retry_ms / 1000:g} s", said,
            fields=self._fields(lease, said),
            traceback=tracebacks.read_traceback(trace, said) if given_up or log.isEnabledFor(logging.DEBUG) else None,
        )  # fmt: skip

    def _retry_ms(self, lease: Lease, error: BaseException) -> int:
        try:
            wait = self.policy.decide(lease.attempt, error)
        except BaseException as problem:  # the user's policy may raise anything
            _say(
                logging.ERROR, "queue %s: the retry policy failed; the usual one decides", self.queue.name,
                exc_info=problem, fields=self._fields(lease),
            )  # fmt: skip
            try:
                wait = RetryPolicy.of(None).decide(lease.attempt, error)
            except BaseException:  # to look at this error raises, too
                wait = RetryPolicy.of(None).decide(lease.attempt, "")
        return -1 if wait is None else arguments.delay_ms(wait, "retry")

    # ---- leases that end otherwise

    async def _watch_held(self) -> None:
        """Give back leases that are held, but that nothing works on and nothing will end: a bug in this module.

        End the worker if its heartbeat has ended: all its leases would run out, again and again.
        """
        looks: dict[int, int] = {}
        while True:
            await asyncio.sleep(min(5.0, max(0.1, self.queue.timeout / 3)))
            if not self._heartbeat.lives:
                self._break(self._heartbeat.told_of_end())
                return
            looks = {fence: looks.get(fence, 0) + 1 for fence in self._unattended()}
            for fence in [fence for fence, times in looks.items() if times >= LOOKS]:
                lease = self.held[fence]
                _say(
                    logging.WARNING, "queue %s: task %a is held, but no handler works on it: it is given back",
                    self.queue.name, lease.task, fields=self._fields(lease),
                )  # fmt: skip
                self._running.pop(fence, None)
                if self._crew is not None:
                    self._crew.taken -= 1
                self._gathered.releases.append(lease)
                self._wake.set()

    def _unattended(self) -> set[int]:
        attended = {fence for fence, run in list(self._running.items()) if run.lives}
        attended.update(lease.fence for lease in self._inbox)
        attended.update(lease.fence for lease in self._gathered.leases)
        for errands in self._sent.values():
            attended.update(lease.fence for errand in errands for lease in errand.leases)
        if self._solo is not None:
            attended.add(self._solo.fence)
        left = self.held.keys() - attended - self._long_acks.fences
        if self._crew is not None and left:
            left -= self._crew.queued
        return left

    async def _watch_runtime(self) -> None:
        # a little before the scripts would take the task back, so that the task fails with the reason
        margin_ms = self._margin_ms
        while True:
            await asyncio.sleep(min(0.1, self._runtime_ms / 20_000))
            now_ms = self.queue.talk.clock.now_ms
            for run in list(self._running.values()):
                if now_ms >= self._ends_ms(run.lease) - margin_ms:
                    self._cancel(run, "max_runtime")

    def _ends_ms(self, lease: Lease) -> float:
        """Give when max_runtime ends a lease, ms of the server; 0 if nothing limits it."""
        first_ms = min(self._timeout_ms, self._runtime_ms)
        return lease.deadline * 1000 - first_ms + self._runtime_ms if self._runtime_ms else 0.0

    def _overrun(self, run: _Run, problem: BaseException | None) -> TimeoutError | None:
        """Give the error of a handler that ended after max_runtime, when nothing could end it before: a failed attempt.

        The loop was blocked. The queue may have given the task to somebody else: what the handler says counts no more.
        """
        over_ms = self.queue.talk.clock.now_ms - self._ends_ms(run.lease)
        if over_ms < 0 or run.end or not (problem is None or isinstance(problem, Exception)):
            return None
        error = TimeoutError(
            f"max_runtime of {self._runtime_ms / 1000:g} s is over: the handler ended {over_ms / 1000:.1f} s later, "
            "because the event loop was blocked and could not cancel it"
        )
        error.__cause__ = problem
        return error

    def _lost_in_thread(self, refused: list[tuple[Lease, Answer]]) -> None:
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._lose, refused)

    def _lose(self, refused: list[tuple[Lease, Answer]]) -> None:
        for lease, answer in refused:
            run = self._running.get(lease.fence)
            if run is not None:
                self._cancel(run, "max_runtime" if answer is Answer.MAX_RUNTIME else "lost")
            elif self._take_out(lease):
                self.held.pop(lease.fence, None)
                if self._ledger is not None:
                    self._ledger.end([lease])
                self._tell_soon(lease)

    def _cancel(self, run: _Run, why: str) -> None:
        if run.end:
            return
        run.end = why
        if run.task is not None:
            run.task.cancel(why)
            if why == "max_runtime":
                # the lease runs out soon: before that, the task fails with the reason
                self._loop.call_later(self._margin_ms / 2000, self._fail_unended, run)
            if why != "shutdown":
                self._loop.call_later(CLEANUP, self._give_up, run)
        else:
            # a thread cannot be stopped: its result will not be acked, and another thread takes its place
            if why == "max_runtime":
                _say(
                    logging.WARNING, "queue %s: task %a is over its max_runtime; its thread still runs and may go on "
                    "beside the next attempt", self.queue.name, run.lease.task, fields=self._fields(run.lease),
                )  # fmt: skip
                self._spans.add(time.monotonic() - run.began)
            self._running.pop(run.lease.fence, None)
            self._runs += 1
            if self._crew is not None:
                self._crew.replace_one()
            self._ended(run)
            self._wake.set()

    def _fail_unended(self, run: _Run) -> None:
        if self._running.get(run.lease.fence) is run and not run.settled:
            run.settled = True
            over = f"max_runtime of {self._runtime_ms / 1000:g} s is over"
            self._fail(run.lease, TimeoutError(f"{over}, and the handler does not end though it was cancelled"))
            self._wake.set()

    def _give_up(self, run: _Run) -> None:
        """Leave a handler behind that does not end though it was cancelled; another one takes its place."""
        task = run.task
        if self._running.get(run.lease.fence) is not run or task is None or task.done() or self._closing:
            return
        _say(
            logging.WARNING,
            "queue %s: the handler of task %a does not end though it was cancelled %g s ago (%s): it is left behind",
            self.queue.name, run.lease.task, CLEANUP, run.end, fields=self._fields(run.lease),
        )  # fmt: skip
        self._running.pop(run.lease.fence)
        self._runs += 1
        self._spans.add(time.monotonic() - run.began)
        run.left = True
        if not run.settled:
            run.settled = True
            self._ended(run)
        unending.leave(task)
        if self._crew is not None:
            self._crew.replace_one()
        else:
            self._left.add(task)
            self._consumers.discard(task)
            self._start_consumer()
        self._wake.set()

    def _ended(self, run: _Run) -> None:
        lease = run.lease
        if run.end == "shutdown":
            self._gathered.releases.append(lease)
            return
        if run.end == "max_runtime":
            # the task had its time: this is a failure of the task, not of the process
            self._fail(lease, TimeoutError(f"max_runtime of {self._runtime_ms / 1000:g} s is over"))
            return
        self.held.pop(lease.fence, None)
        if self._ledger is not None:
            self._ledger.end([lease])
        self._tell_soon(lease)

    def _tell_soon(self, lease: Lease) -> None:
        task = self._loop.create_task(self._tell_lost(lease, "lease"))
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    def _take_out(self, lease: Lease) -> bool:
        """Take a lease, whose handler has not begun, out of those that are going to run; say whether it was there."""
        if self._solo is not None and self._solo.fence == lease.fence:
            self._solo = None
            self._wake.set()
            return True
        if self._crew is not None:
            return self._crew.take_out(lease)
        if lease not in self._inbox:
            return False
        self._inbox.remove(lease)
        return True

    # ---- the end

    async def _shut_down(self, background: list[asyncio.Task[None]]) -> None:
        if self._bell_task is not None:
            background.append(self._bell_task)
        cut_off = self._stop_level > 0 and self._is_cut_off()
        early = self._stop_level == 0
        self._tell_cut_off()
        self._stop_level = max(self._stop_level, 1)
        self._closing = True
        self._give_back_unstarted()
        for run in list(self._running.values()):
            self._cancel(run, "shutdown")
        if any(run.task is not None for run in self._running.values()):
            # handlers may clean up after themselves, but not for long
            until = time.monotonic() + 1.0
            while self._running and time.monotonic() < until:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await self._wake.wait()
        consumers = list(self._consumers)
        for consumer in consumers:
            consumer.cancel()
        for task in background:
            task.cancel()
        await asyncio.wait([*consumers, *background], timeout=2.0)
        if self._tellers:
            await asyncio.wait(self._tellers, timeout=self.queue.talk.deadline)
            for task in self._tellers:
                task.cancel()
        await self._end_long_acks(self.queue.talk.deadline if early else 0.0)
        if cut_off:
            self._give_back_heavy()
        self._gathered.releases.extend(
            run.lease
            for run in self._running.values()
            if run.end != "lost" and not run.settled and run.lease.fence in self.held
        )
        if self._crew is not None:
            self._crew.close()
        await self._send_last()
        # the event loop's own threads may all be taken by what handlers have started and left behind
        ending = ThreadPoolExecutor(1)
        await asyncio.get_running_loop().run_in_executor(ending, self._heartbeat.stop)
        ending.shutdown(wait=False)
        await self._leave_unending()

    async def _end_long_acks(self, seconds: float) -> None:
        """End the lane of long acks, after so many seconds; give the leases back whose ack is not confirmed."""
        if seconds and self._long_acks:
            await self._long_acks.wait(seconds)
        trouble = self._long_acks.trouble
        left = await self._long_acks.close()
        self._gathered.releases.extend(left)
        self._tell_unsent(left, trouble)

    def _give_back_heavy(self) -> None:
        """Give back the tasks whose acks need more time on a slow link than is left for the last exchange."""
        room = SLOWEST * self.queue.talk.deadline / 2
        left: list[Lease] = []
        keep: list[_Errand] = []
        for errand in sorted(self._gathered.errands, key=lambda errand: errand.call.weight):
            room -= errand.call.weight
            if errand.verb == "ack" and room < 0:
                left += errand.leases
            else:
                keep.append(errand)
        self._gathered.errands = keep
        self._gathered.releases.extend(left)
        self._tell_unsent(left, None)

    def _tell_unsent(self, leases: list[Lease], trouble: TimeoutqError | None) -> None:
        why = self._why_cut_off() + (f", and the last attempt failed: {trouble}" if trouble is not None else "")
        words = (
            f"is given back: its ack is not confirmed, because {why}. If the ack did not arrive, the handler runs "
            "again. Give the worker a longer drain deadline (drain_deadline=, --drain-deadline), or put less with one "
            "Ack(put=…)"
        )
        told = [(lease.task, words, {"attempt": lease.attempt, "error": why}) for lease in leases]
        telling.name_tasks(log, self.queue.name, told, self._fields())

    async def _send_last(self) -> None:
        """Send the last ends, and give back what is to be given back, for a little longer than one call may take."""
        seconds = self.queue.talk.deadline + 1
        why = "the server does not answer"
        try:
            async with asyncio.timeout(seconds):
                while self._gathered:
                    await self._exchange(None)
                    if self._failures:
                        break
        except TimeoutqError as error:
            why = str(error)
        except TimeoutError:
            why = f"they were not sent within {seconds:g} s"
        left = list(self._gathered.leases)
        if left:
            _say(
                logging.WARNING, "worker %s could not end %d leases: %s; each runs out, and its task runs again",
                self.queue.worker, len(left), why, fields=self._fields(error=why),
            )  # fmt: skip
        acks = [*self._gathered.acks]
        for errand in self._gathered.errands:
            if errand.verb == "ack":
                acks += errand.leases
        words = f"runs again when its lease has run out, though its handler is done: its ack is not sent, because {why}"
        told = [(lease.task, words, {"attempt": lease.attempt, "error": why}) for lease in acks]
        telling.name_tasks(log, self.queue.name, told, self._fields())

    async def _leave_unending(self) -> None:
        """Leave handlers behind that do not end though they were cancelled: asyncio would wait for them without end."""
        runs = {run.task: run.lease for run in self._running.values() if run.task is not None}
        left = {task for task in (*self._consumers, *runs) if not task.done()}
        if left:
            _, left = await asyncio.wait(left, timeout=CLEANUP)
        for task in left:
            unending.leave(task)
            if task in runs:
                _say(
                    logging.WARNING, "queue %s: the handler of task %a does not end though it was cancelled",
                    self.queue.name, runs[task].task, fields=self._fields(runs[task]),
                )  # fmt: skip

    def _why_cut_off(self) -> str:
        if self._stop_level == 2:
            return "the worker stops at once"
        return (
            f"the drain deadline of {self.drain_deadline:g} s is over" if self._drain_until else "the worker ends early"
        )

    def _tell_cut_off(self) -> None:
        why = self._why_cut_off()
        told: list[telling.Told] = []
        for run in list(self._running.values()):
            if not run.end:
                thread = "" if run.task is not None else "; its thread goes on until the process ends"
                words = f"is cut off: {why}{thread}"
                told.append((run.lease.task, words, {"attempt": run.lease.attempt, "error": why}))
        telling.name_tasks(log, self.queue.name, told, self._fields())


def _listed(run: _Run, result: Any, problem: BaseException | None) -> tuple[Any, BaseException | None]:
    """List what a handler found, in the thread that called it."""

    def given_up() -> str:
        return run.end

    try:
        if problem is None:
            return listed_here(result, given_up), None
        return None, listed_here(problem, given_up)
    except BaseException as error:  # whatever the iterable raises is the task's failure
        return None, error


def _block_ms(error: BaseException) -> int:
    with suppress(Exception):  # somebody may have tampered with this Retry
        decides = decision(error)
        if issubclass(type(decides), Retry):
            return arguments.delay_ms(cast("Retry", decides).block_host, "block_host")
    return 0


def _was_cancelled(task: asyncio.Task[None] | None) -> bool:
    return task is not None and task.cancelling() > 0


def _cancelled_by_others(error: asyncio.CancelledError) -> asyncio.CancelledError:
    """Give the error of a handler that something else than its worker has cancelled, with words that say so."""
    told = asyncio.CancelledError(
        "the handler was cancelled, and not by its worker: does a handler cancel asyncio tasks that it did not start?"
    )
    return told.with_traceback(error.__traceback__)


def _with_state(handler: Callable[[Lease, Any], Any], state: Any, lease: Lease) -> Any:
    return handler(lease, state)


def _not_async(queue: object) -> str:
    if isinstance(queue, Queue):
        return f"a worker takes an AsyncQueue: write Worker(AsyncQueue({queue.name!r}, …), …)"
    if isinstance(queue, str):
        return f"a worker takes a queue, not its name: write Worker(AsyncQueue({queue!r:.80}, …), …)"
    return f"a worker takes an AsyncQueue, not {type(queue).__name__}: write Worker(AsyncQueue(…), …)"


def _checked(lifespan: Lifespan[Any] | str | None) -> Lifespan[Any] | None:
    found: Any = handlers.load(lifespan, "lifespan") if isinstance(lifespan, str) else lifespan
    if is_manager(found):
        raise InvalidInput(
            "lifespan= takes the function that gives an async context manager, such as one that @asynccontextmanager "
            "decorates, not what it gave: write it without ()"
        )
    if inspect.isasyncgenfunction(found) or (found is not None and not callable(found)):
        name = handlers.name_of(found) if callable(found) else type(found).__name__
        raise InvalidInput(f"lifespan {name} gives no async context manager: decorate it with @asynccontextmanager")
    if found is not None:
        handlers.without_arguments(found)
    return cast("Lifespan[Any] | None", found)


def _parts(leases: list[Lease]) -> list[list[Lease]]:
    return [leases[at : at + BATCH] for at in range(0, len(leases), BATCH)]


class _Crew:
    """Threads that call `def` handlers; they are started as they are needed, and live as long as the worker.

    If a handler gives an awaitable, the event loop awaits it; meanwhile the handler's thread runs no other handler.
    """

    def __init__(self, worker: Worker, size: int) -> None:
        self._worker = worker
        self._size = size
        self._waiting: SimpleQueue[Lease | None] = SimpleQueue()
        self._done: deque[tuple[_Run, list[Any] | None]] = deque()
        """Handlers that have ended, with what they returned and raised; None if both are None."""
        self._told = False
        self.taken = 0
        """How many leases are with the crew, begun or not."""
        self._threads = 0
        self._told_short = -SHORT_EVERY
        self._hung = 0
        """How many threads still run handlers that were given up; these threads do not count."""

    def take(self, leases: list[Lease]) -> None:
        """Have the handlers of these leases run."""
        self.taken += len(leases)
        for lease in leases:
            self._waiting.put(lease)
        while self._threads - self._hung < min(self._size, self.taken):
            thread = threading.Thread(
                target=self._work, name=f"handler-{self._worker.queue.name}-{self._threads}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self._run_short(error)
                return
            self._threads += 1

    def _run_short(self, error: RuntimeError) -> None:
        """Go on with the threads that are there, and say so once a minute at most; without any, the worker ends."""
        worker, free = self._worker, self._threads - self._hung
        cure = "raise `ulimit -u` or the pids limit of the container, or lower the concurrency"
        if free <= 0:
            worker._break(f"no thread can be started to run handlers ({error}): {cure}")
        elif time.monotonic() >= self._told_short + SHORT_EVERY:
            self._told_short = time.monotonic()
            _say(
                logging.WARNING, "worker %s: a thread for handlers cannot be started (%s), and it goes on with %d of "
                "%d threads: %s", worker.queue.worker, error, free, self._size, cure,
                fields=worker._fields(error=error),
            )  # fmt: skip

    @property
    def unstarted(self) -> int:
        """How many leases wait for a thread."""
        return self._waiting.qsize()

    @property
    def queued(self) -> set[int]:
        """The fences of the leases that wait for a thread."""
        waiting = self.give_back()
        self.take(waiting)
        return {lease.fence for lease in waiting}

    def replace_one(self) -> None:
        """Make room for one more thread, because one hangs."""
        self._hung += 1
        self.taken -= 1
        self.take([])

    def give_back(self) -> list[Lease]:
        """Take the leases that no thread has started out of the queue."""
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
        """Take one lease out of the queue; say whether it was there."""
        waiting = self.give_back()
        self.take([one for one in waiting if one != lease])
        return lease in waiting

    def close(self) -> None:
        """End the threads that are free; threads at work are left alone, and end with the process."""
        for _ in range(self._threads):
            self._waiting.put(None)

    # ---- in the threads

    def _work(self) -> None:
        try:
            while self._worker._around.fresh().run(self._serve):
                pass
        except BaseException as error:  # not from a handler: somebody raised it in this thread from outside
            worker = self._worker
            _say(
                logging.ERROR, "worker %s: a thread ended", worker.queue.worker,
                exc_info=error, fields=worker._fields(),
            )  # fmt: skip
            with suppress(RuntimeError):  # the loop is closed already
                self._worker._loop.call_soon_threadsafe(self._make_up)

    def _make_up(self) -> None:
        """Start another thread in the place of one that has ended.

        If it had a lease, the lease counts as taken until `_watch_held` finds that nothing works on it.
        """
        self._threads -= 1
        self.take([])

    def _serve(self) -> bool:
        """Call handlers until one has changed the context (True), or there are no more (False)."""
        worker, me = self._worker, threading.current_thread()
        ledger, around, generation = worker._ledger, worker._around, worker._generation
        bare = around.bare
        tell, fields = telling.running.set, worker._fields()
        while True:
            lease = self._waiting.get()
            if lease is None:
                return False
            run = _Run(lease, thread=me, began=time.monotonic())
            worker._running[lease.fence] = run
            result: Any = None
            problem: BaseException | None = None
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                result = worker._call(lease)
                waits = result is not None and inspect.isawaitable(result)
            except BaseException as error:  # whatever a handler raises is its task's failure
                problem, waits = error, False
            if forks.generation != generation:
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

    def _hand_in(self, run: _Run, came: list[Any] | None) -> None:
        self._done.append((run, came))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed already
                self._worker._loop.call_soon_threadsafe(self._collect)

    def _await_in_loop(self, run: _Run, awaitable: Any) -> None:
        over = threading.Event()
        try:
            self._worker._loop.call_soon_threadsafe(self._start_awaiting, run, awaitable, copy_context(), over)
        except RuntimeError:  # the loop is closed already
            handlers.discard(awaitable)
            return
        over.wait()

    # ---- in the event loop

    def _start_awaiting(self, run: _Run, awaitable: Any, context: Context, over: threading.Event) -> None:
        worker = self._worker
        if run.end:
            handlers.discard(awaitable)
            over.set()
            self._come_back()
            return

        def leave(task: asyncio.Task[None]) -> None:
            if worker._running.get(run.lease.fence) is run:  # the run was cancelled before it began
                handlers.discard(awaitable)
                worker._leave(run, None, asyncio.CancelledError())
            if run.left:
                self._come_back()
            else:
                self.taken -= 1
            over.set()

        run.task = worker._loop.create_task(self._await(run, awaitable), name="handler", context=context)
        run.task.add_done_callback(leave)

    async def _await(self, run: _Run, awaitable: Any) -> None:
        result: Any = None
        problem: BaseException | None = None
        try:
            result = await listed(await handlers.resolve(awaitable))
        except BaseException as error:  # as above
            problem = error
        if problem is not None:
            problem = await listed_raised(problem)
        if forks.generation != self._worker._generation:
            forks.leave(run.lease.task, problem)
        if not run.left:
            self._worker._spans.add(time.monotonic() - run.began)
            if self._worker._runtime_ms and (over := self._worker._overrun(run, problem)) is not None:
                result, problem = None, over
        self._worker._leave(run, result, problem)
        result = problem = None
        if self._worker._ledger is not None:
            self._worker._ledger.finish(run.lease)

    def _come_back(self) -> None:
        # another thread may have taken its place
        self._hung -= 1
        if self._threads - self._hung > self._size:
            self._threads -= 1
            self._waiting.put(None)

    def _collect(self) -> None:
        self._told = False
        worker = self._worker
        while self._done:
            run, came = self._done.popleft()
            if run.end != "max_runtime":  # such a run was counted when its time was over
                worker._spans.add(run.spent)
            if run.end:
                self._come_back()  # the lease was lost, timed out or given back meanwhile
            else:
                self.taken -= 1
                if came is None:
                    worker._leave(run, None, None)
                else:
                    worker._leave(run, came[0], came[1])
            if came is not None:
                came.clear()
                if worker._ledger is not None:
                    worker._ledger.finish(run.lease)
