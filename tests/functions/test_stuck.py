"""One call that is stuck, or that waits where it must not, and what the others meet: nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rig import pool
from tests.rig.calling import failure
from tests.rig.processes import Processes
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, State, Worker
from timeoutq.functions import App, CallCancelled, CallFailed, Calls, threads
from timeoutq.watch.doctor import examine


@pytest.mark.parametrize("how", ["cancelled", "over its max_runtime"])
async def test_a_def_that_goes_on_though_it_was_stopped_stops_no_other_call(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    app, goes_on, begun = App(queue.name, url=url), threading.Event(), list[str]()

    @app.task(name="stuck", retry=[])
    def stuck() -> bool:
        begun.append("stuck")
        return goes_on.wait(30)

    @app.task(name="long")
    def long() -> str:
        begun.append("long")
        goes_on.wait(30)
        return "to its end"

    @app.task(name="short")
    def short() -> str:
        return "at once"

    hung = stuck.options(max_runtime=None if how == "cancelled" else 0.2).delay()
    innocent = long.delay()
    jobs = AsyncQueue(queue.name, url, timeout=5)
    worker = Worker(jobs, Calls(app), concurrency=2, signals=False)
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.to_thread(wait_until, lambda: len(begun) == 2)
        if how == "cancelled":
            hung.cancel("ann")
        with pytest.raises(CallCancelled if how == "cancelled" else CallFailed):
            await asyncio.to_thread(hung.wait, 10)
        await asyncio.to_thread(wait_until, lambda: "still runs in its thread" in caplog.text)
        assert await asyncio.to_thread(short.delay().wait, 5) == "at once", "the worker claims on"
        goes_on.set()
        assert await asyncio.to_thread(innocent.wait, 10) == "to its end"
    finally:
        goes_on.set()
        worker.stop()
        tally = await running
        await jobs.close()
        app.close()
    assert (tally.end, begun.count("long")) == ("stopped", 1)
    assert "another thread takes its place" in caplog.text


@pytest.mark.parametrize("is_closed", [False, True])
async def test_nobody_hears_of_a_def_that_outlives_its_worker(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.02)
    told, begun, goes_on = list[str](), threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        goes_on.wait(30)

    crew = threads.Threads("worker", 1, told.append)
    await crew.take()
    call = asyncio.create_task(crew.run("a", stuck))
    try:
        assert await asyncio.to_thread(begun.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if is_closed:
            crew.close()
        await asyncio.sleep(0.03)  # the loop looks after the thread before this ends, however late it is
        assert told == [] if is_closed else "still runs in its thread" in told[0]
    finally:
        goes_on.set()
        crew.close()


async def test_nobody_hears_of_a_def_that_ends_soon_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    told, goes_on = list[str](), threading.Event()
    crew = threads.Threads("worker", 1, told.append)
    await crew.take()
    call = asyncio.create_task(crew.run("a", lambda: goes_on.wait(30)))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    goes_on.set()
    await crew.run("b", lambda: None)  # in the same thread: the first one has ended
    await asyncio.sleep(0.1)
    crew.close()
    assert told == []


@pytest.mark.breaking
def test_a_process_in_which_a_def_hangs_is_replaced_at_once_and_its_other_calls_go_on(
    queue: Queue, run: Processes, app: App, tmp_path: Path
) -> None:
    for name in ("slow", "hangs_in_its_thread", "process"):
        app.task(name=name, keep_result=60, retry=[])(pool.app.functions[name].definition.function)
    worker = run.start(
        "worker", "--app", "tests.rig.pool:app", "--drain-deadline", "1s", "--timeout", "2s", SHOP_QUEUE=queue.name
    )
    put = app.functions
    first = put["process"].delay().wait(30)
    slow = put["slow"].delay(str(tmp_path / "begun"), str(tmp_path / "until"))
    wait_until((tmp_path / "begun").exists)
    hung = put["hangs_in_its_thread"].options(max_runtime=0.5).delay(3600)
    assert failure(hung, 30).message == "max_runtime of 0.5 s is over"
    wait_until(lambda: put["process"].delay().wait(30) != first, 30)
    assert slow.info().state is State.IN_PROGRESS
    assert "another process takes the place of this one" in run.log(worker)
    time.sleep(3)  # longer than the drain deadline and the lease
    (tmp_path / "until").touch()
    assert slow.wait(10) == first
    wait_until(lambda: f"worker process {first} ended: worn out" in run.log(worker))
    assert queue.stats().failed == 1
    assert run.log(worker).count("started") == 2
    worker.terminate()
    assert worker.wait(30) == 0, run.log(worker)


async def test_wait_is_refused_in_an_async_def_and_waits_in_a_def(app: App, jobs: AsyncQueue) -> None:
    @app.task(name="inner")
    def inner() -> int:
        return 2

    @app.task(name="blocks", retry=[])
    async def blocks() -> int:
        return inner.delay().wait(5)

    @app.task(name="in_a_thread", retry=[])
    def in_a_thread() -> int:
        return inner.delay().wait(10)

    refused, taken = await blocks.adelay(), await in_a_thread.adelay()
    async with asyncio.timeout(30):
        await Worker(jobs, Calls(app), burst=True, signals=False).run()
    with pytest.raises(CallFailed, match=r"in an async def, write `await result`"):
        await refused
    assert await taken == 2
    await app.aclose()


async def test_a_worker_whose_app_has_no_functions_says_so_and_names_each_function_once(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caller, bare = App(queue.name, url=url), App(queue.name, url=url)

    @caller.task(name="send")
    def send(n: int) -> None: ...

    calls: Any = [send.call(n) for n in range(3)]
    caller.put(calls)
    jobs = AsyncQueue(queue.name, url, timeout=5)
    worker = Worker(jobs, Calls(bare), signals=False)
    running = asyncio.create_task(worker.run())
    await asyncio.to_thread(wait_until, lambda: queue.stats().scheduled == 3)
    (found,) = [finding for finding in await asyncio.to_thread(examine, queue) if finding.check == "functions"]
    assert "no worker that is alive has their function: send (as of call send:" in found.found
    worker.stop()
    await running
    await jobs.close()
    caller.close()
    said = [line for line in caplog.messages if "has no function" in line]
    assert len(said) == 2
    assert "has no functions, so this worker gives every call back: name the module that holds them" in said[0]
    assert "has no function 'send' here" in said[1]
    assert "such calls are offered to other workers, for an hour" in said[1]


@pytest.mark.parametrize("middleware", [False, True])
def test_the_traceback_of_a_function_that_raises_has_no_frames_of_the_package(middleware: bool) -> None:
    app = App("shop")

    @app.task(retry=[])
    def plain() -> int:
        raise ValueError("no")

    @app.task(retry=[])
    async def slow() -> int:
        raise ValueError("no")

    async def around(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    if middleware:
        app.middleware(around)
    with app.test() as t:
        calls = [plain.delay(), slow.delay()]
        t.run()
        for call, name in zip(calls, ("plain", "slow"), strict=True):
            with pytest.raises(CallFailed) as failed:
                call.wait()
            frames = [line.rpartition(".")[2] for line in (failed.value.traceback or "").splitlines() if "File" in line]
            assert frames == (["around", name] if middleware else [name])
