"""When a line of cron ticks, by the clock of a time zone. No I/O but for the data of the zone.

`timing.py` and `ticks.py` call it. Debian's cron is the specification: crontab(5) for the line, and the section on
daylight saving time in cron(8) for the days on which a zone changes its clock. There are two kinds of lines:

    kind       its minute and its hour        the clock skips an hour           the clock repeats an hour
    fixed      neither begins with a star     ticks as soon as the hour is      ticks in the first of the two
                                              over, once for all it missed      hours only
    wildcard   one of them begins with *      has no tick in this hour          ticks in both hours

The package cronsim reads the fields of a line, and says which days they mean. How a time of a day becomes an instant is
decided here, because cronsim itself differs from cron(8) on some days on which a zone changes its clock: from within a
repeated hour, the next tick that it gives may be an earlier one; and where the clock changes by half an hour or at
midnight, it leaves out ticks of wildcard lines, or adds one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, MissingExtra

try:
    from cronsim import CronSim, CronSimError
except ImportError as error:
    raise MissingExtra(
        f"schedules need the package {error.name}, which is missing: pip install 'timeoutq[functions]'"
    ) from error


class BadTiming(InvalidInput):
    """This does not say when a schedule ticks: mend the line of cron, the zone, or the times that the message names."""


LONGEST_LINE = 500
"""The most characters of a line."""
COUNTED = 3_660
"""On how many days of a line its ticks are counted: ten years of a daily line, which takes some 20 ms."""

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = {
    "minute": (59, "0-59"),
    "hour": (23, "0-23"),
    "day of the month": (31, "1-31, L for the last day, LW for the last weekday"),
    "month": (12, "1-12, JAN-DEC"),
    "day of the week": (7, "0-7 (0 and 7 are Sunday), SUN-SAT, 5L for the last Friday, FRI#2 for the second one"),
}
"""The largest number of each field, and what the field takes."""
_VALUE = "(?:[0-9]{1,4}|[A-Z]{3})"
_TERM = re.compile(rf"(?:\*|{_VALUE}-{_VALUE})(?:/[0-9]{{1,4}})?|{_VALUE}")
"""What Debian's cron takes, but for a range that runs downwards, which Debian's cron takes and never runs."""
_MORE = {
    "day of the month": re.compile("LW?"),
    "day of the week": re.compile(f"[0-7]L|{_VALUE}#[1-5]"),
}
_STEP = re.compile(r"([0-9]+)/([0-9]+)")
_RANGE = re.compile(r"([0-9A-Z]+)-([0-9A-Z]+)/[0-9]+")
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_NUMBERS = {name: number for names, first in ((_DAYS, 0), (_MONTHS, 1)) for number, name in enumerate(names, first)}

_DAY = timedelta(days=1)
_SECONDS = 86_400
_ZERO = datetime(1970, 1, 1)  # noqa: DTZ001  # a clock's time, whatever the zone
_FIRST, _LAST = date(1969, 12, 30), date(9999, 11, 30)
_LATEST = (_LAST - _ZERO.date()).days * _SECONDS
_CYCLE = date(2000, 1, 1), date(2028, 1, 1)
"""In these years, February 29 falls on each day of the week, so a line without a tick in them never ticks."""
_JUMP = 3 * 3600
"""If a clock skips so many seconds, cron(8) takes the change for a correction, and runs nothing that was skipped."""


def line(value: object) -> str:
    """Check a line of cron, and give it in one form: five fields in capitals, with one blank between two.

    Raises `BadTiming`, which names the field.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LINE or not value.isascii():
        raise BadTiming(f"cron={shown(value)} is no line of cron: write five fields, such as '0 9 * * 1-5'")
    return _line(value)


@lru_cache(maxsize=1024)
def _line(value: str) -> str:
    found = _NICKNAMES.get(value.strip().lower(), value).upper()
    fields = found.split()
    if found.startswith("@"):
        raise BadTiming(f"cron={shown(value)} is unknown: write five fields, or one of {', '.join(_NICKNAMES)}")
    if len(fields) != len(_FIELDS):
        more = "; for what ticks more often than once a minute, write every=" if len(fields) == 6 else ""
        raise BadTiming(
            f"cron={shown(value)} has {len(fields)} fields: write five, for {', '.join(_FIELDS)}, as in "
            f"'0 9 * * 1-5'{more}"
        )
    for place, (name, field) in enumerate(zip(_FIELDS, fields, strict=True)):
        _check(shown(value), place, name, field)
    # cronsim reads a step from 5 to 5 as a step from 5 to the end
    found = " ".join(_RANGE.sub(_without_step, field) for field in fields)
    if not _fires(found):
        raise BadTiming(
            f"cron={shown(value)} never ticks: no month that it names has such a day; mend its day of the month, "
            "month, or day of the week"
        )
    return found


