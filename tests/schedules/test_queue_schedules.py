"""Schedules of a queue, in memory and by the clock of the test: set, tick, move, pause, resume, cancel, declare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import fakeredis
import pytest

from tests.core.test_clock_steps import step_back
from timeoutq import InvalidInput, Politeness, Schedule, State, Task
from timeoutq.functions import App, scheduling
from timeoutq.rooms.schedules import operations, ticks
from timeoutq.rooms.schedules.cron import BadTiming, cron
from timeoutq.testing import Clock, fake_queue, fake_sharded_queue, run
from timeoutq.testing.fake import FakeShardedQueue
from timeoutq.verbs import flows
from timeoutq.watch import divided, doctor, transfer

HOUR = 3600


@pytest.fixture(params=["plain", pytest.param("sharded", marks=pytest.mark.breaking)])
def queue(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue in memory; after the test, a walk finds nothing wrong."""
    make: Any = fake_queue if request.param == "plain" else fake_sharded_queue
    with make(timeout=30) as opened:
        yield opened
        for talk in [opened.talk] if request.param == "plain" else opened.shards.talks:
            found, _ = opened.run(flows.repair(talk, mend=False))
            assert not found


def test_a_schedule_that_code_has_left_is_read_once_before_it_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[bytes, ...]] = []
    named = operations.named

    def reading(of: Any, *names: bytes) -> Any:
        read.append(names)
        return named(of, *names)

    with fake_queue() as queue:
        queue.schedules.declare(Schedule("hourly", "a", every=HOUR), Schedule("daily", "b", every=24 * HOUR))
        queue.clock.advance(240)
        monkeypatch.setattr(operations, "named", reading)
        queue.run(queue.flows.schedules.leave(["hourly", "daily"]))
        assert read == [(b"hourly", b"daily")]
        assert [one.state for one in queue.schedules.each()] == ["undeclared", "undeclared"]


def todos(queue: Any) -> list[str]:
    return sorted(entry.task for entry in queue.each(State.TODOS))


def later(queue: Any, seconds: float) -> int:
    queue.clock.advance(seconds)
    found: int = queue.schedules.tick()
    return found


def test_a_tick_puts_the_task_with_its_payload_and_then_the_next_one_is_due(queue: Any) -> None:
    set_ = queue.schedules.set("digest", Task("digest", {"to": 42}), every=60)
    assert (set_.state, set_.source, set_.next) == ("running", "set", queue.clock.now + 60)
    assert later(queue, 59) == 0
    assert later(queue, 1) == 1
    (lease,) = queue.claim()
    assert (lease.task, lease.payload) == ("digest", {"to": 42})
    queue.ack(lease)
    assert queue.schedules.tick() == 0
    assert later(queue, 60) == 1
    now = queue.schedules.get("digest")
    assert (now.put, now.skipped, now.last, now.next) == (2, 0, queue.clock.now, queue.clock.now + 60)


def test_a_tick_whose_task_is_at_work_is_skipped_and_counted(queue: Any) -> None:
    queue.schedules.set("slow", every=10)
    assert later(queue, 10) == 1
    (lease,) = queue.claim()
    assert later(queue, 10) == 0
    assert queue.states("slow")["slow"] == "in_progress"
    queue.ack(lease)
    assert later(queue, 10) == 1
    found = queue.schedules.get("slow")
    assert (found.put, found.skipped) == (2, 1)
    assert queue.stats().counters["ticks_skipped"] == 1


def test_a_tick_brings_a_failed_task_back(queue: Any) -> None:
    queue.schedules.set("breaks", every=10)
    later(queue, 10)
    queue.fail(queue.claim()[0], "no", give_up=True)
    assert later(queue, 10) == 1
    assert queue.claim()[0].attempt == 1


def test_with_overlap_each_tick_has_an_id_of_its_own(queue: Any) -> None:
    queue.schedules.set("report", every=10, overlap=True, missed="all")
    start = round(queue.clock.now * 1000)
    assert later(queue, 35) == 3
    assert todos(queue) == [f"report@{start + n}" for n in (10_000, 20_000, 30_000)]
    assert queue.states(f"report@{start + 10_000}")[f"report@{start + 10_000}"] == "todos"


