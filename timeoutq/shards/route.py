"""Which shard a task belongs to: route v1. Pure, and frozen: a test keeps it as it is, for queues live on.

A task goes with its group; without one, with the host of its URL; without that, with its id. So all tasks of a host are
in one shard, and its politeness is exact. The host is the very one that a polite queue knows the task by.
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
"""The URLs whose host stands in them as a polite queue names it, as `lua/parts/hostname.lua` has them, too."""
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
