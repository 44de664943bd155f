"""One queue over several shards, on one server: both faces do what a plain queue does."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from tests.rig.proxy import Fault, Proxy
from tests.rig.sharded import SHARDS, keys_of, one_of_each, shard_of
from tests.rig.waiting import wait_until
from timeoutq import (
    InvalidInput,
    Lease,
    LeaseLost,
    NotReplicated,
    Politeness,
    Queue,
    RetryPolicy,
    SchemaMismatch,
    ShardsUnavailable,
    Task,
    Unavailable,
)
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue, claims, gathering
from timeoutq.client.shards import flows as sharded_flows
from timeoutq.client.shards.names import stem, tags
from timeoutq.server import scripts
from timeoutq.server.link import Link
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.words import arguments
from timeoutq.words.arguments import How
from timeoutq.words.errors import ServerError
from timeoutq.words.model import Answer, Outcome

# ---- tasks go to their shards, and come from all of them


def test_tasks_are_put_into_their_shards_and_answers_stand_in_the_order_of_the_ids(queue: Any, raw: Any) -> None:
    tasks = one_of_each()
    assert list(queue.put(tasks[:3])) == [Answer.ADDED] * 3
    outcome = queue.put(reversed(tasks), {"p": 1}, Task("g", group="g.example"))
    assert dict(outcome.items()) == {
        **dict.fromkeys(tasks[:3], Answer.TODOS), **dict.fromkeys(tasks[3:], Answer.ADDED), "p": "added", "g": "added",
    }  # fmt: skip
    assert [task for task, _ in outcome.items()] == [*reversed(tasks), "p", "g"]
    for shard, tag in enumerate(tags(queue.name, SHARDS)):
        held = raw.smembers(stem(tag) + "todos")
        assert tasks[shard] in held
        assert ("p" in held) == (shard_of("p") == shard)
        assert ("g" in held) == (shard_of("g", "g.example") == shard)


def test_a_put_under_the_id_of_an_earlier_put_adds_nothing_in_any_shard(queue: Any) -> None:
    for task in one_of_each():
        once = How(call_id=f"put {task}".encode())
        assert list(queue.run(queue.flows.put((task,), once, 0))) == ["added"]
        queue.forget(task)
        queue.run(queue.flows.put((task,), once, 0))
    assert queue.stats().known == 0


def test_nothing_is_written_for_nothing(queue: Any, raw: Any, name: str) -> None:
    def put_nothing() -> None:
        assert list(queue.put([], group="a")) == list(queue.schedule([], after=1, group="b")) == []
        queue.schedules.declare()

    put_nothing()
    assert keys_of(raw, name) == set()
    queue.put("a")
    record = raw.hgetall(f"timeoutq:{{{name}}}:meta")
    put_nothing()
    assert raw.hgetall(f"timeoutq:{{{name}}}:meta") == record


def test_two_thousand_tasks_are_claimed_each_once_and_acked(queue: Any) -> None:
    tasks = [f"https://h{i % 97}.example/{i}" for i in range(2000)]
    assert queue.put(tasks).added == 2000
    met: list[str] = []
    while leases := queue.claim(150):
        met += [lease.task for lease in leases]
        assert {lease.shard for lease in leases} <= set(range(SHARDS))
        assert queue.ack(leases).ok == len(leases)
    assert sorted(met) == sorted(tasks)
    assert queue.drained()
    stats = queue.stats()
    assert (stats.done, stats.counters["acked"], stats.counters["put"]) == (2000, 2000, 2000)
    assert sum(shard.done for shard in stats.shards) == 2000
    assert all(shard.done for shard in stats.shards)


def test_a_claim_gets_what_is_ready_wherever_it_is(queue: Any) -> None:
    tasks = one_of_each()
    assert queue.claim(10) == []
    queue.put(tasks)
    assert sorted(lease.task for lease in queue.claim(10)) == sorted(tasks)
    assert queue.claim() == []
    for task in one_of_each("u{}"):
        queue.put(task)
        (lease,) = queue.claim(3)
        assert lease.task == task


def test_a_claim_waits_for_a_task_in_any_shard(queue: Any, url: str) -> None:
    queue.put("first")
    queue.ack(queue.claim())
    with ShardedQueue(queue.name, url) as other:
        for task in one_of_each("w{}")[:2]:
            timer = threading.Timer(0.05, other.put, [task])
            timer.start()
            began = time.monotonic()
            (lease,) = queue.claim(wait=10)
            assert time.monotonic() - began < 3
            assert lease.task == task
            queue.ack(lease)
            timer.join()


def test_a_claim_takes_over_what_expired_and_what_is_due_in_any_shard(queue: Any) -> None:
    tasks = one_of_each()
    queue.put(tasks)
    assert len(queue.claim(10, timeout=0.02)) == SHARDS
    queue.schedule(one_of_each("s{}"), after=0.02)
    found: list[str] = []

    def has_all() -> bool:
        found.extend(lease.task for lease in queue.claim(10))
        return len(found) == 2 * SHARDS

    wait_until(has_all)
    assert sorted(found) == sorted([*tasks, *one_of_each("s{}")])
    assert queue.stats().counters["expired"] == SHARDS


def test_a_claim_gets_no_more_than_it_asks_for_though_tasks_of_other_shards_are_due(queue: Any) -> None:
    for shard in (1, 2):
        queue.schedule([task for i in range(99) if shard_of(task := f"s{i}") == shard][:10], after=0.01)
    queue.put(one_of_each()[0])
    wait_until(lambda: (stats := queue.stats()).now > stats.next_due)
    assert len(queue.claim(10)) <= 10


def test_a_claim_that_waits_finds_the_shards_of_a_queue_that_is_made_meanwhile(url: str, name: str) -> None:
    with ShardedQueue(name, url) as waits, ShardedQueue(name, url, shards=3) as makes:
        assert waits.claim() == []
        timer = threading.Timer(0.1, makes.put, ["a"])
        timer.start()
        assert [lease.task for lease in waits.claim(wait=5)] == ["a"]
        timer.join()
        makes.purge()


def test_a_claim_leaves_a_shard_alone_that_did_not_answer_unless_too_few_are_left(queue: Any) -> None:
    claim = claims.Claim(queue.shards, 1, None, None, 0.0)
    assert list(claim._heard([3, 1], [Unavailable("away"), []])) == [(1, [])]
    assert claim._present() == [0, 1, 2, 4]
    assert list(claim._heard([0, 2, 4], [Unavailable("away")] * 3)) == []
    assert claim._present() == list(range(SHARDS))


def test_a_task_that_lost_two_leases_is_handed_out_alone(queue: Any) -> None:
    suspect, *others = one_of_each()
    queue.put(suspect)
    for _ in range(2):
        assert queue.claim(timeout=0.01)
        wait_until(lambda: queue.requeue_expired() == 1)
    queue.put(others)
    seen: list[str] = []
    while len(seen) < SHARDS:
        leases = queue.claim(10)
        if any(lease.task == suspect for lease in leases):
            assert len(leases) == 1
        # what came from the other shards is ready again at once, and has lost no lease
        stats = queue.stats()
        assert (stats.in_progress, stats.counters["expired"]) == (len(leases), 2)
        seen += [lease.task for lease in leases]
        queue.ack(leases)
    assert sorted(seen) == sorted([suspect, *others])


def test_pull_takes_the_tasks_of_one_shard_and_none_only_when_none_is_ready(queue: Any) -> None:
    tasks = one_of_each()
    queue.put(tasks)
    met: list[str] = []
    while found := queue.pull(10):
        met += [task.task for task in found]
    assert sorted(met) == sorted(tasks)
    assert queue.pull(10) == []


def test_pull_takes_from_the_shard_that_has_most(queue: Any) -> None:
    for task in one_of_each():
        queue.put(task)
    deep = [task for i in range(50) if shard_of(task := f"d{i}") == 3]
    queue.put(deep)
    assert len(queue.pull(50)) == 1 + len(deep) > 2


# ---- leases


def test_leases_are_extended_released_failed_and_acked_in_their_shards(queue: Any) -> None:
    tasks = one_of_each()
    queue.put(tasks)
    leases = queue.claim(10)
    assert queue.extend(leases, 9).ok == SHARDS
    longer = queue.extend(leases[0], 60)
    assert longer.deadline > leases[0].deadline + 30
    assert queue.release(leases[0]) is Answer.OK
    with pytest.raises(LeaseLost, match="in todos"):
        queue.ack(leases[0])
    assert queue.fail(leases[1:3], "no", give_up=True).ok == 2
    assert queue.fail(leases[3], ValueError("bad"), retry_in=100) is Answer.OK
    assert list(queue.ack(leases)) == ["lost", "lost", "lost", "lost", "ok"]
    counts = queue.states(tasks).counts()
    assert counts == {"todos": 1, "failed": 2, "scheduled": 1, "done": 1}
    assert {error.error for error in queue.errors()} == {"no", "ValueError: bad"}
    assert queue.retry_failed(leases[1].task) == 1
    assert queue.retry_failed(all=True) == 1


def test_a_lease_of_another_queue_is_refused(queue: Any, url: str) -> None:
    with Queue("plain", url) as plain:
        plain.put("a")
        (lease,) = plain.claim()
        assert lease.shard is None
        with pytest.raises(InvalidInput, match="tokens end with @ and a shard"):
            queue.ack(lease)
        plain.purge()


def test_a_lease_of_a_queue_of_more_shards_is_refused(queue: Any) -> None:
    queue.put("a")
    (lease,) = queue.claim()
    owner = lease.token.rpartition("@")[0]
    for shard in (SHARDS, SHARDS + 1, 999):
        with pytest.raises(InvalidInput, match="tokens end with @ and a shard"):
            queue.ack(replace(lease, token=f"{owner}@{shard}"))


def test_leases_that_fail_together_are_each_tried_again_by_their_own_failures(url: str, name: str) -> None:
    tasks = one_of_each()
    with ShardedQueue(name, url, shards=SHARDS, retry=RetryPolicy(wait_fixed(60), stop_after_attempt(2))) as queue:
        queue.put(tasks[3:])
        queue.fail(queue.claim(10), "no", retry_in=0)
        wait_until(lambda: queue.promote_due() == 2)
        queue.put(tasks[:3])
        leases = sorted((lease for _ in range(SHARDS) for lease in queue.claim(10)), key=lambda lease: lease.attempt)
        assert [lease.attempt for lease in leases] == [1, 1, 1, 2, 2]
        queue.fail(leases, "no")
        assert [str(answer) for answer in queue.states(tasks)] == ["scheduled"] * 3 + ["failed"] * 2
        queue.purge()


@pytest.mark.parametrize(("timeout", "seconds"), [(30.0, 5.0), (12.0, 4.0), (0.5, 1.0)])
def test_a_heartbeat_asks_a_shard_for_a_third_of_the_timeout_and_says_when_none_answers(
    name: str, monkeypatch: pytest.MonkeyPatch, timeout: float, seconds: float
) -> None:
    asked: list[tuple[float, bool, int]] = []

    def settle(talk: Any, calls: Any, replicas: int) -> Any:
        yield from ()
        asked.append((talk.deadline, talk.proved, replicas))
        return [Unavailable("away") for _ in calls]

    monkeypatch.setattr(gathering, "settle", settle)
    leases = [Lease(f"t{shard}", f"w:1:2#1@{shard}", 0.0, fence=7) for shard in range(SHARDS)]
    with ShardedQueue(name, "redis://127.0.0.1:1", shards=SHARDS, timeout=timeout) as queue:
        with pytest.raises(Unavailable):
            next(queue.extension(leases))
        assert asked == [(seconds, True, UNCONFIRMED)] * SHARDS


def test_what_a_claim_took_is_handed_out_though_another_shard_refuses(
    queue: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = one_of_each()
    queue.put(tasks)
    meta = f"{stem(tags(queue.name, SHARDS)[2])}meta"
    schema = raw.hget(meta, "schema")
    raw.hset(meta, "schema", "99")
    monkeypatch.setattr(
        "timeoutq.client.shards.claims.random.sample", lambda shards, many: [0, 1]
    )  # one that refuses is third
    leases = queue.claim(10)
    assert sorted(lease.task for lease in leases) == sorted(set(tasks) - {tasks[2]})
    with pytest.raises(SchemaMismatch):
        queue.claim(10)
    monkeypatch.setattr("timeoutq.client.shards.claims.random.sample", lambda shards, many: [2, 0])
    queue.release(leases)
    assert len(queue.claim(10)) == SHARDS - 1, "also if it is one of the first two"
    raw.hset(meta, "schema", schema)
    assert [lease.task for lease in queue.claim(10)] == [tasks[2]]


def test_a_claim_does_not_say_that_nothing_is_ready_if_no_shard_answers(url: str, name: str) -> None:
    with Proxy(url) as proxy, ShardedQueue(name, proxy.url, shards=SHARDS, deadline=3.0) as queue:
        queue.put(one_of_each())
        queue.release(queue.claim(SHARDS))
        proxy.arm(Fault.RESET_BEFORE, b"", times=None)
        with pytest.raises(Unavailable):
            queue.claim()
    with ShardedQueue(name, url) as queue:
        queue.purge()


def test_an_ack_puts_what_it_found_into_all_shards_and_its_own_shard_last(queue: Any, raw: Any) -> None:
    links = one_of_each("http://{}.example/")
    queue.put("seed")
    (lease,) = queue.claim()
    home = lease.shard
    with raw.monitor() as seen:
        assert queue.ack(lease, put=[*links, Task("g", group="g.example")], again_in=50) is Answer.OK
        raw.echo("end")
        sent = list(iter(lambda: next(seen.listen())["command"], "ECHO end"))
    sent = [line for line in sent if line.startswith("FCALL")]
    own = stem(tags(queue.name, SHARDS)[home])
    acks = [i for i, line in enumerate(sent) if own in line]
    puts = [i for i, line in enumerate(sent) if own not in line]
    assert acks
    assert len(puts) >= SHARDS - 1
    assert max(puts) < min(acks)
    assert set(queue.states(links)) == {Answer.TODOS}
    assert queue.states("seed", "g").counts() == {"scheduled": 1, "todos": 1}


def test_a_claim_that_ctrl_c_interrupts_gives_back_what_it_took_in_all_shards(
    queue: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(one_of_each(), one_of_each("u{}"))
    send: Any = Link.send
    claim = scripts.function("claim").encode()
    with ShardedQueue(queue.name, url) as mine:
        mine.ack(mine.claim(1))
        assert mine.promote_due() == 0  # the client has met all shards: now its claims travel together

        def interrupted(self: Any, commands: Any) -> Any:
            replies = send(self, commands)
            if claim in {command[1] for command in commands}:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return replies

        monkeypatch.setattr(Link, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.claim(4)
        stats = mine.stats()
        assert (stats.todos, stats.in_progress) == (2 * SHARDS - 1, 0)
        assert 3 <= stats.counters["released"] <= 4


def test_a_claim_that_ctrl_c_interrupts_gives_back_what_both_calls_to_one_shard_took(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = [task for task in (f"t{i}" for i in range(200)) if shard_of(task) == 0][:10]
    other = one_of_each()[1]
    send: Any = Link.send
    claim = scripts.function("claim").encode()
    asked: list[list[int]] = []

    def interrupted(self: Any, commands: Any) -> Any:
        replies = send(self, commands)
        counts = [command[-3] for command in commands if claim in command[1:2]]
        asked.extend([counts] * bool(counts))
        if len(asked) == 2:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return replies

    with ShardedQueue(name, url, shards=SHARDS) as queue:
        queue.put(other)
        queue.ack(queue.claim())
        queue.put(deep, other, again=True)
        assert queue.promote_due() == 0
        monkeypatch.setattr("timeoutq.client.shards.claims.random.sample", lambda shards, many: [0, 1])
        monkeypatch.setattr(Link, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.claim(8)
        assert asked == [[4, 4], [3]]
        stats = queue.stats()
        assert (stats.todos, stats.in_progress, stats.counters["released"]) == (11, 0, 8)
        queue.purge()


def test_a_keeper_keeps_leases_of_all_shards_alive(url: str, name: str) -> None:
    tasks = one_of_each()
    with ShardedQueue(name, url, shards=SHARDS, timeout=0.3) as mine:
        lost: list[str] = []
        mine.put(tasks)
        leases = mine.claim(10)
        with mine.keeper(lambda lease, _: lost.append(lease.task)) as keeper:
            keeper.add(*leases)
            assert len(keeper.held) == SHARDS
            wait_until(lambda: len(mine.workers()) == 1)
            assert mine.stats().workers == 1
            ends = time.monotonic() + 0.7
            wait_until(lambda: time.monotonic() > ends)
            assert mine.requeue_expired() == 0
            mine.forget(tasks[0])
            wait_until(lambda: lost == [tasks[0]])
            assert mine.ack(keeper.held).ok == SHARDS - 1
            assert keeper.held == []
        mine.purge()


def test_what_a_heartbeat_extends_waits_for_no_replica(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url, shards=SHARDS, deadline=1.0) as queue:
        queue.put(one_of_each())
        leases = queue.claim(SHARDS)
        for talk in queue.shards.talks:
            # configure() refuses this: the server has no replica, as a primary after a failover
            raw.hset(talk.operations.key("meta"), mapping={"uses": "durable", "durable": 1})
            talk.durable.until = 0.0
        with pytest.raises(NotReplicated):
            queue.extend(leases)
        assert queue.run(queue.extension(leases)).ok == len(leases) > 0
        queue.purge()


def test_a_keeper_in_an_event_loop_keeps_leases_of_all_shards_alive(url: str, name: str) -> None:
    async def body() -> list[Answer]:
        async with AsyncShardedQueue(name, url, shards=SHARDS, timeout=0.3) as queue, queue.keeper() as keeper:
            await queue.put(one_of_each())
            leases = await queue.claim(10)
            keeper.add(*leases)
            await asyncio.sleep(0.7)
            assert await queue.requeue_expired() == 0
            return list(await queue.ack(leases))

    assert asyncio.run(body()) == [Answer.OK] * SHARDS
    with ShardedQueue(name, url) as queue:
        queue.purge()


# ---- groups, hosts and priorities


def test_an_id_that_was_put_with_a_group_is_found_wherever_it_is(queue: Any) -> None:
    task, group = next((f"t{i}", f"g{i}") for i in range(99) if shard_of(f"t{i}") != shard_of(f"t{i}", f"g{i}"))
    assert queue.states(task).counts() == {"unknown": 1}
    queue.put(task, group=group)
    assert queue.states(task, "never").counts() == {"todos": 1, "unknown": 1}
    assert queue.inspect(task).state == "todos"
    assert queue.why(task).code == "no_worker"
    assert queue.why("never").code == "unknown"
    queue.put(task)  # once more, without its group
    assert list(queue.forget(task, "never")) == ["todos", "unknown"]
    assert queue.inspect(task).state is None
    assert queue.stats().known == 0


def test_forget_forgets_an_id_in_each_shard_in_which_it_has_a_group(queue: Any) -> None:
    groups = one_of_each("g{}.example")
    for group in groups[:3]:
        queue.put(Task("same", group=group))
    queue.ack(queue.claim())
    assert queue.stats().known == 3
    assert queue.forget("same").counts() != {"unknown": 1}
    assert queue.stats().known == 0


def test_a_task_is_not_called_unknown_while_a_shard_that_may_have_it_tells_nothing(queue: Any, raw: Any) -> None:
    group = next(group for i in range(99) if shard_of("t", group := f"g{i}.example") != shard_of("t"))
    queue.put("t", group=group)
    meta = queue.shards.talks[shard_of("t", group)].operations.key("meta")
    raw.rename(meta, "aside")
    raw.set(meta, "a string")
    for ask in (queue.inspect, queue.why):
        with pytest.raises(ServerError, match=f"shard {shard_of('t', group)} of queue"):
            ask("t")
    raw.rename("aside", meta)
    assert queue.inspect("t").state == "todos"


def test_a_state_that_one_shard_tells_goes_before_the_silence_of_another(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(*_: object) -> Any:
        yield from ()
        return {0: Unavailable("away"), 1: [Outcome([b"a", b"b"], b"tu")]}

    monkeypatch.setattr(gathering, "gather", gather)
    flow: Any = sharded_flows._asked(queue.shards, [b"a", b"b"], {0: [0, 1], 1: [0, 1]}, lambda *_: [])
    with pytest.raises(ShardsUnavailable) as told:
        next(flow)
    assert [str(answer) for answer in told.value.outcome or ()] == ["todos", "unanswered"]


def test_a_queue_that_was_made_anew_without_groups_learns_of_a_group_that_is_put(
    queue: Any, url: str, raw: Any
) -> None:
    meta = f"timeoutq:{{{queue.name}}}:meta"
    queue.put("a", group="g.example")
    assert queue.states("a").counts() == {"todos": 1}
    with ShardedQueue(queue.name, url) as other:
        other.purge()
        with ShardedQueue(queue.name, url, shards=SHARDS) as third:
            third.put("b")
        assert raw.hget(meta, "groups") is None
        queue.put("a", group="h.example")
        assert raw.hget(meta, "groups") == "1"


def test_a_group_of_a_link_in_the_own_shard_is_noted_too(queue: Any) -> None:
    links = one_of_each("l{}")
    queue.put("seed")
    (lease,) = queue.claim()
    task, group = next(
        (f"t{i}", f"g{i}") for i in range(999) if shard_of(f"t{i}", f"g{i}") == lease.shard != shard_of(f"t{i}")
    )
    queue.ack(lease, put=[*links, Task(task, group=group)])
    assert queue.states(task).counts() == {"todos": 1}


def test_without_groups_only_one_shard_is_asked_about_an_id(queue: Any, raw: Any) -> None:
    queue.put("a")
    with raw.monitor() as seen:
        queue.states("a", "b")
        queue.inspect("a")
        raw.echo("end")
        sent = list(iter(lambda: next(seen.listen())["command"], "ECHO end"))
    shards = {shard for shard in range(SHARDS) if any(stem(tags(queue.name, SHARDS)[shard]) in line for line in sent)}
    assert shards == {shard_of("a"), shard_of("b")}


def test_a_polite_sharded_queue_visits_each_host_as_a_plain_one_does(queue: Any) -> None:
    queue.configure(politeness=Politeness(delay=100, per_host=1))
    tasks = [f"https://h{i}.example/{n}" for i in range(12) for n in range(3)]
    queue.put(tasks)
    queue.put("https://h3.example/first", priority=5)
    leases = queue.claim(100)
    assert len({lease.task.split("/")[2] for lease in leases}) == len(leases) == 12
    info = queue.hosts.inspect("h3.example")
    assert (info.waiting, info.busy, info.next_task) == (3, 1, "https://h3.example/first")
    assert queue.hosts.set("h3.example", budget=1).budget == 1
    assert queue.hosts.block("https://h4.example/x", for_=60).blocked_until
    assert queue.hosts.unblock("h4.example").blocked_until is None
    queue.hosts.ban("h5.example", "no")
    assert {host.host for host in queue.hosts.each()} == {f"h{i}.example" for i in range(12)}
    met, cursor = [], None
    while True:
        page = queue.hosts.list(cursor, 3)
        met += [host.host for host in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(met) == sorted(f"h{i}.example" for i in range(12))
    assert queue.why("https://h3.example/1").code == "host_busy"
    assert queue.put("https://h3.example/1", priority=9, improve=True).counts() == {"raised": 1}
    queue.release(leases, block_host=5)
    stats = queue.stats()
    assert (stats.hosts, stats.politeness) == (12, Politeness(100, 1))
    queue.configure(politeness="off")


def test_a_priority_of_a_task_without_a_host_is_refused_before_anything_is_put(queue: Any) -> None:
    queue.configure(politeness=Politeness(delay=0, per_host=100))
    sites = one_of_each("https://h{}.example/")
    with pytest.raises(InvalidInput, match="'nohost' belongs to no host"):
        queue.put(*sites, "nohost", priority=5)
    with pytest.raises(InvalidInput, match="belongs to no host"):
        queue.schedule(*(Task(site, priority=2) for site in sites), Task("nohost", priority=0), after=9)
    assert queue.stats().known == 0
    queue.put(sites[0])
    (lease,) = queue.claim()
    with pytest.raises(InvalidInput, match="belongs to no host"):
        queue.ack(lease, put=[*sites[1:], Task("nohost", priority=5)])
    assert queue.stats().known == 1
    assert queue.put(*sites, "nohost", priority=5, group="g.example").added == 6


def test_by_id_a_queue_spreads_hosts_and_is_never_polite(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=SHARDS, by="id") as queue:
        queue.put([f"https://a.example/{i}" for i in range(100)])
        assert all(shard.todos for shard in queue.stats().shards)
        assert queue.states("https://a.example/1").counts() == {"todos": 1}
        with pytest.raises(InvalidInput, match='politeness needs a queue with by="host"'):
            queue.configure(politeness=Politeness(1, 1))
        queue.purge()


# ---- when a shard does not answer


def test_a_shard_that_fails_is_named_and_the_others_are_done(queue: Any, raw: Any) -> None:
    tasks = one_of_each()
    queue.put(tasks)
    bad = stem(tags(queue.name, SHARDS)[2])
    raw.set(bad + "meta:x", 1)
    raw.rename(bad + "meta", bad + "kept")
    raw.set(bad + "meta", "a string")
    with pytest.raises(Exception, match=f"shard 2 of queue {queue.name}: a key of the queue .* is of a foreign type"):
        queue.pause()
    raw.rename(bad + "kept", bad + "meta")
    raw.delete(bad + "meta:x")
    assert [shard.paused for shard in queue.stats().shards] == [True, True, False, True, True]
    queue.pause()
    assert queue.stats().paused
    queue.resume()


def test_a_shard_that_met_an_error_is_sent_nothing_more(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WORDS", 1)  # each call is sent by itself
    tasks = one_of_each()
    queue.put(tasks[:1])

    def put(shard: int, task: str | Task) -> Any:
        talk = queue.shards.talks[shard]
        return talk.operations.put_checked(arguments.tasks((task,)), talk.nonce)

    refused = Task(tasks[2], priority=7)  # this queue is not polite
    calls = {shard: [*put(shard, refused if shard == 2 else tasks[shard]), *put(shard, f"{shard}")] for shard in (1, 2)}
    found = queue.run(gathering.gather(queue.shards, calls))
    assert isinstance(found[2], InvalidInput)
    assert [outcome.added for outcome in found[1]] == [1, 1]
    assert queue.stats().todos == 1 + 2


def test_the_error_of_some_shards_survives_a_pickle() -> None:
    import pickle

    error = ShardsUnavailable("shard 2", shards={2: LeaseLost("x", task="t")}, outcome=None)
    again = pickle.loads(pickle.dumps(error))  # our own
    assert (str(again), list(again.shards), again.outcome) == ("shard 2", [2], None)


@pytest.mark.parametrize("kind", [ShardedQueue, AsyncShardedQueue])
def test_when_a_shard_has_moved_the_clock_of_its_server_alone_is_forgotten(kind: Any) -> None:
    queue = kind("q", "redis+cluster://127.0.0.1:1", shards=3)
    talks = (queue.shards.root, *queue.shards.talks)
    for talk in talks:
        talk.clock.seen(1_000_000, time.monotonic())
    queue._moved(talks[2].at)
    assert [talk.clock.now_ms > 0 for talk in talks] == [True, True, False, True]


def test_tasks_run_once_more_in_their_shards_put_by_a_put_or_an_ack(queue: Any) -> None:
    tasks = one_of_each()
    queue.put(dict.fromkeys(tasks, 1))
    leases: list[Lease] = []
    while len(leases) < len(tasks):
        leases += queue.claim(10)
    assert queue.put([Task(tasks[0], 2, rerun=True), Task(tasks[1], 2)]).counts() == {"rerun": 1, "in_progress": 1}
    first, *others = sorted(leases, key=lambda lease: tasks.index(lease.task))
    assert queue.ack(first, put=[Task(task, 3, rerun=task != tasks[1]) for task in tasks]) == "ok"
    queue.ack(others)
    found: dict[str, Any] = {}
    while len(found) < len(tasks) - 1:
        found |= {lease.task: lease.payload for lease in queue.claim(10)}
    assert found == {task: 3 for task in tasks if task != tasks[1]}
    with pytest.raises(InvalidInput, match="rerun=True has a run begin after a put"):
        queue.schedule(Task("a", rerun=True), after=1)
