"""A queue on a real cluster: each face finds the node of the queue, and follows the queue from node to node."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.rig.command import Say, say
from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.nodes import QUICK, Cluster
from tests.rig.replication import Load
from tests.rig.servers import redis_server, valkey
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.gateway.tokens import TokenBook, Tokens
from timeoutq.server.cluster import slot_of
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.embedded_cluster import ClusterNode
from timeoutq.verbs.sending import Flow, Nodes
from timeoutq.watch import directory
from timeoutq.watch import nodes as examined
from timeoutq.watch.doctor import Finding
from timeoutq.words.errors import AccessDenied, InvalidInput, NotReplicated, Unavailable

__all__ = ["say"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries, each with a replica."""
    with Cluster(3, 3, node_timeout_ms=QUICK, binary=valkey()) as found:
        yield found


@pytest.fixture
def queue(cluster: Cluster, name: str) -> Iterator[Any]:
    """A queue on the cluster."""
    with Queue(name, cluster.url, timeout=30, deadline=20.0) as found:
        yield found
        found.purge()


def place(cluster: Cluster, queue: Any) -> ClusterNode:
    """Give the node that has the queue."""
    return cluster.primary_of(slot_of(queue.name))


def another(cluster: Cluster, queue: Any) -> ClusterNode:
    """Give a primary that does not have the queue."""
    return next(node for node in cluster.primary_nodes() if node is not place(cluster, queue))


def finding(findings: list[Finding], check: str) -> Finding:
    """Give what doctor has found in one check."""
    return next(one for one in findings if one.check == check)


@pytest.mark.parametrize("face", [Queue, Blocking])
def test_a_task_goes_its_way_and_follows_its_slot_through_either_face(cluster: Cluster, name: str, face: Any) -> None:
    with face(name, cluster.url, timeout=30, deadline=20.0) as queue:
        assert queue.put("a", "b").counts() == {"added": 2}
        leases = queue.claim(2)
        assert {lease.task for lease in leases} == {"a", "b"}
        slot = slot_of(name)
        cluster.move(range(slot, slot + 1), another(cluster, queue))
        queue.ack(leases[0])
        queue.fail(leases[1], "no", retry_in=500)
        assert (queue.stats().done, queue.stats().scheduled) == (1, 1)
        assert queue.claim(wait=0.1) == []
        queue.purge()


def test_calls_follow_the_slot_when_it_moves_whole(cluster: Cluster, queue: Any) -> None:
    queue.put(f"t{i}" for i in range(20))
    lease = queue.claim()[0]
    slot, there = slot_of(queue.name), another(cluster, queue)
    cluster.move(range(slot, slot + 1), there)
    queue.ack(lease)
    assert queue.put("after").counts() == {"added": 1}
    assert queue.stats().known == 21
    assert place(cluster, queue) is there


@pytest.mark.parametrize("way", ["key by key", "whole"])
def test_a_queue_moves_under_load_and_loses_nothing_and_does_nothing_twice(
    cluster: Cluster, name: str, way: str
) -> None:
    with Load(name, cluster.url) as load, Queue(name, cluster.url) as queue:

        def get_on() -> None:
            since = time.monotonic()
            wait_until(lambda: load.errors or (load.confirmed(since) > 10 and load.acked(since) > 10), 30)

        get_on()
        slot, there = slot_of(name), another(cluster, queue)
        if way == "whole":
            cluster.move(range(slot, slot + 1), there)
        else:
            cluster.move_by_keys(slot, there)
        get_on()
        load.drain()
        assert load.errors == []
        assert place(cluster, queue) is there
        accepted = [task for put in (*load.durable, *load.plain) if not put.error for task in put.tasks]
        assert set(queue.states(accepted)) == {"done"}
        again = sum(n - 1 for n in Counter(held.lease.task for held in load.held).values())
        assert again <= queue.stats().counters.get("expired", 0)
        check(there.url, name)
        queue.purge()


def test_a_replica_that_takes_over_in_order_is_found_at_once(cluster: Cluster, queue: Any) -> None:
    queue.put("a")
    (lease,) = queue.claim()
    (replica,) = cluster.replicas_of(place(cluster, queue))
    cluster.fail_over(replica)
    began = time.monotonic()
    queue.ack(lease)
    assert time.monotonic() - began < 2
    assert queue.stats().done == 1
    assert place(cluster, queue) is replica


def test_a_killed_primary_is_waited_for_until_its_replica_takes_over(cluster: Cluster, queue: Any) -> None:
    queue.put("a", durable=1)
    killed = place(cluster, queue)
    killed.kill()
    try:
        assert queue.put("b").counts() == {"added": 1}
        assert queue.stats().todos == 2
    finally:
        cluster.revive(killed)


