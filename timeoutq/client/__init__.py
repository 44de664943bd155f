"""`Queue` and `AsyncQueue`, the two faces of one queue.

Programs, workers, the command and everything else call them.

The modules, in reading order: each imports only from those above it.

    methods      What the methods of the faces do: `QueueFlows` checks what the caller passed, and gives the flow that
                 does the work.
    heartbeat    Keeps leases alive: one thread, one connection of its own, one call for all leases each third of the
                 timeout.
    keeper       `queue.keeper()`: keeps leases alive for programs that claim by hand, as the heartbeat of a worker does
                 for a worker.
    face         What both faces hold: the settings of a client, its name, and its tokens.
    driving      Carries out the steps of flows: for code that blocks, and for asyncio. Only the drivers call the links.
    queue        `Queue`: the face of a queue for code that blocks, one line per method. `AsyncQueue` is its twin.
    async_queue  `AsyncQueue`: the face of a queue for asyncio, one line per method. `Queue` is its twin.
    of_server    Clients of a server that open no queue: for tokens, for walks through the names of queues, and for
                 metrics.
    twin         From a client for asyncio to one for another thread: heartbeats, a worker process and the supervisor
                 need one.
    shards       One queue over several shards, which may lie on several nodes of a cluster: `open_queue`,
                 `ShardedQueue`.
"""

from timeoutq.client.async_queue import AsyncQueue
from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.of_server import AsyncServerClient, ServerClient
from timeoutq.client.queue import Queue
from timeoutq.client.twin import sibling, twin

__all__ = ["AsyncDriver", "AsyncQueue", "AsyncServerClient", "Driver", "Queue", "ServerClient", "sibling", "twin"]
