"""`timeoutq worker` with processes of its own: how it ends, what it replaces, and what signals do to it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from tests.rig.handlers import history, work
from tests.rig.processes import ROOT, Processes, processes, run, url
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Lease, Queue, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_async_queue
from timeoutq.verbs import sending
from timeoutq.words import exit_codes
from timeoutq.worker.processes import supervisor as supervising
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


# ---- replacing


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


def test_a_process_that_does_not_end_when_it_is_asked_to_is_killed(queue: Queue, run: Processes) -> None:
    code = "from timeoutq.worker.processes import roster; roster.PATIENCE = 1.0;from timeoutq.cli import main; main()"
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


def test_a_server_that_is_away_hears_of_a_dead_process_last_and_only_if_it_held_something(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [AsyncQueue("away", "redis://127.0.0.1:1/0", deadline=0.2), AsyncQueue(queue.name, url)]
    job = Job(lambda ledger: Worker(fake_async_queue(), work), lambda: queues, 1, 10)
    supervisor = _Supervisor(job, cast("_Signals", None))

    def asked_when_a_process_dies(*held: Lease) -> list[str]:
        caplog.clear()
        ledger = SharedLedger(10, *(each.division.key_of for each in queues))
        ledger.sign("worker")
        for page in ledger.pages:
            page.hold(held)
        supervisor._report(_Child(12345, ledger, -1), "killed by SIGKILL", blame=True)
        return [vars(record)["queue"] for record in caplog.records]

    queue.put("a", "b")
    first, second = queue.claim(2)
    assert asked_when_a_process_dies(first) == ["away", queue.name], "nothing is known yet"
    assert asked_when_a_process_dies(second) == [queue.name, "away"]
    assert asked_when_a_process_dies() == []
    assert queue.stats().todos == 2
    monkeypatch.setattr(supervising, "ASK_AGAIN", 0.0)
    asked_when_a_process_dies(second)
    assert asked_when_a_process_dies() == ["away"], "after a while it is asked again"


def test_the_traceback_of_an_error_of_which_one_process_dies_after_the_other_is_logged_once_in_a_row(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(lambda ledger: Worker(fake_async_queue(), work), lambda: [AsyncQueue(queue.name, url)], 1, 10)
    supervisor = _Supervisor(job, cast("_Signals", None))

    def here() -> None:
        raise ValueError

    def there() -> None:
        raise ValueError

    def is_shown(fails: Callable[[], None]) -> bool:
        caplog.clear()
        ledger = SharedLedger(10)
        try:
            fails()
        except ValueError as error:
            ledger.confess(error)
        supervisor._roster.started(12345, time.monotonic())
        supervisor._ended(_Child(12345, ledger, -1), 1)
        assert "worker process 12345 died: exit code 1: ValueError" in caplog.text
        return "Traceback" in caplog.text

    assert [is_shown(fails) for fails in (here, here, there, here)] == [True, False, True, True]


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
    assert any("15 had just ended, 5 more were held" in line for line in caplog.messages)


def test_what_a_claim_brought_whose_reply_the_process_had_not_read_is_given_back(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put(f"t{i}" for i in range(10))
    ledger, operations = SharedLedger(40), queue.operations
    sent = [operations.claim(queue.talk.nonce(), n, 30_000, 0) for n in (3, 4, 3)]
    for claim in sent[:2]:
        ledger.ask(claim.id, 0, (30_000, 0))
        queue.run(sending.answer(queue.talk, claim))
    read = queue.run(sending.answer(queue.talk, sent[2])).leases
    ledger.ask(sent[2].id, 0, (30_000, 0))
    ledger.hold(read)
    ledger.answered(sent[2].id)
    assert queue.stats().in_progress == 10
    report(queue, url, ledger, "killed by SIGKILL", blame=True)
    found = queue.stats()
    assert (found.todos, found.in_progress, found.counters["released"]) == (10, 0, 10)
    assert "crashed" not in found.counters
    assert any("0 tasks were running in process 12345, 10 more were held" in line for line in caplog.messages)


HURRIED = "from timeoutq.worker.processes import process, roster; process.PATIENCE = roster.PATIENCE = 1.0;"


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
