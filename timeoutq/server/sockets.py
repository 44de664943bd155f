"""Sockets to a host by its name, or to a path: each address of the name gets its share of the time.

For asyncio the name is looked up in a thread of our own: in the pool of `asyncio.to_thread`, a lookup would never start
if hanging handlers occupied all threads, and a worker could not reconnect.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Addresses = Sequence[tuple[Any, ...]]
INTERNET = (socket.AF_INET, socket.AF_INET6)

_looking: dict[tuple[int, str, int], Future[Addresses]] = {}
"""Lookups in progress, by process id, host and port. Callers that want the same name share one lookup."""
_of_loops: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def at_once(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for no event loop: what both kinds of connections share is written as coroutines."""
    try:
        steps.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]  # what the coroutine gives
    raise AssertionError("it waits for an event loop")


async def find(host: str, port: int) -> Addresses:
    """Give the addresses of a host as `socket.getaddrinfo` does, in the order in which they are to be tried."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is a name
        key = (os.getpid(), host, port)
        search = _looking.get(key)
        if search is None:
            search = _looking[key] = Future()
            search.set_running_or_notify_cancel()  # a waiter that is cancelled then cannot cancel the lookup for others
            try:
                threading.Thread(target=_look, args=(key, search), name=f"name-{host}", daemon=True).start()
            except RuntimeError as error:
                del _looking[key]
                raise OSError(f"the name {host} cannot be looked up: {error}") from error
        return await asyncio.wrap_future(search)


def _look(key: tuple[int, str, int], search: Future[Addresses]) -> None:
    try:
        search.set_result(socket.getaddrinfo(*key[1:], type=socket.SOCK_STREAM))
    except Exception as error:  # passed on to the callers of find()
        search.set_exception(error)
    finally:
        _looking.pop(key, None)


def of_path(path: str) -> Addresses:
    """Give the address of a socket in the file system as `find` gives those of a host."""
    if sys.platform == "win32":
        raise OSError("Python has no sockets in the file system here: use a host and a port")
    return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", path)]


def connect(addresses: Addresses, until: float) -> socket.socket:
    """Connect to the first address that takes the connection; `until` is a time of `time.monotonic`.

    Raises the error of the last address if none does. Each address may take its share of the time that is left, so that
    one address that does not answer leaves time for the others.
    """

    async def reach(plug: socket.socket, address: Any, seconds: float) -> None:
        plug.settimeout(seconds)
        plug.connect(address)

    return at_once(_connect(addresses, lambda: until - time.monotonic(), reach))


async def async_connect(addresses: Addresses, until: float) -> socket.socket:
    """Do as `connect`, for asyncio; `until` is a time of the event loop's clock."""
    loop = asyncio.get_running_loop()

    async def reach(plug: socket.socket, address: Any, seconds: float) -> None:
        _of_loops.add(plug)
        plug.setblocking(False)
        async with asyncio.timeout(seconds):
            await loop.sock_connect(plug, address)

    return await _connect(addresses, lambda: until - loop.time(), reach)


def of_loops() -> list[int]:
    """Give the descriptors of the sockets of all event loops of this process."""
    return [number for number in map(socket.socket.fileno, list(_of_loops)) if number >= 0]


async def _connect(
    addresses: Addresses, left: Callable[[], float], reach: Callable[[socket.socket, Any, float], Awaitable[None]]
) -> socket.socket:
    failed = OSError("its name has no address")
    for at, (family, kind, proto, _, address) in enumerate(addresses):
        try:
            plug = socket.socket(family, kind, proto)  # raises, for example, for IPv6 on a machine that has no IPv6
        except OSError as error:
            failed = error
            continue
        try:
            await reach(plug, address, max(0.001, left() / (len(addresses) - at)))
            if family in INTERNET:
                plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except BaseException as error:
            plug.close()
            if not isinstance(error, OSError):
                raise
            failed = error
        else:
            return plug
    raise failed
