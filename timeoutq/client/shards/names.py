"""The names of shards: the keys of shard 3 of 12 begin with `timeoutq:{crawl:03:2}:`. Pure.

The CRC of its hash tag says in which slot a key lies, so without care several shards could lie on one node by chance.
Therefore all slots are divided into equal parts, one for each shard, and a tag ends with a number, here
2, that puts the shard into its part.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from timeoutq.server.cluster import SLOTS, slot_of

USUAL = 12
"""How many shards a queue has when nobody says how many."""
MOST = 1000
"""How many shards a queue may have."""


@lru_cache(maxsize=32)
def tags(queue: str, shards: int) -> tuple[str, ...]:
    """Give the hash tag of each shard of a queue; the slot of the tag is in the shard's part of all slots."""
    return tuple(_tag(queue, shard, shards) for shard in range(shards))


def _tag(queue: str, shard: int, shards: int) -> str:
    digits = 3 if shards > 100 else 2
    part = range(SLOTS * shard // shards, SLOTS * (shard + 1) // shards)
    for number in count():
        tag = f"{queue}:{shard:0{digits}}:{number}"
        if slot_of(tag) in part:
            return tag
    raise AssertionError("a CRC meets every slot")


def stem(tag: str) -> str:
    """Give the beginning of the names of all keys of a shard."""
    return f"timeoutq:{{{tag}}}:"
