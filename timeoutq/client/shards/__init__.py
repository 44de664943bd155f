"""One queue over several shards, which may lie on several nodes of a cluster: `open_queue`, `ShardedQueue`.

A shard is a plain queue with keys of its own; nothing of the core knows shards. Programs call this room, and so does
the command.

The modules, in reading order: each imports only from those above it.

    names       The names of shards: the keys of shard 3 of 12 begin with `timeoutq:{crawl:03:2}:`. Pure.
    route       Which shard a task belongs to: route v1. Pure. Never change it, for queues live on; a test compares its
                results.
    together    Carries out several flows at the same time: their commands travel in one flush for each node. No I/O.
    root        The root of a queue over several shards: the record that says how many shards there are, and how tasks
                are routed.
    gathering   Sends calls to many shards at the same time, makes one answer of their answers, and says which shards
                gave none.
    flows       Flows of a sharded queue: tasks in, tasks by their ids, settings. No I/O.
    claims      Claims of a client that has no shards of its own: it tries two shards, looks at all, then waits and
                tries again.
    looking     Reads of a sharded queue: sums over all shards, and walks that go from shard to shard. No I/O.
    quiet       Whether a sharded queue is drained: an exact answer, though the shards are asked one after another. No
                I/O.
    scheduling  Schedules of a sharded queue: each is in the shard of its name, and what its ticks put is there, too. No
                I/O.
    methods     The flows of a sharded queue, in which they differ from those of a plain queue.
    working     A sharded queue as a worker sees it: which shards the worker tends and helps, and where leases and links
                belong.
    queue       `ShardedQueue` and `AsyncShardedQueue`: the two faces of a queue over several shards.
    opening     `open_queue` and `open_async_queue`: ask the server what a queue is, and give the right one of the
                faces.
"""

from timeoutq.client.shards.opening import AnyAsyncQueue as AnyAsyncQueue
from timeoutq.client.shards.opening import AnyQueue as AnyQueue
from timeoutq.client.shards.opening import open_async_queue as open_async_queue
from timeoutq.client.shards.opening import open_queue as open_queue
from timeoutq.client.shards.opening import talks_of as talks_of
from timeoutq.client.shards.queue import AsyncShardedQueue as AsyncShardedQueue
from timeoutq.client.shards.queue import ShardedQueue as ShardedQueue
