"""When a failed task is tried again: (attempt, error) -> seconds to wait, or give up. Pure: no I/O, no clock, no state.

`client.py` and `worker.py` ask it. Policies are tenacity's own `wait_*` and `stop_*` objects, used as data: the wait is
written into Redis as a due time, so that it survives the process that worked it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tenacity import Future, RetryCallState, stop_after_attempt, stop_after_delay, wait_exponential_jitter
from tenacity.stop import stop_base, stop_before_delay
from tenacity.wait import wait_base

from timeoutq.errors import InvalidInput

Retries = Any
"""None (the default policy), a list of delays, a `wait_*`, a pair of `wait_*` and `stop_*`, or a `RetryPolicy`."""


class Retry(Exception):  # noqa: N818  # a handler raises it as a word, not as an error
    """Raise it in a handler to have the task tried again: after so many seconds, or as the policy says."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else _delay(after, "after")


class GiveUp(Exception):  # noqa: N818  # same
    """Raise it in a handler to move the task to failed at once."""


class RetryPolicy:
    """Tenacity's wait and stop objects, or a list of delays, as one decision."""

    def __init__(
        self,
        wait: wait_base | Sequence[float] | None = None,
        stop: stop_base | None = None,
    ) -> None:
        """Make a policy.

        `wait` is a `wait_*` object, or a list of seconds after the first, second, … failure, beyond which the task is
        given up; by default `wait_exponential_jitter(initial=1, max=300)`. `stop` is a `stop_*` object, by default
        `stop_after_attempt(5)` (for a list: none). `stop_after_delay` and `stop_before_delay` are refused: when a task
        was first tried is not kept. Raises `InvalidInput`.
        """
        self._delays: list[float] | None = None
        if wait is None:
            wait = wait_exponential_jitter(initial=1, max=300)
        elif not callable(wait):
            if isinstance(wait, str | bytes) or not isinstance(wait, Iterable):
                raise InvalidInput(f"retry takes tenacity's wait_* and stop_* objects or a list of seconds, not {wait!r:.80}")
            self._delays = [_delay(delay, "a delay in the list") for delay in wait]
        self._wait = wait
        if stop is None and self._delays is None:
            stop = stop_after_attempt(5)
        elif stop is not None and not callable(stop):
            raise InvalidInput(f"stop takes one of tenacity's stop_* objects, not {stop!r:.80}")
        if stop is not None:
            _refuse_clocks(stop)
        self._stop = stop

    @classmethod
    def of(cls, given: Retries) -> RetryPolicy:
        """Make a policy of what `retry=` takes."""
        if isinstance(given, cls):
            return given
        if isinstance(given, stop_base):
            return cls(None, given)
        if isinstance(given, tuple) and len(given) == 2 and callable(given[1]):
            return cls(given[0], given[1])
        return cls(given)

    def decide(self, attempt: int, error: BaseException | str) -> float | None:
        """Give the seconds until the next attempt after failure number `attempt` (1-based), or None to give up."""
        if isinstance(error, GiveUp):
            return None
        if self._delays is not None and attempt > len(self._delays):
            return None
        state = _state(attempt, error)
        if self._stop is not None and self._stop(state):
            return None
        if isinstance(error, Retry) and error.after is not None:
            return error.after
        wait: Any = self._wait
        seconds = self._delays[attempt - 1] if self._delays is not None else float(wait(state))
        return _delay(seconds, "the delay that the retry policy gave")


def _state(attempt: int, error: BaseException | str) -> RetryCallState:
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]  # policies read its number and its outcome
    state.attempt_number = attempt
    outcome = Future(attempt)
    outcome.set_exception(error if isinstance(error, BaseException) else RuntimeError(error))
    state.outcome = outcome
    state.outcome_timestamp = state.start_time
    return state


def _delay(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidInput(f"{name} must be a finite number of seconds, 0 or more, not {value!r:.80}")
    return float(value)


def _refuse_clocks(stop: Any) -> None:
    if isinstance(stop, stop_after_delay | stop_before_delay):
        raise InvalidInput(
            f"{type(stop).__name__} cannot stop a task: when it was first tried is not kept; use stop_after_attempt"
        )
    for part in getattr(stop, "stops", ()):
        _refuse_clocks(part)
