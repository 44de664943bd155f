"""Which queues a server has, found by their keys; and which queue a mistyped name may have meant."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from typing import cast

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue, looking
from timeoutq.client.shards.root import Shards
from timeoutq.server.cluster import Where, slot_of
from timeoutq.server.troubles import is_sharded
from timeoutq.verbs import reads, sending
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words.counts import Stats
from timeoutq.words.errors import AccessDenied, TimeoutqError

KEYS_A_CALL = 1000  # about how many keys the server looks at in one SCAN
QUEUES_A_FLUSH = 100
ALIKE = 0.65  # two names that are alike by this much, 0 to 1, may be meant for each other: `wbe` and `web`

LONE_NODE = "this is one node of a cluster: a client with this URL sees only the queues of this node"
CURE = "write redis+cluster:// (or rediss+cluster:// with TLS) in the place of what stands before the host"

_PATTERN = "timeoutq:{*}:meta"
_META = re.compile(rb"timeoutq:\{([A-Za-z0-9._-]{1,64})\}:meta")  # a whole key: that of a lock may end like this one


@dataclass(frozen=True, slots=True)
class Listed:
    name: str
    stats: Stats | None  # None when the queue cannot be read
    trouble: str = ""  # why the queue cannot be read


def size(queue: AnyQueue) -> int:
    """Count all keys of the server's database, or of all primaries of the cluster, as the length of a walk."""
    places = queue.run(reads.primaries(queue.talk))
    return sum(int(queue.run(sending.ask(queue.talk, [("DBSIZE",)], place))[0]) for place in places)


def is_lone_node(queue: AnyQueue) -> bool:
    """Say whether the server is a node of a cluster, and the URL is that of a single server."""
    if queue.talk.server.nodes:
        return False
    try:
        (info,) = queue.run(sending.ask(queue.talk, [("INFO", "cluster")]))
    except AccessDenied:
        return False  # the server does not tell
    return bool(cast("dict[str, int]", info).get("cluster_enabled"))


def names(queue: AnyQueue) -> Iterator[list[str]]:
    """Walk through all keys on the server of `queue`; give for each call the names that are new, often none."""
    met: set[str] = set()
    for place in queue.run(reads.primaries(queue.talk)):
        cursor: str | None = reads.START
        while cursor is not None:
            cursor, found = queue.run(_scan(queue.talk, cursor, place))
            new = {*found} - met
            met |= new
            yield sorted(new)


async def every_name(queue: AnyAsyncQueue) -> AsyncIterator[str]:
    """Give all names of queues on the server of `queue`, for asyncio; a name may come twice."""
    for place in await queue.run(reads.primaries(queue.talk)):
        cursor: str | None = reads.START
        while cursor is not None:
            cursor, found = await queue.run(_scan(queue.talk, cursor, place))
            for name in found:
                yield name


def _scan(talk: Talk, cursor: str, place: Where) -> Flow[tuple[str | None, list[str]]]:
    # some keys of a node: where the walk goes on, None at its end, and the names that were met
    (reply,) = yield from sending.ask(talk, [("SCAN", cursor, "MATCH", _PATTERN, "COUNT", KEYS_A_CALL)], place)
    following, keys = reply
    matches = (_META.fullmatch(key) for key in keys)
    return reads.next_cursor(following), [match[1].decode() for match in matches if match]


def look(queue: AnyQueue, found: Iterable[str]) -> Iterator[Listed]:
    """Count the tasks of these queues, as `look_at` does, however many they are."""
    rest = iter(found)
    while part := list(islice(rest, QUEUES_A_FLUSH)):
        yield from queue.run(look_at(queue.talk, part))


def look_at(talk: Talk, found: Sequence[str]) -> Flow[list[Listed]]:
    """Count the tasks of these queues; a queue to which nothing was put, and which has no workers, is left out."""
    results: list[Stats | TimeoutqError] = []
    if talk.server.nodes:  # in a cluster, each queue has a slot of its own
        for name in found:
            results += yield from sending.settle(replace(talk, at=slot_of(name)), [Operations(name).stats()])
    else:
        results = yield from sending.settle(talk, [Operations(name).stats() for name in found])
    listed: list[Listed] = []
    for name, result in zip(found, results, strict=True):
        if is_sharded(result):
            shards = Shards(replace(talk, operations=Operations(name)))
            try:
                yield from shards.look()
                result = yield from looking.stats(shards)
            except TimeoutqError as error:
                result = error
        if isinstance(result, TimeoutqError):
            listed.append(Listed(name, None, str(result)))
        elif result.exists or result.workers:
            listed.append(Listed(name, result))
    return listed


def meant(queue: AnyQueue, name: str, seconds: float = 1.0) -> list[str]:
    """Give up to three names much like `name`, of those found within `seconds`; none if the server cannot be asked."""
    found: list[str] = []
    with suppress(TimeoutqError):  # a user who may not SCAN needs no message about that here
        found.extend(within(queue, seconds))
    return alike(name, found)


def alike(name: str, found: Iterable[str]) -> list[str]:
    """Give up to three of these names that are much like `name`; names of one or two letters are all alike."""
    lower = {one.lower(): one for one in found if one != name and min(len(one), len(name)) > 2}
    return [lower[one] for one in get_close_matches(name.lower(), lower, 3, ALIKE)]


def within(queue: AnyQueue, seconds: float) -> Iterator[str]:
    """Give the names that are found within so long."""
    until = time.monotonic() + seconds
    for page in names(queue):
        yield from page
        if time.monotonic() > until:
            return
