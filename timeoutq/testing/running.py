"""Runs a handler on a fake queue until it is drained, advancing the clock whenever nothing else can happen.

The handler runs in a real `Worker`. The clock stands still while a handler is at work, a task is ready, or an answer is
on its way; but handlers with a max_runtime count as waiting when nothing has moved for a real second. Otherwise the
clock goes to the next moment at which something happens: a task is due, a lease runs out, a host has its turn. So
retries of an hour take no time, and a test sees things in the same order as on a server.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, overload

from timeoutq.testing.fake import START, FakeAsyncQueue, FakeAsyncShardedQueue, FakeQueue, FakeShardedQueue
from timeoutq.words.counts import Stats
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import BATCH_DUE, Answer, Lease, Payload, State
from timeoutq.words.retry import Retries
from timeoutq.worker.handlers import Handler
from timeoutq.worker.leases import Tally
from timeoutq.worker.runs import Run
from timeoutq.worker.worker import Worker

AnyFake = FakeQueue | FakeShardedQueue
AnyAsyncFake = FakeAsyncQueue | FakeAsyncShardedQueue

PATIENCE = 20.0  # real seconds after which a handler that does not end, or a queue in which nothing moves, ends the run

JUST_BEFORE = 0.001
"""Seconds before the end of max_runtime at which a handler is stopped: it is to fail before its lease runs out."""

QUIET = 1.0  # real seconds without a move after which handlers with a max_runtime are taken to do nothing but wait

NAMED = 5  # how many tasks an error names


class NotDrained(AssertionError):
    """The queue would never drain, or not within the limits: the message names the tasks."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run did."""

    tally: Tally  # what the worker counted
    states: Mapping[str, State]  # where each task of the queue is now
    runs: Mapping[str, int]  # how often the handler ran on each task
    errors: Mapping[str, str]  # the last error of each failed task
    seconds: float  # how far the clock went


class RunOptions(TypedDict, total=False):
    """What `run` takes besides the handler and the queue."""

    retry: Retries
    max_runtime: float | None
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    concurrency: int
    runs_each: int
    runs: int


@overload
def run(handler: Handler | str, queue: AnyFake, **options: Unpack[RunOptions]) -> Ran: ...
@overload
def run(handler: Handler | str, queue: AnyAsyncFake, **options: Unpack[RunOptions]) -> Awaitable[Ran]: ...
def run(handler: Handler | str, queue: AnyFake | AnyAsyncFake, **options: Unpack[RunOptions]) -> Ran | Awaitable[Ran]:
    """Run a handler until the queue is drained; with a `FakeAsyncQueue`, await the call.

    `retry`, `max_runtime`, `lifespan` and `concurrency` (10) are those of `Worker`; a setting that is not given is the
    queue's. Each task may run up to `runs_each` times (100), all tasks together up to `runs` times (10,000). Tasks that
    wait for a used-up budget stay where they are, as for `drained()`.

    If the queue has schedules, the ticks that are due are put first, and later those that become due while the clock
    goes; the run does not wait for further ticks: advance the clock, and run again.

    A handler's own sleeps take real time: replace them (with pytest's monkeypatch), or let it return `Release(delay=)`.
    With `max_runtime`, when nothing has moved for one real second while handlers run, the clock is advanced to what
    comes next, `max_runtime` at the latest: keep real work in a handler shorter than a second. The `max_runtime` that
    functions and calls have of their own counts likewise, if each handler at work has one.

    Raises `NotDrained`, which names the tasks, when a limit is reached, when the queue is paused, or when nothing moves
    for twenty seconds; `InvalidInput` for a `FakeQueue` in a coroutine, and for a `FakeAsyncQueue` where no event loop
    runs; and what the lifespan raises.
    """
    settings: dict[str, Any] = {"concurrency": 10, **{name: one for name, one in options.items() if one is not None}}
    watch = _Watch(settings.pop("runs_each", 100), settings.pop("runs", 10_000), queue)
    if isinstance(queue, AnyAsyncFake):
        if not _in_loop():
            raise InvalidInput(
                "run() of a FakeAsyncQueue must be awaited: write `await run(…)` in an async test, or use fake_queue() "
                "without await"
            )
        return _run(handler, queue, settings, watch)
    if not isinstance(queue, AnyFake):
        raise InvalidInput(f"run() takes a queue of fake_queue() or fake_async_queue(), not {type(queue).__name__}")
    if _in_loop():
        raise InvalidInput("a FakeQueue cannot be run inside of asyncio: use fake_async_queue(), and await run(…)")
    return asyncio.run(_run(handler, queue, settings, watch))


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def lease(
    task: str = "https://example.com/",
    *,
    payload: Payload = None,
    attempt: int = 1,
    crashes: int = 0,
    deadline: float = START + 30,
    fence: int = 1,
    token: str = "test#1",  # noqa: S107  # it names a claim, and is no secret
) -> Lease:
    """Make a lease to call a handler with, as if the task had been claimed; no queue knows of it."""
    return Lease(task, token, deadline, attempt, crashes, fence, payload)


