"""Makes links that carry commands, from a URL, from the environment, or from a redis-py client that the caller gave.

Only `client.py` calls it. A link sends a list of commands and gives a list of replies. An error of the server stands in
the list in the place of its reply; an error of the network is raised. redis-py's own retries are off: only `flows.py`
decides what may be sent again, and for how long.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, ResponseError
from redis.retry import Retry

from timeoutq import address, names
from timeoutq.address import Address, Sentinels
from timeoutq.calls import Command
from timeoutq.deadlines import ATTEMPT, CONNECT, LEAP, SLICE, SLOWEST
from timeoutq.errors import InvalidInput, TimeoutqError
from timeoutq.patience import AsyncPatientParser, PatientParser
from timeoutq.troubles import LOOP_BLOCKED, explain, is_denied

T = TypeVar("T")
P = TypeVar("P")

_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""The option that bounds what the kernel takes of a heavy command before it can send it. Without it the kernel
takes mebibytes, and then nothing more until a third of them is sent, as if the link carried nothing."""


def _unnamed() -> dict[str, Any]:
    known = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
    return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}


_UNNAMED = _unnamed()
"""A connection does not tell the server its library: this costs two round trips, and hides why access is refused."""


class Server:
    """Where the server is and how long to wait for it; makes the redis-py clients of the links."""

    def __init__(self, url: str | None, client: Any, deadline: float) -> None:
        self.deadline = deadline
        self._kwargs: dict[str, Any] = {}
        self._pool: Any = None
        self._sentinels: Sentinels | None = None
        self._given: Address | None = None
        if client is not None:
            pool = getattr(client, "connection_pool", None)
            if pool is None or not hasattr(pool, "connection_kwargs"):
                raise InvalidInput(f"client= takes a redis.Redis or redis.asyncio.Redis, not {type(client).__name__}")
            self._pool = pool
            self._kwargs = dict(pool.connection_kwargs)
            host = self._kwargs.get("host") or self._kwargs.get("path") or "client"
            scheme = "rediss" if "SSL" in pool.connection_class.__name__ else "redis"
            self.url = f"{scheme}://{host}:{self._kwargs.get('port', '')}/{self._kwargs.get('db') or 0}"
            if hasattr(pool, "service_name"):
                self._sentinels = _given_sentinels(pool, self._plain())
                self.url = f"{scheme}+sentinel://{','.join(f'{h}:{p}' for h, p in self._sentinels.hosts)}"
                self.url += f"/{self._sentinels.service}/{self._kwargs.get('db') or 0}"
            self._secrets = [str(self._kwargs[name]) for name in ("password", "ssl_password") if self._kwargs.get(name)]
        else:
            found = address.find_url(url)
            self._given = address.read(found)
            self.url = self._given.url
            self._secrets = address.secrets(found)
            self._sentinels = self._given.sentinels

    def __repr__(self) -> str:
        return f"Server({getattr(self, 'url', '?')!r})"

    @property
    def user(self) -> str:
        """The name of the user in the URL or the client; empty if none is given."""
        if self._given is not None:
            return str(self._given.settings.get("username") or "")
        return str(self._kwargs.get("username") or "")

    def _options(self, read_timeout: float) -> dict[str, Any]:
        return {
            "decode_responses": False,
            "health_check_interval": 0,
            "protocol": 2,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "socket_connect_timeout": min(2.0, self.deadline * CONNECT),
            "socket_keepalive": True,
            "socket_timeout": read_timeout,
            **_UNNAMED,
        }

    def client(self, *, asynchronous: bool, read_timeout: float) -> Any:
        """Make a redis-py client with its own connections: bytes, RESP2, no retries of its own."""
        options = self._options(read_timeout)
        if asynchronous:
            options["retry"] = AsyncRetry(NoBackoff(), 0)
            options["parser_class"] = AsyncPatientParser
        else:
            options["retry"] = Retry(NoBackoff(), 0)
            options["parser_class"] = PatientParser
        kind: Any = redis.asyncio.Redis if asynchronous else redis.Redis
        if self._sentinels is not None:
            return kind(connection_pool=self._watched(self._sentinels, asynchronous, options))
        module: Any = redis.asyncio.connection if asynchronous else redis.connection
        connection: Any
        if self._given is not None:
            connection = getattr(module, self._given.connection)
            settings: Mapping[str, Any] = self._given.settings
        else:
            given = self._pool.connection_class
            if "fakeredis" in given.__module__:
                return self._fake(asynchronous)
            connection = getattr(module, given.__name__, given)
            settings = self._plain()
        connection = names.FINDING.get(connection, connection)
        if "path" in settings:
            options.pop("socket_keepalive")
        return kind(connection_pool=module.ConnectionPool(connection_class=connection, **settings, **options))

    def _watched(self, where: Sentinels, asynchronous: bool, options: dict[str, Any]) -> Any:
        # each new connection asks the sentinels for the primary; a connection that reached a replica is closed
        module: Any = redis.asyncio.sentinel if asynchronous else redis.sentinel
        patience = min(1.0, self.deadline / 4)
        asking: dict[str, Any] = {
            **where.sentinel, "protocol": 2, "retry": options["retry"], "retry_on_error": [],
            "socket_connect_timeout": patience, "socket_timeout": patience,
        }  # fmt: skip
        kind: Any = module.Sentinel
        if where.sentinel.get("ssl"):
            kind = _AsyncSentinelsOverTls if asynchronous else _SentinelsOverTls
        manager = kind(where.hosts, sentinel_kwargs=asking)
        pools = [sentinel.connection_pool for sentinel in manager.sentinels]
        pools.append(module.SentinelConnectionPool(where.service, manager, **where.server, **options))
        for pool in pools:
            pool.connection_class = names.FINDING.get(pool.connection_class, pool.connection_class)
        return pools[-1]

    def _plain(self) -> dict[str, Any]:
        # server, user and transport come from the caller's connections; we decide everything else
        return {
            name: value
            for name, value in self._kwargs.items()
            if name in ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")
            or (name.startswith("ssl_") and (value or "ocsp" not in name))
        }

    def _fake(self, asynchronous: bool) -> Any:
        import fakeredis

        server = self._kwargs["server"]
        return fakeredis.FakeAsyncRedis(server=server) if asynchronous else fakeredis.FakeRedis(server=server)

    @property
    def service(self) -> str | None:
        """The service that the sentinels watch; None without sentinels."""
        return None if self._sentinels is None else self._sentinels.service

    def explain(self, error: BaseException) -> TimeoutqError:
        """Translate an error that redis-py raised into the error that a caller gets; no password stands in it."""
        return explain(error, self.url, self._secrets, self.deadline)


