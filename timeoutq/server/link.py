"""Links carry commands to the server and bring the replies: one blocking, and one for asyncio.

Only `client/driving.py` uses them. A link sends a list of commands and gives a list of replies. An error of the server
stands in the list in the place of its reply; an error of the network is raised. A link keeps its free connections
itself, and packs and sends on them directly; commands that are many bytes go in pieces.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Self, TypeVar, cast

import redis
import redis.asyncio.connection
import redis.connection
from redis.exceptions import ReadOnlyError, ResponseError

from timeoutq.server import names
from timeoutq.server.calls import Command
from timeoutq.server.connection import Server
from timeoutq.server.deadlines import ATTEMPT, LEAP, SLICE, SLOWEST
from timeoutq.server.patience import AsyncPatientParser, PatientParser
from timeoutq.server.troubles import LINK_ERRORS, LOOP_BLOCKED, is_denied
from timeoutq.server.wire import Wire

T = TypeVar("T")
P = TypeVar("P")
Road = tuple[Any, Wire | None]
"""A connection of redis-py's for asyncio, and its wire."""
NO_ROAD: Road = (None, None)

_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""The option that bounds what the kernel takes of a heavy command before it can send it. Without it the kernel
takes mebibytes, and then nothing more until a third of them is sent, as if the link carried nothing."""


def _keeps(pool: Any, module: Any) -> bool:
    # other connections go back to their pool each time: those that ask sentinels, or whose password may change
    plain = [module.Connection, module.SSLConnection, module.UnixDomainSocketConnection]
    plain += [names.FINDING[kind] for kind in plain if kind in names.FINDING]
    return pool.connection_class in plain and pool.connection_kwargs.get("credential_provider") is None


def _find_packer() -> Callable[[Command], bytes] | None:
    try:
        found: Any = import_module("hiredis")
    except ImportError:
        return None  # redis-py packs in Python then
    return getattr(found, "pack_command", None)


_pack_command = _find_packer()


def _pack(connection: Any, commands: Sequence[Command]) -> Sequence[bytes]:
    # redis-py would check the type of each word once more; no command here needs that
    if _pack_command is None:
        return cast("list[bytes]", connection.pack_commands(commands))
    if len(commands) == 1:
        return (_pack_command(commands[0]),)
    return (b"".join([_pack_command(command) for command in commands]),)


def _slices(packed: Sequence[bytes]) -> Iterator[memoryview]:
    for words in packed:
        whole = memoryview(words)
        for at in range(0, len(whole), SLICE):
            yield whole[at : at + SLICE]


def _sentinels_of(client: Any) -> Sequence[Any]:
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return () if manager is None else manager.sentinels


def _keep_little_unsent(plug: Any) -> None:
    # a socket of another family has no such option; it has small buffers
    if _UNSENT is not None and getattr(plug, "family", None) in (socket.AF_INET, socket.AF_INET6):
        plug.setsockopt(socket.IPPROTO_TCP, _UNSENT, 2 * SLICE)


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


class Link:
    """A blocking link to the server."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        self.server = server
        self._patience = server.deadline * ATTEMPT
        self._client = server.client(asynchronous=False, read_timeout=self._patience)
        self._pool = self._client.connection_pool
        self._parse = self._client.response_callbacks
        self._keep = _keeps(self._pool, redis.connection)
        self._free: list[Any] = []
        """Connections that nobody uses now; the pool takes them for used ones, and leaves them alone."""
        self._bell: Any = None
        self._bell_wait = bell_wait

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.
        """
        connection = self._take()
        replies: list[Any] = []
        demoted = False
        until = 0.0
        try:
            packed = _pack(connection, commands)
            if (size := sum(map(len, packed))) <= SLICE:
                connection.send_packed_command(packed)
            else:
                until = self._carry(connection, packed, size)
            parser = _patient(connection, PatientParser)
            for command in commands:
                if until and not connection.can_read(max(self._patience, until - time.monotonic())):
                    raise redis.TimeoutError("Timeout reading from the server")
                if parser is not None:
                    parser.expect(self._patience)
                try:
                    reply = connection.read_response()
                except ResponseError as error:
                    if is_denied(error):
                        raise
                    demoted = demoted or isinstance(error, ReadOnlyError)
                    reply = error
                else:
                    name = command[0]
                    if type(name) is str and name in self._parse:
                        reply = self._parse[name](reply)
                if parser is not None:
                    parser.relax()
                replies.append(reply)
        except BaseException as error:
            try:
                _not_taken_away(connection, error)
            finally:
                self._drop(connection)
            raise
        if demoted:
            # a primary that becomes a replica keeps its clients: only new connections can find the new primary
            self._drop(connection)
            while self._free:
                self._drop(self._free.pop())
            self._pool.disconnect(inuse_connections=False)
        elif self._keep:
            self._free.append(connection)
        else:
            self._pool.release(connection)
        return replies

    def send_all(self, parts: Sequence[Sequence[Command]], places: object = None) -> list[Any]:
        """Send several lists of commands in one flush; give for each its replies, or the error of the network."""
        try:
            return parted(parts, self.send(joined(parts)))
        except LINK_ERRORS as error:
            return [error] * len(parts)

    def _carry(self, connection: Any, packed: Sequence[bytes], size: int) -> float:
        # a socket's timeout covers all bytes of one call, so each call gets only one slice
        set_timeout: Callable[[float], None] = connection._sock.settimeout
        _keep_little_unsent(connection._sock)
        set_timeout(self._patience + LEAP)
        for piece in _slices(packed):
            connection.send_packed_command((piece,))
        set_timeout(self._patience)  # after an error the connection is closed, and redis-py has closed the socket
        # bytes that a buffer has taken may still be on their way to the server
        return time.monotonic() + self._patience + size / SLOWEST

    def _take(self) -> Any:
        try:
            connection = self._free.pop()
        except IndexError:
            return self._pool.get_connection()
        try:
            stale = connection.can_read()
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            stale = True
        if stale:
            # the server has closed the connection, or has sent something that nobody asked for
            self._drop(connection)
            return self._pool.get_connection()
        return connection

    def _drop(self, connection: Any) -> None:
        try:
            connection.disconnect()
        finally:
            self._pool.release(connection)

    def _blocking(self) -> Any:
        if self._bell is None:
            self._bell = self.server.client(asynchronous=False, read_timeout=self._bell_wait + self.server.deadline)
        return self._bell

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own.

        Gives the stroke, or None, and the replies to the commands `then`, which the server runs as soon as the wait has
        ended. An error of the server stands in the place of its reply; if there are errors only, the first is raised.
        """
        pool = self._blocking().connection_pool
        connection = pool.get_connection()
        parser = _patient(connection, PatientParser)
        replies: list[Any] = []
        try:
            connection.send_packed_command(_pack(connection, (_wait(key, seconds), *then)))
            # if the connection died silently, give up when the stroke is overdue, not only after the longest wait
            for patience in (seconds + self._patience, *(self._patience for _ in then)):
                if not connection.can_read(patience):
                    raise redis.TimeoutError("no reply of the bell")
                if parser is not None:
                    parser.expect(self._patience)
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            return heard(replies)
        except BaseException as error:
            try:
                _not_taken_away(connection, error)
            finally:
                connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, at most as long as for the bell; give the newest sound."""
        seconds = min(seconds, self._bell_wait)  # the connection gives up a little later
        return newest_sound(self._blocking().execute_command(*_alarm(key, last, seconds)), last)

    def at(self, where: object) -> Self:
        """Give the link to a place in a cluster; this server is alone, and all is here."""
        return self

    def nodes(self) -> dict[tuple[str, int], bool]:
        """Give the nodes of the cluster: none."""
        return {}

    def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._bell):
            if client is not None:
                client.close()
                client.connection_pool.disconnect()
                for sentinel in _sentinels_of(client):
                    sentinel.close()


def _not_taken_away(connection: Any, error: BaseException) -> None:
    """Raise an error of the network if another thread has closed the link: redis-py fails for want of a socket then."""
    if isinstance(error, (TypeError, ValueError, AttributeError)) and connection._sock is None:
        raise redis.ConnectionError("the connection was closed in another thread") from error


def _wait(key: str, seconds: float) -> Command:
    return ("BLPOP", key, f"{max(0.001, seconds):.3f}")


def heard(replies: list[Any]) -> list[Any]:
    """Give the replies to a wait and to the commands behind it; if all are errors, raise the first."""
    # a wait that was refused does not keep the server from the commands behind it
    if all(isinstance(reply, BaseException) for reply in replies):
        raise replies[0]
    return replies


def _alarm(key: str, last: bytes, seconds: float) -> Command:
    return ("XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", key, last)


def newest_sound(reply: Any, last: bytes) -> bytes:
    """Give the newest entry of the alarm in the reply of XREAD; `last` if nothing came."""
    # RESP3 gives streams by name, RESP2 a list of pairs
    if not reply:
        return last
    sounds: Any = next(iter(cast("Any", reply).values())) if isinstance(reply, dict) else reply[0][1]
    return cast("bytes", sounds[-1][0])


async def heeding(answer: Awaitable[T]) -> T:
    """Wait for an answer. A task that is cancelled meanwhile ends, even if redis-py swallows the cancellation."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await answer
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def _leaving(answer: Awaitable[T]) -> T:
    # a wait may swallow a cancellation while it connects, and would then go on to its end: leave it behind; the wait
    # ends when its connection is closed
    inner = asyncio.ensure_future(answer)
    try:
        return await asyncio.shield(inner)
    except asyncio.CancelledError:
        inner.cancel()
        inner.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _patient(connection: Any, kind: type[P]) -> P | None:
    # a connection class of the caller's may have a parser of its own
    parser: object = getattr(connection, "_parser", None)
    return parser if isinstance(parser, kind) else None


