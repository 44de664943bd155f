"""`timeoutq worker` with processes of its own: how it ends, what it replaces, and what signals do to it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from tests.rig.handlers import history, work
from tests.rig.processes import ROOT, Processes, processes, run, url
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, State, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_async_queue
from timeoutq.words import exit_codes
from timeoutq.worker.processes import endings, process
from timeoutq.worker.processes.ledger import SharedLedger
from timeoutq.worker.processes.supervisor import Job, _Child, _Signals, _Supervisor

__all__ = ["run", "url"]

HANDLERS = "tests.rig.handlers"


def children_of(parent: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def at_work(run: Processes) -> set[int]:
    return {pid for *_, pid, _ in history(run.history)}


def started(run: Processes, queue: str) -> int:
    return sum(event == "start" and task.startswith(f"{queue}-") for event, task, *_ in history(run.history))


def said(log: str, words: str) -> int:
    return sum(words in line for line in log.splitlines())


# ---- exit codes


@pytest.mark.parametrize("code", [0, 3, 7])
def test_a_process_that_leaves_by_itself_is_replaced_whatever_its_exit_code(
    queue: Queue, run: Processes, code: int
) -> None:
    queue.put("leave", [f"t{i}" for i in range(30)])
    words = ("-p", "3", "-c", "2", "--prefetch", "0", "--burst")
    worker = run.start("worker", queue.name, f"{HANDLERS}:leave", *words, CODE=f"{code}", WORK="0.05")
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    assert queue.stats().done == 31
    assert said(run.log(worker), "worker process") >= 4 + 1
    assert f"died: exit code {code}" in run.log(worker)
    # each lease of the process counts a crash: `leave`, the task beside it, and two that are done and not acked yet
    runs = {end: {fence for event, _, fence, *_ in history(run.history) if event == end} for end in ("start", "end")}
    assert 1 <= len(runs["start"] - runs["end"]) <= queue.stats().counters["crashed"] <= 4


def test_a_drained_queue_ends_all_processes_with_0(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(50)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "3", "--burst")
    assert worker.wait(60) == exit_codes.DONE
    assert said(run.log(worker), "ended: drained") == 3
    assert queue.stats().done == 50


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("nowhere:f", "importing nowhere raised ModuleNotFoundError"),
        (f"{HANDLERS}:missing", "has no missing"),
        ("nowhere", "write module:function"),
        (f"{HANDLERS}:ROOT", "has no ROOT"),
    ],
)
@pytest.mark.parametrize("words", [("-p", "3"), ("--no-supervise",)])
def test_a_bad_handler_ends_the_worker_with_2_and_is_said_once(
    queue: Queue, run: Processes, handler: str, complaint: str, words: tuple[str, ...]
) -> None:
    worker = run.start("worker", queue.name, handler, *words)
    assert worker.wait(60) == exit_codes.USAGE
    log = run.log(worker)
    assert said(log, complaint) == 1, log
    assert "Traceback" not in log
    assert "died" not in log


def test_a_process_that_cannot_begin_stops_the_others_that_could(queue: Queue, run: Processes, tmp_path: Path) -> None:
    (tmp_path / "half_a_module.py").write_text(
        "import os\n"
        "try:\n"
        f"    os.close(os.open({str(tmp_path / 'first')!r}, os.O_CREAT | os.O_EXCL))\n"
        "except FileExistsError:\n"
        "    pass\n"
        "else:\n"
        "    async def handle(lease): ...\n"
    )
    queue.put("a")
    worker = run.start(
        "worker", queue.name, "half_a_module:handle", "-p", "2", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"
    )
    assert worker.wait(30) == exit_codes.USAGE, run.log(worker)
    assert "ended: it cannot begin\n" in run.log(worker)
    assert said(run.log(worker), "half_a_module has no handle") == 1
    assert "hopeless" not in run.log(worker)


def test_the_most_attempts_of_the_command_are_as_many_as_it_says(queue: Queue, run: Processes, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("def handle(lease): raise ValueError('never')\n")
    queue.put("a")
    worker = run.start(
        "worker", queue.name, "failing:handle", "--burst", "--max-attempts", "1",
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
    )  # fmt: skip
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    found = queue.inspect("a")
    assert (found.state, found.failures) == (State.FAILED, 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lg.h"], "'lg.h' is not a handler: write module:function"),
        (["lg.py:h"], "'lg.py:h' is not a handler: a module has no .py, write lg:h"),
        ([f"{HANDLERS}:work", "--lifespan", "lg"], "'lg' is not a lifespan: write module:function"),
    ],
)
def test_words_that_name_no_handler_are_refused_before_a_process_starts(
    queue: Queue, run: Processes, words: list[str], complaint: str
) -> None:
    worker = run.start("worker", queue.name, *words)
    assert worker.wait(60) == exit_codes.USAGE
    log = run.log(worker)
    assert said(log, complaint) == 1, log
    assert said(log, "started") == said(log, "hopeless") == 0, log


@pytest.mark.parametrize("words", [("-p", "3"), ("--no-supervise",)])
def test_a_wrong_password_ends_the_worker_with_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    with (
        EmbeddedServer(config={"requirepass": "right"}) as server,
        processes(f"redis://:wrong@127.0.0.1:{server.port}/0", tmp_path) as run,
    ):
        worker = run.start("worker", "q", f"{HANDLERS}:work", *words)
        assert worker.wait(60) == exit_codes.SERVER
        log = run.log(worker)
        assert said(log, "timeoutq: ") == 1, log
        assert "died" not in log
        assert said(log, "started") == (3 if "-p" in words else 0)


@pytest.mark.parametrize("words", [("-p", "2"), ("--no-supervise",)])
def test_a_server_that_may_throw_tasks_away_ends_the_worker_with_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    with (
        EmbeddedServer(config={"maxmemory-policy": "allkeys-lru"}) as server,
        processes(server.url, tmp_path) as run,
    ):
        worker = run.start("worker", "q", f"{HANDLERS}:work", *words)
        assert worker.wait(60) == exit_codes.SERVER
        assert said(run.log(worker), "timeoutq: ") == 1


def test_a_lifespan_that_fails_is_tried_again_by_a_new_process(queue: Queue, run: Processes, tmp_path: Path) -> None:
    queue.put("a")
    words = ("worker", queue.name, f"{HANDLERS}:work", "--lifespan", f"{HANDLERS}:lifespan_that_waits_for_a_file")
    worker = run.start(*words, "--burst", FILE=str(tmp_path / "up"))
    wait_until(lambda: len(history(run.history)) >= 2)
    (tmp_path / "up").touch()
    assert worker.wait(20) == exit_codes.DONE
    assert queue.stats().done == 1
    told = "the database is not up (the lifespan raised this when it was entered: no task is being worked on in this pr"
    assert f"died: exit code 1: RuntimeError: {told}" in run.log(worker)


def test_without_a_supervisor_an_unexpected_error_is_1_and_max_tasks_is_0(
    queue: Queue, run: Processes, tmp_path: Path
) -> None:
    queue.put([f"t{i}" for i in range(5)])
    lifespan = ("--lifespan", f"{HANDLERS}:lifespan_that_waits_for_a_file")
    broken = run.worker(queue.name, "work", *lifespan, FILE=str(tmp_path / "never"))
    ended = run.worker(queue.name, "work", "--max-tasks", "2", "-c", "1")
    assert broken.wait(20) == exit_codes.DIED
    assert "RuntimeError: the database is not up" in run.log(broken)
    assert ended.wait(20) == exit_codes.DONE
    assert (queue.stats().done, queue.stats().todos) == (2, 3)


def test_a_process_that_dies_while_the_worker_stops_makes_it_end_with_1(queue: Queue, run: Processes) -> None:
    queue.put("a")
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", WORK="30")
    wait_until(lambda: at_work(run))
    worker.terminate()
    wait_until(lambda: "drains" in run.log(worker))
    (pid,) = at_work(run)
    os.kill(pid, signal.SIGKILL)
    assert worker.wait(20) == exit_codes.DIED
    assert queue.inspect("a").crashes == 1


def test_no_supervise_and_several_processes_are_refused_together(run: Processes) -> None:
    worker = run.start("worker", "q", f"{HANDLERS}:work", "--no-supervise", "-p", "2")
    assert worker.wait(20) == exit_codes.USAGE
    assert "leave out --processes 2" in run.log(worker)


def test_windows_is_told_what_it_can_do() -> None:
    code = (
        "import sys, types; from timeoutq import cli;"
        "cli.serving.sys = types.SimpleNamespace(platform='win32', path=sys.path);"
        "sys.argv[1:] = ['worker', 'q', 'json:loads', '--processes', '2']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == exit_codes.USAGE
    assert "Windows lacks: use --no-supervise" in done.stderr
    assert "WSL" in done.stderr
    assert "Traceback" not in done.stderr


# ---- replacing


def test_processes_that_die_young_are_replaced_after_growing_pauses(queue: Queue, run: Processes) -> None:
    queue.configure(max_crashes=4)
    queue.put("deadly")
    worker = run.start("worker", queue.name, f"{HANDLERS}:die_in_thread", "-c", "1")
    wait_until(lambda: queue.stats().failed == 1, timeout=40)
    starts = [at for event, *_, at in history(run.history) if event == "start"]
    gaps = [after - before for before, after in pairwise(starts)]
    assert len(gaps) == 3
    assert gaps[0] > 0.1
    assert gaps[1] > 0.2
    assert gaps[2] > 0.4
    worker.terminate()
    assert worker.wait(20) == exit_codes.DONE


@pytest.mark.breaking
def test_a_process_that_alone_is_asked_to_end_drains_and_is_replaced(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(4)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-c", "4", WORK="1.5")
    wait_until(lambda: len(history(run.history)) >= 4)
    (first,) = children_of(worker)
    for _ in range(3):
        os.kill(first, signal.SIGTERM)
        os.kill(first, signal.SIGINT)
    wait_until(lambda: children_of(worker) not in ([], [first]))
    assert Counter(event for event, *_ in history(run.history)) == {"start": 4, "end": 4}
    assert queue.stats().counters.get("released", 0) == 0
    queue.put("more")
    wait_until(lambda: queue.stats().done == 5)
    assert len(at_work(run)) == 2
    worker.terminate()
    assert worker.wait(20) == exit_codes.DONE
    assert "died" not in run.log(worker)


def test_the_module_of_the_handler_is_imported_in_each_process_and_not_in_their_parent(
    queue: Queue, run: Processes, tmp_path: Path
) -> None:
    (tmp_path / "own_module.py").write_text(
        "import os, pathlib\n"
        f"with open({str(tmp_path / 'imports')!r}, 'a') as file: print(os.getpid(), file=file)\n"
        "MINE = os.getpid()\n"
        "async def handle(lease):\n"
        "    assert os.getpid() == MINE\n"
    )
    queue.put([f"t{i}" for i in range(50)])
    worker = run.start(
        "worker", queue.name, "own_module:handle", "-p", "3", "--burst", "--max-attempts", "1",
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
    )  # fmt: skip
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    imported = [int(pid) for pid in (tmp_path / "imports").read_text().split()]
    assert len(set(imported)) == len(imported) == 3
    assert worker.pid not in imported
    assert (queue.stats().done, queue.stats().failed) == (50, 0)


def test_a_process_that_has_run_its_most_of_tasks_is_replaced_by_a_fresh_one(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(40)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-c", "2", "--max-tasks", "10", "--burst")
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    runs = Counter(pid for event, _, _, pid, _ in history(run.history) if event == "start")
    assert sum(runs.values()) == 40
    assert max(runs.values()) <= 11  # one more may have begun beside the last
    assert len(runs) >= 4
    log = run.log(worker)
    assert "died" not in log
    assert said(log, "ended: max tasks") >= 3
    stats = queue.stats()
    assert (stats.done, stats.counters.get("crashed", 0), stats.counters.get("expired", 0)) == (40, 0, 0)


def test_each_process_has_a_lifespan_of_its_own(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(40)])
    worker = run.start(
        "worker", queue.name, f"{HANDLERS}:work_with_state", "-p", "3", "--lifespan", f"{HANDLERS}:lifespan", "--burst"
    )
    assert worker.wait(60) == exit_codes.DONE, run.log(worker)
    assert (queue.stats().done, queue.stats().failed) == (40, 0)
    events = [(event, pid) for event, _, _, pid, _ in history(run.history)]
    opened = {pid for event, pid in events if event == "open"}
    assert len(opened) == 3
    for pid in opened:
        mine = [event for event, by in events if by == pid]
        assert (mine[0], mine[-1], mine.count("open"), mine.count("close")) == ("open", "close", 1, 1)


@pytest.mark.parametrize("lifespan", ["nowhere:f", "builtins:dict", "json"])
def test_a_bad_lifespan_ends_the_worker_with_2_and_is_said_once(queue: Queue, run: Processes, lifespan: str) -> None:
    worker = run.start("worker", queue.name, f"{HANDLERS}:work_with_state", "-p", "2", "--lifespan", lifespan)
    assert worker.wait(60) == exit_codes.USAGE, run.log(worker)
    assert said(run.log(worker), "timeoutq: ") == 1
    assert "died" not in run.log(worker)


EVICTING = """
import os, sys
from timeoutq import AsyncQueue, Worker
from timeoutq.worker.processes.supervisor import Job, supervise

