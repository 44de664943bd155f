"""A small HTTP responder for health checks: GET /healthz and /readyz. `timeoutq worker --health-port` has one."""

from __future__ import annotations

import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from timeoutq.words.errors import InvalidInput
from timeoutq.worker.health import Verdict

MOST = 32  # connections at once; one more closes the oldest
HEAD = 4096  # bytes of the head of a request
SLOW = 5.0  # seconds after which a connection is closed that has not sent its request
LOOK_EVERY = 0.2  # seconds, at most, for which the end of the thread is waited for
USUAL = "127.0.0.1"


def read_place(text: str) -> tuple[str, int]:
    """Read where to listen: `8081`, which is on this machine alone, or `0.0.0.0:8081`. Raises `InvalidInput`."""
    found = re.fullmatch(r"(?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):)?([0-9]{1,5})", text)
    if not found or not 0 < int(found[2]) < 65_536:
        raise InvalidInput(
            f"{text!r:.80} is no place for a health port: write 8081, or 0.0.0.0:8081 for probes from other machines"
        )
    return (found[1] or USUAL).strip("[]"), int(found[2])


class Responder:
    """Answers health checks with what `look` says at that moment."""

    def __init__(self, place: tuple[str, int], look: Callable[[], Verdict]) -> None:
        """Listen at an address and a port. Raises `InvalidInput` if this cannot be."""
        host, port = place
        self._look = look
        self._open: dict[socket.socket, tuple[float, bytearray]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        try:
            kind = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listening = socket.create_server(place, family=kind, backlog=MOST)
        except OSError as error:
            raise InvalidInput(
                f"cannot listen for health checks at {host}:{port}: {error.strerror or error}; choose another "
                "--health-port"
            ) from error
        self._listening.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)

    if sys.platform != "win32":  # its selector has none, and it has no supervisor that would ask

        def fileno(self) -> int:
            """Give a descriptor that can be read when there is something to do; for `select`."""
            return self._selector.fileno()

    def turn(self, seconds: float) -> None:
        """Wait for requests, at most `seconds`, and answer those that have come."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._open:  # not closed to make room
                self._read(key.fileobj)
        late = time.monotonic() - SLOW
        for slow in [one for one, (at, _) in self._open.items() if at < late]:
            self._end(slow)

    def __enter__(self) -> Self:
        """Answer in a thread of its own, until the end of the block."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, and close the port."""
        self._stop.set()
        self._thread.join()
        self.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.turn(LOOK_EVERY)

    def close(self) -> None:
        """Close the port and all connections; a forked process calls this for those of its parent."""
        for one in (*self._open, self._listening):
            one.close()
        self._open.clear()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the client is gone again, or there are no more descriptors
            new, _ = self._listening.accept()
            new.setblocking(False)
            if len(self._open) >= MOST:
                self._end(next(iter(self._open)))
            self._open[new] = time.monotonic(), bytearray()
            self._selector.register(new, selectors.EVENT_READ)

    def _read(self, one: socket.socket) -> None:
        _, head = self._open[one]
        try:
            found = one.recv(HEAD)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        head += found
        is_whole = b"\r\n\r\n" in head or b"\n\n" in head
        if found and not is_whole and len(head) <= HEAD:
            return
        if is_whole or len(head) > HEAD:
            with suppress(OSError):
                one.send(answer(bytes(head), self._look))
                one.shutdown(socket.SHUT_WR)
        self._end(one)

    def _end(self, one: socket.socket) -> None:
        del self._open[one]
        with suppress(OSError, KeyError, ValueError):
            self._selector.unregister(one)
        one.close()


def answer(head: bytes, look: Callable[[], Verdict]) -> bytes:
    """Give the answer to the head of a request."""
    words = head.partition(b"\n")[0].split()
    method, path = (words[0], words[1].partition(b"?")[0]) if len(words) == 3 and len(head) <= HEAD else (b"", b"")
    allow = ""
    if not method:
        status, said = "400 Bad Request", "this is no request"
    elif path not in (b"/healthz", b"/readyz"):
        status, said = "404 Not Found", "there are /healthz and /readyz"
    elif method not in (b"GET", b"HEAD"):
        status, said, allow = "405 Method Not Allowed", "this port answers GET and HEAD", "Allow: GET, HEAD\r\n"
    else:
        verdict = look()
        good, said = verdict.alive if path == b"/healthz" else verdict.ready, verdict.words
        status = "200 OK" if good else "503 Service Unavailable"
    body = f"{said}\n".encode()
    about = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n{allow}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return about.encode() + (b"" if method == b"HEAD" else body)
