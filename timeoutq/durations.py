"""How long handlers ran: histograms with fixed buckets, so that those of all workers can be added up. No I/O.

The worker measures into a `Spans`, its heartbeat sends what has been added since, and `operations.py` reads the sums
back. There are eight buckets to each doubling, from 0.12 ms to a day: a bucket's bound is at most an eighth above what
fell into it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timeoutq.model import Durations

SHORTEST = 2.0**-13
"""What is shorter is not told apart, seconds."""
LONGEST = 86_400.0
QUICK = -89
"""The bucket that ends at `SHORTEST`."""


def bucket(seconds: float) -> int:
    """Give the number of the bucket in which a duration falls."""
    if seconds <= SHORTEST:
        return QUICK
    fraction, exponent = math.frexp(min(seconds, LONGEST))
    return 8 * exponent + int(16 * fraction)


def bound(number: int) -> float:
    """Give the end of a bucket, seconds."""
    exponent, part = divmod(number - 8, 8)
    return math.ldexp((part + 9) / 16, exponent)


@dataclass(frozen=True, slots=True)
class Delta:
    """What has been measured between two reports; the number tells this report of a worker from its others."""

    number: int
    counts: Mapping[int, int]


class Spans:
    """What one worker has measured since it started; it is never emptied, so a report that fails loses nothing."""

    __slots__ = ("_said", "_waiting", "counts", "quick")

    def __init__(self) -> None:
        self.quick = 0
        """How many took less than `SHORTEST`: the worker counts these without a call."""
        self.counts: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._waiting: Delta | None = None

    def add(self, seconds: float) -> None:
        """Count a handler's run."""
        number = bucket(seconds)
        self.counts[number] = self.counts.get(number, 0) + 1

    def delta(self) -> Delta | None:
        """Give what is to be reported, None for nothing; until `told`, the same again. One thread asks."""
        if self._waiting is None:
            now = self._sum()
            counts = {number: count - self._said.get(number, 0) for number, count in now.items()}
            counts = {number: count for number, count in counts.items() if count}
            if counts:
                self._waiting = Delta(sum(now.values()), counts)
        return self._waiting

    def told(self) -> None:
        """Take it that the last delta has been counted."""
        if self._waiting is not None:
            for number, count in self._waiting.counts.items():
                self._said[number] = self._said.get(number, 0) + count
            self._waiting = None

    def _sum(self) -> dict[int, int]:
        # copied in one step: handlers end meanwhile in another thread
        found = self.counts.copy()
        if self.quick:
            found[QUICK] = found.get(QUICK, 0) + self.quick
        return found


def read(spans: Any) -> Durations | None:
    """Add up the two spans of ten minutes that the queue keeps; take the later one if there is time between them."""
    found = sorted((_counts(flat) for flat in spans), key=lambda pair: pair[0])
    newest = found[-1][0]
    counts: dict[int, int] = {}
    for at, some in found:
        if newest - at <= 1:
            for number, count in some.items():
                counts[number] = counts.get(number, 0) + count
    return summary(counts)


def _counts(flat: Any) -> tuple[int, dict[int, int]]:
    at, counts = 0, dict[int, int]()
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        try:
            if name == b"span":
                at = int(value)
            else:
                counts[int(name)] = int(value)
        except ValueError:  # what another hand wrote into it
            continue
    return at, counts


def summary(counts: Mapping[int, int]) -> Durations | None:
    """Give how many there are, and the bounds of the buckets below which half, 95 % and all of them lie."""
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