def opened():
    return AsyncQueue(sys.argv[1], os.environ["TIMEOUTQ_URL"], allow_eviction=True)

def make(ledger):
    return Worker(opened(), "tests.rig.handlers:leave", burst=True, signals=False, ledger=ledger)

code, words = supervise(Job(make, lambda: [opened()], 1, 100))
print(words)
sys.exit(code)
"""


def test_the_dead_are_reported_with_the_settings_of_the_queue(tmp_path: Path) -> None:
    with (
        EmbeddedServer(config={"maxmemory-policy": "allkeys-lru"}) as server,
        Queue("kept", server.url, allow_eviction=True) as queue,
        processes(server.url, tmp_path) as run,
    ):
        queue.put("leave")
        worker = run.start_code(EVICTING, queue.name, CODE="7")
        # at once, not when the lease of 30 s has run out
        assert worker.wait(20) == exit_codes.DONE, run.log(worker)
        assert queue.stats().counters["crashed"] == 1


def test_a_process_whose_handler_cancels_all_its_tasks_is_replaced(queue: Queue, run: Processes) -> None:
    queue.put("cancels", [f"t{i}" for i in range(20)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:cancel_everything", "-c", "5", "--burst", "--retry", "0.1")
    assert worker.wait(30) == exit_codes.DONE, run.log(worker)
    assert said(run.log(worker), "died: exit code 1: WorkerBroken: worker ") == 1
    assert "Does a handler cancel asyncio tasks that it did not start" in run.log(worker)
    assert "'cancels'" in run.log(worker)
    stats = queue.stats()
    assert (stats.done, stats.counters.get("crashed", 0), stats.counters.get("expired", 0)) == (21, 0, 0)


def test_without_a_supervisor_a_handler_that_cancels_all_tasks_ends_the_command_with_1(
    queue: Queue, run: Processes
) -> None:
    queue.put("cancels")
    worker = run.worker(queue.name, "cancel_everything", "--retry", "60")
    assert worker.wait(20) == exit_codes.DIED
    assert "was cancelled though nobody asked it to stop" in run.log(worker)
    info = queue.inspect("cancels")
    assert (info.state, info.failures) == ("scheduled", 1)


# ---- signals


def end_all_at_once(parent: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    pids = [parent.pid, *children_of(parent)]
    random.Random(parent.pid).shuffle(pids)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.parametrize("round_", [0, 1, *(pytest.param(i, marks=pytest.mark.breaking) for i in range(2, 5))])
def test_sigterm_to_parent_and_children_at_once_drains(url: str, tmp_path: Path, round_: int) -> None:
    # four workers at once: each is the load of the others; 20 times in all
    queues = [Queue(f"group-{round_}-{i}", url) for i in range(4)]
    with processes(url, tmp_path) as run:
        workers = []
        for queue in queues:
            queue.purge()
            queue.put([f"{queue.name}-{i}" for i in range(8)])
            workers.append(
                run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "8", "--drain-deadline", "25s",
                          WORK="0.2")
            )  # fmt: skip
        for queue, worker in zip(queues, workers, strict=True):
            wait_until(lambda queue=queue: started(run, queue.name) == 8, timeout=30)  # type: ignore[misc]  # a bound default
            wait_until(lambda worker=worker: len(children_of(worker)) == 2)  # type: ignore[misc]  # a bound default
            end_all_at_once(worker)
        for queue, worker in zip(queues, workers, strict=True):
            assert worker.wait(40) == exit_codes.DONE, run.log(worker)
            stats = queue.stats()
            assert (stats.done, stats.in_progress, stats.todos) == (8, 0, 0), run.log(worker)
            assert stats.counters.get("released", 0) == 0
            queue.purge()
            queue.close()


def test_a_second_sigterm_gives_everything_back_at_once(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(6)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "3", WORK="60")
    wait_until(lambda: len(history(run.history)) == 6)
    end_all_at_once(worker)
    wait_until(lambda: said(run.log(worker), "drains") == 2)
    began = time.monotonic()

    def ended() -> bool:
        end_all_at_once(worker)  # one that comes too early is an echo of the first
        return worker.poll() is not None

    wait_until(ended)
    assert worker.returncode == exit_codes.DONE
    assert time.monotonic() - began < 8
    assert queue.stats().todos == 6


def test_ctrl_c_in_a_terminal_gives_everything_back_at_once(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(6)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "3", WORK="60")
    wait_until(lambda: len(history(run.history)) == 6)
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(10) == exit_codes.DONE
    assert queue.stats().todos == 6


def test_a_terminal_that_closes_lets_what_runs_finish(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(6)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "3", WORK="0.5")
    wait_until(lambda: len(history(run.history)) == 6)
    os.killpg(worker.pid, signal.SIGHUP)
    assert worker.wait(10) == -signal.SIGHUP
    wait_until(lambda: queue.stats().done == 6 and not queue.workers())
    assert queue.stats().counters.get("released", 0) == 0


def test_sigterm_to_the_parent_alone_lets_its_processes_finish(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(6)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "3", WORK="0.5")
    wait_until(lambda: len(history(run.history)) == 6)
    worker.terminate()
    assert worker.wait(10) == exit_codes.DONE
    assert queue.stats().done == 6


def test_processes_whose_parent_is_killed_while_they_are_busy_finish_their_tasks(queue: Queue, run: Processes) -> None:
    queue.put([f"t{i}" for i in range(20)])
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "3", "--prefetch", "2", WORK="0.6")
    wait_until(lambda: len(history(run.history)) >= 6)
    worker.kill()
    worker.wait()
    wait_until(lambda: queue.stats().in_progress == 0 and not queue.workers())
    stats = queue.stats()
    events = Counter(event for event, *_ in history(run.history))
    assert stats.done == events["start"] == events["end"] >= 6
    assert stats.todos == 20 - stats.done
    assert "is gone" in run.log(worker)


def test_processes_whose_parent_is_killed_do_not_wait_for_each_other(queue: Queue, run: Processes) -> None:
    queue.put("a", "b")
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "-p", "2", "-c", "1", "--prefetch", "0", WORK="100")
    pids = wait_until(lambda: at_work(run) if len(at_work(run)) == 2 else set[int]())
    worker.kill()
    worker.wait()
    try:
        wait_until(lambda: said(run.log(worker), "is gone") == 2)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_does_not_end_when_it_is_asked_to_is_killed(queue: Queue, run: Processes) -> None:
    code = "from timeoutq import roster; roster.PATIENCE = 1.0;from timeoutq.cli import main; main()"
    queue.put("hangs")
    worker = run.start_code(
        code, "worker", queue.name, f"{HANDLERS}:block_the_loop", "--drain-deadline", "0.5s", WORK="100"
    )
    wait_until(lambda: at_work(run))
    worker.terminate()
    assert worker.wait(20) == exit_codes.DIED
    assert "does not end: it is killed" in run.log(worker)
    # its supervisor killed it, so nobody is to blame
    info = queue.inspect("hangs")
    assert (info.state, info.crashes) == ("todos", 0)


def report(queue: Queue, url: str, ledger: SharedLedger, died: str, *, blame: bool) -> None:
    """Let a supervisor tell the queue of process 12345, which has ended and left this ledger."""
    job = Job(lambda ledger: Worker(fake_async_queue(), work), lambda: [AsyncQueue(queue.name, url)], 1, 10)
    reading, writing = os.pipe()
    child = _Child(12345, ledger, writing)
    _Supervisor(job, cast("_Signals", None))._report(child, died, blame=blame)
    child.end()
    os.close(reading)


@pytest.mark.parametrize(
    ("died", "blame", "says"),
    [
        ("killed by SIGSEGV", True, "when it died: killed by SIGSEGV"),
        ("killed by SIGKILL", False, "when it had to be killed"),
        ("", False, "when it ended"),
    ],
)
def test_what_an_ended_process_held_is_given_back_and_only_who_died_by_itself_is_blamed(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture, died: str, blame: bool, says: str
) -> None:
    queue.put("a", "b", "c")
    leases = queue.claim(3)
    ran = [lease.task for lease in leases[:2]]
    ledger = SharedLedger(10)
    ledger.hold(leases)
    for lease in leases[:2]:
        ledger.start(lease)
    report(queue, url, ledger, died, blame=blame)
    assert queue.stats().todos == 3
    crashes = {lease.task: int(blame and lease.task in ran) for lease in leases}
    assert {lease.task: queue.inspect(lease.task).crashes for lease in leases} == crashes
    told = [record for record in caplog.records if "was running in process 12345" in record.getMessage()]
    assert all(says in record.getMessage() for record in told)
    assert {vars(record)["task"]: vars(record)["crashes"] for record in told} == {task: crashes[task] for task in ran}


@pytest.mark.parametrize(("died", "blame"), [("killed by SIGKILL", True), ("killed by SIGKILL", False), ("", False)])
def test_handlers_whose_acks_never_left_count_as_crashed_and_the_log_says_that_they_run_again(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture, died: str, blame: bool
) -> None:
    queue.put(f"t{i}" for i in range(20))
    leases = queue.claim(20)
    ledger = SharedLedger(40)
    ledger.hold(leases)
    for lease in leases[:15]:
        ledger.start(lease)
        ledger.finish(lease)
    queue.ack(leases[0])  # the server was quick to take this ack, and its answer came too late
    report(queue, url, ledger, died, blame=blame)
    found = queue.stats()
    assert (found.todos, found.done, found.counters["crashed"], found.counters["released"]) == (19, 1, 14, 5)
    told = [
        line for line in caplog.messages if "runs again: its handler had ended, but its worker process ended" in line
    ]
    assert told[0].startswith(f"queue {queue.name}: task {leases[1].task!r} runs again")
    assert len(told) == 10
    assert any("4 more tasks like these" in line for line in caplog.messages)
    assert any("15 had run, 5 more were held" in line for line in caplog.messages)


def test_orders_that_a_process_reads_at_once_are_all_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []
    worker = Worker(fake_async_queue(), work)
    monkeypatch.setattr(worker, "stop", lambda *, now=False: heard.append(now))
    for orders, expected in ((b"d", [False]), (b"n", [True]), (b"dn", [True]), (b"dd", [False]), (b"", [False])):
        reading, writing = os.pipe()
        one = process.Orders(reading)
        one._worker = worker
        os.write(writing, orders)
        os.close(writing)

        async def read(one: process.Orders = one) -> None:
            one._read()

        heard.clear()
        asyncio.run(read())
        os.close(reading)
        assert heard == expected, orders


@pytest.mark.breaking
def test_a_handler_has_the_time_that_the_drain_deadline_gives(queue: Queue, run: Processes) -> None:
    code = "from timeoutq import roster; roster.PATIENCE = 1.0;from timeoutq.cli import main; main()"
    queue.put("slow")
    worker = run.start_code(code, "worker", queue.name, f"{HANDLERS}:work", "--drain-deadline", "30s", WORK="3")
    wait_until(lambda: at_work(run))
    worker.terminate()
    assert worker.wait(30) == exit_codes.DONE
    assert (queue.stats().done, queue.stats().counters.get("released", 0)) == (1, 0)


def test_a_handler_has_no_more_time_than_the_drain_deadline_gives(queue: Queue, run: Processes) -> None:
    queue.put("slow")
    worker = run.start("worker", queue.name, f"{HANDLERS}:work", "--drain-deadline", "0.5s", WORK="100")
    wait_until(lambda: at_work(run))
    worker.terminate()
    assert worker.wait(15) == exit_codes.DONE
    assert queue.inspect("slow").state is State.TODOS


def test_a_handler_that_reads_stdin_finds_it_empty(queue: Queue, run: Processes) -> None:
    # a pipe into which nobody writes, as a terminal at which nobody types
    code = "import os; os.dup2(os.pipe()[0], 0); from timeoutq.cli import main; main()"
    queue.put("a")
    worker = run.start_code(
        code, "worker", queue.name, "tests.rig.forking:read_stdin", "--burst", "--max-attempts", "1"
    )
    assert worker.wait(20) == exit_codes.DONE
    assert "EOFError" in (queue.inspect("a").error or "")


INTERRUPTED = """
import os, signal
from timeoutq import supervisor
from timeoutq.cli import main

