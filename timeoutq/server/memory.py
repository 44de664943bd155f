"""Connections of a redis-py client: of fakeredis, and of a class of the caller's own.

Commands go one after another. On a server, a wait blocks there, half a second at a time. fakeredis is asked again every
few milliseconds, so that a wait which is given up leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import redis
from redis.exceptions import ResponseError

from timeoutq.server.calls import Command
from timeoutq.server.connections import await_bell, await_sound, is_fatal
from timeoutq.server.deadlines import WAIT

T = TypeVar("T")

PAUSE = 0.005
"""Seconds between two looks at fakeredis."""


async def heeding(answer: Awaitable[T]) -> T:
    """Wait for an answer. A task that is cancelled meanwhile ends, even if redis-py swallows the cancellation."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await answer
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class _Borrowed:
    """What both kinds share; all connections of a link use one client, which has connections of its own."""

    def __init__(self, client: Any, *, is_polled: bool) -> None:
        self._client = client
        self._is_polled = is_polled
        self._is_closed = False

    def _turn(self, command: Any, seconds: float) -> Command:
        # what is sent for a command that may wait so long
        if seconds <= 0:
            return command  # type: ignore[no-any-return]  # the command as it is
        bell = command[0] == "BLPOP"
        if self._is_polled:
            return ("LPOP", command[1]) if bell else (*command[:3], *command[5:])
        *_, key, last = command
        return await_bell(command[1], min(seconds, WAIT)) if bell else await_sound(key, last, min(seconds, WAIT))

    def is_stale(self) -> bool:
        """Say no: the client connects again by itself."""
        return False

    def abort(self) -> None:
        """End a wait in another thread at its next turn."""
        self._is_closed = True

    close = abort


class MemoryConnection(_Borrowed):
    """A connection for code that blocks."""

    def exchange(self, commands: Sequence[Command], _: float, waits: float = 0.0) -> list[Any]:
        """Send commands and give their replies, as `Connection.exchange` does."""
        return [self._ask(command, 0.0 if at else waits) for at, command in enumerate(commands)]

    def _ask(self, command: Command, seconds: float) -> Any:
        until, left = time.monotonic() + seconds, seconds
        while True:
            try:
                found = self._client.execute_command(*self._turn(command, left))
            except ResponseError as error:
                if is_fatal(error):
                    raise
                return error
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            if self._is_closed:
                raise redis.ConnectionError("the link was closed in another thread")
            if self._is_polled:
                time.sleep(min(PAUSE, left))


class AsyncMemoryConnection(_Borrowed):
    """A connection for asyncio, of one event loop."""

    async def exchange(
        self, commands: Sequence[Command], _: float, waits: float = 0.0, *, whole: bool = False
    ) -> list[Any]:
        """Send commands and give their replies, as `Connection.exchange` does."""
        return [await self._ask(command, 0.0 if at else waits) for at, command in enumerate(commands)]

    async def _ask(self, command: Command, seconds: float) -> Any:
        until, left = time.monotonic() + seconds, seconds
        while True:
            try:
                found = await heeding(self._client.execute_command(*self._turn(command, left)))
            except ResponseError as error:
                if is_fatal(error):
                    raise
                return error
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            if self._is_polled:
                await asyncio.sleep(min(PAUSE, left))
