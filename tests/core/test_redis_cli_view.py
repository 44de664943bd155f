"""What anyone sees who looks at a queue with redis-cli while it runs: the keys of the design, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

REDIS_CLI = shutil.which("redis-cli")
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
