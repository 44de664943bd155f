"""Links carry commands to the server and bring the replies: one blocking, and one for asyncio.

A link sends a list of commands and gives a list of replies. An error of the server
stands in the list in the place of its reply; an error of the network is raised. A link keeps its free connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Generic, Self, TypeVar, cast

import redis
from redis.exceptions import ReadOnlyError

from timeoutq.server.calls import Command
from timeoutq.server.connection import Server
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.road import AsyncRoad, Road
from timeoutq.server.troubles import LINK_ERRORS

R = TypeVar("R", Road, AsyncRoad)


@cache
def _readers() -> dict[str, Callable[[Any], Any]]:
    # how redis-py makes values of replies; the function calls of a queue are not among them
    return dict(redis.Redis(protocol=2).response_callbacks)


def _read(commands: Sequence[Command], replies: list[Any]) -> bool:
    """Make values of replies, in their places; say whether the server has become a replica."""
    demoted, readers = False, _readers()
    for at, reply in enumerate(replies):
        name = commands[at][0]
        if isinstance(reply, Exception):
            demoted = demoted or isinstance(reply, ReadOnlyError)
        elif type(name) is str and name in readers:
            replies[at] = readers[name](reply)
    return demoted


def joined(parts: Sequence[Sequence[Command]]) -> list[Command]:
    """Give the commands of all parts as one flush. One WAIT at the end stands for the WAIT that ends each part."""
    waits = [part[-1] for part in parts if part[-1][0] == "WAIT"]
    commands = [command for part in parts for command in part if command[0] != "WAIT"]
    return [*commands, max(waits, key=lambda wait: wait[1:])] if waits else commands


def parted(parts: Sequence[Sequence[Command]], replies: Sequence[Any]) -> list[Any]:
    """Give each part of `joined` its replies."""
    found: list[Any] = []
    at = 0
    for part in parts:
        waits = part[-1][0] == "WAIT"
        end = at + len(part) - waits
        found.append([*replies[at:end], replies[-1]] if waits else list(replies[at:end]))
        at = end
    return found


def await_bell(key: str, seconds: float) -> Command:
    """Give the command that waits for a stroke of the bell."""
    return ("BLPOP", key, f"{max(0.001, seconds):.3f}")


def heard(replies: list[Any]) -> list[Any]:
    """Give the replies to a wait and to the commands behind it; if all are errors, raise the first."""
    # a wait that was refused does not keep the server from the commands behind it
    if all(isinstance(reply, BaseException) for reply in replies):
        raise replies[0]
    return replies


def await_sound(key: str, last: bytes, seconds: float) -> Command:
    """Give the command that waits for a sound of the alarm after `last`."""
    return ("XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", key, last)


def newest_sound(reply: Any, last: bytes) -> bytes:
    """Give the newest entry of the alarm in the reply of XREAD; `last` if nothing came."""
    if not reply:
        return last
    sounds: Any = next(iter(cast("Any", reply).values())) if isinstance(reply, dict) else reply[0][1]
    return cast("bytes", sounds[-1][0])


class Within:
    """A link, or the links to all nodes, of which there may be some with shorter deadlines."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        self.server = server
        self._bell_wait = bell_wait
        self._hasty: dict[float, Self] = {}

    def within(self, seconds: float | None) -> Self:
        """Give links that wait as long as this deadline allows, if it is shorter than that of the server."""
        if seconds is None or seconds >= self.server.deadline:
            return self
        if seconds not in self._hasty:
            self._hasty[seconds] = type(self)(self.server.within(seconds), self._bell_wait)
        return self._hasty[seconds]


