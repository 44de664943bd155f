"""Clocks that jump: the server's under held leases, the worker's own while it works. What the promises say then holds.

The servers run with a clock that the test steps (`rig/shims/clock.c`); timers and monotonic clocks run on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import ROOT, processes
from tests.rig.servers import binary_of, wrapped
from tests.rig.shims import Clock
from tests.rig.waiting import until, wait_until
from timeoutq import AsyncQueue, Cleaner, Lease, Politeness, Queue, State, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import sending
from timeoutq.verbs.replies import Plan

LEASE = 1.0
LONG_LEASE = 2.0
"""For eight workers in one event loop, whose clients extend by hand."""
SLACK = 2.5
"""The time that a busy machine may add; a lease that is stuck is stuck for a minute at least."""
STEPS = [2.0, -2.0, 60.0, -60.0, 3600.0, -3600.0, 86400.0, -86400.0]
LONG_STEPS = [-86400.0, -3600.0, -60.0, 60.0, 3600.0, 86400.0]


@dataclass
class Bent:
    clock: Clock
    server: EmbeddedServer

    def step(self, seconds: float) -> None:
        """Step the clock from the real time, and wait until the server has looked at it."""
        self.clock.step(seconds)
        with redis.Redis.from_url(self.server.url) as client:
            raw: Any = client
            wait_until(lambda: abs(raw.time()[0] - time.time() - seconds) < 1.5)


Build = Callable[[], Bent]


@pytest.fixture(params=["redis", "valkey"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Build]:
    """Start servers with clocks of their own; they end with the test."""
    with ExitStack() as ends:

        def built() -> Bent:
            folder = tmp_path / f"server{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            clock = Clock(folder)
            ends.callback(clock.close)
            server = EmbeddedServer(binary=wrapped(binary_of(request.param), clock.environment, folder))
            return Bent(clock, ends.enter_context(server))

        yield built


@pytest.fixture
def bent(build: Build) -> Bent:
    return build()


# ---- the server's clock, under leases


@dataclass
class Seen:
    """The notes of a handler: when each task began, by the clock that nobody bends."""

    timeout: float
    began: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    fences: list[int] = field(default_factory=list[int])
    ended: list[str] = field(default_factory=list[str])

    async def work(self, lease: Lease) -> None:
        """Work for longer than two leases on what is called live, and not at all on the others."""
        self.began.setdefault(lease.task, []).append(time.monotonic())
        self.fences.append(lease.fence)
        if lease.task == "live":
            await asyncio.sleep(2.2 * self.timeout)
        self.ended.append(lease.task)


@asynccontextmanager
async def at_work(what: Worker | Cleaner) -> AsyncIterator[None]:
    task = asyncio.create_task(what.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def keep(queue: AsyncQueue, lease: Lease, until: Callable[[], bool]) -> Lease:
    """Extend a lease by hand, as a client without a worker does; raises LeaseLost when it is lost."""
    while not until():
        await asyncio.sleep(queue.timeout / 4)
        lease = await queue.extend(lease)
    return lease


async def live_through(bent: Bent, seconds: float) -> None:
    """Hold leases in three ways while the clock steps: a worker that works, a client that extends, and a dead one."""
    # a step that is shorter than half of the lease is not noticed, and need not be
    lease = LONG_LEASE if abs(seconds) > LONG_LEASE else 1.8 * LONG_LEASE
    url, saw = bent.server.url, Seen(lease)
    async with AsyncQueue("q", url, timeout=lease) as mine, AsyncQueue("q", url, timeout=lease) as theirs:
        await theirs.put("dead")
        (dead,) = await theirs.claim()
        claimed = time.monotonic()
        await theirs.put("kept")
        (kept,) = await theirs.claim()
        async with at_work(Worker(mine, saw.work, signals=False)):
            await theirs.put("live")
            await until(lambda: "live" in saw.began, 15)
            bent.step(seconds)
            keeper = asyncio.create_task(keep(theirs, kept, lambda: {"live", "dead"} <= set(saw.ended)))
            await theirs.schedule("later", after=0.2)
            await until(lambda: "dead" in saw.began, 15)
            await keeper
            back = saw.began["dead"][0] - claimed
            early = max(0.0, seconds) if lease > LONG_LEASE else 0.0
            assert lease * 0.9 - early <= back <= 2 * lease + SLACK, f"{seconds:+g} s: back after {back:.2f} s"
            await until(lambda: "later" in saw.ended, 15)
        assert await theirs.ack(keeper.result()) == "ok"
        assert {task: len(times) for task, times in saw.began.items()} == {"live": 1, "dead": 1, "later": 1}, seconds
        assert kept.fence > dead.fence
        assert saw.fences[0] > kept.fence
        assert saw.fences == sorted(saw.fences), f"{seconds:+g} s: fences shrink"
        stats = await theirs.stats()
        assert stats.counters["expired"] == 1
        assert stats.done == 4
    check(url, "q")


async def test_leases_outlive_every_step_of_the_servers_clock_and_none_is_stuck(build: Build) -> None:
    servers = [build() for _ in STEPS]
    await asyncio.gather(*(live_through(bent, seconds) for bent, seconds in zip(servers, STEPS, strict=True)))


async def test_a_dead_clients_task_comes_back_to_plain_clients_whatever_the_clock_does(build: Build) -> None:
    async def live(seconds: float) -> None:
        bent = build()
        async with AsyncQueue("q", bent.server.url, timeout=LEASE) as dead, AsyncQueue("q", bent.server.url) as plain:
            await dead.put("a")
            await dead.claim()
            claimed = time.monotonic()
            assert await plain.claim() == []
            bent.step(seconds)
            (again,) = await plain.claim(wait=20)
            back = time.monotonic() - claimed
            assert LEASE * 0.9 <= back <= 2 * LEASE + SLACK, f"{seconds:+g} s: back after {back:.2f} s"
            assert again.crashes == 1
            await plain.ack(again)
        check(bent.server.url, "q")

    await asyncio.gather(*(live(seconds) for seconds in LONG_STEPS))


async def test_a_clock_that_is_set_right_again_leaves_no_lease_behind(build: Build) -> None:
    """The grace that the first step began ends in a time which the second one makes distant."""

    async def live(there: float) -> None:
        bent = build()
        async with AsyncQueue("q", bent.server.url, timeout=LEASE) as dead, AsyncQueue("q", bent.server.url) as plain:
            await dead.put("a", "b")
            (lease,) = await dead.claim()
            assert await plain.claim(1, timeout=LEASE)
            bent.step(there)
            assert await plain.requeue_expired() == 0
            bent.step(0)
            corrected = time.monotonic()
            (again,) = await plain.claim(wait=20)
            assert time.monotonic() - corrected <= 2 * LEASE + SLACK, f"{there:+g} s and back"
            assert again.fence > lease.fence

    await asyncio.gather(*(live(there) for there in (30.0, 50.0, 3600.0)))


@pytest.mark.parametrize("seconds", [-60.0, 60.0, -86400.0, 86400.0])
def test_fences_grow_over_every_step(bent: Bent, seconds: float) -> None:
    with Queue("q", bent.server.url, keep_done=0) as queue:
        fences: list[int] = []
        for to in (0.0, seconds, 0.0, -seconds, 0.0):
            bent.step(to)
            queue.put("a", "b")
            leases = queue.claim(2)
            fences += [lease.fence for lease in leases]
            queue.ack(leases)
        assert fences == sorted(set(fences))
        assert len(fences) == 10


# ---- what was planned for a time


async def test_a_task_that_is_scheduled_after_a_step_is_ready_in_time(build: Build) -> None:
    """The cleaner sleeps, by a plan that was made before the step."""

    async def live(seconds: float) -> None:
        bent = build()
        async with AsyncQueue("q", bent.server.url) as own, AsyncQueue("q", bent.server.url) as other:
            async with at_work(cleaner := Cleaner(own)):
                await until(lambda: cleaner.met, 15)
                await other.stats()
                bent.step(seconds)
                began = time.monotonic()
                await other.schedule("a", after=0.2)
                await until(lambda: cleaner.promoted, 20)
                assert time.monotonic() - began <= 0.2 + SLACK, f"{seconds:+g} s"

    await asyncio.gather(*(live(seconds) for seconds in LONG_STEPS))


def test_what_a_cleaner_plans_after_a_step(bent: Bent) -> None:
    with Queue("q", bent.server.url, timeout=LEASE) as queue, redis.Redis.from_url(bent.server.url) as raw:

        def plan() -> Plan:
            return queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))

        first = plan()
        assert first.at_ms == first.now_ms + 10_000
        queue.put("a")
        queue.claim()
        bent.step(-60)
        cut = plan()
        assert cut.at_ms <= cut.now_ms, "leases that became too long are cut at once"
        queue.requeue_expired()
        assert plan().at_ms <= plan().now_ms + 1000
        raw.delete(queue.operations.key("alarm"))
        bent.step(3600)
        queue.schedule("b", after=30)
        assert raw.xlen(queue.operations.key("alarm")) == 1, "what was promised is long over: the cleaners are roused"


def test_a_due_time_is_a_time_and_waits_for_the_clock(bent: Bent) -> None:
    with Queue("q", bent.server.url) as queue:
        bent.step(3600)
        queue.schedule("a", after=0.2)
        bent.step(0)
        wait_until(lambda: queue.promote_due() == 0 and abs(queue.stats().now - time.time()) < 60)
        assert queue.inspect("a").state is State.SCHEDULED
        bent.step(3601)
        wait_until(queue.promote_due)


# ---- what is remembered for a while


@pytest.mark.parametrize("seconds", [-3600.0, -30.0, 30.0])
def test_a_call_that_is_sent_again_after_a_step_is_still_known(bent: Bent, seconds: float) -> None:
    with Queue("q", bent.server.url, timeout=30, keep_done=0) as queue, redis.Redis.from_url(bent.server.url) as client:
        raw: Any = client
        (put,) = queue.operations.put(("b",), queue.token)
        queue.put("a")  # so that the server knows the library
        queue.ack(queue.claim())
        queue.put("a")
        (lease,) = queue.claim()
        (ack,) = queue.operations.ack([lease])
        assert raw.execute_command(*ack.command()) == b"O"
        assert raw.execute_command(*put.command()) == b"A"
        queue.ack(queue.claim(5))
        assert queue.stats().known == 0
        bent.step(seconds)
        queue.put("d")  # somebody else's call forgets what is old
        assert raw.execute_command(*ack.command(100)) == b"R"
        assert raw.execute_command(*put.command(100)) == b"A"
        assert queue.inspect("b").state is None


# ---- the clocks of clients


def test_a_worker_whose_own_clock_jumps_does_all_as_ever(tmp_path: Path, url: str, name: str) -> None:
    clock = Clock(tmp_path)
    clock.step(600)
    with Queue(name, url, timeout=LEASE) as queue, processes(url, tmp_path) as running:
        queue.put("a")
        running.worker(name, "work", "--timeout", str(LEASE), WORK=str(1.6 * LEASE), **clock.environment)

        def events() -> list[tuple[str, str]]:
            return [(event, task) for event, task, *_ in history(running.history)]

        wait_until(lambda: ("start", "a") in events(), 30)
        began = float(history(running.history)[0][4])
        assert began > time.time() + 500, "the worker's clock is not bent"
        clock.step(-600)
        wait_until(lambda: ("end", "a") in events(), 30)
        (worker,) = queue.workers()
        assert abs(worker.beat - time.time()) < 60
        queue.schedule("b", after=0.2)
        clock.step(600)
        wait_until(lambda: ("end", "b") in events(), 30)
        wait_until(lambda: queue.stats().done == 2)
        assert events() == [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]
        assert queue.stats().counters.get("expired", 0) == 0
        running.end()
        check(url, name)
    clock.close()


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_producers_clock_does_not_matter_to_a_delay(tmp_path: Path, url: str, name: str, seconds: int) -> None:
    clock = Clock(tmp_path)
    clock.step(seconds)
    program = (
        "import sys, time, timeoutq\n"
        "queue = timeoutq.Queue(sys.argv[1])\n"
        "queue.schedule('a', after=100)\n"
        "queue.put('b')\n"
        "(lease,) = queue.claim(timeout=50)\n"
        "queue.fail(lease, 'x', retry_in=100)\n"
        "print(time.time())\n"
    )
    environment = {**os.environ, **clock.environment, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", program, name], env=environment, check=True, capture_output=True, timeout=60
    )
    assert abs(float(said.stdout) - time.time()) > 500, "its clock is not bent"
    with Queue(name, url) as queue:
        for task in ("a", "b"):
            due = queue.inspect(task).due
            assert due is not None
            assert 40 < due - queue.stats().now <= 100
        assert queue.claim() == []
    clock.close()


# ---- hosts of a polite queue


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
async def test_a_host_has_its_turn_in_time_whatever_the_clock_does(bent: Bent, seconds: float) -> None:
    async with AsyncQueue("q", bent.server.url, politeness=Politeness(delay=0.5)) as queue:
        await queue.put("http://a.example/1", "http://a.example/2", "http://b.example/1", "http://b.example/2")
        await queue.hosts.block("b.example", for_=3600)
        leases = await queue.claim(5)
        await queue.ack(leases)
        bent.step(seconds)
        await queue.prune()
        asked = time.monotonic()
        found = [lease.task for lease in await queue.claim(5, wait=10)]
        assert len(found) == 1
        assert found[0].startswith("http://a.example/")
        assert time.monotonic() - asked < 0.5 + SLACK
        assert (await queue.why("http://b.example/1")).code == "blocked"
    check(bent.server.url, "q")
