"""When a failed task is tried again, a page visited again, and a server asked again. No I/O, no sleeping."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, cast

import tenacity
from tenacity import RetryCallState, stop_after_attempt
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput

Delay = float | timedelta
Wait = wait_base | Callable[[RetryCallState], float]
Stop = stop_base | Callable[[RetryCallState], bool]

LONGEST = 366 * 86_400.0
"""The longest wait of a policy, seconds; a longer wait is cut. Tenacity's own `max` is 146 million years."""

COUNTED = 100_000
"""The most attempts of which a wait is told: waits compute powers of the number, and a damaged one has any size."""

_USUAL_WAIT = tenacity.wait_exponential_jitter(initial=1, max=300, jitter=1)
_USUAL_STOP = stop_after_attempt(5)
_DELAYS = (tenacity.stop_after_delay, tenacity.stop_before_delay)


@dataclass(init=False, unsafe_hash=True)
class Retry(Exception):  # no name with Error: the handler decides, as in raise Retry(after=60)
    """Return or raise this in a handler: try the task again after `after` seconds; with None, when the policy says.

    This counts as a failed attempt, so the policy may still give up. `reason` is kept as the error of the task. With
    `block_host`, no worker visits the task's host for that many seconds; this works only on a polite queue.
    """

    after: float | None
    reason: str
    block_host: float

    def __init__(self, after: Delay | None = None, reason: str = "", block_host: Delay = 0.0) -> None:
        self.after = None if after is None else arguments.seconds(after, "Retry(after=…)")
        self.reason = reason
        self.block_host = arguments.seconds(block_host, "Retry(block_host=…)")

    def __str__(self) -> str:
        return self.reason


@dataclass(unsafe_hash=True)
class GiveUp(Exception):  # likewise
    """Return or raise this in a handler: the task goes to failed at once, whatever the retry policy says.

    `reason` is kept as the error of the task.
    """

    reason: str = ""

    def __str__(self) -> str:
        return self.reason


