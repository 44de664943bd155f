"""Schedules on real servers: either face, cleaners that are woken and killed, a worker without the extra."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig import ticks
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Cleaner, InvalidInput, Queue, Schedule, Task
from timeoutq.verbs import flows
from timeoutq.watch.doctor import examine

PLANTED = """
import os, redis
from timeoutq import scripts
text = scripts.library()
for right, wrong in (
    (" or one.next ~= tonumber(args[5])", ""), ("if one.next > now then return 'E'", "if false then return 'E'"),
):
    assert text.count(right) == 1, right
    text = text.replace(right, wrong)
redis.Redis.from_url(os.environ["TIMEOUTQ_URL"]).function_load(text, replace=True)
"""


def test_either_face_sets_schedules_and_ticks(face: Any) -> None:
    face.schedules.set("often", Task("often", b"\xff"), every=1, overlap=True, missed="all")
    first = face.schedules.get("often").next
    wait_until(lambda: face.stats().now > first + 1)
    assert face.schedules.tick() == 2
    assert [lease.payload for lease in face.claim(2)] == [b"\xff", b"\xff"]
    face.schedules.declare(Schedule("code", cron="* * * * *"))
    assert {info.name: info.source for info in face.schedules.each()} == {"often": "set", "code": "code"}
    assert face.schedules.move("code", every=60).state == "running"
    assert face.schedules.pause("code").state == "paused"
    assert face.schedules.resume("code").state == "running"
    assert face.schedules.cancel("often") is True
    assert [info.name for info in face.schedules.list()] == ["code"]


@pytest.mark.parametrize(("missed", "said"), [("last", "1 put late, 2 missed)"), ("none", "0 put late, 3 missed)")])
async def test_a_cleaner_tells_of_ticks_that_are_late_or_missed(
    url: str, name: str, missed: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = datetime.now(UTC) - timedelta(hours=5, minutes=30)
    async with AsyncQueue(name, url) as queue:
        await queue.schedules.set("nightly", every=3600, missed=missed, start=began)
        raw = redis.Redis.from_url(url)
        record: Any = raw.hget(queue.operations.key("ticked"), "nightly")
        words = record.split()
        words[4] = str(int(words[4]) - 3 * 3_600_000).encode()
        raw.hset(queue.operations.key("ticked"), "nightly", b" ".join(words))
        raw.zadd(queue.operations.key("ticks"), {"nightly": int(words[4])})
        cleaner = Cleaner(queue)
        assert await cleaner._tick()
        (line,) = [one.getMessage() for one in caplog.records if "late" in one.getMessage()]
        assert "ticks of 1 schedule were more than a minute late: nightly (" + said in line
        caplog.clear()
        assert not await cleaner._tick()
        assert not caplog.records
        raw.close()
        await queue.purge()


async def test_a_cleaner_that_sleeps_wakes_for_a_schedule_that_is_set_meanwhile(url: str, name: str) -> None:
    async with AsyncQueue(name, url) as queue:
        cleaner = Cleaner(queue, longest=60)
        running = asyncio.create_task(cleaner.run())
        while not cleaner.met or cleaner._due_at == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        info = await queue.schedules.set("soon", every=1)
        assert info.next is not None
        async with asyncio.timeout(5):
            while not (await queue.stats()).todos:
                await asyncio.sleep(0.01)
        now = (await queue.stats()).now
        assert now - info.next < 0.9, "the cleaner slept until the tick, not for its minute"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await queue.purge()


async def test_a_cleaner_without_the_extra_leaves_ticks_to_others_and_says_so_once(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncQueue(name, url) as queue:
        await queue.schedules.set("often", every=1)
        for module in ("ticking", "ticks", "timing", "cron"):
            monkeypatch.delitem(sys.modules, f"timeoutq.rooms.schedules.{module}", raising=False)
            monkeypatch.delattr(f"timeoutq.rooms.schedules.{module}", raising=False)
        monkeypatch.setitem(sys.modules, "cronsim", None)
        cleaner = Cleaner(queue)
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(cleaner.run())
            await asyncio.sleep(2.5)
            await queue.put("a")
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        said = [
            record.getMessage() for record in caplog.records if "leaves their ticks to others" in record.getMessage()
        ]
        assert len(said) == 1
        assert "timeoutq[functions]" in said[0]
        assert (await queue.stats()).todos == 1
        await queue.purge()


async def test_a_definition_that_cannot_be_read_keeps_no_other_schedule_from_ticking(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncQueue(name, url) as queue:
        for one in ("bad", "good"):
            await queue.schedules.set(one, every=1)
        raw: Any = redis.Redis.from_url(url)
        with raw:
            raw.hset(queue.operations.key("schedules"), "bad", b'{"v":9}')
        cleaner = Cleaner(queue)
        running = asyncio.create_task(cleaner.run())
        async with asyncio.timeout(10):
            while cleaner.ticked < 1:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        said = [text for text in caplog.messages if "schedule bad cannot be put here" in text]
        assert len(said) == 1
        assert (await queue.schedules.list()).unread == ["bad"]
        assert await queue.schedules.set("bad", every=1)
        await queue.purge()


@pytest.mark.parametrize("lost", ["ticked", "schedules"])
def test_a_schedule_that_is_there_in_part_is_named_until_it_is_set_again(
    queue: Queue, raw: redis.Redis, lost: str
) -> None:
    for one in ("bad", "good"):
        queue.schedules.set(one, every=60)
    raw.hdel(queue.operations.key(lost), "bad")
    raw.zadd(queue.operations.key("ticks"), {"bad": 1})
    assert queue.schedules.list().unread == (["bad"] if lost == "schedules" else [])
    with pytest.raises(InvalidInput, match="schedule 'bad' cannot be put here: what is stored of it cannot be read"):
        queue.schedules.tick()
    queue.schedules.set("bad", every=60)
    assert queue.schedules.list().unread == []
    assert queue.schedules.tick() == 0


def test_a_tick_of_a_schedule_that_is_not_there_is_passed_over(queue: Queue, raw: redis.Redis) -> None:
    queue.schedules.set("good", every=60)
    raw.zadd(queue.operations.key("ticks"), {"nobody": 1})
    assert queue.schedules.tick() == 0
    assert queue.schedules.list().unread == []


@pytest.mark.parametrize("lost", ["ticks", "ticked"])
def test_a_schedule_that_would_never_tick_again_is_told_until_it_is_set_again(
    queue: Queue, raw: redis.Redis, lost: str
) -> None:
    queue.schedules.set("news", every=60)
    assert not queue.run(flows.repair(queue.talk))[0]
    raw.delete(queue.operations.key(lost))
    assert queue.run(flows.repair(queue.talk))[0] == {"tickless": 1}
    (told,) = [finding for finding in examine(queue) if finding.check == "tasks"]
    assert told.found == "1 schedule whose definition, record and next tick do not agree"
    assert "set the schedule again" in told.cure
    queue.schedules.set("news", every=60)
    assert not queue.run(flows.repair(queue.talk))[0]
    assert queue.schedules.get("news") is not None


def test_a_call_that_is_sent_again_sets_the_schedule_once(queue: Queue) -> None:
    from timeoutq.rooms.schedules import operations
    from timeoutq.rooms.schedules.flows import defined

    name, wanted = defined(Schedule("a", every=60, start=None))
    call = operations.write(queue.operations, b"w#1", name, None, "r", 5_000_000_000_000, wanted, "d")
    queue.schedules.set("another", every=60)  # so that the server knows the library
    link: Any = queue._link()
    assert link.send([call.command()]) == [b"O"]
    assert link.send([call.command(age_ms=5)]) == [b"O"]
    assert link.send([call.command()]) == [b"C"], "another client, which has not seen the schedule, changes nothing"
    queue.schedules.cancel("a")


def test_a_tick_is_put_once_however_many_clients_send_it(queue: Queue) -> None:
    from timeoutq.rooms.schedules import operations, ticking
    from timeoutq.verbs.sending import answer

    queue.schedules.set("a", every=1, overlap=True)
    wait_until(lambda: queue.run(answer(queue.talk, operations.due(queue.operations, 5))).found)
    rows = queue.run(answer(queue.talk, operations.due(queue.operations, 5)))
    calls = [ticking.tick(queue.talk, rows.found[0], rows.now_ms) for _ in range(8)]
    assert [queue.run(answer(queue.talk, call)) for call in calls] == ["A", *"CCCCCCC"]
    # the schedule has changed meanwhile: the old definition is not put
    wait_until(lambda: queue.run(answer(queue.talk, operations.due(queue.operations, 5))).found)
    rows = queue.run(answer(queue.talk, operations.due(queue.operations, 5)))
    queue.schedules.set("a", Task("a", "new"), every=1, overlap=True)
    assert queue.run(answer(queue.talk, ticking.tick(queue.talk, rows.found[0], rows.now_ms))) == "C"
    queue.schedules.cancel("a")


def test_a_change_waits_for_a_tick_that_is_due_and_for_one_that_came_between(queue: Queue) -> None:
    from timeoutq.rooms.schedules import operations, ticking
    from timeoutq.rooms.schedules.flows import read
    from timeoutq.verbs.sending import answer

    def pause(seen: Any) -> str:
        return queue.run(answer(queue.talk, operations.write(ops, queue.token(), b"a", seen, "p", seen.next_ms)))

    ops = queue.operations
    queue.schedules.set("a", every=1)
    _, seen = queue.run(read(queue.talk, b"a"))
    wait_until(lambda: queue.run(answer(queue.talk, operations.due(ops, 5))).found)
    assert pause(seen) == "C", "the tick is due"
    now_ms, seen = queue.run(read(queue.talk, b"a"))
    assert seen is not None
    assert queue.run(answer(queue.talk, ticking.tick(queue.talk, seen, now_ms))) == "A"
    assert pause(seen) == "C", "the schedule has ticked"
    assert queue.schedules.pause("a").state == "paused"
    queue.schedules.cancel("a")


def test_a_plain_queue_is_as_it_was(queue: Queue, raw: Any) -> None:
    queue.put("a")
    queue.ack(queue.claim()[0])
    assert queue.schedules.tick() == 0
    assert queue.schedules.get("a") is None
    keys = {key.rpartition(":")[2] for key in raw.keys(queue.operations.key("*"))}
    assert not keys & {"schedules", "ticks", "ticked"}
    assert raw.hget(queue.operations.key("meta"), "uses") is None


@pytest.mark.breaking
def test_eight_cleaners_that_are_killed_put_every_tick_once_over_a_failover(tmp_path: Path) -> None:
    how = ticks.Trial(schedulers=8, schedules=100, seconds=20, kill=True, failovers=1)
    verdict = ticks.trial(tmp_path, how)
    assert verdict.good, verdict.line()
    assert verdict.kills > 5


@pytest.mark.breaking
def test_the_rig_finds_ticks_that_nobody_compares(tmp_path: Path) -> None:
    how = ticks.Trial(schedulers=4, schedules=50, seconds=10, planted=PLANTED)
    verdict = ticks.trial(tmp_path, how)
    assert verdict.twice > 0, verdict.line()


def test_a_worker_ticks_and_runs_what_it_has_put(url: str, name: str) -> None:
    from timeoutq import Lease, Worker

    met = list[str]()
    worker: Any = None

    async def handle(lease: Lease) -> None:
        met.append(lease.task)
        if len(met) == 2:
            worker.stop()

    async def body() -> None:
        nonlocal worker
        async with AsyncQueue(name, url) as queue:
            await queue.schedules.set("often", every=1)
            worker = Worker(queue, handle, signals=False)
            async with asyncio.timeout(15):
                await worker.run()
            await queue.purge()

    began = time.monotonic()
    asyncio.run(body())
    assert met == ["often", "often"]
    assert time.monotonic() - began < 5