class _Watch:
    """Takes the place of a worker's ledger, and so learns which handlers are at work and how often each task ran."""

    def __init__(self, each: int, most: int, queue: AnyFake | AnyAsyncFake) -> None:
        self.began: dict[int, float] = {}  # when the handler of each lease began, by the clock of the test
        self._queue = queue
        self.runs: Counter[str] = Counter()
        self.running: dict[int, Lease] = {}
        self.too_often: str | None = None
        self._each, self._most = each, most
        self._lock = threading.Lock()

    def ask(self, *_: Any, **__: Any) -> None:
        """Note nothing of claims and of leases that are held: only handlers at work count here."""

    answered = hold = end = ask

    def start(self, lease: Lease) -> None:
        with self._lock:
            self.running[lease.key], self.began[lease.key] = lease, self._queue.clock.now
            self.runs[lease.task] += 1
            if self.runs[lease.task] > self._each:
                self.too_often = (
                    f"task {lease.task!r:.200} ran {self._each} times and is not done; runs_each= allows no more"
                )
            elif self.runs.total() > self._most:
                most = ", ".join(f"{task!r:.80} {count} times" for task, count in self.runs.most_common(NAMED))
                self.too_often = (
                    f"handlers ran {self._most} times and there is more to do; runs= allows no more; {most}"
                )

    def wait(self, lease: Lease) -> None:
        self.finish(lease)
        self.runs[lease.task] -= 1  # it is started again

    def finish(self, lease: Lease) -> None:
        with self._lock:
            self.running.pop(lease.key, None)


async def _run(handler: Handler | str, given: AnyFake | AnyAsyncFake, settings: dict[str, Any], watch: _Watch) -> Ran:
    began = given.clock.now_us
    # the worker has a client of its own: a lease that the test holds, and lets run out, is not taken for the worker's
    queue = _client_of(given)
    await _tick(queue, await queue.stats())
    worker = Worker(queue, handler, burst=True, signals=False, ledger=watch, drain_deadline=0.0, **settings)
    working = asyncio.create_task(worker.run())
    try:
        runtime = settings.get("max_runtime", queue.max_runtime)
        await _drive(queue, worker, working, watch, runtime)
        tally = await working
        states = await _states(queue, watch.runs)
        errors = {entry.task: entry.error or "" async for entry in queue.each(State.FAILED)}
    finally:
        if not working.done():
            worker.stop(now=True)
            await asyncio.gather(working, return_exceptions=True)
        await queue.close()
    return Ran(tally, states, dict(watch.runs), errors, (given.clock.now_us - began) / 1e6)


def _client_of(given: AnyFake | AnyAsyncFake) -> AnyAsyncFake:
    of: dict[str, Any] = {"timeout": given.timeout, "max_runtime": given.max_runtime, "retry": given.retry}
    if isinstance(given, FakeShardedQueue | FakeAsyncShardedQueue):
        of |= {"shards": given.shards.wanted, "by": given.shards.by}
        return FakeAsyncShardedQueue(given.name, given.clock, **of)
    return FakeAsyncQueue(given.name, given.clock, **of)


async def _states(queue: AnyAsyncFake, ran: Iterable[str]) -> dict[str, State]:
    listed, done = list(State), dict[str, State]()
    if (await queue.stats()).compact:  # done tasks cannot be listed: those that ran are asked for
        listed.remove(State.DONE)
        answers = (await queue.states(list(ran))).items()
        done = {task: State.DONE for task, answer in answers if answer is Answer.DONE}
    return done | {entry.task: state for state in listed async for entry in queue.each(state)}


