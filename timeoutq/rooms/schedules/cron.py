"""When a line of cron ticks, by the clock of a time zone: cronsim says so. No I/O but for the data of the zone.

cronsim follows Debian's cron: where a clock skips an hour, a line with a fixed time ticks when the hour is over; where
a clock repeats an hour, it ticks once. A line whose minute or hour begins with a star goes by the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, MissingExtra


class BadTiming(InvalidInput):
    """This does not say when a schedule ticks: mend the line of cron, the zone, or the times that the message names."""


LONGEST_LINE = 500
"""The most characters of a line."""
COUNTED = 1_000
"""The most ticks of a line that are counted."""
LATEST = 253_402_000_000
"""In the last days of the year 9999."""

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
    "minute": "0-59",
    "hour": "0-23",
    "day of the month": "1-31, L for the last day, LW for the last weekday",
    "month": "1-12, JAN-DEC",
    "day of the week": "0-7 (0 and 7 are Sunday), SUN-SAT, 5L for the last Friday, FRI#2 for the second one",
}
_START = datetime(2000, 1, 1)  # noqa: DTZ001  # by a clock of any zone


def _read(text: str, at: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Give the ticks of a line. Raises `BadTiming`, and `MissingExtra` without cronsim."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingExtra(
            f"schedules need the package {error.name}, which is missing: pip install 'timeoutq[functions]'"
        ) from error
    try:
        return CronSim(text, at, reverse)
    except CronSimError as error:
        raise BadTiming(str(error)) from None


def line(value: object) -> str:
    """Check a line of cron, and give it in one form: five fields in capitals, with one blank between two.

    Raises `BadTiming`, which names the field.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LINE or not value.isascii():
        raise BadTiming(f"cron={shown(value)} is no line of cron: write five fields, such as '0 9 * * 1-5'")
    return _line(value)


@lru_cache(maxsize=1024)
def _line(value: str) -> str:
    fields = _NICKNAMES.get(value.strip().lower(), value).upper().split()
    if len(fields) != len(_FIELDS):
        more = "; for what ticks more often than once a minute, write every=" if len(fields) == 6 else ""
        raise BadTiming(
            f"cron={shown(value)} has {len(fields)} fields: write five, for {', '.join(_FIELDS)}, as in "
            f"'0 9 * * 1-5', or one of {', '.join(_NICKNAMES)}{more}"
        )
    for place, (name, takes) in enumerate(_FIELDS.items()):
        try:
            _read(" ".join(fields[place] if at == place else "*" for at in range(5)), _START)
        except BadTiming:
            raise BadTiming(
                f"cron={shown(value)}: its {name} {fields[place]!r} cannot be read: it takes {takes}; *, 1-5, */2, "
                "1-5/2, and lists of these"
            ) from None
    found = " ".join(fields)
    try:
        next(_read(found, _START))
    except (BadTiming, StopIteration):
        raise BadTiming(
            f"cron={shown(value)} never ticks: no month that it names has such a day; mend its day of the month, "
            "month, or day of the week"
        ) from None
    return found


def zone_name(value: object) -> str:
    """Check the name of a time zone, or take the name of a `ZoneInfo`."""
    name = value.key if isinstance(value, ZoneInfo) else value
    if isinstance(name, str) and name in _names():
        return name
    if not _names():
        raise MissingExtra("this machine has no data of time zones: pip install 'timeoutq[functions]', or tzdata")
    from difflib import get_close_matches  # which takes some ms to import

    near = get_close_matches(name[:100], _names(), 2) if isinstance(name, str) else []
    cure = f"did you mean {' or '.join(near)}?" if near else "write a name such as 'Europe/Berlin' or 'UTC'"
    raise BadTiming(f"tz={shown(value)} is no time zone that is known here: {cure}")


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    # these two depend on the machine, or are no zone
    return frozenset(available_timezones() - {"localtime", "Factory"})


class Cron:
    """The ticks of one line in one zone. All times are whole seconds since 1970."""

    __slots__ = ("_line", "_zone")

    def __init__(self, text: str, zone: str) -> None:
        """Prepare a line that `line` gave, in a zone whose name `zone_name` gave."""
        self._line, self._zone = text, ZoneInfo(zone)

    def after(self, moment: int) -> int | None:
        """Give the first tick after a moment; None if there is none before the year 9999 ends."""
        return next((tick for tick in self._ticks(moment) if tick > moment), None)

    def before(self, moment: int) -> int | None:
        """Give the last tick that is not after a moment; None if there is none since 1970."""
        found = next((tick for tick in self._ticks(moment + 1, reverse=True) if tick <= moment), -1)
        return found if found >= 0 else None

    def count(self, after: int, until: int) -> int:
        """Count the ticks after one moment and not after another one, up to `COUNTED` ticks."""
        found, tick = 0, self.after(after)
        while tick is not None and tick <= until and found < COUNTED:
            found, tick = found + 1, self.after(tick)
        return found

    def _ticks(self, moment: int, *, reverse: bool = False) -> Iterator[int]:
        # where a clock goes back, cronsim may give ticks again; where it does so at midnight, for ever
        try:
            for hours in (0, -3 if reverse else 3):
                begin = datetime.fromtimestamp(max(0, min(moment + 3600 * hours, LATEST)), self._zone)
                yield from (int(tick.timestamp()) for tick in islice(_read(self._line, begin, reverse=reverse), 500))
        except (OverflowError, ValueError, RuntimeError):  # beyond the years that a datetime can show
            return


@lru_cache(maxsize=1024)
def cron(text: str, zone: str) -> Cron:
    """Give the ticks of a checked line in a checked zone; those of the lines in use are kept."""
    return Cron(text, zone)
