"""Which shard a task belongs to: route v1. Pure. Never change it, for queues live on; a test compares its results.

A task is routed by its group; without a group, by the host of its URL; without a host, by its id. So all tasks of a
host are in one shard, and politeness to the host is exact. The host has the name that a polite queue gives it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from timeoutq.words.hostname import host_of

By = Literal["host", "id"]
"""What tasks are routed by: the group or the host, or the id alone."""


def route(key: bytes, shards: int) -> int:
    """Give the shard of a key: the first 32 bits of its SHA-1, modulo the number of shards."""
    return int.from_bytes(hashlib.sha1(key, usedforsecurity=False).digest()[:4]) % shards


def key_of(task: bytes, group: bytes | None = None, by: By = "host") -> bytes:
    """Give the group, the host or the id by which a task is routed."""
    if by == "id":
        return task
    return group if group is not None else host_of(task) or task
