"""What anyone sees who looks at a queue with redis-cli while it runs: the keys of the design, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.crc import key_slot

from tests.rig.waiting import wait_until
from timeoutq.verbs import sending

REDIS_CLI = shutil.which("redis-cli")
KEYS = {
    "todos": "set",
    "in_progress": "set",
    "done": "set",
    "failed": "set",
    "scheduled": "zset",
    "leases": "zset",
    "owners": "hash",
    "payload": "hash",
    "attempts": "hash",
    "crashes": "hash",
    "errors": "hash",
    "traces": "hash",
    "trace_uses": "hash",
    "trace_texts": "hash",
    "trace_at": "zset",
    "releases": "hash",
    "error_log": "list",
    "bell": "list",
    "alarm": "stream",
    "calls": "zset",
    "runtime": "hash",
    "meta": "hash",
    "stats": "hash",
    "history": "list",
    "minutes": "list",
    "hours": "list",
    "kinds": "hash",
    "kind_of": "zset",
}
Cli = Callable[..., list[str]]


def raised() -> ValueError:
    """Give an exception that has been raised."""
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


@pytest.fixture
def cli(url: str) -> Cli:
    """Run a command with redis-cli; the lines that it prints."""
    if REDIS_CLI is None:
        pytest.skip("no redis-cli on this machine: apt-get install redis-tools")
    server = urlsplit(url)
    # the password goes by the environment: all users can read the arguments of a program
    program = [REDIS_CLI, "-h", str(server.hostname), "-p", str(server.port)]
    environment = {**os.environ, "REDISCLI_AUTH": server.password or ""}

    def run(*words: object) -> list[str]:
        done = subprocess.run(
            [*program, *map(str, words)], env=environment, capture_output=True, text=True, check=True, timeout=20
        )
        return [line for line in done.stdout.splitlines() if line]

    return run


def test_each_task_is_a_member_of_the_set_that_names_its_state(face: Any, cli: Cli) -> None:
    key = f"timeoutq:{{{face.name}}}:"
    face.put("https://a.example/", "https://b.example/", "https://c.example/")
    leases = {lease.task: lease for lease in face.claim(3)}
    face.ack(leases["https://a.example/"])
    face.fail(leases["https://b.example/"], "gone", give_up=True)
    face.put("https://d.example/")
    assert cli("SMEMBERS", key + "todos") == ["https://d.example/"]
    assert cli("SMEMBERS", key + "in_progress") == ["https://c.example/"]
    assert cli("SMEMBERS", key + "done") == ["https://a.example/"]
    assert cli("SMEMBERS", key + "failed") == ["https://b.example/"]


def test_the_lock_names_the_holder_and_its_ttl_is_the_lease(face: Any, cli: Cli) -> None:
    key = f"timeoutq:{{{face.name}}}:"
    face.put("a")
    (lease,) = face.claim(timeout=100)
    assert cli("GET", key + "lock:a") == [lease.token] == cli("HGET", key + "owners", "a")
    assert 98 <= int(cli("TTL", key + "lock:a")[0]) <= 100
    assert float(cli("ZSCORE", key + "leases", "a")[0]) == round(lease.deadline * 1000)
    face.extend(lease, 1000)
    assert 998 <= int(cli("TTL", key + "lock:a")[0]) <= 1000
    face.ack(lease)
    assert cli("EXISTS", key + "lock:a") == ["0"]


def test_all_keys_are_the_designs_in_one_slot_and_of_the_types_it_says(face: Any, cli: Cli) -> None:
    key = f"timeoutq:{{{face.name}}}:"
    face.put({f"t{i}": {"n": i} for i in range(12)})
    face.run(sending.answer(face.talk, face.operations.plan(10_000)))  # a cleaner has looked, and is to be woken
    face.fail(face.claim(2), "no", give_up=True)
    face.fail(face.claim(2), raised(), retry_in=60)
    face.ack(face.claim(2))
    face.claim(1, timeout=0.02)
    wait_until(face.requeue_expired)
    face.claim(2, timeout=600, max_runtime=600)
    face.run(sending.answers(face.talk, face.operations.release(face.claim(1), most=100)))
    found = set(cli("--scan", "--pattern", "timeoutq:*"))
    locks = {name for name in found if name.startswith(key + "lock:")}
    assert len(locks) == 2
    assert {name.removeprefix(key) for name in found - locks} == set(KEYS)
    for name in found:
        assert cli("TYPE", name) == [KEYS.get(name.removeprefix(key), "string")]
    assert len({key_slot(name.encode()) for name in found}) == 1
    ttls = {name: int(cli("PTTL", name)[0]) for name in found}
    assert all((ttl > 0) == (name in locks) for name, ttl in ttls.items()), "only locks end by themselves"
