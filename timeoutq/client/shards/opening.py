"""`open_queue` and `open_async_queue`: ask the server what a queue is, and give the right one of the faces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from timeoutq.client.queue import AsyncQueue, AsyncServerClient, Queue, ServerClient
from timeoutq.client.shards import root
from timeoutq.client.shards.queue import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.route import By
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.errors import InvalidInput

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
    if _wants_shards(shards, by):
        return ShardedQueue(name, url, shards=shards, by=by, **settings)
    if shards == 1:
        return Queue(name, url, **settings)
    with ServerClient(name, url, **_of_server(settings)) as look:
        found = look.run(_is_sharded(look))
    return ShardedQueue(name, url, **settings) if found else Queue(name, url, **settings)


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queue is not None:
            await self._queue.close()


def open_async_queue(
    name: str, url: str | None = None, *, shards: int | None = None, by: By | None = None, **settings: Any
) -> Opening:
    """Open a queue as what it is: an `AsyncQueue`, or an `AsyncShardedQueue` if it has shards. This asks the server.

    Write `async with open_async_queue("crawl") as queue`, or `queue = await open_async_queue("crawl")`. All else is as
    for `open_queue`.
    """
    return Opening(lambda: _open(name, url, shards, by, settings))


async def _open(
    name: str, url: str | None, shards: int | None, by: By | None, settings: dict[str, Any]
) -> AnyAsyncQueue:
    if _wants_shards(shards, by):
        return AsyncShardedQueue(name, url, shards=shards, by=by, **settings)
    if shards == 1:
        return AsyncQueue(name, url, **settings)
    async with AsyncServerClient(name, url, **_of_server(settings)) as look:
        found = await look.run(_is_sharded(look))
    return AsyncShardedQueue(name, url, **settings) if found else AsyncQueue(name, url, **settings)


def _wants_shards(shards: int | None, by: By | None) -> bool:
    # also checks both arguments
    if shards == 1 and by is not None:
        raise InvalidInput("by= is about the shards of a queue, and a queue of one shard has none")
    if shards is not None and shards != 1:
        root.count(shards)
    return shards not in (None, 1) or by is not None


def _of_server(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("client", "deadline") if name in settings}


def _is_sharded(look: ServerClient | AsyncServerClient) -> Flow[bool]:
    (schema,) = yield from ask(look.talk, [("HGET", look.talk.operations.key("meta"), "schema")])
    return isinstance(schema, bytes) and schema.startswith(b"s")
