"""Handlers that fork, and handlers that kill their process just after they have ended: real worker processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import redis

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.words import exit_codes

__all__ = ["run"]

HANDLERS = "tests.rig.forking"


def runs(run: Processes) -> Counter[str]:
    return Counter(task for event, task, *_ in history(run.history) if event == "start")


def ends_of_copies(run: Processes) -> list[str]:
    return [event for event, *_ in history(run.history) if event.startswith("copy-ended")]


@pytest.mark.parametrize(
    ("handler", "how", "code"),
    [
        ("fork", "return", 0),
        ("fork", "exit 7", 7),
        ("fork", "exit words", 1),
        ("fork", "error", 1),
        ("fork_in_loop", "exit 7", 7),
        ("fork_in_loop", "await", 1),
    ],
)
def test_a_copy_that_a_handler_forks_and_lets_go_on_ends_with_its_handler(
    queue: Queue, run: Processes, handler: str, how: str, code: int
) -> None:
    tasks = ["fork", *(f"t{i}" for i in range(20))]
    queue.put(tasks)
    worker = run.start("worker", queue.name, f"{HANDLERS}:{handler}", "--burst", "-c", "3", HOW=how)
    assert worker.wait(30) == exit_codes.DONE, run.log(worker)
    assert ends_of_copies(run) == [f"copy-ended-{code}"]
    assert runs(run) == dict.fromkeys(tasks, 1)
    stats = queue.stats()
    assert (stats.done, stats.failed) == (21, 0)
    assert {name: n for name, n in stats.counters.items() if n and name in ("crashed", "expired", "lost")} == {}


@pytest.mark.parametrize("handler", ["multiprocess", "multiprocess_in_loop"])
def test_a_process_that_a_handler_starts_has_signals_of_its_own(queue: Queue, run: Processes, handler: str) -> None:
    queue.put("fork", [f"t{i}" for i in range(20)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:{handler}", "--burst", "-c", "3")
    assert worker.wait(30) == exit_codes.DONE, run.log(worker)
    assert ends_of_copies(run) == ["copy-ended--15"]
    assert "drains" not in run.log(worker)
    assert queue.stats().done == 21


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_has_ended_takes_no_task_though_a_copy_of_it_lives_on(
    queue: Queue, run: Processes, raw: redis.Redis, how: signal.Signals
) -> None:
    queue.put("fork")
    worker = run.start("worker", queue.name, f"{HANDLERS}:fork_and_leave", "--no-supervise", HOW="deaf")
    (copy,) = wait_until(lambda: [int(event[5:]) for event, *_ in history(run.history) if event.startswith("copy-")])
    wait_until(lambda: queue.stats().done == 1 and raw.info("clients")["blocked_clients"])
    worker.send_signal(how)
    try:
        wait_until(lambda: not raw.info("clients")["blocked_clients"], 5)
        queue.put("next")
        assert queue.claim(1)
    finally:
        os.kill(copy, signal.SIGKILL)
        worker.wait(30)


@pytest.mark.parametrize("how", ["usual", "deaf"])
def test_what_multiprocessing_has_started_ends_with_a_worker_process(queue: Queue, run: Processes, how: str) -> None:
    queue.put("fork")
    worker = run.start("worker", queue.name, f"{HANDLERS}:fork_and_leave", HOW=how)
    (copy,) = wait_until(lambda: [int(event[5:]) for event, *_ in history(run.history) if event.startswith("copy-")])
    wait_until(lambda: queue.stats().done == 1)
    worker.terminate()
    assert worker.wait(30) == 0
    wait_until(lambda: not Path(f"/proc/{copy}/cmdline").exists() or not Path(f"/proc/{copy}/cmdline").read_bytes(), 5)


@pytest.mark.parametrize("handler", ["die_after", "die_after_in_loop"])
@pytest.mark.parametrize("how", ["put", "error"])
def test_a_task_that_kills_its_process_just_after_its_handler_has_ended_is_found_out(
    queue: Queue, run: Processes, handler: str, how: str
) -> None:
    queue.configure(max_crashes=2)  # a pause lies before each new process, and each is longer than the one before
    queue.put("poison")
    worker = run.start("worker", queue.name, f"{HANDLERS}:{handler}", "--burst", HOW=how)
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    poison = queue.inspect("poison")
    assert (poison.state, poison.crashes) == ("failed", 2)
