"""A proxy on loopback between a client and a server, which breaks one chosen exchange in one of eight ways."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from tests.rig.waiting import wait_until


class Fault(StrEnum):
    """A way to break the exchange that was waited for: its request, or its reply."""

    RESET_BEFORE = "reset before the request reached the server"
    RESET_AFTER = "reset after the server carried it out"
    SWALLOW = "carried out, the reply swallowed, the connection left open"
    CUT = "carried out, the reply cut in the middle, then closed"
    LATENCY = "passed on late, both ways"
    HALF_OPEN = "nothing passes any more in either direction, the connection left open"
    DRIP = "carried out, the reply given a byte at a time"
    REFUSED = "all connections reset, and new ones refused for a while"


PAUSES = {Fault.LATENCY: 0.15, Fault.DRIP: 1.0, Fault.REFUSED: 0.1}
"""How long each way, between two bytes, and until connections are taken again: seconds."""


@dataclass(slots=True)
class _Armed:
    fault: Fault
    needle: bytes
    times: int | None
    seconds: float


@dataclass(slots=True, eq=False)
class Link:
    """Both ends of one connection, and what has struck it."""

    near: socket.socket
    far: socket.socket
    struck: _Armed | None = None
    open: bool = False
    """A request that was struck is still on its way to the server, or its answer is not there yet."""
    tail: bytes = b""
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])


class Proxy:
    """A proxy to the server at a URL; `with Proxy(url) as proxy`, then `proxy.arm(…)`.

    `url` is where clients find the server through it, with the same credentials.

    `seen` counts the requests that contained the bytes of the armed fault, `struck` those that it hit, and `lost` the
    replies of the server that did not reach the client whole. `carried` counts the bytes that went to the server.

    With `rate`, all connections together carry so many bytes a second to the server, and as many back.
    """

    def __init__(self, url: str, rate: int | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port, url
        self._to = (parts.hostname, parts.port)
        # it never listens: it holds the port, so that nobody else gets it while connections are refused
        self._keeper = _bound(0)
        self.port: int = self._keeper.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()
        self._armed: _Armed | None = None
        self.seen = self.struck = self.lost = self.carried = 0
        self._rate = rate
        self._free_at = {"up": 0.0, "down": 0.0}
        self._pairs: set[Link] = set()
        self._listener: socket.socket | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._loop = asyncio.new_event_loop()
        self._open()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)
        self._thread.start()

    def arm(self, fault: Fault, needle: bytes, *, times: int | None = 1, seconds: float | None = None) -> None:
        """Let `fault` strike the next so many requests that contain `needle`; None: until it is disarmed.

        `seconds` is another pause than that of `PAUSES`.
        """
        self.seen = self.struck = self.lost = 0
        self._armed = _Armed(fault, needle, times, PAUSES.get(fault, 0.0) if seconds is None else seconds)

    def disarm(self) -> None:
        """Let everything pass from now on, on new connections; take connections again if they are refused."""
        self._armed = None
        self._do(self._reopen)

    def cut(self) -> None:
        """Close all connections in order, as a proxy does with those that were idle for too long."""
        self._do(self._drop_all)

    def _drop_all(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    def _do(self, act: Callable[[], object]) -> None:
        """Make a call on the loop's thread, and wait until it was made."""

        async def now() -> None:
            act()

        asyncio.run_coroutine_threadsafe(now(), self._loop).result(10)

    def settle(self) -> None:
        """Wait until all that clients have sent is read, and what was struck has been answered or can never be."""
        wait_until(lambda: not any(pair.open or _unread(pair.near) for pair in list(self._pairs)))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- on the loop's thread

    def _open(self) -> None:
        self._listener = _bound(self.port)
        self._listener.listen(128)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _shut(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _reopen(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        if self._listener is None:
            self._open()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it went away again
            near, _ = listener.accept()
            pair = Link(near, socket.socket())
            self._pairs.add(pair)
            pair.tasks.append(self._loop.create_task(self._join(pair)))

    async def _join(self, pair: Link) -> None:
        for link in (pair.near, pair.far):
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.sock_connect(pair.far, self._to)
        except OSError:
            self._drop(pair, reset=True)
            return
        pair.tasks = [self._loop.create_task(self._up(pair)), self._loop.create_task(self._down(pair))]

    async def _up(self, pair: Link) -> None:
        with suppress(OSError):
            while data := await self._loop.sock_recv(pair.near, 1 << 16):
                armed = self._strikes(pair, data)
                if armed is not None:
                    pair.struck = armed
                    pair.open = armed.fault is not Fault.HALF_OPEN
                fault = pair.struck and pair.struck.fault
                if fault is Fault.RESET_BEFORE:
                    self._drop(pair, reset=True)
                    return
                if pair.struck and fault is Fault.REFUSED:
                    self._refuse(pair.struck)
                    return
                if fault is Fault.HALF_OPEN:
                    continue
                if pair.struck and fault is Fault.LATENCY:
                    await asyncio.sleep(pair.struck.seconds)
                await self._pass(pair, "up", len(data))
                await self._loop.sock_sendall(pair.far, data)
                self.carried += len(data)
        if pair.struck is None or pair.struck.fault is not Fault.HALF_OPEN:
            # what the client sent before it went away has been carried to the server, as a network would
            with suppress(OSError):
                pair.far.shutdown(socket.SHUT_WR)

    async def _down(self, pair: Link) -> None:
        with suppress(OSError):
            while data := await self._loop.sock_recv(pair.far, 1 << 16):
                struck = pair.struck
                pair.open = False
                if struck is None:
                    await self._pass(pair, "down", len(data))
                    await self._loop.sock_sendall(pair.near, data)
                    continue
                match struck.fault:
                    case Fault.RESET_AFTER:
                        self.lost += 1
                        self._drop(pair, reset=True)
                        return
                    case Fault.SWALLOW | Fault.HALF_OPEN:
                        self.lost += 1
                    case Fault.CUT:
                        self.lost += 1
                        await self._loop.sock_sendall(pair.near, data[: len(data) // 2])
                        break
                    case Fault.DRIP:
                        self.lost += 1
                        await self._drip(pair, data, struck.seconds)
                    case _:
                        await asyncio.sleep(struck.seconds)
                        await self._loop.sock_sendall(pair.near, data)
        self._drop(pair)

    async def _pass(self, pair: Link, way: str, size: int) -> None:
        if self._rate is not None:
            now = self._loop.time()
            self._free_at[way] = max(now, self._free_at[way]) + size / self._rate
            await asyncio.sleep(self._free_at[way] - now)

    def _strikes(self, pair: Link, data: bytes) -> _Armed | None:
        armed = self._armed
        if armed is None:
            pair.tail = b""
            return None
        # a request may arrive in pieces
        whole = pair.tail + data
        found = armed.needle in whole
        pair.tail = b"" if found else whole[-len(armed.needle) + 1 :]
        if not found:
            return None
        self.seen += 1
        if armed.times == 0:
            return None
        if armed.times is not None:
            armed.times -= 1
        self.struck += 1
        return armed

    async def _drip(self, pair: Link, data: bytes, seconds: float) -> None:
        for at in range(len(data)):
            await self._loop.sock_sendall(pair.near, data[at : at + 1])
            await asyncio.sleep(seconds)

    def _refuse(self, armed: _Armed) -> None:
        self._shut()
        for pair in list(self._pairs):
            self._drop(pair, reset=True)
        if armed.times is not None:
            self._reopening = self._loop.call_later(armed.seconds, self._reopen)

    def _drop(self, pair: Link, *, reset: bool = False) -> None:
        if pair not in self._pairs:
            return
        self._pairs.discard(pair)
        here = asyncio.current_task()
        for task in pair.tasks:
            if task is not here:
                task.cancel()
        for link in (pair.near, pair.far):
            self._loop.remove_reader(link)
            self._loop.remove_writer(link)
        if reset:
            _reset(pair.near)
        pair.near.close()
        pair.far.close()

    async def _end(self) -> None:
        self._armed = None
        if self._reopening is not None:
            self._reopening.cancel()
        self._shut()
        for pair in list(self._pairs):
            self._drop(pair, reset=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def _unread(link: socket.socket) -> bool:
    try:
        return link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except OSError:
        return False


def _reset(link: socket.socket) -> None:
    with suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()
