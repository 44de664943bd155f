"""Links over `execute_command` of a redis-py client: for fakeredis, and for connections of a class of their own.

Only `client/driving.py` uses them, in place of the links of `link.py`. They need not be quick: commands go one after
another, and a wait asks again every few milliseconds, so that a wait which is given up leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import redis
from redis.exceptions import ResponseError

from timeoutq.server.calls import Command
from timeoutq.server.connection import Server
from timeoutq.server.link import AsyncLink, Link, heard, newest_sound
from timeoutq.server.troubles import is_denied

T = TypeVar("T")

PAUSE = 0.005
"""Seconds between two looks for a stroke of the bell or for an alarm."""


def _accepted(error: ResponseError) -> ResponseError:
    if is_denied(error):
        raise error
    return error


def _look(key: str) -> Command:
    return ("LPOP", key)


def _listen(key: str, last: bytes) -> Command:
    return ("XREAD", "COUNT", 1, "STREAMS", key, last)


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

    def _wait(self, command: Command, seconds: float) -> Any:
        """Ask until there is something, or nothing within `seconds`."""
        until, closed = time.monotonic() + seconds, self._closed
        while not (found := self._client.execute_command(*command)):
            if closed != self._closed:
                raise redis.ConnectionError("the link was closed in another thread")
            if (left := until - time.monotonic()) <= 0:
                return None
            time.sleep(min(PAUSE, left))
        return found

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`; give it, or None, and the replies to `then`."""
        return heard([self._stroke(key, seconds), *self.send(then)])

    def _stroke(self, key: str, seconds: float) -> Any:
        try:
            stroke = self._wait(_look(key), seconds)
        except ResponseError as error:
            return error
        return stroke and [key.encode(), stroke]

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`; give the newest sound."""
        return newest_sound(self._wait(_listen(key, last), min(seconds, self._bell_wait)), last)

    def close(self) -> None:
        """Close all connections; who waits in another thread is told."""
        self._closed += 1
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

    async def _wait(self, command: Command, seconds: float) -> Any:
        until = time.monotonic() + seconds
        while not (found := await heeding(self._client.execute_command(*command))):
            if (left := until - time.monotonic()) <= 0:
                return None
            await asyncio.sleep(min(PAUSE, left))
        return found

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`; give it, or None, and the replies to `then`."""
        return heard([await self._stroke(key, seconds), *await self.send(then)])

    async def _stroke(self, key: str, seconds: float) -> Any:
        try:
            stroke = await self._wait(_look(key), seconds)
        except ResponseError as error:
            return error
        return stroke and [key.encode(), stroke]

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`; give the newest sound."""
        return newest_sound(await self._wait(_listen(key, last), min(seconds, self._bell_wait)), last)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
