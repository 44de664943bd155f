"""Batches of calls: what is put, what a caller holds of it, and what the callback reads of the calls before it.

`App.batch` has `batch_of` make a `PostedBatch`, which `posting.py` puts. The worker gives the callback a `CallsBefore`,
as `ctx.batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from timeoutq.functions import ids, outcomes
from timeoutq.functions.calls import Call, posted, travelling
from timeoutq.functions.envelope import Secrets
from timeoutq.functions.errors import BadResult, BatchIncomplete, CallFailed, CallGone
from timeoutq.functions.sender import Posted, PostedBatch, Result, kinds
from timeoutq.server.calls import BATCH
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Ended, State
from timeoutq.words.text import counted

if TYPE_CHECKING:
    from timeoutq.rooms.batches.operations import BatchInfo, Member, On

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batched(Generic[R_co]):
    """A batch that was put."""

    name: str
    """`queue.batches.look(name)` tells about it."""
    queue: str
    calls: Sequence[Result[Any]]
    """The results of its calls, in the order in which the calls were given."""
    _then: Result[R_co] | None

    @property
    def then(self) -> Result[R_co]:
        """The result of the callback. If the batch is broken, waiting for it raises `CallFailed`, which says why.

        Raises `InvalidInput` for a batch without a callback.
        """
        if self._then is None:
            raise InvalidInput(f"batch {self.name!r} has no callback: pass then= to app.batch")
        return self._then


def batch_of(
    many: Sequence[Call[Any]],
    then: Call[Any] | None,
    on: On,
    keep: float,
    name: str | None,
    secrets: Secrets,
    usual: str,
) -> PostedBatch:
    """Decide everything about a batch that is put now. Raises `InvalidInput` and `CallTooLarge`."""
    from timeoutq.rooms.batches.flows import checked  # a program without batches needs no client

    named = ids.random_id("batch") if name is None else checked(name)
    chained = next((call for call in many if call.following), None)
    if chained is not None:
        raise InvalidInput(
            f"a call of {chained.function}() is followed by others, and would count as ended when it returns itself: "
            "put the first calls of chains alone, or let a function call the others"
        )
    if then is not None and (then.chosen.at is not None or then.chosen.after is not None):
        raise InvalidInput("the callback of a batch is ready when the batch has ended: leave out at= and after=")
    if then is not None and then.chosen.rerun:
        raise InvalidInput("the callback of a batch is put once: leave rerun=True out")
    ready = [posted(call, secrets, place=None if name is None else (named, at)) for at, call in enumerate(many)]
    last = None
    if then is not None:
        travels = msgspec.structs.replace(travelling(then.chosen), batch=named, order=_order(ready))
        # who puts the batch again seals it with the same callback: it has no trace of its own
        place = None if name is None else (named, len(many))
        last = posted(then, secrets, travels, place=place, is_now=name is None)
    queues = sorted({call.queue for call in [*ready, *([] if last is None else [last])]}) or [usual]
    if len(queues) > 1:
        raise InvalidInput(
            f"the calls of a batch go to one queue, its callback too, and these go to {', '.join(queues)}: choose one "
            "with .options(queue=…)"
        )
    return PostedBatch(named, queues[0], ready, last, on, keep, may_be_there=name is not None)


def _order(ready: Sequence[Posted]) -> list[int] | None:
    """Give, for each call, its place among the tasks of the batch: several calls may be one task, by their key."""
    places: dict[bytes, int] = {}
    for at in chain.from_iterable(kinds(ready).values()):
        places.setdefault(ready[at].id, len(places))
    found = [places[call.id] for call in ready]
    return None if found == list(range(len(found))) else found


class CallsBefore:
    """The calls of the batch whose callback runs now. In an `async def`, use the methods that begin with `a`."""

    def __init__(self, name: str, queue: Any, order: Sequence[int] | None = None) -> None:
        """Prepare, in the event loop of the worker; `queue` is the worker's own client.

        `order` says of each call which task it is, if the calls are not just the tasks in their order.
        """
        self.name = name
        """The name of the batch."""
        self._queue = queue
        self._order = order
        self._loop = asyncio.get_running_loop()
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
        if calls have failed, or were forgotten, or if the server had no memory for a result; with `partial=True`, their
        results are left out instead. None stands for a call that returned None. A result that is not kept any more
        cannot be told from None: if None is no `kind`, it counts as lost, so keep a batch that takes more than a day
        long enough, with keep=. Raises `CallFailed` for a result that is no `kind`, and `CallGone` if nothing is known
        of the batch any more.
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
        found = [ended for member, ended in ends if _is_done(member, ended) and _is_there(ended, takes_none)]
        if len(found) < len(ends) and not partial:
            raise self._incomplete(ends, takes_none)
        return [_value(ended, kind) for ended in found]

    def _incomplete(self, ends: Sequence[tuple[Member, Ended]], takes_none: bool) -> BatchIncomplete:
        failed = [_failure(ended) for member, ended in ends if not _is_done(member, ended)]
        lost = [ended for member, ended in ends if _is_done(member, ended) and not _is_there(ended, takes_none)]
        parts = [f"{len(failed):,} have failed"] if failed else []
        parts += (
            [f"{len(lost):,} are done, but their results are not kept (keep_result=; of a long batch, keep=)"]
            if lost
            else []
        )
        first = failed[0] if failed else CallFailed(f"call {lost[0].task!r}", id=lost[0].task)
        return BatchIncomplete(
            f"of the {counted(len(ends), 'call')} of batch {self.name!r}, {' and '.join(parts)}; the first: {first}; "
            "to go on without them, pass partial=True", id=first.id, error=first.error, message=first.message,
            traceback=first.traceback, failed=len(failed), lost=len(lost),
        )  # fmt: skip

    def failures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put; blocks."""
        return self._wait(self.afailures())

    async def afailures(self) -> list[CallFailed]:
        """Give why calls have failed, in the order in which they were put."""
        return [_failure(ended) for member, ended in await self._ends() if not _is_done(member, ended)]

    async def ainfo(self) -> BatchInfo:
        """Tell about the batch. Raises `CallGone` if nothing is known of it any more."""
        found: dict[str, BatchInfo] = await self._queue.batches.look(self.name)
        if self.name not in found:
            raise CallGone(
                f"nothing is known of batch {self.name!r} any more: keep it longer, with keep=", id=self.name
            )
        return found[self.name]

    def info(self) -> BatchInfo:
        """Tell about the batch; blocks."""
        return self._wait(self.ainfo())

    async def _ends(self) -> list[tuple[Member, Ended]]:
        if self._read is None:
            await self.ainfo()
            members: list[Member] = [one async for one in self._queue.batches.members(self.name)]
            found: list[tuple[Member, Ended]] = []
            for at in range(0, len(members), BATCH):
                part = members[at : at + BATCH]
                ends: dict[str, Ended] = await self._queue.results.look(*(one.task for one in part))
                found += [(one, ends.get(one.task, Ended(one.task, None))) for one in part]
            if self._order is not None:
                found = [found[at] for at in self._order if 0 <= at < len(found)]
            self._read = found
        return self._read

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
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


def _is_there(ended: Ended, takes_none: bool) -> bool:
    # the result is empty if the server had no memory for it
    return takes_none if ended.result is None else bool(ended.result)


def _value(ended: Ended, kind: Any) -> Any:
    if not ended.result:
        return None
    try:
        return outcomes.decode(ended.result, kind)
    except Exception as error:
        raise CallFailed(f"call {ended.task!r}: {error}", id=ended.task, error=type(error).__name__) from error


def _failure(ended: Ended) -> CallFailed:
    if ended.state is None:
        gone = "was forgotten, or was retried and has not ended"
        return CallFailed(f"call {ended.task!r} {gone}", id=ended.task, message=f"it {gone}")
    found = outcomes.read_failure(ended.result, ended.error)
    return CallFailed(
        f"call {ended.task!r} failed: {found}", id=ended.task, error=found.error, message=found.message,
        traceback=found.traceback,
    )  # fmt: skip
