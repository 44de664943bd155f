"""What a running call may know of itself: `ctx`, which the worker makes and callers do not see. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Context(Generic[S_co]):
    """Given to a function whose first parameter is annotated `Context[State]`.

    Without a lifespan, write `Context[None]`: with `Context[Any]`, mypy does not know what callers have to pass.
    """

    function: str
    """The name under which the function is registered."""
    task: str
    """The id of the call."""
    attempt: int
    """1 for the first run, one more after each failure."""
    fence: int
    """Grows with every lease. Guard the place that you write to: refuse a fence that is smaller than the last one."""
    state: S_co
    """What the lifespan of this process yielded; None without a lifespan."""
    tick: float | None = None
    """The time for which a schedule made this call, Unix seconds; None if no schedule made the call."""


CallNext = Callable[[], Awaitable[Any]]
"""Runs what a middleware is around, and gives what the function returned."""
Middleware = Callable[[Context[Any], CallNext], Awaitable[Any]]
"""Runs around a call, and gives what stands for what the function returned."""