@pytest.mark.parametrize(("missed", "put", "left_out"), [("last", 1, 99), ("all", 100, 0), ("none", 1, 99)])
def test_what_becomes_of_ticks_for_which_nobody_was_there(queue: Any, missed: str, put: int, left_out: int) -> None:
    queue.schedules.set("late", every=60, overlap=True, missed=missed)
    assert later(queue, 6000) == put
    found = queue.schedules.get("late")
    assert (found.put, found.missed_ticks) == (put, left_out)
    assert queue.stats().counters.get("ticks_missed", 0) == left_out


def test_ticks_that_are_more_than_one_call_takes_are_all_put(queue: Any) -> None:
    queue.schedules.set("many", every=1, overlap=True, missed="all")
    assert later(queue, 2500) == 2500
    assert len(todos(queue)) == 2500


def test_a_large_payload_goes_with_each_tick(queue: Any) -> None:
    queue.schedules.set("large", Task("large", b"x" * 200_000), every=1, overlap=True, missed="all")
    assert later(queue, 12) == 12
    assert {len(lease.payload) for lease in queue.claim(12)} == {200_000}


def test_the_task_of_each_tick_has_the_priority_and_the_group_of_the_schedule(queue: Any) -> None:
    queue.configure(politeness=Politeness(0, 1))
    queue.schedules.set("urgent", Task("urgent", group="One", priority=5), every=10)
    for _ in range(2):
        assert later(queue, 10) == 1
        found = queue.inspect("urgent")
        assert (found.priority, found.host) == (5, "one")
        queue.ack(queue.claim())


def test_a_schedule_ends_after_so_many_ticks(queue: Any) -> None:
    queue.schedules.set("thrice", every=10, times=3, overlap=True, missed="all")
    assert later(queue, 100) == 3
    found = queue.schedules.get("thrice")
    assert (found.state, found.next, found.put) == ("ended", None, 3)
    with pytest.raises(InvalidInput, match="has ended"):
        queue.schedules.resume("thrice")


def test_a_schedule_of_another_timing_counts_its_ticks_anew(queue: Any) -> None:
    queue.schedules.set("thrice", every=10, times=3, overlap=True, missed="all")
    assert later(queue, 20) == 2
    found = queue.schedules.set("thrice", every=5, times=3, overlap=True, missed="all")
    assert (found.put, found.skipped, found.missed_ticks, found.last) == (0, 0, 0, None)
    assert later(queue, 100) == 3
    assert queue.schedules.get("thrice").state == "ended"


def test_a_schedule_of_before_that_puts_all_under_one_id_goes_on(queue: Any) -> None:
    with pytest.raises(BadTiming, match="add overlap=True"):
        queue.schedules.declare(Schedule("old", every=60, missed="all"))
    queue.schedules.set("old", every=60, overlap=True, missed="all")
    (stored,) = (one for page in transfer.schedules(queue) for one in page)
    fields = json.loads(stored.line())
    del fields["definition"]["overlap"]
    assert queue.schedules.cancel("old")
    read: Any = transfer.read(json.dumps(fields).encode())
    assert transfer.restore_schedules(queue, [read]) == 1
    queue.schedules.move("old", every=10)
    assert later(queue, 30) == 1
    found = queue.schedules.get("old")
    assert (found.missed, found.overlap, found.put, found.skipped + found.missed_ticks) == ("all", False, 1, 2)


def test_the_first_declaration_does_not_fire_the_past(queue: Any) -> None:
    past = datetime.fromtimestamp(queue.clock.now - HOUR, UTC)
    queue.schedules.set("old", every=60, start=past, overlap=True, missed="all")
    queue.schedules.set("morning", cron="0 9 * * *", overlap=True, missed="all")  # the clock shows 22:13
    assert queue.schedules.tick() == 0


def test_the_same_timing_again_moves_no_tick_and_another_one_does(queue: Any) -> None:
    first = queue.schedules.set("news", every=60)
    queue.clock.advance(40)
    again = queue.schedules.set("news", Task("news", 1), every=60)
    assert (again.next, again.payload) == (first.next, 1)
    other = queue.schedules.set("news", every=90)
    assert other.next == queue.clock.now + 90
    moved = queue.schedules.move("news", cron="30 22 * * *")
    assert moved.timing == {"cron": "30 22 * * *", "tz": "UTC"}
    assert moved.next == datetime(2023, 11, 14, 22, 30, tzinfo=UTC).timestamp()


