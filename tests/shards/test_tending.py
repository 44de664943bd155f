"""A worker of a sharded queue, piece by piece: which shard gets the next exchange, which ones the worker tends.

The worker of most tests here does not run, and has no server: each exchange waits for an answer that does not come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from timeoutq import InvalidInput, Lease, Queue, Unavailable, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.client.shards.working import LIVE, TENDERS
from timeoutq.verbs.sending import Flow, answer
from timeoutq.words.arguments import TaskList
from timeoutq.worker import tending
from timeoutq.worker.exchanges import LATE, Claims, Exchanges
from timeoutq.worker.pace import Pace, Strict
from timeoutq.worker.pump import Pump
from timeoutq.worker.queue_work import QueueWork, Shared
from timeoutq.worker.tending import IDLE, Tending

SHARDS = 5


async def nothing(lease: Lease) -> None:
    """Do nothing."""


class Silent(AsyncShardedQueue):
    """A queue that has no server; what is asked next is answered by `said`, and all else is never answered."""

    said: Any = None

    async def run(self, flow: Flow[Any]) -> Any:
        flow.close()
        said, self.said = self.said, None
        if isinstance(said, BaseException):
            raise said
        return await asyncio.get_running_loop().create_future() if said is None else said[0]


class Bench:
    """The pump of a worker and what the worker tends, taken out of the worker."""

    def __init__(self, queue: Silent, **settings: Any) -> None:
        worker = Worker(queue, nothing, signals=False, **settings)
        self.queue, self.leases = queue, worker._leases[0]
        self.crew = worker._crew(0)
        self.shared = Shared(worker.concurrency, self.crew, Strict(), worker._life)
        pace = Pace(worker.concurrency, worker._ahead, queue.timeout, time.monotonic())
        self.work = QueueWork(self.leases, pace, self.shared)
        self.shared.works.append(self.work)
        self.work.open()
        self.pump = Pump(self.shared, worker._log)
        self.tending = Tending(self.work)
        self.cleaners = [shard.cleaner for shard in self.work.shards]

    @property
    def shards(self) -> list[Exchanges]:
        """The exchanges with each shard."""
        return self.pump.shards

    @property
    def busy(self) -> list[int]:
        """The shards that have an exchange under way."""
        return [shard.claims.shard for shard in self.shards if shard.under_way]

    def ready(self, *shards: int) -> None:
        """Have the worker know that these shards may have tasks, and that all others have none."""
        for claims in self.claims:
            claims.idle = claims.shard not in shards

    def begin(self) -> list[int]:
        """Let the pump begin what it may; give the shards with an exchange."""
        while self.work.begin():
            pass
        return self.busy

    async def end_exchanges(self) -> None:
        """End all exchanges that are under way."""
        under_way = [task for shard in self.shards for task in shard.under_way]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for claims in self.claims:
            claims._missed.clear()

    async def close(self) -> None:
        """End all that was started."""
        await self.end_exchanges()
        self.crew.closing = True
        tasks = [*self.crew.cancel(), *self.tending._running.values(), *filter(None, (one.bell for one in self.claims))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def claims(self) -> list[Claims]:
        """The claims from each shard."""
        return self.shared.claims


@pytest.fixture
async def make() -> AsyncIterator[Any]:
    """Make benches, and clear them away after the test."""
    made: list[Bench] = []

    def bench(**settings: Any) -> Bench:
        made.append(Bench(Silent("q", "redis://127.0.0.1:1", shards=SHARDS), **settings))
        return made[-1]

    yield bench
    for one in made:
        await one.close()


# ---- exchanges


async def test_all_shards_have_one_budget(make: Any) -> None:
    bench = make(concurrency=4, prefetch=0)
    bench.ready(0, 1, 2)
    assert bench.begin() == [0]
    assert [claims.claiming for claims in bench.claims] == [4, 0, 0, 0, 0]


async def test_a_shard_that_is_late_keeps_no_handler_from_the_others(make: Any) -> None:
    bench = make(concurrency=4, prefetch=0)
    bench.ready(0, 1)
    assert bench.begin() == [0]
    bench.shards[0]._began -= LATE + 1
    assert bench.begin() == [0, 1]
    assert [claims.claiming for claims in bench.claims] == [4, 4, 0, 0, 0]


async def test_a_worker_hears_the_bells_of_the_shards_that_it_tends(make: Any) -> None:
    bench = make()
    bench.tending._tend([1, 3])
    bench.ready(3)
    bench.leases.wake()
    await bench.pump._rest()
    assert [claims.shard for claims in bench.claims if claims.bell is not None] == [1]


# ---- what it tends


async def test_a_shard_that_a_worker_begins_to_tend_is_looked_at_once(make: Any) -> None:
    bench = make()
    assert (bench.tending.tended, bench.work.starves) == ([], True)
    bench.tending._tend([2])
    assert bench.leases.woken.is_set()
    assert [claims.shard for claims in bench.claims if not claims.idle] == [2]
    bench.ready()
    bench.tending._tend([2, 4])
    assert bench.tending.tended == [2, 4]
    assert [claims.shard for claims in bench.claims if not claims.idle] == [4]


async def test_without_an_answer_a_worker_tends_what_it_tended_and_a_new_one_all(make: Any) -> None:
    bench = make()
    bench.queue.said = Unavailable("away")
    await bench.tending._choose()
    assert bench.tending.tended == list(range(SHARDS))
    bench.tending._tend([1])
    bench.queue.said = Unavailable("away")
    await bench.tending._choose()
    assert bench.tending.tended == [1]
    bench.queue.said = [(2, 3)]
    await bench.tending._choose()
    assert bench.tending.tended == [2, 3]
    bench.queue.said = InvalidInput("divided anew")
    with pytest.raises(InvalidInput):
        await bench.tending._choose()


async def test_cleaners_run_for_what_is_tended_and_end_with_it(make: Any) -> None:
    bench = make()
    bench.pump.life.met = True
    bench.tending._tend([1, 3])
    bench.tending._look_after_cleaners()
    first, third = (bench.tending._running[shard] for shard in (1, 3))
    assert set(bench.tending._running) == {1, 3}
    assert bench.cleaners[1].met, "an error of the server does not end a worker that has met the server"
    bench.tending._tend([3])
    bench.tending._look_after_cleaners()
    await asyncio.wait({first}, timeout=5)
    assert (first.cancelled(), third.done()) == (True, False)
    bench.tending._tend([1, 3])
    bench.tending._look_after_cleaners()
    assert bench.tending._running[1] is not first
    assert bench.tending._running[3] is third


async def test_what_ends_a_cleaner_ends_the_worker(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        raise InvalidInput("a key of a foreign type")

    bench = make()
    monkeypatch.setattr(bench.cleaners[1], "run", run)
    bench.tending._tend([1])
    bench.tending._look_after_cleaners()
    await asyncio.wait({bench.tending._running[1]})
    with pytest.raises(InvalidInput, match="foreign type"):
        bench.tending._look_after_cleaners()


# ---- where it helps


async def test_a_worker_helps_after_a_second_without_tasks_and_then_goes_on(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(concurrency=1)
    now = [1000.0]
    bench.work.fed_at = 1000.0
    monkeypatch.setattr(tending, "time", SimpleNamespace(monotonic=lambda: now[0]))
    now[0] = 1000.0 + IDLE - 0.01
    assert not bench.tending._is_free()
    now[0] = 1000.0 + IDLE
    assert bench.tending._is_free()
    bench.queue.said = [4]
    await bench.tending._help()
    assert [claims.shard for claims in bench.claims if not claims.idle] == [4]
    assert not bench.tending._is_free(), "the claim from shard 4 comes first"
    bench.ready()
    bench.work.fed_at = now[0]
    assert bench.tending._is_free(), "whoever has helped looks at once where else there is something"
    bench.crew.take([Lease("t", "w:1:2#1@0", 0.0, fence=7)])
    assert not bench.tending._is_free(), "no handler is free"


@pytest.mark.parametrize("said", [[None], Unavailable("away")])
async def test_who_finds_nothing_to_help_with_asks_again_whether_a_burst_is_over(make: Any, said: Any) -> None:
    bench = make()
    bench.tending._helps = True
    bench.leases.woken.clear()
    bench.queue.said = said
    await bench.tending._help()
    assert bench.leases.woken.is_set()
    assert not bench.tending._helps
    assert bench.work.starves


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
