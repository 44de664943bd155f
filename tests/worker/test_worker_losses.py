"""What a worker loses is named: dead processes, the tasks that they ran, tasks cut off, lifespans that raise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from timeoutq import Lease, Queue
from timeoutq.words import exit_codes
from timeoutq.worker.worker_log import named

__all__ = ["run"]

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


def test_of_five_tasks_all_are_named_and_of_six_the_first_five() -> None:
    leases = [Lease(f"t{number}", "token", deadline=0.0) for number in range(6)]
    assert named(leases[:5]) == "'t0', 't1', 't2', 't3', 't4'"
    assert named(leases) == "'t0', 't1', 't2', 't3', 't4' and 1 more"
