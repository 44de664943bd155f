"""Workers run calls on real servers: `async def` and `def`, with the context, results and failures, retries."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.rig.calling import failure
from tests.rig.waiting import until
from timeoutq import AsyncQueue, GiveUp, InvalidInput, Lease, Queue, Retry, Worker
from timeoutq.functions import App, Calls, Context, context
from timeoutq.worker.leases import Leases


async def burst(jobs: AsyncQueue, app: App, **settings: Any) -> Any:
    async with asyncio.timeout(30):
        return await Worker(jobs, Calls(app), burst=True, **settings).run()


async def test_functions_of_both_kinds_run_and_their_results_are_kept(app: App, jobs: AsyncQueue) -> None:
    threads: set[threading.Thread] = set()

    @app.task
    async def add(a: int, b: int = 1) -> int:
        await asyncio.sleep(0)
        return a + b

    @app.task
    def joined(*words: str, end: str = "") -> str:
        threads.add(threading.current_thread())
        return "-".join(words) + end

    calls: list[Any] = [
        *(add.delay(i, b=2) for i in range(20)),
        *(joined.delay("a", str(i), end="!") for i in range(20)),
    ]
    tally = await burst(jobs, app)
    assert tally.acked == 40
    assert [call.wait(10) for call in calls] == [*(i + 2 for i in range(20)), *(f"a-{i}!" for i in range(20))]
    assert threading.main_thread() not in threads


async def test_a_call_leaves_nothing_but_its_result_and_none_leaves_nothing(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    @app.task
    async def nothing() -> None: ...

    @app.task(keep_result=60)
    async def asked() -> None: ...

    @app.task(keep_result=0)
    async def unkept() -> int:
        return 3

    first, second, third = nothing.delay(), asked.delay(), unkept.delay()
    await burst(jobs, app)
    assert queue.stats().known == 0
    ends = queue.results.look(first.id, second.id, third.id)
    assert [ends[call.id].result for call in (first, second, third)] == [None, b"null", None]


async def test_the_context_says_who_runs_and_the_state_is_that_of_the_process(app: App, jobs: AsyncQueue) -> None:
    @app.task(retry=[0])
    async def look(ctx: Context[None], word: str) -> list[Any]:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return [ctx.function, ctx.task, ctx.attempt, ctx.fence > 0, ctx.state, word]

    @app.task(name="seen.in.thread")
    def seen(ctx: Context[None]) -> list[Any]:
        return [ctx.function, ctx.task, ctx.attempt]

    first, second = look.options(id="mine").delay("hello"), seen.delay()
    await burst(jobs, app)
    assert first.wait(10) == ["look", "mine", 2, True, None, "hello"]
    assert second.wait(10) == ["seen.in.thread", second.id, 1]


@pytest.mark.parametrize("why", ["cancelled", "over its time"])
async def test_a_def_sees_that_its_call_is_to_stop(app: App, jobs: AsyncQueue, why: str) -> None:
    begun, seen = threading.Event(), threading.Event()

    @app.task(retry=[], max_runtime=0.2 if why == "over its time" else None)
    def looks(ctx: Context[None]) -> None:
        begun.set()
        for _ in range(2000):
            if ctx.cancelled:
                seen.set()
                return
            time.sleep(0.01)

    result = looks.delay()
    running = asyncio.create_task(burst(jobs, app))
    await until(begun.is_set)
    if why == "cancelled":
        result.cancel()
    await until(seen.is_set)
    await running


async def test_a_note_of_the_last_moment_leaves_nothing_behind_the_end_of_its_call(
    app: App, jobs: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PAUSE", 60.0)

    @app.task
    async def quick(ctx: Context[None]) -> int:
        ctx.progress(1, 1, "at the end")
        return 5

    result = quick.delay()
    await burst(jobs, app)
    assert result.wait(10) == 5
    left = [task for task in asyncio.all_tasks() if "Notes." in repr(task)]
    assert left == [], "a note that comes after the end of its call is not sent"


def test_a_result_is_kept_to_the_last_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    own, done, kept = App("own"), Leases.done, list[int]()

    @own.task(keep_result=1.001)  # 1000.9999999999999 ms
    async def one() -> int:
        return 1

    def ended(self: Leases, key: int, lease: Lease, came: Any) -> None:
        kept.append(came.kept.ms)
        done(self, key, lease, came)

    monkeypatch.setattr(Leases, "done", ended)
    with own.test() as t:
        one.delay()
        t.run()
    assert kept == [1001], "as that of an Ack"


async def test_a_function_that_ends_all_the_same_when_its_call_is_cancelled_has_its_result_kept(
    app: App, jobs: AsyncQueue
) -> None:
    begun = asyncio.Event()

    @app.task(retry=[])
    async def tidies() -> int:
        try:
            begun.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 5
        return 6

    call = tidies.delay()
    working = asyncio.create_task(burst(jobs, app))
    await begun.wait()
    await jobs.cancel(call.id, "ann")
    tally = await working
    assert (tally.acked, tally.failed, await call) == (1, 0, 5)
    await app.aclose()


async def test_a_failure_is_kept_as_text_without_local_variables(app: App, jobs: AsyncQueue, queue: Queue) -> None:
    @app.task(retry=[])
    def broken(password: str) -> int:
        raise LookupError(f"no account of {len(password)} signs")

    @app.task(retry=[], keep_result=0)
    async def unwatched() -> int:
        raise LookupError

    call, other = broken.delay("swordfish"), unwatched.delay()
    await burst(jobs, app)
    failed = failure(call)
    assert (failed.error, failed.message) == ("LookupError", "no account of 9 signs")
    assert "broken\n    raise LookupError" in (failed.traceback or "")
    assert "swordfish" not in (failed.traceback or "")
    assert "functions/running.py" not in (failed.traceback or "").replace("tests/functions", "")
    assert queue.results.look(other.id)[other.id].result is None
    assert queue.inspect(call.id).error == "LookupError: no account of 9 signs"


async def test_each_function_has_its_own_retries_and_a_caller_may_choose_others(
    app: App, jobs: AsyncQueue, queue: Queue
) -> None:
    runs: list[str] = []

    @app.task(retry=[0, 0])
    async def thrice() -> None:
        runs.append("thrice")
        raise ValueError("no")

    @app.task(retry=[0] * 9)
    def once() -> None:
        runs.append("once")
        raise GiveUp("never")

    @app.task
    async def usual() -> None:
        runs.append("usual")
        raise Retry(after=0)

    for one in (thrice, once, usual):
        one.delay()
    thrice.options(id="chosen", retry=[0, 0, 0, 0]).delay()
    await burst(jobs, app, retry=[0])
    assert sorted(runs) == ["once"] + ["thrice"] * (3 + 5) + ["usual"] * 2
    assert queue.stats().failed == 4


async def test_what_is_no_call_fails_at_once(app: App, jobs: AsyncQueue, queue: Queue) -> None:
    queue.put({"text": "hello", "list": [1], "json": {"v": 0, "f": "x"}, "bytes": b"\0x"})
    queue.put("nothing")
    await burst(jobs, app)
    failed = {entry.task: entry.error or "" for entry in queue.list("failed").entries}
    assert failed.keys() == {"text", "list", "json", "bytes", "nothing"}
    assert all(error.startswith("NotACall: ") for error in failed.values())
    ended = queue.results.look("text")["text"]
    assert json.loads(ended.result or b"")["error"] == "NotACall"


async def test_a_result_that_does_not_fit_its_annotation_is_a_failure(app: App, jobs: AsyncQueue) -> None:
    @app.task(retry=[])
    async def wrong() -> int:
        return "three"  # type: ignore[return-value]  # that is the point

    @app.task(retry=[])
    def unwritable() -> Any:
        return {1, object()}

    first, second = wrong.delay(), unwritable.delay()
    await burst(jobs, app)
    assert failure(first).error == failure(second).error == "BadResult"
    assert (await jobs.stats()).failed == 2, "the worker has noticed it, not only who waits"


async def test_a_call_whose_result_is_too_large_or_cannot_be_passed_on_has_run_once(app: App, jobs: AsyncQueue) -> None:
    charged: list[str] = []

    @app.task(retry=[0, 0, 0, 0])
    async def charge(card: str) -> Any:
        charged.append(card)
        return "x" * 320_000 if card == "large" else 5

    @app.task
    async def tell(receipt: str) -> str:
        return receipt

    large, unfit = charge.delay("large"), charge.call("unfit").then(tell).delay()
    await burst(jobs, app)
    assert sorted(charged) == ["large", "unfit"]
    assert failure(large).message.startswith("it returned 320,002 bytes of JSON; the limit is 262,144")
    assert failure(unfit).message.startswith("what follows this call cannot be called: tell() cannot take")


async def test_signed_calls_run_and_others_fail(queue: Queue, jobs: AsyncQueue, url: str) -> None:
    made = [App(queue.name, url=url, secret=secret) for secret in (None, "0123456789abcdef")]
    for one in made:

        @one.task
        async def double(x: int) -> int:
            return 2 * x

    unsigned, signed = made[0].functions["double"].delay(1), made[1].functions["double"].delay(2)
    await burst(jobs, made[1])
    assert signed.wait(10) == 4
    assert failure(unsigned).error == "Forged"


async def test_a_key_that_cannot_block_for_a_time_is_refused_where_it_is_put_and_harms_no_other_call(
    app: App, jobs: AsyncQueue, queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.configure(keep_done="compact")
    old = App(queue.name, url=url)

    @old.task(name="page", key="page:{x}")
    async def page_before(x: int) -> int:
        raise NotImplementedError

    @app.task(key="page:{x}", unique=timedelta(hours=1))
    async def page(x: int) -> int:
        return x

    @app.task(retry=[])
    async def charge(x: int) -> int:
        return x

    refused = pytest.raises(InvalidInput, match=r'unique=.*keep_done="compact".*: use unique="active"')
    with refused:
        app.put([*(charge.call(i) for i in range(600)), page.call(1)])
    with refused:
        charge.options(id="c1", unique=timedelta(hours=1)).delay(1)
    with refused:
        app.batch([charge.call(1), page.call(1)])
    assert queue.stats().known == 0, "nothing was put"
    calls = [*(charge.delay(i) for i in range(20)), *(page_before.delay(i) for i in range(3))]
    await burst(jobs, app)
    assert [call.wait(10) for call in calls] == [*range(20), *range(3)]
    assert queue.stats().counters["acked"] == 23
    assert list(queue.states("page:0", "page:1", "page:2")) == ["done"] * 3
    told = [line.getMessage() for line in caplog.records if "blocks its id for ever" in line.getMessage()]
    assert len(told) == 1
    old.close()
