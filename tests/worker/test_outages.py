"""After the server was away: each kind of worker works on, idle or loaded, soon after the server's return."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tests.rig.inside import pump_of
from tests.rig.outages import KINDS, SOON, Case, scene, seconds_until_work
from tests.rig.waiting import wait_until
from tests.worker.test_several_queues import clients, elsewhere, high, sound
from tests.worker.working import at_work, ended, until
from timeoutq import AsyncQueue, Lease, Queue, Tally, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs.operations import Operations
from timeoutq.watch.doctor import examine
from timeoutq.words import retry
from timeoutq.words.errors import Unavailable
from timeoutq.worker import exchanges, queue_work, served
from timeoutq.worker.decisions import Pace
from timeoutq.worker.handlers import Serves
from timeoutq.worker.queue_work import QueueWork
from timeoutq.worker.served import Place

__all__ = ["elsewhere", "high"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_idle_worker_works_on_after_the_server_was_away(kind: str, tmp_path: Path) -> None:
    works_on(Case(kind, "restart", 0, "idle"), tmp_path)


@pytest.mark.parametrize("kind", ["weights", "shards", "app"])
def test_a_loaded_worker_works_on_in_each_queue_after_the_server_was_away(kind: str, tmp_path: Path) -> None:
    works_on(Case(kind, "restart", 0, "loaded"), tmp_path)


def works_on(case: Case, folder: Path) -> None:
    """Have an outage that lasts until the worker waits for the server in each queue."""
    with scene(case, folder) as on:
        on.settle()
        on.go_away()
        wait_until(lambda: on.log.count("waits for the server") >= len(on.kind.queues), 30)
        on.come_back()
        wanted = on.more()
        wait_until(lambda: on.have_begun(wanted), SOON)


async def test_a_queue_whose_server_was_away_has_its_share_again_while_the_other_queue_is_full(
    high: Queue, name: str, elsewhere: EmbeddedServer
) -> None:
    began: list[str] = []

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(0.01)
        await queues[0].put(f"high-{len(began) + 1000}")

    high.put([f"high-{number}" for number in range(200)])
    with sound(elsewhere.url, f"{name}.low") as low:
        low.put("low-first")
        async with clients(high, low, deadline=1) as queues:
            worker = Worker({queues[0]: 3, queues[1]: 1}, handler, concurrency=2, signals=False)
            async with at_work(worker):
                await until(lambda: low.inspect("low-first").state == "done")  # nothing is owed
                elsewhere.kill()
                await until(lambda: pump_of(worker).works[1].shards[0].failures > 2)  # two may be under way at once
                elsewhere.start()
                low.put("low-second")
                await until(lambda: "low-second" in began)


async def test_a_queue_is_tried_at_once_when_the_server_has_answered_another_queue(
    name: str, elsewhere: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    async def handler(lease: Lease) -> None:
        began.append(lease.task)

    hour = iter([3600.0])  # the pause of the queue that notices the outage first
    monkeypatch.setattr(exchanges, "retry", SimpleNamespace(pause=lambda failures: next(hour, 0.1)))
    with sound(elsewhere.url, f"{name}.one") as one, sound(elsewhere.url, f"{name}.two") as two:
        async with clients(one, two, deadline=1) as queues:
            worker = Worker({queues[0]: 1, queues[1]: 1}, handler, signals=False)
            async with at_work(worker):
                one.put("first of one")
                two.put("first of two")
                await until(lambda: len(began) == 2)
                elsewhere.kill()
                await until(lambda: all(work.is_away for work in pump_of(worker).works))
                elsewhere.start()
                one.put("second of one")
                two.put("second of two")
                await until(lambda: len(began) == 4)


async def test_how_long_an_exchange_takes_is_not_learned_from_those_that_fail(
    name: str, elsewhere: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[float] = []
    began: list[str] = []

    async def handler(lease: Lease) -> None:
        began.append(lease.task)
        await asyncio.sleep(0.02)

    monkeypatch.setattr(Pace, "took", lambda pace, seconds: took.append(seconds))
    with sound(elsewhere.url, f"{name}.q") as queue:
        queue.put(str(number) for number in range(400))
        async with clients(queue, deadline=1) as (mine,):
            worker = Worker(mine, handler, concurrency=4, signals=False)
            async with at_work(worker):
                await until(lambda: len(began) > 20)
                os.kill(elsewhere.pid or 0, signal.SIGSTOP)
                try:
                    await until(lambda: pump_of(worker).works[0].shards[0].failures > 1)
                finally:
                    os.kill(elsewhere.pid or 0, signal.SIGCONT)
                more = len(began) + 20
                await until(lambda: len(began) > more)
                queue.purge()
    assert took
    assert max(took) < 0.5


@pytest.mark.parametrize("ends", ["by itself", "when told"])
async def test_a_worker_that_ends_while_the_server_is_away_tells_it_the_ends_of_its_tasks(
    ends: str, tmp_path: Path
) -> None:
    with EmbeddedServer(tmp_path / "server") as server:
        async with AsyncQueue("q", server.url, timeout=60, deadline=0.3) as mine:
            worker, running = await ended_without_a_server(server, mine, ends)
            (shard,) = pump_of(worker).works[0].shards
            await until(lambda: shard.failures > 3)
            server.start()
            assert (await running).acked == 1
            assert (await mine.inspect("a")).state == "done"


@pytest.mark.parametrize("ends", ["by itself", "when told"])
async def test_it_does_not_wait_for_the_server_when_its_leases_have_run_out(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "pause", lambda failures: 0.05)  # many tries, each sooner than a lease runs out
    with EmbeddedServer(tmp_path / "server") as server:
        async with AsyncQueue("q", server.url, timeout=1, deadline=0.3) as mine:
            _, running = await ended_without_a_server(server, mine, ends)
            assert (await ended(running, 20)).acked == 0


async def test_a_worker_that_is_told_to_end_and_owes_nothing_does_not_wait_for_the_server(tmp_path: Path) -> None:
    async def handler(lease: Lease) -> None: ...

    with EmbeddedServer(tmp_path / "server") as server, Queue("q", server.url) as queue:
        async with AsyncQueue("q", server.url, timeout=60, deadline=0.3) as mine:
            worker = Worker(mine, handler, signals=False, drain_deadline=60)
            queue.put("a")
            running = asyncio.create_task(worker.run())
            await until(lambda: queue.inspect("a").state == "done")
            server.kill()
            await until(lambda: pump_of(worker).works[0].is_away)
            worker.stop()
            assert (await ended(running, 20)).end == "stopped"


async def ended_without_a_server(
    server: EmbeddedServer, mine: AsyncQueue, ends: str
) -> tuple[Worker, asyncio.Task[Tally]]:
    """Give a worker whose only handler has returned, and has killed the server before; it ends by itself or is told."""
    returned = asyncio.Event()

    async def handler(lease: Lease) -> None:
        server.kill()
        returned.set()

    await mine.put("a")
    worker = Worker(mine, handler, signals=False, drain_deadline=60, max_tasks=1 if ends == "by itself" else None)
    running = asyncio.create_task(worker.run())
    await returned.wait()
    if ends == "when told":
        worker.stop()
    return worker, running


class Telling(Serves):
    def serve(self, place: Place) -> Any:
        place.publish({"bill": ("0123abcd", "{}")})

        async def handle(lease: Lease) -> None: ...

        return handle


async def test_functions_of_which_a_server_was_told_in_vain_are_told_again_soon(
    queue: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, tries = Operations.publish, count()

    def away_at_first(operations: Operations, *told: Any) -> Any:
        if next(tries) == 0:
            raise Unavailable("the server is away")
        return publish(operations, *told)

    monkeypatch.setattr(Operations, "publish", away_at_first)
    monkeypatch.setattr(served, "AGAIN_SOON", 0.01)
    async with clients(queue) as (one,), at_work(Worker(one, Telling(), signals=False)):
        await until(lambda: raw.exists(queue.operations.key("functions")), 5)


async def test_doctor_and_why_see_a_worker_that_claims_nothing_though_a_task_is_ready(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(lease: Lease) -> None: ...

    monkeypatch.setattr(queue_work, "SILENT", 0.2)
    monkeypatch.setattr(QueueWork, "begin", lambda self: False)  # as if the queue waited for something that never comes
    monkeypatch.setattr(QueueWork, "listen", lambda self: None)
    async with clients(queue) as (one,):
        worker = Worker(one, handler, signals=False)
        async with at_work(worker):
            await until(lambda: any(known.trouble for known in queue.workers()))
            assert "claims" not in {finding.check for finding in examine(queue)}, "nothing is ready"
            queue.put("a")
            found = {finding.check: finding for finding in examine(queue)}["claims"]
            assert found.verdict == "yellow"
            said = f"worker {one.worker} claims nothing: it has no tasks, and has asked for none since "
            assert said in found.found
            assert "start such a worker again" in found.cure
            reason = queue.why("a")
            assert reason.code == "no_claim"
            assert reason.message.startswith("it is ready, and no worker that is alive claims: worker ")
            queue.pause()
            assert "claims" not in {finding.check for finding in examine(queue)}


@pytest.mark.breaking
@pytest.mark.parametrize("load", ["idle", "loaded"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("fault", ["restart", "stop", "pause", "failover"])
def test_work_goes_on_soon_after_a_short_outage(fault: str, kind: str, load: str, tmp_path: Path) -> None:
    assert seconds_until_work(Case(kind, fault, 0.2, load), tmp_path) < SOON
