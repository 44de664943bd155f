"""Servers and queues for the tests: a real Valkey and a real Redis, each started once by the tests and ended by pid."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from tests.invariants import check
from tests.rig.faces import Blocking
from timeoutq import Queue
from timeoutq.embedded import EmbeddedServer

REDIS = shutil.which("redis-server")
_numbers = count(1)


@pytest.fixture(scope="session", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """One server a session, of each kind."""
    if request.param == "redis":
        if REDIS is None:
            pytest.skip("no redis-server on this machine: apt-get install redis-server")
        started = EmbeddedServer(binary=REDIS)
    else:
        started = EmbeddedServer()
    with started:
        yield started


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """Where the server is; it is empty."""
    with redis.Redis.from_url(server.url) as raw:
        raw.flushall()
        raw.config_set("maxmemory", "0")
    return server.url


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at the keys as anyone can."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
def queue(url: str, name: str) -> Iterator[Queue]:
    """A queue; after the test its invariants must hold, and a purge must leave no key."""
    with Queue(name, url, timeout=5) as opened:
        yield opened
        check(url, name)
        opened.purge()
        with redis.Redis.from_url(url) as client:
            assert list(client.scan_iter(f"timeoutq:{{{name}}}:*")) == []


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, url: str, name: str) -> Iterator[Any]:
    """The same queue through either face; after the test its invariants must hold, and a purge must leave no key."""
    kind: Any = Queue if request.param == "sync" else Blocking
    with kind(name, url, timeout=5) as opened:
        yield opened
        check(url, name)
        opened.purge()
        with redis.Redis.from_url(url) as client:
            assert list(client.scan_iter(f"timeoutq:{{{name}}}:*")) == []