class _Kept(Within, Generic[R]):
    """The connections that a link keeps."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        super().__init__(server, bell_wait)
        self._patience = server.deadline * ATTEMPT
        self._free: list[R] = []
        self._listeners: list[R] = []
        """Connections on which nobody waits for the bell now."""
        self._heard: set[R] = set()  # those on which somebody does; a thread that waits ends its wait by itself
        self._all: set[R] = set()
        self._has_failed = False

    def at(self, where: object) -> Self:
        """Give the link to a place in a cluster; this server is alone, and all is here."""
        return self

    def _settle(self, road: R, commands: Sequence[Command], replies: list[Any]) -> None:
        self._free.append(road)
        if self._has_failed:
            # a server that hangs lets its listeners wait; after a failover, nobody rings there any more
            self._has_failed = False
            with suppress(IndexError):  # another thread may take the last one
                while self._listeners:
                    self._drop(self._listeners.pop())
            for listener in list(self._heard):
                listener.abort()
        if _read(commands, replies):
            # it keeps its clients: only new connections can find the new primary
            while self._free:
                self._drop(self._free.pop())

    def _drop(self, road: R) -> None:
        self._all.discard(road)
        road.abort()

    def _fail(self, road: R, error: BaseException) -> None:
        self._has_failed = self._has_failed or isinstance(error, LINK_ERRORS)
        self._drop(road)


class Link(_Kept[Road]):
    """A blocking link to the server; any thread may use it."""

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.
        """
        road = self._take(self._free)
        try:
            replies = road.exchange(commands)
        except BaseException as error:
            self._fail(road, error)
            raise
        self._settle(road, commands, replies)
        return replies

    def send_all(self, parts: Sequence[Sequence[Command]], places: object = None) -> list[Any]:
        """Send several lists of commands in one flush; give for each its replies, or the error of the network."""
        try:
            return parted(parts, self.send(joined(parts)))
        except LINK_ERRORS as error:
            return [error] * len(parts)

    def _take(self, free: list[Road]) -> Road:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                road = free.pop()
                if not road.is_stale():
                    return road
                self._drop(road)
        try:
            road = self._open()
        except LINK_ERRORS:
            self._has_failed = True
            raise
        self._all.add(road)
        return road

    def _open(self) -> Road:
        search, answer = self.server.search(), None
        while True:
            try:
                place, question = search.send(answer)
            except StopIteration as found:
                return Road.open(found.value, self._patience, self.server.patience)
            try:
                asked = Road.open(place, self.server.patience, self.server.patience)
                try:
                    (answer,) = asked.exchange((question,))
                finally:
                    asked.abort()
            except LINK_ERRORS as error:
                answer = error

    def _hear(self, commands: Sequence[Command], seconds: float) -> list[Any]:
        # if the connection died silently, give up when the answer is overdue
        road = self._take(self._listeners)
        try:
            replies = heard(road.exchange(commands, seconds + self._patience))
        except BaseException:
            self._drop(road)
            raise
        self._listeners.append(road)
        return replies

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own.

        Gives the stroke, or None, and the replies to the commands `then`, which the server runs as soon as the wait has
        ended. An error of the server stands in the place of its reply; if there are errors only, the first is raised.
        """
        return self._hear((await_bell(key, seconds), *then), seconds)

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, at most as long as for the bell; give the newest sound."""
        seconds = min(seconds, self._bell_wait)
        return newest_sound(self._hear((await_sound(key, last, seconds),), seconds)[0], last)

    def close(self) -> None:
        """Close all connections; who waits in another thread is told."""
        self._free.clear()
        self._listeners.clear()
        while self._all:
            self._all.pop().abort()
        for link in self._hasty.values():
            link.close()


class AsyncLink(_Kept[AsyncRoad]):
    """The same link for asyncio; used by one event loop."""

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.
        """
        road = await self._take(self._free)
        try:
            replies = await road.exchange(commands)
        except BaseException as error:
            self._fail(road, error)
            raise
        self._settle(road, commands, replies)
        return replies

    async def send_all(self, parts: Sequence[Sequence[Command]], places: object = None) -> list[Any]:
        """Send several lists of commands in one flush; give for each its replies, or the error of the network."""
        try:
            return parted(parts, await self.send(joined(parts)))
        except LINK_ERRORS as error:
            return [error] * len(parts)

    async def _take(self, free: list[AsyncRoad]) -> AsyncRoad:
        while free:
            road = free.pop()
            if road.quiet:
                return road
            self._drop(road)
        try:
            road = await self._open()
        except LINK_ERRORS:
            self._has_failed = True
            raise
        self._all.add(road)
        return road

    async def _open(self) -> AsyncRoad:
        search, answer = self.server.search(), None
        while True:
            try:
                place, question = search.send(answer)
            except StopIteration as found:
                return await AsyncRoad.open(found.value, self._patience, self.server.patience)
            try:
                asked = await AsyncRoad.open(place, self.server.patience, self.server.patience)
                try:
                    (answer,) = await asked.exchange((question,))
                finally:
                    asked.abort()
            except LINK_ERRORS as error:
                answer = error

    async def _hear(self, commands: Sequence[Command], seconds: float) -> list[Any]:
        road = await self._take(self._listeners)
        self._heard.add(road)
        try:
            replies = heard(await road.exchange(commands, seconds + self._patience))
        except BaseException:
            self._drop(road)
            raise
        finally:
            self._heard.discard(road)
        self._listeners.append(road)
        return replies

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `Link.wait_bell` does."""
        return await self._hear((await_bell(key, seconds), *then), seconds)

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, at most as long as for the bell; give the newest sound."""
        seconds = min(seconds, self._bell_wait)
        return newest_sound((await self._hear((await_sound(key, last, seconds),), seconds))[0], last)

    async def close(self) -> None:
        """Close all connections."""
        self._free.clear()
        self._listeners.clear()
        await asyncio.gather(*[road.close() for road in self._all])
        self._all.clear()
        for link in self._hasty.values():
            await link.close()