def _check(whole: str, place: int, name: str, field: str) -> None:
    """Refuse a field that is not what `name` says."""
    most, takes = _FIELDS[name]
    for term in field.split(","):
        if _TERM.fullmatch(term) or (name in _MORE and _MORE[name].fullmatch(term)):
            continue
        step = _STEP.fullmatch(term)
        cure = (
            f"write {step[1]}-{most}/{step[2]}" if step else f"it takes {takes}; *, 1-5, */2, 1-5/2, and lists of these"
        )
        raise BadTiming(f"cron={whole}: its {name} {field!r} cannot be read at {term!r}: {cure}")
    stars = ["*"] * len(_FIELDS)
    stars[place] = field
    try:
        CronSim(" ".join(stars), _ZERO)
    except CronSimError:
        raise BadTiming(
            f"cron={whole}: its {name} {field!r} is out of range: it takes {takes}; a range runs upwards, and a step "
            "is at least 1"
        ) from None


def _without_step(found: re.Match[str]) -> str:
    """Give a range with its step, or the one number that it holds."""
    first, last = (_NUMBERS[word] if word in _NUMBERS else int(word) for word in found.groups())
    return found[1] if first == last else found[0]


def _fires(text: str) -> bool:
    try:
        read = CronSim(text, _ZERO)
    except CronSimError:  # each field alone was right
        return False
    return next(_days(read, *_CYCLE, 1), None) is not None


def zone_name(value: object) -> str:
    """Check the name of a time zone, or take the name of a `ZoneInfo`.

    Raises `BadTiming` with the names that are most like an unknown one, and `MissingExtra` if this machine has no data
    of time zones at all.
    """
    name = value.key if isinstance(value, ZoneInfo) else value
    if isinstance(name, str) and name in _names():
        return str(name)
    if not _names():
        raise MissingExtra("this machine has no data of time zones: pip install 'timeoutq[functions]', or tzdata")
    near = _near(name) if isinstance(name, str) else []
    cure = f"did you mean {' or '.join(near)}?" if near else "write a name such as 'Europe/Berlin' or 'UTC'"
    raise BadTiming(f"tz={shown(value)} is no time zone that is known here: {cure}")


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    # these two depend on the machine, or are no zone
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _near(name: str) -> list[str]:
    asked = name[:100].strip().lower().replace(" ", "_")
    names = {one.lower(): one for one in sorted(_names())}
    cities = {one.rpartition("/")[2]: full for one, full in names.items()}
    if asked in names:
        return [names[asked]]
    alike = get_close_matches(asked, names, 2, 0.75)
    city = get_close_matches(asked.rpartition("/")[2], cities, 1, 0.8)
    return list(dict.fromkeys([*(cities[one] for one in city), *(names[one] for one in alike)]))[:2]