_Sentinels: Any = redis.sentinel.Sentinel
_AsyncSentinels: Any = redis.asyncio.sentinel.Sentinel


class _SentinelsOverTls(_Sentinels):  # type: ignore[misc]  # redis-py gives it no types
    """Sentinels that say why they cannot be asked: redis-py alone hides the errors of TLS."""

    def discover_master(self, service_name: str) -> Any:
        sentinel: Any = self.sentinels[0]
        try:
            return _Sentinels.discover_master(self, service_name)
        except redis.sentinel.MasterNotFoundError as error:
            try:
                sentinel.ping()
            except (redis.ConnectionError, redis.TimeoutError) as why:
                raise error from why
            raise


class _AsyncSentinelsOverTls(_AsyncSentinels):  # type: ignore[misc]  # same
    """The same for asyncio."""

    async def discover_master(self, service_name: str) -> Any:
        sentinel: Any = self.sentinels[0]
        try:
            return await _AsyncSentinels.discover_master(self, service_name)
        except redis.asyncio.sentinel.MasterNotFoundError as error:
            try:
                await sentinel.ping()
            except (redis.ConnectionError, redis.TimeoutError) as why:
                raise error from why
            raise


def _given_sentinels(pool: Any, plain: dict[str, Any]) -> Sentinels:
    manager = pool.sentinel_manager
    kwargs = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    hosts = tuple((str(words["host"]), int(words["port"])) for words in kwargs)
    server = {name: value for name, value in plain.items() if name not in ("host", "port")}
    tls = {"ssl": True} if "SSL" in pool.connection_class.__name__ else {}
    asked = {} if not kwargs else {
        name: value for name, value in kwargs[0].items()
        if value and (name in ("username", "password") or name.startswith("ssl_"))
    }  # fmt: skip
    if kwargs and "SSL" in manager.sentinels[0].connection_pool.connection_class.__name__:
        asked["ssl"] = True
    return Sentinels(hosts, str(pool.service_name), {**server, **tls}, asked)


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
        except BaseException:
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

    def _carry(self, connection: Any, packed: Sequence[bytes], size: int) -> float:
        # a socket's timeout covers all bytes of one call, so each call gets only one slice
        # the socket of fakeredis has no timeout
        set_timeout: Callable[[float], None] = getattr(connection._sock, "settimeout", lambda _: None)
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

    def wait_bell(self, key: str, seconds: float) -> bool:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own."""
        if self._bell is None:
            self._bell = self.server.client(asynchronous=False, read_timeout=self._bell_wait + self.server.deadline)
        pool = self._bell.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command("BLPOP", key, max(0.001, seconds))
            # if the connection died silently, give up when the stroke is overdue, not only after the longest wait
            if not connection.can_read(seconds + self._patience):
                raise redis.TimeoutError("no reply of the bell")
            if (parser := _patient(connection, PatientParser)) is not None:
                parser.expect(self._patience)
            return connection.read_response() is not None
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._bell):
            if client is not None:
                client.close()
                client.connection_pool.disconnect()
                for sentinel in _sentinels_of(client):
                    sentinel.close()


async def _heeding(answer: Awaitable[T]) -> T:
    # redis-py swallows some cancellations, or turns them into errors of the network: a task that was cancelled during
    # the wait must not go on as if nothing had happened
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
    # connections of fakeredis have parsers of their own
    parser: object = getattr(connection, "_parser", None)
    return parser if isinstance(parser, kind) else None


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
        self._free: list[Any] = []
        """Connections that nobody uses now; the pool takes them for used ones, and leaves them alone."""
        self._bell: Any = None
        self._ears: list[Any] = []
        """Connections on which nobody waits for the bell now."""
        self._bell_wait = bell_wait

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush; errors of the server come as values.

        Either every reply is read, or the connection is closed before anybody else can use it.
        """
        return await _heeding(self._exchange(commands))

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = await self._take()
        replies: list[Any] = []
        demoted = False
        until = 0.0
        alarm = asyncio.timeout(self._patience)
        size = 0
        try:
            packed = _pack(connection, commands)
            async with alarm:
                if (size := sum(map(len, packed))) <= SLICE:
                    await connection.send_packed_command(packed)
                else:
                    until = await self._carry(connection, packed, size, alarm)
                parser = _patient(connection, AsyncPatientParser)
                for command in commands:
                    if until:
                        alarm.reschedule(max(_from_now(self._patience), until))
                    if parser is not None:
                        parser.expect(self._patience, alarm)
                    try:
                        reply = await connection.read_response()
                    except ResponseError as error:
                        if is_denied(error):
                            raise
                        demoted = demoted or isinstance(error, ReadOnlyError)
                        reply = error
                    else:
                        name = command[0]
                        if type(name) is str and name in self._parse:
                            reply = self._parse[name](reply)
                    replies.append(reply)
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
                await self._drop(self._free.pop())
            await self._pool.disconnect(inuse_connections=False)
        elif self._keep:
            self._free.append(connection)
        else:
            await self._return(connection)
        return replies

    async def _carry(self, connection: Any, packed: Sequence[bytes], size: int, alarm: asyncio.Timeout) -> float:
        road: Any = getattr(connection._writer, "transport", None)
        if road is not None:  # fakeredis has none
            _keep_little_unsent(road.get_extra_info("socket"))
            # a piece is sent when the kernel has all of it
            road.set_write_buffer_limits(high=1, low=0)
        try:
            for piece in _slices(packed):
                alarm.reschedule(_from_now(self._patience + LEAP))
                await connection.send_packed_command((piece,))
        except BaseException:
            if road is not None:
                road.abort()  # one that is only closed would go on to send what it has
            raise
        # bytes that a buffer has taken may still be on their way to the server
        return _from_now(self._patience + size / SLOWEST)

    async def _take(self) -> Any:
        if self._free:
            connection = self._free.pop()
            if connection.is_connected and not await self._is_stale(connection):
                return connection
            await self._drop(connection)
        connection = await self._pool.get_connection()
        # one timeout of ours for the whole exchange replaces two of redis-py's for each command, one of them a task
        connection.socket_timeout = None
        return connection

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

    async def wait_bell(self, key: str, seconds: float) -> bool:
        """Wait for a stroke of the bell, at most `seconds`, on a connection of its own."""
        async with asyncio.timeout(seconds + self.server.deadline * ATTEMPT):
            if self._keep:
                return await _heeding(self._hear(key, seconds))
            return await _leaving(self._blocking().execute_command("BLPOP", key, max(0.001, seconds))) is not None

    async def _hear(self, key: str, seconds: float) -> bool:
        # the connection itself, without redis-py's client: each turn of the loop between stroke and claim counts
        pool = self._blocking().connection_pool
        connection: Any = self._ears.pop() if self._ears else None
        if connection is None or not connection.is_connected or await self._is_stale(connection):
            if connection is not None:
                await connection.disconnect(nowait=True)
                await pool.release(connection)
            connection = await _leaving(pool.get_connection())
        patience, connection.socket_timeout = connection.socket_timeout, None
        try:
            await connection.send_packed_command(_pack(connection, (("BLPOP", key, f"{max(0.001, seconds):.3f}"),)))
            rang = await connection.read_response() is not None
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        finally:
            connection.socket_timeout = patience
        self._ears.append(connection)
        return rang

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait until any client sounds the alarm after `last`; give the id of the newest sound."""
        reply: Any = await _leaving(
            self._blocking().execute_command(
                "XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", key, last
            )
        )
        if not reply:
            return last
        streams: Any = next(iter(cast("Any", reply).values())) if isinstance(reply, dict) else reply[0][1]
        return cast("bytes", streams[-1][0])

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._bell):
            if client is not None:
                await client.aclose()
                await client.connection_pool.disconnect()
                for sentinel in _sentinels_of(client):
                    await sentinel.aclose()
