"""`queue.batches`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.batches` gives `Batches`, and `AsyncQueue.batches` gives `AsyncBatches`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta

from timeoutq.rooms.batches.flows import BatchFlows
from timeoutq.rooms.batches.operations import BatchInfo, BatchPage, Member, On
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.server.calls import BATCH, BATCH_KEPT
from timeoutq.words.arguments import How
from timeoutq.words.model import Outcome, Task, TaskId, Tasks


class Batches(Room[BatchFlows]):
    """The batches of a queue. A batch is known by its name: 1 to 64 of A-Z a-z 0-9 . _ : -."""

    def put(
        self,
        name: str,
        *tasks: Tasks,
        again: bool = False,
        group: str | None = None,
        priority: int | None = None,
        at: float | datetime | None = None,
        after: float | None = None,
    ) -> Outcome:
        """Put tasks into a batch, in as many calls as you like, up to a million; with `at` or `after`, schedule them.

        The answers and the options are those of `put` and `schedule`. A task that the queue has already joins the
        batch, too; one that is done or failed counts as ended at once. The same tasks put again change nothing. A task
        can be in four batches that have not ended.
        Raises `InvalidInput` for a batch that is sealed, and for a queue over shards; and what `put` raises.
        """
        return self._queue.run(self._flows.put(name, tasks, How(again, group, priority), at, after))

    def seal(
        self,
        name: str,
        callback: TaskId | Task | None = None,
        *,
        on: On = "ended",
        keep: float | timedelta = BATCH_KEPT,
    ) -> BatchInfo:
        """Say that all tasks of a batch are put. When all of them have ended, the callback becomes ready: once.

        A task ends when it is done, goes to failed, or is forgotten; one that is retried has not ended. With
        `on="ended"` the callback becomes ready however the tasks end. With `on="done"` all of them must be done; else
        the callback goes to failed, and its error says how many are not. Until then the callback is in scheduled, and
        no put changes it. A batch without tasks ends at once. The batch is kept for `keep` seconds after its end, and
        the result of each task for so long after the end of the task, at least.
        Sealing again in the same way changes nothing. Raises `InvalidInput` for a batch that was sealed in another way,
        for a callback that is in the queue already, and for a queue over shards.
        """
        return self._queue.run(self._flows.seal(name, callback, on, keep))

    def look(self, *names: str) -> dict[str, BatchInfo]:
        """Tell about batches, any number of them; those that are not known are left out."""
        return self._queue.run(self._flows.look(names))

    def list(self, cursor: str | None = None, n: int = 100) -> BatchPage:
        """Read a page of about `n` batches, in no order; give the `cursor` of a page to read the next one."""
        return self._queue.run(self._flows.page(cursor, n))

    def members(self, name: str) -> Iterator[Member]:
        """Go through the tasks of a batch, in the order in which they were put; each says how it has ended."""
        place = count = 0
        while place <= count:
            count, found = self._queue.run(self._flows.members(name, place, BATCH))
            place += BATCH
            yield from found

    def forget(self, name: str) -> bool:
        """Forget a batch, and say whether there was one: nothing is counted any more, and its tasks stay.

        The callback of a sealed batch goes to failed.
        """
        return self._queue.run(self._flows.forget(name))


class AsyncBatches(AsyncRoom[BatchFlows]):
    """The batches of a queue, for asyncio. A batch is known by its name: 1 to 64 of A-Z a-z 0-9 . _ : -."""

    async def put(
        self,
        name: str,
        *tasks: Tasks,
        again: bool = False,
        group: str | None = None,
        priority: int | None = None,
        at: float | datetime | None = None,
        after: float | None = None,
    ) -> Outcome:
        """Put tasks into a batch, in as many calls as you like, up to a million; with `at` or `after`, schedule them.

        The answers and the options are those of `put` and `schedule`. A task that the queue has already joins the
        batch, too; one that is done or failed counts as ended at once. The same tasks put again change nothing. A task
        can be in four batches that have not ended.
        Raises `InvalidInput` for a batch that is sealed, and for a queue over shards; and what `put` raises.
        """
        return await self._queue.run(self._flows.put(name, tasks, How(again, group, priority), at, after))

    async def seal(
        self,
        name: str,
        callback: TaskId | Task | None = None,
        *,
        on: On = "ended",
        keep: float | timedelta = BATCH_KEPT,
    ) -> BatchInfo:
        """Say that all tasks of a batch are put. When all of them have ended, the callback becomes ready: once.

        A task ends when it is done, goes to failed, or is forgotten; one that is retried has not ended. With
        `on="ended"` the callback becomes ready however the tasks end. With `on="done"` all of them must be done; else
        the callback goes to failed, and its error says how many are not. Until then the callback is in scheduled, and
        no put changes it. A batch without tasks ends at once. The batch is kept for `keep` seconds after its end, and
        the result of each task for so long after the end of the task, at least.
        Sealing again in the same way changes nothing. Raises `InvalidInput` for a batch that was sealed in another way,
        for a callback that is in the queue already, and for a queue over shards.
        """
        return await self._queue.run(self._flows.seal(name, callback, on, keep))

    async def look(self, *names: str) -> dict[str, BatchInfo]:
        """Tell about batches, any number of them; those that are not known are left out."""
        return await self._queue.run(self._flows.look(names))

    async def list(self, cursor: str | None = None, n: int = 100) -> BatchPage:
        """Read a page of about `n` batches, in no order; give the `cursor` of a page to read the next one."""
        return await self._queue.run(self._flows.page(cursor, n))

    async def members(self, name: str) -> AsyncIterator[Member]:
        """Go through the tasks of a batch, in the order in which they were put; each says how it has ended."""
        place = count = 0
        while place <= count:
            count, found = await self._queue.run(self._flows.members(name, place, BATCH))
            place += BATCH
            for member in found:
                yield member

    async def forget(self, name: str) -> bool:
        """Forget a batch, and say whether there was one: nothing is counted any more, and its tasks stay.

        The callback of a sealed batch goes to failed.
        """
        return await self._queue.run(self._flows.forget(name))