class Cron:
    """The ticks of one line in one zone. All times are whole seconds since 1970."""

    __slots__ = ("_read", "_seconds", "_zone", "fixed")

    def __init__(self, text: str, zone: str) -> None:
        """Prepare a line that `line` gave, in a zone whose name `zone_name` gave."""
        self._read = CronSim(text, _ZERO)
        self._zone = ZoneInfo(zone)
        self._seconds = tuple(
            3600 * hour + 60 * minute for hour in sorted(self._read.hours) for minute in sorted(self._read.minutes)
        )
        minute, hour = text.split()[:2]
        self.fixed = not minute.startswith("*") and not hour.startswith("*")

    def after(self, moment: int) -> int | None:
        """Give the first tick after a moment; None if there is none before the year 9999 ends."""
        for day in _days(self._read, self._date(moment) - _DAY, _LAST, 1):
            first = self._next(day, moment)
            if first is not None:
                # a clock that goes back across midnight begins the next day before this day ends
                other = self._next(day + _DAY, moment)
                return first if other is None else min(first, other)
        return None

    def before(self, moment: int) -> int | None:
        """Give the last tick that is not after a moment; None if there is none since 1970."""
        for day in _days(self._read, self._date(moment) + _DAY, _FIRST, -1):
            last = self._last(day, moment)
            if last is not None:
                other = self._last(day - _DAY, moment)
                return last if other is None else max(last, other)
        return None

    def count(self, after: int, until: int) -> int:
        """Count the ticks after one moment and not after another one, on the first `COUNTED` days of the line."""
        total, latest = 0, after
        days = _days(self._read, self._date(after) - _DAY, min(_LAST, self._date(until) + _DAY), 1)
        for day in islice(days, COUNTED):
            base, ticks = self._ticks(day)
            total += max(0, bisect_right(ticks, until - base) - bisect_right(ticks, after - base))
            if ticks and base + ticks[0] == latest and after < latest <= until:
                total -= 1  # what was skipped before midnight and after midnight is one tick
            latest = base + ticks[-1] if ticks else latest
        return total

    def _date(self, moment: int) -> date:
        return datetime.fromtimestamp(max(0, min(moment, _LATEST)), self._zone).date()

    def _next(self, day: date, moment: int) -> int | None:
        base, ticks = self._ticks(day)
        place = bisect_right(ticks, moment - base)
        return base + ticks[place] if place < len(ticks) else None

    def _last(self, day: date, moment: int) -> int | None:
        base, ticks = self._ticks(day)
        place = bisect_right(ticks, moment - base)
        return base + ticks[place - 1] if place else None

    def _ticks(self, day: date) -> tuple[int, Sequence[int]]:
        """Give the ticks of a day: a base, and the seconds since then, which rise. None on a day that is not meant."""
        if day.month not in self._read.months or not self._read.match_day(day):
            return 0, ()
        start = (day - _ZERO.date()).days * _SECONDS
        offset = self._offset(start, 0)
        if offset == self._offset(start + _SECONDS, 1):
            return start - offset, self._seconds
        return 0, _uneven(self, start)

    def _offset(self, clock: int, fold: int) -> int:
        """Give how far a time of the zone's clock is ahead of UTC; `fold` says which, where the clock changes."""
        at = (_ZERO + timedelta(seconds=clock)).replace(tzinfo=self._zone, fold=fold)
        return (at.utcoffset() or timedelta()) // timedelta(seconds=1)

    def _instants(self, clock: int) -> tuple[int, ...]:
        """Give the ticks for a time that the zone's clock shows once, twice or never."""
        before, after = self._offset(clock, 0), self._offset(clock, 1)
        if before == after or (before > after and self.fixed):
            return (clock - before,)
        if before > after:
            return clock - before, clock - after
        if self.fixed and after - before < _JUMP:
            return (self._change(clock - after, clock - before),)
        return ()

    def _change(self, low: int, high: int) -> int:
        """Give the instant of the one change of the clock after `low` and not after `high`."""
        old = datetime.fromtimestamp(low, self._zone).utcoffset()
        while high - low > 1:
            middle = (low + high) // 2
            if datetime.fromtimestamp(middle, self._zone).utcoffset() == old:
                low = middle
            else:
                high = middle
        return high


@lru_cache(maxsize=1024)
def cron(text: str, zone: str) -> Cron:
    """Give the ticks of a checked line in a checked zone; those of the lines in use are kept."""
    return Cron(text, zone)


@lru_cache(maxsize=64)
def _uneven(ticks: Cron, start: int) -> Sequence[int]:
    """Give the ticks of a day on which the zone changes its clock; kept, because this may take some milliseconds."""
    return sorted({tick for second in ticks._seconds for tick in ticks._instants(start + second)})


def _days(read: CronSim, first: date, last: date, step: int) -> Iterator[date]:
    """Give the days that a line means from one day to another one, forwards (1) or backwards (-1)."""
    day = first
    while (last - day).days * step >= 0:
        if day.month not in read.months:
            # to the first day of the next month, or to the last day of the month before
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1) if step > 0 else day.replace(day=1) - _DAY
            continue
        if read.match_day(day):
            yield day
        day += step * _DAY
