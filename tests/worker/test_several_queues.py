"""A worker with several queues: strict order, weights, and what the trouble of one queue does not do to the others."""

from __future__ import annotations

import asyncio
import logging
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
from tests.worker.test_worker_stuck import make_suspect
from tests.worker.working import at_work, ended, until
from timeoutq import AsyncQueue, InvalidInput, Lease, Queue, Worker
from timeoutq.client import twin
from timeoutq.client.queue import sibling
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.worker.handlers import Serves
from timeoutq.worker.served import Place


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


def fill(queue: Queue, tasks: int) -> None:
    queue.put([f"{queue.name.rpartition('.')[2]}-{number}" for number in range(tasks)])


def has(found: list[str], tasks: int) -> bool:
    return len(found) == tasks


def kind(task: str) -> str:
    return task.partition("-")[0]


async def test_the_clients_of_one_worker_give_no_two_calls_one_id(high: Queue, low: Queue) -> None:
    # a put of one queue may be made with an id that a client of the other has made
    async with clients(high, low) as (first, second):
        Worker([first, second], nothing, signals=False)
        third, fourth = sibling(second), twin(first)
        made = [client.token() for _ in range(3) for client in (first, second, third, fourth)]
        assert {token.partition(b"#")[0] for token in made} == {first.worker.encode()}
        assert len(set(made)) == len(made)
        await third.close()
        fourth.close()


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
        tally = await ended(worker.run())
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
        async with at_work(worker):
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


async def test_the_lowest_queue_makes_room_first(high: Queue, low: Queue, url: str, name: str) -> None:
    held = threading.Event()

    def hold(lease: Lease) -> None:
        held.wait(30)

    with sound(url, f"{name}.middle") as middle:

        def fetched() -> tuple[int, int, int]:
            first, second, third = (queue.stats().in_progress for queue in (high, middle, low))
            return first, second, third

        fill(low, 10)
        async with clients(high, middle, low) as queues:
            async with at_work(Worker(queues, hold, concurrency=2, prefetch=4, signals=False)):
                await until(lambda: fetched() == (0, 0, 6))
                fill(middle, 2)
                await until(lambda: fetched() == (0, 2, 4))
                high.put("high-0")
                await until(lambda: fetched() == (1, 2, 3))
                high.put(f"high-{number}" for number in range(1, 4))
                await until(lambda: fetched() == (4, 0, 2))  # those of the lowest queue run
                held.set()
                await until(lambda: low.stats().done == 10)


# ---- weights


@pytest.mark.breaking
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_three_of_four_tasks_come_from_the_queue_of_weight_three(
    high: Queue, low: Queue, concurrency: int
) -> None:
    began: list[str] = []
    fill(low, 1200)
    fill(high, 1200)

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(0)

    async with clients(high, low) as (first, second):
        worker = Worker({first: 3, second: 1}, handler, concurrency=concurrency, prefetch=5, burst=True, signals=False)
        await ended(worker.run())
    counts = Counter(map(kind, began[:1200]))
    assert 3 * 0.95 < counts["high"] / counts["low"] < 3 * 1.05
    assert (high.stats().done, low.stats().done) == (1200, 1200), "the second queue has all handlers in the end"


# ---- one budget, one life


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
        async with at_work(worker):
            await until(lambda: worker._pump is not None and worker._pump.suspects.waiting is not None)
            await until(lambda: len(began) == 2)
            for _ in range(20):
                await asyncio.sleep(0)
            assert pump_of(worker).suspects.waiting is not None
            go.set()
            await until(lambda: low.stats().done == 1)
    assert began == ["high-0", "high-1", "suspect"] or began == ["high-1", "high-0", "suspect"]


@pytest.mark.breaking
async def test_a_suspect_does_not_begin_while_the_end_of_another_task_is_on_its_way(
    low: Queue, elsewhere: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[str] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        if lease.task == "first":
            await go.wait()

    caplog.set_level(logging.INFO)
    with sound(elsewhere.url, "far", deadline=20.0) as far:
        far.put("first")
        low.release(make_suspect(low, "suspect"))
        async with clients(far, low, timeout=6) as queues, at_work(Worker(queues, handler, signals=False)) as worker:
            await until(lambda: began and pump_of(worker).suspects.waiting is not None)
            try:
                os.kill(elsewhere.pid or 0, signal.SIGSTOP)
                go.set()
                await until(lambda: "must run task 'suspect' alone" in caplog.text or "suspect" in began)
                assert began == ["first"], "if the process died of the suspect, the queue would not hear of the first"
            finally:
                os.kill(elsewhere.pid or 0, signal.SIGCONT)
            await until(lambda: low.stats().done == 1)
    assert began == ["first", "suspect"]


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
            async with at_work(worker):
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
        async with at_work(worker):
            fill(high, 20)
            await until(lambda: high.stats().done == 20)
            assert f"(queue {low.name}) waits for the server" in caplog.text
            raw.hset(key, "schema", schema)
            await until(lambda: low.stats().done == 1)


async def nothing(lease: Lease) -> None:
    """Do nothing."""


@pytest.mark.parametrize("what", ["paused", "purged"])
async def test_a_queue_that_is_paused_or_deleted_does_not_stop_the_other(high: Queue, low: Queue, what: str) -> None:
    async with clients(high, low) as queues:
        worker = Worker(queues, nothing, concurrency=2, signals=False)
        async with at_work(worker):
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


class Pausing(Serves):
    """A handler that ends its first task when the test says so, and wants none for half a second then."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    def serve(self, place: Place) -> Any:
        async def handle(lease: Lease) -> None:
            if lease.task == "first":
                await self.goes_on.wait()
                place.pause(0.5)

        return handle


async def test_after_a_pause_the_worker_looks_for_what_came_meanwhile(
    high: Queue, low: Queue, raw: redis.Redis
) -> None:
    def listens() -> int:
        return sum(one["cmd"] == "blpop" for one in raw.client_list())

    handler = Pausing()
    async with clients(high, low) as queues:
        worker = Worker(queues, handler, signals=False)
        async with at_work(worker):
            await until(lambda: listens() == 2)
            high.put("first")
            await until(lambda: len(worker.running) == 1 and listens() == 2)
            handler.goes_on.set()
            await until(lambda: high.stats().done == 1)
            await until(lambda: listens() == 1)
            high.put("second")
            raw.delete(high.operations.key("bell"))  # as if the stroke was for the wait that ended with the pause
            await until(lambda: high.stats().done == 2, 5)


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
        async with at_work(full):
            low.put("low-0")
            await until(lambda: busy == ["low-0"])
            await until(lambda: pump_of(full).shards[0].claims.bell is not None)
            async with at_work(Worker(others, note, signals=False)) as idle:
                await until(lambda: idle._pump is not None and all(shard.claims.bell for shard in idle._pump.shards))
                for number in range(5):
                    began = time.monotonic()
                    high.put(f"high-{number}")
                    await until(partial(has, free, number + 1))
                    assert time.monotonic() - began < 5, "the stroke of the bell was lost with the busy worker"
            go.set()
