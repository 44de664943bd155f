"""Limits of functions: how many calls run at once, whatever dies, and what is said where no limit can be kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tests.functions.test_app_schedules import due_now
from tests.rig import limited
from tests.rig.commands import ran
from tests.rig.processes import processes
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, InvalidInput, Politeness, Queue, Worker
from timeoutq.functions import App, Calls, Limit, limits, scheduling
from timeoutq.functions.client import Sender
from timeoutq.testing import fake_async_sharded_queue

ANY = Politeness(delay=0, per_host=10_000)
"""Keeps nobody waiting who has no limit."""


@pytest.fixture
def polite(url: str, name: str) -> Iterator[Queue]:
    with Queue(name, url, timeout=5) as queue:
        queue.configure(politeness=ANY)
        yield queue
        queue.purge()


async def burst(app: App) -> None:
    async with asyncio.timeout(30):
        await app.worker(timeout=2, burst=True, concurrency=50).run()


def test_no_more_calls_than_the_limit_run_at_once_and_others_are_not_kept_waiting(polite: Queue, app: App) -> None:
    now = most = free = 0

    @app.task(limit=Limit(concurrency=2))
    async def slow(n: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    @app.task
    async def other(n: int) -> None:
        nonlocal free
        free += 1

    app.put(slow.call(n) for n in range(10))
    app.put(other.call(n) for n in range(10))
    info = polite.hosts.inspect("slow")
    assert (info.per_host, info.delay, info.waiting, info.busy) == (2, 0.0, 8, 2)
    asyncio.run(burst(app))
    assert (most, free) == (2, 10)
    assert polite.stats().known == polite.stats().done


def test_a_limit_counts_for_each_text_of_per(polite: Queue, app: App) -> None:
    @app.task(limit=Limit(concurrency=1, every=30, per="tenant:{tenant}"))
    async def bill(tenant: str, n: int) -> None: ...

    app.put(bill.call(tenant, n) for tenant in ("a", "b") for n in range(3))
    leases = polite.claim(10)
    assert sorted(lease.payload["k"]["tenant"] for lease in leases) == ["a", "b"]
    polite.ack(leases)
    assert polite.claim(10) == []  # 30 seconds lie between the end of a call and the begin of the next one
    assert polite.hosts.inspect("tenant:a").delay == 30


def test_the_first_call_with_a_limit_makes_an_empty_queue_polite(queue: Queue, app: App) -> None:
    @app.task(limit=Limit(concurrency=1))
    async def send(n: int) -> None: ...

    app.schedules.set("daily", send.call(1), cron="0 9 * * *")
    app.put(send.call(n) for n in range(3))
    assert (queue.hosts.inspect("send").per_host, queue.stats().waiting) == (1, 2)
    assert queue.stats().settings["politeness"] == "0 10000"


def test_a_limit_that_a_function_gets_while_its_queue_holds_tasks_is_kept_from_the_next_call_on(
    queue: Queue, app: App, url: str
) -> None:
    before = App(app.name, url=url)

    @before.task(name="send")
    async def sent(n: int) -> None: ...

    before.put(sent.call(n) for n in range(6000))
    before.close()

    @app.task(limit=Limit(concurrency=5))
    async def send(n: int) -> None: ...

    for n in range(9):
        send.delay(n)
    assert (queue.hosts.inspect("send").per_host, queue.stats().waiting) == (5, 4)
    assert "converting" in queue.stats().settings, "no caller walks through all tasks"


@pytest.mark.breaking
def test_a_limit_holds_while_workers_are_killed(url: str, tmp_path: Path) -> None:
    killed: dict[int, float] = {}
    with Queue("limited", url, timeout=1, max_crashes=1000) as queue, processes(url, tmp_path) as run:
        queue.configure(politeness=ANY)
        limited.app.sender = Sender(url)
        limited.app.put(limited.visit.call(tenant, n) for tenant in limited.TENANTS for n in range(150))
        code = "from tests.rig.limited import work\nwork()"
        workers = [run.start_code(code) for _ in range(3)]
        until = time.monotonic() + 90
        kill_at = time.monotonic() + 1.0
        while not queue.drained() and time.monotonic() < until:
            time.sleep(0.02)
            if time.monotonic() > kill_at and len(killed) < 3:
                kill_at = time.monotonic() + 0.7
                worker = workers.pop(0)
                worker.kill()
                worker.wait()
                killed[worker.pid] = time.time()
                workers.append(run.start_code(code))
        wait_until(queue.drained)
        assert queue.stats().counters["acked"] == 300
        assert len(killed) == 3
        assert limited.at_once(run.history, killed) == dict.fromkeys(limited.TENANTS, limited.MOST)
        assert queue.hosts.inspect("tenant:acme").per_host == limited.MOST
        limited.app.close()
        queue.purge()


# ---- calls that schedules put, and calls that follow


class Most:
    """Counts how many calls run at the same time."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    async def __call__(self) -> None:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1


async def test_the_calls_that_a_schedule_puts_keep_their_limit(app: App, queue: Queue, raw: redis.Redis) -> None:
    @app.task(limit=Limit(concurrency=1, per="t:{t}"))
    async def one(t: str) -> None:
        await most()

    most, start = Most(), datetime.now(UTC) - timedelta(seconds=8)
    await app.schedules.aset("m", one.call("a"), every=1, start=start, missed="all", overlap=True)
    await app.aclose()
    due_now(raw, queue, "m")
    put = queue.schedules.tick()
    app.schedules.cancel("m")
    assert put > 1
    assert (queue.hosts.inspect("t:a").per_host, queue.stats().waiting) == (1, put - 1)
    await burst(app)
    assert (most.most, most.all) == (1, put)


