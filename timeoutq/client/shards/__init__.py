"""One queue over several shards, which may lie on several nodes of a cluster: `open_queue`, `ShardedQueue`.

A shard is a plain queue with keys of its own; nothing of the core knows shards. Programs call this room, and so does
the command.

The modules, in reading order: each imports only from those above it.

    route       Where tasks and keys of a sharded queue belong: route v1, and the names of shards. Pure.
    root        The root of a queue over several shards: the record that says how many shards there are, and how tasks
                are routed.
    gathering   Sends calls to many shards at the same time, makes one answer of their answers, and says which shards
                gave none.
    claims      Claims of a client that has no shards of its own: it tries two shards, looks at all, then waits and
                tries again.
    looking     Reads of a sharded queue: sums over all shards, walks from shard to shard, and whether all are drained.
                No I/O.
    rooms       The flows of a sharded queue's rooms, in which they differ from those of a plain queue.
    methods     The flows of a sharded queue, in which they differ from those of a plain queue. No I/O.
    working     A sharded queue as a worker sees it: which shards the worker tends and helps, and where leases and links
                belong.
    queue       `ShardedQueue` and `AsyncShardedQueue`, and `open_queue`, which asks the server what a queue is.
"""

from timeoutq.client.shards.queue import AnyAsyncQueue as AnyAsyncQueue
from timeoutq.client.shards.queue import AnyQueue as AnyQueue
from timeoutq.client.shards.queue import AsyncShardedQueue as AsyncShardedQueue
from timeoutq.client.shards.queue import ShardedQueue as ShardedQueue
from timeoutq.client.shards.queue import open_async_queue as open_async_queue
from timeoutq.client.shards.queue import open_queue as open_queue
from timeoutq.client.shards.queue import talks_of as talks_of
