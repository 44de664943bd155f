"""Calls as values, the functions that make them, and the program that puts them: an app without its workers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import msgspec

from timeoutq.functions import ids, options, outcomes, tracing
from timeoutq.functions.client import Posted, Result, Sender, Steps, kinds
from timeoutq.functions.context import Context, Middleware
from timeoutq.functions.envelope import (
    NO_OPTIONS,
    Letter,
    Options,
    Secrets,
    Step,
    opening_of,
    seal,
    unseal,
    usual_parts,
)
from timeoutq.functions.errors import BadFunction, UnknownFunction
from timeoutq.functions.options import CallOptions, Chosen, NoRetry, Queues, Settings, TaskOptions
from timeoutq.functions.signature import Arguments, Signature
from timeoutq.functions.task import Definition, Opened, define
from timeoutq.server import address
from timeoutq.server.calls import BATCH_KEPT
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Task, TaskId
from timeoutq.words.retry import Delay, Retries
from timeoutq.worker.handlers import Lifespan, OfApp

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.rooms.batches import On

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
Q = ParamSpec("Q")  # the parameters of the function itself, with the context
O = TypeVar("O")  # noqa: E741  # what a plain call of the function gives; next to P, Q and R, nobody takes it for a zero

IN_PROCESSES: dict[tuple[str, str, str], Registered[..., Any, ..., Any]] = {}
"""The functions with `executor="process"` by their places: a pool process that has imported them finds them here."""

MOST_THREADS = 1_000
NO_INNER = "a middleware that is a def runs in the thread of a function, and an async def has none: write an async def"

_NOT_THEN = ("id", "at", "after", "priority", "queue", "rerun")  # what nobody can choose for a call that follows


class Takes(Protocol[T_contra, R_co]):
    """A function that can be called with one argument."""

    def call(self, result: T_contra, /) -> FunctionCall[R_co]:
        """Make a call."""
        ...


class FunctionCall(msgspec.Struct, Generic[R_co], frozen=True, gc=False):  # nothing that it knows knows it
    """A call of a function, not put yet. Two calls are equal if they ask for the same."""

    definition: Definition
    arguments: Arguments
    chosen: Chosen
    settings: Settings  # those of the function, with what was chosen
    key: str | None  # the id that `key=` makes of the arguments; None: the id will be random, or is chosen
    group: str | None
    home: Program
    following: tuple[tuple[Step, Definition], ...] = ()

    @property
    def expires(self) -> bool:
        """Whether there is a time by which it must have begun."""
        return self.settings.expires is not None or self.chosen.expires is not None

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.definition.name

    def __repr__(self) -> str:
        """Show the call, without its arguments."""
        then = "".join(f".then({step.f})" for step, _ in self.following)
        return f"<call of {self.function}(){then}>"

    @overload
    def then(self, function: Takes[R_co, T], /) -> FunctionCall[T]: ...
    @overload
    def then(
        self, function: TaskFunction[Concatenate[R_co, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> FunctionCall[T]: ...
    def then(self, function: Any, /, *args: Any, **kwargs: Any) -> FunctionCall[Any]:
        """Let a function run on the result once this call has returned; the chain's result is that of its last call.

        The result is the first argument, and `args` and `kwargs` are the others. If this call fails, what follows it is
        not called. The id of what follows is made of that of this call, so `function.options(unique=…)` says how long
        it is not called again if this call runs twice. Raises `BadArguments`, also for a function that can never take
        the result, and `InvalidInput` for options that a following call cannot have.
        """
        next: TaskFunction[..., Any] = function
        next.chosen.refuse(_NOT_THEN, f"{next.name}() follows a call, so it is put when that one returns")
        last = self.following[-1][1] if self.following else self.definition
        next.signature.refuse_result(last.returns, last.name)
        (a, k), _ = next.signature.without_first().encode(args, kwargs)
        chosen = next.chosen.travelling
        step = Step(next.name, msgspec.Raw(a), msgspec.Raw(k), None if chosen is NO_OPTIONS else chosen)
        return msgspec.structs.replace(self, following=(*self.following, (step, next.definition)))

    def delay(self) -> Result[R_co]:
        """Put the call; blocks. Raises `CallTooLarge`, and what `Queue.put` raises."""
        return self.home.post(self)

    async def adelay(self) -> Result[R_co]:
        """Put the call. Raises `CallTooLarge`, and what `AsyncQueue.put` raises."""
        return await self.home.apost(self)


def posted(
    call: FunctionCall[Any], secrets: Secrets, trace: Any = None, *, place: tuple[str, int] | None = None,
    now: float | None = None, put: float | None = None, **options: Any,
) -> Posted:  # fmt: skip
    """Decide everything about a call that is put now; `options` are told to the worker besides those chosen.

    `trace` is what `tracing.api` gives: with it, the call is a part of a trace. `place` is the name of a batch and the
    place of the call there, which make its id if nobody has chosen one. `now` is what the server's clock shows, for a
    call that `expires`; `put` is what the caller's clock shows, which the payload of a call says whose result is kept.
    Raises `CallTooLarge`, and `InvalidInput` for a time that is over.
    """
    chosen, settings, function = call.chosen, call.settings, call.function
    is_named, id = chosen.id is not None or call.key is not None, chosen.id
    if id is None and call.key is not None:
        id = call.key.encode()
    if id is None:
        made = ids.random_id(function) if place is None else ids.in_batch(function, *place, call.arguments)
        id = made.encode()
    then = [step for step, _ in call.following]
    if then and is_named:
        options["again"] = True
    if now is not None and call.expires:
        options |= {"expires": chosen.until(settings.expires, now), "lasts": None}
    travels = msgspec.structs.replace(chosen.travelling, **options) if options else chosen.travelling
    traced = tracing.made(trace, function, settings.queue, id)
    letter = Letter(function, call.arguments, travels, then, None, traced, _put_ms(put, settings))
    payload = seal(letter, settings.queue, id, secrets)
    return Posted(
        settings.queue, id, payload, chosen.at, chosen.after, chosen.priority, settings.unique if is_named else None,
        call.group, settings.limit, bool(chosen.rerun),
    )  # fmt: skip


def _put_ms(now: float | None, settings: Settings) -> int | None:
    return int(now * 1000) if now is not None and settings.keep_result else None


def result_of(sender: Sender, call: FunctionCall[R], put: Posted, answer: Answer | None = None) -> Result[R]:
    """Give what stands for the result of a call that was put; of a chain, for that of its last call."""
    places, settings, returns = [(put.queue, put.id)], call.settings, call.definition.returns
    for step, one in call.following:
        places.append((one.settings.queue, ids.following(places[-1][1], step.f)))
        settings, returns = one.settings.with_options(step.options), one.returns
    return Result(sender, places, returns, settings.keep_result, settings.keep_none, answer)


# ---- functions


class TaskFunction(OfApp, Generic[P, R]):
    """A function of an app, as callers see it: `P` without the context, `R` what it returns in the end."""

    def __init__(self, home: Program, definition: Definition, chosen: Chosen) -> None:
        own: Any = self  # which is no function
        functools.update_wrapper(own, definition.function)
        self.home = home
        self.definition = definition
        self.chosen = chosen  # with `options`
        self.signature: Signature = definition.signature  # what callers pass
        self.settings: Settings = definition.settings.with_options(chosen.travelling)
        if chosen.queue is not None:
            self.settings = replace(self.settings, queue=chosen.queue)
        self.name: str = definition.name  # the name that its calls carry

    def schema(self) -> dict[str, Any]:
        """Give the JSON Schema of the payload of a call, for programs in other languages."""
        return self.signature.schema()

    @functools.cached_property
    def version(self) -> tuple[str, str]:
        """What workers tell of it: a digest that differs where it takes something else, and its schema as JSON."""
        schema = json.dumps(self.schema(), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(schema.encode()).hexdigest()[:16], schema

    def __repr__(self) -> str:
        return f"<function {self.name} of {self.home!r}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> FunctionCall[R]:
        """Make a call, which nobody has put yet. Raises `BadArguments` for arguments that do not fit."""
        definition = self.definition
        self._refuse_without_id("unique", self.chosen.unique)
        encoded, struct = self.signature.encode(args, kwargs)
        values = self.signature.values(struct) if definition.key or definition.group is not None else {}
        key, group = definition.key_of(values), definition.group_of(values)
        return FunctionCall(definition, encoded, self.chosen, self.settings, key, group, self.home)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Put a call; blocks. Raises `BadArguments`, `CallTooLarge`, and what `Queue.put` raises."""
        return self.home.post(self.call(*args, **kwargs))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Put a call. Raises `BadArguments`, `CallTooLarge`, and what `AsyncQueue.put` raises."""
        return await self.home.apost(self.call(*args, **kwargs))

    def options(self, **given: Unpack[CallOptions]) -> TaskFunction[P, R]:
        """Give the same function with options for its calls; what is left out stays as it was.

        `id` is the id of the call, instead of a random one or that of the key. `at` (Unix seconds, or a datetime with a
        time zone) or `after` (seconds, or a timedelta) says when the call becomes ready. `unique` is how long the id
        keeps other calls away, `retry` a list of seconds to wait, `max_runtime` the most seconds of a run, and
        `keep_result` for how many seconds the result is kept: these travel with the call. `priority` is -1000 to 1000,
        on a polite queue. `queue` is another queue of the app. `headers` are texts by name, at most 4 KiB, which the
        function finds in `ctx.headers`, and so do the functions that follow it. With `rerun=True`, the newest arguments
        of an id are run last: a call that is in progress runs once more, with these arguments. A call that has not
        begun `expires` seconds after it is ready, or by a datetime with a time zone, never begins. `on_failed` is as
        for the function.
        Raises `InvalidInput`, which names the option; `unique` without an id or a key is refused when the call is made.
        """
        chosen = options.chosen(self.home.queues, self.chosen, self.home.with_step(given))
        found: TaskFunction[P, R] = TaskFunction(self.home, self.definition, chosen)
        found._refuse_without_id("rerun", found.chosen.rerun)
        return found

    def _refuse_without_id(self, option: str, value: object) -> None:
        if value and self.chosen.id is None and not self.definition.key:
            raise InvalidInput(f"{self.name}(): {option}= is about an id: give the function a key=, or choose an id=")


class Registered(TaskFunction[P, R], Generic[P, R, Q, O]):
    """A decorated function. A plain call of it runs it here and now, as if it were not decorated."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> O:
        """Call the function itself; one that takes a context is given one by the caller."""
        found: O = self.definition.function(*args, **kwargs)
        return found


