"""A foreign hand writes a value that no script would write: it counts as absent, and the queue goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.rig.command import server
from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue
from timeoutq.verbs import sending
from timeoutq.watch import doctor

__all__ = ["server"]

# few of a host: where a poke has spoilt the politeness, a second lies between two visits of a host
URLS = [f"http://{page}" for page in ("a.example/0", "a.example/1", "b.example/2", "c.example/3", "c.example/4")]
FIRST = URLS[1]

Poke = Callable[[redis.Redis, str], Any]


def field(key: str, name: str, value: str = "x") -> Poke:
    return lambda raw, prefix: raw.hset(prefix + key, name, value)


def score(key: str, member: str, at: float) -> Poke:
    return lambda raw, prefix: raw.zadd(prefix + key, {member: at})


def line(key: str, text: str = "x") -> Poke:
    return lambda raw, prefix: raw.lpush(prefix + key, text)


def politeness(text: str) -> Poke:
    def poke(raw: redis.Redis, prefix: str) -> None:
        if raw.hexists(prefix + "meta", "politeness"):
            raw.hset(prefix + "meta", "politeness", text)

    return poke


def a_worker(about: str, at: float | None = None) -> Poke:
    def poke(raw: redis.Redis, prefix: str) -> None:
        raw.hset(prefix + "worker_info", "w", about)
        raw.zadd(prefix + "workers", {"w": time.time() * 1000 if at is None else at})

    return poke


INF = float("inf")
POKES: dict[str, Poke] = {
    **{f"meta {name}": field("meta", name) for name in ("lease_ms", "fence", "grace_until")},
    "meta wake_at": field("meta", "wake_at", "9" * 400),
    "meta keep_done": field("meta", "keep_done", "nx"),
    "meta walk": field("meta", "walk", "3 x"),
    "meta politeness 0 0": politeness("0 0"),
    "stats acked": field("stats", "acked", str(2**63 - 1)),
    **{name: field(name, FIRST) for name in ("crashes", "releases", "runtime", "rerun")},
    **{f"{name} of a host": field(name, "a.example") for name in ("slots", "policies")},
    "error_log": line("error_log"),
    "durations": lambda raw, prefix: [raw.hset(f"{prefix}durations{i}", "-80", "x") for i in (0, 1)],
    "workers without end": a_worker("{}", INF),
    "scheduled": score("scheduled", "late", -INF),
    "leases": score("leases", FIRST, INF),
    "hosts": score("hosts", "a.example", INF),
    "calls": score("calls", "gone", INF),
}


def look(queue: Queue) -> None:
    """Call all that only looks."""
    queue.stats()
    queue.errors()
    queue.history()
    queue.workers()
    for task in (FIRST, "late"):
        queue.why(task)
        queue.inspect(task)
    for state in ("scheduled", "in_progress", "failed", "waiting"):
        queue.list(state)
    if queue.stats().politeness:
        list(queue.hosts.each())


def end(queue: Queue, lease: Lease, ended: set[str]) -> None:
    if lease.task.endswith("2"):
        queue.fail(lease, "a reason", retry_in=None)
    elif lease.task.endswith("3") and not lease.attempt > 1:
        queue.fail(lease, ValueError("once more"), retry_in=0)
        return
    else:
        queue.ack(lease)
    ended.add(lease.task)


@pytest.mark.parametrize("what", POKES)
def test_no_odd_value_stops_the_queue_or_loses_a_task(url: str, raw: redis.Redis, name: str, what: str) -> None:
    with Queue(name, url, timeout=0.1, politeness=Politeness(delay=0, per_host=2)) as queue:
        queue.put(*URLS)
        queue.put({"a payload": 1})
        queue.claim(2)  # these run out
        POKES[what](raw, queue.operations.key(""))
        doctor.examine(queue)
        look(queue)
        queue.put("one more")
        queue.schedule("due", after=0)
        wanted, ended = {*URLS, "a payload", "one more", "due"}, set[str]()
        if raw.zscore(queue.operations.key("scheduled"), "late") is not None:
            wanted.add("late")

        def go_on() -> bool:
            queue.run(sending.answer(queue.talk, queue.operations.plan(1000)))
            queue.requeue_expired()
            queue.promote_due()
            queue.prune()
            for lease in queue.claim(3, timeout=5):
                end(queue, lease, ended)
            queue.run(sending.answer(queue.talk, queue.operations.beat("w2", {"pid": 1})))
            return wanted <= ended

        wait_until(go_on, 20)
        look(queue)
        assert not [found for found in doctor.examine(queue) if found.check in ("keys", "library")]
        assert queue.stats().in_progress == 0
        queue.purge()