async def _drive(
    queue: AnyAsyncFake, worker: Worker, working: asyncio.Task[Tally], watch: _Watch, runtime: float | None
) -> None:
    moved, since = None, time.monotonic()
    while not working.done():
        await asyncio.sleep(0.001)
        if watch.too_often is not None:
            raise NotDrained(watch.too_often)
        now = (queue.clock.now_us, watch.runs.total(), len(watch.running), worker.tally.acked, worker.tally.failed)
        if now != moved:
            moved, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise NotDrained(await _stuck(queue, watch))
        ends = _ends(queue, worker, watch, runtime)
        if not ends and not worker.held:
            await _advance(queue, working)
        elif ends and max(ends) < math.inf and time.monotonic() - since > QUIET:
            await _pass(queue, worker, watch, min(ends))
            for run in worker.limited:
                if run.stop is not None and _own_end(watch, run) <= queue.clock.now_us:
                    run.stop()


def _ends(queue: AnyAsyncFake, worker: Worker, watch: _Watch, runtime: float | None) -> list[float]:
    """Give the time, whole µs, up to which each handler at work may run; threads over their time do not count."""
    own = {run.lease.key: _own_end(watch, run) for run in worker.limited}
    ends = [
        (lease, min(own.get(lease.key, math.inf), _end(queue, lease, runtime)))
        for lease in list(watch.running.values())
    ]
    return [end for lease, end in ends if lease.key in worker.held or end > queue.clock.now_us]


def _end(queue: AnyAsyncFake, lease: Lease, runtime: float | None) -> float:
    if runtime is None:
        return math.inf
    return round((lease.deadline - min(queue.timeout, runtime) + runtime - JUST_BEFORE) * 1e6)


def _own_end(watch: _Watch, run: Run) -> float:
    """Give when the limit of a function's call is over, whole µs."""
    return round((watch.began[run.lease.key] + (run.limit or 0.0)) * 1e6)


async def _pass(queue: AnyAsyncFake, worker: Worker, watch: _Watch, end_us: float) -> None:
    """Let time pass to the next moment at which something happens, `end_us` at the latest, and keep leases alive."""
    stats = await queue.stats()
    moments = [round(at * 1e6) for at in (stats.next_due, stats.next_turn) if at is not None]
    target_us = min([end_us, *(at for at in moments if at > queue.clock.now_us)])
    began = time.monotonic()
    # whole µs, as the clock counts: a rest of less than one would never pass
    while (ahead_us := target_us - queue.clock.now_us) > 0:
        if time.monotonic() - began > PATIENCE:
            raise NotDrained(await _stuck(queue, watch))
        if worker.held:
            await queue.extend(list(worker.held.values()))
        queue.clock.advance(min(ahead_us / 1e6, queue.timeout * 0.9))
    await queue.promote_due()


async def _advance(queue: AnyAsyncFake, working: asyncio.Task[Tally]) -> None:
    """Advance the clock to the next moment at which something happens, unless something can happen without it."""
    stats = await queue.stats()
    if stats.paused and not stats.drained:
        raise NotDrained(f"queue {queue.name} is paused, and {stats.known - stats.done - stats.failed} tasks wait")
    # a batch ends by its tasks, and not by the clock
    dues = stats.next_due, stats.next_deadline, stats.next_turn
    moments = [at for at in dues if at is not None and at < BATCH_DUE]
    if stats.todos or not moments or working.done():
        return
    if stats.in_progress and any([entry.holder == queue.worker async for entry in queue.each(State.IN_PROGRESS)]):
        return  # a claim or an ack of the worker is on its way
    ahead = min(moments) - queue.clock.now
    if ahead > 0:
        queue.clock.advance(ahead)
    await _tick(queue, stats)
    # a task that becomes ready by these calls rings the bell, which wakes the worker
    await queue.requeue_expired()
    await queue.promote_due()


async def _tick(queue: AnyAsyncFake, stats: Stats) -> None:
    if stats.has_schedules:
        await queue.schedules.tick()


async def _stuck(queue: AnyAsyncFake, watch: _Watch) -> str:
    if watch.running:
        names = ", ".join(f"{lease.task!r:.80}" for lease in list(watch.running.values())[:NAMED])
        return (
            f"the handler has been at work for {PATIENCE:g} real seconds on {names}, and does not end; "
            "its sleeps and calls take real time: replace them in the test (monkeypatch), or give a max_runtime="
        )
    left = [
        f"{entry.task!r:.80} ({state})"
        for state in (State.TODOS, State.WAITING, State.SCHEDULED, State.IN_PROGRESS)
        for entry in await queue.list(state, n=NAMED)
    ]
    return f"nothing has moved for {PATIENCE:g} real seconds; left are {', '.join(left[:NAMED]) or 'no tasks'}"
