"""Parsers for redis-py that limit how long a link waits for the rest of a reply that has begun.

The first bytes of a reply must come within the patience of an attempt. For the rest of the reply, the link waits once
more for the patience, plus the time that the bytes of the reply need on a link of `SLOWEST`; and for the next bytes it
never waits longer than the patience. So a long reply over a slow link arrives, and a link that lets a byte through now
and then does not keep its caller waiting without end. All of this holds with hiredis. Without hiredis, redis-py's
parser in Python waits for each part of the reply as long as the patience of an attempt.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import redis
import redis.asyncio.connection
import redis.connection

from timeoutq.server.deadlines import SLOWEST

_Parser: Any = redis.connection.DefaultParser
_AsyncParser: Any = redis.asyncio.connection.DefaultParser


class PatientParser(_Parser):  # type: ignore[misc]  # redis-py names no type for it
    """Reads replies for a blocking link."""

    patience = 0.0
    """Seconds; 0 until `expect` is called."""
    _reads = 0
    _until = 0.0

    def expect(self, patience: float) -> None:
        """Begin to wait for a reply; for its first bytes, the socket's own timeout holds."""
        self.patience, self._reads = patience, 0

    def relax(self) -> None:
        """Give the socket the timeout again that it had before the last reply."""
        if self._reads > 1:
            self._sock.settimeout(self.patience)

    def can_read(self, timeout: float = 0) -> bool:
        """Say whether something has come; if the server has hung up, the error tells why, as far as TLS knows."""
        until = time.monotonic() + timeout
        left = timeout
        try:
            while _Parser.can_read(self, left):
                if self._holds_words():
                    return True
                left = max(0.0, until - time.monotonic())
                if not left:
                    return False
            return False
        except redis.ConnectionError as closed:
            try:
                self._sock.recv(1)  # it is closed: nothing is waited for
            except OSError as alert:
                raise closed from alert
            raise

    def _holds_words(self) -> bool:
        # what has come over TLS may be for TLS alone, like the session tickets that follow a handshake of TLS 1.3:
        # redis-py 8 sees only that the socket has bytes, and takes a new connection for one with an old reply
        if not isinstance(self._sock, ssl.SSLSocket):
            return True
        reader = getattr(self, "_reader", None)
        if reader is None or hasattr(self, "_next_response") or reader.has_data():
            return True  # redis-py's parser in Python, and redis-py before 8, have read it already
        return bool(_Parser.read_from_socket(self, timeout=0, raise_on_timeout=False))

    def read_from_socket(self, *words: Any, **settings: Any) -> Any:
        """Read what comes next, if it comes in time."""
        self._reads += 1
        if self._reads == 1 or not self.patience:
            return _Parser.read_from_socket(self, *words, **settings)
        now = time.monotonic()
        before: int = self._reader.len()
        if self._reads == 2:
            self._until = now + self.patience + before / SLOWEST
        left = min(self.patience, self._until - now)
        if left <= 0:
            raise redis.TimeoutError("Timeout reading from the server")
        self._sock.settimeout(left)
        found = _Parser.read_from_socket(self, *words, **settings)
        self._until += (self._reader.len() - before) / SLOWEST
        return found


class AsyncPatientParser(_AsyncParser):  # type: ignore[misc]  # redis-py names no type for it
    """Reads replies for a link of asyncio, whose alarm covers the whole exchange."""

    patience = 0.0
    _alarm: asyncio.Timeout | None = None
    _reads = 0
    _until = 0.0

    def expect(self, patience: float, alarm: asyncio.Timeout | None) -> None:
        """Begin to wait for a reply: the alarm rings if no more bytes come in time. Without an alarm nobody waits."""
        reader = getattr(self, "_reader", None)  # redis-py's parser in Python has none
        has_begun = reader is not None and reader.has_data()
        self.patience, self._alarm, self._reads = patience, alarm, int(has_begun)

    async def read_from_socket(self) -> Any:
        """Read what comes next, if it comes before the alarm."""
        self._reads += 1
        if self._alarm is None or self._reads == 1:
            return await _AsyncParser.read_from_socket(self)
        now = asyncio.get_running_loop().time()
        before: int = self._reader.len()
        if self._reads == 2:
            self._until = now + self.patience + before / SLOWEST
        self._alarm.reschedule(min(self._until, now + self.patience))
        found = await _AsyncParser.read_from_socket(self)
        self._until += (self._reader.len() - before) / SLOWEST
        return found
