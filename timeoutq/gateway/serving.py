"""Serves an application of the gateway with uvicorn, and bounds the time that clients may take."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from timeoutq.gateway.app import Gateway
from timeoutq.gateway.problems import Problem
from timeoutq.server.connections import AsyncConnection
from timeoutq.words.errors import InvalidInput

DRAIN = 10  # how long requests may go on after SIGTERM, seconds
FILES = 65_536
AWAKE = 0.0003
"""For how many seconds the gateway stays awake for a reply, if it may use two cores: see `AsyncConnection.awake`."""
HEAD_SECONDS = 20.0  # how long a client may take for the head of a request, or for the rest of a body that was refused
HEAD_BYTES = 64 * 1024
"""How many bytes behind its request a client may send before it is seen no more that the client hangs up."""
ANSWER_SECONDS = 30.0  # how long a client may take to read an answer, besides a second for each `ANSWER_BYTES` of it
ANSWER_BYTES = 64 * 1024


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for a client for ever."""

    _coming: asyncio.TimerHandle | None = None  # ends the connection while no request is carried out
    _reading: asyncio.TimerHandle | None = None  # ends the connection if the client does not read its answer

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._coming = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._coming, self._reading = _cancelled(self._coming), _cancelled(self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on the bytes of the client, and bound the time of those that belong to no request under way."""
        before = self.cycle
        super().data_received(data)
        connection: Any = self.conn
        is_ahead = self.flow.read_paused and connection.their_state is h11.DONE
        if is_ahead and len(connection.trailing_data[0]) <= HEAD_BYTES:
            # uvicorn reads no more when a client sends something behind its request, and would not see it hang up
            self.flow.resume_reading()
        cycle: Any = self.cycle
        if cycle is not before or (cycle is not None and not cycle.response_complete):
            self._coming = _cancelled(self._coming)
        elif self._coming is None:
            self._coming = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        """Wait for a client that is slow to read, but not for ever: its answer is in our memory."""
        super().pause_writing()
        if self._reading is None:
            seconds = ANSWER_SECONDS + self.transport.get_write_buffer_size() / ANSWER_BYTES
            self._reading = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._reading = _cancelled(self._reading)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP with a problem, as all other requests that fail."""
        body = Problem(400, "bad-http", "this is not a request of HTTP/1.1, or not to its end").body()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(
                b"HTTP/1.1 400 Refused\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"cache-control: no-store\r\nconnection: close\r\n\r\n" % len(body) + body
            )
        self.transport.close()


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None


class Server(uvicorn.Server):
    """uvicorn, which tells the application of a signal at once: else it would wait for the waiting clients."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop waiting clients, and then the server; a second SIGINT ends it at once."""
        gateway: Any = self.config.app
        gateway.stop()
        # uvicorn would note the signal, and raise it again at the end: a server that was told to end has not failed
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def allow_many_files() -> None:
    """Let this process have many files and connections open at once, as far as its user may."""
    if sys.platform == "win32":  # it has no such limit
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to listen at; port 0 takes a free one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(2048)
    except OSError as error:
        raise InvalidInput(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    return made


def serve(app: Gateway, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until a signal comes; `tell` is called with the address as soon as clients may connect."""
    allow_many_files()
    # macOS and Windows do not say which cores a process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1:
        AsyncConnection.awake = AWAKE
    with listen(host, port) as bound:
        name, number = bound.getsockname()[:2]
        tell(f"[{name}]:{number}" if ":" in name else f"{name}:{number}")
        config = uvicorn.Config(
            app, http=BoundedProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=DRAIN,
            server_header=False, backlog=2048, ws="none", lifespan="on", timeout_keep_alive=75,
        )  # fmt: skip
        Server(config).run(sockets=[bound])
