"""Schedules of a queue, in memory and by the clock of the test: set, tick, move, pause, resume, cancel, declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.core.test_clock_steps import step_back
from timeoutq import InvalidInput, Schedule, State, Task
from timeoutq.functions import App, scheduling
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.testing import fake_queue, fake_sharded_queue
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


def test_new_code_changes_its_schedule_and_what_a_person_has_set_but_not_a_pause(queue: Any) -> None:
    queue.schedules.set("b", Task("b", 1), every=30)
    queue.schedules.declare(Schedule("a", every=60), Schedule("b", every=60))
    queue.schedules.pause("a")
    queue.schedules.declare(Schedule("a", every=90), Schedule("b", every=60))
    found = queue.schedules.get("a")
    assert (found.timing["every"], found.source, found.state) == (90, "code", "paused")
    found = queue.schedules.get("b")
    assert (found.timing["every"], found.source, found.state, found.payload) == (60, "code", "running", None)


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
    queue.schedules.declare(Schedule("news", every=60, overlap=True))
    assert queue.schedules.tick() == 1
    assert queue.schedules.get("news").next == queue.clock.now + 60


def test_what_code_declares_is_changed_in_the_code(queue: Any) -> None:
    queue.schedules.declare(Schedule("a", every=60))
    changes: list[Callable[[], Any]] = [
        lambda: queue.schedules.set("a", every=30),
        lambda: queue.schedules.move("a", every=30),
        lambda: queue.schedules.cancel("a"),
    ]
    for change in changes:
        with pytest.raises(InvalidInput, match=r"code declares schedule 'a', .*: pause it, or change the code"):
            change()
    queue.clock.advance(180)
    assert queue.schedules.move("a", every=30).source == "set", "no code declares it any more"
    assert queue.schedules.cancel("a")


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "task", "how"),
    [
        ("", None, {"every": 60}),
        ("x@17", None, {"every": 60}),
        ("x", None, {}),
        ("x", None, {"every": 60, "cron": "* * * * *"}),
        ("x", None, {"every": 60, "missed": "all"}),
        ("x", Task("x", "y" * 300_000), {"every": 60}),
        ("x", "i" * 1010, {"every": 60, "overlap": True}),
        ("x", ["a", "b"], {"every": 60}),
        ("x", None, {"every": 60, "until": datetime(2001, 1, 1, tzinfo=UTC)}),
        (
            "x",
            None,
            {
                "cron": "0 9 * * *",
                "start": datetime(2026, 1, 1, tzinfo=UTC),
                "until": datetime(2026, 1, 1, 8, tzinfo=UTC),
            },
        ),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(queue: Any, name: str, task: Any, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        queue.schedules.set(name, task, **how)
    assert len(queue.schedules.list()) == 0


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
            assert there == replace(info, declared=there.declared), info.name
        other.schedules.declare(Schedule("code", every=60))
        assert other.schedules.get("code") == replace(queue.schedules.get("code"), declared=queue.clock.now)


# ---- clocks, and zones


def test_the_version_of_the_data_of_time_zones_stands_beside_the_tick_that_they_gave(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str = "daily") -> Any:
        return queue.schedules.get(name).zones

    def here(version: str) -> None:
        monkeypatch.setattr(Timing, "zones", property(lambda timing: "-" if timing.every_ms else version))

    here("2025b")
    queue.schedules.set("daily", cron="0 9 * * *", tz="America/Vancouver")
    queue.schedules.declare(Schedule("often", every=60))
    assert (told(), told("often")) == ("2025b", None)
    here("2026f")
    queue.schedules.set("daily", Task("daily", 1), cron="0 9 * * *", tz="America/Vancouver")
    queue.schedules.pause("daily")
    assert told() == "2025b", "the tick is still that of before"
    (line,) = [one.line().encode() for page in transfer.schedules(queue) for one in page if one.name == b"daily"]
    with fake_queue("other", clock=queue.clock) as other:
        items: Any = [transfer.read(line)]
        transfer.restore_schedules(other, items)
        there: Any = other.schedules.get("daily")
        assert there.zones == "2025b"
    queue.schedules.resume("daily")
    assert told() == "2025b", "it goes on with the same tick"
    later(queue, 24 * HOUR)
    assert told() == "2026f"
    here("2027a")
    queue.schedules.move("daily", cron="0 8 * * *", tz="America/Vancouver")
    assert told() == "2027a"
    queue.schedules.move("daily", every=90)
    assert told() is None


def test_a_clock_that_steps_back_repeats_no_tick() -> None:
    with fake_queue() as queue:
        queue.schedules.set("a", every=60, overlap=True, missed="all")
        put = later(queue, 600)
        step_back(queue, 300)
        for _ in range(300):
            put += later(queue, 1)
        assert put == 10
        assert later(queue, 60) == 1
