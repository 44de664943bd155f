"""A queue of five shards through either face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.sharded import SHARDS, keys_of
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.names import tags


@pytest.fixture(params=["sync", "async"])
def queue(request: pytest.FixtureRequest, url: str, name: str, raw: Any) -> Iterator[Any]:
    """The same queue through either face; after the test each shard is sound, and a purge leaves no key."""
    kind: Any = ShardedQueue if request.param == "sync" else Blocking
    more = {} if request.param == "sync" else {"kind": AsyncShardedQueue}
    with kind(name, url, shards=SHARDS, timeout=5, **more) as opened:
        yield opened
        for tag in tags(name, SHARDS):
            check(url, tag)
        opened.purge()
        assert keys_of(raw, name) == set()
