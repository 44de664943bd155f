"""What a running call may know of itself: `ctx`, which the worker makes and callers do not see. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from timeoutq.functions.errors import CallFailed

if TYPE_CHECKING:
    from timeoutq.rooms.batches.operations import BatchInfo

S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class Before(Protocol):
    """The calls of the batch whose callback runs now: `CallsBefore` of `batching.py` says all about them."""

    @property
    def name(self) -> str:
        """The name of the batch."""
        ...

    @overload
    def results(self, *, partial: bool = False) -> list[Any]: ...
    @overload
    def results(self, kind: type[T], *, partial: bool = False) -> list[T]: ...
    def results(self, kind: Any = Any, *, partial: bool = False) -> list[Any]:
        """Give what the calls have returned, in the order in which they were put; blocks."""
        ...

    @overload
    async def aresults(self, *, partial: bool = False) -> list[Any]: ...
    @overload
    async def aresults(self, kind: type[T], *, partial: bool = False) -> list[T]: ...
    async def aresults(self, kind: Any = Any, *, partial: bool = False) -> list[Any]:
        """Give what the calls have returned, in the order in which they were put."""
        ...

    def failures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put; blocks."""
        ...

    async def afailures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put."""
        ...

    def info(self) -> BatchInfo:
        """Tell about the batch; blocks."""
        ...

    async def ainfo(self) -> BatchInfo:
        """Tell about the batch."""
        ...


class Line(Protocol):
    """The line from a running call to its worker: `Noting` of `noting.py`."""

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the call."""
        ...

    def note(self, done: float, total: float | None, text: str) -> None:
        """Have a note sent."""
        ...


@dataclass(frozen=True, slots=True)
class Context(Generic[S_co]):
    """What the worker passes to a function whose first parameter is annotated `Context[State]`.

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
    batch: Before | None = None
    """The batch of which this call is the callback; None if it is none. Its `results()` are what the calls returned."""
    line: Line | None = field(default=None, repr=False, compare=False)
    """The line to the worker; None in a test that makes its own context."""

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled this call. A `def` has to look; an `async def` is cancelled by the worker."""
        return self.line is not None and self.line.is_cancelled

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Tell how far this call is, and a text of at most 200 bytes; `result.info().progress` shows it until the end.

        It does not wait: the worker sends the newest note, ten a second at most. Raises `InvalidInput`.
        """
        if self.line is not None:
            self.line.note(done, total, text)


class CallNext(Protocol):
    """Runs what a middleware is around, and gives what the function returned."""

    def __call__(self, ctx: Context[Any] | None = None, /) -> Awaitable[Any]:
        """Run it: `await call_next()`. A context that is passed stands in the place of the middleware's own."""
        ...


Middleware = Callable[[Context[Any], CallNext], Awaitable[Any]]
"""Runs around a call, and gives what stands for what the function returned."""
