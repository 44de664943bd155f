"""A foreign hand writes a value that no script would write: it counts as absent, and the queue goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.watch import doctor
from timeoutq.words.errors import TimeoutqError

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
    **{f"meta {name}": field("meta", name) for name in ("lease_ms", "fence", "max_crashes", "grace_until", "durable")},
    "meta wake_at": field("meta", "wake_at", "9" * 400),
    "meta keep_done": field("meta", "keep_done", "nx"),
    "meta walk": field("meta", "walk", "3 x"),
    "meta walk past the last stage": field("meta", "walk", "99 0"),
    "meta politeness x": politeness("x"),
    "meta politeness 0 0": politeness("0 0"),
    "stats acked": field("stats", "acked", str(2**63 - 1)),
    **{
        name: field(name, FIRST) for name in ("crashes", "attempts", "releases", "errors", "runtime", "rerun", "traces")
    },
    **{f"{name} of a host": field(name, "a.example") for name in ("slots", "resting", "policies", "host_failures")},
    "history": line("history", "9" * 400 + " 1 1 1 1 1"),
    "error_log": line("error_log"),
    "durations": lambda raw, prefix: [raw.hset(f"{prefix}durations{i}", "-80", "x") for i in (0, 1)],
    "worker_info": a_worker('{"pid":1e400,"held":"x"}'),
    "workers without end": a_worker("{}", INF),
    "scheduled": score("scheduled", "late", -INF),
    "leases": score("leases", FIRST, INF),
    "hosts": score("hosts", "a.example", INF),
    "calls": score("calls", "gone", INF),
    "places": score("places", "99999:abc", 0),
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


@pytest.mark.parametrize("polite", [False, True], ids=["plain", "polite"])
@pytest.mark.parametrize("poke", POKES.values(), ids=POKES)
def test_no_odd_value_stops_the_queue_or_loses_a_task(
    url: str, raw: redis.Redis, name: str, poke: Poke, polite: bool
) -> None:
    rules: dict[str, Any] = {"politeness": Politeness(delay=0, per_host=2)} if polite else {}
    with Queue(name, url, timeout=0.1, **rules) as queue:
        queue.put(*URLS)
        queue.put({"a payload": 1})
        queue.claim(2)  # these run out
        poke(raw, queue.operations.key(""))
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


POLICIES = ["- 0 - 0 -", "- 0 9 0 - ", "- - - 99999999999999 ? why", "x"]
"""Rules of a host that no client writes."""


@pytest.fixture(scope="module")
def valkey() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(params=["fake", "valkey"])
def either(request: pytest.FixtureRequest, valkey: EmbeddedServer, name: str) -> Iterator[tuple[Queue, Any]]:
    """A polite queue, in memory or on a server, and a plain client of the same server."""
    polite = Politeness(0, 1)
    if request.param == "fake":
        with fake_queue(timeout=60, politeness=polite) as fake:
            fake.forget("none")
            yield fake, fakeredis.FakeRedis(server=fake.clock.server, decode_responses=True)
    else:
        with (
            Queue(name, valkey.url, timeout=60, politeness=polite) as queue,
            redis.Redis.from_url(valkey.url, decode_responses=True) as raw,
        ):
            queue.forget("none")
            yield queue, raw
            queue.purge()


@pytest.mark.parametrize("text", POLICIES)
def test_odd_rules_of_a_host_count_as_absent(either: tuple[Queue, Any], text: str) -> None:
    queue, raw = either
    raw.hset(queue.operations.key("policies"), "h.example", text)
    queue.put("http://h.example/1", "http://h.example/2")
    assert [queue.why(f"http://h.example/{i}").code for i in "12"].count("turn") == 0
    for _ in range(2):
        queue.ack(queue.claim(1)[0])


@pytest.mark.parametrize("text", ["0 0", "999999999999999 1", "0 1 on"])
def test_a_politeness_that_lets_nobody_visit_counts_as_the_usual_one(either: tuple[Queue, Any], text: str) -> None:
    queue, raw = either
    raw.hset(queue.operations.key("meta"), "politeness", text)
    queue.put(*URLS)
    assert queue.stats().politeness == Politeness(delay=1.0, per_host=1)
    assert {queue.why(task).code for task in URLS} == {"no_worker", "host_busy"}
    assert len(queue.claim(9)) == 3  # one of each host


@pytest.mark.parametrize("at", [INF, 250_000_000_000_000.0, None])
def test_a_turn_that_a_foreign_hand_has_put_off_is_told_and_comes_back(
    either: tuple[Queue, Any], at: float | None
) -> None:
    queue, raw = either
    queue.hosts.block("h.example", for_=3600)
    queue.put("http://h.example/1")
    raw.delete(queue.operations.key("policies"))
    if at is not None:
        raw.zadd(queue.operations.key("hosts"), {"h.example": at})
    reason = queue.why("http://h.example/1")
    assert reason.code == "crooked"
    assert "a foreign hand has deleted the host's lane or its turn, or put it off" in reason.message
    wrong = "1 task without a place at their host, or waiting where no host would hand them over"
    (found,) = [found for found in doctor.examine(queue) if found.check == "tasks"]
    assert wrong in found.found
    assert wrong in doctor.repair(queue).found
    assert len(queue.claim(9)) == 1


def test_a_block_without_end_lasts_to_the_end_of_time(either: tuple[Queue, Any]) -> None:
    queue, raw = either
    host = queue.hosts.block("h.example", for_=253_000_000_000)
    assert host.blocked_until == 253402300799
    queue.put("http://h.example/1")
    assert queue.why("http://h.example/1").code == "blocked"
    assert not [found for found in doctor.examine(queue) if found.check == "tasks"]
    assert raw.hexists(queue.operations.key("policies"), "h.example")


def test_a_politeness_that_cannot_be_read_counts_as_the_usual_one(raw: redis.Redis, queue: Queue) -> None:
    queue.configure(politeness=Politeness(delay=5, per_host=3))
    raw.hset(queue.operations.key("meta"), "politeness", "x")
    queue.put(*URLS)
    assert queue.stats().politeness == Politeness(delay=1.0, per_host=1)
    assert len(queue.claim(9)) == 3  # one of each host
    queue.purge()


def test_a_counter_that_is_refused_for_another_reason_is_not_set_anew(raw: redis.Redis, queue: Queue) -> None:
    queue.put("a")
    key = queue.operations.key("stats")
    raw.rename(key, key + ".aside")
    raw.set(key, "a string")
    with pytest.raises(TimeoutqError):
        queue.put("b")
    assert str(raw.get(key)) == "a string"
    raw.delete(key)
    raw.rename(key + ".aside", key)
    queue.purge()
