"""What a sharded queue says when something cannot be had: which shards are concerned, what is true, and the cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.command import Say, say
from tests.rig.command import server as server
from timeoutq import (
    AsyncQueue,
    AsyncShardedQueue,
    Politeness,
    ShardedQueue,
    ShardsUnavailable,
    open_async_queue,
)
from timeoutq.client.shards.route import stem, tags

__all__ = ["say"]

TASKS = [f"https://h{number}.example/" for number in range(40)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A polite queue over four shards, on a server without replicas."""
    with ShardedQueue(name, url, shards=4, politeness=Politeness(delay=0.0)) as opened:
        yield opened
        opened.purge()


def make_durable(queue: ShardedQueue, raw: Any, shards: int = 4) -> None:
    """Make shards durable, as they are when their replicas went away later."""
    for tag in tags(queue.name, 4)[:shards]:
        meta = f"{stem(tag)}meta"
        raw.hset(meta, mapping={"uses": f"{raw.hget(meta, 'uses') or ''} durable".strip(), "durable": "1"})


def test_shards_that_no_replica_confirms_did_answer(queue: ShardedQueue, raw: Any, url: str) -> None:
    queue.put(TASKS)
    make_durable(queue, raw, 2)
    with ShardedQueue(queue.name, url, deadline=3) as newcomer, pytest.raises(ShardsUnavailable) as met:
        newcomer.put(TASKS)
    said = str(met.value)
    assert said.startswith(f"shards 0, 1 of queue {queue.name}: no replica has confirmed it, and 2 others had no such")
    assert "did not answer" not in said
    assert "call again" not in said  # the error of the shard has its own words for that
    assert set(met.value.shards) == {0, 1}


def test_pull_is_refused_on_a_durable_queue_that_has_no_ready_task(queue: ShardedQueue, raw: Any, say: Say) -> None:
    queue.put("a")
    queue.ack(queue.claim())
    make_durable(queue, raw)
    refused = say("pull", queue.name)
    assert (refused.code, "durable" in refused.err) == (2, True)


async def test_an_asyncio_queue_is_opened_by_await_or_by_async_with(url: str, name: str) -> None:
    async with open_async_queue(name, url, shards=4) as queue:
        assert isinstance(queue, AsyncShardedQueue)
        await queue.put("a")
    again = await open_async_queue(name, url)
    assert isinstance(again, AsyncShardedQueue)
    await again.purge()
    await again.close()
    async with await open_async_queue(name, url) as plain:
        assert isinstance(plain, AsyncQueue)