parent, usual = os.getpid(), supervisor.suppress

def interrupted(*errors):
    if os.getpid() != parent:
        os.write(2, f"SIGINT ends it by {signal.getsignal(signal.SIGINT)}\\n".encode())
        raise KeyboardInterrupt
    return usual(*errors)

supervisor.suppress = interrupted
main()
"""


def test_ctrl_c_on_the_way_out_of_a_child_never_runs_what_is_its_parents(queue: Queue, run: Processes) -> None:
    queue.put("a")
    worker = run.start_code(INTERRUPTED, "worker", queue.name, f"{HANDLERS}:work", "--burst", "-p", "2")
    worker.wait(20)
    log = run.log(worker)
    assert said(log, "SIGINT ends it by 0") == 2
    assert said(log, "ended: drained") == 2
    assert "Traceback" not in log


HURRIED = "from timeoutq import endings, roster; endings.PATIENCE = roster.PATIENCE = 1.0;"


@pytest.mark.parametrize(
    "handler", ["leave_a_thread", "leave_a_thread --lifespan tests.rig.forking:lifespan_that_stays"]
)
@pytest.mark.parametrize("words", [(), ("--no-supervise",)])
def test_a_process_that_says_it_ends_and_does_not_is_ended(
    queue: Queue, run: Processes, handler: str, words: tuple[str, ...]
) -> None:
    queue.put("a")
    code = HURRIED + "from timeoutq.cli import main; main()"
    worker = run.start_code(code, "worker", queue.name, *f"tests.rig.forking:{handler}".split(), "--burst", *words)
    assert worker.wait(20) == exit_codes.DONE, run.log(worker)
    assert said(run.log(worker), "does not end") == 1
    assert queue.stats().done == 1


@pytest.mark.parametrize("alone", [True, False])
def test_nothing_is_left_that_could_end_a_process_which_goes_on_after_its_worker(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(process, "_leave_at_once", ended.append)
    monkeypatch.setattr(endings, "PATIENCE", 5.0 if alone else 0.1)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0.5)  # longer than a patience of 0.1 s

    def make() -> Worker:
        return Worker(fake_async_queue(), work, burst=True, signals=False, lifespan=lifespan)

    assert process.run_worker(make, alone=alone) == exit_codes.DONE
    assert ended == []
    assert [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)] == []
