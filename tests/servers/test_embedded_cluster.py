"""The embedded cluster: it starts whole, outlives its nodes, keeps what it shall, and goes without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.rig.nodes import QUICK, Cluster, slot_of
from tests.rig.waiting import wait_until
from timeoutq.server import embedded_cluster
from timeoutq.server.embedded_cluster import ClusterNode, EmbeddedCluster
from timeoutq.words.errors import InvalidInput, MissingExtra, Unavailable

WITHOUT_REDIS = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on PATH")
BINARIES = [None, pytest.param("redis-server", marks=WITHOUT_REDIS)]
KEY = "{q}:words"


@pytest.fixture(scope="module", params=BINARIES, ids=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three primaries with a replica each; what they are changes from test to test, and they stay whole."""
    with Cluster(binary=request.param, node_timeout_ms=QUICK) as started:
        yield started


def primary_and_replica(cluster: Cluster) -> tuple[ClusterNode, ClusterNode]:
    """Give the nodes that have the key, with words in it."""
    primary = cluster.primary_of(slot_of(KEY))
    [replica] = cluster.replicas_of(primary)
    with cluster.client(primary) as client:
        client.delete(KEY)
        client.sadd(KEY, "a", "b")
        assert client.wait(1, 5000) == 1
    return primary, replica


def words(cluster: Cluster, node: ClusterNode) -> Any:
    return cluster.say(node, "SMEMBERS", KEY)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_gone(pid: int, folder: Path, kept: bool) -> bool:
    return not lives(pid) and folder.exists() == kept


# ---- whole


def test_it_is_whole_in_the_eyes_of_each_node_when_start_returns_and_leaves_nothing_behind() -> None:
    with Cluster(2, 3) as cluster:
        assert cluster.lacks() == ""
        assert cluster.url == f"redis+cluster://{','.join(node.place for node in cluster.nodes)}/"
        for node in cluster.nodes:
            one, two, *others = sorted(
                node.members(), key=lambda it: [other.port for other in cluster.nodes].index(it.port)
            )
            # equal parts, each in one piece, and the replicas go to the primaries in turn
            assert (one.slots, two.slots) == ((range(8192),), (range(8192, 16384),))
            assert [other.follows for other in others] == [one.id, two.id, one.id]
            assert b"cluster_state:ok" in node.ask("CLUSTER INFO")
        with cluster.client(cluster.nodes[0]) as client:
            client.set(next(key for key in "abcdef" if slot_of(key) < 8192), "1")
            assert client.wait(2, 5000) == 2
        folders = [node.directory or Path("/") for node in cluster.nodes]
        pids = [node.pid or 0 for node in cluster.nodes]
    assert not [folder for folder in folders if folder.exists()]
    assert not [pid for pid in pids if lives(pid)]


