"""`ShardedQueue` and `AsyncShardedQueue`, and `open_queue`, which asks the server what a queue is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

from timeoutq.client.face import Face, Settings
from timeoutq.client.queue import AsyncQueue, AsyncServerClient, Queue, ServerClient
from timeoutq.client.shards import root
from timeoutq.client.shards.methods import ShardedFlows
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.route import By
from timeoutq.client.shards.working import ShardedDivision
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.errors import InvalidInput


class ShardedFace(Face):
    """What both faces of a sharded queue hold: the settings of a client, and the talks with the shards."""

    beats_apart = True

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        shards: int | None = None,
        by: By | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Describe a queue over several shards; the first operation connects, the first put or setting makes it.

        `shards` is how many there are, 2 to 1000: a new queue gets 12 if you do not say; a queue that is there keeps
        its number for ever, and another number is refused. `by` is what tasks are routed by: `"host"` (their group,
        else the host of their URL, else their id), so that a host is wholly in one shard; or `"id"`, for a queue that
        is never polite. All else is as for `Queue`.

        Raises `InvalidInput` for an argument that cannot be used.
        """
        wanted, by = None if shards is None else root.count(shards), None if by is None else root.by(by)
        super().__init__(name, url, **settings)
        self.shards = Shards(self.talk, wanted, by)
        # what is said of the whole queue, such as the signs of life of a keeper, goes to the root
        self.talk = self.shards.root
        self.operations = self.talk.operations
        self.flows = ShardedFlows(self.shards, self._keepers)
        self.division = ShardedDivision(self.shards)

    def settings(self) -> dict[str, Any]:
        """Give the arguments that make another client of this queue, but for its name, and the queue's settings."""
        return {**super().settings(), "shards": self.shards.wanted, "by": self.shards.by}

    def _is_open(self) -> bool:
        return self.shards.made  # until then, each flow looks whether somebody has made the queue

    def _moved(self, slot: int) -> None:
        for talk in (self.shards.root, *self.shards.talks):
            if talk.at == slot:
                talk.clock.forget()


class ShardedQueue(ShardedFace, Queue):
    """A queue over several shards, for code that blocks. Safe to share between threads."""


class AsyncShardedQueue(ShardedFace, AsyncQueue):
    """A queue over several shards, for asyncio. Each event loop that uses it has connections of its own."""

    blocking = ShardedQueue


AnyQueue = Queue | ShardedQueue
"""A queue as `open_queue` gives it."""
AnyAsyncQueue = AsyncQueue | AsyncShardedQueue
"""A queue as `open_async_queue` gives it."""


def talks_of(queue: AnyQueue) -> Sequence[Talk]:
    """Give the talks with all shards, or the one with a plain queue: for callers that go through all keys."""
    if not isinstance(queue, ShardedQueue):
        return (queue.talk,)
    if not queue.shards.made:
        queue.exists()  # which looks at the record
    return queue.shards.talks


def open_queue(
    name: str, url: str | None = None, *, shards: int | None = None, by: By | None = None, **settings: Any
) -> AnyQueue:
    """Open a queue as what it is: a `Queue`, or a `ShardedQueue` if it has shards. This asks the server.

    With `shards`, a new queue gets that many (1: a plain queue), and a queue that is there with another number is
    refused. With `by` alone, a new queue gets 12. With neither, it is a plain one. `settings` are those of `Queue`.
    Raises `InvalidInput`, `Unavailable`.
    """
    is_sharded = _wants_shards(shards, by)
    if is_sharded is None:
        with ServerClient(name, url, **_of_server(settings)) as look:
            is_sharded = look.run(_is_sharded(look.talk))
    return ShardedQueue(name, url, shards=shards, by=by, **settings) if is_sharded else Queue(name, url, **settings)


class Opening(Awaitable[AnyAsyncQueue], AbstractAsyncContextManager[AnyAsyncQueue]):
    """A queue that is being opened: `await` gives the queue, and `async with` gives the queue and closes it."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, AnyAsyncQueue]]) -> None:
        """Prepare; nothing is asked before `await` or `async with`."""
        self._opened = opened
        self._queue: AnyAsyncQueue | None = None

    def __await__(self) -> Generator[Any, Any, AnyAsyncQueue]:
        return self._opened().__await__()

    async def __aenter__(self) -> AnyAsyncQueue:
        self._queue = await self
        return self._queue

    async def __aexit__(self, *_: object) -> None:
        if self._queue is not None:
            await self._queue.close()


def open_async_queue(
    name: str, url: str | None = None, *, shards: int | None = None, by: By | None = None, **settings: Any
) -> Opening:
    """Open a queue as what it is: an `AsyncQueue`, or an `AsyncShardedQueue` if it has shards. This asks the server.

    Write `async with open_async_queue("crawl") as queue`, or `queue = await open_async_queue("crawl")`. All else is as
    for `open_queue`.
    """

    async def opened() -> AnyAsyncQueue:
        is_sharded = _wants_shards(shards, by)
        if is_sharded is None:
            async with AsyncServerClient(name, url, **_of_server(settings)) as look:
                is_sharded = await look.run(_is_sharded(look.talk))
        if is_sharded:
            return AsyncShardedQueue(name, url, shards=shards, by=by, **settings)
        return AsyncQueue(name, url, **settings)

    return Opening(opened)


def _wants_shards(shards: int | None, by: By | None) -> bool | None:
    # None: the server is to be asked
    if shards == 1 and by is not None:
        raise InvalidInput("by= is about the shards of a queue, and a queue of one shard has none")
    if shards not in (None, 1):
        root.count(shards)
    return None if shards is None and by is None else shards != 1


def _of_server(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("client", "deadline") if name in settings}


def _is_sharded(talk: Talk) -> Flow[bool]:
    (schema,) = yield from ask(talk, [("HGET", talk.operations.key("meta"), "schema")])
    return isinstance(schema, bytes) and schema.startswith(b"s")
