"""Six kinds of damage are mended by prune, and what was accepted is not lost; others are told, with their cures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import redis

from tests.rig.invariants import STATES, a_minute_later, check_keys
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State
from timeoutq.verbs import flows, sending
from timeoutq.worker.cleaner import WALK_EVERY

A, B = "http://a.example/", "http://b.example/"
RULES = {"plain": None, "two places": Politeness(0, 2)}


@pytest.fixture(params=RULES)
def queue(request: pytest.FixtureRequest, url: str, name: str) -> Any:
    """A queue with tasks in every state and a record of every kind."""
    with Queue(name, url, timeout=60, politeness=RULES[request.param]) as opened:
        fill(opened)
        yield opened
        opened.purge()
        with redis.Redis.from_url(url) as client:
            client.delete(*client.keys(f"timeoutq:{{{name}}}:lock:*") or ["none"])
            assert client.keys(f"timeoutq:{{{name}}}:*") == []


def fill(queue: Queue) -> None:
    """Put tasks into every state."""
    queue.put("fails", "ends")
    for lease in queue.claim(2):
        queue.fail(lease, "x", give_up=True) if lease.task == "fails" else queue.ack(lease)
    queue.put({"free": {"depth": 1}}, "held", "other")
    queue.claim(2, max_runtime=50)
    queue.put([f"{A}{i}" for i in range(4)], [f"{B}{i}" for i in range(4)])
    queue.put("x", "y", group="group.example")
    queue.claim(2)
    queue.schedule("later", after=60)
    if queue.stats().politeness is not None:
        queue.hosts.set("a.example", budget=100)
    queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))
    queue.run(sending.answer(queue.talk, queue.operations.beat("w", {"pid": 1})))


def where(raw: redis.Redis, queue: Queue) -> dict[str, str]:
    """Say in which state each task is."""
    client: Any = raw
    key = queue.operations.key
    found = {task: state for state in STATES for task in client.smembers(key(state))}
    return found | dict.fromkeys(client.zrange(key("scheduled"), 0, -1), "scheduled")


def healed(queue: Queue, url: str) -> None:
    """Have prune heal all that it can, and check that all is well."""
    with redis.Redis.from_url(url) as client:

        def sound() -> bool:
            a_minute_later(client, queue.name)
            return not (queue.prune() or queue.run(flows.repair(queue.talk, mend=False))[0])

        wait_until(sound)
        check_keys(client, queue.name, counters=False)


@pytest.mark.parametrize("key", ["in_progress", "leases", "owners", "waiting", "hosts", "slots", "places"])
def test_a_key_that_a_hand_deletes_is_made_up_for(queue: Queue, url: str, raw: redis.Redis, key: str) -> None:
    before = where(raw, queue)
    raw.delete(queue.operations.key(key))
    healed(queue, url)
    assert where(raw, queue).keys() == before.keys()


def member(key: str, task: str) -> Callable[[Any, str], object]:
    """What a hand adds, and to which key."""

    def add(client: Any, prefix: str) -> object:
        whole = prefix + key
        if key in ("scheduled", "leases") or key.startswith("host:"):
            return client.zadd(whole, {task: client.time()[0] * 1000 + 60_000})
        if key in ("owners", "runtime", "payload"):
            return client.hset(whole, task, "1")
        if key == "slots":
            return client.hset(whole, "c.example", f"0 {task}")
        if key == "places":
            return client.zadd(whole, {f"9:c.example{task}": 0})
        return client.sadd(whole, task)

    return add


ADDED = [*STATES, "scheduled", "leases", "owners", "runtime", "payload", "slots", "places", "host:a.example"]
POLITE = {"waiting", "slots", "places", "host:a.example"}


@pytest.mark.parametrize(("key", "task"), [*zip(ADDED, cycle([f"{A}new", "ends", "held"]), strict=False)])
def test_a_member_that_a_hand_adds_is_put_right(queue: Queue, url: str, raw: redis.Redis, key: str, task: str) -> None:
    if queue.stats().politeness is None and key in POLITE:
        return
    before = where(raw, queue)
    member(key, task)(raw, queue.operations.key(""))
    healed(queue, url)
    after = where(raw, queue)
    assert before.keys() <= after.keys()
    # nothing that is not done counts as done, and what is under way goes on
    undone = {one for one, state in before.items() if state != "done"}
    assert not {one for one in undone if after[one] == "done"}
    assert {one for one, state in before.items() if state == "in_progress"} <= {
        one for one, state in after.items() if state == "in_progress"
    }


def test_why_calls_an_orphan_what_it_is(url: str, name: str, raw: redis.Redis) -> None:
    client: Any = raw
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        key = queue.operations.key
        queue.put(f"{A}1", f"{A}2", "held", "free")
        while queue.inspect("held").state is not State.IN_PROGRESS:
            assert queue.claim(1)
        client.sadd(key("done"), f"{A}2")
        assert "it is in waiting and done at once" in queue.why(f"{A}2").message
        client.srem(key("done"), f"{A}2")
        client.delete(key("host:a.example"))
        assert "the host's lane or its turn is gone" in queue.why(f"{A}2").message
        client.zrem(key("leases"), "held")
        assert "in progress without a lease" in queue.why("held").message
        client.sadd(key("in_progress"), "free") if queue.inspect("free").state is None else None
        healed(queue, url)
        client.srem(key("in_progress"), "held")
        found = queue.why("held")
        assert (found.code, found.info.state) == ("crooked", None)
        assert "has removed it from in_progress" in found.message
        client.hdel(key("meta"), "uses", "politeness")
        assert "the queue is not polite" in queue.why(f"{A}2").message
        assert not queue.drained()
        queue.configure(politeness="off")
        assert queue.inspect(f"{A}2").state is State.TODOS
        queue.purge()


def test_a_queue_is_not_drained_while_a_task_waits_that_nobody_would_hand_over(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        queue.put([f"{A}{i}" for i in range(1200)])
        queue.hosts.set("a.example", budget=1)
        queue.ack(queue.claim())
        assert queue.drained(), "what waits because the budget of its host is used up will not run by itself"
        raw.zrem(queue.operations.key("host:a.example"), f"{A}1199", f"{A}0")
        assert not queue.drained()
        healed(queue, url)
        assert queue.drained()
        raw.delete(queue.operations.key("hosts"))
        assert not queue.drained()
        queue.purge()


def test_ten_thousand_tasks_are_walked_through_within_a_minute(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        queue.put({f"http://h{i % 500}.example/{i}": {"n": i} for i in range(10_000)})
        raw.delete(queue.operations.key("hosts"))
        calls, on = 0, True
        while on:
            part = queue.run(sending.answer(queue.talk, queue.operations.repair()))
            on, calls = bool(part.cursor), calls + 1
        assert calls * WALK_EVERY * 1.2 < 30
        healed(queue, url)
        queue.purge()
