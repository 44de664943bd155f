"""Serves an application of the gateway with uvicorn.

On SIGTERM, clients that wait get an empty answer first; then the server ends the requests that have begun, and goes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from timeoutq.gateway.app import Gateway
from timeoutq.gateway.connections import BoundedProtocol
from timeoutq.server.road import AsyncRoad
from timeoutq.words.errors import InvalidInput

DRAIN = 10
"""How long requests may go on after SIGTERM, seconds."""
FILES = 65_536
AWAKE = 0.0003
"""For how many seconds the gateway stays awake for a reply of Redis, if it may use two cores: see `AsyncRoad.awake`."""


class Server(uvicorn.Server):
    """uvicorn, which tells the application of a signal at once: else it would wait for the waiting clients."""

    gateway: Gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop waiting clients, and then the server; a second SIGINT ends it at once."""
        self.gateway.stop()
        # uvicorn would note the signal, and raise it again at the end: a server that was told to end has not failed
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def _cores() -> int:
    # macOS and Windows do not say which cores a process may use
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def serve(app: Gateway, host: str, port: int, tell: Callable[[str], None] = lambda place: None) -> None:
    """Serve until a signal comes; `tell` is called with the address as soon as clients may connect."""
    allow_many_files()
    if _cores() > 1:
        AsyncRoad.awake = AWAKE
    bound = listen(host, port)
    name, number = bound.getsockname()[:2]
    tell(f"[{name}]:{number}" if ":" in name else f"{name}:{number}")
    config = uvicorn.Config(
        app, http=BoundedProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=DRAIN,
        server_header=False, backlog=2048, ws="none", lifespan="on", timeout_keep_alive=75,
    )  # fmt: skip
    server = Server(config)
    server.gateway = app
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()
