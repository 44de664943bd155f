"""Calls that a worker cannot run: it gives them back without blame, to workers that can, for an hour at most."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from tests.rig.calling import failure
from tests.rig.processes import Processes
from tests.rig.waiting import wait_until
from tests.worker.working import at_work, ended, until
from timeoutq import AsyncQueue, Queue, Task, Worker
from timeoutq.functions import App, Calls, running
from timeoutq.testing import fake_sharded_queue
from timeoutq.verbs import sending
from timeoutq.watch import divided
from timeoutq.words.model import State


async def test_a_call_that_nobody_can_run_is_offered_for_its_time_and_then_fails(
    queue: Queue, jobs: AsyncQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BACK_AFTER", (0.1, 0.2))
    monkeypatch.setattr(running, "BACK_FOR", 0.5)
    here, there = App(queue.name, url=url), App(queue.name, url=url)

    @there.task
    async def unknown(x: int) -> int:
        return x

    @there.task(name="moved")
    async def moved(x: int, y: int) -> int:
        return x + y

    @here.task(name="moved")
    async def moved_before(x: int) -> int:
        return x

    unknown_, moved_ = unknown.delay(1), moved.delay(1, 2)
    began = time.monotonic()
    async with asyncio.timeout(20):
        tally = await Worker(jobs, Calls(here), burst=True).run()
    assert time.monotonic() > began + 0.5
    assert tally.failed == 2 and tally.released >= 2 and not tally.lost
    assert failure(unknown_).error == "UnknownFunction"
    assert failure(moved_).error == "BadArguments"
    found = queue.inspect(unknown_.id)
    assert (found.state, found.failures, found.releases) == (State.FAILED, 1, 0)


async def given_back(queue: Queue, jobs: AsyncQueue, app: App, call: Any) -> None:
    worker = Worker(jobs, Calls(app), signals=False)
    running = asyncio.create_task(worker.run())
    await asyncio.to_thread(wait_until, lambda: queue.inspect(call.id).unrun_since is not None)
    worker.stop()
    await running


async def test_a_call_that_a_worker_cannot_run_is_offered_again_after_5_to_10_seconds(
    queue: Queue, jobs: AsyncQueue, url: str
) -> None:
    here, there = App(queue.name, url=url), App(queue.name, url=url)

    @there.task
    async def unknown(x: int) -> None: ...

    # another worker has the function: the call waits for it as long as for any
    for told in queue.operations.publish("w9", {"unknown": ("0123abcd", "{}")}):
        queue.run(sending.answer(queue.talk, told))
    call = unknown.delay(1)
    await given_back(queue, jobs, here, call)
    found = queue.inspect(call.id)
    assert 4.99 < (found.due or 0) - (found.unrun_since or 0) < 10.01
    there.close()


async def test_why_and_inspect_name_the_argument_that_does_not_fit_or_the_secret_that_workers_lack(
    queue: Queue, jobs: AsyncQueue, url: str
) -> None:
    here, there = (App(queue.name, url=url, secret=letter * 16) for letter in "ab")
    plain = App(queue.name, url=url, secret="a" * 16)

    @here.task(name="moved")
    async def moved_before(x: int) -> None: ...

    @there.task(name="moved")
    async def moved(x: int) -> None: ...

    @plain.task(name="moved")
    async def moved_on(x: int, y: int) -> None: ...

    other, newer = moved.delay(1), moved_on.delay(1, 2)
    for call, wrong in [(newer, "moved() has no parameter 'y'; it takes x"), (other, "is not among those of this app")]:
        await given_back(queue, jobs, here, call)
        assert wrong in queue.why(call.id).message
        assert wrong in (queue.inspect(call.id).error or "")
    there.close()
    plain.close()


def test_why_names_the_function_and_who_has_it(queue: Queue, run: Processes, url: str, raw: redis.Redis) -> None:
    queue.put(Task("a", {"v": 1, "f": "bill", "a": [], "k": {"number": 1}}))
    assert queue.why("a").code == "no_worker"
    old = run.start("worker", "--app", "tests.rig.shop:app", "--no-supervise", SHOP="old", SHOP_QUEUE=queue.name)
    wait_until(lambda: queue.inspect("a").unrun_since is not None, 30)
    reason = queue.why("a")
    assert reason.code == "no_function"
    assert "cannot run its function 'bill'" in reason.message
    assert reason.message.endswith("; no worker that is alive has it")
    # the worker has told of its functions, and of itself
    wait_until(lambda: raw.exists(queue.operations.key("functions")) and queue.workers(), 30)
    queue.pause()
    queue.put(
        Task("b", {"v": 1, "f": "never", "k": {}}), Task("c", {"v": 1, "f": "greet", "k": {}}), Task("d", {"f": 1})
    )
    assert queue.why("b").code == "paused"
    old.kill()
    old.wait()
    queue.resume()
    assert queue.why("b").message.startswith("no worker that is alive has its function 'never'")
    assert [queue.why(task).code for task in ("c", "d")] == ["queued", "queued"]
    shop = App(queue.name, url=url)

    @shop.task(name="bill")
    async def other(number: int, more: int = 0) -> None: ...

    version, schema = shop.functions["bill"].version
    for call in queue.operations.publish("w9", {"bill": (version, schema)}):
        queue.run(sending.answer(queue.talk, call))
    assert queue.why("a").message.endswith(f"; worker w9 has version {version}")


async def test_the_hour_of_a_call_that_nobody_can_run_begins_anew_when_somebody_has_run_it(
    queue: Queue, jobs: AsyncQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BACK_AFTER", (0.1, 0.2))
    monkeypatch.setattr(running, "BACK_FOR", 1.0)
    here, there = App(queue.name, url=url), App(queue.name, url=url)

    @there.task(retry=[0.2, 0.2])
    async def fails() -> None:
        raise ValueError("no")

    call = fails.delay()
    await given_back(queue, jobs, here, call)
    before = queue.inspect(call.id).unrun_since
    await until(lambda: time.time() > (before or 0) + 1.1)
    await ended(Worker(jobs, Calls(there), signals=False, max_tasks=1).run())
    assert queue.inspect(call.id).failures == 1
    async with at_work(Worker(jobs, Calls(here), signals=False)):
        await until(lambda: queue.inspect(call.id).unrun_since not in (None, before) or queue.stats().failed)
    assert queue.stats().failed == 0
    there.close()


@pytest.mark.breaking
def test_a_deploy_that_rolls_loses_no_call(queue: Queue, run: Processes, url: str) -> None:
    shop = App(queue.name, url=url)

    @shop.task(keep_result=60)
    async def greet(name: str) -> str: ...  # type: ignore[empty-body]  # the worker runs another

    @shop.task(keep_result=60)
    async def bill(number: int) -> int: ...  # type: ignore[empty-body]  # the worker runs another

    @shop.task(keep_result=60)
    async def moved(number: int, *, to: str) -> str: ...  # type: ignore[empty-body]  # the worker runs another

    words = ("worker", queue.name, "tests.rig.shop:calls", "--no-supervise")
    old = run.start(*words, SHOP="old", SHOP_QUEUE=queue.name)
    calls: list[Any] = [one for i in range(100) for one in (greet.delay("a"), bill.delay(i), moved.delay(i, to="b"))]
    wait_until(lambda: queue.stats().counters.get("acked") == 100 and queue.stats().in_progress == 0, 30)
    assert (queue.stats().scheduled, queue.stats().failed) == (200, 0)
    new = run.start(*words, SHOP_QUEUE=queue.name)
    wait_until(lambda: "starts on queue" in run.log(new), 30)
    old.terminate()
    began = time.monotonic()
    values = [call.wait(30) for call in calls]
    assert time.monotonic() < began + 15, run.log(old)
    assert values == [one for i in range(100) for one in ("hello a", i, f"{i}b")]
    assert queue.stats().failed == 0


def test_doctor_says_of_all_shards_in_one_line_which_functions_no_worker_has() -> None:
    with fake_sharded_queue() as queue:
        queue.put(Task(f"a{i}", {"v": 1, "f": f"f{i % 2}", "k": {}}) for i in range(20))
        (found,) = [one for one in divided.examine(queue) if one.check == "functions"]
        assert (found.verdict, found.found.count("(as of call a")) == ("yellow", 2)
