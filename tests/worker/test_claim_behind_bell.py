"""The claim that waits at the server behind the bell: it is quick, and what it takes is never lost on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from redis.exceptions import ResponseError

from tests.rig.inside import pump_of
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Lease, Queue, State, TimeoutqError, Worker
from timeoutq.server import scripts
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.words.errors import WorkerBroken
from timeoutq.worker.pace import Pace
from timeoutq.worker.sources import Source

WAIT = b":bell\r\n$6\r\n10.000"
"""Bytes that only a wait for the bell contains."""


def listens(raw: redis.Redis, many: int = 1) -> bool:
    """Say whether somebody waits at the server for a bell, or at least so many."""
    return sum(client["cmd"] == "blpop" and "b" in client["flags"] for client in raw.client_list()) >= many


async def until(predicate: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.005)


def know_the_scripts(queue: Queue, raw: redis.Redis) -> None:
    """Have the server know the scripts, and the bell be silent."""
    queue.put("first")
    queue.ack(queue.claim(1))
    queue.forget("first")
    raw.delete(queue.operations.key("bell"))


@contextmanager
def put_while_stopped(server: EmbeddedServer, queue: Queue, task: str) -> Iterator[None]:
    """Have a put come to a stopped server; after the block, it reads the put and all that has come later in one go."""
    connection: Any = redis.ConnectionPool.from_url(server.url).get_connection()
    (call,) = queue.operations.put((task,), queue.talk.nonce)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    os.waitpid(server.pid, os.WUNTRACED)  # until it has stopped
    try:
        connection.send_command(*call.command())
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
        assert connection.read_response() == b"A"
        connection.disconnect()


def is_back(queue: Queue) -> bool:
    """Say whether "a" is ready, and nobody was blamed for it."""
    found, counters = queue.inspect("a"), queue.stats().counters
    return (found.state, found.crashes, found.releases, counters.get("expired", 0)) == (State.TODOS, 0, 0, 0)


def loses_the_reply(proxy: Proxy, queue: Queue, raw: redis.Redis) -> None:
    """Have the claim that waits behind the bell take "a", and keep the reply from the worker."""
    wait_until(lambda: proxy.struck == 1 and listens(raw))
    queue.put("a")
    wait_until(lambda: queue.stats().in_progress == 1)


async def no_handler(lease: Lease) -> None:
    raise AssertionError("nothing comes")


async def test_an_idle_worker_gets_a_task_without_sending_anything(url: str, queue: Queue, raw: redis.Redis) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20) as mine:
            worker = Worker(mine, handler, signals=False)
            running = asyncio.create_task(worker.run())
            await until(partial(listens, raw))
            proxy.arm(Fault.HALF_OPEN, scripts.function("claim").encode(), times=None)
            queue.put("a")
            await until(lambda: ran == ["a"])
            proxy.disarm()
            proxy.cut()
            worker.stop()
            await running


@pytest.mark.parametrize("how", ["drain", "at once", "cancelled", "the wait is cancelled", "all tasks are cancelled"])
async def test_what_the_claim_has_taken_is_given_back_when_the_worker_ends(
    url: str, queue: Queue, raw: redis.Redis, how: str
) -> None:
    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60) as mine:
            worker = Worker(mine, no_handler, signals=False)
            proxy.arm(Fault.SWALLOW, WAIT)
            running = asyncio.create_task(worker.run())
            spared = asyncio.all_tasks()
            await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
            assert worker.held == {}
            if how in ("drain", "at once"):
                worker.stop(now=how == "at once")
                await running
            else:
                bell = pump_of(worker).source.bell
                victims: dict[str, set[Any]] = {"cancelled": {running}, "the wait is cancelled": {bell}}
                for task in victims.get(how, asyncio.all_tasks() - spared):
                    assert task is not None
                    task.cancel()
                with pytest.raises((asyncio.CancelledError, WorkerBroken)):
                    await running
    assert is_back(queue)


async def test_a_stroke_that_meets_the_end_of_a_wait_wakes_another_worker(tmp_path: Path) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    with EmbeddedServer(tmp_path) as server, Queue("q", server.url) as queue, redis.Redis.from_url(server.url) as raw:
        know_the_scripts(queue, raw)
        async with AsyncQueue("q", server.url) as mine, AsyncQueue("q", server.url) as other:
            first, second = Worker(mine, no_handler, signals=False), Worker(other, handler, signals=False)
            ending = asyncio.create_task(first.run())
            await until(partial(listens, raw))
            going_on = asyncio.create_task(second.run())
            await until(partial(listens, raw, 2))
            with put_while_stopped(server, queue, "a"):
                first.stop()
                await until(lambda: pump_of(first).source.bell is None)
            await until(lambda: ran == ["a"], 5)  # by itself, the wait would take ten seconds
            second.stop()
            await asyncio.gather(ending, going_on)


def test_a_claim_of_nothing_rings_the_bell_for_what_is_ready(url: str, queue: Queue, raw: redis.Redis) -> None:
    def ask() -> int:
        nothing = queue.operations.claim(queue.talk.nonce(), 0, 30_000, 0)
        queue.run(flows.give_back(queue.talk, nothing, 1))
        return raw.llen(queue.operations.key("bell"))

    know_the_scripts(queue, raw)
    assert ask() == 0
    queue.put("a")
    raw.delete(queue.operations.key("bell"))
    assert (ask(), ask()) == (1, 1)
    assert queue.stats().todos == 1


def test_a_claim_of_nothing_is_answered_by_a_full_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, Queue("q", server.url) as queue, redis.Redis.from_url(server.url) as raw:
        queue.put("a")
        raw.delete(queue.operations.key("bell"))
        raw.config_set("maxmemory", 1)
        nothing = queue.operations.claim(queue.talk.nonce(), 0, 30_000, 0)
        assert queue.run(sending.answer(queue.talk, nothing)).leases == []
        assert raw.llen(queue.operations.key("bell")) == 1, "it rings for another claim"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_the_claim_has_taken_is_given_back_when_an_error_ends_the_loop(
    url: str, queue: Queue, raw: redis.Redis, error: type[BaseException]
) -> None:
    async def leave() -> None:
        await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
        raise error

    async def work() -> None:
        async with AsyncQueue(queue.name, proxy.url, timeout=60) as mine:
            leaving = asyncio.create_task(leave())
            try:
                await Worker(mine, no_handler, signals=False).run()
            finally:
                assert type(leaving.exception()) is error

    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        proxy.arm(Fault.SWALLOW, WAIT)
        with pytest.raises(error):
            asyncio.run(work())
    assert is_back(queue)


def test_what_the_claim_has_taken_is_given_back_though_the_reply_was_awaited_longer_than_for_a_call(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    mine = AsyncQueue(queue.name, url, timeout=60, deadline=1)
    source = Source(Worker(mine, no_handler)._desk, Pace(4, 0, 60.0, 0.0), is_burst=False)
    queue.put("a")
    assert len(queue.run(sending.answer(queue.talk, source.claim(1, 1))).leases) == 1
    # as if the server had carried out the claim so long ago
    raw.zincrby(queue.operations.key("leases"), -8000, "a")
    queue.run(source.give_back_unread())
    assert is_back(queue)


async def test_what_the_claim_has_taken_comes_back_when_only_the_wait_ends(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60) as mine:
            worker = Worker(mine, lambda lease: None, signals=False)
            proxy.arm(Fault.SWALLOW, WAIT)
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
            proxy.cut()
            await until(lambda: worker.tally.acked == 1)
            worker.stop()
            tally = await running
    assert (tally.acked, tally.lost) == (1, 0)
    assert queue.stats().counters.get("expired", 0) == 0


async def test_what_the_claim_has_taken_comes_back_though_the_wait_began_long_ago(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=1.0) as mine:
            worker = Worker(mine, lambda lease: None, signals=False)
            proxy.arm(Fault.SWALLOW, WAIT)
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.struck == 1 and listens(raw))
            later = time.monotonic() + 1.5  # longer than a call takes
            await until(lambda: time.monotonic() > later)
            await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
            proxy.cut()
            await until(lambda: worker.tally.acked == 1)
            worker.stop()
            await running
    assert queue.stats().counters.get("expired", 0) == 0


async def test_nothing_runs_beside_a_suspect(url: str, queue: Queue, raw: redis.Redis) -> None:
    began: list[str] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        if lease.task == "suspect":
            await go.wait()

    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, handler, signals=False)
        running = asyncio.create_task(worker.run())
        await until(partial(listens, raw))
        pump = pump_of(worker)
        assert pump.source.claiming == 1
        pump.exchanges.receive([Lease("suspect", "w#1", deadline=time.time() + 20, fence=1, crashes=2)])
        await until(lambda: began == ["suspect"] and pump.source.claiming == 0 and not listens(raw))
        queue.put("a")
        assert (queue.stats().todos, began) == (1, ["suspect"])
        go.set()
        await until(lambda: began == ["suspect", "a"])
        worker.stop()
        await running


async def test_a_worker_that_drains_waits_behind_the_bell_no_longer(url: str, queue: Queue, raw: redis.Redis) -> None:
    began: list[str] = []
    go = asyncio.Event()

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await go.wait()

    queue.put("a")
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        worker = Worker(mine, handler, concurrency=2, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: began == ["a"] and listens(raw))
        worker.stop()
        await until(lambda: not listens(raw), 5)  # by itself, the wait would take ten seconds
        queue.put("b")
        go.set()
        await running
    stats = queue.stats()
    assert (stats.counters["claimed"], stats.done, stats.todos) == (1, 1, 1)


async def test_a_worker_that_hung_while_the_reply_lay_there_does_not_begin_with_an_old_lease(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    left: list[float] = []

    async def handler(lease: Lease) -> None:
        left.append(lease.deadline - time.time())

    async with AsyncQueue(queue.name, url, timeout=2) as mine:
        worker = Worker(mine, handler, signals=False)
        running = asyncio.create_task(worker.run())
        await until(partial(listens, raw))
        queue.put("a")
        wait_until(lambda: queue.stats().in_progress == 1)
        time.sleep(1.1)  # noqa: ASYNC251  # the loop hangs
        await until(lambda: worker.tally.acked == 1)
        worker.stop()
        await running
    assert left[0] > 1
    counters = queue.stats().counters
    assert (counters["claimed"], counters["released"], counters.get("expired", 0)) == (2, 1, 0)


async def test_a_cancelled_claim_gives_back_what_it_took_behind_the_bell(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    know_the_scripts(queue, raw)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=0.5) as mine:
            proxy.arm(Fault.SWALLOW, WAIT)
            claim = asyncio.create_task(mine.claim(wait=30))
            await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
            later = time.monotonic() + 2  # longer than a call takes
            await until(lambda: time.monotonic() > later)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            await until(lambda: is_back(queue))


def leased(queue: Queue) -> list[Any]:
    """Give the reply to a claim that has taken "a"."""
    now_ms = queue.talk.clock.now_ms
    return [now_ms, now_ms + 30_000, b"7", [b"a"], [], [], []]


def hear(queue: Queue, *heard: object) -> Claimed | None:
    """Claim behind the bell, where the server has said `heard`."""
    flow = flows.hear_bell(queue.talk, 10.0, queue.operations.claim(b"token", 1, 30_000, 0))
    next(flow)
    try:
        flow.send(list(heard))
    except StopIteration as end:
        return cast("Claimed | None", end.value)
    raise AssertionError("there is another step")


def test_a_bell_that_is_refused_does_not_hide_what_the_claim_behind_it_took(queue: Queue) -> None:
    queue.claim()
    refused = ResponseError("WRONGTYPE not a list")
    found = hear(queue, refused, leased(queue))
    assert found is not None
    assert [lease.task for lease in found.leases] == ["a"]
    with pytest.raises(TimeoutqError, match="WRONGTYPE"):
        hear(queue, refused, [queue.talk.clock.now_ms, 0, 0])
    assert hear(queue, [b"bell", b"1"], ResponseError("LATE")) is None


async def test_a_lease_is_given_back_if_the_queue_has_become_durable_meanwhile(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    async with AsyncQueue(queue.name, url, timeout=20) as mine:
        claim = asyncio.create_task(mine.claim(wait=10))
        await until(partial(listens, raw))
        mine.talk.durable.learn(1, time.monotonic() + 20)
        queue.put("a")
        # the next claim, which replicas could confirm, learns that the queue is not durable after all
        assert [lease.task for lease in await claim] == ["a"]
    counters = queue.stats().counters
    assert (counters["claimed"], counters["released"]) == (2, 1)


def test_a_claim_behind_the_bell_may_run_until_the_wait_is_over_and_not_after_its_reply_is_due(queue: Queue) -> None:
    queue.claim()
    for seconds in (0.5, 10.0):
        call = queue.operations.claim(b"token", 1, 30_000, 0)
        bell: Any = next(flows.hear_bell(queue.talk, seconds, call))
        (command,) = bell.then
        left = command[-1] - queue.talk.clock.now_ms
        assert 1000 * seconds < left + 100 <= 1000 * (seconds + queue.talk.deadline * ATTEMPT) + 100


def test_a_claim_that_arrives_when_nobody_waits_for_it_any_more_takes_nothing(queue: Queue, raw: redis.Redis) -> None:
    queue.put("a", "b")
    queue.claim()
    call = queue.operations.claim(b"token", 1, 60_000, 0)
    client: Any = raw
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    with pytest.raises(ResponseError, match=r"^LATE the claim arrived \d+ ms after its caller gave up"):
        client.execute_command(*call.command(not_after=now_ms - 20))
    assert queue.stats().todos == 1
    client.execute_command(*call.command(not_after=now_ms + 60_000))
    assert queue.stats().in_progress == 2


def test_nothing_is_sent_behind_the_bell_of_a_durable_queue_or_without_the_servers_time(queue: Queue) -> None:
    queue.claim()

    def sent() -> int:
        bell: Any = next(flows.hear_bell(queue.talk, 10.0, queue.operations.claim(b"token", 1, 30_000, 0)))
        return len(bell.then)

    assert sent() == 1
    queue.talk.durable.learn(1, time.monotonic())
    assert sent() == 0
    queue.talk.durable.learn(0, time.monotonic())
    queue.talk.clock.forget()
    assert sent() == 0
