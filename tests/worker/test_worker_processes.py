"""Real worker processes that are killed, paused and asked to end, on a real server."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from timeoutq import Queue

__all__ = ["run"]


def test_a_task_that_kills_its_process_fails_and_takes_no_other_with_it(queue: Queue, run: Processes) -> None:
    queue.put("poison", [f"t{i}" for i in range(29)])
    worker = run.start(
        "worker", queue.name, "tests.rig.handlers:work_or_die", "--processes", "2", "--timeout", "2", "--burst"
    )
    assert worker.wait(60) == 0, run.log(worker)
    stats = queue.stats()
    assert (stats.done, stats.failed) == (29, 1)
    poison = queue.inspect("poison")
    assert poison.state == "failed"
    assert poison.crashes == 5
    assert poison.error is not None
    assert "killed by SIGKILL" in poison.error


@pytest.mark.breaking
def test_two_thousand_tasks_survive_a_kill_every_half_second(queue: Queue, run: Processes) -> None:
    tasks = [f"task-{i}" for i in range(2000)]
    queue.put(tasks)

    def worker() -> subprocess.Popen[bytes]:
        return run.worker(queue.name, "work", "--timeout", "1", "--concurrency", "4", WORK="0.04")

    workers = [worker() for _ in range(6)]
    wait_until(lambda: queue.stats().done > 20)
    kills, rng = 0, random.Random(1)
    next_kill = time.monotonic()
    until = time.monotonic() + 90
    while not queue.drained():
        assert time.monotonic() < until, queue.stats()
        if time.monotonic() >= next_kill and kills < 20:
            next_kill = time.monotonic() + 0.5
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            assert victim.wait() == -signal.SIGKILL
            kills += 1
            workers.append(worker())
        wait_until(lambda due=next_kill: time.monotonic() >= due or queue.drained(), timeout=5)  # type: ignore[misc]  # a bound default
    stats = queue.stats()
    assert kills >= 3
    assert stats.done == 2000
    assert stats.failed == 0
    # every start of a task beyond its first is explained by a lease that ran out or a task that was given back
    starts = Counter(task for event, task, *_ in history(run.history) if event == "start")
    again = sum(starts.values()) - 2000
    assert set(starts) == set(tasks)
    assert 0 <= again <= stats.counters.get("expired", 0) + stats.counters.get("released", 0)
    assert stats.counters["acked"] == 2000
    assert stats.counters["claimed"] == 2000 + stats.counters.get("expired", 0) + stats.counters.get("released", 0)
    # the last lease on each task is the one that ended it: nobody started it again after its ack
    last: dict[str, tuple[int, set[str]]] = {}
    for event, task, fence, *_ in history(run.history):
        if fence >= last.get(task, (0, set()))[0]:
            last.setdefault(task, (fence, set()))
            last[task] = (fence, {event} | (last[task][1] if last[task][0] == fence else set()))
    assert all(events == {"start", "end"} for _, events in last.values())
    for process in workers:
        process.terminate()
    for process in workers:
        # one that was started a moment ago may be asked to end before it listens for that
        assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("handler", ["work", "work_in_thread"])
def test_sigterm_finishes_what_runs_and_gives_the_rest_back(queue: Queue, run: Processes, handler: str) -> None:
    queue.put([f"t{i}" for i in range(40)])
    worker = run.worker(queue.name, handler, "--concurrency", "4", "--prefetch", "16", "--timeout", "30", WORK="0.3")
    wait_until(lambda: len(history(run.history)) >= 4)
    worker.terminate()
    assert worker.wait(10) == 0
    events = Counter(event for event, *_ in history(run.history))
    stats = queue.stats()
    assert events["start"] == events["end"] == stats.done
    assert stats.in_progress == 0
    assert stats.todos == 40 - stats.done


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_second_signal_gives_everything_back_at_once(
    queue: Queue, run: Processes, signals: list[signal.Signals]
) -> None:
    queue.put([f"t{i}" for i in range(20)])
    worker = run.worker(queue.name, "work", "--concurrency", "4", "--timeout", "30", WORK="20")
    wait_until(lambda: len(history(run.history)) >= 4)
    for number in signals:
        worker.send_signal(number)
        wait_until(lambda: "drains" in run.log(worker) or "stops at once" in run.log(worker))
    assert worker.wait(10) == 0
    assert queue.stats().todos == 20
    assert {entry.task for entry in queue.list("in_progress").entries} == set()


@pytest.mark.parametrize("task", ["exits", "unawaited"])
def test_a_task_of_a_handler_that_exits_ends_the_worker_with_1_and_counts(
    queue: Queue, run: Processes, task: str
) -> None:
    queue.put("beside")
    worker = run.worker(queue.name, "exit_in_a_task", "--concurrency", "3", "--timeout", "30", "--retry", "600")
    wait_until(lambda: queue.stats().in_progress == 1)
    wait_until(lambda: len(history(run.history)) == 1)
    queue.put(task)
    assert worker.wait(20) == 1
    said = run.log(worker)
    assert "an asyncio task that a handler started raised SystemExit, which ended the event loop" in said
    assert f"'beside', '{task}'" in said
    assert queue.inspect(task).crashes == 1
    assert queue.inspect("beside").failures == 0
    assert queue.stats().in_progress == 0


def test_a_worker_whose_supervisor_was_killed_drains(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(200)])
    words = ("--processes", "2", "--concurrency", "2", "--timeout", "5")
    parent = run.start("worker", queue.name, "tests.rig.handlers:work", *words, WORK="0.1")
    wait_until(lambda: len({pid for *_, pid, _ in history(run.history)}) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: queue.stats().in_progress == 0 and not queue.workers())
    assert queue.stats().known == 200


def test_no_process_of_a_supervisor_that_was_killed_waits_for_another_to_end(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(30)])
    words = ("--processes", "3", "--concurrency", "1", "--timeout", "60", "--drain-deadline", "60")
    parent = run.start("worker", queue.name, "tests.rig.handlers:work", *words, WORK="600")
    wait_until(lambda: len({pid for *_, pid, _ in history(run.history)}) == 3)
    parent.kill()
    parent.wait()
    wait_until(lambda: run.log(parent).count("the process drains") == 3)


@pytest.mark.parametrize("handler", ["nasty", "nasty_in_thread"])
def test_no_exception_of_a_handler_ends_a_worker_or_keeps_it_from_ending(
    queue: Queue, run: Processes, handler: str
) -> None:
    queue.put([f"t-{i}" for i in range(60)])
    worker = run.worker(queue.name, handler, "--concurrency", "3", "--timeout", "5", "--retry", "600")
    wait_until(lambda: queue.stats().done + queue.stats().scheduled == 60, timeout=20)
    assert queue.stats().done == 10
    worker.terminate()
    assert worker.wait(10) == 0
    assert queue.stats().in_progress == 0
    assert queue.stats().counters.get("expired", 0) == 0
    assert run.log(worker).count("failed on attempt 1") == 50
