"""The embedded cluster: it starts whole, survives what happens to clusters, and goes without a trace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.nodes import QUICK, Cluster, Move, slot_of
from tests.rig.waiting import wait_until
from timeoutq import embedded_cluster
from timeoutq.embedded_cluster import EmbeddedCluster
from timeoutq.errors import InvalidInput, Unavailable

WITHOUT_REDIS = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on PATH")
BINARIES = [None, pytest.param("redis-server", marks=WITHOUT_REDIS)]
SECRET = 'canary "p@ss\\ wörd/'


@pytest.fixture(scope="module", params=BINARIES, ids=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three primaries and three replicas, whose roles change; after each test they are whole."""
    with Cluster(binary=request.param, node_timeout_ms=QUICK) as started:
        yield started


@pytest.fixture
def valkeys(cluster: Cluster) -> Cluster:
    if b"valkey_version" not in cluster.nodes[0].ask("INFO server"):
        pytest.skip("only Valkey moves slots at once")
    return cluster


def sizes(cluster: Cluster) -> list[int]:
    return [sum(map(len, member.slots)) for member in cluster.members()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def connect(cluster: EmbeddedCluster) -> Any:
    first = cluster.nodes[0]
    return redis.RedisCluster.from_url(first.url.removesuffix("/0"), decode_responses=True)


# ---- whole


def test_it_is_whole_for_each_of_its_nodes_when_start_returns() -> None:
    began = time.monotonic()
    with Cluster(2, 3) as cluster:
        assert time.monotonic() - began < 20
        assert cluster.lacks() == ""
        assert cluster.url == f"redis+cluster://{','.join(node.place for node in cluster.nodes)}/"
        one, two, *others = cluster.members()
        # equal parts in one piece each, and the replicas go to the primaries in turn
        assert (one.slots, two.slots) == ((range(8192),), (range(8192, 16384),))
        assert [other.follows for other in others] == [one.id, two.id, one.id]
        for node in cluster.nodes:
            assert b"cluster_state:ok" in node.ask("CLUSTER INFO")
            assert node.ask("CLUSTER COUNT-FAILURE-REPORTS " + one.id) == b":0\r\n"
        # what is written is with a replica at once
        for slot, followers in ((slot_of("a"), None), (slot_of("b"), None)):
            node = cluster.primary_of(slot)
            with cluster.client(node) as client:
                key = "a" if slot == slot_of("a") else "b"
                client.set(key, "1")
                assert client.wait(len(cluster.replicas_of(node)), 5000) == len(cluster.replicas_of(node)), followers
        folders = [node.directory for node in cluster.nodes]
        pids = [node.pid or 0 for node in cluster.nodes]
    assert not [folder for folder in folders if folder is None or folder.exists()]
    assert not [pid for pid in pids if lives(pid)]
    assert cluster.lacks() != ""
