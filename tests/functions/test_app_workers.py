"""Workers of apps: `app.worker`, `Worker(app)`, `timeoutq worker --app`; middleware, lifespan, max_runtime, chains."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.calling import failure
from tests.rig.processes import Processes
from timeoutq import AsyncQueue, Queue, Worker
from timeoutq.functions import App, BadFunction, CallNext, Calls, Context


async def burst(worker: Worker) -> Any:
    async with asyncio.timeout(30):
        return await worker.run()


@pytest.mark.parametrize("how", ["app.worker", "Worker(app)"])
async def test_a_worker_of_an_app_serves_its_queues_in_their_order(url: str, name: str, how: str) -> None:
    names = [f"{name}-high", f"{name}-low"]
    app, seen = App(name, queues=names, url=url), list[str]()

    @app.task(queue=names[1])
    async def low() -> None:
        seen.append("low")

    @app.task(queue=names[0])
    def high() -> None:
        seen.append("high")

    calls = [low.delay(), high.delay(), low.delay(), high.delay()]
    options: Any = {"burst": True, "concurrency": 1, "prefetch": 0}
    worker = app.worker(timeout=3, **options) if how == "app.worker" else Worker(app, **options)
    assert [queue.name for queue in worker.queues] == names
    tally = await burst(worker)
    assert (tally.acked, seen) == (len(calls), ["high"] * 2 + ["low"] * 2)
    for one in names:
        with Queue(one, url) as opened:
            opened.purge()


def test_the_command_runs_the_functions_of_an_app(queue: Queue, run: Processes, url: str) -> None:
    shop = App(queue.name, url=url)

    @shop.task(keep_result=60)
    async def greet(name: str) -> str: ...  # type: ignore[empty-body]  # the worker runs another

    calls = [greet.delay(str(number)) for number in range(50)]
    worker = run.start("worker", "--app", "tests.rig.shop:app", "--burst", "-p", "2", SHOP_QUEUE=queue.name)
    assert [call.wait(30) for call in calls] == [f"hello {number}" for number in range(50)]
    assert worker.wait(30) == 0, run.log(worker)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--app", "tests.rig.shop:calls"), "is no App of timeoutq.functions but Calls"),
        (("--app", "tests.rig.shop:app", "elsewhere"), "queue elsewhere is no queue of the app"),
        ((), "there is nothing to do"),
    ],
)
def test_the_command_says_what_is_wrong_with_an_app(run: Processes, words: tuple[str, ...], said: str) -> None:
    worker = run.start("worker", *words, COLUMNS="300")
    assert worker.wait(30) in (2, 1, 64), run.log(worker)
    assert said in run.log(worker)


def test_a_kill_of_the_process_that_asks_an_app_for_its_queues_is_no_wrong_usage(
    run: Processes, tmp_path: Path
) -> None:
    """The code 1 has systemd start the worker again, and the code 2 does not."""
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    worker = run.start(
        "worker", "--app", "killed:app", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]), COLUMNS="300"
    )
    assert worker.wait(30) == 1
    assert "the process that imported the app 'killed:app' was killed by signal 9" in run.log(worker)


async def test_middleware_is_around_each_call_the_first_outermost(app: App, jobs: AsyncQueue) -> None:
    seen: list[str] = []

    @app.middleware
    async def outer(ctx: Context[Any], call_next: Any) -> Any:
        seen.append(f"outer {ctx.function} {ctx.attempt}")
        try:
            return await call_next()
        except ValueError as error:
            seen.append(f"outer met {error}")
            raise

    @app.middleware
    async def inner(ctx: Context[Any], call_next: Any) -> Any:
        return 10 * await call_next()

    @app.task
    async def one() -> int:
        return 1

    @app.task
    def two(ctx: Context[None]) -> int:
        return 2

    @app.task(retry=[])
    async def broken() -> int:
        raise ValueError("no")

    first, second, third = one.delay(), two.delay(), broken.delay()
    await burst(Worker(jobs, Calls(app), burst=True, concurrency=1))
    assert [first.wait(10), second.wait(10)] == [10, 20]
    assert failure(third).error == "ValueError"
    assert sorted(seen) == ["outer broken 1", "outer met no", "outer one 1", "outer two 1"]


async def test_call_next_takes_the_context_too_and_hands_on_another_one(app: App, jobs: AsyncQueue) -> None:
    @app.middleware
    async def same(ctx: Context[Any], call_next: CallNext) -> Any:
        return await call_next(ctx)

    @app.middleware
    async def other(ctx: Context[Any], call_next: CallNext) -> Any:
        return await call_next(dataclasses.replace(ctx, state="theirs"))

    @app.middleware
    async def wrong(ctx: Context[Any], call_next: Any) -> Any:
        return await call_next(ctx.task if ctx.function == "broken" else None)

    @app.task
    async def state(ctx: Context[str]) -> str:
        return ctx.state

    @app.task(retry=[])
    async def broken() -> None: ...

    first, second = state.delay(), broken.options(keep_result=60).delay()
    await burst(Worker(jobs, Calls(app), burst=True, concurrency=1))
    assert first.wait(10) == "theirs"
    assert "a middleware calls call_next(), or call_next(ctx), not with 'broken:" in failure(second).message


def test_what_cannot_be_a_middleware_or_a_second_lifespan_is_refused(app: App) -> None:
    async def bare(ctx: Any) -> Any: ...
    async def life() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(BadFunction, match="a middleware"):
        app.middleware(bare)  # type: ignore[type-var]  # that is the point
    app.lifespan(life)
    with pytest.raises(BadFunction, match="has a lifespan already"):
        app.lifespan(life)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_lifespan_gives_the_state_once_in_each_process(app: App, jobs: AsyncQueue, wrapped: bool) -> None:
    seen: list[str] = []

    async def life() -> AsyncIterator[dict[str, int]]:
        seen.append("enters")
        yield {"number": 7}
        seen.append("leaves")

    app.lifespan(asynccontextmanager(life) if wrapped else life)

    @app.task
    async def number(ctx: Context[dict[str, int]]) -> int:
        seen.append("runs")
        return ctx.state["number"]

    calls = [number.delay(), number.delay()]
    await burst(Worker(jobs, Calls(app), burst=True))
    assert [call.wait(10) for call in calls] == [7, 7]
    assert seen == ["enters", "runs", "runs", "leaves"]


async def test_a_call_that_runs_too_long_is_cancelled_and_has_failed(app: App, jobs: AsyncQueue) -> None:
    seen: list[str] = []

    @app.task(max_runtime=0.3, retry=[])
    async def slow() -> int:
        try:
            return await asyncio.sleep(30, 1)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.task(retry=[])
    async def quick(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    calls = [slow.delay(), quick.options(max_runtime=0.2).delay(20), quick.options(max_runtime=5).delay(0.01)]
    began = time.monotonic()
    await burst(Worker(jobs, Calls(app), burst=True))
    assert time.monotonic() < began + 10
    assert [failure(call).message for call in calls[:2]] == [
        "max_runtime of 0.3 s is over", "max_runtime of 0.2 s is over",
    ]  # fmt: skip
    assert calls[2].wait(10) == 0.01
    assert seen == ["cancelled"]


async def test_nothing_follows_a_call_that_failed_or_whose_result_does_not_fit(app: App, jobs: AsyncQueue) -> None:
    ran: list[Any] = []

    @app.task(retry=[])
    async def broken() -> int:
        raise ValueError("no")

    @app.task(retry=[0, 0])
    async def word() -> Any:
        ran.append("word")
        return "three"

    @app.task
    async def follows(number: int) -> int:
        ran.append(number)
        return number

    first, second = broken.call().then(follows), word.call().then(follows)
    ids = [one.delay() for one in (first, second)]
    tally = await burst(Worker(jobs, Calls(app), burst=True))
    assert (tally.failed, tally.acked, ran) == (2, 0, ["word"])
    assert len(ids) == 2