class Decorator:
    """Makes a task of a function: `@app.task`, or with options `@app.task(retry=[10, 30, 60])`."""

    def __init__(self, home: Program, given: Mapping[str, Any]) -> None:
        self._home = home
        self._given = given

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
    @overload
    def __call__(self, /, **given: Unpack[TaskOptions]) -> Decorator: ...
    def __call__(self, function: Any = None, /, **given: Unpack[TaskOptions]) -> Any:
        """Register a function, or give a decorator with these options. Raises `BadFunction` and `InvalidInput`."""
        if function is None:
            return Decorator(self._home, options.known(given, TaskOptions, "task"))
        return self._home.add(function, self._given)


# ---- batches


Many = Iterable[FunctionCall[Any]]


class BatchOptions(TypedDict, total=False):
    """What `app.batch` takes besides the calls."""

    on: On
    keep: Delay
    name: str | None


@dataclass(frozen=True, slots=True)
class Batched(Generic[R_co]):
    """A batch that was put."""

    name: str  # `queue.batches.look(name)` tells about it
    queue: str
    calls: Sequence[Result[Any]]  # the results of its calls, in the order in which the calls were given
    _then: Result[R_co] | None

    @property
    def then(self) -> Result[R_co]:
        """The result of the callback; raises `InvalidInput` for a batch without one."""
        if self._then is None:
            raise InvalidInput(f"batch {self.name!r} has no callback: pass then= to app.batch")
        return self._then


