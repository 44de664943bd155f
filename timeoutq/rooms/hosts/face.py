"""`queue.hosts`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.hosts` gives `Hosts`, and `AsyncQueue.hosts` gives `AsyncHosts`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Literal

from timeoutq.rooms.hosts.flows import HostFlows
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.verbs import reads
from timeoutq.words.model import HostInfo, HostPage


class Hosts(Room[HostFlows]):
    """The hosts of a polite queue. Every method raises `InvalidInput` on a queue that is not polite."""

    def list(self, cursor: str | None = None, n: int = 100) -> HostPage:
        """Read a page of the hosts that the queue has met; the host whose turn is next comes first.

        A sharded queue is read shard by shard.
        """
        return self._queue.run(self._flows.page(cursor, n))

    def each(self) -> Iterator[HostInfo]:
        """Go through all hosts that the queue has met, in no order; each is given at least once."""
        cursor = reads.START
        while cursor is not None:
            found, cursor = self._queue.run(self._flows.some(cursor))
            yield from found

    def inspect(self, host: str) -> HostInfo:
        """Tell all about one host (`example.com`, `example.com:8080`, a URL of the host, or a group)."""
        return self._queue.run(self._flows.inspect(host))

    def set(
        self,
        host: str,
        *,
        delay: float | Literal["usual"] | None = None,
        per_host: int | Literal["usual"] | None = None,
        budget: int | Literal["none"] | None = None,
    ) -> HostInfo:
        """Give a host rules of its own; a rule that is None stays as it is.

        `delay` (seconds) and `per_host` replace those of the queue; `"usual"` brings those of the queue back. `budget`
        is how many visits the host may have in all, acked or failed; `"none"` removes this limit. When the budget is
        used up, the host's tasks wait until you raise the budget.
        """
        return self._queue.run(self._flows.set_rules(host, delay, per_host, budget))

    def block(
        self,
        host: str,
        *,
        until: float | datetime | None = None,
        for_: float | None = None,
        reason: str | None = None,
    ) -> HostInfo:
        """Keep all workers from a host `until` a time or `for_` a number of seconds; visits under way are finished.

        `until` is Unix seconds or an aware datetime. `why` shows the `reason`; without one, it shows the name of this
        client.
        """
        return self._queue.run(self._flows.block(host, until, for_, reason, by=self._queue.worker))

    def unblock(self, host: str) -> HostInfo:
        """End a block or a ban."""
        return self._queue.run(self._flows.unblock(host))

    def ban(self, host: str, reason: str = "banned") -> HostInfo:
        """Never visit a host again: its ready tasks, and all that become ready later, go to failed with the reason."""
        return self._queue.run(self._flows.ban(host, reason))


class AsyncHosts(AsyncRoom[HostFlows]):
    """The hosts of a polite queue, for asyncio. Every method raises `InvalidInput` on a queue that is not polite."""

    async def list(self, cursor: str | None = None, n: int = 100) -> HostPage:
        """Read a page of the hosts that the queue has met; the host whose turn is next comes first.

        A sharded queue is read shard by shard.
        """
        return await self._queue.run(self._flows.page(cursor, n))

    async def each(self) -> AsyncIterator[HostInfo]:
        """Go through all hosts that the queue has met, in no order; each is given at least once."""
        cursor = reads.START
        while cursor is not None:
            found, cursor = await self._queue.run(self._flows.some(cursor))
            for info in found:
                yield info

    async def inspect(self, host: str) -> HostInfo:
        """Tell all about one host (`example.com`, `example.com:8080`, a URL of the host, or a group)."""
        return await self._queue.run(self._flows.inspect(host))

    async def set(
        self,
        host: str,
        *,
        delay: float | Literal["usual"] | None = None,
        per_host: int | Literal["usual"] | None = None,
        budget: int | Literal["none"] | None = None,
    ) -> HostInfo:
        """Give a host rules of its own; a rule that is None stays as it is.

        `delay` (seconds) and `per_host` replace those of the queue; `"usual"` brings those of the queue back. `budget`
        is how many visits the host may have in all, acked or failed; `"none"` removes this limit. When the budget is
        used up, the host's tasks wait until you raise the budget.
        """
        return await self._queue.run(self._flows.set_rules(host, delay, per_host, budget))

    async def block(
        self,
        host: str,
        *,
        until: float | datetime | None = None,
        for_: float | None = None,
        reason: str | None = None,
    ) -> HostInfo:
        """Keep all workers from a host `until` a time or `for_` a number of seconds; visits under way are finished.

        `until` is Unix seconds or an aware datetime. `why` shows the `reason`; without one, it shows the name of this
        client.
        """
        return await self._queue.run(self._flows.block(host, until, for_, reason, by=self._queue.worker))

    async def unblock(self, host: str) -> HostInfo:
        """End a block or a ban."""
        return await self._queue.run(self._flows.unblock(host))

    async def ban(self, host: str, reason: str = "banned") -> HostInfo:
        """Never visit a host again: its ready tasks, and all that become ready later, go to failed with the reason."""
        return await self._queue.run(self._flows.ban(host, reason))
