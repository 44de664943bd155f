"""What breaks a part of a worker: logs that raise, a heartbeat that ends, lifespans that leave, threads that lack."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.processes import ROOT, Processes, run, url
from tests.rig.waiting import wait_until
from timeoutq import Lease, Queue, Worker
from timeoutq.client.heartbeat import Heartbeat
from timeoutq.testing import FakeAsyncQueue, fake_async_queue
from timeoutq.words import exit_codes
from timeoutq.words.errors import WorkerBroken
from timeoutq.worker.desk import Tally
from timeoutq.worker.processes import process

__all__ = ["run", "url"]


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


async def test_a_lost_lease_that_no_log_takes_does_not_end_the_worker(shipper: Shipper) -> None:
    async with fake_async_queue() as queue:

        async def forgotten(lease: Lease) -> None:
            if lease.task == "a":
                await queue.forget("a")

        await queue.put("a", "b")
        tally = await ended(Worker(queue, forgotten, burst=True, signals=False))
    assert (tally.acked, tally.lost, tally.end) == (1, 1, "drained")
    assert shipper.asked >= 3


# ---- the heartbeat


async def test_a_worker_whose_heartbeat_has_ended_gives_its_tasks_back_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(self: Heartbeat) -> bool:
        raise SystemExit("from outside")

    monkeypatch.setattr(Heartbeat, "_extend", leave)
    async with fake_async_queue(timeout=0.6) as queue:
        await queue.put("a", "b")
        said = "the thread of its heartbeat has ended: SystemExit: from outside; without it, all leases would run out"
        with pytest.raises(WorkerBroken, match=said):
            await ended(Worker(queue, fetch_long, concurrency=1, signals=False))
        found = await queue.stats()
    assert (found.todos, found.in_progress, found.counters.get("expired", 0)) == (2, 0, 0)


# ---- threads


def short_of_threads(monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    """Let so many threads start for handlers, and no more."""
    usual, begun = threading.Thread.start, [0]

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("handler-"):
            if begun[0] >= enough:
                raise RuntimeError("can't start new thread")
            begun[0] += 1
        usual(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def in_thread(lease: Lease) -> None:
    time.sleep(0.002)


async def test_a_worker_goes_on_with_the_threads_that_it_has_and_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short_of_threads(monkeypatch, 2)
    async with fake_async_queue() as queue:
        await queue.put([f"t{i}" for i in range(40)])
        tally = await ended(Worker(queue, in_thread, concurrency=10, burst=True, signals=False))
    assert tally.acked == 40
    short = [line for line in caplog.messages if "can't start new thread" in line]
    assert len(short) == 1
    assert "it goes on with 2 of 10 threads: raise `ulimit -u`" in short[0]


async def test_a_worker_that_gets_no_thread_at_all_gives_its_tasks_back_and_names_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_of_threads(monkeypatch, 0)
    async with fake_async_queue() as queue:
        await queue.put("a", "b", "c")
        with pytest.raises(
            WorkerBroken, match=r"no thread can be started .*can't start new thread.*: raise `ulimit -u`"
        ):
            await ended(Worker(queue, in_thread, concurrency=10, signals=False))
        found = await queue.stats()
    assert (found.todos, found.in_progress) == (3, 0)


# ---- lifespans that leave


class Odd(BaseException):
    """An error that is no Exception."""


LEAVING = [SystemExit(0), SystemExit("no settings"), GeneratorExit("closed"), Odd("12 rows are lost")]


def raising(error: BaseException, *, entering: bool) -> Any:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if entering:
            raise error
        yield
        raise error

    return lifespan


def alone(queue: FakeAsyncQueue, lifespan: Any) -> int:
    return process.run_worker(lambda: Worker(queue, fetch, burst=True, signals=False, lifespan=lifespan))


@pytest.mark.parametrize("error", LEAVING, ids=repr)
def test_whatever_a_lifespan_raises_when_it_is_entered_ends_the_worker_with_an_error(error: BaseException) -> None:
    said = f"the lifespan raised {type(error).__name__} when it was entered: {error}"
    with pytest.raises(WorkerBroken, match=said):
        alone(fake_async_queue(), raising(error, entering=True))


@pytest.mark.parametrize("error", LEAVING, ids=repr)
def test_whatever_a_lifespan_raises_when_it_is_left_is_told_and_makes_the_exit_code_1(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    assert alone(fake_async_queue(), raising(error, entering=False)) == exit_codes.DIED
    assert f"the lifespan raised {type(error).__name__} when it was left: {error}" in caplog.text


def test_ctrl_c_while_the_lifespan_is_entered_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        alone(fake_async_queue(), raising(KeyboardInterrupt(), entering=True))


def test_a_task_of_the_lifespan_that_leaves_the_program_ends_the_worker_with_an_error() -> None:
    async def leave() -> None:
        sys.exit(0)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        leaving = asyncio.create_task(leave())
        yield
        await leaving

    with pytest.raises(
        WorkerBroken, match=r"an asyncio task .* raised SystemExit, which ended the event loop; no task was running"
    ):
        process.run_worker(lambda: Worker(fake_async_queue(), fetch, signals=False, lifespan=lifespan))


MODULE = """
import asyncio, os, signal
from contextlib import asynccontextmanager
from pathlib import Path

