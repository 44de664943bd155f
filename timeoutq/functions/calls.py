"""A call as a value: which function, with which arguments, when, under which id, and what follows. No I/O.

`send.call("a@example.com")` makes a `Call`, which may be kept, put later, or put with many others. Nothing is random
before `posted`, so a call that is put twice runs twice, unless a key or an id says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from timeoutq.functions import ids, tracing
from timeoutq.functions.envelope import NO_OPTIONS, Letter, Options, Secrets, Step, seal
from timeoutq.functions.options import Chosen, Settings
from timeoutq.functions.sender import Answers, Later, Posted, Result
from timeoutq.functions.signature import Arguments, Signature
from timeoutq.words.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

_NOT_THEN = ("id", "at", "after", "priority", "queue", "rerun")
"""What nobody can choose for a call that follows another one: it is put when that one ends."""


class Home(Protocol):
    """What a call needs of its app."""

    def post(self, call: Call[R], /) -> Result[R]:
        """Put a call; blocks."""
        ...

    async def apost(self, call: Call[R], /) -> Result[R]:
        """Put a call."""
        ...


class Follower(Protocol):
    """What `then` needs of a function, whatever it takes."""

    @property
    def signature(self) -> Signature:
        """What callers pass."""
        ...

    @property
    def settings(self) -> Settings:
        """What its decorator says."""
        ...

    @property
    def chosen(self) -> Chosen:
        """What was chosen with `options`."""
        ...

    @property
    def returns(self) -> Any:
        """The type of its result."""
        ...


class Takes(Follower, Protocol[T_contra, R_co]):
    """A function that can be called with one argument."""

    def call(self, result: T_contra, /) -> Call[R_co]:
        """Make a call."""
        ...


class Follows(Follower, Protocol[P, R_co]):
    """A function with all that it takes. Type checkers want its first parameter to be just the type of the result."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Make a call."""
        ...


@dataclass(frozen=True, slots=True)
class Next:
    """A call that follows, and where it goes."""

    step: Step
    settings: Settings
    returns: Any = field(repr=False)


