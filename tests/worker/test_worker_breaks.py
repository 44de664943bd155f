"""What breaks a part of a worker: logs that raise, a heartbeat that ends, lifespans that leave, threads that lack."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.processes import ROOT, Processes, run
from tests.rig.waiting import wait_until
from timeoutq import Lease, Queue, Worker
from timeoutq.client.heartbeat import Beat
from timeoutq.testing import fake_async_queue
from timeoutq.words import exit_codes
from timeoutq.words.errors import WorkerBroken
from timeoutq.worker.leases import Tally

__all__ = ["run"]


async def fetch(lease: Lease) -> None: ...


async def fetch_long(lease: Lease) -> None:
    await asyncio.sleep(3600)


async def ended(worker: Worker) -> Tally:
    async with asyncio.timeout(20):
        return await worker.run()


# ---- logs


class Shipper(logging.Handler):
    """Sends log lines somewhere, and raises when it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.asked += 1
        raise ValueError("the log shipper is down")


class Picky(logging.Filter):
    """Raises on each line."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise KeyError(record.name)


@pytest.fixture
def shipper() -> Iterator[Shipper]:
    log, found = logging.getLogger("timeoutq"), Shipper()
    before = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(found)
    yield found
    log.removeHandler(found)
    log.setLevel(before)


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_worker_does_its_work_though_whoever_listens_to_logs_raises(shipper: Shipper, filtered: bool) -> None:
    if filtered:
        shipper.addFilter(Picky())
    async with fake_async_queue() as queue:
        await queue.put("a", "b", "c")
        tally = await ended(Worker(queue, fetch, burst=True, signals=False))
    assert (tally.acked, tally.end) == (3, "drained")
    assert filtered or shipper.asked >= 2


# ---- the heartbeat


async def test_a_worker_whose_heartbeat_has_ended_gives_its_tasks_back_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def leave(self: Beat) -> bool:
        raise SystemExit("from outside")

    monkeypatch.setattr(Beat, "_extend", leave)
    async with fake_async_queue(timeout=0.6) as queue:
        await queue.put("a", "b")
        said = "the thread of its heartbeat has ended: SystemExit: from outside; without it, all leases would run out"
        with pytest.raises(WorkerBroken, match=said):
            await ended(Worker(queue, fetch_long, concurrency=1, signals=False))
        found = await queue.stats()
    assert (found.todos, found.in_progress, found.counters.get("expired", 0)) == (2, 0, 0)


# ---- handlers that stop their process


MODULE = """
import os, signal

async def stops_itself(lease):
    if lease.attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_was_stopped_is_told_of_with_the_cure_and_goes_on_after_it(
    queue: Queue, run: Processes, tmp_path: Path
) -> None:
    (tmp_path / "breaking.py").write_text(MODULE)
    queue.put("a")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    worker = run.start("worker", queue.name, "breaking:stops_itself", "--burst", PYTHONPATH=path)
    wait_until(lambda: "was stopped by SIGSTOP: it does nothing, and its leases run out" in run.log(worker))
    (line,) = (line for line in run.log(worker).splitlines() if "was stopped" in line)
    pid = int(line.split("kill -CONT ")[1].split()[0])
    assert f"worker process {pid} " in line
    os.kill(pid, signal.SIGCONT)
    assert worker.wait(20) == exit_codes.DONE
    assert f"worker process {pid} runs again" in run.log(worker)
    assert queue.stats().done == 1
