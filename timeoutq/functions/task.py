"""A function that is a task: it stays the function that it was, and `.delay` and its like make calls of it. No I/O.

`App.task` makes these. A method here either makes a `Call` or hands one to the app.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, cast

from timeoutq.functions import ids, options
from timeoutq.functions.calls import Call, Home
from timeoutq.functions.envelope import Options, Step
from timeoutq.functions.errors import BadFunction
from timeoutq.functions.options import Chosen, Queues, Settings, Unique
from timeoutq.functions.sender import Result
from timeoutq.functions.signature import Signature, returned
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import TaskId
from timeoutq.words.retry import Delay, RetryPolicy
from timeoutq.worker.handlers import OfApp

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
"""The parameters of the function itself, with the context."""
O = TypeVar("O")  # noqa: E741  # beside P, Q and R, nobody takes it for a zero
"""What a plain call of the function gives: of an `async def`, a coroutine."""


@dataclass(frozen=True, slots=True)
class Definition:
    """All that is known of a function when it is decorated."""

    function: Callable[..., Any]
    is_async: bool
    signature: Signature
    returns: Any
    """The type of its result, as msgspec takes it."""
    settings: Settings
    key: ids.Template | bool
    """What makes ids of arguments; True: all arguments; False: nothing does."""
    group: ids.Template | None
    queues: Queues
    is_plain: bool = field(init=False)
    """Whether a worker need only await it: an `async def` without a context, and without a limit of any kind."""

    def __post_init__(self) -> None:
        """Work out once what a worker asks for each call."""
        settings = self.settings
        is_free = settings.max_runtime is None and settings.limit is None
        is_plain = self.is_async and self.signature.context is None and is_free
        object.__setattr__(self, "is_plain", is_plain)

    @property
    def key_begins(self) -> str | None:
        """What all ids begin with that the key makes; None without a key."""
        if self.key is True:
            return f"{self.signature.name}:"
        return self.key.begin if isinstance(self.key, ids.Template) else None

    def group_of(self, values: Mapping[str, object]) -> str | None:
        """Give the group in which the function's limit counts a call."""
        if self.settings.limit is None:
            return None
        name = self.signature.name
        return ids.group(name if self.group is None else self.group.fill(name, values))

    def counts_with(self, other: Definition) -> bool:
        """Say whether the limits of both functions count their calls in the same groups."""
        mine, theirs = self.settings, other.settings
        if mine.limit is None or theirs.limit is None or mine.queue != theirs.queue:
            return False
        return (mine.limit.per or self.signature.name) == (theirs.limit.per or other.signature.name)

    def group_of_call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
        """Give the group in which the function's limit counts a call whose arguments have been read."""
        if self.group is None:
            return self.group_of({})
        bound = self.signature.bind(args, kwargs)
        slots = self.signature.slots.values()
        return self.group_of({one.name: bound.get(one.name, one.otherwise) for one in slots})

    def key_of(self, values: Mapping[str, object]) -> str | None:
        """Give the id that the key makes of arguments."""
        name = self.signature.name
        if isinstance(self.key, ids.Template):
            return ids.shortened(self.key.fill(name, values))
        return ids.whole_call(name, values) if self.key else None


@dataclass(slots=True)  # not frozen: a worker makes one for each call, and frozen ones take three times as long
class Opened:
    """A call that a worker has read: what to run, and how."""

    definition: Definition
    args: Sequence[object]
    kwargs: Mapping[str, object]
    options: Options
    then: Sequence[Step]
    tick: float | None = None
    """The time for which a schedule has put the call, Unix seconds."""

    @property
    def max_runtime(self) -> float | None:
        """The most seconds that the call may run; None: as the worker says."""
        return self.definition.settings.max_runtime if self.options.max_runtime is None else self.options.max_runtime

    @property
    def keep_result(self) -> float:
        """Seconds for which the result is kept; 0 is not at all."""
        return self.definition.settings.keep_result if self.options.keep_result is None else self.options.keep_result

    @property
    def keep_none(self) -> bool:
        """Whether a result that is None is kept, too."""
        return self.options.keep_result is not None or self.definition.settings.keep_none

    @property
    def unique(self) -> Unique:
        """How long the id of the call keeps other calls away."""
        chosen = self.options.unique
        if chosen is None:
            return self.definition.settings.unique
        return chosen if isinstance(chosen, str) else timedelta(seconds=chosen)

    @property
    def leaves_no_id(self) -> bool:
        """Whether `done` keeps no id of the call: its id keeps other calls away while the call is active, at most."""
        return self.unique == "active"

    @property
    def keep_id(self) -> bool | timedelta:
        """Whether `done` keeps the id of the call, or for how long: as long as it keeps other calls away."""
        unique = self.unique
        return unique if isinstance(unique, timedelta) else unique != "active"

    @property
    def retry(self) -> RetryPolicy | None:
        """When the call is tried again; None: as the queue says."""
        return self.definition.settings.retry if self.options.retry is None else options.policy(self.options.retry)


