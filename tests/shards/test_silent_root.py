"""The node that hears the signs of life of a sharded queue's workers is away: work on the other nodes goes on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.rig.nodes import Cluster, frozen
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from tests.worker.working import until
from timeoutq import AsyncShardedQueue, Lease, ShardedQueue, Worker
from timeoutq.client.shards.route import key_of, route, tags
from timeoutq.server.cluster import slot_of
from timeoutq.words.model import Answer, Outcome

SHARDS = 6
LEASE = 3.0
"""Seconds: two thirds of a lease are less than a call to a silent node takes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries whose silence is not taken for death while a test runs."""
    with Cluster(3, 0, node_timeout_ms=60_000, binary=valkey()) as found:
        yield found


def elsewhere(cluster: Cluster, name: str) -> list[str]:
    """Give tasks whose shards are not on the node of the root."""
    root = cluster.primary_of(slot_of(name))
    home = {shard for shard, tag in enumerate(tags(name, SHARDS)) if cluster.primary_of(slot_of(tag)) is root}
    assert len(home) == 2
    return [task for i in range(60) if route(key_of((task := f"t{i}").encode()), SHARDS) not in home][:20]


@pytest.mark.breaking
def test_a_worker_keeps_its_leases_claims_and_stops_while_the_node_of_the_root_is_away(
    cluster: Cluster, name: str
) -> None:
    tasks = elsewhere(cluster, name)
    ran = Counter[str]()

    async def handler(lease: Lease) -> None:
        ran[lease.task] += 1
        await asyncio.sleep(3 * LEASE if lease.task in tasks[:10] else 0)

    async def work(worker: Worker) -> float:
        working = asyncio.create_task(worker.run())
        await until(lambda: len(ran) >= 10)
        with frozen(cluster.primary_of(slot_of(name))):
            began = time.monotonic()
            await until(lambda: set(tasks[10:]) <= ran.keys(), 20)
            late = time.monotonic() - began - LEASE
            await until(lambda: worker.tally.acked == 20, 30)
            began = time.monotonic()
            worker.stop()
            await working
            assert time.monotonic() - began < 4
        return late

    async def test() -> None:
        async with AsyncShardedQueue(name, cluster.url, shards=SHARDS, timeout=LEASE) as queue:
            await queue.put(tasks[:10])
            await queue.schedule(tasks[10:], after=LEASE)
            worker = Worker(queue, handler, concurrency=50, signals=False)
            assert await work(worker) < 3
            assert set(ran.values()) == {1}
            assert worker.tally.lost == 0

    asyncio.run(test())
    with ShardedQueue(name, cluster.url) as queue:
        wait_until(lambda: queue.stats().done == 20)
        assert queue.stats().counters.get("expired", 0) == 0
        queue.purge()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_leases_on_living_nodes_do_not_wait_for_the_long_deadline_of_a_silent_one(
    cluster: Cluster, name: str, kind: str
) -> None:
    async def extended(leases: list[Lease]) -> tuple[float, Outcome]:
        async with AsyncShardedQueue(name, cluster.url, timeout=LEASE, deadline=60.0) as queue:
            await queue.exists()
            with frozen(silent):
                began = time.monotonic()
                outcome = await queue.run(queue.flows.extension(leases))
                return time.monotonic() - began, outcome

    silent = cluster.primary_of(slot_of(tags(name, SHARDS)[0]))
    with ShardedQueue(name, cluster.url, shards=SHARDS, timeout=LEASE, deadline=60.0) as queue:
        queue.put(f"t{i}" for i in range(60))
        leases: list[Lease] = []
        while len(leases) < 60:
            leases += queue.claim(60)
        away = {shard for shard, tag in enumerate(tags(name, SHARDS)) if cluster.primary_of(slot_of(tag)) is silent}
        if kind == "async":
            took, outcome = asyncio.run(extended(leases))
        else:
            with frozen(silent):
                began = time.monotonic()
                outcome = queue.run(queue.flows.extension(leases))
                took = time.monotonic() - began
        assert took < LEASE / 2
        wanted = [Answer.UNANSWERED if lease.shard in away else Answer.OK for lease in leases]
        assert list(outcome) == wanted
        queue.purge()