def _is_odd(reply: object) -> bool:
    return isinstance(reply, Exception)


def _raised(reply: T) -> T:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _from_now(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


LATE = 0.25
"""Seconds by which an alarm of asyncio may ring late; if it is later, the loop was blocked, not the server."""


def _unread(late: float) -> str:
    if late < LATE:
        return "Timeout reading from the server"
    return f"{LOOP_BLOCKED} until {late:.1f} s after the reply was due"


class AsyncLink:
    """The same link for asyncio; used by one event loop."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        self.server = server
        self._patience = server.deadline * ATTEMPT
        self._client = server.client(asynchronous=True, read_timeout=self._patience)
        self._pool = self._client.connection_pool
        self._parse = self._client.response_callbacks
        self._keep = _keeps(self._pool, redis.asyncio.connection)
        self._free: list[Road] = []
        """Connections that nobody uses now; the pool takes them for used ones, and leaves them alone."""
        self._bell: Any = None
        self._ears: list[Any] = []
        """Connections on which nobody waits for the bell now."""
        self._bell_wait = bell_wait

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.

        The usual exchange is short: on a connection with a wire, light, answered at once and without errors. Everything
        else is carried out by `_exchange`.
        """
        road = self._free[-1] if self._free else NO_ROAD
        connection, wire = road
        if wire is None or not wire.quiet or not connection.is_connected:
            return await heeding(self._exchange(commands))
        packed = _pack(connection, commands)
        self._free.pop()
        if sum(map(len, packed)) > SLICE:
            return await heeding(self._exchange(commands, road, packed))
        try:
            replies = await wire.ask(packed, len(commands))
        except BaseException:
            await self._drop(connection)
            raise
        if len(replies) < len(commands) or any(map(_is_odd, replies)):
            return await heeding(self._exchange(commands, road, packed, replies))
        self._free.append(road)
        return list(map(self._read, commands, replies))

    def _read(self, command: Command, reply: Any) -> Any:
        name = command[0]
        return self._parse[name](reply) if type(name) is str and name in self._parse else reply

    async def _exchange(
        self,
        commands: Sequence[Command],
        road: Road | None = None,
        packed: Sequence[bytes] | None = None,
        begun: list[Any] | None = None,
    ) -> list[Any]:
        # `begun` are the first replies, which a wire has taken: then the commands have been sent
        connection, wire = road or await self._take()
        replies: list[Any] = []
        demoted = False
        until = 0.0
        alarm = asyncio.timeout_at(_from_now(self._patience) if begun is None or wire is None else wire.due)
        size = 0
        try:
            packed = packed or _pack(connection, commands)
            size = sum(map(len, packed))
            async with alarm:
                if begun is None and size <= SLICE:
                    await connection.send_packed_command(packed)
                elif begun is None:
                    until = await self._carry(connection, packed, size, alarm)
                parser = _patient(connection, AsyncPatientParser)
                for command in commands:
                    if until:
                        alarm.reschedule(max(_from_now(self._patience), until))
                    if parser is not None:
                        parser.expect(self._patience, alarm)
                    try:
                        reply = _raised(begun.pop(0)) if begun else await connection.read_response()
                    except ResponseError as error:
                        if is_denied(error):
                            raise
                        demoted = demoted or isinstance(error, ReadOnlyError)
                        reply = error
                    else:
                        reply = self._read(command, reply)
                    replies.append(reply)
                if parser is not None:
                    parser.expect(0.0, None)  # redis-py before 8 looks for stale words by reading
        except TimeoutError as error:
            due = alarm.when()
            late = 0.0 if due is None else _from_now(0.0) - due
            await self._drop(connection)
            carrying = size > SLICE and not until
            raise redis.TimeoutError("Timeout writing to socket" if carrying else _unread(late)) from error
        except BaseException:
            await self._drop(connection)
            raise
        if demoted:
            # a primary that becomes a replica keeps its clients: only new connections can find the new primary
            await self._drop(connection)
            while self._free:
                await self._drop(self._free.pop()[0])
            await self._pool.disconnect(inuse_connections=False)
        elif self._keep:
            if wire is not None:
                wire.quiet = not await self._is_stale(connection)
            self._free.append((connection, wire))
        else:
            await self._return(connection)
        return replies

    async def send_all(self, parts: Sequence[Sequence[Command]], places: object = None) -> list[Any]:
        """Send several lists of commands in one flush; give for each its replies, or the error of the network."""
        try:
            return parted(parts, await self.send(joined(parts)))
        except LINK_ERRORS as error:
            return [error] * len(parts)

    async def _carry(self, connection: Any, packed: Sequence[bytes], size: int, alarm: asyncio.Timeout) -> float:
        road: asyncio.WriteTransport = connection._writer.transport
        _keep_little_unsent(road.get_extra_info("socket"))
        # a piece is sent when the kernel has all of it
        road.set_write_buffer_limits(high=1, low=0)
        try:
            for piece in _slices(packed):
                alarm.reschedule(_from_now(self._patience + LEAP))
                await connection.send_packed_command((piece,))
        except BaseException:
            road.abort()  # one that is only closed would go on to send what it has
            raise
        # bytes that a buffer has taken may still be on their way to the server
        return _from_now(self._patience + size / SLOWEST)

    async def _take(self) -> Road:
        if self._free:
            connection, wire = self._free.pop()
            if connection.is_connected and not await self._is_stale(connection):
                return connection, wire
            await self._drop(connection)
        connection = await self._pool.get_connection()
        # one timeout of ours for the whole exchange replaces two of redis-py's for each command, one of them a task
        connection.socket_timeout = None
        return connection, Wire.over(connection, self._patience) if self._keep else None

    async def _is_stale(self, connection: Any) -> bool:
        # the server has closed the connection, or has sent something unasked; redis-py 8 names this check differently
        try:
            if hasattr(connection, "can_read"):
                return bool(await connection.can_read())
            return bool(await connection.can_read_destructive())
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            return True

    async def _drop(self, connection: Any) -> None:
        try:
            await connection.disconnect(nowait=True)
        finally:
            await self._return(connection)

    async def _return(self, connection: Any) -> None:
        connection.socket_timeout = self._patience
        if (parser := _patient(connection, AsyncPatientParser)) is not None:
            parser.expect(0.0, None)
        await self._pool.release(connection)

    def _blocking(self) -> Any:
        if self._bell is None:
            self._bell = self.server.client(asynchronous=True, read_timeout=self._bell_wait + self.server.deadline)
        return self._bell

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own.

        Gives the stroke, or None, and the replies to the commands `then`, which the server runs as soon as the wait has
        ended. An error of the server stands in the place of its reply; if there are errors only, the first is raised.
        """
        async with asyncio.timeout(seconds + self._patience * (1 + len(then))):
            return await heeding(self._hear((_wait(key, seconds), *then)))

    async def _hear(self, commands: Sequence[Command]) -> list[Any]:
        # the connection itself, without redis-py's client: each turn of the loop between stroke and claim counts
        pool = self._blocking().connection_pool
        connection: Any = self._ears.pop() if self._ears else None
        if connection is None or not connection.is_connected or await self._is_stale(connection):
            if connection is not None:
                await connection.disconnect(nowait=True)
                await pool.release(connection)
            connection = await _leaving(pool.get_connection())
        patience, connection.socket_timeout = connection.socket_timeout, None
        replies: list[Any] = []
        try:
            await connection.send_packed_command(_pack(connection, commands))
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            heard(replies)
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        finally:
            connection.socket_timeout = patience
        if self._keep:
            self._ears.append(connection)
        else:
            await pool.release(connection)
        return replies

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until a client sounds the alarm after `last`, at most as long as for the bell; give the newest sound."""
        seconds = min(seconds, self._bell_wait)  # the connection gives up a little later
        return newest_sound(await _leaving(self._blocking().execute_command(*_alarm(key, last, seconds))), last)

    def at(self, where: object) -> Self:
        """Give the link to a place in a cluster; this server is alone, and all is here."""
        return self

    async def nodes(self) -> dict[tuple[str, int], bool]:
        """Give the nodes of the cluster: none."""
        return {}

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._bell):
            if client is not None:
                await client.aclose()
                with suppress(*LINK_ERRORS):  # a connection that cannot be closed in time is gone all the same
                    await client.connection_pool.disconnect()
                for sentinel in _sentinels_of(client):
                    await sentinel.aclose()
