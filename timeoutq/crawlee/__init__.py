"""crawlee on timeoutq: the request queue of a crawler is a queue that several processes and machines share.

`TimeoutqStorageClient("redis://…")` is a storage client of crawlee for Python. crawlee calls this room; the core never
does.

The modules, in reading order: each imports only from those above it.

    tasks    From a request of crawlee to a task, and back: the id, the payload, which is JSON, and the group. Pure.
    queue    The request queue of crawlee: requests are leased, kept alive while their handlers run, and acked.
    storage  The storage client: opens request queues; datasets and key-value stores are those of another client.
"""

from timeoutq.crawlee.storage import TimeoutqStorageClient

__all__ = ["TimeoutqStorageClient"]