def _order(ready: Sequence[Posted]) -> list[int] | None:
    """Give, for each call, its place among the tasks of the batch: several calls may be one task, by their key."""
    places: dict[bytes, int] = {}
    for at in itertools.chain.from_iterable(kinds(ready)):
        places.setdefault(ready[at].id, len(places))
    found = [places[call.id] for call in ready]
    return None if found == list(range(len(found))) else found


# ---- the program


class Program:
    """Functions under one name, and what puts their calls; workers read these calls with `open`."""

    def __init__(
        self,
        name: str,
        *,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        retry: Retries = None,
        max_runtime: Delay | None = None,
        keep_result: Delay | None = None,
        no_retry: NoRetry | None = None,
        log_calls: bool = False,
        threads: int = 20,
        url: str | None = None,
        sender: Sender | None = None,
    ) -> None:
        """Make an app.

        `queues` are the queues of its functions: a list, which workers serve in this order, or a mapping of names to
        weights; None is one queue with the app's name. `retry`, `max_runtime` (seconds) and `keep_result` (seconds that
        results are kept: an hour if left out, 0 for not at all) are for functions that say nothing themselves, and so
        is `no_retry`: exceptions after which a call is given up at once. `threads` is how many functions that are a
        plain `def` run at once in a worker process: a database has no more connections from it. `url` is the server, as
        for `Queue`: the first call that is put connects. With `secret`, all calls are signed (but not `ctx.tick`), and
        others are refused; of a list, the first signs and each is accepted. With `log_calls`, workers log a line of
        level INFO for each call that is done. Raises `InvalidInput`.
        """
        self.name = arguments.queue_name(name)
        self.queues = Queues.of(queues, self.name)
        self.secrets = Secrets(secret)
        self.threads = arguments.count(threads, "threads", high=MOST_THREADS)
        self.log_calls = arguments.flag(log_calls, "log_calls")
        self._defaults = {"retry": retry, "max_runtime": max_runtime, "keep_result": keep_result, "no_retry": no_retry}
        options.settings({}, self._defaults, self.name)
        self._functions: dict[str, TaskFunction[..., Any]] = {}
        self.functions: Mapping[str, TaskFunction[..., Any]] = MappingProxyType(self._functions)  # by their names
        self._by_begin: dict[bytes, TaskFunction[..., Any]] = {}  # by how the payloads of their calls begin
        self.middlewares: list[Middleware] = []  # what runs around each call, the outermost first
        self.inner: list[Middleware] = []  # those that are a `def`: they run in the thread, inside of the others
        self.life: Lifespan[Any] | None = None  # what is around the life of a worker; its value is `ctx.state`
        if url is not None:
            address.read(url)  # refuses what is no URL
        self.url = url
        """The server, if the program names it; else the environment does."""
        self.sender = Sender(self.url) if sender is None else sender  # what puts calls, and hears how they have ended

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    # ---- defining functions

    @property
    def task(self) -> Decorator:
        """Make a task of a function: `@app.task`, or with options `@app.task(retry=[10, 30, 60])`.

        `name` is what calls carry (the function's own name if left out), `queue` the queue that they go to. `retry`,
        `max_runtime`, `keep_result` and `no_retry` are as for the app. `key` makes ids of arguments, so that two
        callers make one call: a template such as "thumb:{path}", or True for all arguments; `unique` says how long such
        an id keeps others away ("active" if left out). `limit` says how many calls run at once. With
        `executor="process"`, a plain `def` runs in a process, which is killed when the time of the call is over, or
        somebody cancels it. `expires` is in how many seconds a call must begin once it is ready; later, it never
        begins. `cron` (with `tz`) or `every` calls the function by itself, without arguments; `times`, `missed`,
        `grace` and `overlap` belong to it. `on_failed` is a function of the app that is called, with the id and the
        error, when a call has failed for good.
        Raises `BadFunction` for a function that cannot be a task, `InvalidInput` for options.
        """
        return Decorator(self, {})

    def add(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Registered[..., Any, ..., Any]:
        """Register a function with the options of its decorator."""
        settings = options.settings(self.with_step(given), self._defaults, self.queue_of(given.get("queue")))
        new = define(function, given.get("name"), settings, given.get("key"), self.name)
        if new.is_async and self.inner:
            raise BadFunction(f"{new.name}() is an async def: {NO_INNER}")
        name, begin = new.name, new.key_begins
        if name in self._functions:
            raise BadFunction(f"{self!r} has a function {name!r} already: pass another name=, such as 'billing.{name}'")
        for other in self._functions.values():
            if other.settings.queue != settings.queue:
                continue
            found = other.definition.key_begins
            if found is not None and begin is not None and (found.startswith(begin) or begin.startswith(found)):
                raise BadFunction(
                    f"the keys of {name}() and {other.name}() may make the same id, and one call would keep the other "
                    f"away: let them begin differently, for example with '{name}:'"
                )
            if other.definition.counts_with(new) and other.settings.limit != settings.limit:
                raise BadFunction(
                    f"{name}() and {other.name}() count their calls together, in queue {settings.queue!r}, and have "
                    "different limits: give both the same Limit(…), or another per="
                )
        made = Registered[..., Any, ..., Any](self, new, Chosen())
        if settings.executor == "process":
            IN_PROCESSES[new.place] = made
        self._functions[name] = self._by_begin[opening_of(name)] = made
        return made

    def with_step(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give options, with the function of `on_failed=` as it travels. Raises `InvalidInput` and `BadArguments`."""
        next: Any = given.get("on_failed")
        if next is None:
            return given
        told = shown(next)
        if not isinstance(next, TaskFunction) or next.home is not self:
            raise InvalidInput(f"on_failed= takes a function of {self!r}, not {told}")
        why = f"{next.name}() is put into the queue of the call that has failed, at once, and never expires"
        next.chosen.refuse((*_NOT_THEN, "expires"), why)
        if next.settings.limit is not None:
            raise InvalidInput(f"on_failed={next.name} cannot be: a function with limit= is not put when a call fails")
        next.signature.encode(("id", "error"), {})
        chosen = next.chosen.travelling
        return {**given, "on_failed": Step(next.name, o=None if chosen is NO_OPTIONS else chosen)}

    def queue_of(self, queue: str | None) -> str:
        """Check the name of a queue of this app; None is the usual one. Raises `InvalidInput`."""
        usual = self.queues.usual(self.name) if queue is None else self.queues.one(queue)
        if usual is None:
            raise InvalidInput(f"{self!r} has several queues, and none is called {self.name!r}: say queue=")
        return usual

    def schemas(self) -> dict[str, dict[str, Any]]:
        """Give the JSON Schema of each function's payload, by name."""
        return {name: one.schema() for name, one in self._functions.items()}

    def queue(self, name: str | None = None) -> AnyQueue:
        """Give one of the app's queues, by default the usual one, to look into it; blocks. Raises `InvalidInput`."""
        return self.sender.queue(self.queue_of(name))

    # ---- putting calls

    def named(self, name: str, queue: str | None = None) -> TaskFunction[..., Any]:
        """Give a function by its name. One that another program has takes any arguments, which only a worker checks.

        Of such a function nothing is known here: its calls have no key and no limit, and what they return is read as it
        comes. Raises `BadFunction` for what is no name, and `InvalidInput` for what is no queue of this app.
        """
        found = self._functions.get(name)
        if found is not None:
            return found if queue is None else found.options(queue=queue)
        settings = options.settings({}, self._defaults, self.queue_of(queue))
        return TaskFunction(self, define(_elsewhere, ids.function_name(name), settings, None, self.name), Chosen())

    def send(self, name: str, /, *args: Any, queue: str | None = None, **kwargs: Any) -> Result[Any]:
        """Put a call of a function by its name, as `named(name, queue).delay(…)` does; blocks."""
        return self.named(name, queue).delay(*args, **kwargs)

    async def asend(self, name: str, /, *args: Any, queue: str | None = None, **kwargs: Any) -> Result[Any]:
        """Put a call of a function by its name; see `send`."""
        return await self.named(name, queue).adelay(*args, **kwargs)

    def post(self, call: FunctionCall[R], /) -> Result[R]:
        """Put one call; blocks."""
        return self.sender.do(self._putting([call]))[0]

    async def apost(self, call: FunctionCall[R], /) -> Result[R]:
        """Put one call."""
        return (await self.sender.ado(self._putting([call])))[0]

    def put(self, many: Iterable[FunctionCall[R]], /) -> list[Result[R]]:
        """Put calls, and give their results in the same order; blocks. If one of the calls is bad, none is put."""
        return self.sender.do(self._putting(_several(many)))

    async def aput(self, many: Iterable[FunctionCall[R]], /) -> list[Result[R]]:
        """Put calls, and give their results in the same order. If one of the calls is bad, none is put."""
        return await self.sender.ado(self._putting(_several(many)))

    def _putting(self, many: Sequence[FunctionCall[Any]]) -> Steps[list[Result[Any]]]:
        ready = yield from self._ready([self._own(call) for call in many])
        answers = yield from self.sender.putting(ready)
        return [result_of(self.sender, *row) for row in zip(many, ready, answers, strict=True)]

    def _ready(self, calls: Sequence[FunctionCall[Any]], batch: str | None = None) -> Steps[list[Posted]]:
        """Decide everything about calls that are put now; `batch` is the name of their batch, if it makes their ids."""
        trace, put = tracing.api(), self.sender.now()
        expiring = {call.settings.queue for call in calls if call.expires}
        times = (yield from self.sender.times(expiring)) if expiring else {}
        return [
            posted(
                call, self.secrets, trace, place=None if batch is None else (batch, at),
                now=times.get(call.settings.queue), put=put,
            )
            for at, call in enumerate(calls)
        ]  # fmt: skip

    @overload
    def batch(self, many: Many, /, then: FunctionCall[R], **how: Unpack[BatchOptions]) -> Batched[R]: ...
    @overload
    def batch(self, many: Many, /, then: None = None, **how: Unpack[BatchOptions]) -> Batched[None]: ...
    def batch(self, many: Many, /, then: FunctionCall[Any] | None = None, **how: Unpack[BatchOptions]) -> Batched[Any]:
        """Put calls, and let `then` run once when all of them have ended; blocks.

        With `on="done"` (else `"ended"`) all calls must return; if one fails, `then` fails too, and says how many have
        failed. `then` finds what the calls have returned in `ctx.batch.results()`. The calls and `then` go to one
        queue, which must not lie in several shards. Whoever puts the same calls again with the same `name` has the same
        batch: what is in it already is not put again. The batch is kept for `keep` seconds (a day) after its end, and
        each result for so long after the end of its call, at least. Raises `InvalidInput`, `CallTooLarge`, and what
        `Queue.put` raises.
        """
        return self.sender.do(self._putting_batch(many, then, how))

    @overload
    async def abatch(self, many: Many, /, then: FunctionCall[R], **how: Unpack[BatchOptions]) -> Batched[R]: ...
    @overload
    async def abatch(self, many: Many, /, then: None = None, **how: Unpack[BatchOptions]) -> Batched[None]: ...
    async def abatch(
        self, many: Many, /, then: FunctionCall[Any] | None = None, **how: Unpack[BatchOptions]
    ) -> Batched[Any]:
        """Put calls, and let `then` run once when all of them have ended; see `batch`."""
        return await self.sender.ado(self._putting_batch(many, then, how))

    def _putting_batch(self, many: Many, then: FunctionCall[Any] | None, how: BatchOptions) -> Steps[Batched[Any]]:
        from timeoutq.rooms.batches import checked  # a program without batches needs no client

        chosen, sender = options.known(how, BatchOptions, "batch"), self.sender
        given = chosen.get("name")
        name = ids.random_id("batch") if given is None else checked(given)
        keep = arguments.delay_ms(chosen.get("keep", BATCH_KEPT), "keep") / 1000
        calls = [self._own(call) for call in _several(many)]
        chained = next((call for call in calls if call.following), None)
        if chained is not None:
            raise InvalidInput(
                f"a call of {chained.function}() is followed by others, and would count as ended when it returns "
                "itself: put the first calls of chains alone, or let a function call the others"
            )
        ready = yield from self._ready(calls, None if given is None else name)
        last = None if then is None else self._callback(then, ready, name, given is None)
        queues = sorted({call.queue for call in [*ready, *([] if last is None else [last])]})
        if len(queues) > 1:
            raise InvalidInput(
                f"the calls of a batch go to one queue, its callback too, and these go to {', '.join(queues)}: choose "
                "one with .options(queue=…)"
            )
        queue = queues[0] if queues else self.queues.names[0]
        put = sender.putting_batch(name, queue, ready, last, chosen.get("on", "ended"), keep, given is None)
        results = [result_of(sender, *row) for row in zip(calls, ready, (yield from put), strict=True)]
        return Batched(name, queue, results, None if then is None or last is None else result_of(sender, then, last))

    def _callback(self, then: FunctionCall[Any], ready: Sequence[Posted], name: str, is_new: bool) -> Posted:
        """Decide everything about the callback of a batch."""
        if then.settings.executor == "process" and then.definition.signature.context:
            raise InvalidInput(
                f"{then.function}() runs in a process, where it cannot ask ctx.batch: let it have a thread"
            )
        why = "the callback of a batch is put once, when it has ended"
        self._own(then).chosen.refuse(("at", "after", "rerun", "expires"), why)
        # whoever puts the batch again seals it with the same callback: it has no trace and no time of its own
        place, trace, put = (None, tracing.api(), self.sender.now()) if is_new else ((name, len(ready)), None, None)
        return posted(then, self.secrets, trace, place=place, put=put, batch=name, order=_order(ready))

    def _own(self, call: FunctionCall[Any]) -> FunctionCall[Any]:
        if not isinstance(call, FunctionCall):  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
            named = call.name if isinstance(call, TaskFunction) else "send"
            raise InvalidInput(f"this takes {named}.call(…), not {shown(call)}")
        if call.home is not self:
            raise InvalidInput(f"a call of {call.function}() belongs to {call.home!r}, not to {self!r}")
        return call

    @overload
    def result(self, id: TaskId, function: TaskFunction[..., R], /, *, queue: str | None = None) -> Result[R]: ...
    @overload
    def result(self, id: TaskId, /, *, queue: str | None = None) -> Result[Any]: ...
    def result(
        self, id: TaskId, function: TaskFunction[..., Any] | None = None, /, *, queue: str | None = None
    ) -> Result[Any]:
        """Give what stands for the result of a call that was put elsewhere, by its id; asks nobody yet.

        With the function, the result is read as the type that the function says. `queue` is the queue of the call, if
        that is not the function's, or the usual one. The first call of a chain is looked for in all queues of the app,
        unless `queue` is another than that of the last call. Raises `InvalidInput`.
        """
        first, *following = ids.chain(arguments.task_id(id))
        of_last = [self._functions[name].settings.queue for _, name in following[-1:] if name in self._functions]
        if not following or (queue is not None and queue not in of_last):
            named = self.queue_of(queue) if function is None or queue is not None else function.settings.queue
            places = [(named, first[0])]
        else:
            places = [(one, first[0]) for one in self.queues.names]
        for own, name in following:
            known = self._functions.get(name)
            places.append((places[0][0] if known is None else known.settings.queue, own))
        returns = Any if function is None else function.definition.returns
        return Result(self.sender, places, returns)

    def close(self) -> None:
        """Close the connections of callers that block; a later call opens new ones."""
        self.sender.close()

    async def aclose(self) -> None:
        """Close the connections of callers in this event loop; a later call opens new ones."""
        await self.sender.aclose()

    # ---- for workers

    def open(self, payload: object, queue: str, id: bytes, secrets: Secrets | None = None) -> Opened:
        """Read the payload of a task that was claimed, the bytes as they stand in Redis.

        Raises what is in `MAY_FIT_LATER` of `errors.py`, and `NotACall`, `CallTooLarge` and `Forged`.
        """
        if secrets is None and (usual := self.open_usual(payload)) is not None:
            return usual
        letter = unseal(payload, queue, id, self.secrets if secrets is None else secrets)
        function = self._functions.get(letter.function)
        if function is None:
            raise self._unknown(letter.function)
        if letter.then and letter.then[0].f not in self._functions:
            raise self._unknown(letter.then[0].f)
        args, kwargs = function.signature.decode(letter.arguments)
        settings = function.settings.with_options(letter.options)
        return Opened(
            function.definition, args, kwargs, settings, letter.options, letter.then, letter.tick, letter.put_ms
        )

    def open_usual(self, payload: object) -> Opened | None:
        """Read what `open` reads, made quick for a call without options, signature or followers; None for any other."""
        begins, data, put_ms = usual_parts(payload)
        function = None if self.secrets else self._by_begin.get(begins)
        if function is None or (found := function.signature.decode_named(data)) is None:
            return None
        return Opened(function.definition, *found, function.settings, NO_OPTIONS, (), None, put_ms)

    def failure(self, error: BaseException) -> bytes:
        """Give what is kept of why a call has failed, as JSON. Never raises."""
        return outcomes.failure(error)

    def _unknown(self, name: str) -> UnknownFunction:
        return UnknownFunction(
            f"{self!r} has no function {shown(name)} here: is the worker's program older than the caller's, or does it "
            "not import the module?",
            function=name,
        )

    def follow(self, opened: Opened, queue: str, id: bytes, result: bytes, now: float) -> Posted | None:
        """Give the call that follows a call which has ended `now` with a result, as JSON; None if none follows."""
        if not opened.then:
            return None
        step, rest = opened.then[0], opened.then[1:]
        function = self._functions[step.f]  # `open` has looked
        settings = function.settings
        found = function.signature.with_first(result, step.arguments)
        group = function.definition.group_of_call(*function.signature.decode(found))
        own, target = ids.following(id, step.f), settings.queue
        again = opened.options.again
        travels = msgspec.structs.replace(step.options, again=True) if again and rest else step.options
        lasts = step.options.lasts or settings.expires
        if lasts is not None and step.options.expires is None:
            travels = msgspec.structs.replace(travels, expires=now + lasts, lasts=None)
        travels, traced = _with_headers(opened, travels), tracing.made(tracing.api(), step.f, target, own)
        put_ms = _put_ms(self.sender.now(), settings.with_options(step.options))
        letter = Letter(step.f, found, travels, rest, None, traced, put_ms)
        # otherwise an id in done keeps the call away, for as long as it is there
        blocks: Any = "active" if (step.options.unique or settings.unique) == "active" else None
        return Posted(
            target, own, seal(letter, target, own, self.secrets), None, None, None, blocks, group, settings.limit,
            # if the call was put again, what follows has the newest result, whether it waits, runs or has failed
            rerun=again and blocks is not None,
        )  # fmt: skip

    def failed(self, payload: object, queue: str, id: bytes, error: str) -> Task:
        """Give the call that is put when a call, which says `on_failed`, has failed for good. Raises what `open` does.

        It is put again if it has ended since, because somebody has tried the failed call again.
        """
        opened, trace = self.open(payload, queue, id), tracing.api()
        step: Any = opened.settings.on_failed
        own, travels = ids.on_failed(id, step.f), _with_headers(opened, step.options)
        a = msgspec.json.encode([id.decode("utf-8", "replace"), error])
        parent = None if trace is None else tracing.read(payload)[1]
        made = tracing.made(trace, step.f, queue, own, parent)
        letter = Letter(step.f, Arguments(a, b"{}"), travels, trace=made)
        return Task(own, arguments.Packed(seal(letter, queue, own, self.secrets)), unique=0)


def _with_headers(opened: Opened, options: Options) -> Options:
    """Give the options of a call that comes of another one, with the headers of both."""
    found = opened.options.headers
    return msgspec.structs.replace(options, headers={**found, **(options.headers or {})}) if found else options


async def _elsewhere(*args: Any, **kwargs: Any) -> Any:
    """Stand for a function that another program has."""


def _several(many: Many) -> list[FunctionCall[Any]]:
    if isinstance(many, FunctionCall | TaskFunction) or not isinstance(many, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
        raise InvalidInput(f"this takes several calls, not {shown(many)}: write [f.call(…), …], or f.delay(…)")
    return list(many)
