"""A queue of five shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.invariants import check
from tests.rig.sharded import SHARDS, keys_of
from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.route import tags


@pytest.fixture
def queue(url: str, name: str, raw: Any) -> Iterator[Any]:
    """A queue through the face that blocks: both faces carry out the same flows.

    After the test each shard is sound, and a purge leaves no key.
    """
    with ShardedQueue(name, url, shards=SHARDS, timeout=5) as opened:
        yield opened
        for tag in tags(name, SHARDS):
            check(url, tag)
        opened.purge()
        assert keys_of(raw, name) == set()
