"""Ticks where a zone changes its clock: eight zones, both changes, seven lines each, the answers written by hand.

Each answer was found with pencil and paper from the offsets that the tz database publishes, which stand beside each
change: a time of the clock, minus the offset that holds then, is the instant. To verify one, for example that of
`30 1 * * *` in New York on November 1: the clock shows 01:30 first at -4 (05:30 UTC), then again at -5; a fixed line
ticks the first time only. `TZ=America/New_York date -d '2026-11-01 05:30 UTC'` shows the clock at an instant, and
`zdump -v America/New_York | grep 2026` shows the changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from timeoutq.rooms.schedules.cron import Cron, line

KINDS = ("inside", "before", "after", "hourly", "quarters", "midnight", "weekday")
"""What each of the seven lines of a change is for: the first is a time that the clock skips or repeats."""


@dataclass(frozen=True)
class Change:
    """A change of a zone's clock in 2026, and what lines give from a moment some hours before."""

    zone: str
    clock: str
    """What the clock shows before and after, with the offsets."""
    at: str
    """The instant of the change, UTC."""
    since: str
    lines: dict[str, str]
    """The next ticks after `since`, UTC."""


CHANGES = [
    Change(
        "America/New_York", "Sunday March 8, 02:00 at -5 becomes 03:00 at -4", "03-08T07:00", "03-08T04:00",
        {
            "30 2 * * *": "03-08T07:00 03-09T06:30 03-10T06:30",
            "59 1 * * *": "03-08T06:59 03-09T05:59",
            "0 3 * * *": "03-08T07:00 03-09T07:00",
            "0 * * * *": "03-08T05:00 03-08T06:00 03-08T07:00 03-08T08:00",
            "*/15 1-3 * * *": "03-08T06:00 03-08T06:15 03-08T06:30 03-08T06:45 03-08T07:00 03-08T07:15 03-08T07:30 "
            "03-08T07:45 03-09T05:00",
            "0 0 * * *": "03-08T05:00 03-09T04:00",
            "30 2 * * 0": "03-08T07:00 03-15T06:30",
        },
    ),
    Change(
        "America/New_York", "Sunday November 1, 02:00 at -4 becomes 01:00 at -5", "11-01T06:00", "11-01T03:00",
        {
            "30 1 * * *": "11-01T05:30 11-02T06:30 11-03T06:30",
            "59 0 * * *": "11-01T04:59 11-02T05:59",
            "0 2 * * *": "11-01T07:00 11-02T07:00",
            "0 * * * *": "11-01T04:00 11-01T05:00 11-01T06:00 11-01T07:00",
            "*/15 1 * * *": "11-01T05:00 11-01T05:15 11-01T05:30 11-01T05:45 11-01T06:00 11-01T06:15 11-01T06:30 "
            "11-01T06:45 11-02T06:00",
            "0 0 * * *": "11-01T04:00 11-02T05:00",
            "30 1 * * 0": "11-01T05:30 11-08T06:30",
        },
    ),
    Change(
        "Europe/Berlin", "Sunday March 29, 02:00 at +1 becomes 03:00 at +2", "03-29T01:00", "03-28T22:00",
        {
            "30 2 * * *": "03-29T01:00 03-30T00:30 03-31T00:30",
            "59 1 * * *": "03-29T00:59 03-29T23:59",
            "0 3 * * *": "03-29T01:00 03-30T01:00",
            "0 * * * *": "03-28T23:00 03-29T00:00 03-29T01:00 03-29T02:00",
            "*/15 1-3 * * *": "03-29T00:00 03-29T00:15 03-29T00:30 03-29T00:45 03-29T01:00 03-29T01:15 03-29T01:30 "
            "03-29T01:45 03-29T23:00",
            "0 0 * * *": "03-28T23:00 03-29T22:00 03-30T22:00",
            "30 2 * * SUN": "03-29T01:00 04-05T00:30",
        },
    ),
    Change(
        "Europe/Berlin", "Sunday October 25, 03:00 at +2 becomes 02:00 at +1", "10-25T01:00", "10-24T21:00",
        {
            "30 2 * * *": "10-25T00:30 10-26T01:30 10-27T01:30",
            "59 1 * * *": "10-24T23:59 10-26T00:59",
            "0 3 * * *": "10-25T02:00 10-26T02:00",
            "0 * * * *": "10-24T22:00 10-24T23:00 10-25T00:00 10-25T01:00 10-25T02:00",
            "*/15 2 * * *": "10-25T00:00 10-25T00:15 10-25T00:30 10-25T00:45 10-25T01:00 10-25T01:15 10-25T01:30 "
            "10-25T01:45 10-26T01:00",
            "0 0 * * *": "10-24T22:00 10-25T23:00",
            "30 2 * * 7": "10-25T00:30 11-01T01:30",
        },
    ),
    Change(
        "Australia/Lord_Howe", "Sunday October 4, 02:00 at +10:30 becomes 02:30 at +11", "10-03T15:30", "10-03T12:00",
        {
            "15 2 * * *": "10-03T15:30 10-04T15:15 10-05T15:15",
            "59 1 * * *": "10-03T15:29 10-04T14:59",
            "30 2 * * *": "10-03T15:30 10-04T15:30",
            "0 * * * *": "10-03T12:30 10-03T13:30 10-03T14:30 10-03T16:00 10-03T17:00",
            "*/15 1-3 * * *": "10-03T14:30 10-03T14:45 10-03T15:00 10-03T15:15 10-03T15:30 10-03T15:45 10-03T16:00 "
            "10-03T16:15 10-03T16:30 10-03T16:45 10-04T14:00",
            "0 0 * * *": "10-03T13:30 10-04T13:00",
            "15 2 * * 0": "10-03T15:30 10-10T15:15",
        },
    ),
    Change(
        "Australia/Lord_Howe", "Sunday April 5, 02:00 at +11 becomes 01:30 at +10:30", "04-04T15:00", "04-04T12:00",
        {
            "45 1 * * *": "04-04T14:45 04-05T15:15 04-06T15:15",
            "15 1 * * *": "04-04T14:15 04-05T14:45",
            "0 2 * * *": "04-04T15:30 04-05T15:30",
            "0 * * * *": "04-04T13:00 04-04T14:00 04-04T15:30 04-04T16:30",
            "*/15 1 * * *": "04-04T14:00 04-04T14:15 04-04T14:30 04-04T14:45 04-04T15:00 04-04T15:15 04-05T14:30",
            "0 0 * * *": "04-04T13:00 04-05T13:30",
            "45 1 * * 0": "04-04T14:45 04-11T15:15",
        },
    ),
    Change(
        "America/Santiago", "Sunday September 6, 00:00 at -4 becomes 01:00 at -3", "09-06T04:00", "09-06T01:30",
        {
            "30 0 * * *": "09-06T04:00 09-07T03:30 09-08T03:30",
            "59 23 * * *": "09-06T03:59 09-07T02:59",
            "0 1 * * *": "09-06T04:00 09-07T04:00",
            "0 * * * *": "09-06T02:00 09-06T03:00 09-06T04:00 09-06T05:00",
            "*/15 23,0,1 * * *": "09-06T03:00 09-06T03:15 09-06T03:30 09-06T03:45 09-06T04:00 09-06T04:15 09-06T04:30 "
            "09-06T04:45 09-07T02:00",
            "0 0 * * *": "09-06T04:00 09-07T03:00",
            "0 0 * * 0": "09-06T04:00 09-13T03:00",
        },
    ),
    Change(
        "America/Santiago", "Sunday April 5, 00:00 at -3 becomes Saturday, 23:00 at -4", "04-05T03:00", "04-05T00:30",
        {
            "30 23 * * *": "04-05T02:30 04-06T03:30 04-07T03:30",
            "59 22 * * *": "04-05T01:59 04-06T02:59",
            "15 0 * * *": "04-05T04:15 04-06T04:15",
            "0 * * * *": "04-05T01:00 04-05T02:00 04-05T03:00 04-05T04:00",
            "*/15 23 * * *": "04-05T02:00 04-05T02:15 04-05T02:30 04-05T02:45 04-05T03:00 04-05T03:15 04-05T03:30 "
            "04-05T03:45 04-06T03:00",
            "0 0 * * *": "04-05T04:00 04-06T04:00",
            "30 23 * * 6": "04-05T02:30 04-12T03:30",
        },
    ),
    # Morocco's clock goes back for the month of Ramadan
    Change(
        "Africa/Casablanca", "Sunday March 22, 02:00 at +0 becomes 03:00 at +1", "03-22T02:00", "03-21T23:00",
        {
            "30 2 * * *": "03-22T02:00 03-23T01:30 03-24T01:30",
            "59 1 * * *": "03-22T01:59 03-23T00:59",
            "0 3 * * *": "03-22T02:00 03-23T02:00",
            "0 * * * *": "03-22T00:00 03-22T01:00 03-22T02:00 03-22T03:00",
            "*/15 1-3 * * *": "03-22T01:00 03-22T01:15 03-22T01:30 03-22T01:45 03-22T02:00 03-22T02:15 03-22T02:30 "
            "03-22T02:45 03-23T00:00",
            "0 0 * * *": "03-22T00:00 03-22T23:00",
            "30 2 * * 0": "03-22T02:00 03-29T01:30",
        },
    ),
    Change(
        "Africa/Casablanca", "Sunday February 15, 03:00 at +1 becomes 02:00 at +0", "02-15T02:00", "02-14T22:00",
        {
            "30 2 * * *": "02-15T01:30 02-16T02:30 02-17T02:30",
            "59 1 * * *": "02-15T00:59 02-16T01:59",
            "0 3 * * *": "02-15T03:00 02-16T03:00",
            "0 * * * *": "02-14T23:00 02-15T00:00 02-15T01:00 02-15T02:00 02-15T03:00",
            "*/15 2 * * *": "02-15T01:00 02-15T01:15 02-15T01:30 02-15T01:45 02-15T02:00 02-15T02:15 02-15T02:30 "
            "02-15T02:45 02-16T02:00",
            "0 0 * * *": "02-14T23:00 02-16T00:00",
            "30 2 * * 0": "02-15T01:30 02-22T02:30",
        },
    ),
    # in the tz database, Ireland's winter is the exception, and its summer is the rule
    Change(
        "Europe/Dublin", "Sunday March 29, 01:00 at +0 becomes 02:00 at +1", "03-29T01:00", "03-28T22:00",
        {
            "30 1 * * *": "03-29T01:00 03-30T00:30 03-31T00:30",
            "59 0 * * *": "03-29T00:59 03-29T23:59",
            "0 2 * * *": "03-29T01:00 03-30T01:00",
            "0 * * * *": "03-28T23:00 03-29T00:00 03-29T01:00 03-29T02:00",
            "*/15 0-2 * * *": "03-29T00:00 03-29T00:15 03-29T00:30 03-29T00:45 03-29T01:00 03-29T01:15 03-29T01:30 "
            "03-29T01:45 03-29T23:00",
            "0 0 * * *": "03-29T00:00 03-29T23:00",
            "30 1 * * 0": "03-29T01:00 04-05T00:30",
        },
    ),
    Change(
        "Europe/Dublin", "Sunday October 25, 02:00 at +1 becomes 01:00 at +0", "10-25T01:00", "10-24T22:00",
        {
            "30 1 * * *": "10-25T00:30 10-26T01:30 10-27T01:30",
            "59 0 * * *": "10-24T23:59 10-26T00:59",
            "0 2 * * *": "10-25T02:00 10-26T02:00",
            "0 * * * *": "10-24T23:00 10-25T00:00 10-25T01:00 10-25T02:00",
            "*/15 1 * * *": "10-25T00:00 10-25T00:15 10-25T00:30 10-25T00:45 10-25T01:00 10-25T01:15 10-25T01:30 "
            "10-25T01:45 10-26T01:00",
            "0 0 * * *": "10-24T23:00 10-26T00:00",
            "30 1 * * 0": "10-25T00:30 11-01T01:30",
        },
    ),
    Change(
        "Atlantic/Azores", "Sunday March 29, 00:00 at -1 becomes 01:00 at +0", "03-29T01:00", "03-28T22:30",
        {
            "30 0 * * *": "03-29T01:00 03-30T00:30 03-31T00:30",
            "59 23 * * *": "03-29T00:59 03-29T23:59",
            "0 1 * * *": "03-29T01:00 03-30T01:00",
            "0 * * * *": "03-28T23:00 03-29T00:00 03-29T01:00 03-29T02:00",
            "*/15 23,0,1 * * *": "03-29T00:00 03-29T00:15 03-29T00:30 03-29T00:45 03-29T01:00 03-29T01:15 03-29T01:30 "
            "03-29T01:45 03-29T23:00",
            "0 0 * * *": "03-29T01:00 03-30T00:00",
            "0 0 * * 0": "03-29T01:00 04-05T00:00",
        },
    ),
    Change(
        "Atlantic/Azores", "Sunday October 25, 01:00 at +0 becomes 00:00 at -1", "10-25T01:00", "10-24T22:30",
        {
            "30 0 * * *": "10-25T00:30 10-26T01:30 10-27T01:30",
            "59 23 * * *": "10-24T23:59 10-26T00:59",
            "0 1 * * *": "10-25T02:00 10-26T02:00",
            "0 * * * *": "10-24T23:00 10-25T00:00 10-25T01:00 10-25T02:00",
            "*/15 0 * * *": "10-25T00:00 10-25T00:15 10-25T00:30 10-25T00:45 10-25T01:00 10-25T01:15 10-25T01:30 "
            "10-25T01:45 10-26T01:00",
            "0 0 * * *": "10-25T00:00 10-26T01:00",
            "0 0 * * 0": "10-25T00:00 11-01T01:00",
        },
    ),
    # Greenland's clock skips and repeats the last hour of a Saturday
    Change(
        "America/Nuuk", "Saturday March 28, 23:00 at -2 becomes Sunday, 00:00 at -1", "03-29T01:00", "03-28T22:30",
        {
            "30 23 * * *": "03-29T01:00 03-30T00:30 03-31T00:30",
            "59 22 * * *": "03-29T00:59 03-29T23:59",
            "15 0 * * *": "03-29T01:15 03-30T01:15",
            "0 * * * *": "03-28T23:00 03-29T00:00 03-29T01:00 03-29T02:00",
            "*/15 22,23,0 * * *": "03-29T00:00 03-29T00:15 03-29T00:30 03-29T00:45 03-29T01:00 03-29T01:15 03-29T01:30 "
            "03-29T01:45 03-29T23:00",
            "0 0 * * *": "03-29T01:00 03-30T01:00",
            "30 23 * * 6": "03-29T01:00 04-05T00:30",
        },
    ),
    Change(
        "America/Nuuk", "Sunday October 25, 00:00 at -1 becomes Saturday, 23:00 at -2", "10-25T01:00", "10-24T22:30",
        {
            "30 23 * * *": "10-25T00:30 10-26T01:30 10-27T01:30",
            "59 22 * * *": "10-24T23:59 10-26T00:59",
            "15 0 * * *": "10-25T02:15 10-26T02:15",
            "0 * * * *": "10-24T23:00 10-25T00:00 10-25T01:00 10-25T02:00",
            "*/15 23 * * *": "10-25T00:00 10-25T00:15 10-25T00:30 10-25T00:45 10-25T01:00 10-25T01:15 10-25T01:30 "
            "10-25T01:45 10-26T01:00",
            "0 0 * * *": "10-25T02:00 10-26T02:00",
            "30 23 * * 6": "10-25T00:30 11-01T01:30",
        },
    ),
]  # fmt: skip

