"""The options of decorators and of callers, checked: queues, ids, times, limits of calls. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import msgspec

from timeoutq.functions.envelope import NO_OPTIONS, Options, Step
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import TaskId
from timeoutq.words.retry import LONGEST, Delay, Retries, RetryPolicy
from timeoutq.worker.handlers import OfApp

if TYPE_CHECKING:
    from timeoutq.rooms.schedules.definition import Schedule

Unique = Literal["active", "forever"] | timedelta
"""How long the id of a call keeps other calls away. "active": while the call is ready, scheduled or in progress; a
timedelta: then, and for this time after the call has ended; "forever": always."""

Executor = Literal["thread", "process"]
"""Where a plain `def` runs: in a thread of the worker, or in a process, which can be killed."""

KEEP_RESULT = 3600.0  # seconds for which results are kept if nobody says otherwise
MOST_RETRIES = 1_000
MOST_QUEUES = 100
MOST_HEADERS = 4096  # bytes of all names and values

_OF_FUNCTIONS = ("max_runtime", "keep_result", "unique", "expires", "no_retry", "on_failed", "executor")

NoRetry = type[BaseException] | tuple[type[BaseException], ...]
"""Exceptions after which a call is given up at once; in an exception group, one of them is enough."""


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of an app, and in which order, or in which shares, its workers serve them."""

    names: tuple[str, ...]
    weights: tuple[int, ...] | None = None
    """The share of each queue; None: a queue is served when those before it are empty."""

    @classmethod
    def of(cls, given: object, app: str) -> Queues:
        """Check queues: a list in order, or a mapping of names to weights; None is one queue of the app's name."""
        if given is None:
            given = [app]
        if not isinstance(given, Mapping | Sequence) or isinstance(given, str | bytes):
            raise InvalidInput(f"queues= takes a list of names, or a mapping of names to weights, not {shown(given)}")
        names = tuple(map(arguments.queue_name, cast("Sequence[object]", given)))
        if not 1 <= len(set(names)) == len(names) <= MOST_QUEUES:
            raise InvalidInput(f"queues= names {', '.join(names) or 'none'}: name 1 to {MOST_QUEUES} queues, each once")
        if not isinstance(given, Mapping):
            return cls(names)
        shares = cast("Mapping[str, object]", given)
        return cls(
            names, tuple(arguments.count(shares[one], f"the weight of queue {one}", high=1_000_000) for one in names)
        )

    def one(self, name: object) -> str:
        """Check the name of a queue that this app has."""
        if not isinstance(name, str) or name not in self.names:
            raise InvalidInput(f"queue={shown(name)} is no queue of this app: one of {', '.join(self.names)}")
        return name

    def usual(self, app: str) -> str | None:
        """Give the queue of functions that name none: the only one, or the one with the app's name; else None."""
        return self.names[0] if len(self.names) == 1 else app if app in self.names else None


@dataclass(frozen=True, slots=True)
class Limit:
    """How many calls run at once (`concurrency`), and the seconds between the end of a call and the next one (`every`).

    `per` is a template such as `tenant:{tenant}`: the limit counts for each text that the arguments make of it.
    """

    concurrency: int = 1
    every: float = 0.0
    per: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a limit that lets nothing run."""
        arguments.count(self.concurrency, "concurrency", high=10_000)
        arguments.delay_ms(self.every, "every")
        object.__setattr__(self, "every", arguments.seconds(self.every, "every"))  # of a timedelta, its seconds


# ---- decorators


class Timed(TypedDict, total=False):
    """When a function is called by itself."""

    cron: str | None
    tz: str | None
    every: Delay | None
    times: int | None
    missed: Literal["last", "all", "none"] | None
    grace: Delay | None
    overlap: bool | None


class TaskOptions(Timed, total=False):
    """What `app.task` takes."""

    name: str | None
    queue: str | None
    retry: Retries
    max_runtime: Delay | None
    keep_result: Delay | None
    key: str | Literal[True] | None
    unique: Unique | None
    limit: Limit | None
    expires: Delay | None
    no_retry: NoRetry | None
    on_failed: OfApp | None
    executor: Executor | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a function, from its decorator or from the app."""

    queue: str
    retry: RetryPolicy | None = None  # None: as the queue says
    max_runtime: float | None = None
    keep_result: float = KEEP_RESULT  # seconds; 0 keeps nothing
    keep_none: bool = False  # whether a result that is None is kept, too: only where somebody asked for results
    unique: Unique = "active"
    limit: Limit | None = None
    expires: float | None = None  # seconds in which a call must begin once it is ready
    no_retry: tuple[type[BaseException], ...] = ()
    on_failed: Step | None = None  # what is put when a call has failed for good
    executor: Executor = "thread"
    timed: Schedule | None = None  # when the function is called by itself

    def with_options(self, chosen: Options) -> Settings:
        """Give the settings for a call that has options of its own."""
        if chosen is NO_OPTIONS:
            return self
        said: dict[str, Any] = {
            name: getattr(chosen, name) for name in ("max_runtime", "keep_result", "unique", "on_failed")
        }
        if isinstance(chosen.unique, float):
            said["unique"] = timedelta(seconds=chosen.unique)
        said["expires"] = chosen.lasts
        if chosen.retry is not None:
            said["retry"] = RetryPolicy.of(chosen.retry)
        if chosen.keep_result is not None:
            said["keep_none"] = True
        return replace(self, **{name: value for name, value in said.items() if value is not None})


