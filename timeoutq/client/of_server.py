"""Clients of a server that open no queue: for tokens, for walks through the names of queues, and for metrics.

`Queue` and `AsyncQueue` open the queue of their name before their first call. These two do not, so they can be called
like any queue that is there, whatever that queue is.
"""

from __future__ import annotations

from timeoutq.client.async_queue import AsyncQueue
from timeoutq.client.queue import Queue
from timeoutq.verbs.sending import Flow


class ServerClient(Queue):
    """A client that opens no queue, for code that blocks: `run` carries out flows that are about the server."""

    def _opening(self) -> Flow[None]:
        yield from ()


class AsyncServerClient(AsyncQueue):
    """A client that opens no queue, for asyncio: `run` carries out flows that are about the server."""

    def _opening(self) -> Flow[None]:
        yield from ()
