"""Schedules on real servers: either queue, cleaners that are woken and killed, a worker without the extra."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig import ticks
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Cleaner, Queue, Schedule, Task


def test_either_face_sets_schedules_and_ticks(face: Any) -> None:
    face.schedules.set("often", Task("often", b"\xff"), every=1, overlap=True, missed="all")
    first = face.schedules.get("often").next
    wait_until(lambda: face.stats().now > first + 1)
    assert face.schedules.tick() == 2
    assert [lease.payload for lease in face.claim(2)] == [b"\xff", b"\xff"]
    face.schedules.declare(Schedule("code", cron="* * * * *"))
    assert {info.name: info.source for info in face.schedules.each()} == {"often": "set", "code": "code"}
    assert face.schedules.pause("code").state == "paused"
    assert face.schedules.resume("code").state == "running"
    assert face.schedules.move("often", every=60).state == "running"
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


async def test_a_cleaner_tells_once_of_a_schedule_whose_ticks_it_cannot_put_and_again_if_it_was_mended(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncQueue(name, url) as queue:
        raw, cleaner = redis.Redis.from_url(url), Cleaner(queue)
        for _ in range(2):
            await queue.schedules.set("nightly", every=3600)
            assert not await cleaner._tick()
            raw.hset(queue.operations.key("schedules"), "nightly", b"no JSON")
            raw.zadd(queue.operations.key("ticks"), {"nightly": 1})
            for _ in range(3):
                assert not await cleaner._tick()
            (line,) = [one.getMessage() for one in caplog.records]
            assert "the ticks of schedule nightly cannot be put here" in line
            caplog.clear()
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


def test_a_call_that_is_sent_again_sets_the_schedule_once(queue: Queue) -> None:
    from timeoutq.rooms.schedules import definition as of_schedules
    from timeoutq.rooms.schedules.flows import defined

    name, wanted = defined(Schedule("a", every=60, start=None))
    change = ["r", 5_000_000_000_000, *wanted.sections("d", "set")]
    call = of_schedules.call_write(queue.operations, b"w#1", name, None, change)
    queue.schedules.set("another", every=60)  # so that the server knows the library
    link: Any = queue._link().at(None)
    assert link.send([call.command()]) == [b"O"]
    assert link.send([call.command(age_ms=5)]) == [b"O"]
    assert link.send([call.command()]) == [b"C"], "another client, which has not seen the schedule, changes nothing"
    queue.schedules.cancel("a")


def test_a_tick_is_put_once_however_many_clients_send_it(queue: Queue) -> None:
    from timeoutq.rooms.schedules import definition as of_schedules
    from timeoutq.rooms.schedules import ticking
    from timeoutq.verbs.sending import answer

    queue.schedules.set("a", every=1, overlap=True)
    wait_until(lambda: queue.run(answer(queue.talk, of_schedules.call_rows(queue.operations, "due", 5, 0))).found)
    rows = queue.run(answer(queue.talk, of_schedules.call_rows(queue.operations, "due", 5, 0)))
    calls = [ticking.tick(queue.talk, rows.found[0], rows.now_ms)[0] for _ in range(8)]
    assert [queue.run(answer(queue.talk, call)) for call in calls] == ["A", *"CCCCCCC"]
    # the schedule has changed meanwhile: the old definition is not put
    wait_until(lambda: queue.run(answer(queue.talk, of_schedules.call_rows(queue.operations, "due", 5, 0))).found)
    rows = queue.run(answer(queue.talk, of_schedules.call_rows(queue.operations, "due", 5, 0)))
    queue.schedules.set("a", Task("a", "new"), every=1, overlap=True)
    assert queue.run(answer(queue.talk, ticking.tick(queue.talk, rows.found[0], rows.now_ms)[0])) == "C"
    queue.schedules.cancel("a")


def test_a_change_waits_for_a_tick_that_is_due_and_for_one_that_came_between(queue: Queue) -> None:
    from timeoutq.rooms.schedules import definition as of_schedules
    from timeoutq.rooms.schedules import ticking
    from timeoutq.rooms.schedules.flows import read
    from timeoutq.verbs.sending import answer

    def pause(seen: Any) -> str:
        change = ["p", seen.next_ms]
        return queue.run(answer(queue.talk, of_schedules.call_write(ops, queue.token(), b"a", seen, change)))

    ops = queue.operations
    queue.schedules.set("a", every=1)
    _, seen = queue.run(read(queue.talk, b"a"))
    wait_until(lambda: queue.run(answer(queue.talk, of_schedules.call_rows(ops, "due", 5, 0))).found)
    assert pause(seen) == "C", "the tick is due"
    now_ms, seen = queue.run(read(queue.talk, b"a"))
    assert seen is not None
    assert queue.run(answer(queue.talk, ticking.tick(queue.talk, seen, now_ms)[0])) == "A"
    assert pause(seen) == "C", "the schedule has ticked"
    assert queue.schedules.pause("a").state == "paused"
    queue.schedules.cancel("a")


@pytest.mark.breaking
def test_eight_cleaners_that_are_killed_put_every_tick_once_over_a_failover(tmp_path: Path) -> None:
    how = ticks.Trial(schedulers=8, schedules=100, seconds=20, kill=True, failovers=1)
    verdict = ticks.trial(tmp_path, how)
    assert verdict.good, verdict.line()
    assert verdict.kills > 5