def known(given: Mapping[str, Any], options: type[Any], where: str) -> dict[str, Any]:
    """Give the options that are not None. Raises `InvalidInput` for a name that is none of a TypedDict."""
    names = options.__annotations__
    strange = next((name for name in given if name not in names), None)
    if strange is not None:
        raise InvalidInput(f"{where}() has no option {strange}=; it has {', '.join(names)}")
    return {name: value for name, value in given.items() if value is not None}


def settings(given: Mapping[str, Any], defaults: Mapping[str, Any], queue: str) -> Settings:
    """Check the options of a decorator; `defaults` are those of the app."""
    limit = given.get("limit")
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidInput(f"limit= takes a Limit(concurrency=…, every=…, per=…), not {shown(limit)}")
    said = {name: value for name, value in {**defaults, **given}.items() if value is not None}
    found = {name: checked(name, said[name]) for name in _OF_FUNCTIONS if name in said}
    if isinstance(found.get("expires"), datetime):
        raise InvalidInput("expires= of a function is seconds or a timedelta: give a datetime to f.options(expires=…)")
    retry = RetryPolicy.of(said["retry"]) if "retry" in said else None
    timed = _timed({name: given[name] for name in Timed.__annotations__ if name in given})
    return Settings(queue, retry, limit=limit, timed=timed, keep_none=bool(found.get("keep_result")), **found)


def _timed(chosen: Mapping[str, Any]) -> Schedule | None:
    """Check when a function is called by itself."""
    if not chosen:
        return None
    if "cron" not in chosen and "every" not in chosen:
        raise InvalidInput(f"{next(iter(chosen))}= is for schedules: add cron= or every=")
    from timeoutq.rooms.schedules.definition import Definition, Schedule  # a program without schedules needs no client

    found = Schedule("code", **chosen)
    Definition.of(found)
    return found


# ---- calls


class CallOptions(TypedDict, total=False):
    """What `f.options` takes."""

    id: TaskId | None
    at: float | datetime | None
    after: Delay | None
    unique: Unique | None
    priority: int | None
    retry: Sequence[Delay] | None
    keep_result: Delay | None
    max_runtime: Delay | None
    queue: str | None
    rerun: bool | None
    expires: Delay | datetime | None
    headers: Mapping[str, str] | None
    on_failed: OfApp | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The options of one call; None: as the function says."""

    id: bytes | None = None
    at: float | None = None  # unix seconds
    after: float | None = None  # seconds from when the call is put
    unique: Unique | None = None
    priority: int | None = None
    retry: tuple[float, ...] | None = None
    keep_result: float | None = None
    max_runtime: float | None = None
    queue: str | None = None
    rerun: bool | None = None
    """Whether a call with the same id that is in progress runs once more, with these arguments."""
    expires: float | datetime | None = None  # a number: seconds from when the call is ready
    headers: dict[str, str] | None = None
    on_failed: Step | None = None

    @property
    def named(self) -> list[str]:
        """The names of all options that were chosen."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]

    def refuse(self, names: Collection[str], why: str) -> None:
        """Raise `InvalidInput` if some of these options were chosen."""
        wrong = [f"{name}=" for name in self.named if name in names]
        if wrong:
            raise InvalidInput(f"{why}: leave out {', '.join(wrong)}")

    @property
    def travelling(self) -> Options:
        """What of them a worker must know."""
        headers, when = self.headers or None, self.expires
        said = (self.retry, self.max_runtime, self.keep_result, self.unique, self.on_failed, headers, when)
        if said.count(None) == len(said):
            return NO_OPTIONS
        unique = self.unique.total_seconds() if isinstance(self.unique, timedelta) else self.unique
        retry = None if self.retry is None else list(self.retry)
        expires, lasts = (when.timestamp(), None) if isinstance(when, datetime) else (None, when)
        return Options(
            retry, self.max_runtime, self.keep_result, unique, on_failed=self.on_failed, headers=headers,
            expires=expires, lasts=lasts,
        )  # fmt: skip

    def until(self, lasts: float | None, now: float) -> float | None:
        """Give until when a call that is put now must have begun; `lasts` is its time. Raises `InvalidInput`."""
        ready, expires = max(now, self.at or 0.0) + (self.after or 0.0), self.expires
        if isinstance(expires, datetime):
            if expires.timestamp() <= ready:
                when = datetime.fromtimestamp(ready, expires.tzinfo)
                raise InvalidInput(
                    f"expires={expires} is not after {when}, when the call is ready: choose a later time, or seconds, "
                    "which count from then"
                )
            return expires.timestamp()
        return None if lasts is None else arguments.delay_ms(ready + lasts, "expires") / 1000


