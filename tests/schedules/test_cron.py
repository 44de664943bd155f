"""Lines of cron: what is refused, and ticks beside two oracles that were written from the manual of Debian's cron.

One oracle looks at each minute of UTC by the rules of crontab(5). The other one plays the daemon of cron(8) minute by
minute through a change of a zone's clock. Neither uses cronsim.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timeoutq.rooms.schedules.cron import COUNTED, BadTiming, Cron, cron, line, zone_name
from timeoutq.words.errors import InvalidInput

BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
MIDNIGHT = datetime(1970, 1, 1)  # noqa: DTZ001  # by a clock of any zone


@dataclass(frozen=True)
class Spec:
    """A line, and what its fields mean by crontab(5); only lines of random fields are made of this."""

    text: str
    fields: tuple[frozenset[int], ...]
    stars: tuple[bool, ...]
    """Whether each field begins with a star."""

    @property
    def wild(self) -> bool:
        return self.stars[0] or self.stars[1]

    def is_day(self, day: date) -> bool:
        _, _, days, months, weekdays = self.fields
        is_date, is_weekday = day.day in days, bool({day.isoweekday(), day.isoweekday() % 7} & weekdays)
        both = self.stars[2] or self.stars[4]
        return day.month in months and (is_date and is_weekday if both else is_date or is_weekday)

    def is_time(self, at: datetime) -> bool:
        return at.minute in self.fields[0] and at.hour in self.fields[1] and self.is_day(at.date())


@st.composite
def a_term(draw: st.DrawFn, place: int) -> tuple[str, frozenset[int]]:
    low, high = BOUNDS[place]
    names = {3: MONTHS, 4: DAYS}.get(place)
    first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    step = draw(st.sampled_from([1, 1, 2, 3, 7, 15, 100]))
    by = f"/{step}" if step > 1 else ""
    kind = draw(st.sampled_from(["star", "range", "number", "number", "name"]))
    if kind == "star":
        return f"*{by}", frozenset(range(low, high + 1, step))
    if kind == "range":
        return f"{first}-{last}{by}", frozenset(range(first, last + 1, step))
    if kind == "name" and names and first - low < len(names):
        return names[first - low], frozenset({first})
    return f"{first:0{draw(st.integers(1, 2))}}", frozenset({first})


@st.composite
def a_line(draw: st.DrawFn) -> Spec:
    texts: list[str] = []
    fields: list[frozenset[int]] = []
    for place in range(5):
        if draw(st.booleans()) and place >= 2:
            low, high = BOUNDS[place]
            terms = [("*", frozenset(range(low, high + 1)))]
        else:
            terms = draw(st.lists(a_term(place), min_size=1, max_size=3))
        texts.append(",".join(text for text, _ in terms))
        fields.append(frozenset[int]().union(*(found for _, found in terms)))
    return Spec(" ".join(texts), tuple(fields), tuple(text.startswith("*") for text in texts))


def seconds(at: datetime) -> int:
    return int(at.timestamp())


def ticks_of(ticks: Cron, since: int, until: int) -> list[int]:
    found: list[int] = []
    while (tick := ticks.after(found[-1] if found else since)) is not None and tick <= until:
        found.append(tick)
    return found


def back_from(ticks: Cron, until: int, since: int) -> list[int]:
    found: list[int] = []
    while (tick := ticks.before(found[-1] - 1 if found else until)) is not None and tick > since:
        found.append(tick)
    return found[::-1]


def never(spec: Spec) -> bool:
    first = date(2000, 1, 1)
    return not any(spec.is_day(first + timedelta(days)) for days in range(28 * 366))


@pytest.mark.breaking
@settings(max_examples=40)
@given(a_line(), st.floats(0, 13e9))
def test_a_random_line_ticks_in_utc_in_exactly_the_minutes_of_the_manual(spec: Spec, since: float) -> None:
    start = datetime.fromtimestamp(since, UTC)
    if never(spec):
        with pytest.raises(BadTiming, match="never ticks"):
            line(spec.text)
        return
    wanted, minute = list[int](), start.replace(second=0, microsecond=0)
    for _ in range(10 * 1440):
        minute += timedelta(minutes=1)
        wanted += [seconds(minute)] if spec.is_time(minute) else []
        if len(wanted) == 100:
            break
    ticks, begin, end = Cron(line(spec.text), "UTC"), seconds(start), seconds(minute)
    assert ticks_of(ticks, begin, end) == wanted
    assert back_from(ticks, end, begin) == wanted
    assert ticks.count(begin, end) == len(wanted)


def daemon(spec: Spec, zone: ZoneInfo, since: int, until: int) -> list[int]:
    """Play Debian's cron from one minute to another one: it looks at the clock once a minute.

    `virtual` is the minute of the clock up to which it has run everything. What cron(8) says of changes of the clock:
    if the clock is ahead by more than five minutes, wildcard lines run for the present minute only, and fixed lines run
    for each minute that was missed. If the clock is behind, only wildcard lines run, until the clock has caught up.
    Three hours and more are a correction of the clock: cron goes on from the new time.
    """

    def clock(moment: int) -> int:
        offset = datetime.fromtimestamp(moment, zone).utcoffset()
        assert offset is not None
        return moment // 60 + int(offset.total_seconds()) // 60

    def hits(minute: int) -> bool:
        return spec.is_time(MIDNIGHT + timedelta(minutes=minute))

    found: list[int] = []
    virtual = clock(since)
    for moment in range(since + 60, until + 1, 60):
        now = clock(moment)
        ahead = now - virtual
        if ahead == 1 or abs(ahead) > 180:
            runs, virtual = hits(now), now
        elif ahead > 5:
            missed = range(virtual + 1, now + 1)
            runs, virtual = hits(now) if spec.wild else any(map(hits, missed)), now
        else:
            assert ahead <= 0, "no zone has changed its clock by less than five minutes since 1972"
            runs = spec.wild and hits(now)
        if runs:
            found.append(moment)
    return found


def a_change(zone: ZoneInfo, year: int, which: int) -> int | None:
    """Give an instant at which a zone changes its clock in this year or the next one that has any, to the minute."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone).utcoffset()

    for one in range(year, 2038):
        start, end = (seconds(datetime(some, 1, 1, tzinfo=UTC)) for some in (one, one + 1))
        days = [day for day in range(start, end, 86_400) if offset(day) != offset(day + 86_400)]
        if days:
            day = days[which % len(days)]
            return next(at for at in range(day, day + 86_401, 60) if offset(at) != offset(day))
    return None


def names() -> list[str]:
    from zoneinfo import available_timezones

    return sorted(available_timezones() - {"localtime", "Factory"})


def at_hour(spec: Spec, hour: int) -> Spec:
    """Give a line like this one, but for its hour."""
    texts, fields, stars = spec.text.split(), list(spec.fields), list(spec.stars)
    texts[1], fields[1], stars[1] = str(hour), frozenset({hour}), False
    return Spec(" ".join(texts), tuple(fields), tuple(stars))


ALWAYS = [frozenset(range(low, high + 1)) for low, high in BOUNDS]


def daily(minute: int, hour: int) -> Spec:
    fields = (frozenset({minute}), frozenset({hour}), *ALWAYS[2:])
    return Spec(f"{minute} {hour} * * *", fields, (False, False, True, True, True))


QUARTERS = Spec("*/15 * * * *", (frozenset({0, 15, 30, 45}), *ALWAYS[1:]), (True,) * 5)


@pytest.mark.breaking
@settings(max_examples=40)
@given(a_line(), st.sampled_from(names()), st.integers(1973, 2037), st.integers(0, 3))
@example(daily(9, 9), "Pacific/Apia", 2011, 2)  # a day is left out, so this is no matter of daylight saving
@example(daily(0, 23), "Antarctica/Casey", 2010, 0)  # back by three hours
@example(daily(0, 3), "Antarctica/Casey", 2011, 0)  # forward by three hours
@example(daily(30, 2), "Antarctica/Troll", 2026, 0)  # forward by two hours
@example(QUARTERS, "America/Goose_Bay", 2007, 1)  # back at a minute past midnight, so a day begins before another ends
def test_a_random_line_ticks_around_a_change_of_the_clock_as_debians_cron_runs_it(
    spec: Spec, name: str, year: int, which: int
) -> None:
    zone = ZoneInfo(name)
    at = a_change(zone, year, which)
    if at is None or name == "Antarctica/Vostok":  # its clock alone has gone back by more than three hours, in 1994
        return
    hours = {(datetime.fromtimestamp(at - 60, zone) + timedelta(hours=more)).hour for more in range(-1, 4)}
    for one in (spec, *(at_hour(spec, hour) for hour in sorted(hours))):
        if not never(one):
            since, until = at - 5 * 3600, at + 26 * 3600
            wanted = daemon(one, zone, since, until)
            ticks = Cron(line(one.text), name)
            assert ticks_of(ticks, since, until) == wanted
            assert back_from(ticks, until, since) == wanted
            assert ticks.count(since, until) == len(wanted)
            for moment in range(at - 3 * 3600, at + 3 * 3600, 1021):  # also from between two ticks
                later = [tick for tick in wanted if tick > moment]
                earlier = wanted[: len(wanted) - len(later)]
                assert not later or ticks.after(moment) == later[0]
                assert not earlier or ticks.before(moment) == earlier[-1]


def instants(ticks: Cron, since: str, count: int) -> list[str]:
    at = seconds(datetime.fromisoformat(f"{since}Z"))
    found: list[str] = []
    for _ in range(count):
        at = ticks.after(at) or 0
        found.append(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]),
        ("0 9 * * MON#1", ["2026-01-05 09:00", "2026-02-02 09:00", "2026-03-02 09:00"]),
        ("0 9 * * 5L", ["2026-01-30 09:00", "2026-02-27 09:00", "2026-03-27 09:00"]),
        ("0 0 * 2 MON#5", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),  # 40 years, the longest wait
        ("0 4 13 * FRI", ["2026-01-02 04:00", "2026-01-09 04:00", "2026-01-13 04:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 03:00"]),
        ("@Weekly", ["2026-01-04 00:00", "2026-01-11 00:00", "2026-01-18 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00", "2026-04-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
    ],
)
def test_last_days_numbered_weekdays_and_nicknames(text: str, wanted: list[str]) -> None:
    assert instants(Cron(line(text), "UTC"), "2026-01-01T00:00", 3) == wanted


def test_a_line_has_one_form() -> None:
    assert line("  0  9\t* *   mon-Fri ") == "0 9 * * MON-FRI"
    assert line("@daily") == line("@MIDNIGHT") == "0 0 * * *"
    assert line("@annually") == "0 0 1 1 *"
    assert line("05-5/15 1-9/2 3-3 JAN-1/2 SUN-0/3,1-2/2") == "05 1-9/2 3-3 JAN SUN,1-2/2"


REFUSED: dict[Any, str] = {
    "": "is no line of cron: write five fields, such as '0 9 ",
    None: "is no line of cron",
    5: "is no line of cron",
    "* " * 300: "is no line of cron",
    "0 0 * * frı": "is no line of cron",
    "0 9 * *": "has 4 fields: write five, for minute, hour, day of the month, month, day of the week",
    "0 0 9 * * *": "has 6 fields: .*; for what ticks more often than once a minute, write every=",
    "@reboot": "is unknown: write five fields, or one of @yearly, ",
    "60 * * * *": "its minute '60' is out of range: it takes 0-59",
    "* 24 * * *": "its hour '24' is out of range: it takes 0-23",
    "* * 0 * *": "its day of the month '0' is out of range: it takes 1-31",
    "* * * 13 *": "its month '13' is out of range: it takes 1-12, JAN-DEC",
    "* * * * 8": "its day of the week '8' is out of range: it takes 0-7",
    "* * * * MAY": "its day of the week 'MAY' is out of range",
    "0 0 * * 6-1": "its day of the week '6-1' is out of range: .* a range runs upwards",
    "*/0 * * * *": "its minute '\\*/0' is out of range: .* a step is at least 1",
    "5/15 * * * *": "its minute '5/15' cannot be read at '5/15': write 5-59/15",
    "0 9/3 * * *": "its hour '9/3' cannot be read at '9/3': write 9-23/3",
    "1,,2 * * * *": "its minute '1,,2' cannot be read at '': it takes 0-59; \\*, 1-5",
    "? * * * *": "its minute '\\?' cannot be read",
    "-5 * * * *": "its minute '-5' cannot be read",
    "L * * * *": "its minute 'L' cannot be read",
    "* * L/2 * *": "its day of the month 'L/2' cannot be read",
    "* * * * MON#6": "its day of the week 'MON#6' cannot be read",
    "* * * * MONDAY": "its day of the week 'MONDAY' cannot be read at 'MONDAY'",
    "0 0 30 2 *": "never ticks: no month that it names has such a day",
    "0 0 31 4,6,9,11 *": "never ticks",
    "0 0 31 2 */2": "never ticks",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_line_is_refused_with_its_cause_and_its_cure(text: Any) -> None:
    with pytest.raises(BadTiming, match=REFUSED[text]) as caught:
        line(text)
    assert isinstance(caught.value, InvalidInput)
    assert str(caught.value).startswith("cron=")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("europe/berlin", "did you mean Europe/Berlin\\?"),
        ("Berlin", "did you mean Europe/Berlin\\?"),
        ("Europe/Berlim", "did you mean Europe/Berlin"),
        ("America/New York", "did you mean America/New_York\\?"),
        ("US/New_York", "did you mean America/New_York"),
        ("Mars/Olympus_Mons", "write a name such as 'Europe/Berlin' or 'UTC'"),
        ("+02:00", "write a name such as"),
        ("localtime", "is no time zone"),
        ("right/Europe/Berlin", "did you mean Europe/Berlin"),
        ("../../etc/passwd", "is no time zone"),
        ("", "is no time zone"),
        (3, "is no time zone"),
        (["UTC"], "is no time zone"),
    ],
)
def test_an_unknown_zone_is_refused_with_names_like_it(asked: Any, near: str) -> None:
    with pytest.raises(BadTiming, match=near):
        zone_name(asked)


