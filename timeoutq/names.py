"""Connections of redis-py for asyncio that find the address of their host in a thread of timeoutq.

An event loop looks names up in the threads that it gives to `asyncio.to_thread` too. Handlers may take all of these
threads and not end; a worker must find its server again even then. `connection.py` and `link.py` use this module.
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

Found = Sequence[tuple[Any, ...]]

_looking: dict[tuple[int, str, int], Future[Found]] = {}
"""The searches under way, by process, host and port: all who look for one name wait for one thread."""


async def find(host: str, port: int) -> Found:
    """Give the addresses of a host as `socket.getaddrinfo` does, in the order in which they are to be tried."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is a name
        key = (os.getpid(), host, port)
        mine: Future[Found] = Future()
        search = _looking.setdefault(key, mine)
        if search is mine:
            mine.set_running_or_notify_cancel()  # nobody who stops waiting ends the search for the others
            try:
                threading.Thread(target=_look, args=(key, mine), name=f"name-{host}", daemon=True).start()
            except RuntimeError as error:
                del _looking[key]
                mine.set_exception(OSError(f"the name {host} cannot be looked up: {error}"))
        return await asyncio.wrap_future(search)


def _look(key: tuple[int, str, int], search: Future[Found]) -> None:
    try:
        found = socket.getaddrinfo(*key[1:], type=socket.SOCK_STREAM)
    except Exception as error:  # it is raised where the name was wanted
        del _looking[key]
        search.set_exception(error)
    else:
        del _looking[key]
        search.set_result(found)


async def dial(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that takes the connection; raise the error of the last if none does."""
    loop = asyncio.get_running_loop()
    refusals: list[OSError] = []
    for family, kind, proto, _, address in await find(host, port):
        try:
            plug = socket.socket(family, kind, proto)
        except OSError as error:  # this machine may not know the family
            refusals.append(error)
            continue
        try:
            plug.setblocking(False)
            await loop.sock_connect(plug, address)
        except OSError as error:
            plug.close()
            refusals.append(error)
        except BaseException:
            plug.close()
            raise
        else:
            return plug
    raise refusals[-1]


_Connection: Any = redis.asyncio.connection.Connection
_SSLConnection: Any = redis.asyncio.connection.SSLConnection
_Managed: Any = redis.asyncio.sentinel.SentinelManagedConnection
_ManagedSSL: Any = redis.asyncio.sentinel.SentinelManagedSSLConnection


class _Finding:
    """What the four kinds of connections have in common: redis-py wraps a socket that is connected already."""

    host: str
    port: int
    socket_connect_timeout: float | None
    _plug: socket.socket | None = None

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self._plug = await dial(self.host, self.port)
            await super()._connect()  # type: ignore[misc]

    def _connection_arguments(self) -> dict[str, Any]:
        words: dict[str, Any] = {**super()._connection_arguments(), "sock": self._plug}  # type: ignore[misc]
        host = words.pop("host")
        del words["port"]
        if "ssl" in words:
            words["server_hostname"] = host  # the certificate is for the name
        return words


class _FindingConnection(_Finding, _Connection):  # type: ignore[misc]  # redis-py gives it no types
    pass


class _FindingSSLConnection(_Finding, _SSLConnection):  # type: ignore[misc]  # same
    pass


class _FindingManagedConnection(_Finding, _Managed):  # type: ignore[misc]  # same
    pass


class _FindingManagedSSLConnection(_Finding, _ManagedSSL):  # type: ignore[misc]  # same
    pass


FINDING: dict[Any, Any] = {
    _Connection: _FindingConnection,
    _SSLConnection: _FindingSSLConnection,
    _Managed: _FindingManagedConnection,
    _ManagedSSL: _FindingManagedSSLConnection,
}
"""For each kind of connection of redis-py, the kind that finds its host by itself."""
