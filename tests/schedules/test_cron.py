"""Lines of cron: what they mean, what is refused, and the days on which a zone changes its clock."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timeoutq.rooms.schedules import timing
from timeoutq.rooms.schedules.timing import COUNTED, Timing, due, line, zone_name
from timeoutq.words.errors import InvalidInput


def ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000


def instants(ticks: Timing, since: str, count: int) -> list[str]:
    at = ms(datetime.fromisoformat(f"{since}Z"))
    found: list[str] = []
    for _ in range(count):
        at = ticks.after(at) or 0
        assert ticks.last(at) == at
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "zone", "since", "wanted"),
    [
        # the clock skips the hour from two to three: the tick comes when the hour is over
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        # the clock shows the hour from two to three twice: the tick comes once
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25 00:30", "2026-10-26 01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:05", ["2026-10-26 01:30", "2026-10-27 01:30"]),
        # a line that begins with a star goes by the time that passes
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-30 00:00", "2026-03-30 00:30"]),
        # Samoa had no December 30 in 2011: its tick comes when the day is over
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T00:00", ["2011-12-29 19:00", "2011-12-30 10:00"]),
    ],
)
def test_a_line_ticks_once_on_the_days_on_which_a_zone_changes_its_clock(
    text: str, zone: str, since: str, wanted: list[str]
) -> None:
    assert instants(Timing.of(cron=text, tz=zone), since, 2) == wanted


@pytest.mark.parametrize(
    ("text", "zone", "now", "wanted"),
    [
        ("45 1 * * *", "Asia/Gaza", "2026-10-23T23:36", "2026-10-23T22:45"),  # 1:36, for the second time
        ("15 2 * * *", "Europe/Berlin", "2026-10-25T01:05", "2026-10-25T00:15"),
        ("15 1,2 * * *", "Antarctica/Troll", "2026-10-25T01:33", "2026-10-25T00:15"),
        ("10 */2 * * *", "Australia/Lord_Howe", "2026-04-04T15:46", "2026-04-04T13:10"),
    ],
)
def test_a_worker_that_comes_back_in_an_hour_that_comes_twice_puts_the_newest_tick_that_it_missed(
    text: str, zone: str, now: str, wanted: str
) -> None:
    timing, moment = Timing.of(cron=text, tz=zone), ms(datetime.fromisoformat(f"{now}Z"))
    stopped = timing.after(moment - 3 * 86_400_000) or 0
    assert due(timing, stopped, moment).ticks == (ms(datetime.fromisoformat(f"{wanted}Z")),)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]),
        ("0 9 * * 5L", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-27 09:00"]),
        ("0 0 * 2 MON#5", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),  # 40 years, the longest wait
        ("0 4 13 * FRI", ["2026-01-02 04:00", "2026-01-09 04:00", "2026-01-13 04:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 03:00"]),
    ],
)
def test_last_days_numbered_weekdays_and_nicknames(text: str, wanted: list[str]) -> None:
    assert instants(Timing.of(cron=text), "2026-01-01T00:00", 3) == wanted


REFUSED: dict[Any, str] = {
    "": "is no line of cron: write five fields, such as '0 9 ",
    "0 0 * * fr\u0131": "is no line of cron",
    "0 9 * *": "has 4 fields: write five, for minute, hour, day-of-month, month, day-of-week",
    "0 0 9 * * *": "has 6 fields: .*; for what ticks more often than once a minute, write every=",
    "@reboot": "has 1 fields: .* or one of @yearly, ",
    "60 * * * *": "its minute '60' cannot be read: it takes 0-59",
    "* * * * MONDAY": "its day-of-week 'MONDAY' cannot be read: it takes 0-7",
    "1,,2 * * * *": "its minute '1,,2' cannot be read: it takes 0-59; \\*, 1-5",
    "0 0 30 2 *": "its day-of-month '30' cannot be read: it takes 1-31, but no day that none of its months has",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_line_is_refused_with_its_cause_and_its_cure(text: Any) -> None:
    with pytest.raises(InvalidInput, match=REFUSED[text]) as caught:
        line(text)
    assert str(caught.value).startswith("cron=")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("Europe/Berlim", "did you mean Europe/Berlin"),
        ("+02:00", "write a name such as 'Europe/Berlin' or 'UTC'"),
        ("../../etc/passwd", "is no time zone"),
    ],
)
def test_an_unknown_zone_is_refused_with_names_like_it(asked: Any, near: str) -> None:
    with pytest.raises(InvalidInput, match=near):
        zone_name(asked)


def test_ticks_end_with_the_year_9999_and_begin_with_1970() -> None:
    ticks = Timing.of(cron="0 12 * * *", tz="Pacific/Kiritimati")
    assert ticks.after(ms(datetime(9999, 12, 31, 23, 59, tzinfo=UTC))) is None
    assert ticks.last(-(10**9)) is None
    assert ticks.after(-(10**9)) is not None


def test_a_thousand_ticks_are_counted() -> None:
    assert Timing.of(cron="0 9 * * *").count(0, 10 * 86_400_000) == 10
    assert Timing.of(cron="* * * * *").count(0, 10**12) == COUNTED


def test_the_data_of_time_zones_tell_their_version_where_they_are_of_the_system_or_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "TZPATH", (str(tmp_path / "nowhere"), str(tmp_path)))
    monkeypatch.setitem(sys.modules, "tzdata", SimpleNamespace(IANA_VERSION="2026f"))

    def found() -> str:
        return Timing(cron="0 9 * * *", tz="Europe/Berlin").zones

    assert Timing(every_ms=1000).zones == "-"
    assert found() == "2026f"
    (tmp_path / "UTC").touch()
    assert found() == "unknown"
    (tmp_path / "+VERSION").write_text("2026a\n")
    assert found() == "2026a"
    (tmp_path / "tzdata.zi").write_text("# version 2025b\n# ddeps\n")
    assert found() == "2025b"
    monkeypatch.setattr(timing, "TZPATH", ())
    monkeypatch.setitem(sys.modules, "tzdata", None)
    assert found() == "unknown"
