"""Connections of clients that are bounded: the head of a request in time and bytes, a body or an answer nobody reads.

`serving.py` gives this class to uvicorn, which by itself waits for ever for the rest of a head, and for a client that
does not read its answer; and it reads for ever what a client goes on to send after its answer. Bodies that somebody
reads are bounded by the endpoints.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from timeoutq.gateway.problems import Problem

HEAD_SECONDS = 20.0
"""How long a client may take from its connection, or from the first byte, to the end of the head of a request."""
HEAD_BYTES = 64 * 1024
"""The most bytes of a head."""
REST_SECONDS = 10.0
"""How long the rest of a refused body is read: a client that is cut off in its body often cannot read the answer."""
REST_BYTES = 256 * 1024 * 1024
"""The most bytes of such a rest: reading costs little; a client that is cut off in its body may lose the
answer that was sent, and that to its next request."""
ANSWER_SECONDS = 30.0
"""How long a client may take to read an answer, besides a second for each `ANSWER_BYTES` of it."""
ANSWER_BYTES = 64 * 1024


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with bounds, and with problems for what is no HTTP."""

    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    """Ends the connection if the client does not read its answer."""
    _size = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._end()
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that is slow to read, but not for ever: its answer is in our memory."""
        super().pause_writing()
        if self._reading is None:
            seconds = ANSWER_SECONDS + self.transport.get_write_buffer_size() / ANSWER_BYTES
            self._reading = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._stop_reading()
        super().resume_writing()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, and see what part of a request it is."""
        before = self.cycle
        super().data_received(data)
        self._hear_hang_up()
        if self.cycle is not before or self._is_busy():
            self._end()
        elif self._size > REST_BYTES or (self._size > HEAD_BYTES and not self._has_answer()):
            self._close(431, "the head of the request is too large")
        else:
            self._size += len(data)
            if self._timer is None:
                self._wait(REST_SECONDS if self._has_answer() else HEAD_SECONDS)

    def _hear_hang_up(self) -> None:
        # uvicorn reads no more when a client sends something behind its request, and would not see that it hangs up
        connection: Any = self.conn
        ahead = self.flow.read_paused and connection.their_state is h11.DONE
        if ahead and len(connection.trailing_data[0]) <= HEAD_BYTES:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with a problem."""
        self._close(400, "this is not a request of HTTP/1.1, or not to its end")

    def _is_busy(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _has_answer(self) -> bool:
        # the answer is out, and the body is still coming
        return cast("Any", self.conn).their_state is h11.SEND_BODY

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._late)

    def _end(self) -> None:
        self._size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self._is_busy():
            self._close(408, "the head of the request did not come in time")

    def _close(self, status: int, detail: str) -> None:
        self._end()
        if self.transport.is_closing():
            return
        connection: Any = self.conn
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._has_begun():
            body = Problem(status, "bad-http", detail).body()
            self.transport.write(
                b"HTTP/1.1 %d Refused\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"cache-control: no-store\r\nconnection: close\r\n\r\n" % (status, len(body)) + body
            )
        self.transport.close()

    def _has_begun(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete
