"""Connections to a server: one kind that blocks, and one for asyncio. hiredis packs commands and reads replies.

`link.py` keeps the connections and uses them. The first bytes of a reply must come within the patience of an attempt.
The rest of the reply may take once more the patience, plus the time that its bytes need on a link of `SLOWEST`; and the
next bytes never take longer than the patience. So a long reply over a slow link arrives, and a server that lets a byte
through now and then does not keep its caller waiting without end.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from timeoutq.server import names
from timeoutq.server.calls import Command
from timeoutq.server.deadlines import LEAP, SLICE, SLOWEST
from timeoutq.server.endpoint import Endpoint
from timeoutq.server.troubles import LOOP_BLOCKED, is_denied
from timeoutq.words.errors import MissingExtra

try:
    import hiredis
except ImportError as error:
    raise MissingExtra("timeoutq needs the package hiredis, which is missing: pip install hiredis") from error

MOST = 1 << 30
"""Bytes of the longest reply that is read: a server holds half of it in one value at most (proto-max-bulk-len)."""
NOTHING = object()
"""Stands for a reply that is not whole yet."""
LATE = 0.25
"""Seconds by which an alarm of asyncio may ring late; if it is later, the loop was blocked, not the server."""

_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""The option that bounds the bytes of a heavy command which the kernel takes before it can send them. Without it the
kernel takes mebibytes, and then nothing more until a third of them is sent, as if the link carried nothing."""

_ERRORS: dict[str, type[Exception]] = {
    "ASK": AskError, "CLUSTERDOWN": ClusterDownError, "LOADING": BusyLoadingError, "MASTERDOWN": MasterDownError,
    "MOVED": MovedError, "NOAUTH": AuthenticationError, "NOPERM": NoPermissionError, "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError, "WRONGPASS": AuthenticationError,
}  # fmt: skip
"""By the first word of an error of the server: the class of redis-py that stands for it."""


def _error(said: str) -> Exception:
    code, _, text = said.partition(" ")
    try:
        if code in _ERRORS:
            return _ERRORS[code](text)
    except (ValueError, IndexError) as error:  # such as a MOVED without a node
        return InvalidResponse(f"a reply cannot be read: {error}")
    if "max number of clients" in text:
        return redis.ConnectionError(text)  # the server hangs up behind it
    return ResponseError(text if code == "ERR" else said)


_hiredis: Any = hiredis  # it says of `pack_command` neither what it takes nor what it gives
_packed: Callable[[Command], bytes] = _hiredis.pack_command


def _pack(commands: Sequence[Command]) -> bytes:
    return _packed(commands[0]) if len(commands) == 1 else b"".join(map(_packed, commands))


def _reader() -> Any:
    return hiredis.Reader(protocolError=InvalidResponse, replyError=_error, notEnoughData=NOTHING)


def is_fatal(reply: object) -> bool:
    """Say whether a reply is the end of its connection: a refusal of the client, or a server that is loading."""
    return isinstance(reply, redis.ConnectionError | InvalidResponse) or is_denied(reply)


