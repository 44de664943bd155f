"""The exchanges of a worker: two side by side at most, and what becomes of both when one hangs or the worker stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of, seen
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from tests.worker.working import at_work, know_the_library, until
from timeoutq import AsyncQueue, Lease, Queue, State, Worker
from timeoutq.server import scripts
from timeoutq.verbs.replies import Claimed
from timeoutq.words.errors import WorkerBroken


def called(name: str) -> bytes:
    """Give bytes that only requests of this verb contain."""
    return scripts.function(name).encode()


def listens(raw: redis.Redis) -> bool:
    """Say whether a claim of a worker waits at the server, behind the bell."""
    return any(client["cmd"] == "blpop" and "b" in client["flags"] for client in raw.client_list())


def is_at(queue: Queue, done: int, in_progress: int) -> bool:
    stats = queue.stats()
    return (stats.done, stats.in_progress) == (done, in_progress)


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


async def test_a_put_that_rings_while_a_claim_is_under_way_is_claimed_at_once(url: str, queue: Queue) -> None:
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        async with at_work(Worker(mine, lambda lease: None, signals=False)) as worker:
            await until(seen(worker, lambda pump: pump.shards[0].claims.idle))
            claims = pump_of(worker).shards[0].claims
            nothing = Claimed(now_ms=round(time.time() * 1000))
            for before, idle in ((claims.strokes, True), (claims.strokes - 1, False)):
                # the claim was sent when the bell had rung `before` times, and found nothing
                claims.idle = False
                claims.came(claims.claim(10, 1), nothing, time.monotonic(), before)
                assert claims.idle is idle


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


async def test_what_a_claim_took_all_of_whose_replies_were_lost_comes_back_when_the_server_answers(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async def handler(lease: Lease) -> None:
        pass

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=1) as mine:
            async with at_work(Worker(mine, handler, concurrency=50, prefetch=0, signals=False)) as worker:
                await until(partial(listens, raw))
                proxy.arm(Fault.SWALLOW, called("claim"), times=None)
                queue.put([f"t{i}" for i in range(30)])
                await until(seen(worker, lambda pump: pump.shards[0].failures))
                # the first one came with the claim behind the bell, which was sent before
                assert (queue.stats().done, queue.stats().in_progress) == (1, 29)
                proxy.disarm()
                await until(lambda: worker.tally.acked == 30)
    assert nothing_was_lost(queue)
