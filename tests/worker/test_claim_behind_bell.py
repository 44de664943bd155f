"""The claim that waits at the server behind the bell: it is quick, and what it takes is never lost on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from tests.rig.inside import pump_of, seen
from tests.rig.processes import Processes, run
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from tests.worker.working import at_work, know_the_library, until
from timeoutq import AsyncQueue, Lease, Queue, State, Worker
from timeoutq.cli.about import pages
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import flows
from timeoutq.words.errors import WorkerBroken

__all__ = ["run"]

WAIT = b":bell\r\n$6\r\n10.000"
"""Bytes that only a wait for the bell contains."""


def listens(raw: redis.Redis, many: int = 1) -> bool:
    """Say whether somebody waits at the server for a bell, or at least so many."""
    return sum(client["cmd"] == "blpop" and "b" in client["flags"] for client in raw.client_list()) >= many


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


def worker_that_loses_a_reply(
    run: Processes, proxy: Proxy, queue: Queue, raw: redis.Redis, timeout: str
) -> subprocess.Popen[bytes]:
    """Start a worker command whose process has claimed "a", and has not read this."""
    know_the_library(queue)
    proxy.arm(Fault.SWALLOW, WAIT)
    worker = run.start("worker", queue.name, "tests.rig.handlers:work", "--timeout", timeout, TIMEOUTQ_URL=proxy.url)
    loses_the_reply(proxy, queue, raw)
    return worker


async def no_handler(lease: Lease) -> None:
    raise AssertionError("nothing comes")


async def test_an_idle_worker_gets_a_task_without_sending_anything(url: str, queue: Queue, raw: redis.Redis) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20) as mine:
            async with at_work(Worker(mine, handler, signals=False)):
                await until(partial(listens, raw))
                proxy.arm(Fault.HALF_OPEN, scripts.function("claim").encode(), times=None)
                queue.put("a")
                await until(lambda: ran == ["a"])
                proxy.disarm()
                proxy.cut()


@pytest.mark.parametrize("how", ["drain", "at once", "cancelled", "the wait is cancelled", "all tasks are cancelled"])
async def test_what_the_claim_has_taken_is_given_back_when_the_worker_ends(
    url: str, queue: Queue, raw: redis.Redis, how: str
) -> None:
    know_the_library(queue)
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
                bell = pump_of(worker).shards[0].claims.bell
                victims: dict[str, set[Any]] = {"cancelled": {running}, "the wait is cancelled": {bell}}
                for task in victims.get(how, asyncio.all_tasks() - spared):
                    assert task is not None
                    task.cancel()
                with pytest.raises((asyncio.CancelledError, WorkerBroken)):
                    await running
    assert is_back(queue)


def test_what_a_killed_process_was_about_to_read_is_given_back_by_its_supervisor(
    url: str, queue: Queue, raw: redis.Redis, run: Processes
) -> None:
    with Proxy(url) as proxy:
        worker = worker_that_loses_a_reply(run, proxy, queue, raw, "300s")
        (pid,) = map(int, Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: queue.stats().done == 1)
    assert "0 tasks were running" in run.log(worker)
    assert "1 more was held" in run.log(worker)
    assert (queue.stats().counters.get("crashed"), queue.stats().counters.get("expired")) == (None, None)


def test_what_a_killed_command_was_about_to_read_waits_out_its_lease_as_the_page_of_promises_says(
    url: str, queue: Queue, raw: redis.Redis, run: Processes
) -> None:
    with Proxy(url) as proxy:
        worker = worker_that_loses_a_reply(run, proxy, queue, raw, "2s")
        run.end()
    assert worker.returncode == -signal.SIGKILL
    wait_until(lambda: queue.requeue_expired() == 1)
    assert (queue.inspect("a").crashes, queue.stats().counters["expired"]) == (1, 1)
    said = "if a process is killed before it reads the answer of a claim"
    assert said in " ".join(pages()["promises"].split())


async def test_what_the_claim_has_taken_is_not_forgotten_while_the_server_is_away(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    know_the_library(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=60, deadline=0.5) as mine:
            proxy.arm(Fault.SWALLOW, WAIT)
            async with at_work(Worker(mine, handler, signals=False)) as worker:
                await asyncio.to_thread(loses_the_reply, proxy, queue, raw)
                token: Any = raw.hget(queue.operations.key("owners"), "a")
                proxy.arm(Fault.RESET_BEFORE, token.encode(), times=None)  # it answers no question about this claim
                proxy.cut()
                await until(seen(worker, lambda pump: proxy.struck and pump.shards[0].failures))
                assert queue.stats().in_progress == 1
                proxy.disarm()
                await until(lambda: ran == ["a"])
    assert queue.stats().counters.get("expired", 0) == 0


async def test_a_stroke_that_meets_the_end_of_a_wait_wakes_another_worker(tmp_path: Path) -> None:
    ran: list[str] = []

    async def handler(lease: Lease) -> None:
        ran.append(lease.task)

    with EmbeddedServer(tmp_path) as server, Queue("q", server.url) as queue, redis.Redis.from_url(server.url) as raw:
        know_the_library(queue)
        async with AsyncQueue("q", server.url) as mine, AsyncQueue("q", server.url) as other:
            first, second = Worker(mine, no_handler, signals=False), Worker(other, handler, signals=False)
            ending = asyncio.create_task(first.run())
            await until(partial(listens, raw))
            going_on = asyncio.create_task(second.run())
            await until(partial(listens, raw, 2))
            with put_while_stopped(server, queue, "a"):
                first.stop()
                await until(lambda: pump_of(first).shards[0].claims.bell is None)
            await until(lambda: ran == ["a"], 5)  # by itself, the wait would take ten seconds
            second.stop()
            await asyncio.gather(ending, going_on)


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


async def test_a_worker_that_hung_while_the_reply_lay_there_does_not_begin_with_an_old_lease(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    left: list[float] = []

    async def handler(lease: Lease) -> None:
        left.append(lease.deadline - time.time())

    async with AsyncQueue(queue.name, url, timeout=2) as mine:
        async with at_work(Worker(mine, handler, signals=False)) as worker:
            await until(partial(listens, raw))
            queue.put("a")
            wait_until(lambda: queue.stats().in_progress == 1)
            time.sleep(1.1)  # noqa: ASYNC251  # the loop hangs
            await until(lambda: worker.tally.acked == 1)
    assert left[0] > 1
    counters = queue.stats().counters
    assert (counters["claimed"], counters["released"], counters.get("expired", 0)) == (2, 1, 0)


def test_a_claim_of_nothing_rings_the_bell_for_what_is_ready(url: str, queue: Queue, raw: redis.Redis) -> None:
    def ask() -> int:
        nothing = queue.operations.claim(queue.talk.nonce(), 0, 30_000, 0)
        queue.run(flows.give_back(queue.talk, nothing, 1))
        return raw.llen(queue.operations.key("bell"))

    know_the_library(queue)
    assert ask() == 0
    queue.put("a")
    raw.delete(queue.operations.key("bell"))
    assert (ask(), ask()) == (1, 1)
    assert queue.stats().todos == 1
