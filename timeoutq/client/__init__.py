"""`Queue` and `AsyncQueue`, the two faces of one queue.

Programs, workers, the command and everything else call them. The files of this room:

    face          settings, the name of a client, tokens
    driving       carries out the steps of flows: the only caller of the links
    queue         the methods, for code that blocks; sharded queues have them, too
    async_queue   the same methods, for asyncio
    of_server     the same two for what belongs to the server: they open no queue
    twin          from a client for asyncio to one for another thread
"""

from timeoutq.client.async_queue import AsyncQueue
from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.of_server import AsyncServerClient, ServerClient
from timeoutq.client.queue import Queue
from timeoutq.client.twin import sibling, twin

__all__ = ["AsyncDriver", "AsyncQueue", "AsyncServerClient", "Driver", "Queue", "ServerClient", "sibling", "twin"]
