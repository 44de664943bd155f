"""The short way of an exchange for asyncio: replies go from the transport of a connection straight to who waits.

`link.py` uses it. redis-py's streams cost a turn of the event loop more, a timeout and a dozen coroutines for each
reply. A wire takes only what is usual: replies that come at once and whole. Whatever else comes, or does not come, goes
on to redis-py's stream, and the exchange goes on there as if there were no wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self, cast

from redis.exceptions import InvalidResponse

_PASSED_ON = ("connection_lost", "data_received", "eof_received", "pause_writing", "resume_writing")
"""What a wire passes on to redis-py's stream."""


def _has(thing: object, *methods: str) -> bool:
    return all(callable(getattr(thing, name, None)) for name in methods)


class Wire(asyncio.Protocol):
    """Stands between the transport of a connection and redis-py's stream."""

    awake: ClassVar[float] = 0.0
    """For how many seconds the event loop looks for a reply again and again, before it sleeps until the reply comes.

    To wake up takes an idle machine about as long as a server near by takes to answer. The loop goes on with all its
    other work meanwhile, and it sleeps at once after a reply that has taken longer than this. With 0, it never stays
    awake.
    """
    _looks_until: ClassVar[float] = 0.0
    """Until when a wire of this process looks, while it waits: one is enough to keep its loop awake."""

    def __init__(self, transport: Any, reader: Any, patience: float) -> None:
        """Take the place of the stream; `reader` is hiredis' reader of the connection, `patience` is in seconds."""
        self.quiet = True
        """Whether the server has sent nothing that nobody asked for, and has not hung up."""
        self.due = 0.0
        """Until when the last exchange waits for its first reply, by the clock of the event loop."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._stream: Any = transport.get_protocol()
        self._reader = reader
        self._nothing = reader.gets()  # what the reader gives while a reply is not whole
        self._patience = patience
        self._alarm: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._count = 0
        self._asked = 0.0
        self._near = self.awake > 0
        """Whether the last reply has come within `awake` seconds; before the first one, whether `awake` is set."""
        transport.set_protocol(self)

    @classmethod
    def over(cls, connection: Any, patience: float) -> Self | None:
        """Give a new connection a wire; None without a transport or without hiredis.

        `_writer`, `_parser` and its `_reader` are redis-py's own business, and have these names from 8.0 to 8.1. Where
        something has another name, or lacks what a wire calls, there is no wire, and redis-py reads by itself.
        """
        transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        reader: Any = getattr(getattr(connection, "_parser", None), "_reader", None)
        if not (_has(reader, "feed", "gets", "has_data") and _has(transport, "get_protocol", "set_protocol", "write")):
            return None
        if reader.has_data() or not _has(transport.get_protocol(), *_PASSED_ON):
            return None
        return cls(transport, reader, patience)

    def ask(self, packed: Sequence[bytes], count: int) -> asyncio.Future[list[Any]]:
        """Send commands, and wait for `count` replies.

        If fewer come, redis-py's stream gives the others, or the error that has ended the connection.
        """
        loop = self._loop
        self._asked = loop.time()
        self.due = self._asked + self._patience
        if self._alarm is None:
            self._alarm = loop.call_at(self.due, self._ring)
        self._count, self._replies = count, []
        waiter = self._waiter = loop.create_future()
        self._transport.write(b"".join(packed))
        if self._near and Wire._looks_until < self._asked:
            Wire._looks_until = self._asked + self.awake
            loop.call_soon(self._look)
        return waiter

    def _look(self) -> None:
        # a loop with something to do soon takes what has come, and does not sleep
        if self._waiter is not None and self._loop.time() < Wire._looks_until:
            self._loop.call_soon(self._look)
        else:
            Wire._looks_until = 0.0

    def data_received(self, data: bytes) -> None:
        """Give the replies to who waits for them; what nobody waits for goes to the stream."""
        if self._waiter is None:
            self.quiet = False
            self._stream.data_received(data)
            return
        replies, reader = self._replies, self._reader
        with suppress(InvalidResponse):  # the reader says it again to who reads on
            reader.feed(data)
            while len(replies) < self._count and (reply := reader.gets()) is not self._nothing:
                replies.append(reply)
            self.quiet = not reader.has_data()
        self._near = self._loop.time() < self._asked + self.awake
        self._hand_over()

    def _hand_over(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # a cancelled one is done
            waiter.set_result(self._replies)

    def _ring(self) -> None:
        # one alarm for all exchanges: most of them are over long before, and an alarm for each would cost more
        self._alarm = None
        if self._waiter is not None:
            if self._loop.time() < self.due:
                self._alarm = self._loop.call_at(self.due, self._ring)
            else:
                self._hand_over()

    def eof_received(self) -> bool | None:
        """The server hangs up."""
        self._end()
        return cast("bool | None", self._stream.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes."""
        self._end()
        self._stream.connection_lost(exc)

    def _end(self) -> None:
        self.quiet = False
        self._hand_over()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """The transport may take more."""
        self._stream.resume_writing()