class Call(msgspec.Struct, Generic[R_co], frozen=True, gc=False):  # a call is in no cycle: nothing it knows knows it
    """A call of a function, not put yet. Two calls are equal if they ask for the same."""

    function: str
    arguments: Arguments
    settings: Settings
    chosen: Chosen
    key: str | None
    """The id that `key=` makes of the arguments; None: the id will be random, or is chosen."""
    group: str | None
    home: Home
    returns: Any
    following: tuple[Next, ...] = ()

    def __repr__(self) -> str:
        """Show the call, without its arguments."""
        then = "".join(f".then({one.step.f})" for one in self.following)
        return f"<call of {self.function}(){then}>"

    @overload
    def then(self, function: Takes[R_co, T], /) -> Call[T]: ...
    @overload
    def then(self, function: Follows[Concatenate[R_co, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...
    def then(self, function: Follower, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Let a function run on the result once this call has returned; the chain's result is that of its last call.

        The result is the first argument, and `args` and `kwargs` are the others. The function is put in the step that
        acks this call. If this call fails, what follows it is not called. Its id is made of that of this call, so
        `function.options(unique=…)` says how long it is not called again if this call runs twice. If this call has a
        key, or an id that was chosen, and is put again, its new result goes on, whatever became of the last one.
        Raises `BadArguments`, also for a function that can never take the result, such as a str for an int, and
        `InvalidInput` for options that a following call cannot have.
        """
        wrong = [f"{name}=" for name in function.chosen.named if name in _NOT_THEN]
        if wrong:
            raise InvalidInput(
                f"{function.signature.name}() follows a call, so it is put when that one returns: leave out "
                f"{', '.join(wrong)}"
            )
        given = self.following[-1].returns if self.following else self.returns
        function.signature.refuse_result(given, self.following[-1].step.f if self.following else self.function)
        encoded = function.signature.without_first().encode(args, kwargs)
        a, k = map(msgspec.Raw, encoded.arguments)
        chosen = travelling(function.chosen)
        step = Step(function.signature.name, a, k, None if chosen == Options() else chosen)
        following = (*self.following, Next(step, function.settings, function.returns))
        return msgspec.structs.replace(self, following=following)

    def delay(self) -> Result[R_co]:
        """Put the call; blocks. Raises `CallTooLarge`, and what `Queue.put` raises."""
        return self.home.post(self)

    async def adelay(self) -> Result[R_co]:
        """Put the call. Raises `CallTooLarge`, and what `AsyncQueue.put` raises."""
        return await self.home.apost(self)


def travelling(chosen: Chosen) -> Options:
    """Give the options of a call that a worker must know."""
    unique = chosen.unique.total_seconds() if isinstance(chosen.unique, timedelta) else chosen.unique
    if chosen.retry is None and chosen.max_runtime is None and chosen.keep_result is None and unique is None:
        return NO_OPTIONS
    retry = None if chosen.retry is None else list(chosen.retry)
    return Options(retry, chosen.max_runtime, chosen.keep_result, unique)


def id_of(call: Call[Any]) -> tuple[bytes, bool]:
    """Give the id of a call that is put now, and whether somebody chose it, by `id=` or `key=`."""
    if call.chosen.id is not None:
        return call.chosen.id, True
    if call.key is not None:
        return call.key.encode(), True
    return ids.random_id(call.function).encode(), False


def posted(
    call: Call[Any],
    secrets: Secrets,
    travels: Options | None = None,
    *,
    place: tuple[str, int] | None = None,
    is_now: bool = True,
) -> Posted:
    """Decide everything about a call that is put now. `travels` are the options that go along, None: those chosen.

    `place` is the name of a batch and the place of the call there, which make its id if nobody has chosen one.
    What a schedule puts is not put now (`is_now=False`), and is no part of a trace. Raises `CallTooLarge`.
    """
    chosen, settings = call.chosen, call.settings
    id, is_named = id_of(call)
    if place is not None and not is_named:
        id = ids.in_batch(call.function, *place, call.arguments).encode()
    queue = chosen.queue or settings.queue
    travels = travelling(chosen) if travels is None else travels
    then = [one.step for one in call.following] if call.following else ()
    if then and is_named:
        travels = msgspec.structs.replace(travels, again=True)
    trace = tracing.made(call.function, queue, id) if is_now else None
    letter = Letter(call.function, call.arguments, travels, then, trace=trace)
    unique = (chosen.unique or settings.unique) if is_named else None
    payload, answers, when = seal(letter, queue, id, secrets), _answers(call, queue, id), (chosen.at, chosen.after)
    rerun = bool(chosen.rerun)
    limit, later = settings.limit, _later(call.following) if call.following else ()
    return Posted(queue, id, payload, *when, chosen.priority, unique, call.group, answers, limit, rerun, later)


def _later(following: tuple[Next, ...]) -> tuple[Later, ...]:
    return tuple(
        Later(settings.queue, ids.group(one.step.f), settings.limit if settings.limit.per is None else None)
        for one in following
        if (settings := one.settings).limit is not None
    )


def _answers(call: Call[Any], queue: str, id: bytes) -> Answers:
    if not call.following:
        return answers(queue, id, call.settings, call.chosen.keep_result, call.returns)
    places = [(queue, id)]
    for one in call.following:
        places.append((one.settings.queue, ids.following(places[-1][1], one.step.f)))
    last = call.following[-1]
    return answers(*places[-1], last.settings, last.step.options.keep_result, last.returns, tuple(places[:-1]))


def answers(
    queue: str,
    id: bytes,
    settings: Settings,
    chosen: float | None,
    returns: Any,
    before: tuple[tuple[str, bytes], ...] = (),
) -> Answers:
    """Say where the result of a call will be; `chosen` is for how long it is kept, None as the function says."""
    if chosen is None:
        return Answers(queue, id, settings.keep_result, returns, settings.keep_none, before)
    return Answers(queue, id, chosen, returns, True, before)
