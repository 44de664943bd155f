"""The context of a running call: `ctx`, which the worker makes and callers do not see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from timeoutq.functions import outcomes
from timeoutq.functions.errors import BadResult, BatchIncomplete, CallFailed, CallGone
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Ended, Lease, State
from timeoutq.words.text import counted

if TYPE_CHECKING:
    from timeoutq.rooms.batches import BatchInfo, Member
    from timeoutq.worker.served import Place

S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")

PAUSE = 0.1  # seconds between two notes that are sent. Of the notes that come meanwhile, only the last one is sent


def is_in_a_loop(loop: asyncio.AbstractEventLoop | None = None) -> bool:
    """Say whether an event loop runs in this thread: this one, or any."""
    try:
        return asyncio.get_running_loop() is loop or loop is None
    except RuntimeError:
        return False


class CallsBefore:
    """The calls of the batch whose callback runs now. In an `async def`, use the methods that begin with `a`."""

    def __init__(self, name: str, queue: Any, order: Sequence[int] | None = None) -> None:
        """Prepare, in the event loop of the worker; `order` says of each call which task of the batch it is."""
        self.name = name  # the name of the batch
        self._queue, self._order, self._loop = queue, order, asyncio.get_running_loop()
        self._read: list[tuple[Member, Ended]] | None = None

    def __repr__(self) -> str:
        return f"<calls of batch {self.name}>"

    @overload
    def results(self, *, partial: bool = False) -> list[Any]: ...
    @overload
    def results(self, kind: type[T], *, partial: bool = False) -> list[T]: ...
    def results(self, kind: Any = Any, *, partial: bool = False) -> list[Any]:
        """Give what the calls have returned, in the order in which they were put; blocks.

        Each result is read as `kind`; of a call that was retried since, the last end counts. Raises `BatchIncomplete`
        if calls have failed, or were forgotten, or if a result is not there; with `partial=True`, these are left out. A
        result that is not kept any more counts as None, if None is a `kind`. Raises `CallFailed` for a result that is
        no `kind`, and `CallGone` if nothing is known of the batch any more.
        """
        return self._wait(self.aresults(kind, partial=partial))

    @overload
    async def aresults(self, *, partial: bool = False) -> list[Any]: ...
    @overload
    async def aresults(self, kind: type[T], *, partial: bool = False) -> list[T]: ...
    async def aresults(self, kind: Any = Any, *, partial: bool = False) -> list[Any]:
        """Give what the calls have returned, in the order in which they were put; see `results`."""
        ends = await self._ends()
        takes_none = _takes_none(kind)
        there: list[Ended] = []
        lost: list[Ended] = []
        for member, ended in ends:
            if _is_done(member, ended):  # the result is empty if the server had no memory for it
                (there if ended.result or (ended.result is None and takes_none) else lost).append(ended)
        if partial or len(there) == len(ends):
            return [_value(ended, kind) for ended in there]
        failed, parts = await self.afailures(), list[str]()
        if failed:
            parts.append(f"{len(failed):,} have failed")
        if lost:
            why = "their results are not kept (keep_result=; of a long batch, keep=)"
            parts.append(f"{len(lost):,} are done, but {why}")
        first = failed[0] if failed else CallFailed(f"call {lost[0].task!r}", id=lost[0].task)
        raise BatchIncomplete(
            f"of the {counted(len(ends), 'call')} of batch {self.name!r}, {' and '.join(parts)}; the first: {first}; "
            "to go on without them, pass partial=True",
            id=first.id, error=first.error, message=first.message, traceback=first.traceback,
            failed=len(failed), lost=len(lost),
        )  # fmt: skip

    def failures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put; blocks."""
        return self._wait(self.afailures())

    async def afailures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put."""
        return [_failure(ended) for member, ended in await self._ends() if not _is_done(member, ended)]

    def info(self) -> BatchInfo:
        """Tell about the batch; blocks."""
        return self._wait(self.ainfo())

    async def ainfo(self) -> BatchInfo:
        """Tell about the batch. Raises `CallGone` if nothing is known of it any more."""
        found: dict[str, BatchInfo] = await self._queue.batches.look(self.name)
        if self.name not in found:
            raise CallGone(
                f"nothing is known of batch {self.name!r} any more: keep it longer, with keep=", id=self.name
            )
        return found[self.name]

    async def _ends(self) -> list[tuple[Member, Ended]]:
        if self._read is None:
            await self.ainfo()
            members: list[Member] = [one async for one in self._queue.batches.members(self.name)]
            ends: dict[str, Ended] = await self._queue.results.look([one.task for one in members])
            found = [(one, ends.get(one.task, Ended(one.task, None))) for one in members]
            self._read = found if self._order is None else [found[at] for at in self._order if 0 <= at < len(found)]
        return self._read

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if is_in_a_loop(self._loop):
            work.close()
            raise InvalidInput("this would block the worker: in an async def, await ctx.batch.aresults() and its like")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _takes_none(kind: Any) -> bool:
    try:
        return outcomes.decode(b"null", kind) is None
    except BadResult:
        return False


def _is_done(member: Member, ended: Ended) -> bool:
    # the last end counts: a call may have been retried, or put again under its key, since its batch has ended
    if ended.state is State.FAILED:
        return False
    return member.end == "done" or ended.state is State.DONE or ended.result is not None


def _value(ended: Ended, kind: Any) -> Any:
    if ended.result is None:
        return None
    try:
        return outcomes.decode(ended.result, kind)
    except BadResult as error:
        raise CallFailed(f"call {ended.task!r}: {error}", id=ended.task, error=type(error).__name__) from error


def _failure(ended: Ended) -> CallFailed:
    if ended.state is None:
        gone = "was forgotten, or was retried and has not ended"
        return CallFailed(f"call {ended.task!r} {gone}", id=ended.task, message=f"it {gone}")
    return outcomes.error_of(ended)


class Notes:
    """Sends the notes of one call, and never keeps the call waiting: a newer note replaces one not yet sent."""

    __slots__ = ("_is_closed", "_lease", "_loop", "_next", "_place", "_sending", "stopped")

    def __init__(self, place: Place, lease: Lease) -> None:
        self._place, self._lease, self._loop = place, lease, asyncio.get_running_loop()
        self._next: Any = None
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False
        self.stopped = False  # whether the worker waits no longer for the call, which may run on in its thread

    @property
    def is_cancelled(self) -> bool:
        """Whether the call is to stop. Any thread may ask."""
        return self.stopped or self._place.is_cancelled(self._lease)

    def note(self, done: float, total: float | None, text: str) -> None:
        """Have a note sent. Raises `InvalidInput`."""
        flow = self._place.queue.flows.note(self._lease, done, total, text)
        with suppress(RuntimeError):  # the worker has ended, and this thread still runs
            self._loop.call_soon_threadsafe(self._take, flow)

    def close(self) -> None:
        """Send nothing more: the call has ended."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    def _take(self, flow: Any) -> None:
        self._next = flow
        if self._sending is None and not self._is_closed:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._next is not None:
            flow, self._next = self._next, None
            with suppress(TimeoutqError):  # a note is worth no failure, and of a lost lease the worker hears otherwise
                await self._place.queue.run(flow)
            await asyncio.sleep(PAUSE)
        self._sending = None