def test_the_times_of_a_timing_are_seconds_and_are_stored_as_ms(queue: Any) -> None:
    start = datetime.fromtimestamp(queue.clock.now + 0.25, UTC)
    found = queue.schedules.set("news", every=1.5, times=3, start=start, until=start + timedelta(hours=1))
    begin = start.timestamp()
    assert found.timing == {"every": 1.5, "times": 3, "start": begin, "until": begin + HOUR}
    assert queue.schedules.get("news") == next(queue.schedules.each()) == found
    assert queue.schedules.set("news", every=found.timing["every"], start=start).timing["every"] == 1.5
    (stored,) = (one for page in transfer.schedules(queue) for one in page)
    timing = json.loads(stored.line())["definition"]["timing"]
    assert (timing["every"], timing["start"]) == (1500, round(begin * 1000))
    assert queue.schedules.set("odd", every=60).timing == {"every": 60, "start": queue.clock.now}


def test_a_moved_schedule_keeps_its_times_and_what_is_left_of_them(queue: Any) -> None:
    queue.schedules.set("thrice", every=10, times=3, overlap=True, missed="all")
    assert later(queue, 20) == 2
    moved = queue.schedules.move("thrice", every=20)
    assert (moved.timing["times"], moved.put) == (3, 2)
    assert later(queue, 100) == 1
    assert queue.schedules.get("thrice").state == "ended"
    with pytest.raises(InvalidInput, match="has put its 3 ticks: move it with times="):
        queue.schedules.move("thrice", every=30)
    assert queue.schedules.move("thrice", every=20, times=3).put == 0
    assert later(queue, 100) == 3, "a new times counts from the move"


def test_a_moved_schedule_keeps_its_end(queue: Any) -> None:
    end = datetime.fromtimestamp(queue.clock.now + 25, UTC)
    queue.schedules.set("short", every=60, until=end + timedelta(hours=1))
    queue.schedules.move("short", every=60, until=end + timedelta(hours=2))
    queue.schedules.move("short", every=10, until=end)
    queue.schedules.move("short", every=5)
    assert later(queue, 100) == 1
    assert queue.schedules.get("short").state == "ended"


def test_a_paused_schedule_does_not_tick_and_goes_on_with_its_next_tick(queue: Any) -> None:
    queue.schedules.set("news", every=60, missed="all", overlap=True)
    assert queue.schedules.pause("news").state == "paused"
    assert later(queue, 600) == 0
    assert queue.schedules.set("news", Task("news", 1), every=60, missed="all", overlap=True).state == "paused"
    queue.clock.advance(30)
    assert queue.schedules.resume("news").next == queue.clock.now + 30
    assert later(queue, 30) == 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "move": lambda queue: queue.schedules.move("late", every=90),
    "set": lambda queue: queue.schedules.set("late", every=90, overlap=True),
    "pause": lambda queue: queue.schedules.pause("late"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("missed", "put"), [("last", 1), ("all", 3), ("none", 1)])
def test_what_is_due_when_a_schedule_changes_is_put_or_counted(queue: Any, change: str, missed: str, put: int) -> None:
    queue.schedules.set("late", every=60, overlap=True, missed=missed)
    ticks = [f"late@{round(queue.clock.now * 1000) + n * 60_000}" for n in (1, 2, 3)]
    queue.clock.advance(200)
    CHANGES[change](queue)
    assert todos(queue) == ticks[-put:]
    assert queue.schedules.tick() == 0
    counters = queue.stats().counters
    assert (counters["ticked"], counters.get("ticks_missed", 0)) == (put, 3 - put)


def test_what_is_due_when_new_code_has_another_timing_is_put(queue: Any) -> None:
    queue.schedules.declare(Schedule("news", cron="*/10 * * * *", missed="all", overlap=True))
    queue.clock.advance(1200)
    queue.schedules.declare(Schedule("news", cron="0 * * * *", missed="all", overlap=True))
    assert len(todos(queue)) == 2


def test_the_ticks_of_a_pause_are_counted_as_skipped(queue: Any) -> None:
    queue.schedules.set("news", every=60)
    queue.schedules.pause("news")
    queue.clock.advance(200)
    assert queue.schedules.resume("news").skipped == 3
    queue.schedules.pause("news")
    queue.clock.advance(600)
    assert queue.schedules.move("news", cron="0 9 * * *").skipped == 13
    assert (queue.schedules.resume("news").skipped, todos(queue)) == (13, [])
    assert queue.stats().counters["ticks_skipped"] == 13


