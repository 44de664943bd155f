"""What says when a schedule ticks, checked, and as the text that is stored in Redis. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from timeoutq.rooms.schedules.cron import BadTiming, cron, line, zone_name
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
