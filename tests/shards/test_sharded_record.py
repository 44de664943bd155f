"""A sharded queue as a whole: pages, settings, drained; its record in Redis, who may open it, and its purge."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.rig.sharded import SHARDS, one_of_each
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue, SchemaMismatch
from timeoutq.client.shards import ShardedQueue, looking, open_async_queue, open_queue
from timeoutq.words.model import Answer

# ---- the queue as a whole


def test_pages_and_walks_go_from_shard_to_shard(queue: Any) -> None:
    tasks = [f"t{i}" for i in range(300)]
    queue.put(tasks)
    assert sorted(entry.task for entry in queue.each("todos")) == sorted(tasks)
    met, cursor = list[str](), None
    while True:
        page = queue.list("todos", cursor, 40)
        met += [entry.task for entry in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(set(met)) == sorted(tasks)
    for bad in ("7", "99.0", "x", "0.y"):
        with pytest.raises(InvalidInput, match="cursor"):
            queue.list("todos", bad)


def test_pause_configure_and_the_cleaner_reach_all_shards(queue: Any) -> None:
    queue.put(one_of_each())
    queue.pause()
    assert queue.claim(10) == []
    assert queue.stats().paused
    queue.configure(keep_done=0, max_crashes=1)
    queue.resume()
    leases = queue.claim(10, timeout=0.01)
    assert len(leases) == SHARDS
    wait_until(lambda: queue.stats().now > max(lease.deadline for lease in leases))
    assert queue.requeue_expired() == SHARDS
    assert queue.stats().failed == SHARDS
    assert {shard.settings["keep_done"] for shard in queue.stats().shards} == {"no"}
    assert queue.prune() == 0
    queue.schedule(one_of_each("s{}"), after=0)
    assert queue.promote_due() == SHARDS
    assert queue.history() == []
    assert "redis_version" in queue.server()


def test_no_shard_begins_to_keep_fingerprints_while_another_has_tasks(queue: Any, url: str) -> None:
    queue.put("a")
    with pytest.raises(InvalidInput, match="only while a queue has no tasks"):
        queue.configure(keep_done="compact")
    with ShardedQueue(queue.name, url, keep_done="compact") as other, pytest.raises(InvalidInput, match="no tasks"):
        other.put("b")
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {None}
    with pytest.raises(InvalidInput, match="only while a queue has no tasks"):
        # written only where there is no such setting yet
        queue.run(queue.flows._configure({"keep_done?": b"compact"}))
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {None}
    queue.forget("a")
    queue.configure(keep_done="compact")
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {"compact"}
    queue.put("a")
    queue.ack(queue.claim())
    with pytest.raises(InvalidInput, match="keeps 1 done tasks as fingerprints"):
        queue.configure(keep_done=10)
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {"compact"}


def test_drained_counts_all_shards(queue: Any) -> None:
    assert queue.drained()
    for task in one_of_each():
        queue.put(task)
        assert not queue.drained()
        (lease,) = queue.claim()
        assert not queue.wait_drained(0)
        queue.ack(lease)
        assert queue.wait_drained(1)
    queue.schedule("later", after=1000)
    assert not queue.drained()
    assert queue.drained(before=time.time() + 10)
    queue.forget("later")


def test_a_task_that_moves_behind_the_observer_is_seen_by_the_second_look(url: str, name: str) -> None:
    first, *_, last = one_of_each()
    with ShardedQueue(name, url, shards=SHARDS) as queue, ShardedQueue(name, url) as worker:
        queue.put(last)
        (lease,) = worker.claim()
        assert not queue.drained()
        link: Any = queue._link()  # pyright: ignore[reportPrivateUsage]  # to do something between two looks
        flow = looking.drained(queue.shards, None)
        step: Any = next(flow)
        looks = 0
        with pytest.raises(StopIteration) as end:
            while True:
                lists = [part.commands for part in step.parts]
                replies = link.send_all(lists[:-1], [None] * (len(lists) - 1))
                looks += 1
                if looks == 1:  # the shard of `first` was quiet when it was looked at, and so will be the last one
                    worker.ack(lease, put=first)
                step = flow.send([*replies, *link.send_all(lists[-1:], [None])])
        assert end.value.value is False
        assert looks == 2
        queue.purge()


# ---- what it is in Redis, and who may open it


def test_the_record_says_how_many_shards_there_are(queue: Any, raw: Any) -> None:
    assert not queue.exists()
    assert queue.claim() == []
    assert not raw.exists(f"timeoutq:{{{queue.name}}}:meta"), "a claim makes no queue"
    queue.put("a")
    assert queue.exists()
    assert raw.hgetall(f"timeoutq:{{{queue.name}}}:meta") == {"schema": "s1", "shards": f"{SHARDS} host v1"}
    queue.put("a", group="g")
    assert raw.hget(f"timeoutq:{{{queue.name}}}:meta", "groups") == "1"


def test_a_plain_client_is_refused_by_name(queue: Any, url: str) -> None:
    with Queue(queue.name, url) as early:
        assert early.claim() == []
        queue.put("a")
        # also one that was there before the queue was
        for call in (lambda: early.put("b"), early.claim, early.stats):
            with pytest.raises(InvalidInput, match="is sharded: open it with timeoutq"):
                call()
    with Queue(queue.name, url) as plain, pytest.raises(InvalidInput, match=f"{queue.name}: the queue is sharded"):
        plain.list("todos")


def test_another_number_of_shards_is_refused_by_name(queue: Any, url: str) -> None:
    queue.put("a")
    others: list[dict[str, Any]] = [{"shards": 7}, {"by": "id"}]
    for other in others:
        with ShardedQueue(queue.name, url, **other) as wrong:
            for _ in range(2):
                with pytest.raises(InvalidInput, match=f"has {SHARDS} shards by host, not"):
                    wrong.put("b")
    with ShardedQueue(queue.name, url) as right:
        assert right.states("a").counts() == {"todos": 1}
        assert len(right.stats().shards) == SHARDS


def test_a_later_route_or_layout_is_refused(url: str, name: str, raw: Any) -> None:
    later: Any = ({"schema": "s2", "shards": "4 host v1"}, {"schema": "s1", "shards": "4 host v2"})
    for fields in later:
        raw.hset(f"timeoutq:{{{name}}}:meta", mapping=fields)
        with ShardedQueue(name, url) as queue, pytest.raises(SchemaMismatch, match="upgrade"):
            queue.put("a")
    for words in ("many", "0 host v1", "1 host v1", "9999 host v1"):
        raw.hset(f"timeoutq:{{{name}}}:meta", mapping={"schema": "s1", "shards": words})
        with ShardedQueue(name, url) as queue, pytest.raises(InvalidInput, match="by hand"):
            queue.put("a")
    raw.delete(f"timeoutq:{{{name}}}:meta")


def test_a_queue_has_twelve_shards_unless_somebody_says_otherwise(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url) as queue:
        queue.put("a")
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "12 host v1"
        queue.purge()
    for bad in (0, -1, 1001, "12", 2.5, True):
        with pytest.raises(InvalidInput, match="shards must be a whole number"):
            ShardedQueue(name, url, shards=bad)  # type: ignore[arg-type]  # what it refuses
    with pytest.raises(InvalidInput, match="one shard is a plain queue"):
        ShardedQueue(name, url, shards=1)
    with pytest.raises(InvalidInput, match='by must be "host" or "id"'):
        ShardedQueue(name, url, by="group")  # type: ignore[arg-type]  # what it refuses


async def opened_async(name: str, url: str, **settings: Any) -> str:
    queue = await open_async_queue(name, url, **settings)
    await queue.close()
    return type(queue).__name__


def test_one_call_opens_a_queue_as_what_it_is(queue: Any, url: str, name: str) -> None:
    assert type(open_queue(name, url)) is Queue
    assert type(open_queue(name, url, shards=3)) is ShardedQueue
    queue.put("a")
    with open_queue(name, url, timeout=7) as found:
        assert type(found) is ShardedQueue
        assert found.timeout == 7
        assert found.states("a").counts() == {"todos": 1}
    with open_queue(name, url, shards=1) as plain, pytest.raises(InvalidInput, match="is sharded"):
        plain.put("b")
    assert asyncio.run(opened_async(name, url)) == "AsyncShardedQueue"
    assert asyncio.run(opened_async("other", url)) == "AsyncQueue"
    assert asyncio.run(opened_async("other", url, shards=2)) == "AsyncShardedQueue"


def test_a_client_that_puts_into_a_purged_queue_makes_it_again(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url, shards=3) as one, ShardedQueue(name, url) as other:
        one.put("a")
        assert other.states("a").counts() == {"todos": 1}
        other.put("a")
        one.purge()
        assert list(other.put("b")) == [Answer.ADDED], "the record was seen a moment ago"
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "3 host v1"
        other.purge()


def test_a_client_that_puts_with_groups_says_so_again_when_the_queue_was_purged(queue: Any, url: str) -> None:
    tasks = [f"task {i}" for i in range(20)]
    queue.put(tasks, group="g.example")
    queue.put("another", group="g.example")  # from now on, it has seen the record
    with ShardedQueue(queue.name, url) as other:
        other.purge()
        other.put("https://a.example/")
    queue.put(tasks, group="g.example")
    with ShardedQueue(queue.name, url) as third:
        assert third.states(tasks).counts() == {"todos": 20}
