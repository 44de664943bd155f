"""redis-py's asyncio connections, changed so that the server's name is looked up in a thread of our own.

asyncio looks up host names in the same thread pool that `asyncio.to_thread` uses. If hanging handlers occupy all
threads of this pool, a lookup would never start, and the worker could not reconnect. The loop of `timeoutq worker` has
its own lookup threads (`process.py`), but a `Worker` may run in any loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import redis.asyncio.connection
import redis.asyncio.sentinel

Addresses = Sequence[tuple[Any, ...]]

_looking: dict[tuple[int, str, int], Future[Addresses]] = {}
"""Lookups in progress, by process id, host and port. Callers that want the same name share one lookup."""


async def find(host: str, port: int) -> Addresses:
    """Give the addresses of a host as `socket.getaddrinfo` does, in the order in which they are to be tried."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is a name
        key = (os.getpid(), host, port)
        mine: Future[Addresses] = Future()
        search = _looking.setdefault(key, mine)
        if search is mine:
            mine.set_running_or_notify_cancel()  # a waiter that is cancelled then cannot cancel the lookup for others
            try:
                threading.Thread(target=_look, args=(key, mine), name=f"name-{host}", daemon=True).start()
            except RuntimeError as error:
                del _looking[key]
                mine.set_exception(OSError(f"the name {host} cannot be looked up: {error}"))
        return await asyncio.wrap_future(search)


def _look(key: tuple[int, str, int], search: Future[Addresses]) -> None:
    try:
        addresses = socket.getaddrinfo(*key[1:], type=socket.SOCK_STREAM)
    except Exception as error:  # passed on to the callers of find()
        del _looking[key]
        search.set_exception(error)
    else:
        del _looking[key]
        search.set_result(addresses)


async def connect(host: str, port: int, until: float | None) -> socket.socket:
    """Connect to the first address of a host that takes the connection; raise the error of the last if none does.

    `until` is a time of the event loop's clock. Each address may take its share of the time that is left, so that one
    address that does not answer leaves time for the others.
    """
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    addresses = await find(host, port)
    for at, (family, kind, proto, _, address) in enumerate(addresses):
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as error:  # for example: the address is IPv6, and this machine has no IPv6
            errors.append(error)
            continue
        try:
            sock.setblocking(False)
            async with asyncio.timeout(None if until is None else (until - loop.time()) / (len(addresses) - at)):
                await loop.sock_connect(sock, address)
        except OSError as error:  # a TimeoutError is one, too
            sock.close()
            errors.append(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise errors[-1]


_Connection: Any = redis.asyncio.connection.Connection
_SSLConnection: Any = redis.asyncio.connection.SSLConnection
_Managed: Any = redis.asyncio.sentinel.SentinelManagedConnection
_ManagedSSL: Any = redis.asyncio.sentinel.SentinelManagedSSLConnection


class _Finding:
    """Mixin: connects the socket itself, and hands the connected socket to redis-py."""

    host: str
    port: int
    socket_connect_timeout: float | None
    _connected: socket.socket | None = None

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout) as limit:
            self._connection_arguments()  # raises for TLS files that cannot be used, before there is a socket to close
            try:
                self._connected = await connect(self.host, self.port, limit.when())
                await super()._connect()  # type: ignore[misc]  # redis-py has no types
            finally:
                self._connected = None  # it belongs to the transport now

    def _connection_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._connection_arguments()  # type: ignore[misc]  # redis-py has no types
        arguments = {**arguments, "sock": self._connected}
        host = arguments.pop("host")
        del arguments["port"]
        if "ssl" in arguments:
            arguments["server_hostname"] = host  # the certificate is for the name
        return arguments


class _FindingConnection(_Finding, _Connection):  # type: ignore[misc]  # redis-py has no types
    pass


class _FindingSSLConnection(_Finding, _SSLConnection):  # type: ignore[misc]  # redis-py has no types
    pass


class _FindingManagedConnection(_Finding, _Managed):  # type: ignore[misc]  # redis-py has no types
    pass


class _FindingManagedSSLConnection(_Finding, _ManagedSSL):  # type: ignore[misc]  # redis-py has no types
    pass


FINDING: dict[Any, Any] = {
    _Connection: _FindingConnection,
    _SSLConnection: _FindingSSLConnection,
    _Managed: _FindingManagedConnection,
    _ManagedSSL: _FindingManagedSSLConnection,
}
"""For each kind of connection of redis-py, the kind that finds its host by itself."""
