"""Calls on real servers: they are put, and what they return comes back as the type that the function says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.functions.running import carry_out
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue, State
from timeoutq.functions import App, CallCancelled, CallFailed, CallGone, Context, outcomes
from timeoutq.functions.client import Sender, Steps
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending
from timeoutq.words.model import Ended


@dataclass
class Mail:
    to: str
    subject: str = "Hi"


@pytest.fixture
def app(url: str, name: str) -> Iterator[App]:
    made = App(name, url=url)

    @made.task
    def add(x: int, y: int = 1) -> int:
        return x + y

    @made.task(key="mail:{to}")
    async def mail(ctx: Context[None], to: str) -> Mail:
        return Mail(to)

    @made.task
    def compose(to: str) -> Mail:
        return Mail(to)

    @made.task
    def double(x: int) -> int:
        if x > 100:
            raise ValueError("too large")
        return 2 * x

    @made.task
    def tell(text: str) -> None: ...

    @made.task
    def find(text: str) -> str | None:
        return None

    @made.task(keep_result=60)
    def ask(text: str) -> None: ...

    yield made
    made.close()


def call(app: App, function: str, *args: Any, **options: Any) -> Any:
    return app.functions[function].options(**options).call(*args)


def delay(app: App, function: str, *args: Any, **options: Any) -> Any:
    return call(app, function, *args, **options).delay()


async def of(result: Any) -> Any:
    return await result


def ended_by(app: App, queue: Queue, result: Any) -> Any:
    """Let a worker carry out what there is, and give what the caller gets."""
    carry_out(app, queue)
    return result.wait(timeout=10)


# ---- what a call returns


def test_what_a_call_returns_comes_back(app: App, queue: Queue) -> None:
    result = delay(app, "add", 2, 3)
    assert result.answer == "added"
    assert queue.inspect(result.id).state is State.TODOS
    assert ended_by(app, queue, result) == 5
    assert result.wait() == 5, "the result is there for an hour"


def test_a_coroutine_awaits_a_result(app: App, queue: Queue) -> None:
    async def caller() -> tuple[Any, Any]:
        first = await app.apost(call(app, "add", 2, 3))
        waiting = asyncio.ensure_future(of(first))
        await asyncio.sleep(0)
        await asyncio.to_thread(carry_out, app, queue)
        found = await waiting
        info = await first.ainfo()
        await app.aclose()
        return found, info

    found, info = asyncio.run(caller())
    assert (found, info.state) == (5, "done")


def test_a_wait_ends_after_its_time(app: App, queue: Queue) -> None:
    result = delay(app, "add", 1)
    began = time.monotonic()
    with pytest.raises(
        TimeoutError, match=f"call '{result.id}' has not ended within 0.1 s: `timeoutq why {queue.name} "
    ):
        result.wait(timeout=0.1)
    assert time.monotonic() - began < 5

    async def caller() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(of(result), 0.1)
        await app.aclose()

    asyncio.run(caller())


def test_the_timeout_of_a_chain_is_for_all_its_calls_together(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    here, left = [100.0], list[float | None]()

    def hearing(self: Sender, queue: str, id: bytes, seconds: float | None) -> Steps[Ended | None]:
        yield queue, lambda _: left.append(seconds)
        here[0] += 4
        return Ended(id.decode(), State.DONE, b"1") if len(left) < 3 else None

    chain = call(app, "add", 1).then(app.functions["double"]).then(app.functions["double"]).delay()
    monkeypatch.setattr(Sender, "hearing", hearing)
    monkeypatch.setattr("timeoutq.functions.client.time.monotonic", lambda: here[0])
    with pytest.raises(TimeoutError, match="has not ended within 10 s"):
        chain.wait(10)
    assert left == [10, 6, 2]


# ---- what a call does not return


def test_a_failed_call_tells_the_error_as_text(app: App, queue: Queue) -> None:
    with pytest.raises(CallFailed) as caught:
        ended_by(app, queue, delay(app, "double", 101, id="d1"))
    error = caught.value
    assert str(error) == "call 'd1' failed: ValueError: too large"
    assert (type(error), error.id, error.error, error.message) == (CallFailed, "d1", "ValueError", "too large")
    assert 'raise ValueError("too large")' in str(error.traceback)


def test_a_call_is_cancelled_by_whom_has_its_result(app: App, queue: Queue) -> None:
    result = delay(app, "add", 1, id="a1")
    assert result.cancel(by="ops") == "cancelled"
    assert result.cancel() == "failed"
    with pytest.raises(CallCancelled, match="call 'a1' was cancelled by ops"):
        result.wait(timeout=5)
    assert app.result("nosuch").cancel() == "unknown"

    async def caller() -> Any:
        other = await call(app, "add", 2, id="a2").adelay()
        found = await other.acancel("me")
        with pytest.raises(CallCancelled):
            await other
        await app.aclose()
        return found

    assert asyncio.run(caller()) == "cancelled"


def test_a_call_that_has_returned_is_done_while_its_result_is_kept(app: App, queue: Queue) -> None:
    result, told = delay(app, "add", 2), delay(app, "tell", "a")
    assert result.info().state == "todos"
    carry_out(app, queue)
    assert queue.inspect(result.id).state is None
    assert (result.info().state, result.cancel()) == ("done", "done")
    assert asyncio.run(about(app, result)) == ("done", "done")
    assert (told.info().state, told.cancel()) == (None, "unknown")  # `tell` returns None, which is not kept
    queue.forget(result.id)
    assert (result.info().state, result.cancel()) == (None, "unknown")


async def about(app: App, result: Any) -> tuple[Any, Any]:
    found = (await result.ainfo()).state, await result.acancel()
    await app.aclose()
    return found


def test_a_result_is_gone_after_its_time(app: App, queue: Queue) -> None:
    result = delay(app, "add", 1, keep_result=0.05)
    carry_out(app, queue)
    wait_until(lambda: not queue.results.look(result.id)[result.id].result)
    with pytest.raises(CallGone, match="its result has expired"):
        result.wait(timeout=5)


def test_a_result_of_a_full_server_is_gone(app: App, queue: Queue, raw: redis.Redis) -> None:
    result = delay(app, "add", 1)
    carry_out(app, queue)
    raw.set(queue.operations.key(f"result:{result.id}"), "")
    with pytest.raises(CallGone, match="had no memory for its result"):
        result.wait(timeout=5)


@pytest.mark.parametrize(
    ("function", "argument", "options", "said"),
    [
        ("add", 1, {"keep_result": 0}, "its result is not kept: give the function or the call keep_result="),
        ("tell", "a", {}, "a result of None is not kept unless you ask for it"),
    ],
)
def test_nobody_waits_for_what_is_not_kept(
    app: App, function: str, argument: Any, options: dict[str, Any], said: str
) -> None:
    result = delay(app, function, argument, **options)
    with pytest.raises(InvalidInput, match=said):
        result.wait(timeout=5)
    with pytest.raises(InvalidInput, match=said):
        asyncio.run(of(result))


def test_the_queue_of_a_call_that_was_put_elsewhere_may_be_another_than_that_of_its_function() -> None:
    own = App("a", queues=["a", "b"])

    @own.task(queue="a")
    def send(number: int) -> int:
        return number

    assert [own.result("send:1", send, **more).queue for more in ({}, {"queue": "b"})] == ["a", "b"]


@pytest.mark.parametrize("knows", [True, False])
def test_a_call_that_is_done_and_keeps_no_result_is_not_called_unknown(app: App, queue: Queue, knows: bool) -> None:
    send = app.functions["tell"]
    sent = send.options(id="a").delay("a")
    queue.ack(queue.claim(1))
    found = app.result(sent.id, send) if knows else app.result(sent.id)
    said = "call 'a' is done, but its result is not kept: the result has expired, or it returned None, which is kept"
    with pytest.raises(CallGone, match=said):
        found.wait(5)
    with pytest.raises(CallGone, match=r"nothing is known of call 'b' any more: .* has expired, or it returned None"):
        app.result("b").wait(5)


def test_none_is_kept_where_somebody_asks_for_it(app: App, queue: Queue) -> None:
    assert ended_by(app, queue, delay(app, "ask", "a")) is None
    assert ended_by(app, queue, delay(app, "tell", "a", keep_result=60)) is None
    assert ended_by(app, queue, delay(app, "find", "a", keep_result=60)) is None
    with pytest.raises(CallGone, match="or it returned None, which is kept only with keep_result"):
        ended_by(app, queue, delay(app, "find", "a"))


# ---- when, where and how often


def test_a_key_keeps_others_away_only_until_its_call_has_ended(app: App, queue: Queue) -> None:
    first, second = delay(app, "mail", "a"), delay(app, "mail", "a")
    assert (first.id, first.answer, second.answer) == ("mail:a", "added", "todos")
    (lease,) = queue.claim()
    assert delay(app, "mail", "a").answer == "in_progress"
    queue.ack(lease)
    assert delay(app, "mail", "a").answer == "added"
    (lease,) = queue.claim()
    queue.fail(lease, "no", give_up=True)
    assert delay(app, "mail", "a").answer == "added"


def test_a_call_in_progress_runs_once_more_with_the_newest_arguments(app: App, queue: Queue) -> None:
    @app.task(key="page:{page}")
    def index(page: int, version: int) -> int:
        return version

    newest = index.options(rerun=True)
    assert newest.delay(1, 1).answer == "added"
    assert newest.delay(1, 2).answer == "todos"
    (lease,) = queue.claim()
    assert index.delay(1, 7).answer == "in_progress", "without rerun, it keeps others away"
    call = newest.delay(1, 3)
    assert call.answer == "rerun"
    queue.ack(lease)
    assert carry_out(app, queue) == ["page:1"]
    assert call.wait(timeout=10) == 3


def test_rerun_needs_an_id_and_goes_with_nothing_that_says_when(app: App) -> None:
    add, mail = app.functions["add"], app.functions["mail"]
    with pytest.raises(InvalidInput, match="rerun= is about an id"):
        add.options(rerun=True)
    with pytest.raises(InvalidInput, match="leave at=, after= and priority= out"):
        mail.options(rerun=True, after=5)
    with pytest.raises(InvalidInput, match="the callback of a batch is put once, when it has ended: leave out rerun="):
        app.batch([mail.call("x")], then=mail.options(rerun=True).call("y"))
    with pytest.raises(InvalidInput, match="leave out rerun="):
        app.schedules.set("s", mail.options(rerun=True).call("x"), every=60)


def test_a_key_for_a_time_lets_a_failed_call_come_again_after_it(app: App, queue: Queue) -> None:
    hour, moment = timedelta(hours=1), timedelta(milliseconds=20)
    assert delay(app, "mail", "a", unique=hour).answer == "added"
    queue.fail(queue.claim()[0], "no", give_up=True)
    assert delay(app, "mail", "a", unique=hour).answer == "failed"
    wait_until(lambda: delay(app, "mail", "a", unique=moment).answer == "added")


def test_calls_of_several_queues_go_to_each(url: str, name: str) -> None:
    app = App("shop", queues=[f"{name}.high", f"{name}.low"], url=url)

    @app.task(queue=f"{name}.high", key="high:{x}")
    def high(x: int) -> int:
        return x

    @app.task(queue=f"{name}.low")
    def low(x: int) -> int:
        return -x

    assert high.delay(3).added
    results = app.put([high.call(1), low.call(2), high.call(3)])
    assert [result.added for result in results] == [True, True, False]
    with Queue(f"{name}.high", url) as first, Queue(f"{name}.low", url) as second:
        assert [len(carry_out(app, one)) for one in (first, second)] == [2, 1]
    assert [result.wait(timeout=5) for result in results] == [1, -2, 3]
    app.close()


# ---- chains


def test_the_result_of_a_chain_is_that_of_its_last_call(app: App, queue: Queue) -> None:
    add, double = app.functions["add"], app.functions["double"]
    result = add.options(id="a").call(1).then(double).then(double).delay()
    assert result.id == "a>double>double"
    assert result.info().task == "a"
    assert carry_out(app, queue) == ["a"]
    assert result.info().task == "a>double"
    with pytest.raises(TimeoutError):
        result.wait(timeout=0.05)
    carry_out(app, queue)
    carry_out(app, queue)
    assert result.wait(timeout=5) == 8


def test_a_chain_fails_with_the_call_that_fails(app: App, queue: Queue) -> None:
    add, double = app.functions["add"], app.functions["double"]
    result = add.options(id="a").call(200).then(double).then(double).delay()
    carry_out(app, queue)
    carry_out(app, queue)
    with pytest.raises(CallFailed, match="call 'a>double' failed: ValueError: too large"):
        result.wait(timeout=5)


def test_another_program_finds_the_call_of_a_chain_that_is_running_whichever_queue_it_is_in(
    url: str, name: str
) -> None:
    def made() -> App:
        shop = App("shop", queues=[f"{name}-a", f"{name}-b", f"{name}-c"], url=url)

        @shop.task(queue=f"{name}-b")
        def check(x: int) -> int:
            if x > 100:
                raise ValueError("too large")
            return x

        @shop.task(queue=f"{name}-c")
        def ship(x: int) -> str:
            return f"shipped {x}"

        return shop

    shop, elsewhere = made(), made()
    check, ship = shop.functions["check"], shop.functions["ship"]
    good, bad = (check.call(number).then(ship).delay() for number in (1, 101))
    seen = [
        elsewhere.result(good.id), elsewhere.result(good.id, elsewhere.functions["ship"]),
        elsewhere.result(good.id, queue=good.queue), elsewhere.result(good.id, queue=f"{name}-b"),
    ]  # fmt: skip
    assert [one.info().state for one in seen] == [State.TODOS] * 4
    assert elsewhere.result(good.id, queue=f"{name}-a").info().state is None
    with pytest.raises(TimeoutError, match=f"why {name}-b"):
        seen[0].wait(0)
    carry_out(shop, shop.queue(f"{name}-b"))
    carry_out(shop, shop.queue(f"{name}-c"))
    assert [one.wait(5) for one in seen] == ["shipped 1"] * 4
    with pytest.raises(CallFailed, match="too large"):
        elsewhere.result(bad.id).wait(5)
    for one in (shop, elsewhere):
        one.close()


# ---- results of calls that were put elsewhere


def test_a_result_is_found_by_its_id(app: App, queue: Queue) -> None:
    compose: Any = app.functions["compose"]
    id = compose.delay("a").id
    carry_out(app, queue)
    assert app.result(id).wait(timeout=5) == {"to": "a", "subject": "Hi"}
    assert app.result(id.encode(), compose).wait(timeout=5) == Mail("a")
    with pytest.raises(CallGone):
        app.result("nobody>knows").wait(timeout=5)
    with pytest.raises(InvalidInput, match="no queue of this app"):
        app.result(id, queue="other")


# ---- one connection


def test_a_wait_hears_of_an_end_and_does_not_look_for_it(
    app: App, queue: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutq.rooms.results.LOOK_AGAIN", 600.0)
    result = app.functions["add"].delay(1)

    async def caller() -> int:
        waits = asyncio.ensure_future(of(result))
        await asyncio.to_thread(wait_until, lambda: raw.hlen(queue.operations.key("awaited")) == 1, 20)
        await asyncio.to_thread(_end_many, queue)
        async with asyncio.timeout(20):
            found: int = await waits
        await app.aclose()
        return found

    assert asyncio.run(caller()) == 7


def _end_many(queue: Queue) -> int:
    leases = queue.claim(500)
    results = {at: Kept(b"7", 60_000) for at in range(len(leases))}
    queue.run(sending.answers(queue.talk, queue.operations.ack(leases, results=results, bare=range(len(leases)))))
    return len(leases)


# ---- forks and arguments


def test_a_forked_process_puts_calls_and_waits_for_them(app: App, queue: Queue) -> None:
    delay(app, "add", 1).info()
    child = os.fork()
    if not child:
        try:
            result = delay(app, "add", 2, id="forked")
            os._exit(result.wait(timeout=30) == 3 and 7)
        finally:
            os._exit(1)
    wait_until(lambda: queue.inspect("forked").state is State.TODOS)
    carry_out(app, queue)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_call_whose_function_met_a_cancelled_call_has_failed_itself(app: App, queue: Queue) -> None:
    inner = CallCancelled("call 'b1' was cancelled by kim", id="b1")
    result = delay(app, "add", 1, id="a1")
    (lease,) = queue.claim()
    error = f"CallCancelled: {inner}"
    kept = {0: Kept(outcomes.failure(inner), 60_000)}
    queue.run(sending.answers(queue.talk, queue.operations.fail([lease], [-1], [error.encode()], results=kept)))
    with pytest.raises(CallFailed, match=r"^call 'a1' failed: CallCancelled: call 'b1' was cancelled") as caught:
        result.wait(timeout=5)
    assert type(caught.value) is CallFailed
