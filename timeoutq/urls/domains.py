"""The host of a URL, and its registrable domain: names for the groups of a polite queue.

The public suffix list is that of the installed package publicsuffixlist, so no network is used. In a queue over several
shards, a task goes to the shard of its group: if two machines knew different suffixes, the task could be in two shards.
So such a queue keeps the whole list of the first client that asked (45 KB, packed) in its record, for all clients.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.root import Shards
from timeoutq.urls.normal import normalise
from timeoutq.verbs.sending import Flow
from timeoutq.words.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

FIELD = "suffixes"  # the field of the record
MOST = 16 * 2**20  # more bytes than this are no list of suffixes

Domain = Callable[[str], str]


def host(url: str) -> str:
    """Give the host of a URL as a polite queue names it: `a.example`, `a.example:8080`, `[::1]`.

    It is in lower case and ASCII, with the port unless that is the usual one. Raises `BadUrl` as `normalise` does.
    """
    return normalise(url).split("/", 3)[2]


def domain(url: str) -> str:
    """Give the registrable domain of a URL: `example.co.uk` for `https://www.example.co.uk:8443/`.

    It is what one owner has registered by the public suffix list, the suffixes of companies included: `me.github.io`
    is a domain, like `example.com`. It has no port. An IP address, a public suffix itself and a name without dots are
    given as they are. Raises `BadUrl` as `normalise` does, and `MissingExtra` without the package publicsuffixlist.
    """
    return _domain_by(rules(), url)


def domains_of(queue: AnyQueue) -> Domain:
    """Give the function `domain` by the public suffix list that the queue keeps; for a plain queue, `domain` itself.

    `put(*urls, group=domains_of(queue))`. The first call for a sharded queue writes the list of the installed package
    into the record of the queue. Raises `MissingExtra`, `Unavailable`.
    """
    return partial(_domain_by, queue.run(_kept(queue.shards))) if isinstance(queue, ShardedQueue) else domain


async def async_domains_of(queue: AnyAsyncQueue) -> Domain:
    """Give the function `domain` as `domains_of` does, for asyncio."""
    return partial(_domain_by, await queue.run(_kept(queue.shards))) if isinstance(queue, AsyncShardedQueue) else domain


def _kept(shards: Shards) -> Flow[bytes]:
    own = rules()
    packed = yield from shards.keep(FIELD, zlib.compress(own, 9))
    try:
        found = zlib.decompressobj().decompress(packed, MOST)
    except zlib.error:
        raise InvalidInput(
            f"somebody has changed the field {FIELD} of key timeoutq:{{{shards.name}}}:meta, the public suffix "
            "list of the queue: if no tasks have been put by domain, remove it (HDEL)"
        ) from None
    return own if found == own else found


@lru_cache(maxsize=1)
def rules() -> bytes:
    """Give the public suffix list of the installed package: one rule a line. Raises `MissingExtra` without it."""
    try:
        import publicsuffixlist
    except ImportError as error:
        raise MissingExtra(
            "domains need the package publicsuffixlist, which is missing: pip install 'timeoutq[crawl]'"
        ) from error
    lines = map(bytes.strip, Path(publicsuffixlist.PSLFILE).read_bytes().splitlines())
    return b"\n".join(line for line in lines if line and not line.startswith(b"//"))


def _domain_by(rules: bytes, url: str) -> str:
    name = host(url)
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    name = name.partition(":")[0]
    if name[-1].isdigit() and name.replace(".", "").isdigit():
        return name
    return _private(rules, name) or name


@lru_cache(maxsize=4096)
def _private(rules: bytes, name: str) -> str | None:
    return _list_of(rules).privatesuffix(name)


@lru_cache(maxsize=8)
def _list_of(rules: bytes) -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(rules)
