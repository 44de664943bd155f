"""When a schedule ticks, and which of its ticks are due. No clock, and no I/O but for the data of time zones.

All moments are whole ms since 1970. When a line of cron ticks, the package cronsim says. It follows Debian's cron:
where a clock skips an hour, a line with a fixed time ticks when the hour is over; where a clock repeats an hour, it
ticks once. A line whose minute or hour begins with a star goes by the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo, available_timezones

from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, MissingExtra
from timeoutq.words.model import MAX_TIME_MS

SHORTEST_MS, LONGEST_MS = 1_000, 3_660 * 86_400_000  # the bounds of `every`: a second and ten years
MOST_TIMES = 1_000_000_000
COUNTED = 1_000  # the most ticks of a line of cron that are counted
MOST = 1_000  # the most ticks that one call of `due` gives
ON_TIME_MS = 60_000  # a tick that is put within a minute has not been missed
LONGEST_LINE = 500
REPEATED_MS = 3 * 3_600_000  # no clock goes back by so much

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = {  # by the names that cronsim has for them
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, but no day that none of its months has, L for the last day, LW for the last weekday",
    "month": "1-12, JAN-DEC",
    "day-of-week": "0-7 (0 and 7 are Sunday), SUN-SAT, 5L for the last Friday, FRI#2 for the second one",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule ticks: at the times of a line of cron in a zone, or again and again after the same time."""

    cron: str | None = None
    tz: str | None = None
    every_ms: int | None = None
    times: int | None = None  # the schedule ends when so many ticks have been put
    start_ms: int | None = None  # no tick is earlier. `every` counts from here, and the first tick is at this time
    until_ms: int | None = None  # no tick is later

    @classmethod
    def of(
        cls, *, cron: str | None = None, tz: object = None, every: float | timedelta | None = None,
        times: int | None = None, start: datetime | None = None, until: datetime | None = None,
    ) -> Timing:  # fmt: skip
        """Check what a user gives: either `cron` (with `tz`, else in UTC) or `every` (seconds, at least one)."""
        if (cron is None) == (every is None):
            given = "neither" if cron is None else "both"
            raise InvalidInput(f"this has {given} of cron= and every=: give one, cron='0 9 * * 1-5' or every=60")
        if cron is None and tz is not None:
            raise InvalidInput(f"tz={shown(tz)} goes with cron=: leave tz= out, because every= does not look at clocks")
        return cls(
            cron=None if cron is None else line(cron),
            tz=None if cron is None else zone_name("UTC" if tz is None else tz),
            every_ms=None if every is None else _every(round(arguments.seconds(every, "every") * 1000)),
            times=None if times is None else arguments.count(times, "times", 1, MOST_TIMES),
            start_ms=None if start is None else -(-_moment(start, "start") // _MS),
            until_ms=None if until is None else _moment(until, "until") // _MS,
        )

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Timing:
        """Read what `stored` gives; whether the line and the zone are known here shows when it ticks."""
        given = {one.name: stored.get(one.name.removesuffix("_ms")) for one in fields(cls)}
        for name in ("every_ms", "times", "start_ms", "until_ms"):
            if given[name] is not None:
                arguments.count(given[name], name.removesuffix("_ms"), 0, MAX_TIME_MS)
        found = cls(**given)
        if not (isinstance(found.cron, str) and isinstance(found.tz, str)):
            _every(found.every_ms or 0)
        return found

    def stored(self) -> dict[str, Any]:
        """Give the timing as JSON holds it: without what is None, and with times in ms."""
        given = {one.name.removesuffix("_ms"): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in given.items() if value is not None}

    def anchored(self, now_ms: int, before: Timing | None = None, since_ms: int | None = None) -> Timing:
        """Give the timing to be stored: `every` without a start counts from now.

        If it is the same as `before`, its start stays; else it counts from `since_ms`, if that is given, but for one
        interval at most.
        """
        if self.every_ms is None or self.start_ms is not None:
            return self
        if before is not None and replace(before, start_ms=None) == self:
            return before
        return replace(
            self, start_ms=now_ms if since_ms is None else max(min(now_ms, since_ms), now_ms - self.every_ms)
        )

    def after(self, moment_ms: int) -> int | None:
        """Give the first tick after a moment; None if there is none. What `times` says is not looked at."""
        start_ms = self.start_ms or 0
        moment_ms = max(moment_ms, start_ms - 1)
        found: int | None
        if self.every_ms is not None:
            found = start_ms + ((moment_ms - start_ms) // self.every_ms + 1) * self.every_ms
        else:
            found = next((tick for tick in self._around(moment_ms) if tick > moment_ms), None)
        latest = MAX_TIME_MS if self.until_ms is None else self.until_ms
        return None if found is None or found > latest else found

    def last(self, moment_ms: int) -> int | None:
        """Give the last tick that is not after a moment; None if there is none."""
        start_ms = self.start_ms or 0
        moment_ms = moment_ms if self.until_ms is None else min(moment_ms, self.until_ms)
        found: int | None
        if self.every_ms is not None:
            found = moment_ms - (moment_ms - start_ms) % self.every_ms
        else:
            # back through an hour that a clock repeats, cronsim gives other ticks: so go back further, and then on
            begin = moment_ms - REPEATED_MS
            found = next((tick for tick in self._around(begin, reverse=True) if tick <= begin), None)
            later = takewhile(lambda tick: tick <= moment_ms, self._around(begin if found is None else found))
            found = max(later, default=found)
        return None if found is None or found < start_ms else found

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        tick = self.after(after_ms)
        while tick is not None and tick <= until_ms:
            yield tick
            tick = self.after(tick)

    def count(self, after_ms: int, until_ms: int) -> int:
        """Count the ticks after one moment and not after another one; of a line of cron, `COUNTED` at most."""
        if self.every_ms is None:
            return sum(1 for _ in islice(self.between(after_ms, until_ms), COUNTED))
        first, last = self.after(after_ms), self.last(until_ms)
        return 0 if first is None or last is None else max(0, (last - first) // self.every_ms + 1)

    def _around(self, moment_ms: int, *, reverse: bool = False) -> Iterator[int]:
        """Give the ticks of the line from a moment on; where a clock goes back, also some before the moment."""
        text, zone = _checked(self.cron, self.tz)
        try:
            begin = datetime.fromtimestamp(moment_ms // 1000 + (1 if reverse else 0), zone)
            for tick in islice(_cronsim(text, begin, reverse=reverse), 500):
                yield int(tick.timestamp()) * 1000
        except (OverflowError, ValueError):  # beyond the years that a datetime can show
            return

    @property
    def zones(self) -> str:
        """The version of the data of time zones that give its ticks here: 2026b, or `unknown`; `-` for `every`."""
        if self.every_ms is not None:
            return "-"
        for folder in map(Path, TZPATH):
            if (folder / "UTC").exists():
                for name in ("tzdata.zi", "+VERSION"):  # of Linux, of BSD and macOS
                    with suppress(OSError), (folder / name).open(encoding="utf-8", errors="replace") as file:
                        return (file.readline(100).split() or ["unknown"])[-1]
                return "unknown"
        with suppress(ImportError):
            return str(import_module("tzdata").IANA_VERSION)
        return "unknown"

    def __str__(self) -> str:
        """Give the timing in a few words: `0 9 * * 1-5 in Europe/Berlin`, `every 90 s, 3 times`."""
        words = f"{self.cron} in {self.tz}" if self.every_ms is None else f"every {self.every_ms / 1000:,g} s"
        return words if self.times is None else f"{words}, {self.times:,} times"


def _every(ms: int) -> int:
    if not SHORTEST_MS <= ms <= LONGEST_MS:
        raise InvalidInput(
            f"every={ms / 1000:g} s is out of range: 1 s to {LONGEST_MS // 86_400_000:,} days; for what runs all the "
            "time, let the handler put its task again, with Ack(again_in=…)"
        )
    return ms


def _moment(value: object, name: str) -> timedelta:
    """Give the time since 1970 of an aware datetime."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        what = "has no time zone" if isinstance(value, datetime) else "is no datetime"
        raise InvalidInput(f"{name}={shown(value)} {what}: use datetime(…, tzinfo=ZoneInfo('Europe/Berlin')), or UTC")
    found = value - _EPOCH
    if not timedelta() <= found <= timedelta(milliseconds=MAX_TIME_MS):
        raise InvalidInput(f"{name}={shown(value)} is not between the years 1970 and 9999")
    return found


# ---- lines of cron, and zones


def _cronsim(text: str, begin: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Give the ticks of a line. Raises `ValueError` for a line that is none, and `MissingExtra` without cronsim."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingExtra(
            f"schedules need the package {error.name}, which is missing: pip install 'timeoutq[functions]'"
        ) from error
    try:
        return CronSim(text, begin, reverse)
    except CronSimError as error:
        raise ValueError(str(error)) from None


def line(value: object) -> str:
    """Check a line of cron, and give it in one form: five fields in capitals, with one blank between two."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LINE or not value.isascii():
        raise InvalidInput(f"cron={shown(value)} is no line of cron: write five fields, such as '0 9 * * 1-5'")
    words = _NICKNAMES.get(value.strip().lower(), value).upper().split()
    if len(words) != len(_FIELDS):
        more = "; for what ticks more often than once a minute, write every=" if len(words) == 6 else ""
        raise InvalidInput(
            f"cron={shown(value)} has {len(words)} fields: write five, for {', '.join(_FIELDS)}, as in "
            f"'0 9 * * 1-5', or one of {', '.join(_NICKNAMES)}{more}"
        )
    found = " ".join(words)
    try:
        next(_cronsim(found, _EPOCH))
    except ValueError as error:
        name = str(error).removeprefix("Bad ")
        field = dict(zip(_FIELDS, words, strict=True)).get(name, found)
        raise InvalidInput(
            f"cron={shown(value)}: its {name} {field!r} cannot be read: it takes {_FIELDS.get(name, 'five fields')}; "
            "*, 1-5, */2, 1-5/2, and lists of these"
        ) from None
    except StopIteration:
        raise InvalidInput(f"cron={shown(value)} never ticks: no month that it names has such a day") from None
    return found


def zone_name(value: object) -> str:
    """Check the name of a time zone, or take the name of a `ZoneInfo`."""
    name = value.key if isinstance(value, ZoneInfo) else value
    if isinstance(name, str) and name in _zones():
        return name
    if not _zones():
        raise MissingExtra("this machine has no data of time zones: pip install 'timeoutq[functions]', or tzdata")
    from difflib import get_close_matches  # which takes some ms to import

    near = get_close_matches(name[:100], _zones(), 2) if isinstance(name, str) else []
    cure = f"did you mean {' or '.join(near)}?" if near else "write a name such as 'Europe/Berlin' or 'UTC'"
    raise InvalidInput(f"tz={shown(value)} is no time zone that is known here: {cure}")


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # these two depend on the machine, or are no zone
    return frozenset(available_timezones() - {"localtime", "Factory"})


@lru_cache(maxsize=1024)
def _checked(text: str | None, zone: str | None) -> tuple[str, ZoneInfo]:
    """Check a line and a zone as they were stored, perhaps by a program that knows others."""
    return line(text), ZoneInfo(zone_name(zone))


# ---- ticks that are due

MISSED = ("last", "all", "none")


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done for a schedule now."""

    ticks: tuple[int, ...]  # the ticks to put, the oldest first
    next_ms: int | None  # None if the schedule has ended. If more ticks are due than one call gives, it has passed
    missed: int  # how many earlier ticks are not put, and will not be, as `Timing.count` counts


def lateness(missed: object, grace: object = None, *, overlap: object = True) -> int | None:
    """Check what becomes of missed ticks, and give how many ms late a tick may be put; `grace` is in seconds."""
    if missed not in MISSED:
        raise InvalidInput(f"missed={shown(missed)} is unknown: use 'last', 'all' or 'none'")
    if missed == "all" and not overlap:
        raise InvalidInput(
            "missed='all' puts each tick, but all ticks have the same id here, so only one would be put: add "
            "overlap=True, with which each tick has an id of its own, or use missed='last'"
        )
    if missed == "none" and grace is not None:
        raise InvalidInput("missed='none' puts a tick within a minute or never: leave grace= out, or use missed='last'")
    if grace is None:
        return ON_TIME_MS if missed == "none" else None
    found = arguments.delay_ms(grace, "grace")
    if found < 1_000:
        raise InvalidInput(f"grace={shown(grace)} is less than a second, and every tick is a little late: use 'none'")
    return found


def due(
    timing: Timing, next_ms: int, now_ms: int, *, missed: str = "last", grace_ms: int | None = None, put: int = 0
) -> Due:
    """Say which ticks to put now, of a schedule whose next tick was due at `next_ms`, as it is stored.

    That one is a tick, also where the data of time zones are other ones than where it was worked out. `missed` and
    `grace_ms` are those of `lateness`, and `put` is how many ticks have been put, for `times`.
    """
    left = MOST if timing.times is None else timing.times - put
    if left <= 0:
        return Due((), None, 0)
    oldest = 0 if grace_ms is None else now_ms - grace_ms
    if missed == "all":
        first = () if next_ms < oldest else (next_ms,)
        later = timing.between(max(next_ms, oldest - 1), now_ms)
        ticks = tuple(islice(chain(first, later), min(MOST, left)))
        lost = 0 if first else 1 + timing.count(next_ms, oldest - 1)
    else:
        newest = max(next_ms, timing.last(now_ms) or 0)
        ticks = () if newest < oldest else (newest,)
        lost = 1 + timing.count(next_ms, now_ms) - len(ticks)
    if timing.times is not None and len(ticks) >= left:
        return Due(ticks, None, lost)
    return Due(ticks, timing.after(ticks[-1] if len(ticks) == MOST else now_ms), lost)
