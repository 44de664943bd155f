"""Both faces of the queue behind blocking calls, so that one test body runs on either."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from timeoutq import AsyncQueue
from timeoutq.rooms.room import AsyncRoom


class Blocking:
    """An `AsyncQueue` whose methods block: they run on an event loop in a thread of their own."""

    def __init__(self, *words: Any, kind: Callable[..., Any] = AsyncQueue, **settings: Any) -> None:
        self.queue = kind(*words, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        return self._blocking(getattr(self.queue, name))

    def _blocking(self, found: Any) -> Any:
        if isinstance(found, AsyncRoom):
            return _Room(found, self._blocking)
        if inspect.isasyncgenfunction(found):
            return lambda *words, **settings: iter(self._all(found(*words, **settings)))
        if not asyncio.iscoroutinefunction(found):
            return found
        method: Callable[..., Any] = found

        def call(*words: Any, **settings: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(method(*words, **settings), self._loop).result(60)

        return call

    def _all(self, walk: AsyncIterator[Any]) -> list[Any]:
        async def collect() -> list[Any]:
            return [one async for one in walk]

        return asyncio.run_coroutine_threadsafe(collect(), self._loop).result(60)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.queue.close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Room:
    def __init__(self, room: AsyncRoom[Any], blocking: Callable[[Any], Any]) -> None:
        self._room = room
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        return self._blocking(getattr(self._room, name))
