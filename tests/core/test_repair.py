"""Six kinds of damage are mended by prune, and what was accepted is not lost; others are told, with their cures."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.rig.invariants import STATES, a_minute_later, check_keys
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State
from timeoutq.testing import fake_async_queue
from timeoutq.verbs import flows, sending
from timeoutq.watch import doctor
from timeoutq.worker.cleaner import WALK_EVERY, Cleaner

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


@pytest.mark.parametrize("state", ["todos", "failed", "scheduled", "payload"])
def test_what_only_a_deleted_key_knew_is_gone_and_nothing_else(
    queue: Queue, url: str, raw: redis.Redis, state: str
) -> None:
    before = where(raw, queue)
    raw.delete(queue.operations.key(state))
    healed(queue, url)
    assert {before[task] for task in before.keys() - where(raw, queue).keys()} <= {state}


def test_a_lane_that_a_hand_deletes_is_filled_again(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        queue.put([f"{A}{i}" for i in range(4)])
        (lease,) = queue.claim(1)
        raw.delete(queue.operations.key("host:a.example"))
        healed(queue, url)
        queue.ack(lease)
        assert len(list(drain(queue))) == 3
        assert queue.drained()
        queue.purge()


def drain(queue: Queue) -> Any:
    """Ack all that can be claimed."""
    while leases := queue.claim(10):
        for lease in leases:
            queue.ack(lease)
            yield lease.task


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


@pytest.mark.parametrize("task", [f"{A}new", "ends", "held"])
@pytest.mark.parametrize("key", ADDED)
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


@pytest.mark.parametrize("key", ["leases", "owners", "in_progress"])
def test_a_task_under_way_whose_keys_a_hand_removes_comes_back(url: str, name: str, raw: redis.Redis, key: str) -> None:
    client: Any = raw
    with Queue(name, url, timeout=0.05) as queue:
        queue.put("a")
        queue.claim()
        whole = queue.operations.key(key)
        client.zrem(whole, "a") if key == "leases" else client.hdel(whole, "a") if key == "owners" else client.srem(
            whole, "a"
        )
        healed(queue, url)
        wait_until(lambda: queue.requeue_expired() or queue.stats().todos)
        assert queue.inspect("a").state is State.TODOS
        queue.purge()


def test_a_lease_that_runs_out_before_any_prune_brings_its_task_back(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url, timeout=0.02) as queue:
        queue.put("a")
        queue.claim()
        raw.delete(queue.operations.key("in_progress"))
        assert not queue.drained()
        assert wait_until(queue.requeue_expired) == 1
        assert queue.inspect("a").state is State.TODOS
        queue.purge()


def test_a_task_without_a_lease_waits_for_a_minute_at_most(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url) as queue:
        queue.put("a")
        queue.ack(queue.claim(timeout=7 * 86400))
        raw.sadd(queue.operations.key("in_progress"), "b")
        queue.prune()
        assert 0 < (queue.inspect("b").lease_left or 0) <= 60
        queue.purge()


def test_why_calls_an_orphan_what_it_is(url: str, name: str, raw: redis.Redis) -> None:
    client: Any = raw
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        key = queue.operations.key
        queue.put(f"{A}1", f"{A}2", "held", "free")
        while queue.inspect("held").state is not State.IN_PROGRESS:
            assert queue.claim(1)
        client.sadd(key("done"), f"{A}2")
        assert "into waiting and done at once" in queue.why(f"{A}2").message
        client.srem(key("done"), f"{A}2")
        client.delete(key("host:a.example"))
        assert "deleted the host's lane" in queue.why(f"{A}2").message
        client.zrem(key("leases"), "held")
        assert "in progress without a lease" in queue.why("held").message
        client.sadd(key("in_progress"), "free") if queue.inspect("free").state is None else None
        healed(queue, url)
        client.srem(key("in_progress"), "held")
        found = queue.why("held")
        assert (found.code, found.info.state) == ("crooked", None)
        assert "removed it from in_progress" in found.message
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


def test_a_task_whose_lease_and_lock_are_deleted_is_still_its_workers(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url) as queue:
        queue.put("a")
        (lease,) = queue.claim()
        raw.zrem(queue.operations.key("leases"), "a")
        raw.delete(queue.operations.key("lock:a"))
        healed(queue, url)
        assert queue.ack(lease) == "ok"
        queue.purge()


def test_a_queue_is_not_drained_while_a_host_whose_budget_is_not_used_up_has_no_time_for_its_turn(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Queue(name, url, politeness=Politeness(3600, 1)) as queue:
        queue.put(f"{A}1", f"{A}2")
        queue.ack(queue.claim())
        raw.zadd(queue.operations.key("hosts"), {"a.example": "inf"})
        assert not queue.drained()
        queue.hosts.set("a.example", budget=1)
        assert queue.drained()
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


def test_done_tasks_that_had_no_time_are_given_one_without_a_pause(url: str, name: str, raw: redis.Redis) -> None:
    client: Any = raw
    with Queue(name, url) as queue:
        queue.put(str(i) for i in range(3000))
        while leases := queue.claim(500):
            queue.ack(leases)
        queue.configure(keep_done=timedelta(days=1))
        calls, more, cursor = 0, True, b"0"
        while more:
            found = queue.run(sending.answer(queue.talk, queue.operations.prune(cursor=cursor)))
            calls, more, cursor = calls + 1, found.more, found.cursor
        assert client.zcard(queue.operations.key("done_at")) == 3000
        assert calls <= 10
        queue.purge()


def test_how_often_a_task_was_released_to_block_its_host_is_a_value_that_can_be_read(url: str, name: str) -> None:
    with Queue(name, url, timeout=60, politeness=Politeness(delay=0)) as queue:
        queue.put("a", group="g")
        queue.release(queue.claim(), block_host=1)
        doctor.repair(queue)
        assert queue.inspect("a").host_releases == 1


@pytest.mark.parametrize("state", ["todos", "in_progress", "done", "failed", "waiting", "scheduled"])
@pytest.mark.parametrize("rules", [None, Politeness(0, 5)], ids=["plain", "polite"])
def test_a_task_without_a_name_is_not_dropped_by_what_a_queue_does(
    url: str, name: str, raw: redis.Redis, state: str, rules: Politeness | None
) -> None:
    """No caller can put it; a foreign hand can."""
    client: Any = raw
    with Queue(name, url, timeout=60, politeness=rules, keep_done=1000) as queue:
        queue.put("acked", "failed", "released", "left")
        leases = {lease.task: lease for lease in queue.claim(4)}
        queue.schedule("due", after=0.001)
        key = queue.operations.key(state)
        client.zadd(key, {"": 1}) if state == "scheduled" else client.sadd(key, "")
        queue.ack(leases["acked"])
        queue.fail(leases["failed"], "x", give_up=True)
        queue.release(leases["released"])
        if rules is not None:
            queue.hosts.block("a.example", for_=60)
        queue.promote_due()
        raw.srem(queue.operations.key("in_progress"), "left")  # something to mend
        doctor.repair(queue)
        queue.prune()
        assert any(
            client.zscore(queue.operations.key(kept), "") is not None
            if kept == "scheduled"
            else client.sismember(queue.operations.key(kept), "")
            for kept in (*STATES, "waiting", "scheduled")
        )
        queue.purge()


@pytest.mark.parametrize("first", ["prune", "repair", "longest", "due"])
async def test_a_cleaner_rests_until_the_first_of_all_that_it_has_to_do(first: str) -> None:
    async with fake_async_queue() as queue:
        cleaner = Cleaner(queue, longest=4.0 if first == "longest" else 10.0)
        now = time.monotonic()
        cleaner._prune_at, cleaner._repair_at = now + 100, now + 100
        if first == "due":
            await queue.schedule("a", after=4.0)
        elif first == "prune":
            cleaner._prune_at = now + 4.0
        elif first == "repair":
            cleaner._repair_at = now + 4.0
        assert 0 < await cleaner.round() <= 4.002
