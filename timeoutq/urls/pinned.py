"""The domains of a queue over several shards: by the public suffix list that the queue keeps, on all machines alike.

A task goes to the shard of its group. If two machines knew different suffixes, they could find different domains for a
URL, and the task would be in two shards. So the queue keeps the whole list of the first client that asked (45 KB,
packed) in its record, and all clients use this list, whatever version of the package they have installed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.root import Shards
from timeoutq.urls.domains import domain, domain_by, list_of, rules
from timeoutq.verbs.sending import Flow
from timeoutq.words.errors import InvalidInput

FIELD = "suffixes"  # the field of the record
MOST = 16 * 2**20  # more bytes than this are no list of suffixes

Domain = Callable[[str], str]


def domains_of(queue: AnyQueue) -> Domain:
    """Give the function `domain` by the public suffix list that the queue keeps; for a plain queue, `domain` itself.

    `put(*urls, group=domains_of(queue))`. The first call for a sharded queue writes the list of the installed package
    into the record of the queue. Raises `MissingExtra`, `Unavailable`.
    """
    return _by(queue.run(_kept(queue.shards))) if isinstance(queue, ShardedQueue) else domain


async def async_domains_of(queue: AnyAsyncQueue) -> Domain:
    """Give the function `domain` as `domains_of` does, for asyncio."""
    return _by(await queue.run(_kept(queue.shards))) if isinstance(queue, AsyncShardedQueue) else domain


def _kept(shards: Shards) -> Flow[bytes]:
    own = rules()
    packed = yield from shards.keep(FIELD, zlib.compress(own, 9))
    try:
        unpack = zlib.decompressobj()
        found = unpack.decompress(packed, MOST)
    except zlib.error:
        raise InvalidInput(
            f"somebody has changed the field {FIELD} of key timeoutq:{{{shards.name}}}:meta, the public suffix "
            "list of the queue: if no tasks have been put by domain, remove it (HDEL)"
        ) from None
    return own if found == own else found


def _by(rules: bytes) -> Domain:
    suffixes = list_of(rules)
    return lambda url: domain_by(suffixes, url)
