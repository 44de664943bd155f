"""An app: functions by their names, the queues that their calls go to, and the secrets that sign calls. No I/O.

Programs make one `App` in a module that callers and workers import, and decorate functions with `app.task`. Callers put
calls through the app's `sender`; a worker reads them with `open`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec

from timeoutq.functions import calls, ids, options, tracing
from timeoutq.functions.batching import Batched, batch_of
from timeoutq.functions.calls import Call
from timeoutq.functions.context import Context, Middleware
from timeoutq.functions.envelope import Letter, Secrets, seal, unseal
from timeoutq.functions.errors import BadFunction, UnknownFunction
from timeoutq.functions.options import Chosen, Limit, Missed, Queues, Settings, Unique
from timeoutq.functions.running import Calls
from timeoutq.functions.sender import Answers, Posted, PostedBatch, PutsBatches, Result, Sender
from timeoutq.functions.task import Definition, Opened, Registered, TaskFunction, define
from timeoutq.server import address
from timeoutq.server.calls import BATCH_KEPT
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, TaskId
from timeoutq.words.retry import Delay, Retries
from timeoutq.worker import lifespan
from timeoutq.worker.handlers import Hires, Lifespan, Staff, name_of

if TYPE_CHECKING:
    from timeoutq.functions.scheduling import AppSchedules
    from timeoutq.functions.testing import AppTest
    from timeoutq.rooms.batches.operations import On
    from timeoutq.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_OPTIONS = ("name", "queue", "retry", "max_runtime", "keep_result", "key", "unique", "limit", *options.TIMED)
"""What the decorator takes."""

Around = TypeVar("Around", bound=Middleware)
Life = TypeVar("Life", bound=Callable[[], Any])


class Decorator(Protocol):
    """What `app.task(…)` gives: takes the function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> Registered[P, R, Concatenate[Context[S], P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[S], P], R], /
    ) -> Registered[P, R, Concatenate[Context[S], P], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Registered[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Registered[P, R, P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Registered[..., Any, ..., Any]:
        """Register a function. Raises `BadFunction`."""
        ...


class App(Hires):
    """Functions that can be called from elsewhere, under one name."""

    def __init__(
        self,
        name: str,
        *,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        retry: Retries = None,
        max_runtime: Delay | None = None,
        keep_result: Delay | None = None,
        url: str | None = None,
        sender: Sender | None = None,
    ) -> None:
        """Make an app.

        `queues` are the queues of its functions: a list, which workers serve in this order, or a mapping of names to
        weights; None is one queue with the app's name. `retry`, `max_runtime` (seconds) and `keep_result` (seconds that
        results are kept: an hour if left out, 0 for not at all) are for functions that say nothing themselves. `url` is
        the server, as for `Queue`: the first call that is put connects.

        With `secret`, all calls are signed, and calls that are not signed are refused; of a list of secrets, the first
        signs and each is accepted. The queue, the id, the function, the arguments, the options and the calls that
        follow are signed. The tick of a schedule (`ctx.tick`) is not, because the script that puts it knows no secret:
        who can write to Redis can forge it, and can repeat the calls of a schedule with `overlap` under other ticks.
        Raises `InvalidInput`.
        """
        self.name = arguments.queue_name(name)
        self.queues = Queues.of(queues, self.name)
        self.secrets = Secrets(secret)
        self._retry = options.policy(retry)
        self._max_runtime = None if max_runtime is None else options.runtime(max_runtime)
        self._keep_result = None if keep_result is None else options.kept(keep_result)
        self._functions: dict[str, TaskFunction[..., Any]] = {}
        self.middlewares: list[Middleware] = []
        """What runs around each call, the outermost first."""
        self.life: Lifespan[Any] | None = None
        """What is around the life of a worker; its value is `ctx.state`."""
        self.url = None if url is None else address.find_url(url)
        """The server, if the program names it; else the environment does."""
        self._sender = sender

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    # ---- defining functions

    @property
    def functions(self) -> Mapping[str, TaskFunction[..., Any]]:
        """The functions by their names."""
        return MappingProxyType(self._functions)

    @overload
    def task(
        self, function: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> Registered[P, R, Concatenate[Context[S], P], Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context[S], P], R], /
    ) -> Registered[P, R, Concatenate[Context[S], P], R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Registered[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Registered[P, R, P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retries = None,
        max_runtime: Delay | None = None,
        keep_result: Delay | None = None,
        key: str | Literal[True] | None = None,
        unique: Unique | None = None,
        limit: Limit | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Delay | None = None,
        times: int | None = None,
        missed: Missed | None = None,
        grace: Delay | None = None,
        overlap: bool | None = None,
    ) -> Decorator: ...
    def task(self, function: Callable[..., Any] | None = None, **given: Any) -> Any:
        """Make a task of a function: `@app.task`, or with options `@app.task(retry=[10, 30, 60])`.

        `name` is what calls carry (the function's own name if left out), `queue` the queue that they go to. `retry`,
        `max_runtime` and `keep_result` are as for the app. `key` makes ids of arguments, so that two callers make one
        call: a template such as "thumb:{path}", or True for all arguments; `unique` says how long such an id keeps
        others away ("active" if left out). `limit` says how many calls run at once. `cron` (with `tz`) or `every` calls
        the function by itself, without arguments; `times`, `missed`, `grace` and `overlap` belong to these.
        Raises `BadFunction` for a function that cannot be a task, `InvalidInput` for options.
        """
        strange = next((name for name in given if name not in _OPTIONS), None)
        if strange is not None:
            raise InvalidInput(f"task() has no option {strange}=; it has {', '.join(_OPTIONS)}")
        return partial(self._add, given) if function is None else self._add(given, function)

    def _add(self, given: Mapping[str, Any], function: Callable[..., Any]) -> Registered[..., Any, ..., Any]:
        key, name = given.get("key"), given.get("name")
        definition = define(function, name, self._settings(given), key, self.queues)
        own = definition.signature.name
        if own in self._functions:
            raise BadFunction(f"{self!r} has a function {own!r} already: pass another name=, such as 'billing.{own}'")
        self._refuse_same_keys(definition)
        self._refuse_other_limits(definition)
        made = Registered[..., Any, ..., Any](self, definition, Chosen())
        self._functions[own] = made
        return made

    def _settings(self, given: Mapping[str, Any]) -> Settings:
        keep = given.get("keep_result")
        kept = self._keep_result if keep is None else options.kept(keep)
        queue = given.get("queue")
        usual = self._queue_of(queue)
        limit = given.get("limit")
        if limit is not None and not isinstance(limit, Limit):
            raise InvalidInput(f"limit= takes a Limit(concurrency=…, every=…, per=…), not {shown(limit)}")
        runtime, unique, retry = given.get("max_runtime"), given.get("unique"), given.get("retry")
        return Settings(
            queue=usual,
            retry=self._retry if retry is None else options.policy(retry),
            max_runtime=self._max_runtime if runtime is None else options.runtime(runtime),
            keep_result=options.KEEP_RESULT if kept is None else kept,
            keep_none=bool(kept),
            unique="active" if unique is None else options.checked_unique(unique),
            limit=limit,
            timed=options.timed(given),
        )

    def _refuse_same_keys(self, new: Definition) -> None:
        begin = new.key_begins
        if begin is None:
            return
        for other in self._functions.values():
            found = other.definition.key_begins
            same_queue = other.settings.queue == new.settings.queue
            if found is not None and same_queue and (found.startswith(begin) or begin.startswith(found)):
                raise BadFunction(
                    f"the keys of {new.signature.name}() and {other.name}() may make the same id, and one call would "
                    f"keep the other away: let them begin differently, for example with '{new.signature.name}:'"
                )

    def _refuse_other_limits(self, new: Definition) -> None:
        for other in self._functions.values():
            if other.definition.counts_with(new) and other.settings.limit != new.settings.limit:
                raise BadFunction(
                    f"{new.signature.name}() and {other.name}() count their calls together, in queue "
                    f"{new.settings.queue!r}, and have different limits: give both the same Limit(…), or another per="
                )

    # ---- around calls

    def middleware(self, function: Around, /) -> Around:
        """Run this function around each call: `async def m(ctx, call_next)`; the first that was added is the outermost.

        `await call_next()` runs the function and gives what it returned, or raises what it raised; what the middleware
        returns stands for that. `call_next(ctx)` does the same, and hands on a context that the middleware has made,
        with `dataclasses.replace`. Raises `BadFunction`.
        """
        given: Any = function
        if not inspect.iscoroutinefunction(given):
            raise BadFunction(f"a middleware is an async def that takes (ctx, call_next), not {shown(function)}")
        try:
            inspect.signature(given).bind(None, None)
        except TypeError as error:
            raise BadFunction(f"a middleware takes (ctx, call_next): {name_of(given)}: {error}") from error
        self.middlewares.append(function)
        return function

    def lifespan(self, function: Life) -> Life:
        """Make this the lifespan: each worker process enters it before its first call, and leaves it after the last.

        What the lifespan yields is `ctx.state`. A lifespan is an async generator function that takes no parameters and
        yields once, or what `@asynccontextmanager` makes of one. Raises `BadFunction`.
        """
        if self.life is not None:
            raise BadFunction(f"{self!r} has a lifespan already: enter both context managers in one")
        made: Any = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        self.life = lifespan.checked(made)
        return function

    # ---- workers

    def worker(self, url: str | None = None, *, timeout: float = 30.0, **options: Any) -> Worker:
        """Give a worker that runs the calls of all queues of this app; `await worker.run()` starts it.

        It serves the queues in their order, or by their weights. `url` is the server, or else that of the app, and
        `timeout` the length of a lease in seconds; `options` are those of `Worker`. The worker closes its connections
        when it ends. To work on a queue that is divided into shards, open it, and pass it and `Calls(app)` to `Worker`.
        """
        from timeoutq.worker.worker import (
            Worker,  # a program that only defines functions needs no worker, and no client
        )

        return Worker(self.at_work(url, timeout=timeout), **options)

    def at_work(self, url: str | None = None, *, timeout: float = 30.0) -> Staff:
        """Give the queues of the app, and the handler for them: what `Worker(app, …)` asks for."""
        from timeoutq.client import AsyncQueue

        where = self.url if url is None else url
        opened = [AsyncQueue(name, where, timeout=timeout) for name in self.queues.names]
        weights = self.queues.weights
        return Staff(opened if weights is None else dict(zip(opened, weights, strict=True)), Calls(self))

    # ---- putting calls

    @property
    def sender(self) -> Sender:
        """What puts calls, and hears how they have ended."""
        if self._sender is None:
            from timeoutq.functions.posting import Posting  # a program that only defines functions needs no client

            self._sender = Posting(self.url)
        return self._sender

    @sender.setter
    def sender(self, sender: Sender) -> None:
        self._sender = sender

    def post(self, call: Call[R], /) -> Result[R]:
        """Put one call; blocks."""
        self._check((call,))
        sender, ready = self.sender, calls.posted(call, self.secrets)
        (answer,) = sender.put((ready,))
        return sender.result(ready.answers, answer)

    async def apost(self, call: Call[R], /) -> Result[R]:
        """Put one call."""
        self._check((call,))
        sender, ready = self.sender, calls.posted(call, self.secrets)
        (answer,) = await sender.aput((ready,))
        return sender.result(ready.answers, answer)

    def put(self, many: Iterable[Call[R]], /) -> list[Result[R]]:
        """Put calls, and give their results in the same order; blocks. If one of the calls is bad, none is put."""
        sender, ready = self.sender, self._posted(many)
        return [sender.result(call.answers, answer) for call, answer in zip(ready, sender.put(ready), strict=True)]

    async def aput(self, many: Iterable[Call[R]], /) -> list[Result[R]]:
        """Put calls, and give their results in the same order. If one of the calls is bad, none is put."""
        sender, ready = self.sender, self._posted(many)
        answers = await sender.aput(ready)
        return [sender.result(call.answers, answer) for call, answer in zip(ready, answers, strict=True)]

    @overload
    def result(self, id: TaskId, function: TaskFunction[..., R], /, *, queue: str | None = None) -> Result[R]: ...
    @overload
    def result(self, id: TaskId, /, *, queue: str | None = None) -> Result[Any]: ...
    def result(
        self, id: TaskId, function: TaskFunction[..., Any] | None = None, /, *, queue: str | None = None
    ) -> Result[Any]:
        """Give what stands for the result of a call that was put elsewhere, by its id; asks nobody yet.

        With the function, the result is read as the type that the function says, else as what JSON holds. `queue` is
        the queue of the call (of a chain, of its first call), if that is not the function's, or the usual one. Raises
        `InvalidInput`.
        """
        named = self._queue_of(queue) if function is None or queue is not None else function.settings.queue
        places: list[tuple[str, bytes]] = []
        for own, name in ids.chain(arguments.task_id(id)):
            following = self._functions.get(name)
            places.append((named if following is None else following.settings.queue, own))
        returns = Any if function is None else function.returns
        return self.sender.result(Answers(*places[-1], math.inf, returns, before=tuple(places[:-1])))

    @property
    def schedules(self) -> AppSchedules:
        """The schedules of calls in the queues of this app."""
        from timeoutq.functions.scheduling import AppSchedules  # likewise

        return AppSchedules(self)

    def _queue_of(self, queue: str | None) -> str:
        usual = self.queues.usual(self.name) if queue is None else self.queues.one(queue)
        if usual is None:
            raise InvalidInput(f"{self!r} has several queues, and none is called {self.name!r}: say queue=")
        return usual

    def close(self) -> None:
        """Close the connections of callers that block; a later call opens new ones."""
        self.sender.close()

    async def aclose(self) -> None:
        """Close the connections of callers in this event loop; a later call opens new ones."""
        await self.sender.aclose()

    @overload
    def batch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: Call[R],
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[R]: ...
    @overload
    def batch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: None = None,
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[None]: ...
    def batch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: Call[Any] | None = None,
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[Any]:
        """Put calls, and let `then` run once when all of them have ended; blocks.

        With `on="done"` all calls must return; if one fails, `then` fails too, and says how many have failed. `then`
        finds what the calls have returned in `ctx.batch.results()`. The calls and `then` go to one queue, which must
        not lie in several shards. Whoever puts the same calls again with the same `name`, such as a process that was
        killed meanwhile, has the same batch: what is in it already is not put again. Several calls with one `key` are
        one task, whose result stands for each of them. The batch is kept for `keep` seconds after its end, and the
        result of a call for so long after the end of the call, at least: raise it for a batch that takes more than a
        day. Raises `InvalidInput`, `CallTooLarge`, and what `Queue.put` raises.
        """
        sender, found = self._puts_batches(), self._batch(many, then, on, keep, name)
        return _batched(sender, found, sender.batch(found))

    @overload
    async def abatch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: Call[R],
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[R]: ...
    @overload
    async def abatch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: None = None,
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[None]: ...
    async def abatch(
        self,
        many: Iterable[Call[Any]],
        /,
        then: Call[Any] | None = None,
        *,
        on: On = "ended",
        keep: Delay = BATCH_KEPT,
        name: str | None = None,
    ) -> Batched[Any]:
        """Put calls, and let `then` run once when all of them have ended; see `batch`."""
        sender, found = self._puts_batches(), self._batch(many, then, on, keep, name)
        return _batched(sender, found, await sender.abatch(found))

    def _puts_batches(self) -> PutsBatches:
        if not isinstance(self.sender, PutsBatches):
            raise InvalidInput(f"{shown(self.sender)} puts no batches: give the app url= instead of this sender")
        return self.sender

    def _batch(
        self, many: Iterable[Call[Any]], then: Call[Any] | None, on: On, keep: Delay, name: str | None
    ) -> PostedBatch:
        found = _several(many)
        self._check([*found, *([] if then is None else [then])])
        seconds = arguments.delay_ms(keep, "keep") / 1000
        return batch_of(found, then, on, seconds, name, self.secrets, self.queues.names[0])

    def _posted(self, many: Iterable[Call[Any]]) -> list[Posted]:
        found = _several(many)
        self._check(found)
        return [calls.posted(call, self.secrets) for call in found]

    def _check(self, found: Iterable[Call[Any]]) -> None:
        for call in found:
            if not isinstance(call, Call):
                named = call.name if isinstance(call, TaskFunction) else "send"
                raise InvalidInput(f"this takes {named}.call(…), not {shown(call)}")
            if call.home is not self:
                raise InvalidInput(f"a call of {call.function}() belongs to {call.home!r}, not to {self!r}")

    # ---- tests

    def test(self, *, start: float | None = None) -> AppTest:
        """Put the app on queues in memory, for a test: `with app.test() as t`, then `t.run()` and `t.advance(3600)`.

        The real scripts run on fakeredis, whose clock the test advances. The clock starts at `start`, Unix seconds: in
        November 2023 if the test says nothing; with `start=time.time()`, a call `at=` an hour from now waits. Raises
        `MissingExtra` without fakeredis. An app is in one test at a time: to enter a second one raises `InvalidInput`.
        """
        from timeoutq.functions.testing import AppTest  # programs need no fakeredis

        return AppTest(self, start)

    def swap(self, sender: Sender | None) -> Sender | None:
        """Put another sender in the place of the app's, None for the usual one; give the one that was there."""
        before, self._sender = self._sender, sender
        return before

    # ---- what a worker reads

    def open(self, payload: object, queue: str, id: bytes, secrets: Secrets | None = None) -> Opened:
        """Read the payload of a task that was claimed, the bytes as they stand in Redis.

        `secrets` stand in the place of the app's.
        Raises what is in `MAY_FIT_LATER` of `errors.py` (`UnknownFunction`, `BadArguments`, …), and `NotACall`,
        `CallTooLarge` and `Forged`. No message holds an argument, except for what classes of the program say of it.
        """
        letter = unseal(payload, queue, id, self.secrets if secrets is None else secrets)
        function = self._functions.get(letter.function)
        if function is None:
            raise self._unknown(letter.function)
        if letter.then and letter.then[0].f not in self._functions:
            raise self._unknown(letter.then[0].f)
        args, kwargs = function.signature.take(letter.arguments)
        return Opened(function.definition, args, kwargs, letter.options, letter.then, letter.tick)

    def _unknown(self, name: str) -> UnknownFunction:
        return UnknownFunction(
            f"{self!r} has no function {shown(name)} here: is the worker's program older than the caller's, or does it "
            "not import the module?",
            function=name,
        )

    def follow(self, opened: Opened, queue: str, id: bytes, result: bytes) -> Posted | None:
        """Give the call that follows a call which has ended with a result, as JSON; None if none follows.

        Raises `UnknownFunction`, `BadArguments` and `CallTooLarge`.
        """
        if not opened.then:
            return None
        step, rest = opened.then[0], opened.then[1:]
        function = self._functions.get(step.f)
        if function is None:
            raise self._unknown(step.f)
        found = function.signature.with_first(result, step.arguments)
        args, kwargs = function.signature.decode(found)
        group = function.definition.group_of_call(args, kwargs)
        own, target = ids.following(id, step.f), function.settings.queue
        again = opened.options.again
        travels = msgspec.structs.replace(step.options, again=True) if again and rest else step.options
        letter = Letter(step.f, found, travels, rest, trace=tracing.made(step.f, target, own))
        payload = seal(letter, target, own, self.secrets)
        answers = calls.answers(target, own, function.settings, step.options.keep_result, function.returns)
        limit = function.settings.limit
        chosen = step.options.unique or function.settings.unique
        # otherwise an id in done keeps the call away, for as long as it is there
        blocks: Unique | None = "active" if chosen == "active" else None
        # if the call was put again, what follows has the newest result, whether it waits, runs or has failed
        rerun = again and blocks is not None
        return Posted(target, own, payload, None, None, None, blocks, group, answers, limit, rerun)

    def schemas(self) -> dict[str, dict[str, Any]]:
        """Give the JSON Schema of each function's payload, by name."""
        return {name: one.schema() for name, one in self._functions.items()}


def _several(many: Iterable[Call[Any]]) -> list[Call[Any]]:
    if isinstance(many, Call | TaskFunction) or not isinstance(many, Iterable):
        raise InvalidInput(f"this takes several calls, not {shown(many)}: write [f.call(…), …], or f.delay(…)")
    return list(many)


def _batched(sender: Sender, found: PostedBatch, answers: Sequence[Answer | None]) -> Batched[Any]:
    results = [sender.result(call.answers, answer) for call, answer in zip(found.calls, answers, strict=True)]
    then = None if found.then is None else sender.result(found.then.answers)
    return Batched(found.name, found.queue, results, then)
