"""Sockets to a host by its name: each address of the name gets its share of the time.

For asyncio the name is looked up in a thread of our own. asyncio looks up host names in the same thread pool that
`asyncio.to_thread` uses: if hanging handlers occupy all threads of this pool, a lookup would never start, and a worker
could not reconnect.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

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


async def _first(
    addresses: Addresses, left: Callable[[], float], reach: Callable[[socket.socket, Any, float], Awaitable[None]]
) -> socket.socket:
    """Give a socket to the first address that takes the connection; raise the error of the last if none does.

    Each address may take its share of the seconds that are `left`, so that one address that does not answer leaves time
    for the others.
    """
    failed: OSError | None = None
    for at, (family, kind, proto, _, address) in enumerate(addresses):
        plug: socket.socket | None = None
        try:
            plug = socket.socket(family, kind, proto)  # raises, for example, for IPv6 on a machine that has no IPv6
            await reach(plug, address, max(0.001, left() / (len(addresses) - at)))
        except BaseException as error:
            if plug is not None:
                plug.close()
            if not isinstance(error, OSError):
                raise
            failed = error
        else:
            return plug
    assert failed is not None, "a name has an address"
    raise failed


def connect(host: str, port: int, until: float) -> socket.socket:
    """Connect to a host by its name or address; `until` is a time of `time.monotonic`."""

    async def reach(plug: socket.socket, address: Any, seconds: float) -> None:
        plug.settimeout(seconds)
        plug.connect(address)

    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        _first(addresses, lambda: until - time.monotonic(), reach).send(None)
    except StopIteration as found:
        return found.value  # type: ignore[no-any-return]  # what `_first` gives
    raise AssertionError("nothing here waits for an event loop")


async def async_connect(host: str, port: int, until: float) -> socket.socket:
    """Do as `connect`, for asyncio; `until` is a time of the event loop's clock."""
    loop = asyncio.get_running_loop()

    async def reach(plug: socket.socket, address: Any, seconds: float) -> None:
        plug.setblocking(False)
        async with asyncio.timeout(seconds):
            await loop.sock_connect(plug, address)

    return await _first(await find(host, port), lambda: until - loop.time(), reach)


def of_path(path: str, until: float) -> socket.socket:
    """Connect to a socket in the file system; `until` is a time of `time.monotonic`."""
    if sys.platform == "win32":
        raise OSError("Python has no sockets in the file system here: use a host and a port")
    plug = socket.socket(socket.AF_UNIX)
    try:
        plug.settimeout(max(0.001, until - time.monotonic()))
        plug.connect(path)
    except BaseException:
        plug.close()
        raise
    return plug
