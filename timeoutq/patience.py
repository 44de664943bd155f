"""How long a link waits for the rest of a reply of which a part has come: parsers of redis-py that count its bytes.

The first bytes of a reply must come within the patience of an attempt. The rest may take as long again, and the time
that its bytes need on the slowest link that is waited for; between two parts no more than the patience may pass. So a
long reply over a slow link arrives, and a link that lets a byte through now and then does not hold its caller. With
hiredis all of this holds; redis-py's parser in Python waits for each part with the patience of an attempt.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import redis
import redis.asyncio.connection
import redis.connection

SLOWEST = 128 * 1024
"""The slowest link that is waited for, bytes per second: what is heavy gets the time that it needs on such a link."""

_Parser: Any = redis.connection.DefaultParser
_AsyncParser: Any = redis.asyncio.connection.DefaultParser


class PatientParser(_Parser):  # type: ignore[misc]  # redis-py names no type for it
    """Reads replies for a blocking link."""

    patience = 0.0
    """Seconds; 0 as long as nobody has said `expect`."""
    _reads = 0
    _until = 0.0

    def expect(self, patience: float) -> None:
        """Begin to wait for a reply; its first bytes are waited for as long as the socket is told to wait."""
        self.patience, self._reads = patience, 0

    def relax(self) -> None:
        """Let the socket wait as it did before the last reply."""
        if self._reads > 1:
            self._sock.settimeout(self.patience)

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


class AsyncPatientParser(_AsyncParser):  # type: ignore[misc]  # same
    """Reads replies for a link of asyncio, whose alarm covers the whole exchange."""

    patience = 0.0
    _alarm: asyncio.Timeout | None = None
    _reads = 0
    _until = 0.0

    def expect(self, patience: float, alarm: asyncio.Timeout | None) -> None:
        """Begin to wait for a reply: the alarm rings if no more bytes come in time. None: nobody waits any more."""
        self.patience, self._alarm, self._reads = patience, alarm, 0

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