@dataclass(frozen=True, slots=True)
class Context(Generic[S_co]):
    """What the worker passes to a function whose first parameter is annotated `Context[State]`, or `Context[None]`."""

    function: str  # the name under which the function is registered
    task: str  # the id of the call
    attempt: int  # 1 for the first run, one more after each failure
    fence: int  # grows with every lease: the place that you write to can refuse one that is smaller than the last
    state: S_co  # what the lifespan of this process yielded; None without a lifespan
    tick: float | None = None  # the time for which a schedule made this call, Unix seconds
    batch: CallsBefore | None = None  # the batch of which this call is the callback
    notes: Notes | None = field(default=None, repr=False, compare=False)  # None in a test that makes its own context
    headers: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # what the caller said, with `options(headers=…)`

    @property
    def cancelled(self) -> bool:
        """Whether this call is to stop: a `def` has to look; an `async def` is cancelled by the worker.

        Somebody has cancelled the call; or, in a `def` only, it is over its `max_runtime`, its lease is lost, or its
        worker ends.
        """
        return self.notes is not None and self.notes.is_cancelled

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Tell how far this call is, and a text of at most 200 bytes; `result.info().progress` shows it until the end.

        It does not wait: the worker sends the newest note, ten a second at most. Raises `InvalidInput`.
        """
        if self.notes is not None:
            self.notes.note(done, total, text)


class CallNext(Protocol):
    """Runs the next middleware or the function, and gives its result."""

    def __call__(self, ctx: Context[Any] | None = None, /) -> Any:
        """Run it: `await call_next()`; in a `def`, `call_next()`. A context that is passed replaces the own one."""
        ...


Middleware = Callable[[Context[Any], CallNext], Any]
"""Runs around a call; its result stands for that of the function."""
