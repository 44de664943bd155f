"""`queue.events`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.events` gives `Events`, and `AsyncQueue.events` gives `AsyncEvents`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from timeoutq.rooms.events.entry import Event, EventPage
from timeoutq.rooms.events.flows import After, EventFlows
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.words.model import TaskId


class Events(Room[EventFlows]):
    """The event log of a queue, which `configure(events="64MB")` begins. A queue without a log has no events."""

    def list(self, after: After = None, n: int = 100, task: TaskId | None = None) -> EventPage:
        """Read the next `n` entries (up to 1,000) behind a place in the log, oldest first; by default the last `n`.

        `after` is the cursor of an entry or of a page, or a time (Unix seconds or an aware datetime); 0 is the
        beginning of the log. With `task`, only entries that moved this task are given, and a
        page behind a place looks at 10,000 entries at most: go on from its cursor until the cursor stays as it is.
        In a sharded queue, the entries of all shards are sorted by time, and their order holds within a shard. Raises
        `InvalidInput` for an `after` that is neither a cursor of this queue nor a time.
        """
        return self._queue.run(self._flows.page(after, n, task))

    def follow(self, after: After = None, task: TaskId | None = None, timeout: float | None = None) -> Iterator[Event]:
        """Go through the entries behind a place in the log as they come; by default, from now on.

        `after` and `task` are as for `list`. It ends after `timeout` seconds; without `timeout` it never ends. While
        the server is away, it waits. To go on later, pass the cursor of the last entry as `after`: entries that were
        trimmed meanwhile are left out.
        """
        reader = self._flows.follow(after, task, timeout)
        while True:
            yield from self._queue.run(reader.more())
            if reader.is_over:
                return


class AsyncEvents(AsyncRoom[EventFlows]):
    """The event log of a queue, which `configure(events="64MB")` begins, for asyncio."""

    async def list(self, after: After = None, n: int = 100, task: TaskId | None = None) -> EventPage:
        """Read the next `n` entries (up to 1,000) behind a place in the log, oldest first; by default the last `n`.

        `after` is the cursor of an entry or of a page, or a time (Unix seconds or an aware datetime); 0 is the
        beginning of the log. With `task`, only entries that moved this task are given, and a
        page behind a place looks at 10,000 entries at most: go on from its cursor until the cursor stays as it is.
        In a sharded queue, the entries of all shards are sorted by time, and their order holds within a shard. Raises
        `InvalidInput` for an `after` that is neither a cursor of this queue nor a time.
        """
        return await self._queue.run(self._flows.page(after, n, task))

    async def follow(
        self, after: After = None, task: TaskId | None = None, timeout: float | None = None
    ) -> AsyncIterator[Event]:
        """Go through the entries behind a place in the log as they come; by default, from now on.

        `after` and `task` are as for `list`. It ends after `timeout` seconds; without `timeout` it never ends. While
        the server is away, it waits. To go on later, pass the cursor of the last entry as `after`: entries that were
        trimmed meanwhile are left out.
        """
        reader = self._flows.follow(after, task, timeout)
        while True:
            for event in await self._queue.run(reader.more()):
                yield event
            if reader.is_over:
                return
