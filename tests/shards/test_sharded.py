"""One queue over several shards, on one server: both faces do what a plain queue does."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

import pytest

from tests.rig.sharded import SHARDS, one_of_each, shard_of
from tests.rig.waiting import wait_until
from timeoutq import (
    InvalidInput,
    Lease,
    LeaseLost,
    Politeness,
    Queue,
    Task,
)
from timeoutq.client.shards import ShardedQueue, claims
from timeoutq.client.shards.route import stem, tags
from timeoutq.server import scripts
from timeoutq.server.link import Link
from timeoutq.words.errors import ServerError, Unavailable
from timeoutq.words.model import Answer

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


def test_a_shard_that_was_away_for_a_moment_is_no_error_of_a_claim_that_waits_on(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, plain = count(), claims.depth

    def depth(talk: Any) -> Any:
        if next(asked) == 0:
            raise Unavailable("away")
        return (yield from plain(talk))

    queue.put("a")
    queue.ack(queue.claim(1, wait=5))
    monkeypatch.setattr(claims, "AWAY", 0.0)
    monkeypatch.setattr(claims, "depth", depth)
    assert queue.claim(wait=0.1) == []
