"""The servers of the rig: which binaries there are, and how one is started with a shim or another environment."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from timeoutq.server.embedded import find_binary

REDIS = shutil.which("redis-server")


def valkey() -> str:
    return find_binary(None)


def redis_server() -> str:
    """Give the path of the Redis server; the test is skipped where there is none."""
    if REDIS is None:
        pytest.skip("no redis-server on this machine: apt-get install redis-server")
    return REDIS


def binary_of(kind: str) -> str:
    """Give the path of the server of this kind, valkey or redis; the test is skipped where there is none."""
    return redis_server() if kind == "redis" else valkey()


def wrapped(binary: str, environment: Mapping[str, str], folder: Path) -> Path:
    """Write a program that becomes the server, in an environment of its own; for `EmbeddedServer(binary=…)`."""
    script = folder / f"server-{len(list(folder.glob('server-*.sh')))}.sh"
    settings = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    script.write_text(f'#!/bin/sh\nexec env {settings} {shlex.quote(binary)} "$@"\n')
    script.chmod(0o755)
    return script
