"""Links carry commands to the server and bring the replies: one blocking, and one for asyncio.

An error of the server stands in the place of its reply; an error of the network is raised.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from threading import Lock
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import redis
from redis.exceptions import ReadOnlyError

from timeoutq.server.calls import Command
from timeoutq.server.cluster import Node, Where
from timeoutq.server.connections import AsyncConnection, Connection, await_bell, await_sound
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.memory import AsyncMemoryConnection, MemoryConnection
from timeoutq.server.server import Endpoint, Server
from timeoutq.server.sockets import at_once
from timeoutq.server.troubles import LINK_ERRORS

C = TypeVar("C", Connection, AsyncConnection)
L = TypeVar("L", "Link", "AsyncLink")
Parts = Sequence[Sequence[Command]]
"""Lists of commands, each of which has its own replies."""


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


def joined(parts: Parts) -> list[Command]:
    """Give the commands of all parts as one flush. One WAIT at the end stands for the WAIT that ends each part."""
    waits = [part[-1] for part in parts if part[-1][0] == "WAIT"]
    commands = [command for part in parts for command in part if command[0] != "WAIT"]
    return [*commands, max(waits, key=lambda wait: wait[1:])] if waits else commands


def parted(parts: Parts, replies: Sequence[Any]) -> list[Any]:
    """Give each part of `joined` its replies."""
    found: list[Any] = []
    at = 0
    for part in parts:
        waits = part[-1][0] == "WAIT"
        end = at + len(part) - waits
        found.append([*replies[at:end], replies[-1]] if waits else list(replies[at:end]))
        at = end
    return found


async def settled(found: Any) -> Any:
    """Give what a method has given, or what it gives when it is awaited: of two kinds, one blocks."""
    return await found if inspect.isawaitable(found) else found


class _Link(Generic[C]):
    """What both links do with their connections, as coroutines: a link that blocks runs them at once."""

    _kind: ClassVar[Any]
    """The class of connections, and that of those over a redis-py client."""
    _borrowed: ClassVar[Any]

    def __init__(self, server: Server) -> None:
        self.server = server
        self._client: Any = None
        """The redis-py client that connects, if the server is not plain."""
        self._free: list[C] = []
        self._listeners: list[C] = []
        """Connections on which nobody waits for the bell now."""
        # in order, as sets are not, so that a simulation can be repeated
        self._heard: dict[C, None] = {}  # those on which somebody does
        self._all: dict[C, None] = {}
        self._has_failed = False
        self._shares = True

    @property
    def _patience(self) -> float:
        return self.server.deadline * ATTEMPT

    def within(self, seconds: float | None) -> Self:
        """Give the link that waits as long as this deadline allows, if it is shorter than that of the server."""
        if seconds is None or seconds >= self.server.deadline:
            return self
        found = copy.copy(self)  # the connections are the same
        found.server, found._shares = self.server.within(seconds), False
        return found

    def _reused(self, free: list[C]) -> C | None:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                found = free.pop()
                if not found.is_stale():
                    return found
                self._drop(found)
        return None

    async def _opened(self) -> C:
        try:
            if self.server.is_plain:
                place = await self.server.find(self._ask)
                found = await settled(self._kind.open(place, self._patience, self.server.patience))
            else:
                asynchronous = self._borrowed is AsyncMemoryConnection
                self._client = self._client or self.server.client(asynchronous=asynchronous)
                found = self._borrowed(self._client, is_polled=self.server.in_memory)
        except LINK_ERRORS:
            self._has_failed = True
            raise
        self._all[found] = None
        return cast("C", found)

    async def _ask(self, sentinel: Endpoint, command: Command) -> Any:
        asked = await settled(self._kind.open(sentinel, self.server.patience, self.server.patience))
        try:
            return (await settled(asked.exchange((command,), self.server.patience)))[0]
        finally:
            asked.abort()

    def _settle(self, found: C, commands: Sequence[Command], replies: list[Any]) -> None:
        self._free.append(found)
        if self._has_failed:
            # a server that hangs lets its listeners wait; after a failover, nobody rings there any more
            self._has_failed = False
            with suppress(IndexError):  # another thread may take the last one
                while self._listeners:
                    self._drop(self._listeners.pop())
            for listener in list(self._heard):
                listener.abort()
        if self._client is None and _read(commands, replies):  # a client has made values by itself
            # it keeps its clients: only new connections can find the new primary
            while self._free:
                self._drop(self._free.pop())

    def _drop(self, found: C) -> None:
        self._all.pop(found, None)
        found.abort()

    def _fail(self, found: C, error: BaseException) -> None:
        self._has_failed = self._has_failed or isinstance(error, LINK_ERRORS)
        self._drop(found)

    async def _hear(self, commands: Sequence[Command], seconds: float) -> list[Any]:
        found = self._reused(self._listeners) or await self._opened()
        self._heard[found] = None
        try:
            replies: list[Any] = await settled(found.exchange(commands, self._patience, max(0.001, seconds)))
            # a wait that was refused does not keep the server from the commands behind it
            if all(isinstance(reply, BaseException) for reply in replies):
                raise replies[0]
        except BaseException:
            self._drop(found)
            raise
        finally:
            self._heard.pop(found, None)
        self._listeners.append(found)
        return replies

    async def _wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        (reply,) = await self._hear((await_sound(key, last, seconds),), seconds)
        if not reply:
            return last
        sounds: Any = next(iter(cast("Any", reply).values())) if isinstance(reply, dict) else reply[0][1]
        return cast("bytes", sounds[-1][0])

    async def closed(self) -> None:
        """Close all connections; who waits for a bell is told."""
        self._free.clear()
        self._listeners.clear()
        closing = [self._all.popitem()[0] for _ in range(len(self._all))]
        for found in closing:
            found.abort()
        for found in closing:
            await settled(found.close())
        if self._client is not None:
            await settled(self._client.connection_pool.disconnect())


class Link(_Link[Connection]):
    """A blocking link to the server; any thread may use it."""

    _kind, _borrowed = Connection, MemoryConnection

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.
        """
        found = self._reused(self._free) or at_once(self._opened())
        try:
            replies = found.exchange(commands, self._patience)
        except BaseException as error:
            self._fail(found, error)
            raise
        self._settle(found, commands, replies)
        return replies

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own.

        Gives the stroke, or None, and the replies to the commands `then`, which the server runs as soon as the wait has
        ended. An error of the server stands in the place of its reply; if there are errors only, the first is raised.
        """
        return at_once(self._hear((await_bell(key, seconds), *then), seconds))

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, at most `seconds`; give the newest sound."""
        return at_once(self._wait_alarm(key, last, seconds))

    def close(self) -> None:
        """Close all connections; who waits in another thread is told."""
        at_once(self.closed())


