"""What decorators and callers choose, checked: queues, ids, times, limits of calls. No I/O.

`task.py` checks what is written above a function, `calls.py` what is chosen for one call. Each function raises
`InvalidInput`, which names the option and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import TaskId
from timeoutq.words.retry import LONGEST, Delay, Retries, RetryPolicy

if TYPE_CHECKING:
    from timeoutq.rooms.schedules.flows import Schedule

Unique = Literal["active", "forever"] | timedelta
"""How long the id of a call keeps other calls away. "active": while the call is ready, scheduled or in progress; a
timedelta: then, and for this time after the call has ended; "forever": always."""

Missed = Literal["last", "all", "none"]

KEEP_RESULT = 3600.0
"""Seconds for which results are kept if nobody says otherwise."""
MOST_RETRIES = 1_000
MOST_QUEUES = 100
HEAVIEST = 1_000_000
"""The largest weight of a queue."""


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
            return cls((arguments.queue_name(app),))
        if isinstance(given, Mapping):
            shares = cast("Mapping[object, object]", given)
            weights = tuple(
                arguments.count(one, f"the weight of queue {name}", high=HEAVIEST) for name, one in shares.items()
            )
            return cls(_names(list(shares)), weights)
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            return cls(_names(cast("Sequence[object]", given)))
        raise InvalidInput(f"queues= takes a list of names, or a mapping of names to weights, not {shown(given)}")

    def one(self, name: object) -> str:
        """Check the name of a queue that this app has."""
        if name not in self.names:
            raise InvalidInput(f"queue={shown(name)} is no queue of this app: one of {', '.join(self.names)}")
        return self.names[self.names.index(str(name))]

    def usual(self, app: str) -> str | None:
        """Give the queue of functions that name none: the only one, or the one with the app's name; else None."""
        return self.names[0] if len(self.names) == 1 else app if app in self.names else None


def _names(given: Sequence[object]) -> tuple[str, ...]:
    names = tuple(map(arguments.queue_name, given))
    twice = next((name for name in names if names.count(name) > 1), None)
    if not 1 <= len(names) <= MOST_QUEUES or twice is not None:
        what = f"names {twice!r} twice" if twice is not None else f"has {len(names)} names"
        raise InvalidInput(f"queues= {what}: name 1 to {MOST_QUEUES} queues, each once")
    return names


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


TIMED = ("cron", "tz", "every", "times", "missed", "grace", "overlap")
"""What a decorator says of when a function is called by itself."""


def timed(given: Mapping[str, Any]) -> Schedule | None:
    """Check what a decorator says of when the function is called by itself; None if it says nothing.

    The schedule that is given has no name yet, and puts nothing yet. Raises `BadTiming`, `MissingExtra`.
    """
    chosen = {name: given[name] for name in TIMED if given.get(name) is not None}
    if not chosen:
        return None
    if "cron" not in chosen and "every" not in chosen:
        raise InvalidInput(f"{next(iter(chosen))}= is for schedules: add cron= or every=")
    from timeoutq.rooms.schedules.flows import Schedule, timing_of  # a program without schedules needs no client
    from timeoutq.rooms.schedules.ticks import lateness

    found = Schedule("", **chosen)
    timing_of(found.when())
    lateness(found.missed, found.grace, overlap=found.overlap)
    arguments.flag(found.overlap, "overlap")
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """What a function's decorator says, or the app for all functions."""

    queue: str
    retry: RetryPolicy | None = None
    """None: as the queue says."""
    max_runtime: float | None = None
    keep_result: float = KEEP_RESULT
    """Seconds; 0 keeps nothing."""
    keep_none: bool = False
    """Whether a result that is None is kept, too: only where somebody asked for results."""
    unique: Unique = "active"
    limit: Limit | None = None
    timed: Schedule | None = None
    """When the function is called by itself."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a caller says for one call; None is what the function says."""

    id: bytes | None = None
    at: float | None = None
    """Unix seconds."""
    after: float | None = None
    """Seconds from when the call is put."""
    unique: Unique | None = None
    priority: int | None = None
    retry: tuple[float, ...] | None = None
    keep_result: float | None = None
    max_runtime: float | None = None
    queue: str | None = None
    rerun: bool | None = None
    """Whether a call with the same id that is in progress runs once more, with these arguments."""

    @property
    def named(self) -> list[str]:
        """The names of all options that were chosen."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]


def chosen(
    queues: Queues,
    before: Chosen,
    *,
    id: TaskId | None,
    at: float | datetime | None,
    after: Delay | None,
    unique: Unique | None,
    priority: int | None,
    retry: Sequence[Delay] | None,
    keep_result: Delay | None,
    max_runtime: Delay | None,
    queue: str | None,
    rerun: bool | None,
) -> Chosen:
    """Check the options of a call; what is None stays as it was before."""
    now = Chosen(
        id=None if id is None else arguments.task_id(id),
        at=None if at is None else int(arguments.due(at, None)) / 1000,
        after=None if after is None else arguments.delay_ms(after, "after") / 1000,
        unique=None if unique is None else checked_unique(unique),
        priority=None if priority is None else arguments.priority(priority),
        retry=None if retry is None else waits(retry),
        keep_result=None if keep_result is None else kept(keep_result),
        max_runtime=None if max_runtime is None else runtime(max_runtime),
        queue=None if queue is None else queues.one(queue),
        rerun=None if rerun is None else bool(arguments.flag(rerun, "rerun")),
    )
    found = {one.name: getattr(now, one.name) for one in fields(now) if getattr(now, one.name) is not None}
    if "at" in found and "after" in found:
        raise InvalidInput("at= and after= both say when: leave one of them out")
    old = {one.name: getattr(before, one.name) for one in fields(before)}
    if "at" in found or "after" in found:
        old["at"] = old["after"] = None
    made = Chosen(**{**old, **found})
    if made.rerun and (made.at, made.after, made.priority) != (None, None, None):
        raise InvalidInput("rerun=True is for calls that are ready at once: leave at=, after= and priority= out")
    return made


def checked_unique(value: object) -> Unique:
    """Check how long an id keeps other calls away."""
    if isinstance(value, timedelta) and value > timedelta(0):
        arguments.delay_ms(value, "unique")
        return value
    if arguments.is_word(value, "active"):
        return "active"
    if arguments.is_word(value, "forever"):
        return "forever"
    raise InvalidInput(f'unique must be "active", "forever", or a timedelta above 0, not {shown(value)}')


def waits(value: object) -> tuple[float, ...]:
    """Check the seconds to wait before each further attempt of one call, which travel with the call."""
    told = shown(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = cast("Sequence[object]", value)
        if len(items) <= MOST_RETRIES:
            return tuple(min(arguments.seconds(one, "retry=[…]"), LONGEST) for one in items)
    raise InvalidInput(
        f"for one call, retry= takes a list of up to {MOST_RETRIES:,} seconds, not {told}; "
        "policies of tenacity do not travel: give them to the function's decorator"
    )


def policy(value: Retries) -> RetryPolicy | None:
    """Check the retry policy of a function or an app; None is the queue's own."""
    return None if value is None else RetryPolicy.of(value)


def kept(value: object) -> float:
    """Check for how many seconds a result is kept; 0 is not at all."""
    return min(arguments.delay_ms(value, "keep_result") / 1000, LONGEST)


def runtime(value: object) -> float:
    """Check the most seconds that a call may run."""
    return arguments.timeout_ms(value, "max_runtime") / 1000
