"""What a function or a caller may say of a call besides its arguments: errors that end it, headers, what follows."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from tests.functions.running import at_work, work
from tests.rig.calling import failure
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue, Retry
from timeoutq.functions import App, BadArguments, BadFunction, CallNext, Context

# ---- no_retry=


def test_an_exception_that_no_repeat_mends_ends_the_call_at_once(queue: Queue, url: str) -> None:
    app, runs = App(queue.name, url=url, retry=[0, 0], no_retry=LookupError), list[str]()

    @app.task(name="of.app")
    async def of_app() -> int:
        runs.append("of.app")
        raise KeyError("a LookupError")

    @app.task(no_retry=(ValueError, OSError))
    def own(kind: str) -> int:
        runs.append(kind)
        inside: list[Exception] = [TypeError("one"), ExceptionGroup("more", [OSError("no such file")])]
        raise {"V": ValueError("x"), "K": KeyError("x"), "G": ExceptionGroup("both", inside)}[kind]

    @app.task(no_retry=Exception)
    async def asks() -> None:
        runs.append("asks")
        raise Retry(after=0)

    calls = [of_app.delay(), own.delay("V"), own.delay("K"), own.options(retry=[0] * 4).delay("G")]
    asks.delay()
    work(app)
    assert {kind: runs.count(kind) for kind in runs} == {"of.app": 1, "V": 1, "K": 3, "G": 1, "asks": 3}
    assert [failure(call).error for call in calls] == ["KeyError", "ValueError", "KeyError", "ExceptionGroup"]
    app.close()


@pytest.mark.parametrize("bad", [ValueError("x"), "ValueError", (ValueError, 3), [ValueError], int])
def test_no_retry_takes_classes_of_exceptions(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="no_retry= takes classes of exceptions"):
        App("mail", no_retry=bad)
    with pytest.raises(InvalidInput, match="no_retry= takes classes of exceptions"):
        App("mail").task(no_retry=bad)(test_no_retry_takes_classes_of_exceptions)


# ---- app.send


def test_a_program_without_the_code_calls_a_function_by_its_name(app: App, queue: Queue, url: str) -> None:
    @app.task(name="billing.add")
    async def add(a: int, b: int = 1, *, queue: str = "") -> list[Any]:
        return [a + b, queue]

    @app.task
    def double(x: list[Any]) -> list[Any]:
        return x * 2

    there = App(queue.name, url=url)
    first, second = there.send("billing.add", 1, b=2), there.send("billing.add", 1, queue=queue.name)
    named = there.named("billing.add")
    third = named.options(id="mine").delay(5, queue="an argument")
    chain = named.call(1).then(there.named("double")).delay()
    unfit, unknown = there.send("billing.add", "three"), there.send("billing.subtract", 1)
    own = app.send("billing.add", 7)
    with pytest.raises(BadArguments, match="takes 1 positional"):
        app.send("double", 1, 2)  # a function that is here is checked as ever
    with at_work(app):
        assert [one.wait(10) for one in (first, second, third, own)] == [[3, ""], [2, ""], [6, "an argument"], [8, ""]]
        assert (third.id, chain.wait(10)) == ("mine", [2, "", 2, ""])
        wait_until(lambda: "cannot take 'a'" in str(unfit.info().error))
        wait_until(lambda: "has no function 'billing.subtract'" in str(unknown.info().error))
    there.close()


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, None, 3])
def test_send_refuses_what_is_no_name(bad: Any) -> None:
    with pytest.raises(BadFunction, match="is no name for a function"):
        App("mail").send(bad)


def test_send_refuses_what_is_no_queue_of_the_app() -> None:
    with pytest.raises(InvalidInput, match="queue='low' is no queue of this app: one of mail"):
        App("mail").send("send", 1, queue="low")
    with pytest.raises(InvalidInput, match="say queue="):
        App("mail", queues=["high", "low"]).send("send", 1)
    with pytest.raises(BadArguments, match="would get"):
        App("mail").send("send", {1, 2})


# ---- headers=


@pytest.mark.parametrize("secret", [None, "a secret of sixteen bytes"])
def test_headers_come_with_the_call_and_go_on_to_those_that_follow(queue: Queue, url: str, secret: str | None) -> None:
    app, seen = App(queue.name, url=url, secret=secret), dict[str, Any]()

    @app.task(retry=[0])
    async def look(ctx: Context[None], name: str) -> str:
        seen[f"{name} {ctx.attempt}"] = dict(ctx.headers)
        if name == "again" and ctx.attempt == 1:
            raise ValueError(name)
        return f"after {name}"

    @app.middleware
    async def around(ctx: Context[Any], call_next: CallNext) -> Any:
        seen["around"] = ctx.headers.get("request", seen.get("around"))
        return await call_next()

    told = look.options(headers={"request": "42", "für": "ü"})
    told.delay("again")
    told.options(retry=[]).call("first").then(look.options(headers={"für": "me"})).then(look).delay()
    told.options(headers={}).delay("none")
    look.delay("plain")
    work(app)
    both = {"request": "42", "für": "ü"}
    mine = {**both, "für": "me"}
    assert seen == {
        "around": "42", "again 1": both, "again 2": both, "first 1": both, "after first 1": mine,
        "after after first 1": mine, "none 1": {}, "plain 1": {},
    }  # fmt: skip
    app.close()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"a": 1}, "texts"), ({1: "a"}, "texts"), ("a", "texts"), ([("a", "b")], "texts"), ({"a": "\ud800"}, "texts"),
        ({"a": b"b"}, "texts"), ({"a": "ü" * 2048}, "has 4,097 bytes; the limit is 4,096: pass more as an argument"),
    ],
)  # fmt: skip
def test_headers_are_few_texts(app: App, bad: Any, words: str) -> None:
    @app.task
    async def send() -> None: ...

    with pytest.raises(InvalidInput, match=f"headers=.*{words}"):
        send.options(headers=bad)
    assert send.options(headers={"a": "b" * 4095}).chosen.headers == {"a": "b" * 4095}


# ---- log_calls=


@pytest.mark.parametrize("is_told", [True, False])
def test_a_worker_logs_a_line_for_each_call_that_is_done(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture, is_told: bool
) -> None:
    assert not App("quiet").log_calls
    app = App(queue.name, url=url, log_calls=is_told)
    caplog.set_level(logging.INFO)

    @app.task
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.task(retry=[0])
    def second(ctx: Context[None]) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return 5

    @app.task(retry=[])
    def never(kind: str) -> int:
        if kind == "retry":
            raise Retry(after=0)
        return "five"  # type: ignore[return-value]  # that is the point

    wait.options(id="a").delay(0.5)
    second.options(id="b").delay()
    never.options(id="c").delay("retry")
    never.options(id="d").delay("result")
    work(app)
    lines = {line.getMessage(): line for line in caplog.records if " done in " in line.getMessage()}
    if not is_told:
        assert lines == {}
        return
    found = {re.sub(r"\d\.\d\d s", "N s", line): one for line, one in lines.items()}
    assert sorted(found) == [
        f"queue {queue.name}: task 'a' of wait() done in N s (attempt 1)",
        f"queue {queue.name}: task 'b' of second() done in N s (attempt 2)",
    ]
    line = next(one for one in found.values() if "'a'" in one.getMessage())
    told = vars(line)
    assert (line.levelname, told["task"], told["function"], told["attempt"]) == ("INFO", "a", "wait", 1)
    assert 0.5 <= told["seconds"] < 5
    app.close()


def test_log_calls_is_yes_or_no() -> None:
    with pytest.raises(InvalidInput, match="log_calls"):
        App("mail", log_calls="info")  # type: ignore[arg-type]  # that is the point
