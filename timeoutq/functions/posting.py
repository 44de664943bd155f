"""What puts calls into queues: `Posting`, the sender that an app makes for itself.

It opens each queue as what it is, plain or sharded, when the queue is needed first, and keeps it: so all waits of a
process for the calls of one queue share one blocked connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, open_async_queue, open_queue
from timeoutq.functions import limits
from timeoutq.functions.answering import Pending
from timeoutq.functions.options import Limit
from timeoutq.functions.sender import WHILE_ACTIVE, Answers, Kind, Posted, PostedBatch, kinds
from timeoutq.rooms.batches.operations import BatchInfo
from timeoutq.server import address
from timeoutq.server.calls import BATCH
from timeoutq.verbs.sending import Flow
from timeoutq.words import arguments
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.model import Answer, Ended, Outcome, TaskInfo, text


class Posting:
    """Puts calls, and hears how they have ended. Safe to share between threads and event loops, and over a fork."""

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        """Describe the server: `url`, and any of the other arguments of `Queue`. The first call that is put connects.

        Raises `InvalidInput`.
        """
        if url is not None:
            address.find_url(url)
        self.url = url
        self.settings: Mapping[str, Any] = settings
        self._lock = threading.Lock()
        self._declared = limits.Declared()
        self._queues: dict[str, AnyQueue] = {}
        self._async: dict[str, AnyAsyncQueue] = {}
        self._opening: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[AnyAsyncQueue]] = {}

    # ---- queues

    def queue(self, name: str) -> AnyQueue:
        """Give a queue by its name, for code that blocks; the first time, this asks the server."""
        found = self._queues.get(name)
        if found is None:
            opened = open_queue(name, self.url, **self.settings)
            with self._lock:
                found = self._queues.setdefault(name, opened)
        return found

    async def aqueue(self, name: str) -> AnyAsyncQueue:
        """Give a queue by its name, for asyncio; the first time, this asks the server."""
        found = self._async.get(name)
        if found is not None:
            return found
        key = asyncio.get_running_loop(), name
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.ensure_future(self._open(name))
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)  # others wait for it, too

    async def _open(self, name: str) -> AnyAsyncQueue:
        opened = await open_async_queue(name, self.url, **self.settings)
        return self._async.setdefault(name, opened)

    def _opened(self, key: tuple[asyncio.AbstractEventLoop, str], done: asyncio.Task[AnyAsyncQueue]) -> None:
        del self._opening[key]
        _ = done.cancelled() or done.exception()  # if nobody waits any more, asyncio complains of an error unless asked

    # ---- the sender of an app

    def put(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Put calls, 500 a script, and give an answer for each; blocks. Raises what `Queue.put` raises."""
        found: list[Answer] = [Answer.ADDED] * len(calls)
        self._declare(_limits(calls))
        for kind, places in kinds(calls).items():
            queue, some = self.queue(kind[0]), _some(calls, places)
            _tell(found, places, queue.run(_putting(queue, kind, some)))
        return found

    async def aput(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        """Put calls, 500 a script, and give an answer for each. Raises what `AsyncQueue.put` raises."""
        found: list[Answer] = [Answer.ADDED] * len(calls)
        await self._adeclare(_limits(calls))
        for kind, places in kinds(calls).items():
            queue, some = await self.aqueue(kind[0]), _some(calls, places)
            _tell(found, places, await queue.run(_putting(queue, kind, some)))
        return found

    def declare(self, queue: str, group: str | None, limit: Limit | None) -> None:
        """Declare the limit of a call that a schedule will put; blocks. Raises what `put` raises."""
        if group is not None and limit is not None:
            self._declare({queue: {group: limit}})

    async def adeclare(self, queue: str, group: str | None, limit: Limit | None) -> None:
        """Do as `declare`, for asyncio."""
        if group is not None and limit is not None:
            await self._adeclare({queue: {group: limit}})

    def _declare(self, wanted: Mapping[str, limits.Wanted]) -> None:
        for name, some in wanted.items():
            queue = self.queue(name)
            queue.run(self._declared.keep(name, queue.flows, some))

    async def _adeclare(self, wanted: Mapping[str, limits.Wanted]) -> None:
        for name, some in wanted.items():
            queue = await self.aqueue(name)
            await queue.run(self._declared.keep(name, queue.flows, some))

    def batch(self, found: PostedBatch, /) -> Sequence[Answer | None]:
        """Put the calls of a batch, and seal it with its callback; blocks. Raises what `queue.batches` raises."""
        queue, calls = self.queue(found.queue), found.calls
        left, answers = queue.run(_left(queue, found)), _untold(calls)
        self._declare(_limits([*found.calls, *([] if found.then is None else [found.then])]))
        for kind, places in kinds(_some(calls, left)).items():
            some = [left[at] for at in places]
            _tell(answers, some, queue.run(_putting(queue, kind, _some(calls, some), found.name)))
        queue.run(_sealing(queue, found))
        return answers

    async def abatch(self, found: PostedBatch, /) -> Sequence[Answer | None]:
        """Put the calls of a batch, and seal it with its callback. Raises what `queue.batches` raises."""
        queue, calls = await self.aqueue(found.queue), found.calls
        left, answers = await queue.run(_left(queue, found)), _untold(calls)
        await self._adeclare(_limits([*found.calls, *([] if found.then is None else [found.then])]))
        for kind, places in kinds(_some(calls, left)).items():
            some = [left[at] for at in places]
            _tell(answers, some, await queue.run(_putting(queue, kind, _some(calls, some), found.name)))
        await queue.run(_sealing(queue, found))
        return answers

    def result(self, answers: Answers, answer: Answer | None = None, /) -> Pending[Any]:
        """Give what stands for the result of a call; asks nobody yet."""
        return Pending(self, answers, answer)

    # ---- what stands for a result asks

    def ended(self, queue: str, id: bytes, seconds: float | None) -> Ended | None:
        """Wait until a call has ended, and tell how; None if it has not. Blocks."""
        return self.queue(queue).results.wait(id, timeout=seconds).get(text(id))

    async def aended(self, queue: str, id: bytes) -> Ended | None:
        """Wait until a call has ended, and tell how."""
        return (await (await self.aqueue(queue)).results.wait(id)).get(text(id))

    def info(self, queue: str, id: bytes) -> TaskInfo:
        """Tell all that a queue knows of a call; blocks."""
        return self.queue(queue).inspect(id)

    async def ainfo(self, queue: str, id: bytes) -> TaskInfo:
        """Tell all that a queue knows of a call."""
        return await (await self.aqueue(queue)).inspect(id)

    def cancel(self, queue: str, id: bytes, by: str | None) -> Answer:
        """Cancel a call; blocks."""
        return self.queue(queue).cancel(id, by=by)[0]

    async def acancel(self, queue: str, id: bytes, by: str | None) -> Answer:
        """Cancel a call."""
        return (await (await self.aqueue(queue)).cancel(id, by=by))[0]

    def close(self) -> None:
        """Close the connections that block; a later call opens new ones."""
        for queue in list(self._queues.values()):
            queue.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop; a later call opens new ones."""
        for queue in list(self._async.values()):
            await queue.close()


def _limits(calls: Sequence[Posted]) -> dict[str, dict[str, Limit | None]]:
    """Give the limits of calls, and of those that follow them, by queue and group."""
    found: dict[str, dict[str, Limit | None]] = {}
    for call in calls:
        if call.limit is not None and call.group is not None:
            found.setdefault(call.queue, {})[call.group] = call.limit
        for later in call.then:
            groups = found.setdefault(later.queue, {})
            groups[later.group] = later.limit or groups.get(later.group)
    return found


def _some(calls: Sequence[Posted], places: Sequence[int]) -> Sequence[Posted]:
    return calls if len(places) == len(calls) else [calls[at] for at in places]


def _putting(
    queue: AnyQueue | AnyAsyncQueue, kind: Kind, calls: Sequence[Posted], batch: str | None = None
) -> Flow[Outcome]:
    _, at, after, call_id, blocks = kind
    checked: Any = (_tasks(calls),)
    # a key keeps others away only while its call is ready, scheduled or in progress, unless somebody says more
    how = How(again=blocks == WHILE_ACTIVE, call_id=call_id)
    if batch is not None:
        return queue.flows.batches.put_as(batch, checked, how, at, after)
    if at is None and after is None:
        return queue.flows.put_as(checked, how)
    return queue.flows.schedule_as(checked, at, after, how)


def _left(queue: AnyQueue | AnyAsyncQueue, found: PostedBatch) -> Flow[Sequence[int]]:
    """Give the places of the calls that are not in the batch yet: one that has ended would run again if it was put."""
    there, batches = set[str](), queue.flows.batches
    if found.may_be_there and (yield from batches.look(found.name)):
        after: int | None = 0
        while after is not None:
            size, members = yield from batches.some_members(found.name, after, BATCH)
            there.update(one.task for one in members)
            after = after + BATCH if after + BATCH < size else None
    return [at for at, call in enumerate(found.calls) if text(call.id) not in there]


def _sealing(queue: AnyQueue | AnyAsyncQueue, found: PostedBatch) -> Flow[BatchInfo]:
    callback: Any = None if found.then is None else _tasks([found.then])
    return queue.flows.batches.seal(found.name, callback, on=found.on, keep=found.keep)


def _tasks(calls: Sequence[Posted]) -> TaskList:
    tasks = TaskList([call.id for call in calls], {place: call.payload for place, call in enumerate(calls)})
    for place, call in enumerate(calls):
        if call.group is not None:
            tasks.groups[place] = arguments.host(call.group)
        if call.priority is not None:
            tasks.priorities[place] = call.priority
        if call.unique is not None and isinstance(call.unique, timedelta):
            tasks.uniques[place] = arguments.delay_ms(call.unique, "unique")
        if call.rerun:
            tasks.reruns.append(place)
    return tasks


def _untold(calls: Sequence[Posted]) -> list[Answer | None]:
    return [None] * len(calls)


def _tell(found: list[Answer | None] | list[Answer], places: Sequence[int], answers: Outcome) -> None:
    if len(places) == len(found):
        found[:] = answers
        return
    for place, answer in zip(places, answers, strict=True):
        found[place] = answer
