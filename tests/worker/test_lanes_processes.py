"""`timeoutq worker` with several queues: real processes that are killed, stopped and asked to end."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from tests.worker.test_lanes import fill, high, low
from timeoutq import Queue
from timeoutq.cli.serving import read_queues
from timeoutq.words.errors import InvalidInput

__all__ = ["high", "low", "run"]

HANDLERS = "tests.rig.handlers"


def began(run: Processes) -> list[str]:
    return [task for event, task, *_ in history(run.history) if event == "start"]


def test_a_command_with_two_processes_drains_both_queues(high: Queue, low: Queue, run: Processes) -> None:
    fill(high, 60)
    fill(low, 60)
    worker = run.start("worker", high.name, low.name, f"{HANDLERS}:work", "-p", "2", "-c", "2", "--burst")
    assert worker.wait(60) == 0, run.log(worker)
    assert (high.stats().done, low.stats().done) == (60, 60)
    tasks = began(run)
    assert set(Counter(tasks).values()) == {1}
    assert sum(task.startswith("low") for task in tasks[:60]) <= 8


def test_a_command_takes_weights_and_a_handler_as_an_option(high: Queue, low: Queue, run: Processes) -> None:
    fill(high, 200)
    fill(low, 200)
    words = (f"{high.name}=3", f"{low.name}=1", "--handler", f"{HANDLERS}:work_in_thread")
    worker = run.start("worker", *words, "-c", "2", "--prefetch", "0", "--burst", WORK="0.001")
    assert worker.wait(60) == 0, run.log(worker)
    assert (high.stats().done, low.stats().done) == (200, 200)
    first = Counter(task.partition("-")[0] for task in began(run)[:200])
    assert first["high"] == pytest.approx(150, abs=8)


@pytest.mark.parametrize(("word", "work"), [("SIGTERM", "3"), ("SIGINT", "60")])
def test_a_signal_gives_back_what_waits_of_both_queues(
    high: Queue, low: Queue, run: Processes, word: str, work: str
) -> None:
    fill(high, 1)
    words = (high.name, low.name, f"{HANDLERS}:work", "-c", "2", "--prefetch", "6")
    worker = run.start("worker", *words, WORK=work)
    wait_until(lambda: len(began(run)) == 1, 30)
    fill(low, 20)
    wait_until(lambda: low.stats().in_progress >= 5 and len(began(run)) > 1)
    worker.send_signal(getattr(signal, word))
    assert worker.wait(30) == 0, run.log(worker)
    ended = Counter(task.partition("-")[0] for task in began(run) if word == "SIGTERM")
    assert (high.stats().done, low.stats().done) == (ended["high"], ended["low"]), "SIGTERM lets what runs end"
    assert (high.stats().todos, low.stats().todos) == (1 - ended["high"], 20 - ended["low"])
    assert high.stats().counters.get("expired", 0) == low.stats().counters.get("expired", 0) == 0
    assert high.workers() == low.workers() == []


def test_a_supervisor_tells_both_queues_at_once_of_a_process_that_was_killed(
    high: Queue, low: Queue, run: Processes
) -> None:
    fill(high, 1)
    fill(low, 6)
    words = (high.name, low.name, f"{HANDLERS}:work", "-c", "3", "--prefetch", "2", "--timeout", "60s")
    worker = run.start("worker", *words, WORK="30")
    wait_until(lambda: len(began(run)) == 3, 30)
    wait_until(lambda: low.stats().in_progress == 4)
    pid = next(int(pid) for _, _, _, pid, _ in history(run.history))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "died: killed by SIGKILL" in run.log(worker))
    wait_until(lambda: high.stats().counters.get("crashed", 0) == 1)
    wait_until(lambda: low.stats().counters.get("crashed", 0) == 2)
    # the next process has them now: each task counts the crash that it was in, and no other
    wait_until(lambda: len(began(run)) == 6, 30)
    crashed = {task for task in began(run)[:3] if task.startswith("low")}
    for number in range(6):
        task = f"low-{number}"
        assert low.inspect(task).crashes == (task in crashed)
    assert high.inspect("high-0").crashes == 1
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 0


def test_leases_of_a_worker_that_nobody_supervises_run_out_in_both_queues(
    high: Queue, low: Queue, run: Processes
) -> None:
    fill(high, 1)
    fill(low, 1)
    words = (high.name, low.name, f"{HANDLERS}:work", "--no-supervise", "--timeout", "1s")
    victim = run.start("worker", *words, WORK="30")
    wait_until(lambda: len(began(run)) == 2, 30)
    victim.kill()
    heir = run.start("worker", *words, "--burst", WORK="0.01")
    assert heir.wait(30) == 0, run.log(heir)
    assert (high.stats().done, low.stats().done) == (1, 1)
    assert [queue.stats().counters.get("expired", 0) for queue in (high, low)] == [1, 1]


# ---- what the command reads


def test_the_last_word_with_a_colon_is_the_handler() -> None:
    assert read_queues(["q", "m:f"], None) == (["q"], [], "m:f")
    assert read_queues(["high", "low", "m:f"], None) == (["high", "low"], [], "m:f")
    assert read_queues(["high", "low"], "m:f") == (["high", "low"], [], "m:f")
    assert read_queues(["high=3", "low=1", "m:f"], None) == (["high", "low"], [3, 1], "m:f")


@pytest.mark.parametrize(
    ("words", "handler", "said"),
    [
        (["q"], None, "there is no handler: write it behind the queues as MODULE:FUNCTION"),
        (["m:f"], None, "there is no queue"),
        (["q", "m:f"], "m:g", "there are two handlers, m:f and --handler m:g"),
        (["high=3", "low", "m:f"], None, "queue low has no weight"),
        (["high=3", "low=0", "m:f"], None, "queue low has no weight"),
        (["high=3", "low=x", "m:f"], None, "queue low has no weight"),
        (["high=3", "low=1001", "m:f"], None, "queue low has no weight"),
    ],
)
def test_words_that_make_no_sense_are_refused_with_the_cure(words: list[str], handler: str | None, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_queues(words, handler)


def test_a_queue_that_is_named_twice_ends_the_command_with_2(high: Queue, run: Processes) -> None:
    worker = run.start("worker", high.name, high.name, f"{HANDLERS}:work")
    assert worker.wait(30) == 2
    assert f"queue {high.name} is given twice" in run.log(worker)
