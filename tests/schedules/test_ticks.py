"""Which ticks are due: what becomes of missed ones, clocks that step back or leap ahead, and the ids of ticks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.rooms.schedules.definition import checked
from timeoutq.rooms.schedules.timing import MISSED, MOST, ON_TIME_MS, Due, Timing, due, lateness
from timeoutq.words.errors import InvalidInput

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = 1_767_225_600_000
HOURLY = Timing.of(cron="0 * * * *")
NINE = Timing.of(cron="0 9 * * *", tz="Europe/Berlin")


def ms(said: str) -> int:
    return int(datetime.fromisoformat(f"{said}Z").timestamp() * 1000)


def test_the_next_tick_comes_after_the_moment_and_not_at_it() -> None:
    assert HOURLY.after(START_MS - 1) == START_MS
    assert HOURLY.after(START_MS) == START_MS + HOUR
    assert HOURLY.after(START_MS + 999) == START_MS + HOUR
    assert NINE.after(ms("2026-07-01T06:59:59.999")) == ms("2026-07-01T07:00")
    assert NINE.after(ms("2026-01-01T07:00")) == ms("2026-01-01T08:00")


def test_every_ticks_at_its_start_and_then_after_equal_times() -> None:
    timing = Timing.of(every=90, start=START)
    assert timing.after(0) == START_MS
    assert timing.after(START_MS - 1) == START_MS
    assert timing.after(START_MS) == START_MS + 90_000
    assert timing.after(START_MS + 90_000 * 10**6 + 1) == START_MS + 90_000 * (10**6 + 1)


def test_start_and_until_are_both_included() -> None:
    timing = Timing.of(cron="0 * * * *", start=START + timedelta(minutes=1), until=START + timedelta(hours=2))
    assert timing.after(0) == START_MS + HOUR
    assert timing.after(START_MS + HOUR) == START_MS + 2 * HOUR
    assert timing.after(START_MS + 2 * HOUR) is None
    exact = Timing.of(cron="0 * * * *", start=START)
    assert exact.after(0) == START_MS
    short = Timing.of(every=60, start=START, until=START + timedelta(seconds=119))
    assert short.after(START_MS) == START_MS + MINUTE
    assert short.after(START_MS + MINUTE) is None


def test_of_missed_ticks_none_puts_only_one_that_is_on_time() -> None:
    first, late, minute = START_MS + HOUR, START_MS + 3 * HOUR + ON_TIME_MS + 1, lateness("none")
    assert due(HOURLY, first, late, grace_ms=minute) == Due((), START_MS + 4 * HOUR, 3)
    assert due(HOURLY, first, late - 1, grace_ms=minute) == Due((START_MS + 3 * HOUR,), START_MS + 4 * HOUR, 2)
    quick = Timing.of(every=1, start=START)
    found = due(quick, START_MS + 1000, START_MS + 30_500, grace_ms=minute)
    assert found == Due((START_MS + 30_000,), START_MS + 31_000, 29)


def test_what_is_later_than_grace_is_skipped() -> None:
    six = 6 * HOUR
    nine = ms("2026-07-01T07:00")
    in_time = due(NINE, nine, nine + six, grace_ms=six)
    assert in_time == Due((nine,), nine + DAY, 0)
    too_late = due(NINE, nine, nine + six + 1, grace_ms=six)
    assert too_late == Due((), nine + DAY, 1)
    found = due(HOURLY, START_MS + HOUR, START_MS + 10 * HOUR, missed="all", grace_ms=2 * HOUR)
    assert found == Due((START_MS + 8 * HOUR, START_MS + 9 * HOUR, START_MS + 10 * HOUR), START_MS + 11 * HOUR, 7)


def test_a_tick_that_is_stored_is_put_though_the_data_of_time_zones_are_other_ones_here() -> None:
    stored = START_MS + HOUR // 2
    assert due(HOURLY, stored, stored + MINUTE) == Due((stored,), START_MS + HOUR, 0)
    assert due(HOURLY, stored, START_MS + 2 * HOUR, missed="all").ticks == (
        stored,
        START_MS + HOUR,
        START_MS + 2 * HOUR,
    )


def test_a_schedule_ends_after_so_many_ticks() -> None:
    timing, first = Timing.of(every=60, times=3).anchored(START_MS), START_MS + MINUTE
    now = START_MS + 10 * MINUTE
    assert due(timing, first, first, put=0).next_ms == START_MS + 2 * MINUTE
    assert due(timing, first, first, put=2) == Due((first,), None, 0)
    assert due(timing, first, now, put=3) == Due((), None, 0)
    assert due(timing, first, now, missed="all", put=1) == Due((first, START_MS + 2 * MINUTE), None, 0)
    assert due(timing, first, now, put=1).next_ms == now + MINUTE, "skipped ticks do not count"
    many = Timing.of(every=60, times=MOST + 1).anchored(START_MS)
    assert due(many, first, START_MS + DAY, missed="all").next_ms == START_MS + (MOST + 1) * MINUTE


@given(
    st.sampled_from([HOURLY, NINE, Timing.of(cron="*/7 * * * *", tz="Australia/Lord_Howe"), Timing.of(every=45)]),
    st.sampled_from(MISSED),
    st.lists(st.integers(-3 * HOUR, 12 * HOUR), max_size=30),
)
def test_however_a_clock_steps_no_tick_is_put_twice_or_early_and_none_is_forgotten(
    timing: Timing, missed: str, steps: list[int]
) -> None:
    """As the room does: keep the next tick, and look whenever it has come, by any clock."""
    now = start = ms("2026-04-04T12:00")
    timing = timing.anchored(now)
    nextly, put, lost = timing.after(now), list[int](), 0
    for step in steps:
        now += step
        while nextly is not None and nextly <= now:
            found = due(timing, nextly, now, missed=missed, grace_ms=lateness(missed))
            assert all(tick <= now for tick in found.ticks)
            put += found.ticks
            lost += found.missed
            nextly = found.next_ms
    assert put == sorted(set(put))
    assert nextly is not None
    ticks, at = list[int](), timing.after(start)
    while at is not None and at < nextly:
        ticks.append(at)
        at = timing.after(at)
    assert at == nextly
    assert set(put) <= set(ticks)
    assert len(put) + lost == len(ticks)
    assert missed != "all" or put == ticks


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("first", None), "missed='first' is unknown: use 'last', 'all' or 'none'"),
        (("none", 60), "missed='none' puts a tick within a minute or never: leave grace= out"),
        (("last", 0.5), "grace=0.5 is less than a second"),
        (("last", -1), "grace must be a finite number of seconds"),
    ],
)
def test_a_bad_lateness_is_refused(given: tuple[Any, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        lateness(*given)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is no name of a schedule: use text of 1 to 200 bytes"),
        ("\ud800", "is no name of a schedule"),
        ("report@1767225600000", "does not end in @ and digits, .*: ids of ticks do"),
    ],
)
def test_a_bad_name_of_a_schedule_is_refused(name: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        checked(name)
