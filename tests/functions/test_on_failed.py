"""A call that has failed for good puts another one, with its id and its error, before it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.functions.running import work
from tests.rig.waiting import wait_until
from timeoutq import Answer, AsyncQueue, InvalidInput, Queue, Task, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.functions import App, BadArguments, Calls, Context, Limit
from timeoutq.functions.calls import Program
from timeoutq.worker.ends import PendingCall
from timeoutq.worker.leases import Leases


@pytest.mark.parametrize("secret", [None, "a secret of sixteen bytes"])
def test_a_call_that_has_failed_for_good_puts_another_one(queue: Queue, url: str, secret: str | None) -> None:
    app, told = App(queue.name, url=url, secret=secret), list[Any]()

    @app.task
    def tell(ctx: Context[None], id: str, error: str) -> None:
        told.append([id, error, dict(ctx.headers), ctx.task])

    @app.task(name="own")
    async def own(id: str, error: str) -> None:
        told.append(["own", id, error])

    @app.task(retry=[0, 0], on_failed=tell.options(headers={"to": "me"}))
    async def fails(kind: str) -> int:
        if kind == "hangs":
            await asyncio.sleep(60)
        if kind == "result":
            return "three"  # type: ignore[return-value]  # that is the point
        raise ValueError(kind)

    fails.options(id="a").delay("twice")
    fails.options(id="b", headers={"request": "42"}, retry=[]).delay("once")
    fails.options(id="c", on_failed=own, retry=[]).delay("other")
    fails.options(id="d", max_runtime=0.1, retry=[]).delay("hangs")
    fails.options(id="e").delay("result")
    work(app)
    me = {"to": "me"}
    assert sorted(told) == [
        ["a", "ValueError: twice", me, "a!tell"],
        ["b", "ValueError: once", {"request": "42", "to": "me"}, "b!tell"],
        ["d", "TimeoutError: max_runtime of 0.1 s is over", me, "d!tell"],
        ["e", "BadResult: it returned 'three', which cannot be kept: Expected `int`, got `str`", me, "e!tell"],
        ["own", "c", "ValueError: other"],
    ]
    assert queue.stats().failed == 5
    told.clear()
    queue.retry_failed("a")
    work(app)
    assert [one[0] for one in told] == ["a"], "it has failed again"
    app.close()


class Alarm:
    """An app with a function that fails, and one that tells of it."""

    def __init__(self, name: str, url: str | None = None) -> None:
        self.app = app = App(name, url=url)
        self.told: list[list[str]] = []
        self.at_end: Callable[[], object] = str

        self.tells: Callable[[], object] = str

        @app.task(retry=[])
        async def tell(id: str, error: str) -> None:
            self.told.append([id, error])
            self.tells()

        @app.task(retry=[], on_failed=tell)
        def fails() -> None:
            self.at_end()
            raise ValueError("no")

        self.fails = fails

    async def burst(self, queue: AsyncQueue | AsyncShardedQueue) -> Any:
        async with asyncio.timeout(30), queue:
            return await Worker(queue, Calls(self.app), burst=True, signals=False).run()


async def test_it_is_there_before_the_call_has_failed_though_the_server_is_full(
    queue: Queue, url: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    alarm = Alarm(queue.name, url)
    alarm.at_end = lambda: raw.config_set("maxmemory", "1")
    call = alarm.fails.delay()
    working = asyncio.create_task(alarm.burst(AsyncQueue(queue.name, url)))
    try:
        await asyncio.to_thread(wait_until, lambda: "maxmemory" in caplog.text, 20)
        assert list(queue.states(call.id, f"{call.id}!tell")) == ["in_progress", "unknown"]
    finally:
        raw.config_set("maxmemory", "0")
    tally = await working
    assert (tally.failed, tally.acked, alarm.told) == (1, 1, [[call.id, "ValueError: no"]])
    alarm.app.close()


def test_a_call_whose_lease_is_lost_tells_nobody_that_it_failed(queue: Queue, url: str) -> None:
    alarm = Alarm(queue.name, url)
    call = alarm.fails.delay()

    def end_elsewhere() -> None:
        queue.forget(call.id)
        queue.put(call.id)
        assert queue.ack(queue.claim(1)[0]) is Answer.OK

    alarm.at_end = end_elsewhere
    assert (work(alarm.app, concurrency=1, prefetch=0).lost, alarm.told) == (1, [])
    assert list(queue.states(call.id, f"{call.id}!tell")) == ["done", "unknown"]
    alarm.app.close()


def test_a_worker_that_was_frozen_after_it_had_asked_for_its_lease_asks_again(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm, settled, asked = Alarm(queue.name, url), Leases.settled, list[str]()
    call = alarm.fails.delay()

    def late(self: Leases, sent: PendingCall, came: Any) -> None:
        asked.append(sent.verb)
        if asked == ["extend"]:
            sent.made -= self.queue.timeout  # so long was it stopped
            queue.forget(call.id)
        settled(self, sent, came)

    monkeypatch.setattr(Leases, "settled", late)
    assert (work(alarm.app).lost, alarm.told, asked) == (1, [], ["extend", "extend"])
    alarm.app.close()


def test_the_lease_goes_on_while_it_is_put(queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alarm, settled, left = Alarm(queue.name, url), Leases.settled, list[float]()
    call = alarm.fails.delay()

    def asked(self: Leases, sent: PendingCall, came: Any) -> None:
        if sent.verb == "extend":
            left.append((queue.inspect(call.id).lease_left or 0) / self.queue.timeout)
        settled(self, sent, came)

    monkeypatch.setattr(Leases, "settled", asked)
    assert work(alarm.app).failed == 1
    assert [0.5 < part <= 1 for part in left] == [True]
    alarm.app.close()


async def test_on_a_queue_over_shards_each_goes_to_the_shard_of_its_id(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=3) as queue:
        queue.run(queue.shards.make())
        alarm = Alarm(name, url)
        calls = alarm.app.put(alarm.fails.call() for _ in range(20))
        alarm.tells = lambda: 1 / 0
        for times in (1, 2):
            await alarm.burst(AsyncShardedQueue(name, url, shards=3))
            assert sorted(alarm.told) == sorted([one.id, "ValueError: no"] for one in calls for _ in range(times))
            assert {*queue.states(*(f"{one.id}!tell" for one in calls))} == {"failed"}
            queue.retry_failed(*(one.id for one in calls))
        alarm.app.close()
        queue.purge()


def test_a_call_fails_though_what_it_puts_is_refused(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Task("x!tell", b"{}", priority=5)  # this queue is not polite
    monkeypatch.setattr(Program, "failed", lambda *_: refused)
    alarm = Alarm(queue.name, url)
    alarm.fails.options(id="x").delay()
    assert work(alarm.app).failed == 1
    assert list(queue.states("x", "x!tell")) == ["failed", "unknown"]
    assert "has failed, and nothing is put for it" in caplog.text
    monkeypatch.setattr(Program, "failed", lambda *_: 1 / 0)
    alarm.fails.options(id="y").delay()
    assert work(alarm.app).failed == 1
    assert list(queue.states("y")) == ["failed"]
    alarm.app.close()


def test_a_cancelled_call_and_one_that_no_worker_could_run_put_nothing(queue: Queue, url: str) -> None:
    queue.configure(max_crashes=1)
    alarm = Alarm(queue.name, url)
    first, second = alarm.fails.options(after=3600).delay(), alarm.fails.delay()
    first.cancel()
    queue.claim(1, timeout=0.05)
    wait_until(lambda: queue.requeue_expired() == 1)
    work(alarm.app)
    assert list(queue.states(first.id, second.id)) == ["failed", "failed"]
    assert (alarm.told, queue.stats().known) == ([], 2)
    alarm.app.close()


def test_in_a_test_without_a_server_it_runs_too() -> None:
    alarm = Alarm("mail")
    with alarm.app.test() as t:
        call = alarm.fails.delay()
        t.run()
    assert alarm.told == [[call.id, "ValueError: no"]]


def test_an_id_that_is_no_text_is_told_as_far_as_it_can_be() -> None:
    alarm = Alarm("mail")
    with alarm.app.test() as t:
        alarm.fails.options(id=b"\xffa").delay()
        t.run()
    assert alarm.told == [["\ufffda", "ValueError: no"]]


def test_on_failed_takes_a_function_of_the_app_that_takes_two_texts() -> None:
    app = App("mail", queues=["mail", "low"])

    @app.task
    async def tell(id: str, error: str) -> None: ...

    @app.task
    async def one(id: str) -> None: ...

    @app.task
    async def number(id: str, error: int) -> None: ...

    @app.task(limit=Limit(1))
    async def limited(id: str, error: str) -> None: ...

    bad: list[tuple[Any, str]] = [
        (print, "on_failed= takes a function of App"), (tell.call("a", "b"), "on_failed= takes a function of App"),
        (App("other").named("tell"), "on_failed= takes a function of App"), (limited, "a function with limit="),
        (tell.options(after=3), "leave out after="), (tell.options(queue="low"), "leave out queue="),
        (tell.options(id="a"), "leave out id="), (tell.options(expires=3), "leave out expires="),
    ]  # fmt: skip
    for given, words in bad:
        with pytest.raises(InvalidInput, match=words):
            tell.options(on_failed=given)
        with pytest.raises(InvalidInput, match=words):
            app.task(on_failed=given, name="f")(test_on_failed_takes_a_function_of_the_app_that_takes_two_texts)
    for function, words in ((one, "takes 1 positional argument, but got 2"), (number, "got 'error' for 'error'")):
        with pytest.raises(BadArguments, match=words):
            tell.options(on_failed=function)
    assert tell.options(on_failed=app.named("elsewhere")).chosen.on_failed is not None
