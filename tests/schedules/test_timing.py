"""What says when a schedule ticks: what is refused, and the text that is stored in Redis and read back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from timeoutq.rooms.schedules.timing import Timing
from timeoutq.words.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = START.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"cron": "0 9 * * mon-fri", "tz": "Europe/Berlin"}, {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"}),
        ({"cron": "@daily"}, {"cron": "0 0 * * *", "tz": "UTC"}),
        ({"cron": "0 7 * * *", "tz": ZoneInfo("Asia/Tokyo")}, {"cron": "0 7 * * *", "tz": "Asia/Tokyo"}),
        ({"every": 60}, {"every": 60000}),
        ({"every": timedelta(hours=1), "times": 3}, {"every": 3600000, "times": 3}),
        (
            {"every": 1.5, "start": START, "until": START + timedelta(days=1)},
            {"every": 1500, "start": 1767225600000, "until": 1767312000000},
        ),
        (
            {"cron": "@hourly", "start": START.astimezone(timezone(timedelta(hours=5)))},
            {"cron": "0 * * * *", "tz": "UTC", "start": 1767225600000},
        ),
    ],
)
def test_a_timing_is_stored_in_one_form_which_is_read_back(given: dict[str, Any], stored: dict[str, Any]) -> None:
    timing = Timing.of(**given)
    assert timing.stored() == stored
    assert Timing.read(stored) == timing


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "this has neither of cron= and every=: give one"),
    ({"cron": "* * * * *", "every": 60}, "this has both of cron= and every="),
    ({"every": 60, "tz": "UTC"}, "tz='UTC' goes with cron=: leave tz= out"),
    ({"cron": "* * * *"}, "has 4 fields"),
    ({"cron": "* * * * *", "tz": "Berlin"}, "did you mean Europe/Berlin"),
    ({"every": 0.999}, "every=0.999 s is out of range: 1 s to 3,660 days; .*Ack"),
    ({"every": float("nan")}, "every must be a finite number of seconds"),
    ({"every": timedelta(days=4000)}, "is out of range: 1 s to 3,660 days"),
    ({"every": 60, "times": 0}, "times must be a whole number from 1 to 1,000,000,000"),
    ({"every": 60, "start": NAIVE}, "start=.* has no time zone: use datetime\\(…, tzinfo="),
    ({"every": 60, "start": 1_767_225_600}, "start=1767225600 is no datetime"),
    ({"every": 60, "start": datetime(1969, 1, 1, tzinfo=UTC)}, "start=.* is not between the years 1970 and 9999"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_a_bad_timing_is_refused_with_its_cause_and_its_cure(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Timing.of(**given)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({}, "every=0 s is out of range"),
        ({"every": "60"}, "every must be a whole number"),
        ({"cron": 5, "tz": "UTC"}, "every=0 s is out of range"),
    ],
)
def test_a_stored_timing_that_is_none_is_refused(stored: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Timing.read(stored)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"cron": "61 * * * *", "tz": "UTC"}, "its minute '61' cannot be read"),
        ({"cron": "0 9 * * *", "tz": "Mars/Phobos"}, "is no time zone"),
    ],
)
def test_a_line_that_is_not_known_here_is_refused_when_it_ticks(stored: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Timing.read(stored).after(0)


def test_every_counts_from_its_first_declaration_until_it_changes() -> None:
    first = Timing.of(every=60).anchored(5_000)
    assert first.stored() == {"every": 60_000, "start": 5_000}
    again = Timing.of(every=60).anchored(99_000, Timing.read(first.stored()))
    assert again == first, "the same declaration in a new process moves no tick"
    assert Timing.of(every=30).anchored(99_000, first).start_ms == 99_000
    assert Timing.of(every=60, times=2).anchored(99_000, first).start_ms == 99_000
    assert Timing.of(every=60).anchored(99_000, Timing.of(cron="@daily")).start_ms == 99_000
    explicit = Timing.of(every=60, start=START)
    assert explicit.anchored(99_000, first) is explicit
    line = Timing.of(cron="@daily")
    assert line.anchored(99_000) is line
