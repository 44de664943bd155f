"""Links over `execute_command` of a redis-py client: for fakeredis, and for connections of a class of their own.

Commands go one after another. On a server, a wait blocks there, half a second at a time. fakeredis is asked again every
few milliseconds, so that a wait which is given up leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
from redis.exceptions import ResponseError

from timeoutq.server.calls import Command
from timeoutq.server.connection import Server
from timeoutq.server.deadlines import WAIT
from timeoutq.server.link import AsyncLink, Link, await_bell, await_sound, heard, newest_sound
from timeoutq.server.troubles import is_denied

T = TypeVar("T")

PAUSE = 0.005
"""Seconds between two looks at fakeredis."""


def _accepted(error: ResponseError) -> ResponseError:
    if is_denied(error):
        raise error
    return error


async def heeding(answer: Awaitable[T]) -> T:
    """Wait for an answer. A task that is cancelled meanwhile ends, even if redis-py swallows the cancellation."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await answer
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class MemoryLink(Link):
    """A blocking link."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        super().__init__(server, bell_wait)
        self._client = server.client(asynchronous=False)
        self._closed = 0

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands; errors of the server come as values."""
        return [self._ask(command) for command in commands]

    def _ask(self, command: Command) -> Any:
        try:
            return self._client.execute_command(*command)
        except ResponseError as error:
            return _accepted(error)

    def _wait(self, poll: Command, block: Callable[[float], Command], seconds: float) -> Any:
        until, left, closed = time.monotonic() + seconds, seconds, self._closed
        while True:
            found = self._client.execute_command(*(poll if self.server.in_memory else block(min(left, WAIT))))
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            if closed != self._closed:
                raise redis.ConnectionError("the link was closed in another thread")
            if self.server.in_memory:
                time.sleep(min(PAUSE, left))

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`; give it, or None, and the replies to `then`."""
        try:
            stroke = self._wait(("LPOP", key), partial(await_bell, key), seconds)
        except ResponseError as error:
            stroke = error
        return heard([stroke, *self.send(then)])

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`; give the newest sound."""
        poll = ("XREAD", "COUNT", 1, "STREAMS", key, last)
        return newest_sound(self._wait(poll, partial(await_sound, key, last), min(seconds, self._bell_wait)), last)

    def close(self) -> None:
        """Close all connections; who waits in another thread is told."""
        self._closed += 1
        super().close()
        self._client.close()
        self._client.connection_pool.disconnect()


class AsyncMemoryLink(AsyncLink):
    """The same link for asyncio; used by one event loop."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        super().__init__(server, bell_wait)
        self._client = server.client(asynchronous=True)

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands; errors of the server come as values."""
        return [await self._ask(command) for command in commands]

    async def _ask(self, command: Command) -> Any:
        try:
            return await heeding(self._client.execute_command(*command))
        except ResponseError as error:
            return _accepted(error)

    async def _wait(self, poll: Command, block: Callable[[float], Command], seconds: float) -> Any:
        until, left = time.monotonic() + seconds, seconds
        while True:
            command = poll if self.server.in_memory else block(min(left, WAIT))
            found = await heeding(self._client.execute_command(*command))
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            if self.server.in_memory:
                await asyncio.sleep(min(PAUSE, left))

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`; give it, or None, and the replies to `then`."""
        try:
            stroke = await self._wait(("LPOP", key), partial(await_bell, key), seconds)
        except ResponseError as error:
            stroke = error
        return heard([stroke, *await self.send(then)])

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`; give the newest sound."""
        poll = ("XREAD", "COUNT", 1, "STREAMS", key, last)
        seconds = min(seconds, self._bell_wait)
        return newest_sound(await self._wait(poll, partial(await_sound, key, last), seconds), last)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
