"""Connections to a server: one kind that blocks, and one for asyncio. hiredis packs commands and reads replies.

The first bytes of a reply must come within the patience of an attempt. The rest may take once more the patience, plus
the time that its bytes need on a link of `SLOWEST`; and the next bytes never take longer than the patience. So a long
reply over a slow link arrives, and nobody waits without end for a server that lets a byte through now and then.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

import redis
from redis import exceptions
from redis.exceptions import AuthenticationError, InvalidResponse, ResponseError

from timeoutq.server import sockets
from timeoutq.server.calls import Command
from timeoutq.server.deadlines import LEAP, SLICE, SLOWEST
from timeoutq.server.server import Endpoint
from timeoutq.server.sockets import INTERNET
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

_ERRORS: dict[str, type[Exception]] = {
    "ASK": exceptions.AskError, "CLUSTERDOWN": exceptions.ClusterDownError, "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.MasterDownError, "MOVED": exceptions.MovedError, "NOAUTH": AuthenticationError,
    "NOPERM": exceptions.NoPermissionError, "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError, "WRONGPASS": AuthenticationError,
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


def _pieces(packed: bytes, plug: Any) -> Iterator[memoryview]:
    """Cut a heavy command; and keep the kernel from taking much more of it than it can send.

    Else it takes mebibytes, and then nothing more until a third of them is sent, as if the link carried nothing.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and getattr(plug, "family", None) in INTERNET:  # other sockets have small buffers
        plug.setsockopt(socket.IPPROTO_TCP, option, 2 * SLICE)
    whole = memoryview(packed)
    return (whole[at : at + SLICE] for at in range(0, len(whole), SLICE))


def _between(packed: bytes, patience: float) -> float:
    """Give the seconds after one reply within which more of the replies must come."""
    # the reply to a light command may come while a heavy one behind it is still on its way to the server
    return patience if len(packed) <= SLICE else patience + LEAP


def await_bell(key: str, seconds: float) -> Command:
    """Give the command that waits for a stroke of the bell."""
    return ("BLPOP", key, f"{max(0.001, seconds):.3f}")


def await_sound(key: str, last: bytes, seconds: float) -> Command:
    """Give the command that waits for a sound of the alarm after `last`."""
    return ("XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", key, last)


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


