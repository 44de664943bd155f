"""A worker of a sharded queue, piece by piece: which shard gets the next exchange, which ones the worker tends.

The worker of most tests here does not run, and has no server: each exchange waits for an answer that does not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.sharded import SHARDS, one_of_each
from timeoutq import InvalidInput, Lease, Queue, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.working import LIVE, TENDERS
from timeoutq.verbs.sending import answer
from timeoutq.words.arguments import TaskList
from timeoutq.words.errors import WorkerBroken
from timeoutq.worker.processes.process import run_worker


async def nothing(lease: Lease) -> None:
    """Do nothing."""


# ---- a plain queue, for comparison


def test_a_plain_queue_is_one_part_that_every_worker_tends() -> None:
    with Queue("q", "redis://127.0.0.1:1") as queue:
        plain = queue.division
        leases = [Lease(f"t{i}", "w:1:2#1", 0.0, fence=i) for i in range(3)]
        assert (plain.is_known, len(plain.talks), plain.sharing(7)) == (True, 1, 7)
        assert plain.parted(leases) == [(plain.talks[0], leases)]
        assert plain.parted([]) == []
        assert {plain.which(lease) for lease in leases} == {0}
        assert plain.sorted(leases[0], TaskList([b"a"]))[1] == {}
        assert queue.division.key_of(leases[2]) == 2
        for flow, found in ((plain.tended("w:1:2"), (0,)), (plain.deepest(), None)):
            with pytest.raises(StopIteration) as end:
                next(flow)
            assert end.value.value == found


# ---- who tends what, as the signs of life say


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    with ShardedQueue(name, url, shards=SHARDS) as opened:
        yield opened
        opened.purge()


def lives(queue: ShardedQueue, worker: str, **about: Any) -> None:
    queue.run(answer(queue.talk, queue.operations.beat(worker, about)))


def test_workers_that_live_share_the_shards_and_nobody_else_does(queue: ShardedQueue, raw: Any) -> None:
    def tends(worker: str) -> list[int]:
        return list(queue.run(queue.division.tended(worker)))

    queue.put("a")
    every = list(range(SHARDS))
    assert tends("h:1:me") == every, "before its own first sign of life, too"
    for i in range(20):
        lives(queue, f"h:2:{i:x}", pid=2)  # a program with a keeper
    assert tends("h:1:me") == every
    for i in range(40):
        lives(queue, f"h:3:{i:x}", tends=[])
    assert sum(len(tends(f"h:3:{i:x}")) for i in range(40)) >= (TENDERS - 1) * SHARDS
    assert tends("h:1:me") != every
    workers = queue.operations.key("workers")
    for i in range(40):
        raw.zincrby(workers, -1000 * (LIVE + 2), f"h:3:{i:x}")
    assert tends("h:1:me") == every


def test_a_worker_notices_that_its_queue_was_divided_anew(queue: ShardedQueue, url: str) -> None:
    with ShardedQueue(queue.name, url, shards=SHARDS) as early, ShardedQueue(queue.name, url) as other:
        early.put("a")
        assert early.drained() is False  # it has met the queue, and does not look at the record before each call
        other.purge()
        with ShardedQueue(queue.name, url, shards=2) as anew:
            anew.put("b")
            with pytest.raises(InvalidInput, match="has 2 shards"):
                early.run(early.division.tended("h:1:me"))
            anew.purge()


def test_two_workers_of_many_share_a_shard(queue: ShardedQueue) -> None:
    assert [queue.division.sharing(alive) for alive in (1, 2, 3, 50)] == [1, 2, 2, 2]


def test_a_helper_leaves_what_is_due_just_now_to_the_cleaners(queue: ShardedQueue, raw: Any) -> None:
    queue.put("first")
    queue.ack(queue.claim())
    queue.schedule("later", after=600)
    (shard,) = [i for i, stats in enumerate(queue.stats().shards) if stats.scheduled]
    scheduled = queue.shards.talks[shard].operations.key("scheduled")

    def due(ago_ms: int) -> None:
        seconds, micros = raw.time()
        raw.zadd(scheduled, {"later": seconds * 1000 + micros // 1000 - ago_ms})

    due(-500)
    assert queue.run(queue.division.deepest()) is None
    assert queue.stats().scheduled == 1
    due(5000)
    assert queue.run(queue.division.deepest()) == shard
    assert (queue.stats().todos, queue.stats().scheduled) == (1, 0)
    assert queue.run(queue.division.deepest()) == shard, "it is ready now"


# ---- an event loop that ends


def test_what_ran_when_the_event_loop_was_ended_is_given_back_in_each_shard(queue: ShardedQueue) -> None:
    tasks, began, leaving = one_of_each(), list[str](), list[asyncio.Task[None]]()

    async def leave() -> None:
        raise SystemExit(3)

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        if len(began) == SHARDS:
            leaving.append(asyncio.create_task(leave()))
        await asyncio.sleep(60)

    def worker() -> Worker:
        mine = AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS, timeout=60)
        return Worker(mine, handler, concurrency=SHARDS, signals=False)

    queue.put(tasks)
    with pytest.raises(WorkerBroken, match="raised SystemExit, which ended the event loop"):
        run_worker(worker)
    assert isinstance(leaving[0].exception(), SystemExit)
    assert queue.stats().in_progress == 0
    assert [queue.inspect(task).crashes for task in tasks] == [1] * SHARDS
