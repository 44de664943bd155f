"""The names of shards: the keys of shard 7 begin with `timeoutq:{crawl:07:3}:`. Pure.

A cluster puts a key where the CRC of its hash tag says, so names without further thought would lie together by chance.
The last number of a tag is chosen so that the shards of a queue lie in equal parts of all slots, and so on all nodes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from timeoutq.cluster import SLOTS, slot_of

USUAL = 12
"""How many shards a queue has when nobody says how many."""
MOST = 1000


@lru_cache(maxsize=32)
def tags(queue: str, shards: int) -> tuple[str, ...]:
    """Give the hash tag of each shard of a queue; its slot is in the part of all slots that is the shard's."""
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
    """Give what the names of all keys of a shard begin with."""
    return f"timeoutq:{{{tag}}}:"