ROWS = [
    pytest.param(change, text, answer.split(), id=f"{change.zone}-{change.at[:2]}-{kind}")
    for change in CHANGES
    for kind, (text, answer) in zip(KINDS, change.lines.items(), strict=True)
]


def instant(said: str, year: int = 2026) -> int:
    return int(datetime.fromisoformat(f"{year}-{said}").replace(tzinfo=UTC).timestamp())


def clock(moment: int, zone: str) -> str:
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%a %m-%d %H:%M:%S %z")


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 112
    assert len({change.zone for change in CHANGES}) == 8


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.zone}-{change.at[:2]}")
def test_the_zones_data_has_the_change_that_the_table_tells_of(change: Change) -> None:
    at = instant(change.at)
    shown = [clock(moment, change.zone) for moment in (at - 1, at)]
    offsets = [int(one[-5:-2]) * 60 + int(one[-5] + one[-2:]) for one in shown]
    assert offsets[0] != offsets[1]
    told = [word for word in change.clock.replace(",", "").split() if word[0] in "+-"]
    assert [
        f"{offset // 60:+d}" if not offset % 60 else f"{offset // 60:+d}:{offset % 60}" for offset in offsets
    ] == told
    assert shown[1].split()[2][:5] == change.clock.rpartition(" at ")[0][-5:]


@pytest.mark.parametrize(("change", "text", "answers"), ROWS)
def test_a_line_ticks_at_the_instants_found_by_hand(change: Change, text: str, answers: list[str]) -> None:
    ticks = Cron(line(text), change.zone)
    wanted = [instant(one) for one in answers]
    found = [ticks.after(instant(change.since))]
    while len(found) < len(wanted):
        found.append(ticks.after(found[-1] or 0))
    assert [clock(one or 0, change.zone) for one in found] == [clock(one, change.zone) for one in wanted]


@pytest.mark.parametrize(("change", "text", "answers"), ROWS)
def test_looking_back_and_counting_see_the_same_ticks(change: Change, text: str, answers: list[str]) -> None:
    ticks = Cron(line(text), change.zone)
    wanted = [instant(one) for one in answers]
    for earlier, later in pairwise(wanted):
        assert ticks.before(later) == later
        assert ticks.before(later - 1) == earlier
    assert ticks.count(instant(change.since), wanted[-1]) == len(wanted)
    assert ticks.count(wanted[0], wanted[-1] - 1) == len(wanted) - 2