def define(
    function: Callable[..., Any], name: str | None, settings: Settings, key: object, queues: Queues
) -> Definition:
    """Read a function. Raises `BadFunction`, which names what cannot be, and how to mend it."""
    named = _named(function, name)
    signature = Signature.of(function, named)
    timed = settings.timed
    needed = [one.name for one in signature.slots.values() if one.is_needed]
    if timed is not None and needed:
        raise BadFunction(
            f"{named}() is called by its schedule without arguments, but needs {' and '.join(map(repr, needed))}: give "
            "a default, or make a schedule of a call, with app.schedules.set"
        )
    template = ids.Template.of(key, signature) if key is not None and key is not True else None
    if key is True:
        ids.check_whole(signature)
    limit = settings.limit
    per = None if limit is None or limit.per is None else ids.Template.of(limit.per, signature, "per")
    if template is None and key is not True and settings.unique != "active":
        raise BadFunction(
            f"{named}(): unique= is about ids that a key makes: add key=, or, where it follows "
            "another call, write then(f.options(unique=…))"
        )
    return Definition(
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        signature=signature,
        returns=_returns(function, named, settings),
        settings=settings,
        key=template if template is not None else key is True,
        group=per,
        queues=queues,
    )


def _returns(function: Callable[..., Any], name: str, settings: Settings) -> Any:
    try:
        return returned(function, name)
    except BadFunction:
        if settings.keep_result:
            raise
        return Any  # nobody keeps it


def _named(function: Callable[..., Any], name: str | None) -> str:
    if not inspect.isfunction(function):
        kind = "a class" if inspect.isclass(function) else type(function).__name__
        raise BadFunction(f"{shown(function)} is no function ({kind}): decorate what def or async def makes")
    outer, _, own = function.__qualname__.rpartition(".")
    if outer and not outer.endswith("<locals>"):
        raise BadFunction(
            f"{function.__qualname__} is a method: a call has no object to run it on; move it out of {outer}"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadFunction(f"{own}() is a generator function: calling it runs nothing; return a list where it yields")
    if own == "<lambda>" and name is None:
        raise BadFunction("a lambda has no name under which a worker could find it: use def, or pass name=")
    return ids.function_name(own if name is None else name)


class TaskFunction(OfApp, Generic[P, R]):
    """A function of an app, as callers see it: `P` without the context, `R` what it returns in the end."""

    def __init__(self, home: Home, definition: Definition, chosen: Chosen) -> None:
        """Prepare; `App.task` makes these."""
        functools.update_wrapper(cast("Callable[..., Any]", self), definition.function)
        self.home = home
        self.definition = definition
        self.chosen = chosen
        """What was chosen with `options`."""

    @property
    def name(self) -> str:
        """The name that its calls carry."""
        return self.definition.signature.name

    @property
    def signature(self) -> Signature:
        """What callers pass."""
        return self.definition.signature

    @property
    def settings(self) -> Settings:
        """What its decorator says."""
        return self.definition.settings

    @property
    def returns(self) -> Any:
        """The type of its result, as msgspec takes it."""
        return self.definition.returns

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

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Make a call, which nobody has put yet. Raises `BadArguments` for arguments that do not fit."""
        definition = self.definition
        if self.chosen.unique is not None and self.chosen.id is None and not definition.key:
            raise InvalidInput(f"{self.name}(): unique= is about an id: give the function a key=, or choose an id=")
        encoded = definition.signature.encode(args, kwargs)
        return Call(
            function=definition.signature.name,
            arguments=encoded.arguments,
            settings=definition.settings,
            chosen=self.chosen,
            key=definition.key_of(encoded.values) if definition.key else None,
            group=definition.group_of(encoded.values) if definition.settings.limit is not None else None,
            home=self.home,
            returns=definition.returns,
        )

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Put a call; blocks. Raises `BadArguments`, `CallTooLarge`, and what `Queue.put` raises."""
        return self.home.post(self.call(*args, **kwargs))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Put a call. Raises `BadArguments`, `CallTooLarge`, and what `AsyncQueue.put` raises."""
        return await self.home.apost(self.call(*args, **kwargs))

    def options(
        self,
        *,
        id: TaskId | None = None,
        at: float | datetime | None = None,
        after: Delay | None = None,
        unique: Unique | None = None,
        priority: int | None = None,
        retry: Sequence[Delay] | None = None,
        keep_result: Delay | None = None,
        max_runtime: Delay | None = None,
        queue: str | None = None,
        rerun: bool | None = None,
    ) -> TaskFunction[P, R]:
        """Give the same function with options for its calls; what is left out stays as it was.

        `id` is the id of the call, instead of a random one or that of the key. `at` (Unix seconds, or a datetime with a
        time zone) or `after` (seconds, or a timedelta) says when the call becomes ready. `unique` is how long the id
        keeps other calls away, `retry` a list of seconds to wait, `max_runtime` the most seconds of a run, and
        `keep_result` for how many seconds the result is kept: these travel with the call. `priority` is -1000 to 1000,
        on a polite queue. `queue` is another queue of the app. With `rerun=True`, the newest arguments of an id are run
        last: a call that is in progress runs once more, with these arguments.
        Raises `InvalidInput`, which names the option; `unique` without an id or a key is refused when the call is made.
        """
        found = options.chosen(
            self.definition.queues, self.chosen, id=id, at=at, after=after, unique=unique, priority=priority,
            retry=retry, keep_result=keep_result, max_runtime=max_runtime, queue=queue,
            rerun=rerun,
        )  # fmt: skip
        if found.rerun and found.id is None and not self.definition.key:
            raise InvalidInput(f"{self.name}(): rerun= is about an id: give the function a key=, or choose an id=")
        return TaskFunction(self.home, self.definition, found)


class Registered(TaskFunction[P, R], Generic[P, R, Q, O]):
    """A decorated function. A plain call of it runs it here and now, as if it were not decorated."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> O:
        """Call the function itself; one that takes a context is given one by the caller."""
        found: O = self.definition.function(*args, **kwargs)
        return found
