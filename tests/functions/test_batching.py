"""Batches of calls, through workers on real servers: the callback runs once, and reads what the calls have returned."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta
from typing import Any

import pytest
import redis

from timeoutq import AsyncQueue, InvalidInput, Queue, Retry, Worker
from timeoutq.client.shards import open_queue
from timeoutq.functions import App, BatchIncomplete, CallFailed, CallGone, Calls, Context
from timeoutq.server.calls import BATCH_KEPT


async def burst(url: str, app: App) -> None:
    """Run calls until there are none, and then those that a callback has become due for."""
    async with AsyncQueue(app.name, url, timeout=2) as jobs, asyncio.timeout(30):
        for _ in range(3):
            await Worker(jobs, Calls(app), burst=True).run()
            await jobs.promote_due()


def test_the_callback_runs_once_and_reads_all_results_in_their_order(url: str, app: App) -> None:
    runs: list[str] = []

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(keep_result=60)
    async def add(ctx: Context[None], start: int) -> int:
        assert ctx.batch is not None
        runs.append(ctx.batch.name)
        info = await ctx.batch.ainfo()
        assert (info.state, info.done) == ("ended", 700)
        found = await ctx.batch.aresults(int)
        assert found == [2 * n for n in range(700)]
        assert await ctx.batch.afailures() == []
        return start + sum(found)

    batch = app.batch([double.call(n) for n in range(700)], then=add.call(5), name="doubles")
    asyncio.run(burst(url, app))
    assert batch.then.wait(timeout=10) == 5 + sum(2 * n for n in range(700))
    assert [result.wait(timeout=1) for result in batch.calls[:3]] == [0, 2, 4]
    assert runs == ["doubles"]


def test_a_def_reads_results_too_and_failures_say_why(url: str, app: App) -> None:
    @app.task(retry=[])
    async def half(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // 2

    @app.task
    def tell(ctx: Context[None]) -> list[str]:
        assert ctx.batch is not None
        assert ctx.batch.info().failed == 2
        with pytest.raises(
            BatchIncomplete, match=r"of the 4 calls of batch .*, 2 have failed; the first: call .* ValueError: 1 is odd"
        ) as caught:
            ctx.batch.results(int)
        again = pickle.loads(pickle.dumps(caught.value))  # our own
        assert (again.failed, again.lost, again.error, again.message) == (2, 0, "ValueError", "1 is odd")
        return [*map(str, ctx.batch.results(int, partial=True)), *(one.message for one in ctx.batch.failures())]

    batch = app.batch([half.call(n) for n in range(4)], then=tell.call())
    asyncio.run(burst(url, app))
    assert batch.then.wait(timeout=10) == ["0", "1", "1 is odd", "3 is odd"]


def test_a_result_for_which_the_server_had_no_memory_is_not_there(
    url: str, app: App, queue: Queue, raw: redis.Redis
) -> None:
    @app.task
    async def double(n: int) -> int | None:
        return 2 * n

    @app.task
    async def tell(ctx: Context[None]) -> list[list[int | None]]:
        assert ctx.batch is not None
        raw.set(queue.operations.key(f"result:{batch.calls[0].id}"), "")
        kinds: list[Any] = [int, int | None]
        for kind in kinds:
            with pytest.raises(BatchIncomplete, match="1 are done, but their results are not kept"):
                await ctx.batch.aresults(kind)
        return [await ctx.batch.aresults(int, partial=True)]

    batch = app.batch([double.call(n) for n in (1, 2)], then=tell.call())
    asyncio.run(burst(url, app))
    assert batch.then.wait(timeout=10) == [[4]]


def test_a_result_that_is_not_there_is_not_left_out_in_silence(url: str, app: App) -> None:
    @app.task
    async def maybe(n: int) -> int | None:
        return n or None

    @app.task
    async def tell(ctx: Context[None]) -> list[Any]:
        assert ctx.batch is not None
        with pytest.raises(
            BatchIncomplete, match=r"of the 3 calls of batch .*, 1 are done, but their results are not kept"
        ):
            await ctx.batch.aresults(int)
        return [await ctx.batch.aresults(int, partial=True), await ctx.batch.aresults()]

    batch = app.batch([maybe.call(n) for n in range(3)], then=tell.call())
    asyncio.run(burst(url, app))
    assert batch.then.wait(timeout=10) == [[1, 2], [None, 1, 2]]


def test_when_failed_calls_were_retried_the_callback_reads_what_they_have_returned_since(
    url: str, app: App, queue: Queue
) -> None:
    known = {"a": 1}

    @app.task(retry=[])
    async def price(item: str) -> int:
        return known[item]

    @app.task(keep_result=60, retry=[])
    async def total(ctx: Context[None]) -> int:
        assert ctx.batch is not None
        assert await ctx.batch.afailures() == []
        return sum(await ctx.batch.aresults(int))

    batch = app.batch([price.call("a"), price.call("b")], then=total.call(), on="done", name="prices")
    asyncio.run(burst(url, app))
    with pytest.raises(CallFailed, match="1 of the 2 tasks of batch prices are not done"):
        batch.then.wait(timeout=10)
    known["b"] = 2
    queue.retry_failed(batch.calls[1].id)
    asyncio.run(burst(url, app))
    queue.retry_failed(batch.then.id)
    asyncio.run(burst(url, app))
    assert batch.then.wait(timeout=10) == 3


def test_a_call_that_is_retried_hours_later_leaves_its_batch_the_results_of_the_others() -> None:
    app, runs, keep = App("slow"), list[int](), 3 * BATCH_KEPT

    @app.task(retry=[keep - 60], keep_result=60)
    def price(item: int) -> int:
        runs.append(item)
        if item == 3 and runs.count(3) == 1:
            raise OSError("the shop is closed")
        return item

    @app.task
    def total(ctx: Context[None]) -> int:
        assert ctx.batch is not None
        return sum(ctx.batch.results(int))

    with app.test() as test:
        batch = app.batch([price.call(item) for item in (1, 2, 3)], then=total.call(), keep=keep)
        alone = price.delay(4)
        test.run()
        assert (batch.then.wait(), sorted(runs)) == (6, [1, 2, 3, 3, 4])
        with pytest.raises(CallGone):
            alone.wait()


def test_a_batch_without_calls_or_without_a_callback_ends(url: str, app: App, queue: Queue) -> None:
    @app.task
    async def count(ctx: Context[None]) -> int:
        assert ctx.batch is not None
        return len(await ctx.batch.aresults())

    alone = app.batch([], then=count.call())
    batch = app.batch([count.options(id="x").call()], name="bare")
    assert batch.calls[0].id == "x"
    with pytest.raises(InvalidInput, match="batch 'bare' has no callback: pass then="):
        _ = batch.then
    queue.forget("x")
    asyncio.run(burst(url, app))
    assert alone.then.wait(timeout=10) == 0
    assert queue.batches.look("bare")["bare"].is_over


@pytest.mark.parametrize(("when", "keyed"), [("at once", False), ("after its end", True)])
def test_a_batch_that_is_put_again_under_its_name_is_the_same_batch(
    url: str, app: App, queue: Queue, when: str, keyed: bool
) -> None:
    runs: list[Any] = []

    @app.task(key="page:{n}" if keyed else None)
    async def page(n: int) -> int:
        runs.append(n)
        return n

    @app.task(keep_result=60)
    async def total(ctx: Context[None], start: int) -> int:
        runs.append("total")
        assert ctx.batch is not None
        return start + sum(await ctx.batch.aresults(int))

    def put() -> Any:
        return app.batch([page.call(n) for n in range(600)], then=total.call(1), name="pages")

    first = put()
    if when == "after its end":
        asyncio.run(burst(url, app))
    second = put()
    asyncio.run(burst(url, app))
    assert [call.id for call in second.calls] == [call.id for call in first.calls]
    assert first.then.wait(10) == second.then.wait(10) == 1 + sum(range(600))
    assert (len(runs), runs.count("total")) == (601, 1)
    assert {call.answer for call in first.calls} == {"added"}
    assert {call.answer for call in second.calls} == {None}
    with pytest.raises(InvalidInput, match="batch pages is sealed, and takes no more tasks"):
        app.batch([page.call(n) for n in range(601)], then=total.call(1), name="pages")
    with pytest.raises(InvalidInput, match="is sealed already, with another callback"):
        app.batch([page.call(n) for n in range(600)], then=total.call(2), name="pages")


def test_calls_with_one_key_count_by_place_in_the_results_of_their_batch(url: str, app: App) -> None:
    @app.task(key="price:{item}", retry=[])
    async def price(item: str) -> str:
        if item == "bad":
            raise ValueError("no price")
        return item.upper()

    @app.task(keep_result=60)
    async def told(ctx: Context[None]) -> list[Any]:
        assert ctx.batch is not None
        return [await ctx.batch.aresults(str, partial=True), [one.id for one in await ctx.batch.afailures()]]

    late = price.options(unique=timedelta(hours=1))
    calls = [price.call("a"), late.call("b"), price.call("a"), price.call("bad"), late.call("c"), price.call("bad")]
    batch = app.batch(calls, then=told.call())
    asyncio.run(burst(url, app))
    assert batch.then.wait(10) == [["A", "B", "A", "C"], ["price:bad", "price:bad"]]


def test_what_cannot_be_in_a_batch_is_refused_and_nothing_is_put(app: App, queue: Queue) -> None:
    @app.task
    async def one(n: int = 0) -> int:
        return n

    with pytest.raises(InvalidInput, match="is followed by others, and would count as ended when it returns itself"):
        app.batch([one.call(), one.call().then(one)])
    with pytest.raises(InvalidInput, match="leave out after="):
        app.batch([one.call()], then=one.options(after=5).call())
    with pytest.raises(InvalidInput, match="is no name of a batch"):
        app.batch([one.call()], name="a b")
    other = App(queue.name)
    with pytest.raises(InvalidInput, match="belongs to App"):
        other.batch([one.call()])
    with pytest.raises(InvalidInput, match=r"this takes send\.call\(…\), not 7"):
        app.batch([7])  # type: ignore[list-item]  # that is what is tested
    given: Any = one.call()
    for put in (app.put, app.batch):
        with pytest.raises(InvalidInput, match=r"this takes several calls, not <call of one\(\)>: write \[f.call"):
            put(given)
    given = one
    with pytest.raises(InvalidInput, match=r"this takes one.call\(…\), not"):
        app.put([given])
    with pytest.raises(InvalidInput, match=r"takes one.call\(…\), not <function one"):
        app.schedules.set("s", given, every=60)
    assert queue.stats().known == 0


def test_the_calls_of_a_batch_go_to_one_queue() -> None:
    app = App("two", queues=["a", "b"])

    @app.task(queue="a")
    async def one() -> int:
        return 1

    @app.task(queue="b")
    async def two() -> int:
        return 2

    with pytest.raises(InvalidInput, match="go to one queue, its callback too, and these go to a, b"):
        app.batch([one.call()], then=two.call())


def test_a_queue_over_shards_refuses_batches_of_calls(url: str, name: str) -> None:
    with open_queue(name, url, shards=3) as queue:
        queue.put("one")
        app = App(name, url=url)

        @app.task
        async def one() -> int:
            return 1

        with pytest.raises(InvalidInput, match="lies in several shards"):
            app.batch([one.call()])
        app.close()
        queue.purge()


def test_a_call_of_a_batch_that_has_failed_since_counts_as_failed() -> None:
    own, is_bad, seen = App("batches"), list[bool](), list[Any]()

    @own.task(key="add:{number}", retry=[])
    def add(number: int) -> int:
        if is_bad:
            raise ValueError("no more")
        return number

    @own.task(retry=[1])
    def total(ctx: Context[None]) -> None:
        assert ctx.batch is not None
        if ctx.attempt == 1:
            is_bad.append(True)
            add.delay(1)
            raise Retry(after=60)
        try:
            seen.append(ctx.batch.results())
        except BatchIncomplete as error:
            seen.append(error.failed)

    with own.test() as test:
        own.batch([add.call(1), add.call(2)], then=total.call())
        test.run()
    assert seen == [1]
