"""Each row of the page from-functions about Celery and huey, as it is here: `app.test()` runs the calls."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from timeoutq import GiveUp, Retry
from timeoutq.cli.about import pages
from timeoutq.functions import App, CallExpired, CallFailed, Context, Limit

ROWS: dict[str, Callable[[App], None]] = {}


def row(names: str) -> Callable[[Callable[[App], None]], None]:
    return lambda check: ROWS.update({names: check})


def test_each_row_of_the_page_is_checked_here() -> None:
    table = pages()["from-functions"].partition("| Celery | huey |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table] == list(ROWS)


def double(app: App) -> Any:
    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    return double


@row("`f.delay(1)`")
def _delay(app: App) -> None:
    f = double(app)
    assert f(1) == 2
    with app.test() as t:
        result = f.delay(1)
        assert result.info().state == "todos"
        t.run()
        assert result.wait() == 2


@row("`apply_async(countdown=, eta=, task_id=)`")
def _later(app: App) -> None:
    f = double(app)
    with app.test(start=1_800_000_000) as t:
        first = f.options(after=60, id="mine").delay(1)
        second = f.options(at=datetime.fromtimestamp(1_800_000_060, UTC)).delay(1)
        assert (first.id, first.info().due, second.info().due) == ("mine", 1_800_000_060, 1_800_000_060)
        assert f.options(id="mine").delay(2).added is False  # Celery and huey run both
        t.run()


@row("`apply_async(expires=)`")
def _expires(app: App) -> None:
    f = double(app)
    with app.test() as t:
        result = f.options(expires=5).delay(1)
        t.advance(6)
        t.run()
        assert result.info().state == "failed"
        with pytest.raises(CallExpired):
            result.wait()


@row("`bind=True`, `self.request`")
def _bind(app: App) -> None:
    @app.task(retry=[0])
    def f(ctx: Context[None], n: int) -> list[Any]:
        if ctx.attempt == 1:
            raise OSError("no")
        return [ctx.task, ctx.attempt, ctx.function, n]

    with app.test() as t:
        result = f.options(id="mine").delay(7)
        t.run()
        assert result.wait() == ["mine", 2, "f", 7]


@row("`autoretry_for`, `max_retries`, `retry_backoff`")
def _retries(app: App) -> None:
    @app.task(retry=[10, 20])
    def f(how: str) -> None:
        if how == "again":
            raise Retry(after=60)
        if how == "give up":
            raise GiveUp("no")
        raise OSError(how)

    for how, runs, seconds in (("plain", 3, 30), ("again", 3, 120), ("give up", 1, 0)):
        with app.test() as t:
            result = f.delay(how)
            ran = t.run()
            assert (ran.runs[result.id], round(ran.seconds), result.info().state) == (runs, seconds, "failed")


@row("`time_limit`, `soft_time_limit` (not with `-P threads`)")
def _time_limit(app: App) -> None:
    looked: list[bool] = []

    @app.task(max_runtime=60, retry=[])
    def f(ctx: Context[None]) -> int:
        while not ctx.cancelled:
            time.sleep(0.01)
        looked.append(ctx.cancelled)
        return 0

    with app.test() as t:
        result = f.delay()
        t.run()
        with pytest.raises(CallFailed, match="max_runtime of 60 s is over"):
            result.wait()
    assert looked == [True]


@row("`AsyncResult(id).get(timeout=10)`")
def _result(app: App) -> None:
    f = double(app)
    with app.test() as t:
        id = f.delay(4).id
        t.run()
        assert [app.result(id, f).wait(10) for _ in range(2)] == [8, 8]  # huey forgets what was read


@row("`revoke(terminate=True)`")
def _revoke(app: App) -> None:
    ran: list[str] = []

    @app.task(retry=[])
    def f(ctx: Context[None], name: str) -> None:
        ran.append(name)
        app.result(ctx.task).cancel(by="kim")
        while not ctx.cancelled:
            time.sleep(0.01)

    with app.test() as t:
        ready, running = f.delay("ready"), f.delay("running")
        ready.cancel(by="kim")
        t.run()
        assert ran == ["running"]
        assert [str(one.info().error).startswith("cancelled by kim") for one in (ready, running)] == [True, True]


@row("`chain`, `group`, `chord`")
def _flows(app: App) -> None:
    f = double(app)

    @app.task
    def total(ctx: Context[None]) -> int:
        assert ctx.batch is not None
        return sum(ctx.batch.results(int))

    with app.test() as t:
        chain = f.call(1).then(f).delay()
        group = app.batch([f.call(1), f.call(2)])
        chord = app.batch([f.call(1), f.call(2)], then=total.call(), on="done")
        t.run()
        assert (chain.wait(), [one.wait() for one in group.calls], chord.then.wait()) == (4, [2, 4], 6)


@row("beat")
def _beat(app: App) -> None:
    ticks: list[float] = []

    @app.task(cron="0 9 * * *")
    def nine(ctx: Context[None]) -> None:
        ticks.append(ctx.tick or 0)

    @app.task(every=3600)
    def hourly() -> None:
        ticks.append(0)

    with app.test() as t:
        t.run()
        t.advance(24 * 3600)
        t.run()
    assert [datetime.fromtimestamp(tick, UTC).hour for tick in ticks if tick] == [9]
    assert 0 in ticks


@row("`rate_limit`, for each worker")
def _rate(app: App) -> None:
    began: list[float] = []
    with app.test() as t:

        @app.task(limit=Limit(concurrency=1, every=10, per="api"))
        def f(n: int) -> int:
            began.append(t.clock.now)
            return n

        results = [f.delay(n) for n in range(3)]
        t.run()
        assert [result.wait() for result in results] == [0, 1, 2]
    assert [round(later - sooner) for sooner, later in pairwise(began)] == [10, 10]


@row("`task_routes`, `-Q high,low`")
def _routes(app: App) -> None:
    shop = App("shop", queues=["high", "low"])

    @shop.task(queue="low")
    def f() -> None: ...

    with shop.test():
        assert (f.delay().queue, f.options(queue="high").delay().queue) == ("low", "high")


@row("`worker_process_init`")
def _lifespan(app: App) -> None:
    @app.lifespan
    async def life() -> AsyncIterator[str]:
        yield "open"

    @app.task
    def f(ctx: Context[str]) -> str:
        return ctx.state

    with app.test() as t:
        result = f.delay()
        t.run()
        assert result.wait() == "open"


@row("signals; a `Task` class that pushes the context of Flask")
def _signals(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    async def around(ctx: Context[Any], call_next: Any) -> Any:
        seen.append(f"{ctx.function} begins")
        try:
            return await call_next()
        finally:
            seen.append(f"{ctx.function} ends")

    f = double(app)
    with app.test() as t:
        f.delay(1)
        t.run()
    assert seen == ["double begins", "double ends"]


@row("`task_always_eager`")
def _eager(app: App) -> None:
    f = double(app)
    with app.test() as t:
        result = f.delay(1)
        with pytest.raises(TimeoutError):
            result.wait(1)  # unlike an eager task, it has not run yet
        t.run()
        assert result.wait() == 2


@pytest.mark.parametrize("names", ROWS)
def test_the_row(names: str) -> None:
    ROWS[names](App("here"))


# ---- the defaults that other tests do not try


def test_a_call_is_acked_when_it_has_run() -> None:
    app, states = App("here"), list[Any]()

    @app.task(keep_result=60)
    def f(ctx: Context[None]) -> None:
        states.append(app.result(ctx.task).info().state)

    with app.test() as t:
        result = f.delay()
        t.run()
        assert (states, result.info().state) == (["in_progress"], "done")


def test_a_result_of_none_is_not_kept_unless_you_say_so() -> None:
    app = App("here")

    @app.task
    def f() -> None: ...

    with app.test() as t:
        results = [f.delay(), f.options(keep_result=60).delay()]
        t.run()
        assert [one.info().state for one in results] == [None, "done"]


def test_wrong_arguments_are_refused_when_the_call_is_made() -> None:
    with pytest.raises(TypeError, match="'n'"):
        double(App("here")).delay("no number")
