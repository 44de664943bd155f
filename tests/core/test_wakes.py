"""Whoever must be woken is: what makes a task ready rings the bell, what makes one due rouses the cleaners.

Without it nothing would be lost, and yet a task would wait up to ten seconds, until somebody looks by himself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue, State
from timeoutq.verbs import sending
from timeoutq.words.model import Record

_names = count(1)
SLEEP_MS = 10_000
"""How long the cleaners sleep; what is due before must wake them."""

Prepare = Callable[[Queue], Any]
Act = Callable[[Queue, Any], object]


def _nothing(_: Queue) -> None:
    pass


def held(n: int = 1, timeout: float = 60.0) -> Prepare:
    def prepare(queue: Queue) -> list[Lease]:
        queue.put([f"https://a.example/{i}" for i in range(n)])
        return queue.claim(n, timeout=timeout)

    return prepare


def expired(queue: Queue) -> list[Lease]:
    leases: list[Lease] = held(1, 0.01)(queue)
    wait_until(lambda: queue.stats().now > leases[0].deadline)
    return leases


def failed(queue: Queue) -> None:
    queue.fail(held()(queue)[0], "no", give_up=True)


def polite(delay: float = 1.0) -> Prepare:
    def prepare(queue: Queue) -> list[Lease]:
        queue.configure(politeness=Politeness(delay=delay, per_host=1))
        queue.put("https://a.example/1", "https://a.example/2")
        return queue.claim(1)

    return prepare


def polite_at_two_hosts(queue: Queue) -> list[Lease]:
    """A task in progress of each host; of the first one, another waits."""
    queue.configure(politeness=Politeness(delay=1.0, per_host=1))
    queue.put("https://a.example/1", "https://a.example/2", "https://b.example/1")
    return sorted(queue.claim(2), key=lambda lease: lease.task)


def polite_and_later(queue: Queue) -> list[Lease]:
    queue.schedule("https://b.example/", after=5)
    leases: list[Lease] = polite()(queue)
    return leases


def paused(queue: Queue) -> None:
    queue.put("a")
    queue.pause()


def blocked(queue: Queue) -> None:
    """A host that has a task waiting, and nothing in progress."""
    queue.ack(polite(60.0)(queue))
    queue.hosts.set("a.example", delay=0)
    queue.hosts.block("a.example", for_=60)


def crashed(queue: Queue, leases: list[Lease]) -> None:
    queue.run(sending.answers(queue.talk, queue.operations.crash(leases, "killed")))


def restored(due: float | None) -> Act:
    def act(queue: Queue, _: object) -> None:
        record = Record(b"https://a.example/", State.SCHEDULED if due else State.TODOS, due)
        queue.run(sending.answer(queue.talk, queue.operations.restore([record], queue.talk.nonce)))

    return act


RINGS: dict[str, tuple[Prepare, Act]] = {
    "put": (_nothing, lambda queue, _: queue.put("a")),
    "put, with a payload": (_nothing, lambda queue, _: queue.put({"a": 1})),
    "put again": (failed, lambda queue, _: queue.put("https://a.example/0", again=True)),
    "put on a polite queue": (
        lambda queue: queue.configure(politeness=Politeness()), lambda queue, _: queue.put("https://a.example/")
    ),
    "what an ack found": (held(), lambda queue, leases: queue.ack(leases[0], put=["b"])),
    "a claim that leaves tasks": (lambda queue: queue.put("a", "b", "c"), lambda queue, _: queue.claim(1)),
    "a claim that leaves one task": (lambda queue: queue.put("a", "b"), lambda queue, _: queue.claim(1)),
    "release": (held(), lambda queue, leases: queue.release(leases)),
    "requeue_expired": (expired, lambda queue, _: queue.requeue_expired()),
    "crash": (held(), crashed),
    "promote_due": (lambda queue: queue.schedule("a", at=1), lambda queue, _: queue.promote_due()),
    "retry_failed": (failed, lambda queue, _: queue.retry_failed(all=True)),
    "a repair that finds ready tasks": (
        lambda queue: queue.put("a"),
        lambda queue, _: queue.run(sending.answer(queue.talk, queue.operations.repair())),
    ),
    "resume": (paused, lambda queue, _: queue.resume()),
    "restore": (_nothing, restored(None)),
    "the turn of a host without a delay": (polite(0.0), lambda queue, leases: queue.ack(leases)),
    "a host that is unblocked": (
        blocked,
        lambda queue, _: queue.hosts.unblock("a.example"),
    ),
    "a host that may have more at once": (polite(0.0), lambda queue, _: queue.hosts.set("a.example", per_host=2)),
    "politeness that ends": (polite(), lambda queue, _: queue.configure(politeness="off")),
}  # fmt: skip

ROUSES: dict[str, tuple[Prepare, Act]] = {
    "schedule": (_nothing, lambda queue, _: queue.schedule("a", after=1)),
    "schedule earlier": (lambda queue: queue.schedule("a", after=60), lambda queue, _: queue.schedule("a", after=1)),
    "put again, later": (failed, lambda queue, _: queue.schedule("https://a.example/0", after=1, again=True)),
    "ack until the next visit": (held(), lambda queue, leases: queue.ack(leases[0], again_in=1)),
    "fail with a retry": (held(), lambda queue, leases: queue.fail(leases[0], "no", retry_in=1)),
    "release for later": (held(), lambda queue, leases: queue.release(leases, delay=1)),
    "claim": (lambda queue: queue.put("a"), lambda queue, _: queue.claim(timeout=1)),
    "extend to an earlier end": (held(), lambda queue, leases: queue.extend(leases, 1)),
    "restore": (_nothing, restored(1.0)),
    "the turn of a host": (polite(), lambda queue, leases: queue.ack(leases)),
    "the turn of a host beside one for which nothing waits": (
        polite_at_two_hosts, lambda queue, leases: queue.ack(leases)
    ),
    "the turn of a host after a failure": (polite(), lambda queue, leases: queue.fail(leases[0], "no", give_up=True)),
    "the turn of a host beside something scheduled later": (
        polite_and_later, lambda queue, leases: queue.ack(leases)
    ),
    "the end of a block": (polite(), lambda queue, leases: queue.release(leases[0], block_host=2)),
}  # fmt: skip


@pytest.fixture
def fresh(url: str) -> Queue:
    """A queue of a name that no other test has."""
    return Queue(f"wakes{next(_names)}", url, timeout=60)


def plan(queue: Queue) -> int:
    """A cleaner says until when it sleeps, ms."""
    return queue.run(sending.answer(queue.talk, queue.operations.plan(SLEEP_MS))).at_ms


@pytest.mark.parametrize("verb", RINGS)
def test_an_idle_worker_is_woken_by(verb: str, fresh: Queue, raw: redis.Redis) -> None:
    prepare, act = RINGS[verb]
    given = prepare(fresh)
    raw.delete(fresh.operations.key("bell"))
    act(fresh, given)
    assert raw.llen(fresh.operations.key("bell")) == 1
    fresh.put("one more")
    assert raw.llen(fresh.operations.key("bell")) == 1, "one stroke wakes a worker, who rings again for the next"


@pytest.mark.parametrize("verb", ROUSES)
def test_every_cleaner_is_woken_by(verb: str, fresh: Queue, raw: redis.Redis) -> None:
    prepare, act = ROUSES[verb]
    given = prepare(fresh)
    promised = plan(fresh)
    raw.delete(fresh.operations.key("alarm"))
    act(fresh, given)
    alarms: Any = raw.xrange(fresh.operations.key("alarm"))
    ((_, said),) = alarms
    assert int(said["at"]) < promised
    assert raw.hget(fresh.operations.key("meta"), "wake_at") == said["at"], "who asks later knows that they come"
    assert plan(fresh) <= int(said["at"])


def test_no_cleaner_is_woken_who_looks_in_time(fresh: Queue, raw: redis.Redis) -> None:
    fresh.schedule("soon", after=1)
    plan(fresh)
    raw.delete(fresh.operations.key("alarm"))
    fresh.schedule("later", after=5)
    assert raw.exists(fresh.operations.key("alarm")) == 0


def test_every_cleaner_is_woken_when_the_clock_has_passed_its_promise(fresh: Queue, raw: redis.Redis) -> None:
    plan(fresh)
    raw.hset(fresh.operations.key("meta"), "wake_at", 1)
    fresh.schedule("later", after=5)
    assert raw.xlen(fresh.operations.key("alarm")) == 1


def test_a_cleaner_that_goes_on_after_a_purge_brings_no_key_back(fresh: Queue, raw: redis.Redis) -> None:
    fresh.put("a")
    plan(fresh)
    fresh.purge()
    plan(fresh)
    assert raw.keys(fresh.operations.key("*")) == []
    fresh.schedule("soon", after=1)
    assert raw.xlen(fresh.operations.key("alarm")) == 1, "the cleaner has promised nothing to the new queue"
