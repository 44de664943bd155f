"""Functions with `executor="process"`: what crosses, what ends a call, and what ends with the worker."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.rig import pool
from tests.rig.calling import failure
from tests.rig.processes import Processes
from tests.rig.waiting import until, wait_until
from tests.worker.working import at_work, ended
from timeoutq import AsyncQueue, Queue, Worker
from timeoutq.functions import App, BadFunction, CallCancelled, CallNext, Calls, Context, Result, processes, running
from timeoutq.functions.errors import NoProcess
from timeoutq.words.errors import InvalidInput, WorkerBroken
from timeoutq.worker import forks

MODULE = "tests.rig.pool:app"


@pytest.fixture
def call(app: App) -> Callable[..., Result[Any]]:
    """Put calls of the functions of `tests.rig.pool`, which a worker process runs."""
    for name, one in pool.app.functions.items():
        app.task(name=name, keep_result=60, retry=[])(one.definition.function)
    return lambda name, *args, **options: app.functions[name].options(**options).delay(*args)


@pytest.fixture
def worker(queue: Queue, run: Processes) -> Iterator[subprocess.Popen[bytes]]:
    yield run.start("worker", "--app", MODULE, "--no-supervise", "--timeout", "5s", SHOP_QUEUE=queue.name)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def read(path: Path) -> int:
    return int(wait_until(lambda: path.exists() and path.read_text()))


def test_a_process_runs_one_call_after_the_other_and_ends_with_the_worker(
    worker: subprocess.Popen[bytes], call: Callable[..., Result[Any]], app: App
) -> None:
    first, parent = call("who").wait(30)
    assert parent == worker.pid
    assert [call("who").wait(10) for _ in range(3)] == [(first, parent)] * 3
    many = app.put([app.functions["who"].call() for _ in range(60)])
    assert first in {one.wait(60)[0] for one in many}
    assert len({one.wait(1)[0] for one in many}) <= app.threads
    worker.terminate()
    assert worker.wait(30) == 0
    assert not any(lives(one.wait(1)[0]) for one in many)


@pytest.mark.parametrize("how", ["worker ends", "free process dies"])
def test_a_program_that_a_function_left_behind_ends_with_its_process(
    worker: subprocess.Popen[bytes], call: Callable[..., Result[Any]], how: str
) -> None:
    process, _ = call("who").wait(30)
    program = call("leaves_a_program").wait(30)
    assert lives(program)
    if how == "worker ends":
        worker.terminate()
        assert worker.wait(30) == 0
    else:
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not lives(process))
        call("who").wait(30)
    wait_until(lambda: not lives(program))


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("when", ["it sleeps", "it begins"])
def test_a_copy_that_a_function_forks_ends_when_it_is_asked_to(call: Callable[..., Result[Any]], when: str) -> None:
    assert call("ends_a_copy", when).wait(30) == -signal.SIGTERM


@pytest.mark.usefixtures("worker")
def test_a_process_that_was_killed_while_it_was_free_is_replaced_and_no_call_fails(
    call: Callable[..., Result[Any]],
) -> None:
    pid, _ = call("who").wait(30)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid))
    assert call("who").wait(30)[0] != pid


@pytest.mark.usefixtures("worker")
def test_a_call_of_a_schedule_sees_its_tick(queue: Queue, app: App) -> None:
    queue.put({"nightly": {"v": 1, "f": "speaks", "a": ["x"], "w": 1_700_000_000_500}})
    assert app.result("nightly").wait(30) == ["speaks", "nightly", 1, True, 1_700_000_000.5, None, False, {}]


@pytest.mark.usefixtures("worker")
def test_a_copy_that_a_function_forks_has_no_part_in_the_calls(call: Callable[..., Result[Any]]) -> None:
    assert call("forks", "returns").wait(30) == "the function"
    assert [call("echo", number).wait(10) for number in range(5)] == list(range(5))
    died = failure(call("forks", "lives on"))
    assert (died.error, "has died, with signal 9" in died.message) == ("WorkerBroken", True)
    assert failure(call("fails", "odd reason")).error == "GiveUp"
    assert call("echo", 7).wait(10) == 7


@pytest.mark.parametrize("how", ["sleeps", "loops", "computes", "starts another"])
@pytest.mark.usefixtures("worker")
def test_a_call_is_ended_within_a_second_of_its_time_whatever_it_does(
    call: Callable[..., Result[Any]], tmp_path: Path, how: str
) -> None:
    call("who").wait(30)  # a process is there
    began = time.monotonic()
    assert failure(call("stuck", how, str(tmp_path / "begun"))).message == "max_runtime of 0.5 s is over"
    assert time.monotonic() - began < 1.5
    wait_until(lambda: not lives(read(tmp_path / "begun")), 1)
    assert call("who").wait(30), "another process is there"


@pytest.mark.usefixtures("worker")
def test_a_call_that_is_cancelled_is_ended_and_its_notes_are_seen_before(
    call: Callable[..., Result[Any]], tmp_path: Path
) -> None:
    waits = call("waits", str(tmp_path / "begun"))
    pid = read(tmp_path / "begun")
    wait_until(lambda: (told := waits.info().progress) is not None and told.text == "page 3")
    waits.cancel("ann")
    with pytest.raises(CallCancelled):
        waits.wait(10)
    wait_until(lambda: not lives(pid), 2)


def test_a_call_whose_lease_is_lost_is_ended(
    worker: subprocess.Popen[bytes], queue: Queue, call: Callable[..., Result[Any]], tmp_path: Path
) -> None:
    waits = call("waits", str(tmp_path / "begun"))
    pid = read(tmp_path / "begun")
    queue.forget(waits.id)
    wait_until(lambda: not lives(pid), 10)
    assert worker.poll() is None


@pytest.mark.parametrize("how", ["sleeps", "loops", "starts another"])
def test_no_process_outlives_a_worker_that_is_killed(
    worker: subprocess.Popen[bytes], app: App, call: Callable[..., Result[Any]], tmp_path: Path, how: str
) -> None:
    idle, _ = call("who").wait(30)
    call("stuck", how, str(tmp_path / "begun"), max_runtime=3600)
    free = [one.wait(30)[0] for one in app.put([app.functions["who"].call() for _ in range(4)])]
    busy = read(tmp_path / "begun")
    assert lives(busy)
    worker.kill()
    worker.wait()
    wait_until(lambda: not any(map(lives, [idle, busy, *free])), 5)


def test_nor_does_one_when_a_copy_of_the_worker_lives_on(
    worker: subprocess.Popen[bytes], call: Callable[..., Result[Any]]
) -> None:
    idle, _ = call("who").wait(30)
    copy = call("leaves_a_copy").wait(30)
    worker.kill()
    worker.wait()
    try:
        wait_until(lambda: not lives(idle), 5)
        assert lives(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


def test_what_a_function_has_started_ends_with_a_process_that_dies_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, hear, begun = processes.Processes().hold(pool.dies.definition), processes._hear, tmp_path / "begun"
    hold.begin()

    def late(process: Any, notes: Any) -> Any:
        os.waitid(os.P_PID, process._process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie
        return hear(process, notes)

    monkeypatch.setattr(processes, "_hear", late)
    context: Context[None] = Context("dies", "a", 1, 1, None)
    payload = json.dumps({"v": 1, "f": "dies", "a": [signal.SIGSEGV, str(begun)]}).encode()
    with pytest.raises(WorkerBroken, match=r"the pool process of dies\(\) has died, with signal 11"):
        hold.run(payload, context, pool.app.open(payload, "pool", b"a"))
    hold.leave()
    wait_until(lambda: not lives(read(begun)), 5)


def test_ctrl_c_and_sigterm_of_the_group_end_the_worker_alone(
    worker: subprocess.Popen[bytes], call: Callable[..., Result[Any]]
) -> None:
    pid, _ = call("who").wait(30)
    assert os.getpgid(pid) != os.getpgid(worker.pid)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)  # as systemd does
    assert call("who").wait(10)[0] == pid
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(30) == 0


def test_what_a_call_prints_logs_and_sees(
    worker: subprocess.Popen[bytes], run: Processes, call: Callable[..., Result[Any]]
) -> None:
    one = call("speaks", "héllo", headers={"request": "42"})
    assert one.wait(30) == ["speaks", one.id, 1, True, None, None, False, {"request": "42"}]
    said = run.log(worker)
    assert "\nprinted héllo\n" in f"\n{said}"
    assert "WARNING logged héllo" in said
    assert "ERROR   caught héllo" in said
    assert "raise Odd(1, why=word)" in said, "with its traceback"
    assert call("reads").wait(10) == "", "its standard input is empty"
    assert call("day").wait(10) == timedelta(days=2), "a middleware sees what the function says that it returns"


@pytest.mark.usefixtures("worker")
def test_the_errors_of_a_process_are_those_of_a_thread(call: Callable[..., Result[Any]], tmp_path: Path) -> None:
    odd = failure(call("fails", "odd"), 30)
    assert (odd.error, odd.message) == ("Odd", "7: seven")
    assert (odd.traceback or "").splitlines()[-2:] == ['    raise Odd(7, why="seven")', "Odd: 7: seven"]
    assert "processes.py" not in (odd.traceback or "")
    assert [str(failure(call("fails", how))).partition(" failed: ")[2] for how in ("exit", "give up", "group")] == [
        "SystemExit: 3", "GiveUp: no use", "ExceptionGroup: several (ValueError: one; KeyError: 'two')",
    ]  # fmt: skip
    assert failure(call("fails", "returned retry")).error == "Retry"
    assert failure(call("fails", "acks")).message.startswith("an Ack cannot leave a pool process")
    assert failure(call("fails", "object")).error == "BadResult"
    assert failure(call("picky")).error == "KeyError", "its policy asks for the class of the error"
    dead = failure(call("dies", signal.SIGSEGV))
    assert (dead.message, dead.traceback) == ("the pool process of dies() has died, with signal 11", None)


@pytest.mark.usefixtures("worker")
def test_no_retry_sees_what_is_in_an_exception_group_of_a_process_as_in_one_of_a_thread(app: App) -> None:
    for kind, attempts in {"one": 1, "others": 3, "deep": 1, "exits": 1}.items():
        calls = [app.send(name, kind) for name in ("several", "several_in_thread")]
        first, second = (failure(one, 30) for one in calls)
        assert [one.info().failures for one in calls] == [attempts, attempts], kind
        assert (first.error, first.message) == (second.error, second.message)


@pytest.mark.usefixtures("worker")
def test_a_call_that_fails_leaves_its_process_to_the_next_and_a_bad_result_is_not_tried_again(
    call: Callable[..., Result[Any]],
) -> None:
    first = call("who").wait(30)
    assert failure(call("far", -1)).message == "total=-1.0 must be a number from 0 to 1e15"
    for how in ("object", "acks"):
        bad = call("fails", how, retry=[0, 0])
        assert failure(bad).error == "BadResult"
        assert bad.info().failures == 1
    assert call("who").wait(10) == first


@pytest.mark.usefixtures("worker")
def test_a_call_whose_result_is_not_kept_is_done_whatever_it_returns(
    queue: Queue, call: Callable[..., Result[Any]]
) -> None:
    one = call("who", keep_result=0)
    wait_until(queue.drained)
    assert (list(queue.states(one.id)), queue.stats().counters.get("failed", 0)) == (["unknown"], 0)


def test_a_call_that_is_cancelled_when_its_process_has_just_answered_leaves_no_process() -> None:
    hold = processes.Processes().hold(pool.speaks.definition)
    hold.begin()
    process: Any = hold._process

    class Notes:
        """Cancels the call as soon as its end is there to be read."""

        def note(self, *_: object) -> None:
            assert process.wire.poll(10)
            hold.kill()
            hold.leave()

    there: Any = Notes()
    context: Context[None] = Context("speaks", "a", 1, 1, None, notes=there)
    opened = pool.app.open(b'{"v":1,"f":"speaks","a":["x"]}', "pool", b"a")
    assert hold.run(b'{"v":1,"f":"speaks","a":["x"]}', context, opened)[:2] == ["speaks", "a"]
    with pytest.raises(ProcessLookupError):  # not even a zombie is left
        os.kill(process._process.pid, 0)


def test_a_call_that_ends_behind_its_worker_leaves_no_process() -> None:
    of_worker = processes.Processes()
    hold = of_worker.hold(pool.who.definition)
    hold.begin()
    pid = hold._process._process.pid  # type: ignore[union-attr]  # it has begun
    of_worker.close()
    hold.leave()
    with pytest.raises(ProcessLookupError):  # not even a zombie is left
        os.kill(pid, 0)


async def test_a_call_for_which_no_process_can_be_started_waits_for_one_and_no_attempt_counts(
    app: App, jobs: AsyncQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = [OSError(errno.EMFILE, "Too many open files") for _ in range(3)]

    def made() -> Any:
        if full:
            raise full.pop()
        return Pipe()

    monkeypatch.setattr("timeoutq.functions.processes.Pipe", made)
    monkeypatch.setattr(running, "BACK_AFTER", (0.0, 0.0))
    call = app.named("echo").options(retry=[]).delay(7)
    async with asyncio.timeout(60):
        tally = await Worker(jobs, Calls(pool.app), burst=True, signals=False).run()
    assert (await call, tally.acked, tally.failed, full) == (7, 1, 0, [])
    assert (await call.ainfo()).failures == 0
    await app.aclose()
    told = [one.getMessage() for one in caplog.records if "no pool process" in one.getMessage()]
    assert len(told) == 1
    assert all(words in told[0] for words in ("echo()", "Too many open files", "raise `ulimit -n`"))


@pytest.mark.parametrize("why", ["its time is over", "cancelled"])
async def test_a_middleware_hears_that_the_process_was_killed_for_the_worker(
    app: App, jobs: AsyncQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    seen: list[type[BaseException]] = []

    def tells(_: Context[None], call_next: CallNext) -> Any:
        try:
            return call_next()
        except BaseException as error:
            seen.append(type(error))
            raise

    monkeypatch.setattr(pool.app, "inner", [tells])
    seconds = 0.2 if why == "its time is over" else None
    call = await app.named("waits").options(max_runtime=seconds, retry=[]).adelay(str(tmp_path / "begun"))
    working = asyncio.create_task(Worker(jobs, Calls(pool.app), burst=True, signals=False).run())
    if seconds is None:
        await until((tmp_path / "begun").exists)
        await call.acancel("ann")
    async with asyncio.timeout(60):
        await working
    assert (await call.ainfo()).error == (
        "TimeoutError: max_runtime of 0.2 s is over" if seconds else "cancelled by ann"
    )
    await until(lambda: bool(seen))
    assert seen == [asyncio.CancelledError]
    await app.aclose()


@pytest.mark.parametrize("lacks", ["Pipe", "subprocess.Popen"])
def test_a_process_that_cannot_be_started_leaves_nothing_open_and_is_told_of_its_function(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    pipes = list[Any]()

    def made() -> Any:
        pipes.extend(Pipe())
        return pipes

    def refuses(*_: object, **__: object) -> Any:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(processes, "Pipe", made)
    monkeypatch.setattr(f"timeoutq.functions.processes.{lacks}", refuses)
    hold = processes.Processes().hold(pool.echo.definition)
    with pytest.raises(NoProcess, match=r"no pool process of echo\(\) can be started: .*unavailable") as caught:
        hold.begin()
    assert caught.value.function == "echo"
    assert [one.closed for one in pipes] == [True] * len(pipes)
    assert not hold.is_ready


async def test_a_call_whose_process_does_not_begin_goes_back_and_no_attempt_counts(
    app: App, jobs: AsyncQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "BEGINS_WITHIN", 0.0)
    call = await app.named("who").adelay()
    worker = Worker(jobs, Calls(pool.app), signals=False)
    async with at_work(worker):
        await until(lambda: queue.stats().scheduled == 1)
    info = queue.inspect(call.id)
    assert (info.failures, info.crashes, worker.tally.failed) == (0, 0, 0)
    why = "a pool process of who() has not begun after 0 s: either importing tests.rig.pool takes so long, or"
    assert why in caplog.text
    assert why in queue.why(call.id).message
    await app.aclose()


async def test_no_more_processes_start_at_once_than_the_machine_has_processors(
    app: App, jobs: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, most, lock = list[object](), list[int](), threading.Lock()
    plain = processes.Hold.begin

    def begin(hold: processes.Hold) -> None:
        with lock:
            starting.append(hold)
            most.append(len(starting))
        plain(hold)
        with lock:
            starting.remove(hold)

    monkeypatch.setattr(processes.Hold, "begin", begin)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for _ in range(6):
        await app.named("who").adelay()
    worker = Worker(jobs, Calls(pool.app), burst=True, signals=False)
    assert (await ended(worker.run())).acked == 6
    assert max(most) == 2
    await app.aclose()


async def test_calls_whose_process_is_still_to_start_when_the_worker_stops_go_back_and_do_not_begin(
    app: App, jobs: AsyncQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, go_on, plain = threading.Event(), threading.Event(), processes.Hold.begin

    def begin(hold: processes.Hold) -> None:
        starting.set()
        assert go_on.wait(20)
        plain(hold)

    monkeypatch.setattr(processes.Hold, "begin", begin)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    calls = [await app.named("who").adelay() for _ in range(3)]
    worker = Worker(jobs, Calls(pool.app), signals=False)
    async with at_work(worker):
        await until(starting.is_set)
        worker.stop()
        await until(lambda: queue.stats().todos == 3)
        go_on.set()
    assert (worker.tally.acked, worker.tally.failed) == (0, 0)
    assert [queue.inspect(call.id).failures for call in calls] == [0, 0, 0]
    await app.aclose()


def crossed(error: BaseException) -> Any:
    """Give what a worker makes of what a function has raised."""
    said = processes._SAID.decode(processes._ENCODER.encode(processes.Said(raised=processes._raised(error))))
    assert said.raised is not None
    return processes._rebuilt(said.raised)


class Last(ExceptionGroup[Exception]):
    """A class that has no others below it."""

    def __init_subclass__(cls) -> None:
        raise TypeError("none below")


def test_an_error_of_a_class_that_the_worker_does_not_have_is_of_the_class_from_which_that_one_comes() -> None:
    near = type("Near", (KeyError,), {"__module__": "not.imported.here"})
    found = crossed(type("Far", (near,), {"__module__": "not.imported.here"})("x"))
    assert isinstance(found, KeyError)
    assert (type(found).__name__, str(found)) == ("Far", "'x'")


def test_what_a_call_tells_after_its_end_is_not_told_of_the_next_one() -> None:
    said = list[processes.Said]()
    payload = json.dumps({"v": 1, "f": "keeps", "a": []}).encode()
    place = pool.keeps.definition.place
    assert processes._run(processes.Job(place, msgspec.Raw(payload), b"a", 1, 1), said.append).raised is None
    pool.kept.pop().progress(2)
    assert [one.note for one in said] == [(1, None, "")]


def test_a_group_crosses_with_a_message_that_is_no_text_and_of_a_class_that_refuses_others() -> None:
    for kind, of in ((ExceptionGroup, ExceptionGroup), (Last, ExceptionGroup)):
        found = crossed(kind(os.fsdecode(b"no \xff"), [ValueError("one"), ExceptionGroup("more", [KeyError("two")])]))
        assert isinstance(found, of)
        assert (type(found).__name__, found.message) == (kind.__name__, "no \\udcff")
        first, more = found.exceptions
        assert (str(first), str(more.exceptions[0])) == ("one", "'two'")


def test_a_worker_may_start_in_a_pool_process_once_the_module_of_the_function_is_there() -> None:
    for module in ("tests.rig.pool", "tests.rig.nothing_of_this_name"):
        with suppress(ModuleNotFoundError):
            processes._import(module)
        assert forks.importing == "", module


def wrong() -> None: ...


async def coroutine() -> None: ...


def stateful(ctx: Context[int]) -> None: ...


def test_what_another_process_cannot_find_or_run_is_refused() -> None:
    app = App("refused")

    def local() -> None: ...

    refusals: dict[Any, str] = {
        local: "finds only what stands at the top of a module",
        lambda: None: "finds only what stands at the top of a module",
        coroutine: "it is an async def, which a worker can cancel",
        stateful: r"annotate 'ctx' as Context\[None\]",
        wrong: r"importing tests\.functions\.test_processes, where it is written, does not make it a task",
        pool.raises_several: r"importing tests\.rig\.pool, where it is written, does not make it a task",
    }
    for number, (function, why) in enumerate(refusals.items()):
        with pytest.raises(BadFunction, match=why):
            app.task(executor="process", name=f"f{number}")(function)
    with pytest.raises(InvalidInput, match='must be "thread" or "process"'):
        app.task(executor="fiber")(wrong)  # type: ignore[call-overload]  # what users write
    with pytest.raises(InvalidInput, match=r"it cannot ask ctx\.batch"):
        pool.app.batch([], then=pool.speaks.call("x"))


@pytest.mark.parametrize(("words", "is_found"), [(("-c",), False), (("-m", "only"), True), (("only.py",), True)])
def test_a_function_of_the_main_module_is_found_if_another_process_can_import_it(
    tmp_path: Path, words: tuple[str, ...], is_found: bool
) -> None:
    code = (
        "from timeoutq.functions import App\napp = App('a')\n"
        "@app.task(executor='process')\ndef f() -> None: ...\nprint(f.definition.place[0])\n"
    )
    (tmp_path / "only.py").write_text(code)
    words = (*words, code) if words == ("-c",) else words
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == ("only\n" if is_found else "")
    assert is_found or "it stands in no module that another process could import" in done.stderr


def test_a_function_may_be_decorated_by_the_package_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "jobs.py").write_text("def f() -> None: ...\n")
    (tmp_path / "inside" / "__init__.py").write_text(
        "from timeoutq.functions import App\nfrom inside import jobs\napp = App('a')\n"
        "def install() -> None:\n    app.task(executor='process')(jobs.f)\ninstall()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert import_module("inside").app.functions["f"].definition.place == ("inside.jobs", "a", "f")


def test_a_function_is_not_decorated_by_a_module_whose_name_only_begins_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alike_jobs.py").write_text("def f() -> None: ...\n")
    (tmp_path / "alike.py").write_text(
        "from timeoutq.functions import App\nimport alike_jobs\nApp('a').task(executor='process')(alike_jobs.f)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadFunction, match=r"importing alike_jobs, where it is written, does not make it a task"):
        import_module("alike")


def test_a_script_whose_import_starts_a_worker_is_told_to_guard_it(app: App, url: str, tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text(
        "import asyncio\nfrom timeoutq.functions import App\n"
        f"app = App({app.name!r})\n"
        "@app.task(executor='process', retry=[])\ndef f() -> int: return 1\n"
        "asyncio.run(app.worker(burst=True).run())\n"
    )
    call = app.send("f")
    words, env = [sys.executable, "unguarded.py"], {**os.environ, "TIMEOUTQ_URL": url}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    error = failure(call)
    assert error.error == "InvalidInput"
    assert "importing unguarded starts a worker" in error.message
    assert 'under `if __name__ == "__main__":`' in error.message


def test_in_a_test_of_an_app_such_a_function_runs_in_this_process() -> None:
    with pool.app.test() as t:
        one = pool.who.delay()
        t.run(same_thread=True)
        assert one.wait() == (os.getpid(), os.getppid())


def test_threads_of_an_app_and_of_its_calls() -> None:
    assert [Calls(pool.app).most(100), Calls(pool.app, threads=3).most(100), Calls(pool.app).most(7)] == [20, 3, 7]
    with pytest.raises(InvalidInput, match="threads must be a whole number from 1 to 1,000"):
        App("a", threads=0)
