"""What a worker loses is named: dead processes, the tasks that they ran, tasks cut off, lifespans that raise."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.rig.handlers import history
from tests.rig.processes import Processes, run, url
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, InvalidInput, Lease, Queue, Worker
from timeoutq.testing import FakeQueue, fake_async_queue, fake_queue
from timeoutq.words import exit_codes, telling

__all__ = ["run", "url"]

HANDLERS = "tests.rig.handlers"


def lines(run: Processes, worker: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.log(worker).splitlines()]


# ---- dead processes


def test_processes_that_died_do_not_count_as_live_workers(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(20)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:die_in_thread", "-c", "1", "--timeout", "5s")
    wait_until(lambda: run.log(worker).count(" died: ") >= 3, timeout=30)
    assert len(queue.workers()) <= 1
    worker.terminate()
    worker.wait(20)
    assert queue.workers() == []


def test_a_process_that_died_idle_does_not_count_as_a_live_worker(queue: Queue, run: Processes) -> None:
    worker = run.start("worker", queue.name, f"{HANDLERS}:work")
    (first,) = wait_until(queue.workers)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: first.worker not in {one.worker for one in queue.workers()})
    worker.terminate()
    assert worker.wait(20) == exit_codes.DONE


def test_a_task_that_kills_its_processes_is_named_each_time_and_when_it_is_given_up(
    queue: Queue, run: Processes
) -> None:
    queue.configure(max_crashes=2)
    queue.put("deadly")
    worker = run.start("worker", queue.name, f"{HANDLERS}:die_in_thread", "-c", "1", "--burst", "--log-json")
    assert worker.wait(30) == exit_codes.DONE
    named = [line for line in lines(run, worker) if line.get("task") == "deadly"]
    assert [(line["level"], line["crashes"]) for line in named] == [("WARNING", 1), ("WARNING", 2), ("WARNING", 2)]
    assert "was running in process" in named[0]["message"]
    assert "is given up: its worker process died while it ran: killed by SIGSEGV" in named[2]["message"]
    assert named[2]["queue"] == queue.name


def test_a_task_whose_lease_ran_out_too_often_is_named_when_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    queue: FakeQueue
    with fake_queue("pages", max_crashes=1) as queue, caplog.at_level(logging.WARNING, "timeoutq"):
        queue.put([f"t{i}" for i in range(13)])
        queue.claim(13, timeout=1)
        queue.clock.advance(2)
        assert queue.requeue_expired() == 13
        assert queue.stats().failed == 13
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == telling.NAMED + 1
    assert all("is given up: the lease ran out too often" in line for line in said[:-1])
    assert said[-1] == "queue pages: and 3 more tasks like these"
    assert {vars(record).get("task") for record in caplog.records[:-1]} < {f"t{i}" for i in range(13)}


# ---- lifespans


@pytest.mark.parametrize(
    ("words", "end"),
    [(("--burst",), "ended: drained"), (("--burst", "--max-tasks", "2", "-c", "1"), "ended: max tasks")],
)
def test_a_lifespan_that_cannot_close_does_not_start_the_work_again(
    queue: Queue, run: Processes, words: tuple[str, ...], end: str
) -> None:
    queue.put("a", "b", "c")
    worker = run.start(
        "worker", queue.name, f"{HANDLERS}:work", "--lifespan", f"{HANDLERS}:lifespan_that_cannot_close", *words
    )
    assert worker.wait(30) == exit_codes.DIED
    log = run.log(worker)
    assert end in log
    assert "died" not in log
    assert "ERROR" in log
    assert "its lifespan raised when it was left: ConnectionError: the pool cannot close" in log
    assert "Traceback" in log
    assert queue.stats().done == 3


@pytest.mark.parametrize("words", [(), ("--no-supervise",)])
def test_a_stopped_worker_whose_lifespan_cannot_close_ends_with_1(
    queue: Queue, run: Processes, words: tuple[str, ...]
) -> None:
    worker = run.start(
        "worker", queue.name, f"{HANDLERS}:work", "--lifespan", f"{HANDLERS}:lifespan_that_cannot_close", *words
    )
    wait_until(queue.workers)
    worker.terminate()
    assert worker.wait(20) == exit_codes.DIED
    assert "(stopped), but its lifespan raised when it was left" in run.log(worker)


def test_a_lifespan_that_takes_arguments_is_refused_at_the_start(queue: Queue, run: Processes) -> None:
    worker = run.start(
        "worker", queue.name, f"{HANDLERS}:work", "-p", "2", "--lifespan", f"{HANDLERS}:lifespan_with_settings"
    )
    assert worker.wait(20) == exit_codes.USAGE
    log = run.log(worker)
    assert log.count("the lifespan lifespan_with_settings takes (settings: 'str')") == 1
    assert "died" not in log


async def test_a_lifespan_is_called_without_arguments() -> None:
    @asynccontextmanager
    async def needs(url: str) -> AsyncIterator[str]:
        yield url

    @asynccontextmanager
    async def might(url: str = "", *more: str, **others: str) -> AsyncIterator[str]:
        yield url

    async def handle(lease: Lease) -> None: ...

    async with fake_async_queue("pages") as queue:
        wrong: Any = needs
        with pytest.raises(InvalidInput, match=r"the lifespan .*needs takes \(url: 'str'\); a lifespan is "):
            Worker(queue, handle, lifespan=wrong)
        fine: Any = might
        assert (await Worker(queue, handle, lifespan=fine, burst=True, signals=False).run()).end == "drained"
        silent: Any = getattr  # a builtin: what it takes is met when it is called
        with pytest.raises(InvalidInput, match=r"takes|cannot be called without arguments"):
            await Worker(queue, handle, lifespan=silent, burst=True, signals=False).run()


def test_an_error_of_a_lifespan_is_one_line_per_death_and_its_traceback_is_told_once(
    queue: Queue, run: Processes
) -> None:
    lifespan = f"{HANDLERS}:lifespan_like_range"  # a TypeError of the user's own code is no wrong signature
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "--lifespan", lifespan)
    wait_until(lambda: run.log(worker).count("exit code 1: TypeError: the database is not up") >= 4, timeout=20)
    worker.terminate()
    worker.wait(20)
    log = run.log(worker)
    assert log.count("Traceback") == 1
    assert sum("the database is not up" in line for line in log.splitlines()) == log.count(" died: ")


# ---- lines of JSON


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("nowhere:f",), exit_codes.USAGE, "importing nowhere raised"),
        (("nowhere:f", "--no-supervise"), exit_codes.USAGE, "importing nowhere raised"),
        ((f"{HANDLERS}:work", "--no-supervise", "--lifespan", f"{HANDLERS}:lifespan_like_range"), 1, "not up"),
        ((f"{HANDLERS}:work", "--retry", ""), exit_codes.USAGE, "--retry is empty"),
    ],
)
def test_with_log_json_what_ends_a_worker_is_a_line_of_json(
    queue: Queue, run: Processes, words: tuple[str, ...], code: int, error: str
) -> None:
    worker = run.start("worker", queue.name, *words, "--log-json")
    assert worker.wait(20) == code
    last = lines(run, worker)[-1]
    assert last["level"] == "ERROR"
    assert error in last["error"]


def test_the_time_of_a_line_of_json_has_milliseconds_and_its_zone(queue: Queue, run: Processes) -> None:
    before = time.time()
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "--burst", "--log-json", TZ="Asia/Kolkata")
    assert worker.wait(20) == exit_codes.DONE
    for line in lines(run, worker):
        at = datetime.fromisoformat(line["time"])
        assert before - 0.01 <= at.timestamp() <= time.time()
        assert line["time"][19] == "."
        assert line["time"][23:] == "+05:30"


def test_an_error_that_ends_a_thread_is_a_line_of_json(run: Processes) -> None:
    code = (
        "import threading; from timeoutq import logs; logs.configure('info', as_json=True);"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join(); raise KeyError('main')"
    )
    process = run.start_code(code)
    process.wait(20)
    thread, main = lines(run, process)
    assert "division by zero" in thread["message"]
    assert "KeyError: 'main'" in main["message"]
    assert "Traceback" in main["traceback"]


# ---- tasks that are cut off


def test_ctrl_c_names_the_tasks_that_it_cuts_off(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(12)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-c", "12", "--log-json", WORK="60")
    wait_until(lambda: len(history(run.history)) == 12)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(20) == exit_codes.DONE
    cut = [line for line in lines(run, worker) if "is cut off" in line["message"]]
    assert len(cut) == telling.NAMED
    assert {line["level"] for line in cut} == {"WARNING"}
    assert all(line["message"].endswith("is cut off: the worker stops at once") for line in cut)
    assert sum("and 2 more tasks like these" in line["message"] for line in lines(run, worker)) == 1


async def test_the_drain_deadline_names_the_task_that_it_cuts_off_and_its_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(lease: Lease) -> None:
        begun.set()
        over.wait(20)

    queue: AsyncQueue
    async with fake_async_queue("pages") as queue:
        await queue.put("a")
        worker = Worker(queue, slow, signals=False, drain_deadline=0.1)
        with caplog.at_level(logging.WARNING, "timeoutq"):
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(begun.wait, 10)
            worker.stop()
            await running
        over.set()
    (record,) = [record for record in caplog.records if "is cut off" in record.getMessage()]
    assert record.getMessage() == (
        "queue pages: task 'a' is cut off: the drain deadline of 0.1 s is over; "
        "its thread goes on until the process ends"
    )
    assert vars(record)["task"] == "a"


# ---- mistyped queues


def test_a_worker_on_a_mistyped_queue_is_asked_what_was_meant(queue: Queue, run: Processes) -> None:
    queue.put("a")
    typo = queue.name + "e"
    worker = run.start("worker", typo, f"{HANDLERS}:work", "-p", "2", "--burst")
    known = run.start("worker", queue.name, f"{HANDLERS}:work", "--burst")
    assert (worker.wait(20), known.wait(20)) == (0, 0)
    assert run.log(worker).count(f"queue {typo} is new here; did you mean {queue.name}") == 1
    assert "WARNING" in run.log(worker)
    assert "new here" not in run.log(known)
    with Queue(typo, run.url) as mistyped:
        mistyped.purge()


def test_a_put_to_a_mistyped_queue_is_asked_what_was_meant(queue: Queue, run: Processes) -> None:
    queue.put("a")
    typo = queue.name + "e"
    first, second = (run.start("put", typo, "b"), run.start("put", queue.name, "b"))
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert f"queue {typo} is new here; did you mean {queue.name}" in run.log(first)
    assert "new here" not in run.log(second)
    with Queue(typo, run.url) as mistyped:
        mistyped.purge()
