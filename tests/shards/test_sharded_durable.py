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
from timeoutq import AsyncQueue, Lease, Queue, ShardsUnavailable, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue, open_async_queue, open_queue
from timeoutq.client.shards.names import tags
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


def test_who_makes_a_durable_queue_waits_from_then_on(cluster: Cluster, name: str) -> None:
    with ShardedQueue(name, cluster.url, shards=SHARDS, durable=1) as queue:
        assert queue.claim() == []
        assert waits(cluster, lambda: queue.put("a")) >= 1
        assert waits(cluster, lambda: queue.claim()) >= 1
        queue.purge()


def test_a_claim_and_an_ack_of_a_new_worker_wait_for_replicas(cluster: Cluster, durable: str) -> None:
    async def work() -> None:
        async with await open_async_queue(durable, cluster.url) as queue:
            assert isinstance(queue, AsyncShardedQueue)
            await Worker(queue, handler, burst=True, signals=False).run()

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0)

    assert waits(cluster, lambda: asyncio.run(work())) >= 2 * SHARDS


def test_each_first_call_of_a_client_of_a_plain_queue_waits_for_replicas(cluster: Cluster, name: str) -> None:
    def opened() -> Queue:
        return Queue(name, cluster.url)

    async def put() -> None:
        async with AsyncQueue(name, cluster.url) as queue:
            await queue.put("c")

    with Queue(name, cluster.url, durable=1) as queue:
        queue.put("a")
        leases: list[Lease] = []
        assert waits(cluster, one(opened, lambda queue: queue.put("b"))) >= 2
        assert waits(cluster, lambda: asyncio.run(put())) >= 2
        assert waits(cluster, one(opened, lambda queue: leases.extend(queue.claim(2)))) >= 2
        assert waits(cluster, one(opened, lambda queue: queue.ack(leases))) >= 2
        queue.purge()


def test_doctor_names_the_shards_that_stand_still_without_a_replica(cluster: Cluster, say: Say, durable: str) -> None:
    primary = cluster.primary_of(slot_of(tags(durable, SHARDS)[5]))
    here = shards_on(cluster, primary, durable)
    assert 2 < len(here) < SHARDS
    with a_replica_away(cluster, primary):
        done = say("doctor", durable)
    assert done.code == 1
    (found,) = [line[2] for line in done.lines if line[:2] == ["replicas", "red"]]
    assert found.startswith(f"{primary.place}: 0 replicas; the queue is durable=1")
    assert found.endswith(f": shards {', '.join(map(str, here))} stand still")
    assert say("doctor", durable).code == 0


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


def test_a_queue_that_is_there_stays_as_it_is_if_it_cannot_be_durable(cluster: Cluster, name: str) -> None:
    with ShardedQueue(name, cluster.url, shards=SHARDS) as queue:
        queue.put("a")
        with (
            a_replica_away(cluster, cluster.primary_of(slot_of(tags(name, SHARDS)[5]))),
            pytest.raises(ShardsUnavailable),
        ):
            queue.configure(durable=1)
        assert (
            waits(cluster, one(lambda: ShardedQueue(name, cluster.url), lambda other: other.put(map(str, range(40)))))
            == 0
        )
        queue.purge()


def test_who_passes_the_setting_that_a_queue_has_opens_the_queue_while_a_replica_is_away(
    cluster: Cluster, durable: str
) -> None:
    primary = cluster.primary_of(slot_of(tags(durable, SHARDS)[5]))
    with a_replica_away(cluster, primary), ShardedQueue(durable, cluster.url, durable=1) as queue:
        assert queue.stats().known == 40
