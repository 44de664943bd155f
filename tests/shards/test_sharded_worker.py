"""A worker on a queue over several shards: it claims from all of them, and each end goes where its task is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.rig.invariants import check
from tests.rig.proxy import Fault, Proxy
from tests.worker.working import ended, until
from timeoutq import Ack, GiveUp, InvalidInput, Lease, Release, Retry, Task, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.route import tags
from timeoutq.client.shards.working import tended, tenders
from timeoutq.server.calls import BYTES
from timeoutq.verbs.sending import answer
from timeoutq.worker.runs import Run

SHARDS = 5
PAGES = [f"https://h{i}.example/" for i in range(60)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over five shards; after the test each shard is sound."""
    with ShardedQueue(name, url, shards=SHARDS, timeout=5) as opened:
        yield opened
        for tag in tags(name, SHARDS):
            check(url, tag)
        opened.purge()


@asynccontextmanager
async def working(queue: ShardedQueue, handler: Any, **settings: Any) -> AsyncIterator[Worker]:
    """Give a worker that runs, and ends with the block."""
    async with AsyncShardedQueue(queue.name, queue.given[0], timeout=queue.timeout) as mine:
        worker = Worker(mine, handler, signals=False, **settings)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            if not settings.get("burst"):
                worker.stop()
            await ended(running)


async def nothing(lease: Lease) -> None:
    """Do nothing."""


def counters(queue: ShardedQueue) -> Counter[str]:
    return Counter(queue.stats().counters)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_worker_does_the_tasks_of_all_shards_and_ends_when_all_are_drained(
    queue: ShardedQueue, in_thread: bool
) -> None:
    queue.put(PAGES)
    queue.schedule("later", after=0.3)
    met: list[str] = []
    running: set[str] = set()

    async def in_loop(lease: Lease) -> None:
        met.append(lease.task)
        running.add(lease.task)
        assert len(running) <= 7, "the shards have one limit of handlers"
        await asyncio.sleep(0.001)
        running.remove(lease.task)

    def thread(lease: Lease) -> None:
        met.append(lease.task)

    async with working(queue, thread if in_thread else in_loop, concurrency=7, burst=True) as worker:
        pass
    assert sorted(met) == sorted([*PAGES, "later"])
    assert (worker.tally.end, worker.tally.acked, worker.held) == ("drained", 61, {})
    assert queue.stats().done == 61
    assert min(shard.done for shard in queue.stats().shards) > 0


async def test_ends_of_every_kind_go_to_the_shards_of_their_tasks(queue: ShardedQueue) -> None:
    kinds: dict[str, Any] = {
        "fail": GiveUp("no"), "retry": Retry(600.0), "later": Release(delay=600.0), "again": Ack(again_in=600.0),
    }  # fmt: skip

    async def handler(lease: Lease) -> Any:
        kind = lease.task.partition("-")[0]
        if kind in ("fail", "retry"):
            raise kinds[kind]
        return kinds.get(kind)

    queue.put(f"{kind}-{i}" for kind in ("done", *kinds) for i in range(20))
    async with working(queue, handler, concurrency=10) as worker:
        await until(lambda: queue.stats().in_progress == 0 == queue.stats().todos)
        await until(lambda: not worker.held)
    stats = queue.stats()
    assert (stats.done, stats.failed, stats.scheduled) == (20, 20, 60)
    assert worker.tally.lost == 0


async def test_what_handlers_find_goes_to_its_shards_before_the_ack(queue: ShardedQueue) -> None:
    """A crawl: each page links to others, of its own host and of other hosts, with payloads and groups."""
    depth = {"https://h0.example/": 0}

    async def handler(lease: Lease) -> Any:
        level = depth[lease.task]
        if level == 4:
            return None
        links = [f"{lease.task}{i}/" for i in range(2)] + [f"https://h{level}-{i}.example/" for i in range(12)]
        for link in links:
            depth.setdefault(link, level + 1)
        met.append(lease.task)
        return Ack(put=[*(Task(link, {"from": lease.task}) for link in links[:7]), *links[7:]])

    met: list[str] = []
    queue.put("https://h0.example/")
    async with working(queue, handler, concurrency=20, burst=True) as worker:
        pass
    assert worker.tally.end == "drained"
    assert queue.states(list(depth)).counts() == {"done": len(depth)}
    assert len(depth) > 60
    assert counters(queue)["acked"] == len(depth), "no page was done twice"
    assert queue.stats().in_progress == 0


async def test_a_worker_that_stops_gives_the_tasks_of_all_shards_back(queue: ShardedQueue) -> None:
    async def hang(lease: Lease) -> None:
        await asyncio.sleep(600)

    queue.put(PAGES)
    async with working(queue, hang, concurrency=40, prefetch=10) as worker:
        await until(lambda: len(worker.held) >= 40)
        assert len({lease.shard for lease in worker.held.values()}) > 1
        worker.stop(now=True)
    stats = queue.stats()
    assert (stats.todos, stats.in_progress) == (60, 0)
    assert stats.counters.get("expired", 0) == 0


