"""A worker with several queues: strict order, weights, and what the trouble of one queue does not do to the others."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of
from tests.rig.invariants import check
from tests.worker.test_claim_behind_bell import know_the_scripts, listens, put_while_stopped
from tests.worker.test_worker_exchanges import until
from tests.worker.test_worker_stuck import make_suspect
from timeoutq import AsyncQueue, InvalidInput, Lease, Politeness, Queue, Release, Retry, Task, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import Clock, fake_async_queue
from timeoutq.words.errors import AccessDenied, WorkerBroken
from timeoutq.worker.beats import Beats


@contextmanager
def sound(url: str, name: str, **settings: Any) -> Iterator[Queue]:
    """Give a queue; afterwards its invariants hold, and it is purged."""
    with Queue(name, url, **settings) as queue:
        yield queue
        check(url, name)
        queue.purge()


@pytest.fixture
def high(url: str, name: str) -> Iterator[Queue]:
    with sound(url, f"{name}.high") as queue:
        yield queue


@pytest.fixture
def low(url: str, name: str) -> Iterator[Queue]:
    with sound(url, f"{name}.low") as queue:
        yield queue


@pytest.fixture
def elsewhere() -> Iterator[EmbeddedServer]:
    """Another server."""
    with EmbeddedServer() as server:
        yield server


@asynccontextmanager
async def clients(*queues: Queue, **settings: Any) -> AsyncIterator[list[AsyncQueue]]:
    """Give clients of queues, for a worker."""
    mine = [AsyncQueue(queue.name, queue.given[0], **settings) for queue in queues]
    try:
        yield mine
    finally:
        for one in mine:
            await one.close()


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker; stop it at the end of the block."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)


def fill(queue: Queue, tasks: int) -> None:
    queue.put([f"{queue.name.rpartition('.')[2]}-{number}" for number in range(tasks)])


def has(found: list[str], tasks: int) -> bool:
    return len(found) == tasks


def kind(task: str) -> str:
    return task.partition("-")[0]


# ---- strict order


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize("concurrency", [1, 20])
async def test_all_of_the_first_queue_begins_before_the_second(
    high: Queue, low: Queue, in_threads: bool, concurrency: int
) -> None:
    began: list[str] = []

    async def in_loop(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(0.001)

    def in_thread(lease: Lease) -> None:
        began.append(lease.task)
        time.sleep(0.001)

    fill(low, 200)
    fill(high, 200)
    async with clients(high, low) as queues:
        worker = Worker(
            queues, in_thread if in_threads else in_loop, concurrency=concurrency, burst=True, signals=False
        )
        tally = await asyncio.wait_for(worker.run(), 60)
    assert (tally.acked, tally.end, tally.lost) == (400, "drained", 0)
    assert [one.acked for one in worker.tallies.values()] == [200, 200]
    # the second queue fills only places that the first one has left open: those of its last claims
    assert sum(kind(task) == "low" for task in began[:200]) <= concurrency
    assert (high.stats().done, low.stats().done) == (200, 200)


@pytest.mark.parametrize("in_threads", [False, True])
async def test_an_urgent_task_waits_for_one_running_task_and_not_for_those_that_were_fetched_before(
    high: Queue, low: Queue, in_threads: bool
) -> None:
    began: list[str] = []
    gates = {f"low-{number}": threading.Event() for number in range(50)}

    def in_thread(lease: Lease) -> None:
        began.append(lease.task)
        if lease.task in gates:
            gates[lease.task].wait(30)

    async def in_loop(lease: Lease) -> None:
        began.append(lease.task)
        while lease.task in gates and not gates[lease.task].is_set():
            await asyncio.sleep(0.001)

    fill(low, 50)
    async with clients(high, low) as queues:
        worker = Worker(queues, in_thread if in_threads else in_loop, concurrency=2, prefetch=10, signals=False)
        async with running(worker):
            await until(lambda: len(began) == 2 and low.stats().in_progress == 12)
            high.put("urgent")
            await until(lambda: high.stats().in_progress == 1)
            # for its place among the tasks that wait, one of the second queue is given back
            await until(lambda: low.stats().in_progress == 11 and low.stats().todos == 39)
            gates[began[0]].set()
            await until(lambda: len(began) > 2)
            assert began[2] == "urgent"
            for gate in gates.values():
                gate.set()
            await until(lambda: low.stats().done == 50)
    assert worker.tally.lost == 0
    assert Counter(began).most_common(1)[0][1] == 1, "no task has run twice"


async def test_a_worker_without_a_free_handler_leaves_an_urgent_task_to_another_worker(high: Queue, low: Queue) -> None:
    busy, free = list[str](), list[str]()
    go = asyncio.Event()

    async def hold(lease: Lease) -> None:
        busy.append(lease.task)
        await go.wait()

    async def note(lease: Lease) -> None:
        free.append(lease.task)

    async with clients(high, low) as queues, clients(high, low) as others:
        full = Worker(queues, hold, concurrency=1, prefetch=0, signals=False)
        async with running(full):
            low.put("low-0")
            await until(lambda: busy == ["low-0"])
            await until(lambda: pump_of(full).source.bell is not None)
            async with running(Worker(others, note, signals=False)) as idle:
                await until(lambda: idle._pump is not None and all(source.bell for source in idle._pump.sources))
                for number in range(5):
                    began = time.monotonic()
                    high.put(f"high-{number}")
                    await until(partial(has, free, number + 1))
                    assert time.monotonic() - began < 5, "the stroke of the bell was lost with the busy worker"
            go.set()


def claims_behind_bells(worker: Worker) -> list[int]:
    return [source.waiting for source in pump_of(worker).sources]


async def test_claims_wait_behind_the_bells_only_while_other_handlers_are_free(
    high: Queue, low: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("verbs.sending", "client.driving"):  # no wait ends by itself
        monkeypatch.setattr(f"timeoutq.{module}.BELL_WAIT", 600.0)
    began = list[str]()
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await go.wait()

    async with clients(high, low) as queues:
        worker = Worker(queues, handler, concurrency=5, prefetch=0, signals=False)
        async with running(worker):
            await until(lambda: worker._pump is not None and all(source.idle for source in worker._pump.sources))
            low.put("low-0")
            high.put("high-0")
            await until(lambda: len(began) == 2)
            await until(lambda: sum(claims_behind_bells(worker)) == 1)
            full, empty = (low, high) if claims_behind_bells(worker) == [1, 0] else (high, low)
            full.put(f"more-{number}" for number in range(9))
            await until(lambda: len(began) == 5)
            assert claims_behind_bells(worker) == [0, 0], "no handler is kept free for a task that may never come"
            await until(lambda: (empty.stats().in_progress, full.stats().in_progress) == (1, 4))
            go.set()
            await until(lambda: full.stats().done == 10 and empty.stats().done == 1)
    assert worker.tally.lost == 0
    assert high.stats().counters.get("expired", 0) == low.stats().counters.get("expired", 0) == 0


async def test_a_stroke_that_meets_the_end_of_a_wait_is_not_lost(
    high: Queue, name: str, elsewhere: EmbeddedServer
) -> None:
    began = list[str]()
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await go.wait()

    with sound(elsewhere.url, f"{name}.low") as low, redis.Redis.from_url(elsewhere.url) as raw:
        know_the_scripts(low, raw)
        async with clients(high, low) as (first, second):
            worker = Worker({first: 3, second: 1}, handler, concurrency=4, prefetch=0, signals=False)
            async with running(worker):
                await until(lambda: worker._pump is not None and all(source.idle for source in worker._pump.sources))
                source = pump_of(worker).sources[1]
                # the first wait may have begun without a claim behind, or may still hear of a task of before
                heard = source.strokes
                raw.rpush(low.operations.key("bell"), "1")
                await until(lambda: source.strokes > heard and source.waiting == 1 and listens(raw))
                with put_while_stopped(elsewhere, low, "low-0"):
                    fill(high, 3)
                    await until(lambda: source.waiting == 0)  # no handler is kept free
                await until(lambda: "low-0" in began, 5)  # by itself, the wait would take ten seconds
                go.set()
                await until(lambda: high.stats().done == 3 and low.stats().done == 1)


async def test_an_empty_queue_is_asked_for_nothing_until_its_bell(high: Queue, low: Queue, raw: redis.Redis) -> None:
    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0.001)

    async with clients(high, low) as queues:
        worker = Worker(queues, handler, concurrency=5, signals=False)
        async with running(worker):
            await until(lambda: worker._pump is not None and all(source.idle for source in worker._pump.sources))
            claims = Counter[int]()
            for lane in pump_of(worker).lanes:
                claim = lane.sources[0].claim

                def counted(n: int, peers: int, number: int = lane.number, claim: Any = claim) -> Any:
                    claims[number] += 1
                    return claim(n, peers)

                lane.sources[0].claim = counted  # type: ignore[method-assign]  # it counts
            fill(low, 500)
            await until(lambda: low.stats().done == 500)
    assert claims[0] <= 1, "the bell is heard for 10 s, then one look"
    assert claims[1] >= 10


async def test_a_worker_tells_of_which_queue_a_lease_is(high: Queue, low: Queue) -> None:
    told: dict[str, str] = {}
    leases: list[Lease] = []

    def handler(lease: Lease) -> None:
        told[str(lease.payload)] = worker.queue_of(lease).name
        leases.append(lease)

    high.put(Task("same", "high"))
    low.put(Task("same", "low"))
    async with clients(high, low) as queues:
        worker = Worker(queues, handler, burst=True, signals=False)
        await asyncio.wait_for(worker.run(), 30)
    assert told == {"high": high.name, "low": low.name}
    with pytest.raises(InvalidInput, match="does not hold this lease on task 'same'"):
        worker.queue_of(leases[0])


# ---- weights


@pytest.mark.breaking
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_three_of_four_tasks_come_from_the_queue_of_weight_three(
    high: Queue, low: Queue, concurrency: int
) -> None:
    began: list[str] = []
    fill(low, 2400)
    fill(high, 2400)

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(0)

    async with clients(high, low) as (first, second):
        worker = Worker({first: 3, second: 1}, handler, concurrency=concurrency, prefetch=5, burst=True, signals=False)
        await asyncio.wait_for(worker.run(), 60)
    counts = Counter(map(kind, began[:2400]))
    assert 3 * 0.95 < counts["high"] / counts["low"] < 3 * 1.05
    assert (high.stats().done, low.stats().done) == (2400, 2400), "the second queue has all handlers in the end"


async def test_a_weighted_queue_has_all_handlers_while_the_other_is_empty(high: Queue, low: Queue) -> None:
    at_work, most = 0, 0

    async def handler(lease: Lease) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1

    fill(low, 100)
    async with clients(high, low) as (first, second):
        worker = Worker({first: 9, second: 1}, handler, concurrency=10, burst=True, signals=False)
        await asyncio.wait_for(worker.run(), 60)
    assert most == 10


# ---- one budget, one life


async def test_no_more_handlers_run_than_there_are_places_and_no_more_tasks_are_held(high: Queue, low: Queue) -> None:
    at_work, most = Counter[str](), list[int]()

    async def handler(lease: Lease) -> None:
        at_work[lease.task] += 1
        most.append(sum(at_work.values()))
        held.append(len(worker.held))
        await asyncio.sleep(0.002)
        del at_work[lease.task]

    held: list[int] = []
    async with clients(high, low) as queues:
        worker = Worker(queues, handler, concurrency=3, prefetch=0, signals=False)
        async with running(worker):
            for number in range(60):
                (high, low)[number % 2].put(f"t-{number}")
                await asyncio.sleep(0.001)
            await until(lambda: high.stats().done + low.stats().done == 60)
    assert max(most) <= 3
    assert max(held) <= 9, "those that run, and those whose acks are on the way"


async def test_a_stopped_worker_gives_back_what_it_holds_of_both_queues(high: Queue, low: Queue) -> None:
    began = list[str]()
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await go.wait()

    fill(high, 3)
    async with clients(high, low) as (first, second):
        worker = Worker([first, second], handler, concurrency=4, prefetch=8, drain_deadline=20, signals=False)
        task = asyncio.create_task(worker.run())
        await until(lambda: len(began) == 3)
        fill(low, 20)
        await until(lambda: len(began) == 4 and low.stats().in_progress > 5)
        worker.stop()
        await until(lambda: low.stats().in_progress == 1 and high.stats().in_progress == 3)
        go.set()
        tally = await asyncio.wait_for(task, 30)
    assert (tally.acked, tally.end) == (4, "stopped")
    assert all(one.end == "stopped" for one in worker.tallies.values())
    assert (high.stats().done, low.stats().done, low.stats().todos) == (3, 1, 19)
    assert all(low.inspect(f"low-{number}").crashes == 0 for number in range(20))
    assert worker.held == {}


async def test_a_stop_at_once_gives_back_what_runs_too(high: Queue, low: Queue) -> None:
    began = list[str]()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(60)

    fill(high, 2)
    fill(low, 2)
    async with clients(high, low) as queues:
        worker = Worker(queues, handler, concurrency=4, signals=False)
        task = asyncio.create_task(worker.run())
        await until(lambda: len(began) == 4)
        worker.stop(now=True)
        await asyncio.wait_for(task, 30)
    assert (high.stats().todos, low.stats().todos) == (2, 2)


async def test_a_burst_ends_when_all_queues_are_drained(high: Queue, low: Queue) -> None:
    async with clients(high, low) as (first, second):

        async def handler(lease: Lease) -> None:
            if lease.task == "low-0":
                await first.put("found")  # the queue that was drained before has work again

        low.schedule("low-0", after=0.3)
        worker = Worker([first, second], handler, burst=True, signals=False)
        tally = await asyncio.wait_for(worker.run(), 30)
    assert (tally.acked, tally.end) == (2, "drained")
    assert (high.stats().done, low.stats().done) == (1, 1)


async def test_max_tasks_counts_the_runs_of_all_queues(high: Queue, low: Queue) -> None:
    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0.001)

    fill(high, 6)
    fill(low, 20)
    async with clients(high, low) as queues:
        tally = await asyncio.wait_for(Worker(queues, handler, concurrency=4, max_tasks=10, signals=False).run(), 30)
    assert (tally.acked, tally.end) == (10, "max_tasks")
    assert (high.stats().done, low.stats().done) == (6, 4)
    assert low.stats().in_progress == 0


async def test_the_last_run_of_max_tasks_is_kept_for_no_queue(
    high: Queue, low: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("verbs.sending", "client.driving"):  # no wait ends by itself
        monkeypatch.setattr(f"timeoutq.{module}.BELL_WAIT", 600.0)

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0)

    async with clients(high, low) as queues:
        worker = Worker(queues, handler, concurrency=5, max_tasks=1, signals=False)
        async with running(worker):
            await until(lambda: worker._pump is not None and all(source.bell for source in worker._pump.sources))
            other = high if claims_behind_bells(worker) == [0, 1] else low
            other.put("a")
            await until(lambda: other.stats().done == 1)
    assert worker.tally.end == "max_tasks"


async def test_each_queue_keeps_its_own_retries_and_limits(high: Queue, low: Queue) -> None:
    async def handler(lease: Lease) -> None:
        if lease.task.startswith("slow"):
            await asyncio.sleep(60)
        raise ValueError("no")

    first = AsyncQueue(high.name, high.given[0], retry=[0.01])
    second = AsyncQueue(low.name, low.given[0], retry=[], max_runtime=0.5)
    high.put("twice")
    low.put("once", "slow")
    worker = Worker([first, second], handler, burst=True, signals=False)
    await asyncio.wait_for(worker.run(), 30)
    await first.close()
    await second.close()
    assert (high.inspect("twice").failures, low.inspect("once").failures) == (2, 1)
    assert "max_runtime of 0.5 s" in (low.inspect("slow").error or "")


async def test_a_suspect_runs_alone_among_all_queues(high: Queue, low: Queue) -> None:
    at_once: list[set[str]] = []
    at_work: set[str] = set()

    async def handler(lease: Lease) -> None:
        at_work.add(lease.task)
        at_once.append(set(at_work))
        await asyncio.sleep(0.01)
        at_work.discard(lease.task)

    low.release(make_suspect(low, "suspect"))
    fill(high, 30)
    fill(low, 30)
    async with clients(high, low, timeout=20) as queues:
        worker = Worker(queues, handler, concurrency=10, burst=True, signals=False)
        tally = await asyncio.wait_for(worker.run(), 60)
    assert tally.acked == 61
    assert [found for found in at_once if "suspect" in found] == [{"suspect"}]


async def test_a_suspect_waits_for_the_handlers_of_other_queues(high: Queue, low: Queue) -> None:
    began: list[str] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await go.wait()

    low.release(make_suspect(low, "suspect"))
    fill(high, 2)
    async with clients(high, low, timeout=20) as queues:
        worker = Worker(queues, handler, concurrency=10, signals=False)
        async with running(worker):
            await until(lambda: worker._pump is not None and worker._pump.suspects.waiting is not None)
            await until(lambda: len(began) == 2)
            for _ in range(20):
                await asyncio.sleep(0)
            assert pump_of(worker).suspects.waiting is not None
            go.set()
            await until(lambda: low.stats().done == 1)
    assert began == ["high-0", "high-1", "suspect"] or began == ["high-1", "high-0", "suspect"]


async def test_the_workers_of_each_queue_name_the_same_worker_and_leases_live_long(high: Queue, low: Queue) -> None:
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        await go.wait()

    fill(high, 2)
    fill(low, 3)
    before = threading.active_count()
    async with clients(high, low, timeout=0.6) as queues:
        worker = Worker(queues, handler, signals=False)
        async with running(worker):
            await until(lambda: [one.held for one in (*high.workers(), *low.workers())] == [2, 3])
            assert {one.worker for one in (*high.workers(), *low.workers())} == {queues[0].worker}
            assert threading.active_count() <= before + 2, "one heartbeat and one watch for all queues"
            await asyncio.sleep(1.5)
            assert (high.stats().in_progress, low.stats().in_progress) == (2, 3)
            assert worker.tally.lost == 0
            go.set()
            await until(lambda: high.stats().done + low.stats().done == 5)
    assert high.workers() == low.workers() == [], "it has said farewell to both"


async def test_queues_in_memory_for_tests_work_like_any_other() -> None:
    clock = Clock()
    first, second = fake_async_queue("a", clock=clock), fake_async_queue("b", clock=clock)
    await first.put("x")
    await second.put("y", "z")
    worker = Worker([first, second], nothing, burst=True, signals=False)
    assert (await asyncio.wait_for(worker.run(), 30)).acked == 3


async def test_plain_polite_and_sharded_queues_together(url: str, high: Queue, low: Queue, name: str) -> None:
    polite = Queue(low.name, url, politeness=Politeness(per_host=1, delay=0.01))
    polite.put([f"https://h{number % 3}.example/{number}" for number in range(30)])
    polite.close()
    fill(high, 50)
    with ShardedQueue(f"{name}.wide", url, shards=4) as wide:
        wide.put([f"wide-{number}" for number in range(100)])
        ran = Counter[str]()

        async def handler(lease: Lease) -> None:
            ran[lease.task] += 1

        async with clients(high, low) as (first, second), AsyncShardedQueue(wide.name, url) as third:
            worker = Worker([first, third, second], handler, concurrency=8, burst=True, signals=False)
            tally = await asyncio.wait_for(worker.run(), 60)
        assert (tally.acked, tally.end) == (180, "drained")
        assert wide.stats().done == 100
        assert set(ran.values()) == {1}
        wide.purge()


# ---- the trouble of one queue


@pytest.mark.breaking
async def test_a_server_that_hangs_does_not_stop_the_other_queue(high: Queue, elsewhere: EmbeddedServer) -> None:
    with sound(elsewhere.url, "far", deadline=20.0) as far:
        done = list[str]()
        gate = asyncio.Event()

        async def handler(lease: Lease) -> None:
            if lease.task == "near-long":
                await gate.wait()
            done.append(lease.task)

        async with clients(far, high, timeout=4.0, deadline=2.0) as queues:
            worker = Worker(queues, handler, concurrency=4, signals=False)
            async with running(worker):
                fill(far, 10)
                high.put("near-long")
                await until(lambda: len(done) == 10)
                os.kill(elsewhere.pid or 0, signal.SIGSTOP)
                try:
                    high.put([f"near-{number}" for number in range(200)])
                    await until(lambda: len(done) == 210)
                    # a lease of the other queue lives for longer than the server hangs
                    hung = time.monotonic()
                    await until(lambda: time.monotonic() > hung + 8, 20)
                    assert high.stats().in_progress == 1
                    gate.set()
                    await until(lambda: high.stats().done == 201)
                finally:
                    os.kill(elsewhere.pid or 0, signal.SIGCONT)
                far.put("again")
                await until(lambda: "again" in done)
                await until(lambda: far.stats().done == 11)
        assert [one.lost for one in worker.tallies.values()] == [0, 0]
        assert high.stats().counters.get("expired", 0) == 0


async def test_a_queue_that_is_refused_does_not_stop_the_other_and_is_worked_on_when_it_is_mended(
    high: Queue, low: Queue, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    key = low.operations.key("meta")
    low.put("low-0")
    schema = raw.hget(key, "schema")
    assert isinstance(schema, str)
    raw.hset(key, "schema", "999")
    async with clients(low, high) as queues:
        worker = Worker(queues, nothing, signals=False)
        async with running(worker):
            fill(high, 20)
            await until(lambda: high.stats().done == 20)
            assert f"(queue {low.name}) waits for the server" in caplog.text
            raw.hset(key, "schema", schema)
            await until(lambda: low.stats().done == 1)


async def nothing(lease: Lease) -> None:
    """Do nothing."""


async def test_a_worker_ends_if_all_its_queues_are_refused(url: str, name: str) -> None:
    with redis.Redis.from_url(url) as raw:
        raw.acl_setuser(f"{name}", enabled=True, passwords=["+secret"], commands=["+ping"], keys=["*"])
    place = url.rpartition("@")[2]
    queues = [AsyncQueue(f"{name}.{kind}", f"redis://{name}:secret@{place}") for kind in ("a", "b")]
    try:
        with pytest.raises(AccessDenied):
            await asyncio.wait_for(Worker(queues, nothing, signals=False).run(), 30)
    finally:
        with redis.Redis.from_url(url) as raw:
            raw.acl_deluser(name)
        for queue in queues:
            await queue.close()


@pytest.mark.parametrize("what", ["paused", "purged"])
async def test_a_queue_that_is_paused_or_deleted_does_not_stop_the_other(high: Queue, low: Queue, what: str) -> None:
    async with clients(high, low) as queues:
        worker = Worker(queues, nothing, concurrency=2, signals=False)
        async with running(worker):
            fill(high, 5)
            await until(lambda: high.stats().done == 5)
            if what == "paused":
                high.pause()
                high.put("later")
            else:
                high.purge()
            fill(low, 100)
            await until(lambda: low.stats().done == 100)
            if what == "paused":
                assert high.stats().todos == 1
                high.resume()
            else:
                high.put("later")
            await until(lambda: high.inspect("later").state == "done")


async def test_a_sharded_queue_that_nobody_has_made_does_not_stop_the_other(url: str, high: Queue, name: str) -> None:
    async with clients(high) as (first,), AsyncShardedQueue(f"{name}.wide", url) as wide:
        async with running(Worker([wide, first], nothing, signals=False)):
            fill(high, 20)
            await until(lambda: high.stats().done == 20)
            with ShardedQueue(f"{name}.wide", url, shards=3) as made:
                made.put([f"t{number}" for number in range(20)])
                await until(lambda: made.stats().done == 20)
    with ShardedQueue(f"{name}.wide", url, shards=3) as made:
        made.purge()


async def test_a_burst_does_not_wait_for_a_sharded_queue_that_nobody_has_made(
    url: str, high: Queue, raw: redis.Redis, name: str
) -> None:
    fill(high, 20)
    async with clients(high) as (first,), AsyncShardedQueue(f"{name}.wide", url) as wide:
        worker = Worker([wide, first], nothing, burst=True, signals=False)
        tally = await asyncio.wait_for(worker.run(), 30)
    assert (tally.acked, tally.end) == (20, "drained")
    assert list(raw.scan_iter(f"*{name}.wide*")) == [], "a queue that does not exist has no keys"


async def test_a_worker_whose_heartbeats_have_ended_ends(high: Queue, low: Queue) -> None:
    async with clients(high, low, timeout=1.0) as queues:
        worker = Worker(queues, nothing, signals=False)
        task = asyncio.create_task(worker.run())
        await until(lambda: isinstance(worker._heartbeat, Beats) and worker._heartbeat.lives)
        assert isinstance(worker._heartbeat, Beats)
        worker._heartbeat.stop()
        with pytest.raises(WorkerBroken, match="the thread of its heartbeats has ended"):
            await asyncio.wait_for(task, 30)


async def test_releases_and_retries_go_back_to_their_own_queue(high: Queue, low: Queue) -> None:
    runs = Counter[str]()

    async def handler(lease: Lease) -> Any:
        runs[lease.task] += 1
        if runs[lease.task] == 1:
            return Release() if lease.task.endswith("released") else Retry(after=0.01)
        return None

    for queue in (high, low):
        queue.put("released", "retried")
    async with clients(high, low) as queues:
        await asyncio.wait_for(Worker(queues, handler, burst=True, signals=False).run(), 30)
    assert (high.stats().done, low.stats().done) == (2, 2)


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda a, b: [], "1 to 100 queues, not 0"),
        (lambda a, b: {}, "1 to 100 queues, not 0"),
        (lambda a, b: [a, a], "queue a is given twice"),
        (lambda a, b: [a, AsyncQueue("a")], "queue a is given twice"),
        (lambda a, b: {a: 3, b: 0}, "weight"),
        (lambda a, b: {a: 3, b: 1.5}, "weight"),
        (lambda a, b: [a, "b"], "not its name"),
        (lambda a, b: [a, Queue("b")], "an AsyncQueue"),
        (lambda a, b: "a", "not its name"),
    ],
)
def test_queues_that_make_no_sense_are_refused(given: Callable[[AsyncQueue, AsyncQueue], Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Worker(given(AsyncQueue("a"), AsyncQueue("b")), nothing)
