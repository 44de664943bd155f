"""Counts the commands that a server runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

NOW_AND_THEN = {"info", "zrangebyscore"}
"""The command that asks for the counts; and the one that one call in sixteen runs to look for calls that are old."""


def ran(raw: redis.Redis, do: Callable[[], object]) -> dict[str, int]:
    """Give how often the server ran each command while this was done, without those of `NOW_AND_THEN`."""
    before: Any = raw.info("commandstats")
    do()
    after: Any = raw.info("commandstats")
    counts = {
        name.removeprefix("cmdstat_"): row["calls"] - before.get(name, {"calls": 0})["calls"]
        for name, row in after.items()
    }
    return {name: count for name, count in counts.items() if count and name not in NOW_AND_THEN}
