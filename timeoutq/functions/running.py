"""`Calls(app)`: the handler by which a worker runs the calls of an app."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, cast

import msgspec

from timeoutq.functions import limits, outcomes
from timeoutq.functions.calls import MOST_THREADS, Program
from timeoutq.functions.client import Posted, Shared
from timeoutq.functions.context import CallNext, CallsBefore, Context, Notes
from timeoutq.functions.envelope import NO_OPTIONS, Secrets
from timeoutq.functions.errors import MAY_FIT_LATER, BadResult, Forged, NoProcess, UnknownSecret
from timeoutq.functions.task import Definition, Opened
from timeoutq.functions.threads import Threads
from timeoutq.functions.tracing import traced
from timeoutq.server.calls import Kept
from timeoutq.words import telling
from timeoutq.words.arguments import Packed, count, delay_ms, error_words, is_group, shown
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import EXPIRED, Ack, Lease, Task, raw
from timeoutq.words.retry import GiveUp, Retry, RetryPolicy, decision, members
from timeoutq.words.text import safe
from timeoutq.worker.handlers import (
    LEAVES_NO_ID,
    RESULTS,
    AckAfter,
    AckOfValue,
    Expired,
    Hopeless,
    Result,
    Serves,
    Unrun,
    Verdict,
)

if TYPE_CHECKING:
    from timeoutq.worker.served import Place

    if sys.platform != "win32":
        from timeoutq.functions.processes import Hold, Processes
    else:
        from typing import Any as Hold  # there are none
        from typing import Any as Processes

Run = Callable[[Context[Any] | None, Opened], Awaitable[Any]]
"""What runs a function, within its middlewares; the context is None if nobody looks at it."""

log = logging.getLogger(__name__)

BACK_AFTER = (5.0, 10.0)
"""Seconds after which a call that this worker cannot run is offered again: a time between these two."""
BACK_FOR = 3600.0  # seconds for which such a call is offered to other workers; then it fails
WAITS, WAITS_FOR = (0.5, 1.5), 365 * 86_400.0
"""The same of a call whose limit cannot be declared, because the server is away: it does not fail before it has run."""

MOST_UNKNOWN = 100  # of so many functions it is said that this worker cannot run their calls
NEVER = RetryPolicy.of([])  # for calls that no further attempt can help
UNCHECKED = Secrets()  # reads a call without a look at its signature


class Calls(Serves):
    """The handler of a worker that runs the calls of one app."""

    new_threads: Callable[[str, int, Callable[[str], None]], Threads] = Threads
    """Makes what carries out functions that are a plain `def`."""
    in_processes = True  # whether those with `executor="process"` have processes; else they have threads, too
    processes: Any = None  # the module of pool processes, if a function needs any

    def __init__(self, app: Program, *, threads: int | None = None) -> None:
        """Prepare; `threads` is how many functions that are a plain `def` run at once (None: as the app says)."""
        self.app = app
        self.lifespan = app.life
        self.threads = app.threads if threads is None else count(threads, "threads", high=MOST_THREADS)

    def __repr__(self) -> str:
        return f"Calls({self.app!r})"

    def most(self, concurrency: int) -> int:
        """Give how many calls a worker is to run at once: no more than have threads, if none is an `async def`."""
        is_async = any(one.definition.is_async for one in self.app.functions.values())
        return concurrency if is_async else min(concurrency, self.threads)

    def serve(self, place: Place) -> Callable[[Lease], Awaitable[Result | AckAfter | AckOfValue | Expired]]:
        """Give what runs the calls of this queue."""
        from timeoutq.functions.scheduling import declaring  # a program that only defines functions needs no client

        if not self.app.functions:
            telling.say(
                log, logging.WARNING, "queue %s: %r has no functions, so this worker gives every call back: name the "
                "module that holds them, or import it where the app is", place.name, self.app,
                fields={"queue": place.name},
            )  # fmt: skip
        need = any(one.settings.executor == "process" for one in self.app.functions.values())
        if sys.platform != "win32" and self.in_processes and need:
            from timeoutq.functions import processes  # now: later, the worker may have too many open files

            self.processes = processes
        place.publish({name: one.version for name, one in self.app.functions.items()})
        place.declare(declaring(self.app, place.name, place.queue.flows))
        return traced(CallRunner(self, place).run, place.name)

    def judge(self, lease: Lease, error: BaseException) -> Verdict | None:
        """Say by which policy a call is tried again, and what is kept of its failure if it is given up."""
        try:
            opened = self.app.open(lease.payload, "", raw(lease.task), UNCHECKED)
        except TimeoutqError:
            return Verdict(NEVER, partial(self._kept, error))  # nobody can run it
        decides = decision(error)
        never: tuple[type[BaseException], ...] = (Forged, UnknownSecret, *opened.settings.no_retry)
        inside = members(cast("Any", decides)) if is_group(decides) else [decides]
        is_last = not isinstance(decides, Retry) and any(isinstance(one, never) for one in inside)
        policy = NEVER if is_last else opened.settings.retry
        kept = partial(self._kept, error) if opened.settings.keep_result else None
        if opened.settings.on_failed is None or isinstance(error, Forged | UnknownSecret):
            return Verdict(policy, kept)
        words = error_words(error)
        return Verdict(policy, kept, lambda queue: self.app.failed(lease.payload, queue, raw(lease.task), words))

    def _kept(self, error: BaseException) -> Kept:
        return Kept(self.app.failure(error), delay_ms(outcomes.KEEP_FAILURE, "keep_result"))


class Hands:
    """What runs the functions of a worker that are a plain `def`: one for all its queues."""

    def __init__(self, calls: Calls, place: Place) -> None:
        self.threads = calls.new_threads(f"{place.name}-call", calls.threads, place.hangs)
        place.at_end(self.threads.close)
        self.processes: Processes | None = None
        # pool processes that start at the same time: more than there are processors would all begin late
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)
        if calls.processes is not None:
            made = self.processes = calls.processes.Processes()
            place.at_end(made.close)

    async def hold(self, processes: Processes, task: str, definition: Definition) -> Hold:
        """Give the hold on a process that is ready."""
        if (hold := processes.hold(definition)).is_ready:
            return hold
        async with self._starting:
            hold = processes.hold(definition)  # another call may have left its process meanwhile
            if not hold.is_ready:
                try:
                    await self.threads.run(task, hold.begin)
                except BaseException:
                    hold.kill()
                    hold.leave()
                    raise
        return hold


class CallRunner:
    """Runs the calls of one queue."""

    def __init__(self, calls: Calls, place: Place) -> None:
        self._calls, self._app, self._place, self._queue = calls, calls.app, place, place.name
        self._declared, self._declaring = limits.Declared(), Shared()
        self._unrunnable: set[str] = set()  # the functions of which it was said that their calls cannot be run here

    async def run(self, lease: Lease) -> Result | AckAfter | AckOfValue | Expired:
        """Run one call: the whole way of a task, from its payload to its end."""
        try:
            opened = self._app.open(lease.payload, self._queue, raw(lease.task))
        except MAY_FIT_LATER as error:
            return self._unrun(error)
        if opened.settings.limit is not None:
            try:
                group = opened.definition.group_of_call(opened.args, opened.kwargs) or ""
                await self._keep(self._place.queue, {group: opened.settings.limit})
            except Unavailable as error:
                return _back(error, WAITS, WAITS_FOR)
        began = time.monotonic()
        if opened.settings.keep_result:
            self._place.records[lease.key] = began, opened.put_ms, opened.definition.name
        if opened.definition.is_plain and opened.options is NO_OPTIONS and not self._app.middlewares:
            value = await opened.definition.function(*opened.args, **opened.kwargs)
        elif opened.definition.is_async:
            value = self._late(lease, opened) or await self._within_runtime(lease, opened, _function)
        else:
            value = await self._in_turn(lease, opened)
        found: Result | AckAfter | AckOfValue
        if value is None and not (opened.then or opened.settings.keep_none):
            keep_id = opened.keep_id
            found = LEAVES_NO_ID if keep_id is False else None if keep_id is True else Ack(keep_id=keep_id)
        elif isinstance(value, Expired | Unrun):
            return value
        else:
            found = await self._end(lease, opened, value)
        if self._app.log_calls and isinstance(found, Ack | AckAfter | AckOfValue | None):
            self._tell(lease, opened.definition.name, time.monotonic() - began)
        return found

    def _tell(self, lease: Lease, function: str, seconds: float) -> None:
        telling.say(
            log, logging.INFO, "queue %s: task %a of %s() done in %.2f s (attempt %d)", self._queue, lease.task,
            function, seconds, lease.attempt,
            fields={
                "queue": self._queue, "task": lease.task, "attempt": lease.attempt, "function": function,
                "seconds": round(seconds, 6),
            },
        )  # fmt: skip

    def _unrun(self, error: TimeoutqError) -> Unrun:
        name: str = getattr(error, "function", "")
        if name not in self._unrunnable and len(self._unrunnable) < MOST_UNKNOWN:
            self._unrunnable.add(name)
            telling.say(
                log, logging.WARNING, "queue %s: %s; such calls are offered to other workers, for an hour",
                self._queue, error, fields={"queue": self._queue, "function": name},
            )  # fmt: skip
        return _back(error, BACK_AFTER, BACK_FOR)

    # ---- around the function

    def _late(self, lease: Lease, opened: Opened) -> Expired | None:
        """Give the end of a call that was to begin before now."""
        if (until := opened.expires) is None or (late := self._place.now(lease) - until) <= 0:
            return None
        when = datetime.fromtimestamp(until, UTC).isoformat(" ", "milliseconds")
        words, then = f"{EXPIRED}it was to begin by {when}, and a worker came to it {late:.3f} s later", None
        if opened.settings.on_failed is not None:
            then = self._app.failed(lease.payload, self._queue, raw(lease.task), words)
        return Expired(words, then)

    async def _in_turn(self, lease: Lease, opened: Opened) -> Any:
        """Run a plain `def` when a thread is free, and a process ready: until then, its time does not count."""
        shared = self._place.shared
        hands: Hands = shared.get(Hands) or shared.setdefault(Hands, Hands(self._calls, self._place))
        hold: Hold | None = None
        has_thread = False
        try:
            self._place.wait(lease)
            await hands.threads.take()
            has_thread = True
            if hands.processes is not None and opened.definition.settings.executor == "process":
                hold = await hands.hold(hands.processes, lease.task, opened.definition)
            self._place.begin(lease)
            if record := self._place.records.get(lease.key):
                self._place.records[lease.key] = time.monotonic(), *record[1:]  # it begins only now
            call = partial(self._in_thread, hands.threads, hold, lease)
            return self._late(lease, opened) or await self._within_runtime(lease, opened, call)
        except NoProcess as error:
            return self._unrun(error)
        finally:
            if hold is not None:
                hold.leave()
            if has_thread:
                hands.threads.give()

    async def _within_runtime(self, lease: Lease, opened: Opened, call: Run) -> Any:
        seconds = opened.settings.max_runtime
        if seconds is None:
            return await self._around(lease, opened, call)
        off, is_over = self._place.limit(lease, seconds), False
        try:
            value = await self._around(lease, opened, call)
        finally:
            is_over = off()
        if is_over:  # it was not cancelled, though it was to be
            raise self._place.over(seconds, ": the event loop was blocked and could not cancel the function")
        return value

    async def _around(self, lease: Lease, opened: Opened, call: Run) -> Any:
        if opened.definition.takes_nothing and not (self._app.middlewares or self._app.inner):
            return await call(None, opened)
        notes, place, options = Notes(self._place, lease), self._place, opened.options
        batch = None if options.batch is None else CallsBefore(options.batch, place.queue, options.order)
        name = opened.definition.name
        context: Context[Any] = Context(
            name, lease.task, lease.attempt, lease.fence, place.state, opened.tick, batch, notes, options.headers or {}
        )
        try:
            return await self._next(context, opened, 0, call)()
        except asyncio.CancelledError:
            notes.stopped = True
            raise
        finally:
            notes.close()

    def _next(self, context: Context[Any], opened: Opened, at: int, call: Run) -> CallNext:
        """Give what runs the middlewares from this one on, and then the function."""

        async def call_next(given: Context[Any] | None = None, /) -> Any:
            found = _checked(context if given is None else given)
            if at == len(self._app.middlewares):
                return await call(found, opened)
            return await self._app.middlewares[at](found, self._next(found, opened, at + 1, call))

        return call_next

    async def _in_thread(
        self, threads: Threads, hold: Hold | None, lease: Lease, context: Context[Any] | None, opened: Opened
    ) -> Any:
        call: Callable[..., Any] = _function if hold is None else partial(hold.run, lease.payload)
        if self._app.inner:
            call = self._inner(0, call)
        try:
            found = await threads.run(lease.task, partial(call, context, opened))
        except asyncio.CancelledError:
            if hold is not None:
                hold.kill()
            raise
        return await found if inspect.isawaitable(found) else found

    def _inner(self, at: int, call: Callable[..., Any]) -> Callable[[Context[Any], Opened], Any]:
        """Give what runs the middlewares that are a `def`, from this one on, and then the function, all in a thread."""
        if at == len(self._app.inner):
            return call
        after = self._inner(at + 1, call)

        def run(context: Context[Any], opened: Opened) -> Any:
            def call_next(given: Context[Any] | None = None, /) -> Any:
                found = after(_checked(context if given is None else given), opened)
                if context.notes is not None and context.notes.stopped:  # what it returned is lost
                    raise asyncio.CancelledError
                return found

            return self._app.inner[at](context, call_next)

        return run

    async def _keep(self, queue: Any, wanted: limits.Wanted) -> None:
        if self._declared.lacking(queue.name, wanted):  # nobody goes on before the limit is kept
            await self._declaring.run((queue.name, *wanted), lambda: self._declare(queue, wanted))

    async def _declare(self, queue: Any, wanted: limits.Wanted) -> None:
        try:
            await queue.run(limits.declare(queue.flows, wanted))
            self._declared.note(queue.name, wanted)
        except InvalidInput as error:
            self._declared.note(queue.name, wanted, limits.REFUSED)  # so this is said seldom, not for each task
            telling.say(
                log, logging.WARNING, "queue %s: %s", queue.name, safe(str(error)), fields={"queue": queue.name}
            )

    # ---- how it ends

    async def _end(self, lease: Lease, opened: Opened, value: Any) -> Result | AckAfter | AckOfValue:
        if isinstance(value, RESULTS):
            return value
        keeps_id, seconds = opened.keep_id, opened.settings.keep_result
        data: bytes | None = None
        if opened.wants_result:
            try:
                data = outcomes.encode(value, opened.definition.returns)
            except BadResult as error:
                raise Hopeless(error) from error
        call = self._following(lease, opened, data) if opened.then and data is not None else None
        kept = data if seconds and (value is not None or opened.settings.keep_none) else None
        if call is None and kept is not None and seconds and isinstance(keeps_id, bool):
            return AckOfValue(Kept(kept, ceil(seconds * 1000)), None if keeps_id else 0)
        ack = Ack(result=kept, keep_result=seconds if kept is not None else None, keep_id=keeps_id)
        if call is None:
            return ack
        unique = 0 if call.rerun else None
        task = Task(call.id, Packed(call.payload), call.group, priority=call.priority, unique=unique, rerun=call.rerun)
        if call.queue == self._queue:
            ack.put = task
            if not self._declared.lacking(self._queue, call.wanted):
                return ack
        return AckAfter(partial(self._before_ack, call, task), ack)

    def _following(self, lease: Lease, opened: Opened, data: bytes) -> Posted | None:
        """Give the call that follows. If this call runs again, what follows has the same id, so it is there once."""
        try:
            call = self._app.follow(opened, self._queue, raw(lease.task), data, self._place.now(lease))
        except TimeoutqError as error:
            raise GiveUp(f"what follows this call cannot be called: {error}") from error
        if call is None or call.queue == self._queue:
            return call
        # the server may carry out a put long after nobody waits for its reply any more: it adds nothing the second time
        return msgspec.structs.replace(call, call_id=self._place.queue.talk.nonce())

    async def _before_ack(self, call: Posted, task: Task) -> None:
        """Declare the limit of the call that follows, and put it, if it goes to another queue."""
        is_here = call.queue == self._queue
        try:
            found = self._place.queue if is_here else self._place.find(call.queue)
            if found is not None:
                await self._keep(found, call.wanted)
            if not is_here and not await self._place.put(call.queue, task, call.call_id):
                await self._app.sender.ado(self._app.sender.putting([call]))
        except TimeoutqError as error:
            from timeoutq.verbs import flows  # a program that only defines functions needs no client

            if not flows.is_final(error):
                raise
            raise GiveUp(f"what follows this call cannot be put into queue {call.queue!r}: {error}") from error


def _function(context: Context[Any] | None, opened: Opened) -> Any:
    definition = opened.definition
    args = opened.args if definition.signature.context is None else (context, *opened.args)
    return definition.function(*args, **opened.kwargs)


def _checked(found: Context[Any]) -> Context[Any]:
    if not isinstance(found, Context):  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
        raise TypeError(f"a middleware calls call_next(), or call_next(ctx), not with {shown(found)}")
    return found


def _back(error: TimeoutqError, after: tuple[float, float], within: float) -> Unrun:
    return Unrun(random.uniform(*after), within=within, error=error)  # noqa: S311  # jitter, not a secret