def _greeted(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise AuthenticationError(str(reply)) if type(reply) is ResponseError and "AUTH" in str(reply) else reply


def _unreached(place: Endpoint, error: OSError) -> Exception:
    if isinstance(error, TimeoutError):
        return redis.TimeoutError("Timeout connecting to server")
    return redis.ConnectionError(f"Error {error.errno} connecting to {place}. {error.strerror or error}.")


def _pieces(packed: bytes) -> Iterator[memoryview]:
    whole = memoryview(packed)
    return (whole[at : at + SLICE] for at in range(0, len(whole), SLICE))


def _keep_little_unsent(plug: Any) -> None:
    # a socket of another family has no such option; it has small buffers
    if _UNSENT is not None and getattr(plug, "family", None) in (socket.AF_INET, socket.AF_INET6):
        plug.setsockopt(socket.IPPROTO_TCP, _UNSENT, 2 * SLICE)


def _prepare(plug: socket.socket) -> None:
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class _Wait:
    """How long the next bytes may take, by a clock that the caller reads."""

    def __init__(self, patience: float) -> None:
        self.due = 0.0
        self._patience = patience
        self._until = 0.0
        self._held = 0

    def begin(self, now: float, seconds: float) -> None:
        """Wait for the first bytes of a reply."""
        self.due, self._until, self._held = now + seconds, 0.0, 0

    def go_on(self, now: float, size: int) -> None:
        """Wait for more of a reply of which `size` bytes have come just now."""
        self._until = (self._until or now + self._patience) + size / SLOWEST
        self.due = min(self._until, now + self._patience)
        self._held += size
        if self._held > MOST:
            raise InvalidResponse(f"a reply has more than {MOST:,} bytes")


class Road:
    """A connection for code that blocks."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._timeout: float | None = None
        self._reader = _reader()
        self._buffer = bytearray(SLICE)
        self._wait = _Wait(patience)
        self._plug: Any = None
        """The socket; None before the connection is made."""
        self._poll: Any = None

    @classmethod
    def open(cls, place: Endpoint, patience: float, within: float) -> Self:
        """Connect within so many seconds, and sign on."""
        road = cls(patience)  # before its socket: of a link that nobody closed, the older one is collected first
        try:
            road._connect(place, time.monotonic() + within)
            greeting = place.greeting(place.credentials())
            _greeted(road.exchange(greeting) if greeting else ())
        except OSError as error:
            road.abort()
            raise _unreached(place, error) from error
        except BaseException:
            road.abort()
            raise
        return road

    def _connect(self, place: Endpoint, until: float) -> None:
        if place.path:
            self._plug = names.of_path(place.path, until)
        else:
            self._plug = names.connect(place.host, place.port, until)
            _prepare(self._plug)
        if place.context is not None:
            self._plug.settimeout(max(0.001, until - time.monotonic()))
            self._plug = place.context.wrap_socket(self._plug, server_hostname=place.host)
        if sys.platform != "win32":
            self._poll = select.poll()
            self._poll.register(self._plug, select.POLLIN)

    def _set(self, seconds: float) -> None:
        if seconds != self._timeout:
            self._plug.settimeout(seconds)
            self._timeout = seconds

    def exchange(self, commands: Sequence[Command], first: float | None = None) -> list[Any]:
        """Send commands in one flush, and give their replies; errors of the server come as values.

        The first reply may take `first` seconds. After an error of the network, this connection is of no more use.
        """
        packed = _pack(commands)
        patience = self._patience if first is None else first
        self._set(self._patience)
        try:
            if len(packed) <= SLICE:
                self._plug.sendall(packed)
            else:
                patience += self._carry(packed)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while writing to the server: {error}") from self._reason(error)
        replies: list[Any] = []
        for _ in commands:
            reply = self._read(patience)
            if isinstance(reply, Exception) and is_fatal(reply):
                raise reply
            replies.append(reply)
            patience = self._patience
        return replies

    def _carry(self, packed: bytes) -> float:
        # a socket's timeout covers all bytes of one call, so each call gets only one piece
        _keep_little_unsent(self._plug)
        self._set(self._patience + LEAP)
        for piece in _pieces(packed):
            self._plug.sendall(piece)
        return len(packed) / SLOWEST  # bytes that a buffer has taken may still be on their way to the server

    def _read(self, patience: float) -> Any:
        if (reply := self._reader.gets()) is not NOTHING:
            return reply
        self._set(patience)
        size = self._receive()
        if (reply := self._reader.gets()) is not NOTHING:
            return reply
        now = time.monotonic()
        self._wait.begin(now, patience)
        while reply is NOTHING:
            self._wait.go_on(now, size)
            if (left := self._wait.due - now) <= 0:
                raise redis.TimeoutError("Timeout reading from the server")
            self._set(left)
            size, now = self._receive(), time.monotonic()
            reply = self._reader.gets()
        return reply

    def _receive(self) -> int:
        try:
            size: int = self._plug.recv_into(self._buffer)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from the server") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from the server: {error}") from self._reason(error)
        if not size:
            raise redis.ConnectionError("Connection closed by server.")
        self._reader.feed(self._buffer, 0, size)
        return size

    def _reason(self, error: OSError) -> OSError:
        # a server that refuses a client over TLS says why before it hangs up
        if isinstance(self._plug, ssl.SSLSocket):
            try:
                self._plug.recv(1)
            except OSError as alert:
                return alert
        return error

    def is_stale(self) -> bool:
        """Say whether the server has hung up, or has sent something that nobody asked for."""
        if self._poll is not None and not self._poll.poll(0):
            return False
        self._set(0.0)
        try:
            self._plug.recv_into(self._buffer)
        except (BlockingIOError, ssl.SSLWantReadError):  # these bytes may be for TLS alone
            return False
        except OSError:
            return True
        return True

    def abort(self) -> None:
        """Close it; another thread that waits on it hears that it was closed."""
        if self._plug is not None:
            with suppress(OSError):  # it is closed already
                self._plug.shutdown(socket.SHUT_RDWR)
            self._plug.close()

    def __del__(self) -> None:
        if self._plug is not None:
            self._plug.close()  # a link that nobody closed leaves no warning


class AsyncRoad(asyncio.Protocol):
    """A connection for asyncio, of one event loop."""

    awake: ClassVar[float] = 0.0
    """For how many seconds the event loop looks for a reply again and again, before it sleeps until the reply comes.

    To wake up takes an idle machine about as long as a server near by takes to answer. The loop goes on with all its
    other work meanwhile, and it sleeps at once after a reply that has taken longer than this. With 0, it never stays
    awake.
    """
    _looks_until: ClassVar[float] = 0.0
    """Until when a connection of this process looks, while it waits: one is enough to keep its loop awake."""

    def __init__(self, patience: float) -> None:
        self.quiet = True
        """Whether the server has sent nothing that nobody asked for, and has not hung up."""
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._transport: Any = None
        self._reader = _reader()
        self._wait = _Wait(patience)
        self._alarm: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._room: asyncio.Future[None] | None = None
        """Done when the transport takes more bytes; None while it does."""
        self._carries = False
        """Whether a heavy command is being sent."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._replies: list[Any] = []
        self._count = 0
        self._asked = 0.0
        self._near = self.awake > 0
        """Whether the last reply has come within `awake` seconds; before the first one, whether `awake` is set."""

    @classmethod
    async def open(cls, place: Endpoint, patience: float, within: float) -> Self:
        """Connect within so many seconds, and sign on."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                if place.path:
                    _, road = await loop.create_unix_connection(lambda: cls(patience), place.path)
                else:
                    plug = await names.async_connect(place.host, place.port, loop.time() + within)
                    _prepare(plug)
                    name = place.host if place.context else None
                    _, road = await loop.create_connection(
                        lambda: cls(patience), sock=plug, ssl=place.context, server_hostname=name
                    )
        except OSError as error:
            raise _unreached(place, error) from error
        try:
            greeting = place.greeting(await place.async_credentials())
            _greeted(await road.exchange(greeting) if greeting else ())
        except BaseException:
            road.abort()
            raise
        return road

    async def exchange(self, commands: Sequence[Command], first: float | None = None) -> list[Any]:
        """Send commands in one flush, and give their replies, as `Road.exchange` does."""
        packed = _pack(commands)
        patience = self._patience if first is None else first
        waiter = self._expect(len(commands), patience)
        if len(packed) <= SLICE:
            self._transport.write(packed)
        else:
            try:
                await self._carry(packed, waiter)
            except BaseException:
                waiter.cancel()
                raise
            # bytes that a buffer has taken may still be on their way to the server
            self._wait.begin(self._loop.time(), patience + len(packed) / SLOWEST)
        replies = await waiter
        for reply in replies:
            if isinstance(reply, Exception) and is_fatal(reply):
                raise reply
        return replies

    def _expect(self, count: int, patience: float) -> asyncio.Future[list[Any]]:
        # replies may come before everything is sent: a call may be refused by its first bytes
        loop = self._loop
        waiter = self._waiter = loop.create_future()
        self._asked = loop.time()
        self._wait.begin(self._asked, patience)
        self._count, self._replies = count, []
        if self._ended.done():
            self._fail(redis.ConnectionError("Connection closed by server."))
        elif self._alarm is None or self._alarm.when() > self._wait.due:
            self._arm()
        if self._near and AsyncRoad._looks_until < self._asked:
            AsyncRoad._looks_until = self._asked + self.awake
            loop.call_soon(self._look)
        return waiter

    async def _carry(self, packed: bytes, waiter: asyncio.Future[list[Any]]) -> None:
        _keep_little_unsent(self._transport.get_extra_info("socket"))
        # a piece is sent when the kernel has all of it
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._carries = True
        for piece in _pieces(packed):
            if waiter.done():
                break
            self._wait.begin(self._loop.time(), self._patience + LEAP)
            self._transport.write(piece)
            if self._room is not None:
                await self._room
        self._carries = False
        self._transport.set_write_buffer_limits()

    def _arm(self) -> None:
        # one alarm for all exchanges: most of them are over long before, and an alarm for each would cost more
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(self._wait.due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None:
            return
        late = self._loop.time() - self._wait.due
        if late < 0:
            self._arm()
        else:
            said = "Timeout writing to socket" if self._carries else "Timeout reading from the server"
            if late >= LATE:
                said = f"{LOOP_BLOCKED} until {late:.1f} s after the reply was due"
            self._fail(redis.TimeoutError(said))
            self.abort()

    def _look(self) -> None:
        # a loop with something to do soon reads its sockets, and does not sleep
        if self._waiter is not None and self._loop.time() < AsyncRoad._looks_until:
            self._loop.call_soon(self._look)
        else:
            AsyncRoad._looks_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Give the replies to who waits for them, when all have come."""
        waiter = self._waiter
        if waiter is None:
            self.quiet = False
            return
        replies, reader = self._replies, self._reader
        before = len(replies)
        try:
            reader.feed(data)
            while len(replies) < self._count and (reply := reader.gets()) is not NOTHING:
                replies.append(reply)
            now = self._loop.time()
            self._near = now < self._asked + self.awake
            if len(replies) == self._count:
                self._waiter = None
                self.quiet = not reader.has_data()
                if not waiter.done():  # a cancelled one is done
                    waiter.set_result(replies)
                return
            if len(replies) > before:
                self._wait.begin(now, self._patience)
            if reader.has_data():
                self._wait.go_on(now, len(data))
        except InvalidResponse as error:
            self._fail(error)
            self.abort()
            return
        if self._alarm is None or self._alarm.when() > self._wait.due:
            self._arm()

    def eof_received(self) -> None:
        """The server hangs up; the transport closes."""
        self.quiet = False

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        self.quiet = False
        if waiter is not None and not waiter.done():
            waiter.set_exception(next((reply for reply in self._replies if is_fatal(reply)), error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        if exc is None:
            error = redis.ConnectionError("Connection closed by server.")
        else:
            error = redis.ConnectionError(f"Error while reading from the server: {exc}")
            error.__cause__ = exc
        self._fail(error)
        self.resume_writing()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """The transport may take more."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def abort(self) -> None:
        """Close it at once; bytes that have not left are thrown away."""
        self._transport.abort()

    async def close(self) -> None:
        """Close it, and wait until it is closed."""
        self.abort()
        await self._ended
