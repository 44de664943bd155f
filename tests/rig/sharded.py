"""A queue of five shards in the tests: which task lies in which shard, and the keys that a queue has."""

from __future__ import annotations

from typing import Any

from timeoutq.client.shards.route import key_of, route

SHARDS = 5


def shard_of(task: str, group: str | None = None) -> int:
    return route(key_of(task.encode(), group.encode() if group else None), SHARDS)


def one_of_each(form: str = "t{}") -> list[str]:
    """Give one id for each shard, in the order of the shards."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SHARDS:
        task = form.format(number)
        found.setdefault(shard_of(task), task)
        number += 1
    return [found[shard] for shard in range(SHARDS)]


def keys_of(raw: Any, name: str) -> set[str]:
    return {
        key for key in raw.scan_iter("timeoutq:*") if key.startswith((f"timeoutq:{{{name}}}", f"timeoutq:{{{name}:"))
    }
