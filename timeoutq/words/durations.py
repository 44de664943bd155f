"""How long handlers ran: histograms, with fixed buckets so that all workers' histograms can be added. No I/O.

There are eight buckets for each doubling, from 0.12 ms to a day: the upper bound of a bucket is at most an eighth above
each duration in the bucket.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timeoutq.words.counts import Durations

SHORTEST = 2.0**-13
"""Seconds: all durations up to this one fall into one bucket."""
LONGEST = 86_400.0
"""Seconds: a longer duration counts as this one."""
QUICK = -89
"""The bucket that ends at `SHORTEST`."""


def bucket(seconds: float) -> int:
    """Give the number of the bucket in which a duration falls."""
    if seconds <= SHORTEST:
        return QUICK
    fraction, exponent = math.frexp(min(seconds, LONGEST))
    return 8 * exponent + int(16 * fraction)


def bound(number: int) -> float:
    """Give the upper bound of a bucket, seconds."""
    exponent, part = divmod(number - 8, 8)
    return math.ldexp((part + 9) / 16, exponent)


@dataclass(frozen=True, slots=True)
class Delta:
    """What was measured between two reports; the number is different in each report of a worker."""

    number: int
    counts: Mapping[int, int]


class Spans:
    """What one worker has measured since it started; it is never emptied, so a report that fails loses nothing."""

    __slots__ = ("_said", "_waiting", "counts", "quick")

    def __init__(self) -> None:
        self.quick = 0
        """How many runs took less than `SHORTEST`: the worker counts these itself, without a call of `add`."""
        self.counts: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._waiting: Delta | None = None

    def add(self, seconds: float) -> None:
        """Count a handler's run."""
        number = bucket(seconds)
        self.counts[number] = self.counts.get(number, 0) + 1

    def delta(self) -> Delta | None:
        """Give the next report, None if empty; the same one until `told` is called. Only one thread may call this."""
        if self._waiting is None:
            now = self._sum()
            counts = {number: count - self._said.get(number, 0) for number, count in now.items()}
            counts = {number: count for number, count in counts.items() if count}
            if counts:
                self._waiting = Delta(sum(now.values()), counts)
        return self._waiting

    def told(self) -> None:
        """Note that the server has counted the last report."""
        if self._waiting is not None:
            for number, count in self._waiting.counts.items():
                self._said[number] = self._said.get(number, 0) + count
            self._waiting = None

    def _sum(self) -> dict[int, int]:
        # copied in one step, because handlers may end in another thread at the same time
        found = self.counts.copy()
        if self.quick:
            found[QUICK] = found.get(QUICK, 0) + self.quick
        return found


def read(spans: Any) -> Durations | None:
    """Tell of the two spans of ten minutes that the queue keeps; if there is a gap between them, of the later one."""
    return summary(together(spans)) if spans[0] or spans[1] else None


def together(spans: Any) -> dict[int, int]:
    """Add up the two spans that the queue keeps, as `read` does; give how many runs there were of each bucket."""
    found = sorted((_counts(flat) for flat in spans[:2]), key=lambda pair: pair[0])
    newest = found[-1][0]
    counts: dict[int, int] = {}
    for at, some in found:
        if newest - at <= 1:
            for number, count in some.items():
                counts[number] = counts.get(number, 0) + count
    return counts


def read_all(flat: Any) -> dict[float, int]:
    """Give how many runs there were since the queue was made, by the upper bounds of their buckets, seconds."""
    _, counts = _counts(flat)
    return {bound(number): counts[number] for number in sorted(counts)}


def _counts(flat: Any) -> tuple[int, dict[int, int]]:
    at, counts = 0, dict[int, int]()
    if not flat:
        return at, counts
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        try:
            number = int(value)
            if name == b"span":
                at = number
            elif bucket(0) <= int(name) <= bucket(LONGEST) and 0 < number <= 2**53:
                counts[int(name)] = number
        except ValueError:  # somebody wrote this field by hand
            continue
    return at, counts


def summary(counts: Mapping[int, int]) -> Durations | None:
    """Give the number of runs, and the upper bounds of the buckets that half, 95 % and all of the runs reach."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted = [-(-total * percent // 100) for percent in (50, 95, 100)]
    bounds: list[float] = []
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        while len(bounds) < len(wanted) and passed >= wanted[len(bounds)]:
            bounds.append(bound(number))
    return Durations(total, *bounds)
