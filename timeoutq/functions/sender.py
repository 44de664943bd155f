"""The one door between functions and a server: what a call is when it is put, and what carries it there.

An app has one `Sender`, which puts calls and gives their results: usually a `Posting` (`posting.py`). `App.put` decides
everything about a call before it hands the call to the sender. No I/O here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import msgspec

from timeoutq.functions.options import Limit, Unique
from timeoutq.words.model import Answer, TaskInfo

if TYPE_CHECKING:
    from timeoutq.rooms.batches.operations import On

T_co = TypeVar("T_co", covariant=True)


class Answers(msgspec.Struct, frozen=True, gc=False):
    """Where the result of a call will be, and how to read it. Of a chain, the result is that of its last call."""

    queue: str
    id: bytes
    keep_result: float
    """Seconds for which the result is kept; 0 is not at all, so `wait` is refused at once."""
    returns: Any
    """The type of the result, as msgspec takes it."""
    keep_none: bool = True
    """Whether a result that is None is kept, too."""
    before: tuple[tuple[str, bytes], ...] = ()
    """The queues and the ids of the calls that must return first, the first of a chain first."""

    @property
    def is_kept(self) -> bool:
        """Whether there will be anything to wait for."""
        return self.keep_result > 0 and (self.keep_none or self.returns not in (None, NoneType))

    @property
    def places(self) -> tuple[tuple[str, bytes], ...]:
        """The queues and the ids of all calls of the chain, the first one first."""
        return (*self.before, (self.queue, self.id))


class Later(msgspec.Struct, frozen=True, gc=False):
    """The limit of a call that follows, of which nobody knows the arguments yet."""

    queue: str
    group: str
    """The name of the function; it is the group, unless the arguments make another one."""
    limit: Limit | None
    """None: the arguments make the group, so a worker declares the limit."""


class Posted(msgspec.Struct, frozen=True, gc=False):
    """A call, ready to be put: everything is decided and checked."""

    queue: str
    id: bytes
    payload: bytes
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
    limit: Limit | None = None
    """How many calls of the group run at once."""
    rerun: bool = False
    """Whether a call with this id that is in progress runs once more, with this payload."""
    then: tuple[Later, ...] = ()
    """The limits of the calls that follow."""
    call_id: bytes | None = None
    """The id of this put, if it may be made again: one that was made before under this id adds nothing."""

    def __repr__(self) -> str:
        """Show the call, without its arguments."""
        return f"Posted({self.queue!r}, {self.id!r})"


@dataclass(frozen=True, slots=True)
class PostedBatch:
    """A batch of calls, ready to be put: everything is decided and checked."""

    name: str
    queue: str
    calls: Sequence[Posted]
    then: Posted | None
    on: On
    keep: float
    """Seconds for which the batch is kept after its end."""
    may_be_there: bool = True
    """Whether the batch may have been put before, as one with a random name cannot."""


Kind = tuple[str, float | None, float | None, bytes | None, int]
"""What all calls of one put have in common: queue, `at`, `after`, `call_id`, how long their keys keep others away."""
FOR_A_TIME, AS_THE_QUEUE_SAYS, WHILE_ACTIVE = range(3)


def kinds(calls: Sequence[Posted]) -> dict[Kind, list[int]]:
    """Give the places of the calls that go in one put, in the order of the puts."""
    found: dict[Kind, list[int]] = {}
    before: Kind | None = None
    places: list[int] = []
    for at, call in enumerate(calls):
        kind = call.queue, call.at, call.after, call.call_id, _blocks(call.unique)
        if kind != before:
            before, places = kind, found.setdefault(kind, [])
        places.append(at)
    # what a queue with fingerprints refuses goes first: then nothing was put
    return dict(sorted(found.items(), key=lambda one: one[0][-1])) if len(found) > 1 else found


def _blocks(unique: Unique | None) -> int:
    if isinstance(unique, timedelta):
        return FOR_A_TIME
    return WHILE_ACTIVE if unique == "active" else AS_THE_QUEUE_SAYS


class Result(Protocol[T_co]):
    """What a call will return. `await` it, or `wait` for it."""

    @property
    def id(self) -> str:
        """The id of the call; of a chain, that of its last call."""
        ...

    @property
    def queue(self) -> str:
        """The queue of the call; of a chain, that of its last call."""
        ...

    @property
    def answer(self) -> Answer | None:
        """What `put` gave: `ADDED`, or the state that the call was in already; None if it was put elsewhere."""
        ...

    @property
    def added(self) -> bool | None:
        """Whether the call was added. False: a call with this id was there, and `answer` says what became of it.

        None: the call was put elsewhere.
        """
        ...

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait until the call has ended, at most `timeout` seconds, and give what it returned; blocks.

        Raises `CallFailed` if the call was given up, `CallCancelled` if somebody has cancelled it, `CallGone` if
        nothing is known of it any more, and `TimeoutError`. Raises `InvalidInput` at once if its result is not kept.
        """
        ...

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the call has ended, and give what it returned; raises what `wait` raises."""
        ...

    def info(self) -> TaskInfo:
        """Tell all that the queue knows of the call; of a chain, of the call that has come furthest; blocks.

        A call that has returned is done for as long as its result is kept; its attempts are not kept. Where nothing is
        kept, the state is None, as for a call that never was.
        """
        ...

    async def ainfo(self) -> TaskInfo:
        """Tell all that the queue knows of the call; of a chain, of the call that has come furthest."""
        ...

    def cancel(self, by: str | None = None) -> Answer:
        """Cancel the call, if it has not ended; say what became of it, as `Queue.cancel` does; blocks.

        `DONE` or `FAILED`: the call has ended before. `UNKNOWN`: nothing is kept of the call, or it never was.
        """
        ...

    async def acancel(self, by: str | None = None) -> Answer:
        """Cancel the call, if it has not ended; say what became of it, as `AsyncQueue.cancel` does."""
        ...


class Sender(Protocol):
    """What an app needs of the side that speaks to servers. Each method takes any number of calls, of any queues."""

    def put(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Put calls, and give for each what `Queue.put` or `Queue.schedule` answered; blocks."""
        ...

    async def aput(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Do the same for asyncio."""
        ...

    def result(self, answers: Answers, answer: Answer | None = None, /) -> Result[Any]:
        """Give what stands for the result of a call; asks nobody yet. `answer` is what `put` gave for the call."""
        ...

    def close(self) -> None:
        """Close the connections that block."""
        ...

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        ...


@runtime_checkable
class PutsBatches(Sender, Protocol):
    """A sender that puts batches, too."""

    def batch(self, found: PostedBatch, /) -> Sequence[Answer | None]:
        """Put the calls of a batch, seal it with its callback, and give an answer for each call; blocks.

        The answer is None for a call that is in the batch already: it is not put again.
        """
        ...

    async def abatch(self, found: PostedBatch, /) -> Sequence[Answer | None]:
        """Do the same for asyncio."""
        ...