def test_it_is_whole_only_when_nothing_is_lacking_at_any_node(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "a" * 40, "b" * 40
    both = (
        f"{one} 127.0.0.1:10001@20001 master - 0 0 1 connected 0-16383\n"
        f"{two} 127.0.0.1:10002@20002 slave {one} 0 0 1 connected\n"
    )
    whole = {
        10001: f"cluster_state:ok\n{both}slave0:ip=127.0.0.1,port=10002,state=online,offset=7\n",
        10002: f"cluster_state:ok\n{both}master_link_status:up\n",
    }
    found = EmbeddedCluster(1, 1)
    for node, port in zip(found.nodes, whole, strict=True):
        node.port = port
    said = dict(whole)
    monkeypatch.setattr(ClusterNode, "ask", lambda self, *commands: said[self.port].encode())
    assert found.lacks() == ""
    view = "has no link to all nodes, or another view of them than the others"
    for port, word, instead, lack in [
        (10002, whole[10002], "", "10002 does not answer"),
        (10001, "slave a", "slave,fail? a", f"10001 {view}"),
        (10002, "master - 0 0 1 connected", "master - 0 0 1 disconnected", f"10002 {view}"),
        (10002, "0-16383", "0-16382", f"10002 {view}"),
        (10001, "cluster_state:ok", "cluster_state:fail", "10001 takes no commands"),
        (10002, "master_link_status:up", "master_link_status:down", "10002 has not yet what its primary has"),
        (10001, "state=online", "state=wait_bgsave", "10001 has no link to a replica"),
    ]:
        assert word in whole[port]
        said.update(whole | {port: whole[port].replace(word, instead)})
        assert found.lacks() == f"127.0.0.1:{lack}"
    said.update({port: text.replace("0-16383", "0-16382") for port, text in whole.items()})
    assert found.lacks() == "127.0.0.1:10001 knows no node for some slots"


def test_its_nodes_listen_on_loopback_and_their_ports_are_not_for_outgoing_connections(cluster: Cluster) -> None:
    ports = [port for node in cluster.nodes for port in (node.port or 0, node.bus)]
    assert len(set(ports)) == 12
    assert all(10_000 <= port < 32_768 for port in ports)
    assert [member.bus for member in cluster.members()] == [node.bus for node in cluster.nodes]
    for node in cluster.nodes:
        assert cluster.say(node, "CONFIG", "GET", "bind") == {b"bind": b"127.0.0.1"}


# ---- what happens to clusters


def test_the_slots_of_a_node_are_written_as_people_write_them() -> None:
    said = f"{'a' * 40} 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-5460 7000 [9->-{'b' * 40}]\n"
    (member,) = embedded_cluster.members(said)
    assert member.slot_words == "0-5460, 7000"


def test_a_replica_takes_over_from_a_primary_that_was_killed_and_the_primary_comes_back_as_a_replica(
    cluster: Cluster,
) -> None:
    primary, replica = primary_and_replica(cluster)
    port = primary.port
    primary.kill()
    assert cluster.lacks() == f"{primary.place} does not answer"
    with pytest.raises(Unavailable, match=f"{primary.place} has ended"):
        cluster.wait()
    cluster.succeeded(replica)
    assert words(cluster, replica) == {b"a", b"b"}
    cluster.say(replica, "SADD", KEY, "c")
    cluster.revive(primary)
    assert primary.port == port
    assert cluster.replicas_of(replica) == [primary]
    with cluster.client(primary) as client:
        client.readonly()
        assert client.smembers(KEY) == {b"a", b"b", b"c"}


# ---- what is kept


@pytest.mark.breaking
def test_a_cluster_that_is_kept_comes_back_with_its_data_its_ports_and_its_roles(tmp_path: Path) -> None:
    secret = 'canary "p@ss\\ wörd/'
    settings: dict[str, Any] = {"config": {"requirepass": secret}, "node_timeout_ms": QUICK}
    with Cluster(1, 1, tmp_path / "kept", **settings) as cluster:
        url = cluster.url
        assert url.startswith("redis+cluster://:canary%20%22p%40ss%5C%20w%C3%B6rd%2F@127.0.0.1:")
        primary, replica = primary_and_replica(cluster)
        for node in cluster.nodes:
            assert b"canary" not in Path(f"/proc/{node.pid}/cmdline").read_bytes()
        once = Retry(NoBackoff(), 0)
        with redis.Redis(port=primary.port or 0, retry=once) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        cluster.fail_over(replica)
        cluster.say(replica, "SADD", KEY, "c")
    with Cluster(1, 1, tmp_path / "kept", **settings) as again:
        assert again.url == url
        assert [bool(member.follows) for member in again.members()] == [True, False]
        assert words(again, again.primary_of(slot_of(KEY))) == {b"a", b"b", b"c"}
    with pytest.raises(InvalidInput, match="kept holds a cluster of 2 nodes: ask for the same, or take another"):
        EmbeddedCluster(3, 0, tmp_path / "kept").start()
    with pytest.raises(InvalidInput, match="kept holds a cluster of 1 primaries and 1 replicas: ask for the same"):
        EmbeddedCluster(2, 0, tmp_path / "kept", **settings).start()


def test_a_first_start_that_was_cut_short_is_made_good_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedCluster, "_attach", cut)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedCluster(1, 1, tmp_path).start()
    with EmbeddedCluster(1, 1, tmp_path) as cluster:
        one, two = cluster.members()
        assert (one.slots, two.follows) == ((range(16384),), one.id)


