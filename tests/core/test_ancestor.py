"""The ways in which the ancestor of this design failed: three sets, a lock key a task, separate commands, no owner.

Each test would fail on it. They are kept together as a list of what this queue is for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import LeaseLost, Queue, State


def test_a_slow_cleaner_does_not_delete_a_lock_that_was_just_taken(face: Any, url: str) -> None:
    """It looked for the lock, was slow, and then deleted the one that somebody had taken meanwhile."""
    face.put([f"t{i}" for i in range(200)])
    stop = threading.Event()

    def sweep() -> None:
        with Queue(face.name, url) as cleaner:
            while not stop.is_set():
                cleaner.requeue_expired()

    threads = [threading.Thread(target=sweep) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with redis.Redis.from_url(url) as client:
            raw: Any = client
            for _ in range(20):
                leases = face.claim(10, timeout=30)
                for lease in leases:
                    assert raw.get(f"timeoutq:{{{face.name}}}:lock:{lease.task}") == lease.token.encode()
                assert set(face.ack(leases)) == {"ok"}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert face.stats().counters.get("expired", 0) == 0


def test_no_task_is_in_progress_without_its_lease(face: Any, url: str) -> None:
    """Its claim moved the task and set the lock in two commands; a cleaner between them took live work back."""
    face.put([f"t{i}" for i in range(300)])
    key = f"timeoutq:{{{face.name}}}:"
    seen: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def look() -> None:
        with redis.Redis.from_url(url) as client:
            raw: Any = client
            while not stop.is_set():
                pipe = raw.pipeline(transaction=True)
                pipe.scard(key + "in_progress")
                pipe.zcard(key + "leases")
                pipe.hlen(key + "owners")
                seen.append(tuple(pipe.execute()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(60):
            face.ack(face.claim(5))
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 20
    assert all(a == b == c for a, b, c in seen)


def test_a_late_worker_cannot_end_the_lease_of_another(face: Any, url: str) -> None:
    """Its ack named the task only, and so ended whatever lease there was."""
    face.put("a")
    (late,) = face.claim(timeout=0.02)
    with Queue(face.name, url) as other:
        (lease,) = other.claim(wait=5, timeout=30)
        for act in (face.ack, face.release, face.extend, lambda lease: face.fail(lease, "x")):
            with pytest.raises(LeaseLost, match="has it now"):
                act(late)
        assert other.inspect("a").state is State.IN_PROGRESS
        assert other.ack(lease) == "ok"


def test_the_reply_of_the_acks_move_is_checked(face: Any, raw: redis.Redis) -> None:
    """It ignored the reply of SMOVE, and so counted as done what had not been there."""
    face.put("a")
    (lease,) = face.claim()
    raw.srem(f"timeoutq:{{{face.name}}}:in_progress", "a")
    with pytest.raises(LeaseLost):
        face.ack(lease)
    assert face.stats().done == 0
    assert face.stats().counters.get("acked", 0) == 0
    face.purge()  # no counter explains what a hand did


def test_putting_a_task_that_is_done_or_in_progress_does_not_make_two_of_it(face: Any) -> None:
    """It added to todos without a look at the other sets."""
    face.put("a", "b")
    face.ack(face.claim(1)[0])
    (lease,) = face.claim(1)
    assert sorted(face.put("a", "b")) == ["done", "in_progress"]
    assert face.claim() == []
    assert face.ack(lease) == "ok"
    assert face.stats().known == 2


def test_ids_need_not_be_numbers(face: Any) -> None:
    """It converted ids with int()."""
    face.put("https://example.com/ü?q=1#x", b"\xff")
    assert {lease.task for lease in face.claim(2)} == {"https://example.com/ü?q=1#x", "\udcff"}


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


def test_attempts_are_capped(face: Any) -> None:
    """It handed out a task that kills its worker for ever."""
    face.put("a")
    claims = 0
    while face.claim(timeout=0.02):
        claims += 1
        wait_until(face.requeue_expired)
        assert claims < 10
    assert claims == 5
    assert face.inspect("a").state is State.FAILED


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


def test_a_task_that_is_forgotten_while_it_runs_is_not_resurrected(face: Any) -> None:
    """Its ack moved the id into done whether or not it was still known."""
    face.put("a")
    (lease,) = face.claim()
    face.forget("a")
    for act in (face.ack, face.release, lambda lease: face.fail(lease, "x", retry_in=0)):
        with pytest.raises(LeaseLost, match="forgotten"):
            act(lease)
    assert face.stats().known == 0