async def test_leases_of_two_shards_with_the_same_fence_are_two(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        one, other = (Lease(f"t{i}", f"w:1:2#1@{i}", 0.0, fence=7) for i in range(2))
        own.took([one, other])
        assert len(own.held) == 2
        own.done(one.key, one, None)
        assert [[lease.task for lease in ends.acks] for ends in own.shards] == [["t0"], [], [], [], []]


async def test_after_one_shard_has_refused_what_was_found_nothing_of_it_goes_to_the_others(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own, lease = Worker(mine, nothing, signals=False)._leases[0], Lease("t", "w:1:2#1@0", 0.0, fence=7)
        own.divide()
        own.took([lease])
        own.finished(Run(lease, None, 0.0), Ack(put=PAGES), raised=False)
        first, *others = [ends for ends in own.shards if ends.puts]
        (sent,) = first.take()
        assert sent.verb == "put" and len(others) > 1
        own.refused(sent, InvalidInput("no"))
        taken = [call for ends in own.shards for call in ends.take()]
    assert [(call.verb, call.found, call.leases) for call in taken] == [("fail", 0, [lease])]
    assert not any(map(len, own.shards))


@pytest.fixture
def others(queue: ShardedQueue) -> list[str]:
    """Two workers that tend every shard, as far as their signs of life go, and do nothing."""
    queue.put("first")
    queue.forget("first")

    def beat(worker: str) -> None:
        queue.run(answer(queue.talk, queue.operations.beat(worker, {"tends": []})))

    asleep = [f"h:1:{i:x}" for i in range(400)]
    best = {shard: tenders(asleep, shard) for shard in range(SHARDS)}
    names = sorted({name for two in best.values() for name in two})
    for name in names:
        beat(name)
    return names


@pytest.mark.breaking
async def test_a_worker_that_tends_nothing_helps_and_cleans_where_nobody_does(
    queue: ShardedQueue, others: list[str]
) -> None:
    assert others
    queue.put(PAGES[:10])
    held = queue.claim(10, timeout=0.3)
    queue.schedule("later", after=0.2)
    async with working(queue, nothing) as worker:
        tending = worker_tending(worker)
        await until(lambda: tending() is not None)
        queue.put(PAGES)
        await until(lambda: queue.stats().done == 61)
        assert len(tending() or []) <= 1, "the name of this worker may be the best for one shard"
    assert counters(queue)["expired"] == len(held)
    assert next(one for one in queue.workers() if one.worker == others[0]).tends == ()


async def test_two_workers_tend_each_shard_and_workers_shows_which(queue: ShardedQueue) -> None:
    queue.put("first")
    async with working(queue, nothing) as one, working(queue, nothing) as other:
        await until(lambda: [found.tends for found in queue.workers()] == [tuple(range(SHARDS))] * 2)
        queue.put(PAGES)
        await until(lambda: queue.stats().done == 61)
        await until(lambda: one.peers == other.peers == 2)
    assert one.tally.acked + other.tally.acked == 61


def worker_tending(worker: Worker) -> Any:
    def tends() -> list[int] | None:
        work = worker._pump and worker._pump.works[0]
        return work.tended if work and work.shards else None

    return tends


def test_a_worker_that_comes_or_goes_changes_only_its_own_shards() -> None:
    workers = [f"host{i}:{i}:ab" for i in range(10)]
    before = {worker: set(tended(worker, workers, 48)) for worker in workers}
    assert sorted(Counter(shard for some in before.values() for shard in some).values()) == [2] * 48
    assert all(some for some in before.values())
    left = workers[1:]
    after = {worker: set(tended(worker, left, 48)) for worker in left}
    assert all(before[worker] <= after[worker] for worker in left), "nobody loses a shard because another has gone"
    gained = set[int]().union(*(after[worker] - before[worker] for worker in left))
    assert gained == before[workers[0]]
    assert tended("alone", [], 48) == list(range(48))


@pytest.mark.parametrize("size", [1, BYTES // 8], ids=["in parcels", "long acks"])
async def test_results_go_to_the_shards_of_their_tasks_after_what_was_found_for_others(
    queue: ShardedQueue, raw: Any, size: int
) -> None:
    async def handler(lease: Lease) -> Ack:
        if lease.task.endswith("/found"):
            return Ack(keep_id=False)
        links = {f"https://h{i}.example/{lease.task[9:]}found": b"x" * size for i in range(12)}
        return Ack(put=links, result=lease.task.encode(), keep_id=lease.task != PAGES[0])

    pages = PAGES[:10]
    queue.put(pages)
    async with working(queue, handler, concurrency=20, burst=True) as worker:
        found = await asyncio.to_thread(queue.results.wait, pages, timeout=30)
    assert {task: one.result for task, one in found.items()} == {task: task.encode() for task in pages}
    assert [task for task, one in found.items() if one.state is None] == [PAGES[0]]
    assert queue.stats().done == len(pages) - 1
    assert worker.tally.acked == len(pages) * 13
    assert len({key.split("}")[0] for key in raw.scan_iter("*:result:*")}) > 1


async def test_ends_that_cannot_be_sent_are_told_of_all_shards(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun = list[str]()

    async def handler(lease: Lease) -> None:
        begun.append(lease.task)
        await asyncio.sleep(60)

    with ShardedQueue(name, url, shards=2) as queue:
        queue.put(*(f"t{i}" for i in range(10)))
    with Proxy(url) as proxy:
        async with AsyncShardedQueue(name, proxy.url, shards=2, timeout=5, deadline=0.5) as mine:
            worker = Worker(mine, handler, concurrency=10, signals=False, drain_deadline=0)
            running = asyncio.create_task(worker.run())
            await until(lambda: len(begun) == 10)
            proxy.arm(Fault.HALF_OPEN, b"", times=None)
            worker.stop()
            await ended(running)
    (line,) = [message for message in caplog.messages if "could not end" in message]
    assert "could not end 10 leases: " in line
