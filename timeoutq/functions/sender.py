"""The one door between functions and a server: what a call is when it is put, and what carries it there.

An app is given one `Sender`, which puts calls and gives their results. Nothing else in this room does I/O: `App.put`
decides everything about a call before it hands the call to the sender.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from timeoutq.functions.options import Unique
from timeoutq.model import Answer

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Answers:
    """Where the result of a call will be: for a chain, that of its last call."""

    queue: str
    id: bytes
    keep_result: float
    """Seconds for which the result is kept; 0 is not at all, so `wait` is refused at once."""
    returns: Any = field(repr=False)
    """The type of the result, as msgspec takes it."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A call, ready to be put: everything is decided and checked."""

    queue: str
    id: bytes
    payload: bytes = field(repr=False)
    """The JSON itself; goes into Redis as it is (`arguments.Packed`)."""
    at: float | None
    """Unix seconds; None: not at a time."""
    after: float | None
    """Seconds from now by the server's clock; None: not after a time."""
    priority: int | None
    unique: Unique | None
    """None: the id is random, so `done` keeps no trace of it."""
    group: str | None
    """The group of a polite queue that the function's limit makes of the arguments."""
    answers: Answers


class Result(Protocol[T_co]):
    """What a call will return. `await` it, or `wait` for it."""

    @property
    def id(self) -> str:
        """The id of the call."""
        ...

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait until the call has ended, at most `timeout` seconds, and give what it returned."""
        ...

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the call has ended, and give what it returned."""
        ...


class Sender(Protocol):
    """What an app needs of the side that speaks to servers. Each method takes any number of calls, of any queues."""

    def put(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Put calls, and give for each what `Queue.put` or `Queue.schedule` answered; blocks."""
        ...

    async def aput(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Do the same for asyncio."""
        ...

    def result(self, call: Posted, answer: Answer, /) -> Result[Any]:
        """Give what stands for the result of a call that was put; asks nobody yet."""
        ...
