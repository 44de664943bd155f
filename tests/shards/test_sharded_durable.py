"""Durable queues over several shards on a cluster whose nodes have replicas, which are there, or are away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.rig.command import Say, say
from tests.rig.nodes import Cluster
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import Lease, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue, open_async_queue, open_queue
from timeoutq.client.shards.route import tags
from timeoutq.server.cluster import slot_of
from timeoutq.server.embedded_cluster import ClusterNode

__all__ = ["say"]

SHARDS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each; none takes over while a test runs."""
    with Cluster(3, 3, node_timeout_ms=60_000, binary=valkey()) as found:
        yield found


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.url


def waits(cluster: Cluster, act: Callable[[], object]) -> int:
    """Say how many WAIT the primaries got; a client that knows the setting tries one before its first call."""

    def got() -> int:
        found = 0
        for node in cluster.primary_nodes():
            with cluster.client(node) as client:
                found += int(client.info("commandstats").get("cmdstat_wait", {}).get("calls", 0))
        return found

    before = got()
    act()
    return got() - before


@contextmanager
def a_replica_away(cluster: Cluster, primary: ClusterNode) -> Iterator[None]:
    """Kill a replica with -9, and start it again in the end."""
    (replica,) = cluster.replicas_of(primary)
    replica.kill()
    try:
        wait_until(lambda: b"connected_slaves:0" in primary.ask("INFO replication"))
        yield
    finally:
        cluster.revive(replica)
        wait_until(lambda: b"state=online" in primary.ask("INFO replication"), 30)


def shards_on(cluster: Cluster, primary: ClusterNode, name: str) -> list[int]:
    return [shard for shard, tag in enumerate(tags(name, SHARDS)) if cluster.primary_of(slot_of(tag)) is primary]


@pytest.fixture
def durable(cluster: Cluster, name: str) -> Iterator[str]:
    with ShardedQueue(name, cluster.url, shards=SHARDS, durable=1) as queue:
        queue.put(f"t{i}" for i in range(40))
        yield name
        queue.purge()


def one(make: Callable[[], Any], act: Callable[[Any], object]) -> Callable[[], object]:
    """Do something with a client that has never asked its servers anything."""

    def acted() -> object:
        with make() as queue:
            return act(queue)

    return acted


def test_each_first_call_of_a_client_waits_for_replicas(cluster: Cluster, say: Say, durable: str) -> None:
    def opened() -> Any:
        return open_queue(durable, cluster.url)

    nodes = len(cluster.primary_nodes())
    numbers = b"".join(b"%d\n" % i for i in range(40))
    assert waits(cluster, lambda: say("put", durable, stdin=numbers)) >= nodes
    assert waits(cluster, one(opened, lambda queue: queue.put(str(i) for i in range(50, 90)))) >= nodes
    leases: list[Lease] = []
    assert waits(cluster, one(opened, lambda queue: leases.extend(queue.claim(70)))) >= 2
    assert waits(cluster, one(opened, lambda queue: queue.ack(leases))) >= 2
    assert waits(cluster, one(opened, lambda queue: leases.extend(queue.claim(1)))) >= 1
    assert waits(cluster, one(opened, lambda queue: queue.ack(leases[-1]))) >= 1


def test_a_claim_and_an_ack_of_a_new_worker_wait_for_replicas(cluster: Cluster, durable: str) -> None:
    async def work() -> None:
        async with await open_async_queue(durable, cluster.url) as queue:
            assert isinstance(queue, AsyncShardedQueue)
            await Worker(queue, handler, burst=True, signals=False).run()

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0)

    assert waits(cluster, lambda: asyncio.run(work())) >= 2 * SHARDS


@pytest.mark.breaking
def test_a_queue_that_cannot_be_durable_is_not_made(cluster: Cluster, say: Say, name: str) -> None:
    primary = cluster.primary_of(slot_of(tags(name, SHARDS)[5]))
    here = ", ".join(map(str, shards_on(cluster, primary, name)))
    with a_replica_away(cluster, primary):
        done = say("configure", name, "--shards", SHARDS, "--durable", 1)
    assert done.code == 3
    assert f"shards {here} of queue {name}: no replica has confirmed it, and " in done.err
    assert "nothing was written: the server has 0 replicas" in done.err
    for node in cluster.primary_nodes():
        with cluster.client(node) as client:
            assert [key for key in client.keys("timeoutq:*") if f"{{{name}" in key.decode()] == []


def test_who_passes_the_setting_that_a_queue_has_opens_the_queue_while_a_replica_is_away(
    cluster: Cluster, durable: str
) -> None:
    primary = cluster.primary_of(slot_of(tags(durable, SHARDS)[5]))
    with a_replica_away(cluster, primary), ShardedQueue(durable, cluster.url, durable=1) as queue:
        assert queue.stats().known == 40
