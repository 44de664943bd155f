"""Each row of the page from-rq about the attributes of an RQ job, as it is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.functions.running import at_work, work
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.cli.about import pages
from timeoutq.functions import App, Context

ROWS: dict[str, Callable[[App, Queue], None]] = {}


def row(names: str) -> Callable[[Callable[[App, Queue], None]], None]:
    return lambda check: ROWS.update({names: check})


def test_each_row_of_the_page_is_checked_here() -> None:
    table = pages()["from-rq"].partition("| attribute of an RQ job |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table] == list(ROWS)


def add(app: App) -> Any:
    @app.task(name="add")
    def add(ctx: Context[None], a: int, *more: int, b: int = 1) -> int:
        if b == 0:
            raise ValueError("b is 0")
        return a + sum(more) + b + len(ctx.headers)

    return add


@row("`id`, `origin`")
def _id(app: App, queue: Queue) -> None:
    result = add(app).options(id="mine").delay(1)
    assert (result.id, result.queue) == ("mine", queue.name)


@row("`func_name`, `args`, `kwargs`")
def _arguments(app: App, queue: Queue) -> None:
    payload = add(app).delay(1, 2, b=3).info().payload
    assert (payload["f"], payload["a"], payload["k"]) == ("add", [1, 2], {"b": 3})


@row("`timeout`, `result_ttl`, `retry_intervals`")
def _times(app: App, queue: Queue) -> None:
    chosen = add(app).options(max_runtime=3, keep_result=60, retry=[1, 2]).delay(1).info().payload["o"]
    assert chosen == {"max_runtime": 3.0, "keep_result": 60.0, "retry": [1.0, 2.0]}
    assert "o" not in add(App(queue.name, url=app.url)).delay(1).info().payload


@row("`meta`, as the caller gave it")
def _meta(app: App, queue: Queue) -> None:
    result = add(app).options(headers={"user": "ann"}).delay(1)
    assert result.info().payload["o"]["headers"] == {"user": "ann"}
    work(app)
    assert result.wait(5) == 3


@row("`worker_name`, `last_heartbeat`")
def _holder(app: App, queue: Queue) -> None:
    result = add(app).delay(1)
    assert (result.info().holder, result.info().deadline) == (None, None)
    (lease,) = queue.claim()
    before = result.info().deadline or 0
    assert result.info().holder == lease.holder
    queue.extend(lease, timeout=60)
    assert (result.info().deadline or 0) > before


@row("`number_of_retries`, `retries_left`")
def _retries(app: App, queue: Queue) -> None:
    result = add(app).options(retry=[0, 0]).delay(1, b=0)
    work(app)
    assert result.info().failures == 3


@row("`is_queued`, `is_scheduled`, `is_started`, `is_finished`, `is_failed`")
def _states(app: App, queue: Queue) -> None:
    function = add(app)
    later, ready = function.options(after=60).delay(1), function.delay(1)
    assert (later.info().state, ready.info().state) == ("scheduled", "todos")
    (lease,) = queue.claim()
    assert ready.info().state == "in_progress"
    queue.release(lease)
    failing = function.options(retry=[]).delay(1, b=0)
    with at_work(app):
        ready.wait(10)
        wait_until(lambda: failing.info().state == "failed")
    assert ready.info().state == "done"


@row("`is_stopped`, `is_canceled`")
def _cancelled(app: App, queue: Queue) -> None:
    function = add(app).options(retry=[])
    first, second = function.delay(1), function.delay(1, b=0)
    first.cancel(by="kim")
    work(app)
    assert [str(one.info().error).startswith("cancelled by") for one in (first, second)] == [True, False]


@row("`success_callback` (`on_success=`)")
def _then(app: App, queue: Queue) -> None:
    result = add(app).call(1).then(app.functions["add"], b=5).delay()
    work(app)
    assert result.wait(5) == 7


@row("`failure_callback` (`on_failure=`)")
def _on_failed(app: App, queue: Queue) -> None:
    told: list[str] = []

    @app.task
    async def tell(id: str, error: str) -> None:
        told.append(f"{id}: {error}")

    add(app).options(id="x", retry=[], on_failed=tell).delay(1, b=0)
    work(app)
    assert told == ["x: ValueError: b is 0"]


@row("`dependency_ids`, `group_id`")
def _group(app: App, queue: Queue) -> None:
    function = add(app)
    assert app.batch([function.call(1)], name="b7").name == "b7"
    steps = function.call(1).then(function).delay().info().payload["t"]
    assert [step["f"] for step in steps] == ["add"]


@row("`exists(id)`, `refresh()`")
def _exists(app: App, queue: Queue) -> None:
    result = add(app).delay(1)
    assert app.result(result.id).info().state is not None
    assert app.result("nobody").info().state is None


@row("`delete()`, `requeue()`")
def _delete(app: App, queue: Queue) -> None:
    result = add(app).options(retry=[]).delay(1, b=0)
    work(app)
    app.queue().retry_failed(result.id)
    assert result.info().state == "todos"
    app.queue().forget(result.id)
    assert result.info().state is None


@row("`description`, `get_position()`")
def _none(app: App, queue: Queue) -> None:
    result = add(app).options(id="the bill of ann").delay(1)
    assert result.info().task == "the bill of ann"
    assert not any(re.search("position|description", name) for name in dir(result.info()))


@pytest.mark.parametrize("names", ROWS)
def test_the_row(app: App, queue: Queue, names: str) -> None:
    ROWS[names](app, queue)
