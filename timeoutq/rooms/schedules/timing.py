"""When a schedule ticks: checked, as the text that is stored, and which ticks are due. No I/O, and no clock.

Whoever ticks schedules (workers and cleaners) asks `due` with the server's time, and lets one script put the ticks and
store the next one. All moments are whole ms since 1970.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from timeoutq.rooms.schedules.cron import BadTiming, Cron, cron, line, zone_name
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import MAX_TIME_MS

VERSION = 1
"""A reader refuses the text of another version."""
SHORTEST_MS, LONGEST_MS = 1_000, 3_660 * 86_400_000
"""The bounds of `every`: a second and ten years."""
MOST_TICKS = 1_000_000_000
"""The most that `times` takes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule ticks: at the times of a line of cron in a zone, or again and again after the same time."""

    cron: str | None = None
    tz: str | None = None
    every_ms: int | None = None
    times: int | None = None
    """The schedule ends when so many ticks have been put."""
    start_ms: int | None = None
    """No tick is earlier. `every` counts from here, and the first tick is at this time."""
    until_ms: int | None = None
    """No tick is later."""

    @classmethod
    def of(
        cls,
        *,
        cron: str | None = None,
        tz: object = None,
        every: float | timedelta | None = None,
        times: int | None = None,
        start: datetime | None = None,
        until: datetime | None = None,
    ) -> Timing:
        """Check what a user gives: either `cron` (with `tz`, else in UTC) or `every` (seconds, at least one)."""
        if (cron is None) == (every is None):
            given = "neither" if cron is None else "both"
            raise BadTiming(f"this has {given} of cron= and every=: give one, cron='0 9 * * 1-5' or every=60")
        if cron is None and tz is not None:
            raise BadTiming(f"tz={shown(tz)} goes with cron=: leave tz= out, because every= does not look at clocks")
        try:
            return cls(
                cron=None if cron is None else line(cron),
                tz=None if cron is None else zone_name("UTC" if tz is None else tz),
                every_ms=None if every is None else _every(round(arguments.seconds(every, "every") * 1000)),
                times=None if times is None else arguments.count(times, "times", 1, MOST_TICKS),
                start_ms=None if start is None else -(-_moment(start, "start") // _MS),
                until_ms=None if until is None else _moment(until, "until") // _MS,
            )._whole()
        except BadTiming:
            raise
        except InvalidInput as error:
            raise BadTiming(str(error)) from None

    @classmethod
    def read(cls, text: str | bytes) -> Timing:
        """Read what `text` has written, by this program or another one. Raises `BadTiming` if it is not that."""
        try:
            found = cast("dict[str, Any]", json.loads(text))
            if found["v"] != VERSION:
                raise BadTiming(
                    f"its version is {found['v']!r}, and this program reads {VERSION}: upgrade this program"
                )
            numbers = {
                name: None if found.get(name) is None else arguments.count(found[name], name, 0, MAX_TIME_MS)
                for name in ("every", "times", "start", "until")
            }
            is_cron = "cron" in found
            return cls(
                line(found["cron"]) if is_cron else None,
                zone_name(found["tz"]) if is_cron else None,
                None if is_cron else _every(numbers["every"] or 0),
                numbers["times"],
                numbers["start"],
                numbers["until"],
            )._whole()
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            said = f": {error}" if isinstance(error, InvalidInput) else ""
            raise BadTiming(f"the stored timing {shown(text)} cannot be used{said}; set the schedule again") from None

    def _whole(self) -> Timing:
        """Refuse an end that leaves no tick."""
        if self.until_ms is not None and self.start_ms is not None:
            first: int | None = self.start_ms
            if self.cron is not None and self.tz is not None:
                found = cron(self.cron, self.tz).after((self.start_ms - 1) // 1000)
                first = None if found is None else found * 1000
            if first is None or first > self.until_ms:
                raise BadTiming("no tick is between start= and until=: let until= be later, or leave it out")
        return self

    def text(self) -> str:
        """Give the one text for this timing: JSON, its names sorted; times are whole ms, moments are ms since 1970."""
        said = {
            "cron": self.cron,
            "tz": self.tz,
            "every": self.every_ms,
            "times": self.times,
            "start": self.start_ms,
            "until": self.until_ms,
        }
        found = {name: value for name, value in said.items() if value is not None} | {"v": VERSION}
        return json.dumps(found, sort_keys=True, separators=(",", ":"))

    def anchored(self, now_ms: int, before: Timing | None = None) -> Timing:
        """Give the timing to be stored: `every` without a start counts from now."""
        if self.every_ms is None or self.start_ms is not None:
            return self
        if before is not None and before.start_ms is not None and replace(before, start_ms=None) == self:
            return before
        return replace(self, start_ms=now_ms)

    def continuing(self, now_ms: int, before: Timing, last_ms: int) -> Timing:
        """Give the timing to be stored if code now declares another `every` than `before`."""
        anchored = self.anchored(now_ms, before)
        if anchored is before or self.every_ms is None or self.start_ms is not None or before.start_ms is None:
            return anchored
        since = min(now_ms, max(before.start_ms, last_ms))
        return replace(self, start_ms=max(since, now_ms - self.every_ms))

    def __str__(self) -> str:
        """Give the timing in a few words: `0 9 * * 1-5 in Europe/Berlin`, `every 90 s, 3 times`."""
        words = f"{self.cron} in {self.tz}" if self.every_ms is None else f"every {self.every_ms / 1000:,g} s"
        return words if self.times is None else f"{words}, {self.times:,} times"


def _every(ms: int) -> int:
    if not SHORTEST_MS <= ms <= LONGEST_MS:
        raise BadTiming(
            f"every={ms / 1000:g} s is out of range: 1 s to {LONGEST_MS // 86_400_000:,} days; for what runs all the "
            "time, let the handler put its task again, with Ack(again_in=…)"
        )
    return ms


def _moment(value: object, name: str) -> timedelta:
    """Give the time since 1970 of an aware datetime."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        what = "has no time zone" if isinstance(value, datetime) else "is no datetime"
        raise BadTiming(f"{name}={shown(value)} {what}: use datetime(…, tzinfo=ZoneInfo('Europe/Berlin')), or UTC")
    found = value - _EPOCH
    if not timedelta() <= found <= timedelta(milliseconds=MAX_TIME_MS):
        raise BadTiming(f"{name}={shown(value)} is not between the years 1970 and 9999")
    return found


