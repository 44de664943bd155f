"""A worker on a queue over several shards: it claims from all of them, and each end goes where its task is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.rig.invariants import check
from tests.worker.test_worker_exchanges import until
from timeoutq import Ack, GiveUp, Lease, Outcome, Release, Retry, Task, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.names import tags
from timeoutq.client.shards.route import key_of, route
from timeoutq.client.shards.working import deeper, tended, tenders
from timeoutq.server.calls import BYTES
from timeoutq.verbs.sending import answer
from timeoutq.words import arguments
from timeoutq.words.arguments import TaskList
from timeoutq.worker.ends import AckOfFound, PutElsewhere

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
            await asyncio.wait_for(running, 60)


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

    async def in_loop(lease: Lease) -> None:
        met.append(lease.task)

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


async def test_what_is_too_much_for_one_call_goes_to_all_shards_too(queue: ShardedQueue) -> None:
    links = [f"https://h{i % 40}.example/{i}" for i in range(1500)]

    async def handler(lease: Lease) -> Any:
        return Ack(put=links) if lease.task == "seed" else None

    queue.put("seed")
    async with working(queue, handler, burst=True) as worker:
        pass
    assert (worker.tally.acked, queue.stats().done) == (1501, 1501)


async def test_tasks_with_groups_that_a_handler_found_are_noted_in_the_record(queue: ShardedQueue) -> None:
    def where(task: str, group: str) -> int:
        return route(key_of(task.encode(), group.encode()), SHARDS)

    found = [Task(f"p{i}", group=f"g{i}.example") for i in range(20)]

    async def handler(lease: Lease) -> Any:
        return Ack(put=found) if lease.task == "seed" else None

    queue.put("seed")
    async with working(queue, handler, burst=True):
        pass
    with ShardedQueue(queue.name, queue.given[0]) as other:
        assert other.states("p1", "p2").counts() == {"done": 2}, "asked in all shards, because there are groups"
        assert other.shards.record.grouped
    stats = queue.stats().shards
    assert sum(stats[where(one.task, one.group or "")].done > 0 for one in found) == 20


async def test_a_group_that_brings_a_link_into_the_shard_of_its_finder_is_noted_too(queue: ShardedQueue) -> None:
    home = route(key_of(b"seed"), SHARDS)
    group = next(g for i in range(99) if route(key_of(b"p", (g := f"g{i}.example").encode()), SHARDS) == home)
    elsewhere = next(task for i in range(99) if route(key_of((task := f"p{i}").encode()), SHARDS) != home)

    async def handler(lease: Lease) -> Any:
        return Ack(put=[Task(elsewhere, group=group)]) if lease.task == "seed" else None

    queue.put("seed")
    async with working(queue, handler, burst=True):
        pass
    with ShardedQueue(queue.name, queue.given[0]) as other:
        assert other.states(elsewhere).counts() == {"done": 1}


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


async def test_own_all_shards_are_kept_alive(url: str, name: str) -> None:
    async def slow(lease: Lease) -> None:
        await asyncio.sleep(1.6)

    with ShardedQueue(name, url, shards=SHARDS, timeout=0.6) as queue:
        queue.put(PAGES[:20])
        async with working(queue, slow, burst=True) as worker:
            pass
        assert (worker.tally.acked, worker.tally.lost) == (20, 0)
        assert counters(queue)["expired"] == 0
        queue.purge()


async def test_a_suspect_runs_alone_among_the_tasks_of_all_shards(queue: ShardedQueue) -> None:
    queue.put("suspect")
    for _ in range(2):
        assert len(queue.claim(timeout=0.05)) == 1
        await until(lambda: queue.requeue_expired() == 1)
    at_once: list[set[str]] = []
    running: set[str] = set()

    async def handler(lease: Lease) -> None:
        running.add(lease.task)
        at_once.append(set(running))
        await asyncio.sleep(0.01)
        running.discard(lease.task)

    queue.put(PAGES)
    async with working(queue, handler, concurrency=10, burst=True) as worker:
        pass
    assert worker.tally.acked == 61
    assert [found for found in at_once if "suspect" in found] == [{"suspect"}]


async def test_own_two_shards_with_the_same_fence_are_two(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        one, other = (Lease(f"t{i}", f"w:1:2#1@{i}", 0.0, fence=7) for i in range(2))
        own.took([one, other])
        assert len(own.held) == 2
        own.done(one.key, one)
        assert own.unattended == {other.key}
        assert [[lease.task for lease in ends.acks] for ends in own.shards] == [["t0"], [], [], [], []]


async def test_a_worker_waits_until_somebody_makes_the_queue(url: str, name: str) -> None:
    async with AsyncShardedQueue(name, url) as mine:
        worker = Worker(mine, nothing, signals=False)
        running = asyncio.create_task(worker.run())
        with ShardedQueue(name, url, shards=3) as queue:
            await until(lambda: mine._opened or mine.shards._seen_at > 0)
            queue.put(PAGES)
            await until(lambda: queue.stats().done == 60)
            worker.stop()
            await running
            queue.purge()


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
        assert one.peers == other.peers == 2
    assert one.tally.acked + other.tally.acked == 61


def worker_tending(worker: Worker) -> Any:
    def tends() -> list[int] | None:
        work = worker._pump and worker._pump.works[0]
        return work.tends() if work and work.tends else None

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


def test_a_helper_goes_to_the_deeper_of_two_shards_that_have_tasks() -> None:
    assert deeper({0: 0, 1: 0}) is None
    assert deeper({}) is None
    assert deeper({0: 0, 1: 3, 2: 0}) == 1
    assert {deeper({0: 5, 1: 3}) for _ in range(20)} == {0}
    assert {deeper({0: 5, 1: 3, 2: 9, 3: 0}) for _ in range(200)} == {0, 2}


async def test_the_ack_waits_until_every_other_shard_has_what_was_found(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        queue.put("seed")
        (lease,) = queue.claim()
        home = lease.shard or 0
        own.took([lease])
        own._give(own._ack_of(lease, Ack(put=PAGES)))
        assert list(own.ending.values()) == [lease]
        assert own.unattended == set()
        away = [ends for number, ends in enumerate(own.shards) if number != home]
        calls = [call for ends in away for call in ends.take()]
        assert [(call.verb, len(call.acks)) for call in calls] == [("put", 1)] * (SHARDS - 1)
        assert 0 < sum(call.found for call in calls) < len(PAGES)
        for call in calls:
            assert not own.shards[home], "the ack is not sent before all other shards have confirmed"
            own.settled(call, Outcome([], b""))
        (ack,) = own.shards[home].take()
        assert (ack.verb, ack.leases) == ("ack", [lease])
        assert ack.found + sum(call.found for call in calls) == len(PAGES)
        queue.release(lease)


async def test_what_several_handlers_found_for_a_shard_goes_in_one_call(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        leases = [Lease(f"t{i}", f"w:1:2#{i}@0", 0.0, fence=i) for i in range(30)]
        own.took(leases)
        other = next(task for task in PAGES if route(key_of(task.encode()), SHARDS) == 3)
        for i, lease in enumerate(leases):
            own._give(own._ack_of(lease, Ack(put=[Task(f"{other}{i}", {"i": i}, f"{other}"[8:-1])])))
        assert not own.shards[3].presses
        (call,) = own.shards[3].take()
        assert (call.verb, call.found, call.grouped, len(call.acks)) == ("put", 30, True, 30)
        own.refused(call, ValueError("no"))
        assert [failure.lease for failure in own.shards[0].fails] == leases
        for i in range(100):
            own.shards[3].put_first(PutElsewhere(AckOfFound(leases[0], TaskList(), -1, None), TaskList([b"%d" % i])))
        assert own.shards[3].presses, "a hundred tasks do not wait until other exchanges have ended"


async def test_what_handlers_found_goes_in_calls_of_500_tasks_at_most(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        lease = Lease("t", "w:1:2#1@0", 0.0, fence=7)
        for tasks in (250, 250, 300, 300, 100, 101):
            found = TaskList([b"%d" % i for i in range(tasks)])
            own.shards[3].put_first(PutElsewhere(AckOfFound(lease, TaskList(), -1, None), found))
        calls = own.shards[3].take()
        assert [(call.found, len(call.acks)) for call in calls] == [(500, 2), (300, 1), (400, 2), (101, 1)]


async def test_what_was_found_for_other_shards_stays_out_once_the_lease_is_ended_in_another_way(
    queue: ShardedQueue,
) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        first, second = (AckOfFound(Lease(f"t{i}", "w:1:2#1@0", 0.0, fence=i), TaskList(), -1, None) for i in range(2))
        for part in (2, 3):
            own.shards[part].put_first(PutElsewhere(first, TaskList([b"of the first"])))
        own.shards[3].put_first(PutElsewhere(second, TaskList([b"of the second"])))
        (call,) = own.shards[2].take()
        assert call.void() == [first.lease], "shard 2 refuses what was found, so the task fails"
        (call,) = own.shards[3].take()
        assert (call.found, call.acks) == (1, [second])


async def test_what_handlers_found_goes_in_calls_of_a_mebibyte_at_most(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        lease = Lease("t", "w:1:2#1@0", 0.0, fence=7)
        for i, weight in enumerate((400_000, 400_000, 400_000, 700_000, 10)):
            found = TaskList([b"%d" % i], {0: b"x" * weight})
            own.shards[3].put_first(PutElsewhere(AckOfFound(lease, TaskList(), -1, None), found))
        assert [len(call.acks) for call in own.shards[3]._putting()] == [2, 1, 2]


async def test_what_a_queue_may_refuse_is_put_in_calls_of_its_own(queue: ShardedQueue) -> None:
    async with AsyncShardedQueue(queue.name, queue.given[0], shards=SHARDS) as mine:
        own = Worker(mine, nothing, signals=False)._leases[0]
        own.divide()
        lease = Lease("t", "w:1:2#1@0", 0.0, fence=7)
        for task in (
            Task("a", unique=1),
            Task("b"),
            Task("c", unique=1),
            Task("d", priority=1, improve=True),
            Task("e"),
        ):
            own.shards[3].put_first(PutElsewhere(AckOfFound(lease, TaskList(), -1, None), arguments.tasks((task,))))
        puts = [list(call.call.read(b"A" * 3).tasks) for call in own.shards[3]._putting()]
        assert puts == [[b"b", b"e"], [b"a", b"c", b"d"]]


def test_the_record_tells_of_groups_before_a_task_with_a_group_is_put() -> None:
    queue = ShardedQueue("q", "redis://127.0.0.1:1", shards=SHARDS)
    talk = queue.division.talks[2]
    calls = talk.operations.put((Task("a", group="g.example"),), talk.nonce)
    step: Any = next(queue.division.exchange(talk, calls, puts=True, grouped=True))
    assert [command[0] for command in step.commands] == ["EXISTS", "HSETNX", "HMGET"]
    queue.close()


async def test_what_a_handler_has_found_when_the_worker_stops_at_once_is_put_and_its_lease_is_acked(
    queue: ShardedQueue,
) -> None:
    async def handler(lease: Lease) -> Ack:
        stop[0].stop(now=True)
        return Ack(put=PAGES)

    stop: list[Worker] = []
    queue.put("seed")
    async with working(queue, handler) as worker:
        stop.append(worker)
        await until(lambda: worker.tally.end == "stopped")
    assert queue.states("seed", PAGES).counts() == {"done": 1, "todos": len(PAGES)}
    assert queue.stats().in_progress == 0


async def test_what_a_handler_puts_into_a_queue_that_was_purged_meanwhile_is_found_again(queue: ShardedQueue) -> None:
    async def handler(lease: Lease) -> Ack | None:
        if lease.task != "seed":
            return None
        await asyncio.to_thread(queue.purge)
        return Ack(put=PAGES)

    def home(task: str) -> int:
        return route(key_of(task.encode()), SHARDS)

    queue.put("seed")
    away = [page for page in PAGES if home(page) != home("seed")]  # the others go with the ack, which is too late
    async with working(queue, handler):
        with ShardedQueue(queue.name, queue.given[0], shards=SHARDS) as other:
            await until(lambda: other.stats().done == len(away))
            assert other.exists()


async def test_a_paused_queue_gives_nothing(queue: ShardedQueue) -> None:
    queue.pause()
    queue.put(PAGES)
    async with working(queue, nothing) as worker:
        await asyncio.sleep(1.5)
        assert worker.tally.claimed == 0
        queue.resume()
        await until(lambda: worker.tally.acked == 60)


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