def test_a_zone_is_a_name_or_a_zoneinfo() -> None:
    assert zone_name("UTC") == "UTC"
    assert zone_name(ZoneInfo("Asia/Tokyo")) == "Asia/Tokyo"


def test_a_day_that_a_zone_leaves_out_has_no_ticks() -> None:
    """Samoa had no December 30 in 2011: its clock went from 23:59 on the 29th to 00:00 on the 31st."""
    ticks = Cron("0 9 * * *", "Pacific/Apia")
    assert instants(ticks, "2011-12-29T00:00", 3) == ["2011-12-29 19:00", "2011-12-30 19:00", "2011-12-31 19:00"]


def test_what_a_clock_skips_before_midnight_and_at_midnight_is_one_tick() -> None:
    """In Nuuk, 23:30 on March 28 does not exist, so its tick falls on midnight, which the line names, too."""
    ticks = Cron("0,30 0,23 * * *", "America/Nuuk")
    assert instants(ticks, "2026-03-28T12:00", 3) == ["2026-03-29 01:00", "2026-03-29 01:30", "2026-03-30 00:00"]
    assert ticks.count(*(seconds(datetime(2026, 3, day, 12, tzinfo=UTC)) for day in (28, 29))) == 2


def test_ticks_end_with_the_year_9999_and_begin_with_1970() -> None:
    ticks = Cron("0 12 * * *", "Pacific/Kiritimati")
    end = seconds(datetime(9999, 12, 31, 23, 59, tzinfo=UTC))
    assert ticks.after(end) is None
    last = ticks.before(end)
    assert last is not None
    assert datetime.fromtimestamp(last, UTC).year == 9999
    assert ticks.after(-1) == 22 * 3600 + 40 * 60  # noon, at -10:40
    assert ticks.before(-(10**9)) is None
    assert ticks.after(-(10**9)) is not None


@pytest.mark.parametrize("text", ["* * * * *", "0 0 29 2 *", "0 0 * 2 MON#5", "30 2 * * *", "*/15 1-3 L * *"])
def test_no_question_takes_long(text: str) -> None:
    """Each is some microseconds to some milliseconds; the bound has room for a busy machine."""
    ticks = cron(line(text), "Europe/Berlin")
    chosen = random.Random(5)
    moments = [chosen.randrange(4_000_000_000) for _ in range(50)]
    begin = process_time()
    for moment in moments:
        ticks.after(moment)
        ticks.before(moment)
    assert (process_time() - begin) / len(moments) < 0.2


def test_counting_stops_after_ten_years_of_days() -> None:
    ticks = cron("* * * * *", "UTC")
    begin = process_time()
    assert ticks.count(0, 8_000 * 365 * 86_400) == (COUNTED - 1) * 1440 - 1
    assert process_time() - begin < 1