def _is_light(commands: Sequence[Command]) -> bool:
    """Say whether others may wait for the replies to these commands, too."""
    size = 0
    for command in commands:
        if len(command) > 40 or command[0] == "WAIT":
            return False
        size += sum(len(word) for word in command if isinstance(word, str | bytes))
    return size <= 4096


_Calls = list[tuple[Sequence[Command], "asyncio.Future[list[Any]]"]]


MOST_ABOARD = 32
"""So many lists of commands travel together at most: nobody has a reply before all of them have."""


class _Flight:
    """Lists of commands that depart together, with the futures of their replies, and the task that sends them."""

    def __init__(self) -> None:
        self.calls: _Calls = []
        self.task: asyncio.Task[None] | None = None

    def left(self) -> Parts:
        """Leave out what was cancelled before it was sent; give the commands that are left."""
        self.calls = [one for one in self.calls if not one[1].done()]
        return [commands for commands, _ in self.calls]


class AsyncLink(_Link[AsyncConnection]):
    """The same link for asyncio; used by one event loop.

    A flush costs the event loop and the kernel more than a few commands cost the server. So while one is under way, all
    light commands that are sent in one turn of the loop travel together.
    """

    _kind, _borrowed = AsyncConnection, AsyncMemoryConnection

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._flushes = 0  # how many are under way
        self._boarding: _Flight | None = None  # what departs in the next turn of the loop
        self._tasks: set[asyncio.Task[None]] = set()  # what sends the flights

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush, as `Link.send` does; it may carry commands of others, too."""
        if not (self._flushes and self._shares and _is_light(commands)):
            return await self._flush(lambda: commands)
        loop = asyncio.get_running_loop()
        flight = self._boarding
        if flight is None or len(flight.calls) == MOST_ABOARD:
            flight = self._boarding = _Flight()
            loop.call_soon(self._depart, flight)  # unlike a task, it cannot be cancelled by code that cancels all tasks
        replies: asyncio.Future[list[Any]] = loop.create_future()
        flight.calls.append((commands, replies))
        try:
            return await replies
        except asyncio.CancelledError:
            if flight.task is not None and all(other.done() for _, other in flight.calls):
                flight.task.cancel()  # nobody waits any more: the server is not to carry the commands out much later
            raise

    async def _flush(self, load: Callable[[], Sequence[Command]], *, whole: bool = False) -> list[Any]:
        """Send what is to be sent when a connection is there; with `whole`, all replies have the time of one."""
        self._flushes += 1
        try:
            found = self._reused(self._free) or await self._opened()
            commands = load()
            try:
                replies = await found.exchange(commands, self._patience, whole=whole)
            except BaseException as error:
                self._fail(found, error)
                raise
        finally:
            self._flushes -= 1
        self._settle(found, commands, replies)
        return replies

    def _depart(self, flight: _Flight) -> None:
        if self._boarding is flight:
            self._boarding = None
        if flight.left():
            flight.task = asyncio.get_running_loop().create_task(self._carry(flight))
            self._tasks.add(flight.task)
            flight.task.add_done_callback(partial(self._landed, flight))

    async def _carry(self, flight: _Flight) -> None:
        try:
            sent = await self._flush(lambda: joined(flight.left()), whole=True)
            found: list[Any] = parted([commands for commands, _ in flight.calls], sent)
        except Exception as error:
            found = [error] * len(flight.calls)
        for (_, replies), answer in zip(flight.calls, found, strict=True):
            if replies.done():
                pass
            elif isinstance(answer, Exception):
                replies.set_exception(answer)
            else:
                replies.set_result(answer)

    def _landed(self, flight: _Flight, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        for _, replies in flight.calls:
            if not replies.done():  # somebody else has cancelled the task
                replies.set_exception(redis.ConnectionError("The exchange was cancelled."))

    async def landed(self) -> None:
        """Wait until all that travels together now has arrived, or never will."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `Link.wait_bell` does."""
        return await self._hear((await_bell(key, seconds), *then), seconds)

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, as `Link.wait_alarm` does."""
        return await self._wait_alarm(key, last, seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self.closed()


class _Links(Generic[L]):
    """A link to each node of a cluster that somebody has asked for; to a single server, one."""

    kind: ClassVar[Any]

    def __init__(self, server: Server) -> None:
        self._server = server
        self._links: dict[Node | None, L] = {}
        self._lock = Lock()

    def at(self, where: Where) -> L:
        """Give the link to a node; a guide has found it."""
        node = where if self._server.nodes and isinstance(where, tuple) else None
        found = self._links.get(node)
        if found is None:
            with self._lock:
                if node not in self._links:
                    self._links[node] = self.kind(self._server if node is None else self._server.node(*node))
                found = self._links[node]
        return found

    def _by_link(self, places: Sequence[Where], within: float | None) -> list[tuple[L, list[int]]]:
        found: dict[L, list[int]] = {}
        for at, where in enumerate(places):
            found.setdefault(self.at(where), []).append(at)
        return [(link.within(within), of) for link, of in found.items()]

    async def _send(self, link: L, of: Sequence[int], parts: Parts, answers: list[Any]) -> None:
        mine = [parts[at] for at in of]
        try:
            found = parted(mine, await settled(link.send(joined(mine))))
        except LINK_ERRORS as error:
            found = [error] * len(mine)
        for at, answer in zip(of, found, strict=True):
            answers[at] = answer

    async def _close(self) -> None:
        for link in self._links.values():
            await link.closed()


class Links(_Links[Link]):
    """The links for code that blocks."""

    kind = Link

    def send_all(self, parts: Parts, places: Sequence[Where], within: float | None = None) -> list[Any]:
        """Send lists of commands, each to its node, in one flush for each node.

        Gives for each list its replies, or the error of the network. `within` is a deadline as for `Link.within`.
        """
        answers: list[Any] = [None] * len(parts)
        for link, of in self._by_link(places, within):
            at_once(self._send(link, of, parts, answers))
        return answers

    def close(self) -> None:
        """Close all connections; who waits in another thread is told."""
        at_once(self._close())


class AsyncLinks(_Links[AsyncLink]):
    """The links for asyncio."""

    kind = AsyncLink

    async def send_all(self, parts: Parts, places: Sequence[Where], within: float | None = None) -> list[Any]:
        """Send lists of commands, each to its node, to all nodes at the same time; see `Links.send_all`."""
        answers: list[Any] = [None] * len(parts)
        flushes = [self._send(link, of, parts, answers) for link, of in self._by_link(places, within)]
        if len(flushes) == 1:
            await flushes[0]
        else:
            await asyncio.gather(*flushes)
        return answers

    async def landed(self) -> None:
        """Wait until all that travels together now has arrived, or never will."""
        for link in list(self._links.values()):
            await link.landed()

    async def close(self) -> None:
        """Close all connections."""
        await self._close()