async def test_a_queue_that_can_keep_no_limit_gets_no_decorators_schedule_that_has_one(app: App, name: str) -> None:
    @app.task(limit=Limit(concurrency=1), every=3600)
    async def one() -> None: ...

    @app.task(every=3600)
    async def two() -> None: ...

    async with fake_async_sharded_queue(name, by="id") as queue:
        with pytest.raises(InvalidInput, match="routes its tasks by id"):
            declare = scheduling.declaring(app, name, queue.flows)
            assert declare is not None
            await queue.run(declare())
        assert [info.name async for info in queue.schedules.each()] == ["two"]


@pytest.fixture
def chained(url: str, name: str) -> Iterator[tuple[App, Most]]:
    """An app with two queues: the calls that follow are in the second one."""
    app, most = App(name, queues=[name, f"{name}-2"], url=url), Most()

    @app.task
    async def first(n: int) -> int:
        return n

    @app.task(queue=f"{name}-2", limit=Limit(concurrency=1))
    async def one(n: int) -> None:
        await most()

    @app.task(queue=f"{name}-2", limit=Limit(concurrency=1, per="n:{end}"))
    async def each(n: int, end: str = "all") -> None:
        await most()

    yield app, most
    app.close()
    for queue in app.queues.names:
        with Queue(queue, url) as opened:
            opened.purge()


@pytest.mark.parametrize("follower", ["one", "each"])
def test_the_calls_that_follow_into_another_queue_keep_their_limit(
    chained: tuple[App, Most], url: str, follower: str
) -> None:
    app, most = chained
    functions: Any = app.functions
    app.put(functions["first"].call(n).then(functions[follower]) for n in range(8))
    with Queue(app.queues.names[1], url) as second:
        second.put("a task")
        second.ack(second.claim(1))
    asyncio.run(burst(app))
    assert (most.all, most.most) == (8, 1)


# ---- what becomes of limits that this process has declared before


def test_a_purged_queue_gets_its_limits_again_with_the_next_call(queue: Queue, app: App, url: str) -> None:
    @app.task(limit=Limit(concurrency=1, per="t:{t}"))
    async def one(t: str, n: int) -> None: ...

    app.put(one.call(t, 1) for t in "ab")
    with Queue(queue.name, url) as other:
        other.purge()
    app.put(one.call(t, n) for t in "ab" for n in range(4))
    assert [queue.hosts.inspect(f"t:{t}").per_host for t in "ab"] == [1, 1]
    assert len(queue.claim(10)) == 2


def test_a_limit_of_more_places_than_a_pause_allows_is_declared_once(polite: Queue, app: App, raw: redis.Redis) -> None:
    @app.task(limit=Limit(concurrency=1000, every=1))
    async def one(n: int) -> None: ...

    app.put([one.call(1)])
    asked = ran(raw, lambda: app.put([one.call(2)]))
    assert (asked.pop("fcall_ro", 0) + asked.pop("fcall", 0), polite.hosts.inspect("one").per_host) == (2, 500)


# ---- a limit that is first declared while the server is away


def _put_before(url: str, name: str) -> None:
    """Put calls as a program did that had no limit."""
    before = App(name, url=url)

    @before.task
    async def bill(tenant: int, n: int) -> int:
        raise NotImplementedError

    before.put(bill.call(7, n) for n in range(3))
    before.close()


async def test_a_call_whose_limit_a_silent_server_cannot_take_waits_and_has_not_failed(
    polite: Queue, app: App, url: str, name: str
) -> None:
    ran: list[int] = []

    @app.task(limit=Limit(concurrency=10, per="t:{tenant}"), retry=[], max_runtime=0.2)
    async def bill(tenant: int, n: int) -> int:
        ran.append(n)
        return n

    _put_before(url, name)
    with Proxy(url) as proxy:
        proxy.arm(Fault.HALF_OPEN, b"t:7", times=None)
        async with AsyncQueue(name, proxy.url, deadline=0.4) as jobs, asyncio.timeout(30):
            working = asyncio.create_task(Worker(jobs, Calls(app), burst=True, signals=False).run())
            await asyncio.to_thread(wait_until, lambda: polite.stats().counters.get("released", 0) >= 3)
            proxy.disarm()
            tally = await working
    assert (sorted(ran), tally.failed, polite.stats().failed) == ([0, 1, 2], 0, 0)


async def test_a_worker_says_once_a_minute_that_a_queue_keeps_no_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, app = [100.0], App("q")
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @app.task(limit=Limit(concurrency=10))
    async def bill(number: int) -> None:
        now[0] += 25.0

    async with fake_async_sharded_queue("q", by="id") as queue:
        # as a program put them that knew of no limit
        await queue.put({f"bill:{n}": {"v": 1, "f": "bill", "k": {"number": n}} for n in range(4)})
        with caplog.at_level(logging.WARNING):
            await Worker(queue, Calls(app), burst=True, signals=False, concurrency=1).run()
    assert sum("routes its tasks by id" in message for message in caplog.messages) == 2, "at once, and after 75 s"
