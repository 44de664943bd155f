"""The invariants of the design, checked on the raw keys of a queue; every test that can ends with them."""

from __future__ import annotations

from typing import Any

import redis

STATES = ("todos", "in_progress", "done", "failed")


def check(url: str, name: str) -> None:
    """Check one queue; raises AssertionError that names the invariant and the tasks."""
    with redis.Redis.from_url(url) as raw:
        client: Any = raw
        key = f"timeoutq:{{{name}}}:"
        held: dict[bytes, list[str]] = {}
        for state in STATES:
            for task in client.smembers(key + state):
                held.setdefault(task, []).append(state)
        for task in client.zrange(key + "scheduled", 0, -1):
            held.setdefault(task, []).append("scheduled")
        twice = {task: states for task, states in held.items() if len(states) > 1}
        assert not twice, f"I1: in more than one state: {twice}"
        working = {task for task, states in held.items() if states == ["in_progress"]}
        leases = set(client.zrange(key + "leases", 0, -1))
        owners = set(client.hkeys(key + "owners"))
        assert working == leases, f"I6: in_progress and leases differ: {working ^ leases}"
        assert working == owners, f"I6: in_progress and owners differ: {working ^ owners}"
        locks = {lock[len(key) + 5 :] for lock in client.scan_iter(key + "lock:*", count=1000)}
        assert locks <= working, f"I6: locks without a lease: {locks - working}"
        for what in ("payload", "attempts", "crashes", "errors", "max_runtime"):
            extra = set(client.hkeys(key + what)) - held.keys()
            assert not extra, f"I10: {what} of tasks that are in no state: {extra}"
        done = {task for task, states in held.items() if states == ["done"]}
        for what in ("payload", "attempts", "crashes", "errors"):
            left = set(client.hkeys(key + what)) & done
            assert not left, f"{what} of done tasks: {left}"
