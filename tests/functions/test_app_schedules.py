"""Schedules of calls on real servers: the ticks put calls, which a worker carries out as if somebody had put them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.functions.running import carry_out
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue
from timeoutq.functions import App, CallTooLarge, Context, Forged, scheduling
from timeoutq.functions.envelope import LIMIT

SECRET = "a secret of 21 bytes."


@pytest.fixture
def app(url: str, name: str) -> Iterator[App]:
    made = App(name, url=url, secret=SECRET)

    @made.task
    def digest(to: str, n: int = 5) -> str:
        return f"{to} {n}"

    @made.task(cron="0 9 * * 1-5", tz="Europe/Berlin", grace=3600)
    def report(n: int = 1) -> int:
        return n

    @made.task(every=60, overlap=True)
    def sweep() -> int:
        return 3

    yield made
    made.close()


def due_now(raw: redis.Redis, queue: Queue, *names: str) -> None:
    """Make schedules due, as if their time had come."""
    for name in names:
        raw.zadd(queue.operations.key("ticks"), {name: 1})
        words: Any = raw.hget(queue.operations.key("ticked"), name)
        words = words.split()
        words[4] = "1"
        raw.hset(queue.operations.key("ticked"), name, " ".join(words))


def test_a_tick_puts_the_call_under_the_name_of_the_schedule(app: App, queue: Queue, raw: redis.Redis) -> None:
    set_ = app.schedules.set(
        "digest:42", app.functions["digest"].call("c@example.com"), cron="0 7 * * *", tz="Asia/Tokyo"
    )
    assert (set_.name, set_.task, set_.state) == ("digest:42", "digest:42", "running")
    due_now(raw, queue, "digest:42")
    assert queue.schedules.tick() == 1
    assert carry_out(app, queue) == ["digest:42"]
    assert app.result("digest:42").wait(timeout=5) == "c@example.com 5"


def ticks_of(app: App, queue: Queue, at: int) -> dict[str, Any]:
    """Claim calls, and give the tick of each; fail them, so that they run again in `at` seconds."""
    found: dict[str, Any] = {}
    for lease in queue.claim(10):
        payload = json.dumps(lease.payload, separators=(",", ":")).encode()
        found[lease.task] = app.open(payload, queue.name, lease.task.encode()).tick
        queue.fail(lease, "no", retry_in=at)
    return found


def test_a_call_knows_the_tick_that_put_it_also_when_it_runs_again(app: App, queue: Queue, raw: redis.Redis) -> None:
    every = app.schedules.set("d", app.functions["digest"].call("c"), every=60)
    app.functions["digest"].options(id="x").delay("c")
    due_now(raw, queue, "d")
    queue.schedules.tick()
    tick = queue.schedules.get("d")
    assert tick is not None and tick.last is not None and every.next is not None
    assert (every.next - tick.last) % 60 == 0
    assert ticks_of(app, queue, 0) == {"d": tick.last, "x": None}
    due_now(raw, queue, "d")
    assert queue.schedules.tick() == 0  # skipped: the call is there still
    assert ticks_of(app, queue, 60)["d"] == tick.last


def test_each_of_the_calls_that_overlap_knows_its_own_tick(app: App, queue: Queue, raw: redis.Redis) -> None:
    start = datetime.now(UTC) - timedelta(seconds=3630)
    call = app.functions["digest"].call("c")
    app.schedules.set("d", call, every=60, start=start, overlap=True, missed="all", grace=300)
    due_now(raw, queue, "d")
    assert queue.schedules.tick() == 5
    found = ticks_of(app, queue, 60)
    assert found == {id: int(id.removeprefix("d@")) / 1000 for id in found}
    assert len(set(found.values())) == 5


async def test_ctx_tick_is_the_time_for_which_the_schedule_made_the_call(url: str, name: str) -> None:
    app = App(name, url=url)

    @app.task(keep_result=60)
    async def told(ctx: Context[None]) -> float | None:
        return ctx.tick

    alone = await told.adelay()
    set_ = await app.schedules.aset("told", told.call(), every=1)
    worker = app.worker(timeout=5)
    running = asyncio.create_task(worker.run())
    assert await alone is None
    await asyncio.to_thread(wait_until, lambda: app.schedules.list()[name][0].put > 0, 30)
    tick = await app.result("told", told)
    worker.stop()
    await running
    assert tick is not None and set_.next is not None and tick >= set_.next
    assert (tick - set_.next) % 1 == 0
    app.close()
    await app.aclose()
    with Queue(name, url) as queue:
        queue.purge()


def test_a_call_that_is_too_large_with_its_tick_is_refused_when_the_schedule_is_set(app: App, queue: Queue) -> None:
    digest = app.functions["digest"]
    envelope = len('{"v":1,"f":"digest","a":[],"k":{"to":""},"s":""}') + len("1a2b3c4d.") + 64
    with pytest.raises(CallTooLarge, match="with the time of its tick"):
        app.schedules.set("d", digest.call("x" * (LIMIT - envelope)), every=60)
    assert app.schedules.list()[queue.name] == []


def test_a_signed_call_of_a_schedule_is_refused_under_another_name(app: App, queue: Queue, raw: redis.Redis) -> None:
    app.schedules.set("d", app.functions["digest"].call("c"), every=60)
    due_now(raw, queue, "d")
    queue.schedules.tick()
    (lease,) = queue.claim()
    payload = json.dumps(lease.payload, separators=(",", ":")).encode()
    assert app.open(payload, queue.name, b"d").args == []
    for other in (b"e", b"e@5", b"d@5", b"d@", b"d@x", b"@5"):
        with pytest.raises(Forged):
            app.open(payload, queue.name, other)


def test_only_the_calls_of_a_schedule_that_overlap_are_signed_for_any_tick(
    app: App, queue: Queue, raw: redis.Redis
) -> None:
    digest = app.functions["digest"]
    app.schedules.set("d", digest.call("c"), every=60, overlap=True)
    due_now(raw, queue, "d")
    queue.schedules.tick()
    digest.options(id="once").delay("c")
    payloads = [raw.hget(queue.operations.key("payload"), lease.task) for lease in queue.claim(2)]
    ticking, once = sorted((str(payload).encode() for payload in payloads), key=lambda payload: b"ticks" not in payload)
    assert app.open(ticking, queue.name, b"d@5").kwargs == app.open(once, queue.name, b"once").kwargs == {"to": "c"}
    for payload, other in ((ticking, b"e@5"), (ticking, b"d@x"), (ticking, b"d@5@5"), (once, b"once@5")):
        with pytest.raises(Forged):
            app.open(payload, queue.name, other)
    with pytest.raises(Forged):  # nobody makes a call of a schedule of it
        app.open(once[:-1].replace(b',"s":', b',"o":{"ticks":true},"s":') + b"}", queue.name, b"once@5")


def test_schedules_are_moved_paused_resumed_and_cancelled(app: App, queue: Queue) -> None:
    call = app.functions["digest"].call("c")
    app.schedules.set("d", call, every=60)
    assert app.schedules.move("d", every=90).timing["every"] == 90
    assert app.schedules.pause("d").state == "paused"
    assert [(info.name, info.state) for info in app.schedules.list()[queue.name]] == [("d", "paused")]
    assert app.schedules.resume("d").state == "running"
    assert app.schedules.cancel("d")
    assert not app.schedules.cancel("d")
    assert app.schedules.list() == {queue.name: []}
    with pytest.raises(InvalidInput, match="has no schedule 'd'"):
        app.schedules.pause("d")


def test_asyncio_has_the_same(app: App, queue: Queue) -> None:
    async def caller() -> list[Any]:
        schedules, call = app.schedules, app.functions["digest"].call("c")
        found = [
            (await schedules.aset("d", call, every=60)).state,
            (await schedules.amove("d", every=90)).timing["every"],
            (await schedules.apause("d")).state,
            [info.state for info in (await schedules.alist())[queue.name]],
            (await schedules.aresume("d")).state,
            await schedules.acancel("d"),
        ]
        await app.aclose()
        return found

    assert asyncio.run(caller()) == ["running", 90, "paused", ["paused"], "running", True]


@pytest.mark.parametrize("options", [{"at": 5}, {"id": "x", "unique": "forever"}])
def test_a_schedule_says_when_and_under_which_id(app: App, queue: Queue, options: dict[str, Any]) -> None:
    call = app.functions["digest"].options(**options).call("c")
    with pytest.raises(InvalidInput, match="leave out " + ", ".join(f"{name}=" for name in options)):
        app.schedules.set("d", call, every=60)
    digest: Any = app.functions["digest"]
    with pytest.raises(InvalidInput, match="takes one call, and this is a chain"):
        app.schedules.set("d", digest.call("c").then(digest), every=60)
    wrong: Any = "digest"
    with pytest.raises(InvalidInput, match="takes a call of it"):
        app.schedules.set("d", wrong, every=60)
    assert app.schedules.list()[queue.name] == []


def test_workers_declare_the_schedules_of_decorators(app: App, queue: Queue, raw: redis.Redis) -> None:
    async def worker() -> None:
        opened = await app.sender.aqueue(queue.name)
        declare = scheduling.declaring(app, opened.name, opened.flows)
        assert declare is not None
        await opened.run(declare())
        await opened.run(declare())
        await app.aclose()

    asyncio.run(worker())
    found = {info.name: info for info in app.schedules.list()[queue.name]}
    assert {name: info.source for name, info in found.items()} == {"report": "code", "sweep": "code"}
    report, sweep = found["report"], found["sweep"]
    assert (report.timing["cron"], report.timing["tz"], report.grace) == ("0 9 * * 1-5", "Europe/Berlin", 3600)
    assert (sweep.timing["every"], sweep.overlap, sweep.missed) == (60, True, "last")
    due_now(raw, queue, "sweep")
    assert queue.schedules.tick() == 1
    (id,) = carry_out(app, queue)
    assert app.result(id).wait(timeout=5) == 3