def test_ticks_that_cannot_be_put_are_missed_when_the_schedule_changes() -> None:
    with fake_queue() as queue:
        queue.configure(politeness=Politeness(0, 1))
        queue.schedules.set("news", Task("news", group="a", priority=5), every=60)
        queue.configure(politeness="off")
        queue.clock.advance(200)
        with pytest.raises(InvalidInput, match="cannot be put"):
            queue.schedules.tick()
        assert queue.schedules.move("news", every=90).missed_ticks == 3
        assert todos(queue) == []


@pytest.mark.parametrize(("count", "size"), [(100, 1), (30, 200_000)])
def test_many_schedules_whose_ticks_cannot_be_put_keep_no_other_one_from_ticking(count: int, size: int) -> None:
    with fake_queue() as queue:
        queue.configure(politeness=Politeness(0, 1))
        for n in range(count):
            queue.schedules.set(f"tenant {n}", Task(f"tenant {n}", b"x" * size, group="a", priority=5), every=60)
        queue.configure(politeness="off")
        queue.clock.advance(1)
        queue.schedules.set("backup", every=60)
        queue.clock.advance(60)
        with pytest.raises(InvalidInput, match=r"the ticks of schedule 'tenant .*' cannot be put here"):
            queue.schedules.tick()
        assert todos(queue) == ["backup"]


def test_a_late_schedule_that_cannot_be_read_is_set_again_and_can_be_paused() -> None:
    with fake_queue() as queue:
        raw: Any = fakeredis.FakeRedis(server=queue.clock.server)
        queue.schedules.set("news", every=60)
        raw.hset(queue.operations.key("schedules"), "news", "{}")
        queue.clock.advance(200)
        assert queue.schedules.set("news", every=60).next == queue.clock.now + 60
        raw.hset(queue.operations.key("schedules"), "news", "{}")
        queue.clock.advance(200)
        with pytest.raises(InvalidInput, match="set the schedule again"):
            queue.schedules.pause("news")
        assert queue.schedules.set("news", every=90).state == "paused"


def test_a_cancelled_schedule_is_gone_and_a_queue_without_schedules_is_as_it_was(queue: Any) -> None:
    queue.schedules.set("a", every=60)
    queue.schedules.set("b", every=60)
    assert queue.schedules.cancel("a") is True
    assert queue.schedules.cancel("a") is False
    assert queue.schedules.get("a") is None
    with pytest.raises(InvalidInput, match="no schedule 'a'"):
        queue.schedules.pause("a")
    queue.schedules.cancel("b")
    assert "uses" not in queue.stats().settings
    assert later(queue, 600) == 0


def test_all_schedules_are_listed_page_by_page(queue: Any) -> None:
    names = {f"s{n}" for n in range(300)}
    queue.schedules.declare(*(Schedule(name, every=60) for name in names))
    found, cursor, pages = set[str](), None, 0
    while pages == 0 or cursor is not None:
        page = queue.schedules.list(cursor, n=50)
        found |= {info.name for info in page}
        cursor, pages = page.cursor, pages + 1
    assert found == names
    assert {info.name for info in queue.schedules.each()} == names


# ---- declared by code


def test_code_that_declares_nothing_for_an_hour_pauses_its_schedule_and_declaring_again_lets_it_go_on(
    queue: Any,
) -> None:
    wanted = Schedule("nightly", every=HOUR + 60, missed="last")
    queue.schedules.declare(wanted)
    assert queue.schedules.get("nightly").source == "code"
    assert later(queue, HOUR + 60) == 0
    assert queue.schedules.get("nightly").state == "undeclared"
    queue.schedules.declare(wanted)
    assert queue.schedules.get("nightly").state == "running"
    assert queue.schedules.tick() == 1, "the tick that was due meanwhile is not lost"


def test_code_that_declares_its_schedule_each_minute_keeps_it(queue: Any) -> None:
    wanted = Schedule("nightly", every=2 * HOUR)
    queue.schedules.declare(wanted)
    for _ in range(12):
        queue.clock.advance(600)
        queue.schedules.declare(wanted)
    assert queue.schedules.tick() == 1


