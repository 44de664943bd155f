"""Calls that a worker cannot run: it gives them back without blame, to workers that can, for an hour at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.rig.calling import failure
from tests.rig.processes import Processes, processes
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, Task, Worker, sending
from timeoutq.functions import App, Calls, running
from timeoutq.model import Answer, Lease, State


@pytest.fixture
async def jobs(url: str, queue: Queue) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(queue.name, url, timeout=2) as opened:
        yield opened


@pytest.fixture
def run(url: str, tmp_path: Any) -> Iterator[Processes]:
    with processes(url, tmp_path) as started:
        yield started


def back(queue: Queue, leases: list[Lease], within: float) -> list[Answer]:
    """Give leases back as a worker does that cannot run their tasks."""
    calls = queue.operations.release(leases, 0, within_ms=round(within * 1000))
    return [answer for call in calls for answer in queue.run(sending.answer(queue.talk, call))]


def test_a_task_goes_back_until_its_time_is_over_and_is_held_then(queue: Queue) -> None:
    queue.put("a", "b")
    began = time.time()
    while True:
        leases = queue.claim(2)
        answers = back(queue, leases, 0.4)
        if answers != [Answer.OK, Answer.OK]:
            break
        assert time.time() < began + 5
    assert time.time() >= began + 0.399, "the server counts whole ms"
    assert answers == [Answer.OVERDUE, Answer.OVERDUE]
    assert queue.stats().in_progress == 2
    assert queue.ack(leases).ok == 2
    queue.put("a", again=True)
    assert back(queue, queue.claim(1), 0.4) == [Answer.OK], "its time begins anew when it runs anew"


def test_the_time_counts_from_the_first_release_after_the_last_failure(queue: Queue) -> None:
    queue.put("a")
    assert back(queue, queue.claim(1), 60) == [Answer.OK]
    first = queue.inspect("a").unrun_since
    assert first is not None
    queue.release(queue.claim(1))
    assert back(queue, queue.claim(1), 60) == [Answer.OK]
    found = queue.inspect("a")
    assert (found.unrun_since, found.releases, found.failures) == (first, 0, 0)
    queue.fail(queue.claim(1), "no", retry_in=0)
    wait_until(lambda: queue.promote_due() or queue.stats().todos == 1)
    assert back(queue, queue.claim(1), 60) == [Answer.OK]
    assert (queue.inspect("a").unrun_since or 0) > first


def test_releases_of_the_handler_count_on_beside_it(queue: Queue) -> None:
    queue.put("a")

    def counted(lease: Lease) -> str:
        (call,) = queue.operations.release([lease], most=3)
        return str(queue.run(sending.answer(queue.talk, call))[0])

    assert counted(queue.claim(1)[0]) == "ok"
    assert back(queue, queue.claim(1), 60) == [Answer.OK]
    since = queue.inspect("a").unrun_since
    assert counted(queue.claim(1)[0]) == "ok"
    assert (queue.inspect("a").releases, queue.inspect("a").unrun_since) == (2, since)
    queue.promote_due()
    wait_until(lambda: queue.promote_due() or queue.stats().todos == 1)
    assert counted(queue.claim(1)[0]) == "failed"


async def test_a_call_that_nobody_can_run_is_offered_for_its_time_and_then_fails(
    queue: Queue, jobs: AsyncQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BACK_AFTER", (1, 2))
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
    assert tally.failed == 2 and tally.released >= 4 and not tally.lost
    assert failure(unknown_).error == "UnknownFunction"
    assert failure(moved_).error == "BadArguments"
    found = queue.inspect(unknown_.id)
    assert (found.state, found.failures, found.releases) == (State.FAILED, 1, 0)


def test_why_names_the_function_and_who_has_it(queue: Queue, run: Processes, url: str) -> None:
    queue.put(Task("a", {"v": 1, "f": "bill", "a": [], "k": {"number": 1}}))
    assert queue.why("a").code == "no_worker"
    old = run.start("worker", "--app", "tests.rig.shop:app", "--no-supervise", SHOP="old", SHOP_QUEUE=queue.name)
    wait_until(lambda: queue.inspect("a").unrun_since is not None, 30)
    reason = queue.why("a")
    assert reason.code == "no_function"
    assert "cannot run its function 'bill'" in reason.message
    assert reason.message.endswith("; no worker that is alive has it")
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
    began = time.monotonic()
    values = [call.wait(30) for call in calls]
    assert time.monotonic() < began + 15, run.log(old)
    assert values == [one for i in range(100) for one in ("hello a", i, f"{i}b")]
    assert queue.stats().failed == 0
