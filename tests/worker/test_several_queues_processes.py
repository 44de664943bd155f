"""`timeoutq worker` with several queues: real processes that are killed, stopped and asked to end."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from tests.worker.test_several_queues import fill, high, low
from timeoutq import Queue
from timeoutq.cli.serving import read_queues
from timeoutq.words.errors import InvalidInput

__all__ = ["high", "low", "run"]

HANDLERS = "tests.rig.handlers"


def began(run: Processes) -> list[str]:
    return [task for event, task, *_ in history(run.history) if event == "start"]


def test_a_supervisor_tells_both_queues_at_once_of_a_process_that_was_killed(
    high: Queue, low: Queue, run: Processes
) -> None:
    fill(high, 1)
    words = (high.name, low.name, f"{HANDLERS}:work", "-c", "3", "--prefetch", "2", "--timeout", "60s")
    worker = run.start("worker", *words, WORK="30")
    wait_until(lambda: began(run) == ["high-0"])
    fill(low, 6)
    wait_until(lambda: len(began(run)) == 3)
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


# ---- what the command reads


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


@pytest.mark.breaking
def test_each_process_that_dies_is_off_the_list_at_once(high: Queue, low: Queue, run: Processes) -> None:
    worker = run.start("worker", high.name, low.name, f"{HANDLERS}:work", "-p", "2", "--timeout", "60s")
    for deaths in (1, 2):
        wait_until(lambda: len(high.workers()) == len(low.workers()) == 2)
        pid = high.workers()[0].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(partial(lambda deaths: run.log(worker).count(" died: ") == deaths, deaths))
        for queue in (high, low):
            wait_until(partial(lambda queue, pid: pid not in {one.pid for one in queue.workers()}, queue, pid), 5)
