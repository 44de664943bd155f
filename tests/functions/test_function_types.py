"""Type checkers know what a function takes and gives: mypy and basedpyright refuse the marked lines, and no others."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.rig.type_checkers import marked, refused_by_basedpyright, refused_by_mypy

SAMPLE = """
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from timeoutq.functions import App, FunctionCall, Context, Limit, Result, Sender, TaskFunction
from timeoutq.words.retry import RetryPolicy

app = App("mail", queues=["mail.high", "mail"], secret=["0123456789abcdef", b"0123456789abcdef"], retry=[10, 30])
App("mail", queues={"mail": 3, "bulk": 1}, secret="0123456789abcdef", max_runtime=60, keep_result=timedelta(hours=1))

@dataclass
class State:
    db: str

@dataclass
class Page:
    url: str

@app.task(retry=[10, 30, 60], max_runtime=300, keep_result=3600)
async def send(to: str, *, subject: str = "Hi") -> int: return 1

@app.task(key="thumb:{path}", unique=timedelta(hours=1))
def thumbnail(path: str, size: int = 64) -> None: ...

@app.task(cron="0 9 * * 1-5", tz="Europe/Berlin", missed="last", grace=timedelta(hours=6), overlap=False)
async def report(ctx: Context[State]) -> None:
    print(ctx.state.db.upper(), ctx.attempt + 1, ctx.fence, ctx.task)

@app.task
async def fetch(url: str) -> Page: return Page(url)

@app.task
def parse(page: Page, depth: int = 0) -> list[str]: return []

@app.task
def count(links: list[str] | None) -> int: return 0

@app.task
def state_of(ctx: Context[State], name: str, /, *more: int, deep: bool = False, **rest: float) -> str: return ""

@app.task(key=True, unique="forever", limit=Limit(3, every=0.5, per="tenant:{tenant}"), name="bill", queue="mail")
def bill(tenant: int) -> None: ...

@app.task(retry=RetryPolicy.of([1]))
def plain_context(ctx: Context[None], n: int) -> int: return n

async def coroutines() -> None:
    assert_type(await send("a"), int)
    assert_type(await send.adelay("a", subject="b"), Result[int])
    assert_type(await (await send.adelay("a")), int)
    assert_type(await fetch("u"), Page)
    await report(Context("report", "id", 1, 1, State("db")))
    await app.aput([fetch.call("u")])
    await fetch.call("u").then(parse).adelay()

assert_type(send.delay("a@example.com", subject="Hello"), Result[int])
assert_type(send.delay(to="a"), Result[int])
assert_type(send.delay("a").wait(timeout=10), int)
assert_type(send.call("a"), FunctionCall[int])
assert_type(thumbnail("a", 5), None)
assert_type(thumbnail.delay("a", size=5).wait(), None)
assert_type(report.delay(), Result[None])
assert_type(state_of.delay("a", 1, 2, deep=True, more=1.5), Result[str])
assert_type(state_of(Context("", "", 1, 1, State("")), "a", 1, deep=True), str)
assert_type(fetch.call("u").then(parse), FunctionCall[list[str]])
assert_type(fetch.call("u").then(parse, depth=3), FunctionCall[list[str]])
assert_type(fetch.call("u").then(parse, 3).then(count).delay(), Result[int])
assert_type(send.options(after=60, id="welcome:42").delay("b"), Result[int])
assert_type(app.put(fetch.call(to) for to in ["a", "b"]), list[Result[Page]])
assert_type(plain_context.delay(5), Result[int])
send.options(at=datetime.now(UTC), priority=5).options(after=timedelta(hours=1), retry=[1, 2], queue="mail")
fetch.call("u").then(parse.options(max_runtime=5))
known: TaskFunction[[str], Page] = fetch
also_known: FunctionCall[object] = fetch.call("u")
less: Result[object] = fetch.delay("u")
bill.delay(5)
print(send.name, app.functions["send"].schema(), app.schemas()["bill"])
def connect(sender: Sender) -> None: app.sender = sender
plainly: Coroutine[Any, Any, int] = send("a")

send.delay(1)  # refused
send.delay("a", "b")  # refused
send.delay("a", subject=1)  # refused
send.delay("a", body="x")  # refused
send("a", 1)  # refused
thumbnail.delay("a", size="b")  # refused
report.delay(Context("report", "id", 1, 1, State("db")))  # refused
report()  # refused
state_of.delay("a", "b")  # refused
plain_context.delay(n="5")  # refused
fetch.call("u").then(send)  # refused
fetch.call("u").then(count)  # refused
fetch.call("u").then(parse, "deep")  # refused
send.options(after="soon")  # refused
send.options(retry=RetryPolicy.of([1]))  # refused
send.options(delay=5)  # refused
app.put([send])  # refused
app.put(send.call("a"))  # refused
app.task(retries=5)  # refused
app.task(cron=5)  # refused
app.task(limit=3)  # refused
App(5)  # refused
App("mail", secret=5)  # refused
text: str = send.delay("a").wait()  # refused
other: TaskFunction[[int], Page] = fetch  # refused
page: FunctionCall[int] = fetch.call("u")  # refused
"""
REFUSED = marked(SAMPLE)


def test_the_sample_has_both_kinds() -> None:
    assert len(REFUSED) == 26
    compile(SAMPLE, "sample", "exec")


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_refuses_wrong_calls_and_no_right_ones(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kept = getattr(pytestconfig, "cache", None)  # a second run needs a second
    cache = tmp_path / "cache" if kept is None else kept.mkdir("mypy")
    assert refused_by_mypy(SAMPLE, tmp_path, cache) == REFUSED


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_basedpyright_refuses_wrong_calls_and_no_right_ones(tmp_path: Path) -> None:
    assert refused_by_basedpyright(SAMPLE, tmp_path) == REFUSED