# ---- what goes wrong


def test_a_port_that_is_taken_is_not_used_and_one_that_is_needed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        taken = stranger.getsockname()[1]
        free = embedded_cluster._steady_port  # pyright: ignore[reportPrivateUsage]  # which chooses the ports
        ports = iter([taken, free(), free(), taken, free(), free()])
        monkeypatch.setattr(embedded_cluster, "_steady_port", lambda: next(ports))
        node = ClusterNode(None, {"cluster-enabled": True}, None)
        with node:
            assert taken not in (node.port, node.bus)
        assert list(ports) == []
        for own, bus in ((taken, free()), (free(), taken)):
            (tmp_path / "node-1").mkdir(exist_ok=True)
            (tmp_path / "node-1" / "nodes.conf").write_text(
                f"{'a' * 40} 127.0.0.1:{own}@{bus} myself,master - 0 0 1 connected 0-16383\n"
                "vars currentEpoch 1 lastVoteEpoch 0\n"
            )
            with pytest.raises(Unavailable) as caught:
                EmbeddedCluster(1, 0, tmp_path).start()
            assert str(caught.value) == f"port {taken} is in use: stop what listens there, or take another directory"


def test_a_node_that_does_not_start_ends_all_of_them() -> None:
    cluster = EmbeddedCluster(2, 0, config={"no-such-setting": 1})
    with pytest.raises(Unavailable, match=r"did not start; it said: \*\*\* FATAL CONFIG"):
        cluster.start()
    assert [(node.pid, node.directory) for node in cluster.nodes] == [(None, None)] * 2


def test_nodes_that_do_not_find_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_cluster, "JOIN_TIMEOUT", 0.3)
    cluster = EmbeddedCluster(1, 1)
    monkeypatch.setattr(ClusterNode, "bus", property(lambda _: 1))  # where nobody listens
    with pytest.raises(
        Unavailable, match=r"after 0.3 s 127.0.0.1:\d+ does not know 127.0.0.1:\d+, which it is to follow"
    ):
        cluster.start()
    assert not any(node.pid for node in cluster.nodes)


def test_bad_arguments_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for primaries, replicas in ((0, 3), (1, -1), (60, 60)):
        with pytest.raises(InvalidInput, match=f"{primaries} primaries and {replicas} replicas are no cluster"):
            EmbeddedCluster(primaries, replicas)
    with pytest.raises(InvalidInput, match="node_timeout_ms=5"):
        EmbeddedCluster(node_timeout_ms=5)
    with pytest.raises(InvalidInput, match="config= may not hold cluster-port"):
        EmbeddedCluster(config={"cluster-port": 5})
    with pytest.raises(Unavailable, match="before start"):
        _ = EmbeddedCluster().url
    with pytest.raises(Unavailable, match="no node of the embedded cluster answers"):
        EmbeddedCluster(1, 0).members()
    monkeypatch.setattr(metadata, "files", Mock(side_effect=metadata.PackageNotFoundError))
    with pytest.raises(MissingExtra, match=r"pip install 'timeoutq\[server\]'"):
        EmbeddedCluster().start()


PARENT = """
import os, signal, sys
from timeoutq.server.embedded_cluster import EmbeddedCluster
cluster = EmbeddedCluster(1, 1, sys.argv[1] or None).start()
for node in cluster.nodes:
    print(node.pid, node.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_goes_when_its_parent_is_killed(tmp_path: Path) -> None:
    parents = [
        subprocess.Popen(
            [sys.executable, "-c", PARENT, folder],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for folder in ("", str(tmp_path / "kept"))
    ]
    for parent, kept in zip(parents, (False, True), strict=True):
        said, _ = parent.communicate(timeout=60)
        assert parent.returncode == -signal.SIGKILL
        nodes = [line.split(" ", 1) for line in said.splitlines()]
        assert len(nodes) == 2
        for pid, folder in nodes:
            wait_until(partial(has_gone, int(pid), Path(folder), kept))