def test_new_code_changes_its_schedule_and_not_what_a_person_has_set(queue: Any) -> None:
    queue.schedules.declare(Schedule("a", every=60), Schedule("b", every=60))
    queue.schedules.move("b", every=30)
    queue.schedules.declare(Schedule("a", every=90), Schedule("b", every=60))
    assert queue.schedules.get("a").timing["every"] == 90
    assert (queue.schedules.get("b").timing["every"], queue.schedules.get("b").source) == (30, "set")


def test_a_schedule_whose_time_was_deleted_from_the_code_stops_soon(queue: Any) -> None:
    app = App(queue.name)

    @app.task
    def report() -> None: ...

    @app.task(every=60)
    def other() -> None: ...

    queue.schedules.declare(Schedule("report", every=60), Schedule("other", every=60), Schedule("foreign", every=60))
    queue.schedules.set("mine", every=60)
    declare = scheduling.declaring(app, queue.name, queue.flows)
    assert declare is not None
    for minute in range(6):
        later(queue, 60)
        if minute < 2:
            queue.schedules.declare(Schedule("report", every=60))  # an old worker, which still knows the time
        queue.run(declare())
    assert {one.name: one.state for one in queue.schedules.each()} == {
        "report": "undeclared", "other": "running", "foreign": "running", "mine": "running"
    }  # fmt: skip
    assert 2 <= queue.schedules.get("report").put + queue.schedules.get("report").skipped <= 5
    queue.schedules.declare(Schedule("report", every=60))
    assert queue.schedules.get("report").state == "running", "an old worker is back"


def test_a_function_that_new_code_moves_to_another_queue_is_soon_called_from_there_only(queue: Any) -> None:
    app = App("shop", queues=[queue.name, "high"])

    @app.task(queue="high", every=60)
    def report() -> None: ...

    queue.schedules.declare(Schedule("report", every=60))  # a worker with the code of before
    declare = scheduling.declaring(app, queue.name, queue.flows)
    assert declare is not None
    for _ in range(6):
        later(queue, 60)
        queue.run(declare())
    assert queue.schedules.get("report").state == "undeclared"