Missed = Literal["last", "all", "none"]

MOST = 1_000
"""The most ticks that one call of `due` gives."""
ON_TIME_MS = 60_000
"""A tick that is put within a minute has not been missed."""
MAX_NAME = 200
"""The most bytes of a schedule's name."""

_MISSED: dict[str, Missed] = {"last": "last", "all": "all", "none": "none"}
_TICK = re.compile(r"@[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done for a schedule now."""

    ticks: tuple[int, ...]
    """The ticks to put, the oldest first."""
    next_ms: int | None
    """When to look again; None if the schedule has ended. If more ticks are due than one call gives, it has passed."""
    skipped: int
    """How many earlier ticks are not put, and will not be (of a line of cron: `cron.COUNTED` at most)."""


def lateness(missed: object, grace: object = None, *, overlap: object = True) -> tuple[Missed, int | None]:
    """Check what becomes of missed ticks, and how late a tick may be put (seconds or a timedelta): give it in ms."""
    which = _MISSED.get(missed) if isinstance(missed, str) else None
    if which is None:
        raise BadTiming(f"missed={shown(missed)} is unknown: use 'last', 'all' or 'none'")
    if which == "all" and not overlap:
        raise BadTiming(
            "missed='all' puts each tick, but all ticks have the same id here, so only one would be put: add "
            "overlap=True, with which each tick has an id of its own, or use missed='last'"
        )
    if grace is None:
        return which, ON_TIME_MS if which == "none" else None
    if which == "none":
        raise BadTiming("missed='none' puts a tick within a minute or never: leave grace= out, or use missed='last'")
    try:
        found = arguments.delay_ms(grace, "grace")
    except InvalidInput as error:
        raise BadTiming(str(error)) from None
    if found < 1_000:
        raise BadTiming(f"grace={shown(grace)} is less than a second, and every tick is a little late: use 'none'")
    return which, found


def next_after(timing: Timing, moment_ms: int) -> int | None:
    """Give the first tick after a moment; None if there is none. What `times` says is not looked at."""
    if timing.start_ms is not None:
        moment_ms = max(moment_ms, timing.start_ms - 1)
    if timing.every_ms is not None:
        start = _start(timing)
        found: int | None = start + ((moment_ms - start) // timing.every_ms + 1) * timing.every_ms
    else:
        tick = _cron(timing).after(moment_ms // 1000)
        found = None if tick is None else tick * 1000
    latest = MAX_TIME_MS if timing.until_ms is None else timing.until_ms
    return None if found is None or found > latest else found


def due(
    timing: Timing,
    last_ms: int | None,
    now_ms: int,
    *,
    missed: Missed = "last",
    grace_ms: int | None = None,
    put: int = 0,
    stored_ms: int | None = None,
) -> Due:
    """Say which ticks to put now.

    All ticks up to `last_ms` have been looked at; of a new schedule it is None, and nothing is due. `missed` and
    `grace_ms` are those of `lateness`, and `put` is how many ticks have been put, for `times`. `stored_ms` is the next
    tick as it is stored: it is a tick, also where the data of time zones are other ones than where it was worked out.
    """
    left = MOST if timing.times is None else max(0, timing.times - put)
    if not left:
        return Due((), None, 0)
    if last_ms is None or now_ms <= last_ms:
        return Due((), next_after(timing, now_ms if last_ms is None else last_ms), 0)
    if missed == "none" and grace_ms is None:
        grace_ms = ON_TIME_MS
    oldest = last_ms if grace_ms is None else max(last_ms, now_ms - grace_ms - 1)
    foreign = () if stored_ms is None or last_ms >= stored_ms or is_tick(timing, stored_ms) else (stored_ms,)
    if missed == "all":
        ticks = (*(tick for tick in foreign if tick > oldest), *_all(timing, oldest, now_ms, min(MOST, left)))
        ticks = ticks[: min(MOST, left)]
        skipped = count(timing, last_ms, oldest) + sum(tick <= oldest for tick in foreign)
    else:
        newest = max((tick for tick in (_last(timing, now_ms), *foreign) if tick is not None), default=oldest)
        ticks = () if newest <= oldest else (newest,)
        skipped = count(timing, last_ms, now_ms) + len(foreign) - len(ticks)
    if timing.times is not None and len(ticks) >= left:
        return Due(ticks, None, skipped)
    return Due(ticks, next_after(timing, ticks[-1] if len(ticks) == MOST else now_ms), skipped)


def schedule_name(value: object) -> str:
    """Check the name of a schedule: up to 200 bytes, and not as the id of a tick ends. Raises `BadTiming`."""
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not isinstance(value, str) or not 0 < size <= MAX_NAME:
        raise BadTiming(f"{shown(value)} is no name of a schedule: use text of 1 to {MAX_NAME} bytes")
    if _TICK.search(value):
        raise BadTiming(f"the name of a schedule does not end in @ and digits, as {shown(value)} does: ids of ticks do")
    return value


def tick_id(name: str, tick_ms: int, *, overlap: bool = False) -> str:
    """Give the id of the task that a tick puts."""
    return f"{name}@{tick_ms}" if overlap else name


def _all(timing: Timing, after_ms: int, until_ms: int, most: int) -> tuple[int, ...]:
    found: list[int] = []
    while len(found) < most:
        tick = next_after(timing, found[-1] if found else after_ms)
        if tick is None or tick > until_ms:
            break
        found.append(tick)
    return tuple(found)


def _last(timing: Timing, moment_ms: int) -> int | None:
    """Give the last tick that is not after a moment."""
    if timing.until_ms is not None:
        moment_ms = min(moment_ms, timing.until_ms)
    if timing.start_ms is not None and moment_ms < timing.start_ms:
        return None
    if timing.every_ms is not None:
        return moment_ms - (moment_ms - _start(timing)) % timing.every_ms
    tick = _cron(timing).before(moment_ms // 1000)
    return None if tick is None or tick * 1000 < (timing.start_ms or 0) else tick * 1000


def count(timing: Timing, after_ms: int, until_ms: int) -> int:
    """Count the ticks after one moment and not after another one (of a line of cron: `cron.COUNTED` at most)."""
    if timing.start_ms is not None:
        after_ms = max(after_ms, timing.start_ms - 1)
    if timing.until_ms is not None:
        until_ms = min(until_ms, timing.until_ms)
    if until_ms <= after_ms:
        return 0
    if timing.every_ms is not None:
        start = _start(timing)
        return (until_ms - start) // timing.every_ms - (after_ms - start) // timing.every_ms
    return _cron(timing).count(after_ms // 1000, until_ms // 1000)


def is_tick(timing: Timing, moment_ms: int) -> bool:
    """Say whether a moment is a tick, by the data of time zones that are here."""
    return next_after(timing, moment_ms - 1) == moment_ms


def _cron(timing: Timing) -> Cron:
    assert timing.cron is not None and timing.tz is not None
    return cron(timing.cron, timing.tz)


def _start(timing: Timing) -> int:
    if timing.start_ms is None:
        raise BadTiming("every= counts from a start, and this timing has none: store what Timing.anchored gives")
    return timing.start_ms