def members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Give the exceptions of a group and of the groups in it, each group once."""
    found, left, seen = list[BaseException](), list[BaseException]([group]), set[int]()
    while left:
        one = left.pop()
        if not arguments.is_group(one):
            found.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            left.extend(reversed(cast("BaseExceptionGroup[BaseException]", one).exceptions))
    return found


def decision(error: BaseException | str) -> BaseException | str:
    """Give the error that decides when a task is tried again: the error itself or, of an exception group, a member.

    A `GiveUp` decides first; then the `Retry` with the longest pause, with the longest `block_host` of all.
    """
    if isinstance(error, str) or not arguments.is_group(error):
        return error
    inside = members(cast("BaseExceptionGroup[BaseException]", error))
    for one in inside:
        if isinstance(one, GiveUp):
            return one
    retries = [one for one in inside if isinstance(one, Retry)]
    if not retries:
        return error
    longest = max(retries, key=lambda one: -1.0 if one.after is None else one.after)
    return Retry(longest.after, longest.reason, max(one.block_host for one in retries))


class TaskFailed(Exception):
    """What a policy sees of an error whose text alone is known."""


class RetryPolicy:
    """How long to wait after each failed attempt, and when to give up: the objects of tenacity, used as data."""

    __slots__ = ("stop", "wait")

    def __init__(self, wait: Wait, stop: Stop) -> None:
        """Make a policy of a tenacity `wait_*` and a `stop_*` object.

        Raises `InvalidInput` for a stop that measures time since the first attempt, also inside `|` and `&`: no process
        knows when the first attempt of a task began.
        """
        if not callable(wait) or isinstance(wait, stop_base | type):
            raise InvalidInput(f"a retry policy's wait is one of tenacity's wait_* objects, not {_shown(wait)}")
        if not callable(stop) or isinstance(stop, wait_base | type):
            raise InvalidInput(f"a retry policy's stop is one of tenacity's stop_* objects, not {_shown(stop)}")
        _refuse_delays(stop)
        self.wait = wait
        self.stop = stop

    def __repr__(self) -> str:
        return f"RetryPolicy(wait={_shown(self.wait)}, stop={_shown(self.stop)})"

    @classmethod
    def of(cls, given: Retries) -> RetryPolicy:
        """Make a policy of the value that a caller passed as `retry=`.

        None: five attempts with growing, jittered waits. A list of seconds: these waits, then give up. Of a wait or a
        stop of tenacity alone, the other one is the usual. Raises `InvalidInput`.
        """
        if given is None:
            return cls(_USUAL_WAIT, _USUAL_STOP)
        if isinstance(given, RetryPolicy):
            return given
        if isinstance(given, stop_base):
            return cls(_USUAL_WAIT, given)
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            items = list(cast("Sequence[Any]", given))
            if len(items) == 2 and any(map(callable, items)):
                return cls(items[0], items[1])
            delays = [arguments.seconds(item, "retry=[…]") for item in items]
            wait = tenacity.wait_chain(*map(tenacity.wait_fixed, delays)) if delays else tenacity.wait_none()
            return cls(wait, stop_after_attempt(len(delays) + 1))
        if callable(given):
            return cls(given, _USUAL_STOP)
        raise InvalidInput(
            f"retry= takes a list of seconds, a tenacity wait_*, (wait_*, stop_*) or a RetryPolicy, not {_shown(given)}"
        )

    def decide(self, attempt: int, error: BaseException | str) -> float | None:
        """Say in how many seconds the task is tried again; None means give up. `attempt` is 1 after the first failure.

        `GiveUp` gives up. `Retry(after=…)` sets the wait, but the policy may still give up. For exception groups, see
        `decision`. A wait above a year is cut to a year. For an attempt above 100,000, the wait is that of attempt
        100,000. Raises `InvalidInput` when the policy itself raises an error, or gives a value that is not a wait.
        """
        decides = decision(error)
        if isinstance(decides, GiveUp):
            return None
        exception = TaskFailed(error) if isinstance(error, str) else error
        state = RetryCallState(_NOBODY, None, (), {})
        state.attempt_number = min(attempt, COUNTED)
        state.set_exception((type(exception), exception, None))
        try:
            # the wait comes first, as in tenacity, because a stop may look at the wait
            if isinstance(decides, Retry) and decides.after is not None:
                wait: Any = decides.after
            else:
                wait = self.wait(state)
            state.upcoming_sleep = wait
            state.attempt_number = attempt
            if self.stop(state):
                return None
        except Exception as cause:
            raise InvalidInput(f"{self!r} failed on attempt {attempt}: {type(cause).__name__}: {cause}") from cause
        return min(arguments.seconds(wait, f"the wait of {self!r}"), LONGEST)


Retries = RetryPolicy | Sequence[Delay] | tuple[Wait, Stop] | Wait | stop_base | None
"""What `RetryPolicy.of` takes."""

_NOBODY = tenacity.Retrying(reraise=True)
"""RetryCallState needs an object that retries. Nobody retries here; the queue will."""


def pause(failures: int) -> float:
    """Give the seconds to wait for a server after that many failures in a row: 0 to 3, so that clients disperse."""
    return random.uniform(0, min(3.0, 0.1 * 2 ** min(failures - 1, 10)))  # noqa: S311  # jitter, not a secret


def _refuse_delays(stop: object) -> None:
    if isinstance(stop, _DELAYS):
        raise InvalidInput(
            f"{type(stop).__name__} cannot stop a task: it measures from the first attempt, and the attempts of a task "
            "run in many processes; use stop_after_attempt, or schedule a deadline of your own and raise GiveUp"
        )
    if isinstance(stop, tenacity.stop_any | tenacity.stop_all):
        for part in stop.stops:
            _refuse_delays(part)


def _shown(value: object) -> str:
    if value is tenacity.stop_never:
        return "stop_never"
    if isinstance(value, wait_base | stop_base):
        inside = ", ".join(f"{name}={found!r:.60}" for name, found in vars(value).items())
        return f"{type(value).__name__}({inside:.200})"
    return arguments.shown(value)


@dataclass(frozen=True, slots=True)
class Recrawl:
    """When to visit a page again: sooner if the page had changed, later if not, within bounds (all in seconds).

    The rule and the default rates are those of Apache Nutch's AdaptiveFetchSchedule: if nothing has changed, the
    interval grows by `slower` (0.4) of itself; if something has changed, it shrinks by `faster` (0.2) of itself.
    In a handler: `return Ack(again_in=interval, payload={"interval": interval})`.
    """

    first: float = 86_400.0
    shortest: float = 3_600.0
    longest: float = 30 * 86_400.0
    faster: float = 0.2
    slower: float = 0.4

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for bounds that leave no interval."""
        given = (self.first, self.shortest, self.longest, self.faster, self.slower)
        real = all(isinstance(one, int | float) and abs(one) < math.inf for one in given)
        if not real or not 0 < self.shortest <= self.longest or not 0 <= self.faster < 1 or self.slower < 0:
            raise InvalidInput(
                f"{self!r} makes no sense: all are finite, 0 < shortest <= longest, 0 <= faster < 1, 0 <= slower"
            )

    def interval(self, last: float | None, *, changed: bool) -> float:
        """Give the next interval, seconds; `last` is the interval before, None at the first visit.

        Raises `InvalidInput` if `last` is not an interval: it comes from a payload, which others may have written.
        """
        if last is None:
            return min(self.longest, max(self.shortest, self.first))
        last = arguments.seconds(last, "the last interval")
        return min(self.longest, max(self.shortest, last * (1 - self.faster if changed else 1 + self.slower)))


def retry_after(value: str, now: float, most: float) -> float | None:
    """Give the seconds for which a Retry-After asks, at most `most`; None if it cannot be read, or asks for no pause.

    It is a number of seconds or an HTTP date (RFC 9110, 10.2.3); `now` is Unix time.
    """
    value = value.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return min(float(value), most) or None
    try:
        date = parsedate_to_datetime(value)
        # a date without a zone is GMT, like every date in HTTP
        at = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, at - now), most) or None