def chosen(queues: Queues, before: Chosen, given: Mapping[str, Any]) -> Chosen:
    """Check the options of a call; an option that is not given stays as it was before."""
    said = known(given, CallOptions, "options")
    found: dict[str, Any] = {name: checked(name, value) for name, value in said.items()}
    if "queue" in found:
        queues.one(found["queue"])
    if "at" in found and "after" in found:
        raise InvalidInput("at= and after= both say when: leave one of them out")
    if "at" in found or "after" in found:
        before = replace(before, at=None, after=None)
    made = replace(before, **found)
    if made.rerun and (made.at, made.after, made.priority) != (None, None, None):
        raise InvalidInput("rerun=True is for calls that are ready at once: leave at=, after= and priority= out")
    return made


def _expires(value: object) -> float | datetime:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"expires={value} has no time zone: use datetime.now(UTC) or .astimezone()")
        arguments.due(value, None)
        return value
    span = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(span, int | float) and span <= 0:
        raise InvalidInput("expires= is more than 0 seconds: leave it out for a call that may begin at any time")
    return arguments.delay_ms(value, "expires") / 1000


def _unique(value: object) -> Unique:
    if isinstance(value, timedelta) and value > timedelta(0):
        arguments.delay_ms(value, "unique")
        return value
    if value in ("active", "forever"):
        return value
    raise InvalidInput(f'unique must be "active", "forever", or a timedelta above 0, not {shown(value)}')


def _headers(value: object) -> dict[str, str]:
    try:
        found = msgspec.convert(value, dict[str, str])
        size = sum(len((name + text).encode()) for name, text in found.items())
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidInput(f"headers= takes names and values that are texts, not {shown(value)}") from error
    if size > MOST_HEADERS:
        raise InvalidInput(f"headers= has {size:,} bytes; the limit is {MOST_HEADERS:,}: pass more as an argument")
    return found


def _no_retry(value: Any) -> tuple[type[BaseException], ...]:
    told, found = shown(value), cast("Sequence[Any]", value) if isinstance(value, tuple) else (value,)
    if all(isinstance(one, type) and issubclass(one, BaseException) for one in found):
        return tuple(found)
    raise InvalidInput(f"no_retry= takes classes of exceptions, as in (ValueError, KeyError), not {told}")


def _executor(value: object) -> Executor:
    if value in ("thread", "process"):
        return value
    raise InvalidInput(f'executor must be "thread" or "process", not {shown(value)}')


def _waits(value: object) -> tuple[float, ...]:
    told = shown(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = cast("Sequence[object]", value)
        if len(items) <= MOST_RETRIES:
            return tuple(min(arguments.seconds(one, "retry=[…]"), LONGEST) for one in items)
    raise InvalidInput(
        f"for one call, retry= takes a list of up to {MOST_RETRIES:,} seconds, not {told}; "
        "policies of tenacity do not travel: give them to the function's decorator"
    )


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "id": arguments.task_id,
    "at": lambda value: int(arguments.due(value, None)) / 1000,
    "after": lambda value: arguments.delay_ms(value, "after") / 1000,
    "unique": _unique,
    "executor": _executor,
    "priority": arguments.priority,
    "retry": _waits,
    "keep_result": lambda value: min(arguments.delay_ms(value, "keep_result") / 1000, LONGEST),
    "max_runtime": lambda value: arguments.timeout_ms(value, "max_runtime") / 1000,
    "queue": lambda value: value,
    "expires": _expires,
    "no_retry": _no_retry,
    "on_failed": lambda value: value,  # `Program.with_step` has looked
    "headers": _headers,
    "rerun": lambda value: bool(arguments.flag(value, "rerun")),
}


def checked(name: str, value: object) -> Any:
    """Check one option of a call. Raises `InvalidInput`, which names the option and what would be right."""
    return _CHECKS[name](value)
