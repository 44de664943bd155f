"""`Sender` puts the calls of an app, and `Result` stands for the result of a call."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import methodcaller
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from timeoutq.functions import limits, outcomes
from timeoutq.functions.context import is_in_a_loop
from timeoutq.functions.errors import BadResult, CallFailed, CallGone
from timeoutq.functions.options import Limit, Unique
from timeoutq.server import address
from timeoutq.words import arguments, telling
from timeoutq.words.arguments import How, TaskList, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Ended, State, TaskInfo, text

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyAsyncQueue, AnyQueue
    from timeoutq.rooms.batches import BatchFlows, On
    from timeoutq.verbs.faces import Walk
    from timeoutq.verbs.sending import Flow

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Steps = Generator[tuple[str, Callable[[Any], Any]], Any, T]
"""Calls of queues, without I/O: each step is the name of a queue, and a call of one of its methods."""


class Posted(msgspec.Struct, frozen=True, gc=False):
    """A call, ready to be put: everything is decided and checked."""

    queue: str
    id: bytes
    payload: bytes  # the JSON itself; goes into Redis as it is (`arguments.Packed`)
    at: float | None  # unix seconds; None: not at a time
    after: float | None  # seconds from now by the server's clock; None: not after a time
    priority: int | None
    unique: Unique | None  # None: the id is random, so `done` keeps no trace of it
    group: str | None  # the group of a polite queue that the function's limit makes of the arguments
    limit: Limit | None = None  # how many calls of the group run at once
    rerun: bool = False  # whether a call with this id that is in progress runs once more, with this payload
    call_id: bytes | None = None  # the id of this put, which adds nothing if it is made again

    @property
    def wanted(self) -> limits.Wanted:
        """The limit that it counts for, if there is one."""
        return {} if self.limit is None or self.group is None else {self.group: self.limit}

    def __repr__(self) -> str:
        """Show the call, without its arguments."""
        return f"Posted({self.queue!r}, {self.id!r})"


class Shared:
    """Does work once for all coroutines that ask for it at the same time."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Give the result of the work; whoever is cancelled meanwhile leaves the work to the others."""
        key = asyncio.get_running_loop(), key
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    def _end(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        _ = done.cancelled() or done.exception()  # if nobody waits any more, asyncio complains of an error unless asked


class Sender:
    """Puts calls, and hears how they have ended. Safe to share between threads and event loops, and over a fork.

    It opens each queue when the queue is needed first, and keeps it: all waits of a process share one connection.
    """

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        """Describe the server: `url`, and any of the other arguments of `Queue`; the first call connects."""
        if url is not None:
            address.read(url)
        self.now = time.time  # the clock of callers
        self.url = url
        self.settings: Mapping[str, Any] = settings
        self._declared = limits.Declared()
        self._queues: dict[str, AnyQueue] = {}
        self._async: dict[str, AnyAsyncQueue] = {}
        self._opening = Shared()

    def queue(self, name: str) -> AnyQueue:
        """Give a queue by its name, for code that blocks; the first time, this asks the server."""
        found = self._queues.get(name)
        return self._queues.setdefault(name, self._open(name)) if found is None else found

    async def aqueue(self, name: str) -> AnyAsyncQueue:
        """Give a queue by its name, for asyncio; the first time, this asks the server."""
        found = self._async.get(name)
        if found is None:
            opened = await self._opening.run(name, lambda: self._aopen(name))
            found = self._async.setdefault(name, opened)
        return found

    def _open(self, name: str) -> AnyQueue:
        from timeoutq.client.shards import open_queue  # a program that only defines functions needs no client

        return open_queue(name, self.url, **self.settings)

    async def _aopen(self, name: str) -> AnyAsyncQueue:
        from timeoutq.client.shards import open_async_queue

        return await open_async_queue(name, self.url, **self.settings)

    def do(self, steps: Steps[T]) -> T:
        """Carry out steps; blocks. Raises what the methods of `Queue` raise."""
        answer: Any = None
        while True:
            try:
                name, ask = steps.send(answer)
            except StopIteration as end:
                return cast("T", end.value)
            answer = ask(self.queue(name))

    async def ado(self, steps: Steps[T]) -> T:
        """Carry out steps. Raises what the methods of `AsyncQueue` raise."""
        answer: Any = None
        while True:
            try:
                name, ask = steps.send(answer)
            except StopIteration as end:
                return cast("T", end.value)
            answer = await ask(await self.aqueue(name))

    def close(self) -> None:
        """Close the connections that block; a later call opens new ones."""
        for queue in list(self._queues.values()):
            queue.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop; a later call opens new ones."""
        for queue in list(self._async.values()):
            await queue.close()

    # ---- steps

    def putting(self, calls: Sequence[Posted]) -> Steps[list[Answer]]:
        """Put calls, 500 a script, and give an answer for each."""
        yield from self._declaring(calls)
        return (yield from _putting(calls))

    def putting_batch(
        self, name: str, queue: str, calls: Sequence[Posted], then: Posted | None, on: On, keep: float, is_new: bool
    ) -> Steps[list[Answer | None]]:
        """Put the calls of a batch, and seal it; give an answer for each call, None for one that is there already.

        `keep` is for how many seconds the batch is kept after its end, `is_new` whether it cannot have been put before.
        """
        there: set[str] = set()
        if not is_new:
            there = yield queue, lambda opened: opened.run(_members(opened.flows.batches, name))
        yield from self._declaring([*calls, *([] if then is None else [then])])
        put = yield from _putting([call for call in calls if text(call.id) not in there], name)
        answers = iter(put)
        last = None if then is None else _tasks([then])
        yield queue, lambda opened: opened.run(opened.flows.batches.seal(name, last, on=on, keep=keep))
        return [None if text(call.id) in there else next(answers) for call in calls]

    def times(self, queues: Collection[str]) -> Steps[dict[str, float]]:
        """Ask what the clocks of the servers of these queues show, Unix seconds."""
        from timeoutq.verbs import sending  # a program that only defines functions needs no client

        found: dict[str, float] = {}
        for queue in queues:
            found[queue] = yield queue, lambda opened: opened.run(sending.time_of(opened.flows.talk))
        return found

    def _declaring(self, calls: Sequence[Posted]) -> Steps[None]:
        """Declare the limits of calls."""
        wanted: dict[str, dict[str, Limit]] = {}
        for call in calls:
            if call.limit is not None:
                wanted.setdefault(call.queue, {}).update(call.wanted)
        for name, some in wanted.items():
            if some:  # a limit by arguments that this call does not have is none
                yield from self.declaring(name, some)

    def declaring(self, name: str, some: limits.Wanted) -> Steps[None]:
        """Declare limits in a queue."""
        yield name, lambda queue: queue.run(self._declared.keep(queue, some))

    def hearing(self, queue: str, id: bytes, seconds: float | None) -> Steps[Ended | None]:
        """Wait until a call has ended, at most for so many seconds, and tell how; None if it has not."""
        ends: dict[str, Ended] = yield queue, lambda opened: opened.results.wait(id, timeout=seconds)
        return ends.get(text(id))


# ---- results


class Result(Generic[T_co]):
    """The result of a call, which may still run. `await` it, or `wait` for it."""

    __slots__ = ("_keep_none", "_keep_result", "_places", "_returns", "_sender", "answer")

    def __init__(
        self, sender: Sender, places: Sequence[tuple[str, bytes]], returns: Any = Any, keep_result: float = math.inf,
        keep_none: bool = True, answer: Answer | None = None,
    ) -> None:  # fmt: skip
        """Prepare; asks nobody. `places` are queue and id of each call of a chain, the others are of its last call."""
        self._sender, self._places, self._returns = sender, tuple(places), returns
        self._keep_result, self._keep_none = keep_result, keep_none
        self.answer = answer
        """What `put` gave: `ADDED`, or the state that the call was in already; None if the call was put elsewhere."""

    @property
    def id(self) -> str:
        """The id of the call; of a chain, that of its last call."""
        return text(self._places[-1][1])

    @property
    def queue(self) -> str:
        """The queue of the call; of a chain, that of its last call."""
        return self._places[-1][0]

    @property
    def added(self) -> bool | None:
        """Whether the call was added, or one with this id was there; None: the call was put elsewhere."""
        return None if self.answer is None else self.answer is Answer.ADDED

    def __repr__(self) -> str:
        return f"<result of call {self.id!r} in queue {self.queue!r}>"

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait until the call has ended, at most `timeout` seconds, and give what it returned; blocks.

        Raises `CallFailed` (`CallCancelled` if somebody has cancelled it), `CallGone` if nothing is known of it any
        more, `TimeoutError`, and `InvalidInput` if its result is not kept, or in an `async def` that a worker runs.
        """
        self._check_kept()
        if telling.running.get() is not None and is_in_a_loop():
            raise InvalidInput(
                "wait() would block the worker, and the call with it: in an async def, write `await result`"
            )
        return self._sender.do(self._waiting(timeout))

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the call has ended, and give what it returned; raises what `wait` raises."""
        self._check_kept()
        return self._sender.ado(self._waiting(None)).__await__()

    def _waiting(self, timeout: float | None) -> Steps[T_co]:
        until = None if timeout is None else time.monotonic() + arguments.seconds(timeout, "timeout")
        ended: Ended | None = None
        for queue, id in self._places:  # of a chain, each call is put only when the one before it returns
            left = None if until is None else max(0.0, until - time.monotonic())
            ended = yield from self._sender.hearing(queue, id, left)
            if ended is None:
                why = f"`timeoutq why {queue} {shlex.quote(text(id))}` says what it waits for"
                raise TimeoutError(f"call {text(id)!r} has not ended within {timeout or 0:g} s: {why}")
            if ended.state is State.FAILED:
                raise outcomes.error_of(ended)
        return cast("T_co", self._read(Ended("", None) if ended is None else ended))

    def _check_kept(self) -> None:
        """Raise `InvalidInput` if there will be nothing to wait for."""
        is_kept = self._keep_result > 0
        if not is_kept or (not self._keep_none and self._returns in (None, NoneType)):
            why = "a result of None is not kept unless you ask for it" if is_kept else "its result is not kept"
            raise InvalidInput(
                f"call {self.id!r} cannot be waited for, because {why}: give the function or the call keep_result=, in "
                "seconds"
            )

    def _read(self, ended: Ended) -> Any:
        """Give what the last call has returned. Raises `CallGone`, and `CallFailed` for a result of another type."""
        id, data = self.id, ended.result
        if data is None:
            is_known = self._keep_none and self._keep_result < math.inf  # that a None would have been kept
            none = "" if is_known else ", or it returned None, which is kept only with keep_result="
            gone = f"nothing is known of call {id!r} any more: it was never put, or it was forgotten, or its"
            said = f"call {id!r} is done, but its result is not kept: the" if ended.state is State.DONE else gone
            raise CallGone(
                f"{said} result has expired{none}; to keep results longer, raise keep_result= (seconds)", id=id
            )
        if not data:
            raise CallGone(f"call {id!r} {outcomes.NO_MEMORY}", id=id)
        try:
            return outcomes.decode(data, self._returns)
        except BadResult as error:
            said = f"call {id!r} has returned {shown(data.decode('utf-8', 'replace'))}, but {error}"
            raise CallFailed(said, id=id, error=type(error).__name__, message=str(error)) from error

    def info(self) -> TaskInfo:
        """Tell all that the queue knows of the call; of a chain, of the call that has come furthest; blocks.

        A call that has returned is done for as long as its result is kept; then its state is None.
        """
        return self._sender.do(self._looking())

    async def ainfo(self) -> TaskInfo:
        """Tell all that the queue knows of the call; see `info`."""
        return await self._sender.ado(self._looking())

    def _looking(self) -> Steps[TaskInfo]:
        found: Any = None
        for name, own in reversed(self._places):
            found = yield name, methodcaller("inspect", own)
            if found.state is None and found.has_result:  # its id went from `done` at once
                found = replace(found, state=State.DONE)
            if found.state is not None:
                break
        return cast("TaskInfo", found)

    def cancel(self, by: str | None = None) -> Answer:
        """Cancel the call, if it has not ended; say what became of it, as `Queue.cancel` does; blocks.

        Of a chain, the call is cancelled that is there now, and what follows it is not called. `by` says who it was.
        """
        return self._sender.do(self._cancelling(by))

    async def acancel(self, by: str | None = None) -> Answer:
        """Cancel the call, if it has not ended; see `cancel`."""
        return await self._sender.ado(self._cancelling(by))

    def _cancelling(self, by: str | None) -> Steps[Answer]:
        for name, own in self._places:
            (found,) = yield name, methodcaller("cancel", own, by=by)
            if found in (Answer.CANCELLED, Answer.CANCELLING):
                return cast("Answer", found)
        state = (yield from self._looking()).state
        return Answer.UNKNOWN if state is None else Answer(state.value)


# ---- puts


def kinds(calls: Sequence[Posted]) -> list[list[int]]:
    """Give the places of the calls that go in one put, in the order of the puts."""
    found: dict[object, list[int]] = {}
    for place, call in enumerate(calls):
        is_timed = isinstance(call.unique, timedelta)
        kind = call.queue, call.at, call.after, call.call_id, call.unique == "active", is_timed
        found.setdefault(kind, []).append(place)
    # what a queue with fingerprints refuses goes first: then nothing was put
    return sorted(found.values(), key=lambda places: not isinstance(calls[places[0]].unique, timedelta))


def _putting(calls: Sequence[Posted], batch: str | None = None) -> Steps[list[Answer]]:
    found = [Answer.ADDED] * len(calls)
    for places in kinds(calls) if len(calls) != 1 else [[0]]:
        answers = yield calls[places[0]].queue, partial(_put, [calls[place] for place in places], batch)
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
    return found


def _put(calls: Sequence[Posted], batch: str | None, queue: Any) -> Any:
    first, checked = calls[0], (_tasks(calls),)
    # a key keeps others away only while its call is ready, scheduled or in progress, unless somebody says more
    how = How(again=first.unique == "active", call_id=first.call_id)
    if batch is not None:
        return queue.run(queue.flows.batches.put_as(batch, checked, how, first.at, first.after))
    if first.at is None and first.after is None:
        return queue.run(queue.flows.put_as(checked, how))
    return queue.run(queue.flows.schedule_as(checked, first.at, first.after, how))


def _members(flows: BatchFlows, name: str) -> Flow[set[str]]:
    """Give the tasks that are in the batch already: one that has ended would run again if it was put."""
    is_there = yield from flows.look(name)
    return {one.task for one in (yield from through(flows.members(name)))} if is_there else set()


def through(walk: Walk[T]) -> Flow[list[T]]:
    """Go through a walk to its end."""
    found = list[T]()
    while not walk.is_over:
        found += yield from walk.more()
    return found


def _tasks(calls: Sequence[Posted]) -> TaskList:
    tasks = TaskList([call.id for call in calls], {place: call.payload for place, call in enumerate(calls)})
    for place, call in enumerate(calls):
        if call.group is not None:
            tasks.groups[place] = arguments.host(call.group)
        if call.priority is not None:
            tasks.priorities[place] = call.priority
        if isinstance(call.unique, timedelta):
            tasks.uniques[place] = arguments.delay_ms(call.unique, "unique")
        if call.rerun:
            tasks.reruns[place] = True
    return tasks
