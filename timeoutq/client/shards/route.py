"""Where tasks and keys of a sharded queue belong: route v1, and the names of shards. Pure.

Never change route v1, for queues live on; a test compares its results. A task is routed by its group; without a group,
by the host of its URL; without a host, by its id. So all tasks of a host are in one shard, and politeness to the host
is exact. The host has the name that a polite queue gives it.

The keys of shard 3 of 12 begin with `timeoutq:{crawl:03:2}:`. The CRC of this hash tag says in which slot a key lies,
so without care several shards could lie on one node by chance. Therefore all slots are divided into equal parts, one
for each shard, and a tag ends with a number, here 2, that puts the shard into its part.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from itertools import count
from typing import Literal

from timeoutq.server.cluster import SLOTS, slot_of
from timeoutq.words.hostname import host_of

USUAL = 12
"""How many shards a queue has when nobody says how many."""
MOST = 1000
"""How many shards a queue may have."""

By = Literal["host", "id"]
"""What tasks are routed by: the group or the host, or the id alone."""


def route(key: bytes, shards: int) -> int:
    """Give the shard of a key: the first 32 bits of its SHA-1, modulo the number of shards."""
    return int.from_bytes(hashlib.sha1(key, usedforsecurity=False).digest()[:4]) % shards


def key_of(task: bytes, group: bytes | None = None, by: By = "host") -> bytes:
    """Give the group, the host or the id by which a task is routed."""
    if by == "id":
        return task
    return group if group is not None else host_of(task) or task


@lru_cache(maxsize=32)
def tags(queue: str, shards: int) -> tuple[str, ...]:
    """Give the hash tag of each shard of a queue; the slot of the tag is in the shard's part of all slots."""
    return tuple(_tag(queue, shard, shards) for shard in range(shards))


def _tag(queue: str, shard: int, shards: int) -> str:
    digits = 3 if shards > 100 else 2
    part = range(SLOTS * shard // shards, SLOTS * (shard + 1) // shards)
    found = (f"{queue}:{shard:0{digits}}:{number}" for number in count())
    return next(tag for tag in found if slot_of(tag) in part)  # a CRC meets every slot


def stem(tag: str) -> str:
    """Give the beginning of the names of all keys of a shard."""
    return f"timeoutq:{{{tag}}}:"
