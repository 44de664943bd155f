"""`Queue` and `AsyncQueue`, the two faces of one queue.

Programs, workers, the command and everything else call them.

The modules, in reading order: each imports only from those above it.

    heartbeat  Keeps leases alive: one thread with an event loop of its own, and a call for all leases each third of the
               timeout.
    keeper     `queue.keeper()`: keeps leases alive for programs that claim by hand, as the heartbeat of a worker does
               for a worker.
    together   Carries out several flows at the same time: their commands travel in one flush for each node. No I/O.
    methods    The methods of a queue, each as a function that checks the arguments and gives the flow that does the
               work.
    slots      Which node of a cluster gets a step of a flow: finds the node that has a slot, and follows the slot. No
               I/O.
    face       What both faces hold: the settings of a client, its name, and its tokens.
    driving    Carries out the steps of flows: for code that blocks, and for asyncio. Only the drivers call the links.
    queue      `Queue` and `AsyncQueue`: the two faces of one queue, whose methods are made of `QueueFlows` in
               `methods.py`.
    shards     One queue over several shards, which may lie on several nodes of a cluster: `open_queue`, `ShardedQueue`.
"""

from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.queue import AsyncQueue, AsyncServerClient, Queue, ServerClient, sibling, twin

__all__ = ["AsyncDriver", "AsyncQueue", "AsyncServerClient", "Driver", "Queue", "ServerClient", "sibling", "twin"]
