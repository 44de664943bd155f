"""Which shard a task belongs to: route v1. Pure. Never change it, for queues live on; a test compares its results.

A task is routed by its group; without a group, by the host of its URL; without a host, by its id. So all tasks of a
host are in one shard, and politeness to the host is exact. The host has the name that a polite queue gives it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from timeoutq import arguments
from timeoutq.errors import InvalidInput

By = Literal["host", "id"]
"""What tasks are routed by: the group or the host, or the id alone."""

_PLAIN = re.compile(rb"https?://([a-z0-9.-]*)[/?#]")
"""URLs that hold their host as a polite queue names it. `lua/parts/hostname.lua` knows the same URLs."""
_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")
_BLANKS = bytes(range(33))


def route(key: bytes, shards: int) -> int:
    """Give the shard of a key: the first 32 bits of its SHA-1, modulo the number of shards."""
    return int.from_bytes(hashlib.sha1(key, usedforsecurity=False).digest()[:4]) % shards


def key_of(task: bytes, group: bytes | None = None, by: By = "host") -> bytes:
    """Give what a task is routed by."""
    if by == "id":
        return task
    return group if group is not None else host_of(task) or task


def host_of(task: bytes) -> bytes | None:
    """Give the host of a URL as a polite queue names it; None for an id that is no URL, or names no host."""
    plain = _PLAIN.match(task)
    if plain is not None and plain[1] and not plain[1].endswith(b"."):
        return plain[1]
    if not _SCHEME.match(task.strip(_BLANKS).translate(None, b"\t\n\r")):
        return None
    try:
        return arguments.host(task)
    except InvalidInput:
        return None
