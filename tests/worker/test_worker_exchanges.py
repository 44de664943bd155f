"""The exchanges of a worker: two side by side at most, and what becomes of both when one hangs or the worker stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of, seen
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Cleaner, Lease, Outcome, Queue, State, Unavailable, Worker
from timeoutq.server import scripts
from timeoutq.verbs.replies import Claimed
from timeoutq.words.errors import NotReplicated, WorkerBroken
from timeoutq.worker.ends import Errand
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.pace import Pace
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import DRAIN, Stopping


def called(name: str) -> bytes:
    """Give bytes that only requests of this verb contain."""
    return scripts.function(name).encode()


def know_the_library(queue: Queue) -> None:
    """Have the server know the library: a request whose reply is that it does not know it does nothing."""
    queue.put("first")
    queue.ack(queue.claim(1))
    queue.forget("first")


def listens(raw: redis.Redis) -> bool:
    """Say whether a claim of a worker waits at the server, behind the bell."""
    return any(client["cmd"] == "blpop" and "b" in client["flags"] for client in raw.client_list())


def is_at(queue: Queue, done: int, in_progress: int) -> bool:
    stats = queue.stats()
    return (stats.done, stats.in_progress) == (done, in_progress)


async def until(predicate: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


@pytest.mark.breaking
async def test_another_exchange_goes_on_beside_one_that_hangs(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> None:
        pass

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20, deadline=15) as mine:
            worker = Worker(mine, handler, concurrency=4, signals=False)
            proxy.arm(Fault.SWALLOW, called("ack"))
            queue.put("a")
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.struck == 1)
            queue.put("b", "c")
            await until(lambda: queue.stats().done == 3)
            await until(lambda: worker.tally.acked == 2)
            # nobody has told the worker yet that "a" is done: that exchange still waits for its reply
            assert [lease.task for lease in worker.held.values()] == ["a"]
            await until(lambda: worker.tally.acked == 3)
            worker.stop()
            tally = await running
    assert (tally.claimed, tally.acked, tally.lost) == (3, 3, 0)
    assert queue.stats().counters["acked"] == 1 + 3


async def test_stop_gives_back_what_two_claims_under_way_bring(url: str, queue: Queue, raw: redis.Redis) -> None:
    heard: list[str] = []

    async def handler(lease: Lease) -> None:
        heard.append(lease.task)

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=10) as mine:
            worker = Worker(mine, handler, concurrency=600, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            # from its first answer on, the worker knows that its server is there, however slow the machine is
            await until(partial(listens, raw))
            proxy.arm(Fault.SWALLOW, called("claim"), times=2)
            queue.put([f"t{i}" for i in range(1000)])
            # the claim behind the bell, which brings one task, was sent before
            await until(lambda: queue.stats().in_progress >= 599 and len(heard) == 1)
            await until(lambda: not worker.running)
            assert len(worker.held) <= 1
            worker.stop()
            tally = await running
    given_back = tally.claimed - 1
    assert (given_back >= 599, tally.released, tally.acked, tally.failed) == (True, given_back, 1, 0)
    stats = queue.stats()
    assert (stats.todos, stats.in_progress, len(heard)) == (999, 0, 1)
    assert stats.counters.get("expired", 0) == 0


@pytest.mark.parametrize("how", ["cancelled", "without a lifespan"])
async def test_a_worker_that_ends_early_gives_back_what_a_claim_under_way_brings(
    url: str, queue: Queue, how: str
) -> None:
    died = asyncio.Event()

    async def handler(lease: Lease) -> None:
        raise AssertionError("nothing may be started any more")

    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(keep_alive())
            yield
            keeper.cancel()

    async def keep_alive() -> None:
        await died.wait()
        raise ConnectionError("the pool has lost its server")

    know_the_library(queue)
    queue.put([f"t{i}" for i in range(100)])
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, lifespan=pool, signals=False)
            proxy.arm(Fault.LATENCY, called("claim"), seconds=0.5)
            running = asyncio.create_task(worker.run())
            await until(lambda: queue.stats().in_progress == 50)
            assert worker.held == {}
            if how == "cancelled":
                running.cancel()
            else:
                died.set()
            with pytest.raises((asyncio.CancelledError, WorkerBroken)):
                await running
    assert (worker.tally.claimed, worker.tally.released) == (50, 50)
    assert (queue.stats().todos, queue.stats().in_progress) == (100, 0)


@pytest.mark.parametrize(("now", "drain_deadline"), [(False, 0.0), (True, 25.0)], ids=["no time left", "at once"])
async def test_a_worker_that_has_no_time_for_a_drain_gives_back_what_a_claim_under_way_brings(
    url: str, queue: Queue, raw: redis.Redis, now: bool, drain_deadline: float
) -> None:
    async def handler(lease: Lease) -> None:
        pass

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, signals=False, drain_deadline=drain_deadline)
            running = asyncio.create_task(worker.run())
            await until(partial(listens, raw))
            proxy.arm(Fault.LATENCY, called("claim"), seconds=0.5)
            queue.put([f"t{i}" for i in range(50)])
            # one came with the claim behind the bell, which was sent before
            await until(lambda: queue.stats().in_progress + queue.stats().done == 50)
            worker.stop(now=now)
            tally = await running
    assert (tally.claimed, tally.acked + tally.released, tally.lost) == (50, 50, 0)
    assert queue.stats().in_progress == 0


async def test_a_worker_that_ends_early_waits_for_a_claim_no_longer_than_for_a_call(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async def handler(lease: Lease) -> None:
        assert lease.task == "a"  # comes with the claim behind the bell, which was sent before

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20, deadline=1) as mine:
            worker = Worker(mine, handler, concurrency=50, signals=False)
            running = asyncio.create_task(worker.run())
            await until(partial(listens, raw))
            proxy.arm(Fault.HALF_OPEN, called("claim"), times=None)
            queue.put("a")
            await until(seen(worker, lambda pump: pump.source.claiming_now > 0))
            began = time.monotonic()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert time.monotonic() - began < 3


async def test_a_worker_that_is_stopped_while_its_server_is_away_waits_for_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, stopping = AsyncQueue("q", deadline=60), Stopping(25.0)
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    exchanges = Exchanges(desk, source, stopping, Cleaner(mine), lambda leases: None)

    async def run(flow: Generator[object]) -> None:
        flow.close()
        await asyncio.Event().wait()

    monkeypatch.setattr(mine, "run", run)
    exchanges.begin(source.claim(3, 1))
    (task,) = exchanges.under_way
    await until(lambda: source.claiming_now == 3)
    exchanges.failures, stopping.level = 1, DRAIN
    async with asyncio.timeout(5):
        await exchanges.end_claims()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_worker_that_is_stopped_while_its_server_is_away_lets_its_handlers_finish(
    url: str, queue: Queue
) -> None:
    go = {"quick": asyncio.Event(), "slow": asyncio.Event()}

    async def handler(lease: Lease) -> None:
        await go[lease.task].wait()

    know_the_library(queue)
    queue.put(*go)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20, deadline=1) as mine:
            worker = Worker(mine, handler, concurrency=2, signals=False)
            running = asyncio.create_task(worker.run())
            await until(lambda: len(worker.running) == 2)
            proxy.arm(Fault.RESET_BEFORE, b"", times=None)
            proxy.cut()
            go["quick"].set()
            await until(seen(worker, lambda pump: pump.exchanges.away))
            worker.stop()
            proxy.disarm()
            await until(lambda: worker.tally.acked == 1)
            go["slow"].set()
            tally = await running
    assert (tally.acked, tally.released) == (2, 0)


async def test_a_worker_that_leaves_at_once_leaves_nothing_behind(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0.001)

    queue.put([f"t{i}" for i in range(3000)])
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, handler, concurrency=50, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally.acked > 200)
        worker.stop(now=True)
        tally = await running
    stats = queue.stats()
    assert (stats.in_progress, stats.done, stats.todos) == (0, tally.acked, 3000 - tally.acked)


async def test_nothing_is_claimed_beyond_the_slots(url: str, queue: Queue) -> None:
    gate = asyncio.Semaphore(0)

    async def handler(lease: Lease) -> None:
        await gate.acquire()

    queue.put([f"t{i}" for i in range(1000)])
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, handler, concurrency=100, prefetch=0, signals=False)
        running = asyncio.create_task(worker.run())
        ended = 0
        for wave in (0, 50, 100, 1, 70):
            ended += wave
            for _ in range(wave):
                gate.release()
            await until(partial(is_at, queue, done=ended, in_progress=100))
            assert queue.stats().counters["claimed"] == 100 + ended
        worker.stop(now=True)
        await running


async def test_a_worker_opens_no_more_connections_than_it_has_exchanges(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0)

    before = len(raw.client_list())
    queue.put([f"t{i}" for i in range(5000)])
    most = 0
    # if the machine stalls for long, exchanges are cut, and the server counts closed connections beside the new ones
    async with AsyncQueue(queue.name, url, timeout=20, deadline=100) as mine:
        worker = Worker(mine, handler, concurrency=100, signals=False)
        running = asyncio.create_task(worker.run())
        while worker.tally.acked < 5000:
            most = max(most, len(raw.client_list()))
            await asyncio.sleep(0.005)
        worker.stop()
        await running
    # of the test: one; of the worker: two exchanges, the cleaner's, the bell, the alarm, and the heartbeat
    assert most <= before + 1 + 6


async def test_a_cleaner_takes_one_connection_besides_the_one_for_the_alarm(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    before = len(raw.client_list())
    async with AsyncQueue(queue.name, url, deadline=100) as mine:
        cleaner = Cleaner(mine)
        running = asyncio.create_task(cleaner.run())
        await until(lambda: any(one["cmd"] == "xread" for one in raw.client_list()))
        await until(lambda: cleaner.met)
        assert len(raw.client_list()) == before + 2
        running.cancel()
        await asyncio.wait([running])


async def test_a_worker_that_has_two_reasons_to_end_tells_the_first(url: str, queue: Queue) -> None:
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, lambda lease: None, signals=False)
        running = asyncio.create_task(worker.run())
        await until(seen(worker, lambda pump: pump.source.idle))
        first, second = (WorkerBroken(f"the {which} part of the worker is gone") for which in ("first", "second"))
        pump_of(worker).exchanges.fail(first)
        pump_of(worker).exchanges.fail(second)
        with pytest.raises(WorkerBroken) as caught:
            await running
    assert caught.value is first


@pytest.mark.parametrize("refused", ["nothing", "the ends", "the claim", "the ends and the claim", "all of it"])
async def test_an_exchange_has_failed_if_a_part_of_it_was_refused_and_that_part_stays(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    mine, lease = AsyncQueue("q"), Lease("ended", "w#1", deadline=0.0, fence=1)
    found = Lease("found", "w#2", deadline=0.0, fence=2)
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    came: list[Lease] = []
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), came.extend)
    error = Unavailable("no")

    async def run(flow: Generator[object]) -> list[object]:
        flow.close()
        if refused == "all of it":
            raise error
        ends = error if "ends" in refused else Outcome([b"ended"], b"O")
        claim = error if "claim" in refused else Claimed(1, leases=[found])
        return [ends, claim]

    monkeypatch.setattr(mine, "run", run)
    monkeypatch.setattr("timeoutq.words.retry.pause", lambda failures: 0.0)
    desk.took([lease])
    desk.done(lease.key, lease)
    for times in (1, 2):
        await exchanges.make(source.claim(3, 1))
        assert exchanges.failures == (0 if refused == "nothing" else times)
        assert source.claiming == 0
        has_ended, has_come = (
            "ends" not in refused and "all" not in refused,
            "claim" not in refused and "all" not in refused,
        )
        assert list(desk.ends.leases) == ([] if has_ended else [lease])
        assert desk.held == ({} if has_ended else {1: lease})
        assert came == ([found] * times if has_come else [])
        assert (desk.tally.acked > 0, desk.sent, desk.unattended) == (has_ended, {}, set())
        if refused == "nothing" or has_ended:
            break


async def test_whom_a_worker_waits_for_is_told_once_and_again_when_it_is_somebody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = AsyncQueue("q")
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), lambda leases: None)
    exchanges.common.met = True
    monkeypatch.setattr("timeoutq.words.retry.pause", lambda failures: 0.0)
    for trouble in (Unavailable("away"), NotReplicated("few")) * 2:
        await exchanges.wait_out(trouble)
        await exchanges.wait_out(trouble)
    told = [record.getMessage().partition(" waits for ")[2] for record in caplog.records]
    assert told == ["the server: away", "replicas: few"] * 2


async def test_a_put_that_rings_while_a_claim_is_under_way_is_claimed_at_once(url: str, queue: Queue) -> None:
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, lambda lease: None, signals=False)
        running = asyncio.create_task(worker.run())
        await until(seen(worker, lambda pump: pump.source.idle))
        source = pump_of(worker).source
        nothing = Claimed(now_ms=round(time.time() * 1000))
        for before, idle in ((source.strokes, True), (source.strokes - 1, False)):
            # the claim was sent when the bell had rung `before` times, and found nothing
            source.idle = False
            source.came(nothing, 10, time.monotonic(), before)
            assert source.idle is idle
        worker.stop()
        await running


# ---- claims whose replies nobody reads


def hold_a_claim(proxy: Proxy, queue: Queue, raw: redis.Redis, n: int) -> None:
    """Have the worker behind the proxy claim `n` more tasks, and keep the reply from it.

    One task more comes before, with the claim behind the bell; its handler is to end by itself.
    """
    wait_until(partial(listens, raw))
    before = queue.stats()
    proxy.arm(Fault.SWALLOW, called("claim"))
    queue.put([f"t{i}" for i in range(n + 1)])
    wait_until(partial(is_at, queue, done=before.done + 1, in_progress=before.in_progress + n))


def nothing_was_lost(queue: Queue) -> bool:
    """Say whether no lease ran out, no crash was counted, and no release of a handler."""
    counters = queue.stats().counters
    return not any(counters.get(name) for name in ("expired", "crashed")) and not any(
        queue.inspect(f"t{i}").crashes or queue.inspect(f"t{i}").releases for i in range(31)
    )


def cancel_all_but(spared: set[asyncio.Task[Any]]) -> None:
    for task in asyncio.all_tasks() - spared:
        if task is not asyncio.current_task():
            task.cancel()


async def test_what_a_claim_under_way_took_is_given_back_when_a_handler_cancels_all_tasks(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    heard: list[str] = []

    async def handler(lease: Lease) -> None:
        if lease.task != "cancels":
            heard.append(lease.task)
            return
        await asyncio.to_thread(hold_a_claim, proxy, queue, raw, 30)
        cancel_all_but(spared)

    know_the_library(queue)
    queue.put("cancels")
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=30) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            spared = asyncio.all_tasks()
            with pytest.raises(WorkerBroken, match="was cancelled, and not by the worker"):
                await running
    assert (queue.stats().in_progress, len(heard)) == (0, 1)
    assert [queue.inspect(f"t{i}").state for i in range(31)].count(State.TODOS) == 30
    assert nothing_was_lost(queue)


async def test_what_a_claim_took_alone_is_given_back_when_somebody_cancels_all_tasks(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    heard: list[str] = []

    async def handler(lease: Lease) -> None:
        heard.append(lease.task)

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=30) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            spared = asyncio.all_tasks()
            await asyncio.to_thread(hold_a_claim, proxy, queue, raw, 30)
            assert len(worker.held) <= 1
            cancel_all_but(spared)
            with pytest.raises(WorkerBroken, match="was cancelled, and not by the worker"):
                await running
    assert (queue.stats().todos, queue.stats().in_progress, len(heard)) == (30, 0, 1)
    assert nothing_was_lost(queue)


async def test_what_a_claim_under_way_took_is_given_back_when_a_handler_cancels_only_the_exchange(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async def handler(lease: Lease) -> None:
        if lease.task == "cancels":
            await asyncio.to_thread(hold_a_claim, proxy, queue, raw, 30)
            for task in asyncio.all_tasks():
                if task.get_name().startswith("exchange-"):
                    task.cancel()

    know_the_library(queue)
    queue.put("cancels")
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=30) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, burst=True, signals=False)
            with pytest.raises(WorkerBroken, match="its exchange was cancelled, and not by the worker"):
                await asyncio.wait_for(worker.run(), 20)
    assert queue.stats().in_progress == 0
    assert nothing_was_lost(queue)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_claim_under_way_took_is_given_back_when_an_error_ends_the_loop(
    url: str, queue: Queue, raw: redis.Redis, error: type[BaseException]
) -> None:
    async def leave() -> None:
        raise error

    heard: list[str] = []

    async def handler(lease: Lease) -> None:
        if lease.task != "leaves":
            heard.append(lease.task)
            return
        await asyncio.to_thread(hold_a_claim, proxy, queue, raw, 30)
        await asyncio.create_task(leave())

    async def work() -> None:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=30) as mine:
            await Worker(mine, handler, concurrency=50, prefetch=0, signals=False).run()

    know_the_library(queue)
    queue.put("leaves")
    with Proxy(url) as proxy, pytest.raises(error):
        asyncio.run(work())
    assert (queue.stats().in_progress, len(heard)) == (0, 1)
    assert nothing_was_lost(queue)


async def test_what_a_claim_took_all_of_whose_replies_were_lost_comes_back_when_the_server_answers(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async def handler(lease: Lease) -> None:
        pass

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=1) as mine:
            worker = Worker(mine, handler, concurrency=50, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            await until(partial(listens, raw))
            proxy.arm(Fault.SWALLOW, called("claim"), times=None)
            queue.put([f"t{i}" for i in range(30)])
            await until(seen(worker, lambda pump: pump.exchanges.failures))
            # the first one came with the claim behind the bell, which was sent before
            assert (queue.stats().done, queue.stats().in_progress) == (1, 29)
            proxy.disarm()
            await until(lambda: worker.tally.acked == 30)
            worker.stop()
            await running
    assert nothing_was_lost(queue)


async def test_a_server_that_does_not_answer_is_not_asked_for_long_what_a_claim_took(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> None:
        await until(lambda: proxy.struck > 0)
        cancel_all_but(spared)
        began.append(time.monotonic())

    began: list[float] = []
    know_the_library(queue)
    queue.put("cancels")
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20, deadline=1) as mine:
            worker = Worker(mine, handler, concurrency=50, signals=False)
            running = asyncio.create_task(worker.run())
            spared = asyncio.all_tasks()
            await until(lambda: len(worker.running) == 1)
            proxy.arm(Fault.HALF_OPEN, b"", times=None)
            queue.put("a")
            with pytest.raises(WorkerBroken):
                await running
            assert time.monotonic() - began[0] < 5


async def test_an_exchange_that_is_cancelled_before_it_begins_leaves_nothing_to_wait_for() -> None:
    mine = AsyncQueue("q")
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), lambda leases: None)
    exchanges.begin(source.claim(3, 1))
    (task,) = exchanges.under_way
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert (source.claiming, exchanges.worth_asking, exchanges.under_way) == (0, False, set())


async def test_a_server_that_is_away_is_not_asked_what_a_claim_took_unless_there_is_more_to_send() -> None:
    mine = AsyncQueue("q", deadline=5)
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), lambda leases: None)
    exchanges.common.met = True
    exchanges.miss(source.claim(3, 1), time.monotonic(), time.monotonic())
    assert exchanges.has_more
    exchanges.failures = 1
    assert not exchanges.has_more
    desk.ends.acks.append(Lease("a", "w#1", deadline=0.0, fence=1))
    assert exchanges.has_more


async def test_what_a_claim_took_is_asked_for_when_the_claim_has_surely_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, pace = AsyncQueue("q"), Pace(4, 0, 30.0, 0.0)
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, pace, is_burst=False)
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), lambda leases: None)
    asked: list[float] = []

    async def run(flow: Generator[object]) -> None:
        flow.close()
        asked.append(time.monotonic())

    monkeypatch.setattr(mine, "run", run)
    pace.trip = 0.2
    sent_at = time.monotonic()
    exchanges.miss(source.claim(3, 1), sent_at, sent_at)
    await exchanges.make()
    assert len(asked) == 1
    assert asked[0] - sent_at >= 0.2


async def test_an_exchange_that_is_cut_off_between_two_answers_keeps_the_ends_and_the_claim_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = AsyncQueue("q")
    lost, done = (Lease(name, f"w#{name}", deadline=0.0, fence=fence) for fence, name in enumerate(("lost", "done")))
    desk = Worker(mine, lambda lease: None)._desk
    source = Source(desk, Pace(4, 0, 30.0, 0.0), is_burst=False)
    exchanges = Exchanges(desk, source, Stopping(25.0), Cleaner(mine), lambda leases: None)

    async def run(flow: Generator[object]) -> list[object]:
        flow.close()
        return [Outcome([b"lost"], b"O"), Outcome([b"done"], b"O"), Claimed(1)]

    def cut_off(errand: Errand, outcome: Outcome) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(mine, "run", run)
    monkeypatch.setattr(desk, "settled", cut_off)
    desk.took([lost, done])
    desk.ends.postpone(lost, 1)
    desk.ends.postpone(done, 1)
    with pytest.raises(asyncio.CancelledError):
        await exchanges.make(source.claim(3, 1))
    assert list(desk.ends.leases) == [done]
    assert (source.claiming, exchanges._missed[0][0].args[0]) == (0, 3)