class _Replies:
    """The replies to the commands of one exchange, as their bytes come, by a clock that the caller reads."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.due = 0.0
        """When the next bytes must have come."""
        self._reader: Any = hiredis.Reader(protocolError=InvalidResponse, replyError=_error, notEnoughData=NOTHING)
        self._count = 0
        self._patience = 0.0
        self._until = 0.0
        self._held = 0
        self._last = math.inf

    def expect(self, count: int, patience: float, last: float = math.inf) -> None:
        """Expect so many replies, all of them until `last`; `patience` is for each that comes behind another."""
        self.found, self._count, self._patience, self._last = [], count, patience, last
        self._until, self._held = 0.0, 0

    def wait(self, now: float, seconds: float) -> None:
        """Wait so long for the first bytes of a reply."""
        self.due, self._until, self._held = min(now + seconds, self._last), 0.0, 0

    def take(self, data: bytes | memoryview, now: float) -> bool:
        """Take bytes that have come, and say whether all replies are whole. Raises `InvalidResponse`."""
        before = len(self.found)
        self._reader.feed(data)
        while len(self.found) < self._count and (reply := self._reader.gets()) is not NOTHING:
            self.found.append(reply)
        if len(self.found) == self._count:
            return True
        if len(self.found) > before:
            self.wait(now, self._patience)
        if self._reader.has_data():
            self._until = (self._until or now + self._patience) + len(data) / SLOWEST
            self.due = min(self._until, now + self._patience, self._last)
            self._held += len(data)
            if self._held > MOST:
                raise InvalidResponse(f"a reply has more than {MOST:,} bytes")
        return False

    def has_more(self) -> bool:
        """Say whether bytes have come that nobody asked for."""
        return bool(self._reader.has_data())

    def fatal(self) -> Exception | None:
        """Give the reply that is the end of the connection; it says more than the error that follows it."""
        for reply in self.found:
            if isinstance(reply, Exception) and is_fatal(reply):
                return reply
        return None

    def whole(self) -> list[Any]:
        """Give the replies, or raise the one that is the end of the connection."""
        if (error := self.fatal()) is not None:
            raise error
        return self.found


class Connection:
    """A connection for code that blocks."""

    def __init__(self) -> None:
        self._timeout: float | None = None
        self._replies = _Replies()
        self._buffer = memoryview(bytearray(SLICE))
        self._plug: Any = None
        """The socket; None before the connection is made."""
        self._poll: Any = None

    @classmethod
    def open(cls, place: Endpoint, patience: float, within: float) -> Self:
        """Connect within so many seconds, and sign on."""
        found = cls()  # before its socket: of a link that nobody closed, the older one is collected first
        try:
            found._connect(place, time.monotonic() + within)
            greeting = place.greeting(place.provider and place.provider.get_credentials())
            _greeted(found.exchange(greeting, patience) if greeting else ())
        except BaseException as error:
            found.abort()
            if isinstance(error, OSError):
                raise _unreached(place, error) from error
            raise
        return found

    def _connect(self, place: Endpoint, until: float) -> None:
        addresses = (
            sockets.of_path(place.path)
            if place.path
            else socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        )
        self._plug = sockets.connect(addresses, until)
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

    def exchange(self, commands: Sequence[Command], patience: float, waits: float = 0.0) -> list[Any]:
        """Send commands in one flush, and give their replies; errors of the server come as values.

        The first command waits for so many seconds. After an error of the network, this connection is of no more use.
        """
        packed = _pack(commands)
        self._replies.expect(len(commands), _between(packed, patience))
        seconds = patience + waits
        try:
            if len(packed) <= SLICE:
                self._set(patience)
                self._plug.sendall(packed)
            else:
                # a socket's timeout covers all bytes of one call, so each call gets only one piece
                self._set(patience + LEAP)
                for piece in _pieces(packed, self._plug):
                    self._plug.sendall(piece)
                seconds += len(packed) / SLOWEST  # what a buffer has taken may still be on its way to the server
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while writing to the server: {error}") from self._reason(error)
        try:
            while not self._replies.take(self._receive(seconds), now := time.monotonic()):
                seconds = max(0.001, self._replies.due - now)
        except redis.RedisError:
            self._replies.whole()  # raises a refusal behind which the server has hung up
            raise
        return self._replies.whole()

    def _receive(self, seconds: float) -> memoryview:
        try:
            self._set(seconds)
            size: int = self._plug.recv_into(self._buffer)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from the server") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from the server: {error}") from self._reason(error)
        if not size:
            raise redis.ConnectionError("Connection closed by server.")
        return self._buffer[:size]

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
        if self._replies.has_more():
            return True
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

    close = abort

    def __del__(self) -> None:
        if self._plug is not None:
            self._plug.close()  # a link that nobody closed leaves no warning


class AsyncConnection(asyncio.Protocol):
    """A connection for asyncio, of one event loop."""

    awake: ClassVar[float] = 0.0
    """For how many seconds the event loop looks for a reply again and again, before it sleeps until the reply comes:
    an idle machine takes as long to wake up as a server near by to answer. After a reply that took longer, or with 0,
    the loop sleeps at once."""
    _looks_until: ClassVar[float] = 0.0
    """Until when a connection of this process looks, while it waits: one is enough to keep its loop awake."""

    def __init__(self) -> None:
        self._is_stale = False
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._replies = _Replies()
        self._alarm: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Done when the transport takes more bytes; None while it does."""
        self._carries = False
        """Whether a heavy command is being sent."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._asked = 0.0
        self._near = self.awake > 0
        """Whether the last reply has come within `awake` seconds; before the first one, whether `awake` is set."""

    @classmethod
    async def open(cls, place: Endpoint, patience: float, within: float) -> Self:
        """Connect within so many seconds, and sign on."""
        loop = asyncio.get_running_loop()
        found: Self
        try:
            async with asyncio.timeout(within):
                addresses = sockets.of_path(place.path) if place.path else await sockets.find(place.host, place.port)
                plug = await sockets.async_connect(addresses, loop.time() + within)
                opening: Any = loop.create_unix_connection if place.path else loop.create_connection
                name = place.host if place.context else None
                _, found = await opening(cls, sock=plug, ssl=place.context, server_hostname=name)
        except OSError as error:
            raise _unreached(place, error) from error
        try:
            greeting = place.greeting(place.provider and await place.provider.get_credentials_async())
            _greeted(await found.exchange(greeting, patience) if greeting else ())
        except BaseException:
            found.abort()
            raise
        return found

    async def exchange(
        self, commands: Sequence[Command], patience: float, waits: float = 0.0, *, whole: bool = False
    ) -> list[Any]:
        """Send commands in one flush, and give their replies, as `Connection.exchange` does.

        With `whole`, all replies together may take as long as one: they are for several callers.
        """
        packed = _pack(commands)
        # replies may come before everything is sent: a call may be refused by its first bytes
        waiter = self._waiter = self._loop.create_future()
        self._asked = self._loop.time()
        behind = _between(packed, patience)
        last = self._asked + waits + behind + len(packed) / SLOWEST if whole else math.inf
        self._replies.expect(len(commands), behind, last)
        self._replies.wait(self._asked, patience + waits)
        if self._ended.done():
            self._fail(redis.ConnectionError("Connection closed by server."))
        else:
            self._arm()
        if self._near and AsyncConnection._looks_until < self._asked:
            AsyncConnection._looks_until = self._asked + self.awake
            self._loop.call_soon(self._look)
        if len(packed) <= SLICE:
            self._transport.write(packed)
        else:
            await self._carry(packed, waiter, patience)
            # what a buffer has taken may still be on its way to the server
            self._replies.wait(self._loop.time(), patience + waits + len(packed) / SLOWEST)
        await waiter
        return self._replies.whole()

    async def _carry(self, packed: bytes, waiter: asyncio.Future[None], patience: float) -> None:
        # a piece is sent when the kernel has all of it
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._carries = True
        try:
            for piece in _pieces(packed, self._transport.get_extra_info("socket")):
                if waiter.done():
                    break
                self._replies.wait(self._loop.time(), patience + LEAP)
                self._transport.write(piece)
                if self._room is not None:
                    await self._room
        except BaseException:
            waiter.cancel()
            raise
        self._carries = False
        self._transport.set_write_buffer_limits()

    def _arm(self) -> None:
        # one alarm for all exchanges: most of them are over long before, and an alarm for each would cost more
        if self._alarm is None or self._alarm.when() > self._replies.due:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(self._replies.due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None:
            return
        late = self._loop.time() - self._replies.due
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
        if self._waiter is not None and self._loop.time() < AsyncConnection._looks_until:
            self._loop.call_soon(self._look)
        else:
            AsyncConnection._looks_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Wake who waits for replies, when all have come."""
        waiter = self._waiter
        if waiter is None:
            self._is_stale = True
            return
        now = self._loop.time()
        self._near = now < self._asked + self.awake
        try:
            is_whole = self._replies.take(data, now)
        except InvalidResponse as error:
            self._fail(error)
            self.abort()
            return
        if not is_whole:
            self._arm()
            return
        self._waiter = None
        self._is_stale = self._replies.has_more()
        if not waiter.done():  # a cancelled one is done
            waiter.set_result(None)

    def eof_received(self) -> None:
        """The server hangs up; the transport closes."""
        self._is_stale = True

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        self._is_stale = True
        if waiter is not None and not waiter.done():
            waiter.set_exception(self._replies.fatal() or error)

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

    def is_stale(self) -> bool:
        """Say whether the server has hung up, or has sent something that nobody asked for."""
        return self._is_stale

    def abort(self) -> None:
        """Close it at once, also if a copy of this process has it, too; bytes that have not left are thrown away."""
        if not self._ended.done():  # a transport that has ended has no loop any more
            plug = self._transport.get_extra_info("socket")
            if plug is not None:  # a loop of another kind may have none
                with suppress(OSError):  # it is closed already
                    plug.shutdown(socket.SHUT_RDWR)
            self._transport.abort()

    async def close(self) -> None:
        """Close it, and wait until it is closed."""
        self.abort()
        await self._ended