def test_a_call_that_nobody_can_answer_names_the_node_and_the_slot(cluster: Cluster, name: str) -> None:
    with Queue(name, cluster.url, deadline=0.6) as queue:
        queue.put("a", durable=1)
        killed = place(cluster, queue)
        killed.kill()
        try:
            with pytest.raises(Unavailable, match=rf"node {killed.place}, slot {slot_of(name)}"):
                queue.put("b")
        finally:
            cluster.revive(killed)
        queue.purge()


def test_who_waits_for_a_task_hears_the_bell_at_the_new_node(cluster: Cluster, queue: Any) -> None:
    queue.put("first")
    queue.ack(queue.claim()[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, 1, wait=20.0)
        here = cluster.client(place(cluster, queue))
        while not here.info("clients")["blocked_clients"]:
            time.sleep(0.005)
        slot = slot_of(queue.name)
        cluster.move(range(slot, slot + 1), another(cluster, queue))
        there = cluster.client(place(cluster, queue))
        while not there.info("clients")["blocked_clients"]:
            time.sleep(0.005)
        with Queue(queue.name, cluster.url) as other:
            other.put("second")
        (lease,) = waiting.result(5)
    assert lease.task == "second"


def test_replicas_are_counted_at_the_node_of_the_queue_alone(cluster: Cluster, queue: Any) -> None:
    """Three primaries have a replica each; together they would confirm a task three times."""
    assert queue.put("a", durable=1).counts() == {"added": 1}
    with Queue(queue.name, cluster.url, deadline=3.0) as hasty, pytest.raises(NotReplicated, match="only 1 of 2"):
        hasty.put("b", durable=2)


def test_the_queues_of_all_nodes_are_listed(cluster: Cluster) -> None:
    names = sorted(f"list-{number}" for number in range(9))
    queues = [Queue(name, cluster.url) for name in names]
    for each in queues:
        each.put("x")
    with Queue("any", cluster.url) as looking:
        assert directory.size(looking) >= 9
        found = sorted(name for page in directory.names(looking) for name in page)
        assert [name for name in found if name.startswith("list-")] == names
        assert [listed.stats.todos for listed in directory.look(looking, names) if listed.stats] == [1] * 9
    for each in queues:
        each.purge()
        each.close()


# ---- what cannot be used


def test_a_plain_url_of_a_node_is_answered_with_what_to_write(cluster: Cluster, name: str) -> None:
    with Queue(name, cluster.url) as found:
        here = place(cluster, found)
    for node in cluster.primary_nodes():
        if node is not here:
            with Queue(name, node.url) as queue, pytest.raises(InvalidInput, match=r"write redis\+cluster://"):
                queue.put("a")


def test_what_looks_at_all_queues_of_a_node_says_that_the_node_is_not_alone(
    cluster: Cluster, name: str, say: Say
) -> None:
    with Queue(name, cluster.url) as found:
        here = place(cluster, found)
        found.put("a")
        listed = say("queues", "--url", cluster.primary_of(slot_of("queues")).url)  # the other nodes refuse to list
        assert "one node of a cluster" in listed.err
        assert "write redis+cluster://" in listed.err
        found_out = say("doctor", name, "--url", here.url)
        assert found_out.code == 1
        assert "cluster\tred\tthis is one node of a cluster" in found_out.out
        for command in (["queues"], ["doctor", name]):
            whole = say(*command, "--url", cluster.url)
            assert (whole.code, "one node" in whole.out + whole.err) == (0, False)
        found.purge()


def test_a_single_server_is_no_cluster(name: str) -> None:
    with EmbeddedServer(binary=valkey()) as server:
        with Queue(name, f"redis+cluster://127.0.0.1:{server.port}") as queue:
            began = time.monotonic()
            with pytest.raises(InvalidInput, match="is a single server, not a cluster: write redis://"):
                queue.put("a")
            assert time.monotonic() - began < 1


def test_a_client_of_redis_py_for_clusters_is_refused_with_the_cure(name: str) -> None:
    class RedisCluster:
        pass

    with pytest.raises(InvalidInput, match=r"not RedisCluster; a cluster goes by its URL, redis\+cluster://"):
        Queue(name, client=RedisCluster())


@pytest.mark.parametrize("face", [Queue, Blocking])
def test_twelve_silent_nodes_keep_a_caller_no_longer_than_its_deadline(name: str, face: Any) -> None:
    with ExitStack() as silent:
        ports = [silent.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(12)]
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with face(name, url, deadline=2.0) as queue:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                queue.put("a")
            assert time.monotonic() - began < 3


def test_a_user_who_may_not_ask_for_the_map_is_told_so_at_once(cluster: Cluster, name: str) -> None:
    for node in cluster.nodes:
        cluster.client(node).execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-cluster")
    with Queue(name, f"redis+cluster://blind:pw@{cluster.nodes[0].place}") as queue:
        began = time.monotonic()
        with pytest.raises(AccessDenied, match="cluster") as told:
            queue.put("a")
        assert time.monotonic() - began < 1
        assert "pw" not in str(told.value).replace("***", "")
        assert "let an operator run: ACL SETUSER blind +cluster|slots" in str(told.value)


ENDPOINTS = {
    "ip": ("ip", "", "127.0.0.1"),
    "hostname": ("hostname", "localhost", "localhost"),
    "hostname without a hostname": ("hostname", "", "127.0.0.1"),
    "unknown-endpoint": ("unknown-endpoint", "", "localhost"),
    "unknown-endpoint with a hostname": ("unknown-endpoint", "localhost", "localhost"),
}
"""What the nodes are told to call each other, their hostname, and the host at which a client then finds them."""


@pytest.fixture(scope="module", params=["valkey", "redis"])
def naming(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three primaries that are told how to name nodes."""
    binary = valkey() if request.param == "valkey" else redis_server()
    with Cluster(3, 0, node_timeout_ms=QUICK, binary=binary) as found:
        yield found


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_nodes_are_found_however_the_cluster_names_them(naming: Cluster, name: str, endpoint: str) -> None:
    kind, hostname, host = ENDPOINTS[endpoint]
    for node in naming.nodes:
        naming.say(node, "CONFIG", "SET", "cluster-announce-hostname", hostname)
        naming.say(node, "CONFIG", "SET", "cluster-preferred-endpoint-type", kind)
    heard = {"hostname": hostname or "?", "ip": "127.0.0.1"}.get(kind)
    wait_until(lambda: all(_hosts(naming, node) == {heard} for node in naming.nodes))
    with Queue(name, f"redis+cluster://localhost:{naming.nodes[0].port}", deadline=20.0) as queue:
        for _ in range(3):
            queue.put("a", again=True)
            queue.ack(queue.claim())
            slot = slot_of(queue.name)
            naming.move_by_keys(slot, another(naming, queue))  # the next call is told of the node by MOVED
        found = queue.run(_nodes())
        assert found == {(host, node.port): True for node in naming.nodes}
        queue.purge()


def _hosts(cluster: Cluster, node: ClusterNode) -> set[str | None]:
    """Give what a node calls the nodes in its map."""
    with cluster.client(node) as client:
        client.response_callbacks.clear()
        found = client.execute_command("CLUSTER SLOTS")
    return {host and host.decode() for _, _, (host, *_) in found}


def _nodes() -> Flow[Any]:
    return (yield Nodes())


# ---- doctor


def test_doctor_finds_nothing_wrong_with_a_whole_cluster(cluster: Cluster, name: str) -> None:
    with Queue(name, cluster.url) as queue:
        findings = examined.examine(queue)
    assert [(one.check, one.verdict) for one in findings] == [
        ("nodes", "green"), ("coverage", "green"), ("replicas", "green"), ("clocks", "green"),
    ]  # fmt: skip


def test_doctor_names_nodes_that_are_down_and_primaries_that_are_alone(cluster: Cluster, name: str) -> None:
    with Queue(name, cluster.url) as queue:
        killed = place(cluster, queue)
        (replica,) = cluster.replicas_of(killed)
        killed.kill()
        try:
            cluster.succeeded(replica)
            findings = examined.examine(queue)
            assert f"takes {killed.place} for failed" in finding(findings, "nodes").found
            assert finding(findings, "replicas").found.startswith(f"{replica.place} without a replica")
            assert finding(findings, "coverage").verdict == "green"
        finally:
            cluster.revive(killed)


def test_doctor_names_a_policy_that_evicts_and_reads_of_old_counts(cluster: Cluster, name: str) -> None:
    node = cluster.nodes[0]
    client = cluster.client(node)
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("cluster-allow-reads-when-down", "yes")
    try:
        with Queue(name, cluster.url, allow_eviction=True) as queue:
            findings = examined.examine(queue)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("cluster-allow-reads-when-down", "no")
    assert finding(findings, "eviction").found.startswith(f"{node.place} may throw tasks away")
    assert finding(findings, "reads").found.startswith(f"{node.place} answers reads")


async def test_tokens_of_the_gateway_have_a_slot_of_their_own(cluster: Cluster) -> None:
    with TokenBook(cluster.url) as book:
        book.revoke("ci")
        secret, made = book.new("ci", queues=["crawl*"], allow=["put"])
        tokens = Tokens(cluster.url)
        assert await tokens.look_up(secret) == made
        assert book.revoke("ci")
        await tokens.close()
        assert "ci" not in {token.name for token in book.table().by_digest.values()}
