"""Connections of clients that are bounded in time: a head or a refused body that never ends, an answer nobody reads."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from timeoutq.gateway.problems import Problem

HEAD_SECONDS = 20.0
"""How long a client may take for the head of a request, or for the rest of a body that was refused."""
HEAD_BYTES = 64 * 1024
"""How many bytes behind its request a client may send before it is seen no more that the client hangs up."""
ANSWER_SECONDS = 30.0
"""How long a client may take to read an answer, besides a second for each `ANSWER_BYTES` of it."""
ANSWER_BYTES = 64 * 1024


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for a client for ever."""

    _coming: asyncio.TimerHandle | None = None
    """Ends the connection while no request is carried out."""
    _reading: asyncio.TimerHandle | None = None
    """Ends the connection if the client does not read its answer."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._coming = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._coming = _cancelled(self._coming)
        self._reading = _cancelled(self._reading)
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
        """Go on: the client has read."""
        self._reading = _cancelled(self._reading)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP with a problem."""
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
