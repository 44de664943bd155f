"""The ways in which the ancestor of this design failed: three sets, a lock key a task, separate commands, no owner.

Each test would fail on it. They are kept together as a list of what this queue is for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import redis

from tests.rig.waiting import wait_until
from timeoutq import Queue


def test_a_sweep_costs_what_has_expired_not_what_is_in_flight(face: Any, raw: redis.Redis) -> None:
    """It read the whole set of tasks in progress, and asked for the lock of each."""
    client: Any = raw
    face.put([f"t{i}" for i in range(5000)])
    for _ in range(10):
        face.claim(500, timeout=600)
    face.requeue_expired()
    client.config_resetstat()
    assert face.requeue_expired() == 0
    commands = client.info("commandstats")
    assert sum(stat["calls"] for name, stat in commands.items() if "config" not in name and "info" not in name) < 12


def test_an_idle_claimer_does_not_poll(face: Any, url: str, raw: redis.Redis) -> None:
    """It slept for a second between looks: late by half a second, and never quiet."""
    client: Any = raw
    with Queue("another", url) as another:  # so that the server knows the scripts
        another.put("a")
        another.claim()
        another.purge()
    face.stats()
    thread = threading.Thread(target=lambda: face.claim(wait=10))
    client.config_resetstat()
    thread.start()
    wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
    with Queue(face.name, url) as other:
        other.stats()
        thread.join(1.0)
        assert thread.is_alive()
        began = time.monotonic()
        other.put("a")
        thread.join(5)
        assert time.monotonic() - began < 0.5
        commands = client.info("commandstats")
        assert commands["cmdstat_blpop"]["calls"] == 1
        # two claims; of the other one a look, the proof of its rights, and a put
        assert commands["cmdstat_fcall"]["calls"] <= 6