class Odd(BaseException):
    pass

ERRORS = {
    "SystemExit": SystemExit(0), "Odd": Odd("12 rows"), "GeneratorExit": GeneratorExit("closed"),
    "KeyboardInterrupt": KeyboardInterrupt(),
}

def raised():
    if os.environ["RAISES"] == "nothing, it stops the loop":
        asyncio.get_running_loop().stop()
    else:
        raise ERRORS[os.environ["RAISES"]]

@asynccontextmanager
async def entering():
    raised()
    yield

@asynccontextmanager
async def leaving():
    yield
    raised()

async def work(lease):
    pass

async def stops_the_loop(lease):
    if lease.task == "stops":
        asyncio.get_running_loop().stop()
    await asyncio.sleep(3)

async def stops_itself(lease):
    if lease.attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "breaking.py").write_text(MODULE)
    return f"{ROOT}{os.pathsep}{tmp_path}"


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        ("GeneratorExit", "the lifespan raised GeneratorExit when it was left: closed"),
        ("Odd", "the lifespan raised Odd when it was left: 12 rows"),
        ("nothing, it stops the loop", "Event loop stopped"),
    ],
)
def test_processes_whose_lifespan_cannot_be_left_make_the_exit_code_1_and_say_why(
    queue: Queue, run: Processes, module: str, raises: str, said: str
) -> None:
    words = ("worker", queue.name, "breaking:work", "--lifespan", "breaking:leaving", "--burst")
    worker = run.start(*words, PYTHONPATH=module, RAISES=raises)
    assert worker.wait(20) == exit_codes.DIED, run.log(worker)
    assert said in run.log(worker)


@pytest.mark.parametrize(
    ("raises", "code", "said"),
    [
        ("SystemExit", exit_codes.DIED, "timeoutq: the lifespan raised SystemExit when it was entered: 0\n"),
        ("Odd", exit_codes.DIED, "timeoutq: the lifespan raised Odd when it was entered: 12 rows\n"),
        ("KeyboardInterrupt", exit_codes.INTERRUPTED, ""),
    ],
)
def test_without_a_supervisor_a_lifespan_that_cannot_be_entered_ends_the_command_as_the_help_says(
    queue: Queue, run: Processes, module: str, raises: str, code: int, said: str
) -> None:
    words = ("worker", queue.name, "breaking:work", "--lifespan", "breaking:entering", "--burst", "--no-supervise")
    worker = run.start(*words, PYTHONPATH=module, RAISES=raises)
    assert worker.wait(20) == code, run.log(worker)
    assert run.log(worker) == said


# ---- handlers that stop the loop, or their process


def test_a_handler_that_stops_the_loop_fails_no_task_beside_it_and_the_message_names_them(
    queue: Queue, run: Processes, module: str
) -> None:
    queue.put("beside")
    words = ("worker", queue.name, "breaking:stops_the_loop", "--no-supervise", "--concurrency", "3")
    worker = run.start(*words, PYTHONPATH=module)
    wait_until(lambda: queue.stats().in_progress == 1)
    queue.put("stops")
    assert worker.wait(20) == exit_codes.DIED
    assert "its event loop was stopped; does a handler call loop.stop()?" in run.log(worker)
    assert "these tasks were running: 'beside', 'stops'" in run.log(worker)
    assert [(queue.inspect(task).failures, queue.inspect(task).crashes) for task in ("beside", "stops")] == [(0, 1)] * 2
    assert queue.stats().in_progress == 0


def test_a_process_that_was_stopped_is_told_of_with_the_cure_and_goes_on_after_it(
    queue: Queue, run: Processes, module: str
) -> None:
    queue.put("a")
    worker = run.start("worker", queue.name, "breaking:stops_itself", "--burst", PYTHONPATH=module)
    wait_until(lambda: "was stopped by SIGSTOP: it does nothing, and its leases run out" in run.log(worker))
    (line,) = (line for line in run.log(worker).splitlines() if "was stopped" in line)
    pid = int(line.split("kill -CONT ")[1].split()[0])
    assert f"worker process {pid} " in line
    os.kill(pid, signal.SIGCONT)
    assert worker.wait(20) == exit_codes.DONE
    assert f"worker process {pid} runs again" in run.log(worker)
    assert queue.stats().done == 1