@pytest.mark.parametrize("other", [90, *(pytest.param(n, marks=pytest.mark.breaking) for n in (80, 7 * 24 * HOUR))])
def test_two_programs_that_declare_a_schedule_with_another_every_do_not_stop_it(queue: Any, other: int) -> None:
    programs = [
        Schedule("news", every=80, overlap=True, times=1000),
        Schedule("news", every=other, overlap=True, times=1000),
    ]
    for second in range(0, HOUR, 5):
        if second % 30 == 0:
            queue.schedules.declare(programs[second // 30 % 2])
        queue.clock.advance(5)
        queue.schedules.tick()
    found = sorted(int(task.partition("@")[2]) for task in todos(queue))
    assert 36 <= len(found) <= 45
    assert min(later - earlier for earlier, later in pairwise(found)) >= 79_999, "a timer ticks too early"
    assert queue.schedules.get("news").put == len(found)


def test_a_timer_that_code_makes_shorter_ticks_when_the_new_time_has_passed_since_its_last_tick(queue: Any) -> None:
    queue.schedules.declare(Schedule("news", every=1800))
    assert later(queue, 1800) == 1
    queue.clock.advance(600)
    queue.schedules.declare(Schedule("news", every=900))
    assert queue.schedules.get("news").next == queue.clock.now + 300
    queue.schedules.declare(Schedule("news", every=60, missed="none", overlap=True))
    assert queue.schedules.tick() == 1
    assert queue.schedules.get("news").next == queue.clock.now + 60


def test_a_moved_schedule_of_code_is_cancelled_to_give_it_back_to_the_code(queue: Any) -> None:
    queue.schedules.declare(Schedule("a", cron="0 9 * * *"))
    queue.schedules.move("a", every=30)
    queue.schedules.declare(Schedule("a", cron="0 10 * * *"))
    found = queue.schedules.get("a")
    assert (found.timing["every"], found.source, found.over_code) == (30, "set", True), "what a person has said counts"
    queue.schedules.set("a", every=60)
    assert queue.schedules.move("a", every=30).over_code
    assert not queue.schedules.set("b", every=60).over_code
    assert queue.schedules.cancel("a")
    queue.schedules.declare(Schedule("a", cron="0 10 * * *"))
    found = queue.schedules.get("a")
    assert (found.source, found.timing["cron"], found.over_code) == ("code", "0 10 * * *", False)


def test_a_schedule_of_code_is_paused_and_not_cancelled(queue: Any) -> None:
    queue.schedules.declare(Schedule("a", every=60))
    with pytest.raises(InvalidInput, match="pause it"):
        queue.schedules.cancel("a")
    queue.schedules.pause("a")
    queue.clock.advance(60)
    queue.schedules.declare(Schedule("a", every=60))
    assert queue.schedules.get("a").state == "paused"
    queue.clock.advance(HOUR)
    assert queue.schedules.cancel("a") is True


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "task", "how"),
    [
        ("", None, {"every": 60}),
        ("x@17", None, {"every": 60}),
        ("x" * 201, None, {"every": 60}),
        ("x", None, {}),
        ("x", None, {"every": 60, "cron": "* * * * *"}),
        ("x", None, {"every": 0.5}),
        ("x", None, {"every": 60, "missed": "never"}),
        ("x", None, {"every": 60, "missed": "all"}),
        ("x", Task("x", "y" * 300_000), {"every": 60}),
        ("x", "i" * 1010, {"every": 60, "overlap": True}),
        ("x", ["a", "b"], {"every": 60}),
        ("x", None, {"every": 60, "until": datetime(2001, 1, 1, tzinfo=UTC)}),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(queue: Any, name: str, task: Any, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        queue.schedules.set(name, task, **how)
    assert len(queue.schedules.list()) == 0


@pytest.mark.breaking
def test_ten_thousand_schedules_and_no_more() -> None:
    with fake_queue() as queue:
        queue.schedules.set("s0", every=60)
        raw: Any = fakeredis.FakeRedis(server=queue.clock.server)
        key = queue.operations.key
        for name in ("schedules", "ticked"):
            value = raw.hget(key(name), "s0")
            raw.hset(key(name), mapping={f"s{n}": value for n in range(10_000)})
        with pytest.raises(InvalidInput, match="10,000"):
            queue.schedules.set("more", every=60)
        assert queue.schedules.set("s1", every=30).timing["every"] == 30


def test_a_sharded_queue_refuses_a_task_of_another_shard() -> None:
    with fake_sharded_queue() as queue:
        with pytest.raises(InvalidInput, match="another shard"):
            queue.schedules.set("news", "https://a.example/news", every=60)
        queue.schedules.set("https://a.example/news", every=60)
    with fake_sharded_queue(by="id") as queue, pytest.raises(InvalidInput, match="without overlap"):
        queue.schedules.set("news", every=60, overlap=True)


# ---- looking, moving house, running


def doctor_says(queue: Any) -> doctor.Finding | None:
    examine: Any = divided.examine if isinstance(queue, FakeShardedQueue) else doctor.examine
    return next((one for one in examine(queue) if one.check == "schedules"), None)


def test_doctor_counts_schedules_and_names_those_that_nobody_declares(queue: Any) -> None:
    assert doctor_says(queue) is None
    queue.schedules.declare(Schedule("a", every=60), Schedule("b", every=60))
    queue.schedules.set("c", every=3 * HOUR)
    found = doctor_says(queue)
    assert found is not None
    assert found.verdict == "green"
    queue.clock.advance(61)
    found = doctor_says(queue)
    assert found is not None
    assert (found.verdict, "a tick was due" in found.found) == ("red", True)
    later(queue, 2 * HOUR)
    found = doctor_says(queue)
    assert found is not None
    assert found.verdict == "yellow"
    assert "no code declares them" in found.found


def test_an_export_holds_the_schedules_and_an_import_brings_them_in_as_they_were(queue: Any) -> None:
    queue.schedules.set("digest", Task("digest", {"to": 42}), cron="0 7 * * *", tz="Asia/Tokyo", grace=HOUR)
    queue.schedules.set("often", every=10)
    queue.schedules.declare(Schedule("code", every=60))
    queue.schedules.pause("digest")
    later(queue, 10)
    lines = [one.line().encode() for page in transfer.schedules(queue) for one in page]
    assert len(lines) == 3
    with fake_queue("other", clock=queue.clock) as other:
        items: Any = [transfer.read(line) for line in lines]
        assert transfer.restore_schedules(other, items) == 3
        assert transfer.restore_schedules(other, items) == 0
        for info in queue.schedules.each():
            there: Any = other.schedules.get(info.name)
            assert there == (info if info.source == "set" else replace(info, declared=there.declared)), info.name
        other.schedules.declare(Schedule("code", every=60))
        assert other.schedules.get("code") == replace(queue.schedules.get("code"), declared=queue.clock.now)


def test_a_line_of_a_schedule_that_is_broken_is_refused() -> None:
    for line in (b'{"schedule": "x"}', b'{"schedule": 5, "counts": [0, 0, 0, 0]}'):
        with pytest.raises(InvalidInput, match="schedule"):
            transfer.read(line)


def test_a_run_of_a_handler_puts_the_ticks_that_are_due(queue: Any) -> None:
    queue.schedules.set("often", every=10)
    met = list[str]()
    run(lambda lease: met.append(lease.task), queue)
    assert met == []
    queue.clock.advance(10)
    run(lambda lease: met.append(lease.task), queue)
    assert met == ["often"]


# ---- clocks


def test_a_clock_that_steps_back_repeats_no_tick() -> None:
    with fake_queue() as queue:
        queue.schedules.set("a", every=60, overlap=True, missed="all")
        put = later(queue, 600)
        step_back(queue, 300)
        for _ in range(300):
            put += later(queue, 1)
        assert put == 10
        assert later(queue, 60) == 1


def test_a_clock_that_leaps_ahead_puts_each_tick_once() -> None:
    with fake_queue() as queue:
        queue.schedules.set("a", every=60, overlap=True, missed="all", grace=timedelta(days=9))
        assert later(queue, 86_400) == 1440
        assert later(queue, 60) == 1


@pytest.mark.parametrize(
    ("day", "line", "local"),
    [
        ("2024-03-31", "30 2 * * *", ["03:00"]),  # Berlin's clock skips the hour
        ("2024-10-27", "30 2 * * *", ["02:30"]),  # and repeats it: a fixed line ticks in the first hour only
        ("2024-10-27", "30 * * * *", ["01:30", "02:30", "02:30", "03:30"]),
    ],
)
def test_ticks_on_the_days_on_which_a_zone_changes_its_clock(day: str, line: str, local: list[str]) -> None:
    from zoneinfo import ZoneInfo

    zone = ZoneInfo("Europe/Berlin")
    start = datetime.fromisoformat(f"{day}T01:00").replace(tzinfo=zone)
    end = datetime.fromisoformat(f"{day}T04:00").replace(tzinfo=zone)
    with fake_queue(clock=Clock(start.timestamp())) as queue:
        queue.schedules.set("report", cron=line, tz="Europe/Berlin", overlap=True)
        met = list[str]()
        while queue.clock.now < end.timestamp():
            later(queue, 300)
            for lease in queue.claim(10):
                moment = int(lease.task.partition("@")[2]) / 1000
                met.append(datetime.fromtimestamp(moment, zone).strftime("%H:%M"))
                queue.ack(lease)
        assert met == local


@pytest.mark.parametrize("other", ["Etc/GMT+7", "Etc/GMT+9"])
@pytest.mark.parametrize(("missed", "late", "put"), [("last", 5, 1), ("all", 5, 1), ("none", 5, 1), ("none", 600, 0)])
def test_a_tick_that_other_data_of_time_zones_do_not_know_is_put_or_counted(
    queue: Any, monkeypatch: pytest.MonkeyPatch, other: str, missed: str, late: int, put: int
) -> None:
    queue.schedules.set("daily", cron="0 9 * * *", tz="Etc/GMT+8", missed=missed, overlap=True)
    tick = queue.schedules.get("daily").next
    monkeypatch.setattr(ticks, "cron", lambda line, _: cron(line, other))  # the data of another machine
    assert later(queue, tick - queue.clock.now + late) == put
    assert todos(queue) == [f"daily@{round(tick * 1000)}"] * put
    found = queue.schedules.get("daily")
    assert (found.put, found.missed_ticks) == (put, 1 - put)
    queue.schedules.pause("daily")
    monkeypatch.undo()
    queue.clock.advance(found.next - queue.clock.now)
    assert queue.schedules.resume("daily").skipped == 1, "a tick of a pause is counted, too"


def test_bad_timing_is_an_error_of_the_caller(queue: Any) -> None:
    with pytest.raises(BadTiming, match="cron"):
        queue.schedules.set("x", cron="61 * * * *")
