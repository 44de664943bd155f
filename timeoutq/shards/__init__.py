"""One queue over several shards, which may lie on several nodes of a cluster: `open_queue`, `ShardedQueue`.

A shard is a plain queue with keys of its own; nothing of the core knows shards. Programs call this room, and so does
the command.

names.py       the names of the shards' keys, each in its part of the slots
route.py       which shard a task belongs to
together.py    several flows at the same time, in one flush for each node
root.py        the record of the queue, and what its flows share
gathering.py   calls to many shards, and one answer made of theirs
flows.py claims.py ends.py looking.py quiet.py results.py methods.py
               what the methods do
queue.py opening.py
               the faces, and how one is opened
"""

from timeoutq.shards.opening import AnyAsyncQueue as AnyAsyncQueue
from timeoutq.shards.opening import AnyQueue as AnyQueue
from timeoutq.shards.opening import open_async_queue as open_async_queue
from timeoutq.shards.opening import open_queue as open_queue
from timeoutq.shards.opening import talks_of as talks_of
from timeoutq.shards.queue import AsyncShardedQueue as AsyncShardedQueue
from timeoutq.shards.queue import ShardedQueue as ShardedQueue
