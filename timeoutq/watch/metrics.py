"""What happened when: rates, made of samples of a queue's counters. Pure.

The dashboard draws rates, `timeoutq status` prints them, and `timeoutq doctor --max-age` judges by the pace of claims.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from timeoutq.words.counts import Sample

COUNTERS = ("put", "acked", "failed", "expired")  # the counters whose rates are shown, in this order

STEP = 10.0  # seconds that one point of a series stands for, as soon as there is that much history


def pace(history: Sequence[Sample], counter: str, over: float) -> float | None:
    """Give the events per second of a counter over the last `over` seconds, or over the whole history if it is shorter.

    None when the history has no two samples at different moments.
    """
    if len(history) < 2:
        return None
    last = history[-1]
    first = next((sample for sample in reversed(history[:-1]) if last.at - sample.at >= over), history[0])
    span = last.at - first.at
    return max(0.0, (getattr(last, counter) - getattr(first, counter)) / span) if span > 0 else None


def rates(history: Sequence[Sample], over: float = 10.0) -> dict[str, float]:
    """Give the pace of each counter of `COUNTERS`, events per second; nothing when no pace is known."""
    paces = {counter: pace(history, counter, over) for counter in COUNTERS}
    return {counter: found for counter, found in paces.items() if found is not None}


def series(history: Sequence[Sample], counter: str, points: int) -> list[float]:
    """Give the rates of a counter in the last `points` steps of `STEP` seconds, events per second, oldest first.

    The steps are shorter when the history is. Samples come at any moment: between two of them the counter is taken to
    grow evenly.
    """
    kept = [sample for sample, after in pairwise(history) if sample.at < after.at] + list(history[-1:])
    if len(kept) < 2 or points < 1 or any(a.at >= b.at for a, b in pairwise(kept)):
        return []
    times = [sample.at for sample in kept]
    counts: list[float] = [getattr(sample, counter) for sample in kept]

    def at(moment: float) -> float:
        right = min(max(1, bisect_right(times, moment)), len(times) - 1)
        part = (moment - times[right - 1]) / (times[right] - times[right - 1])
        return counts[right - 1] + part * (counts[right] - counts[right - 1])

    step = min(STEP, max(1.0, (times[-1] - times[0]) / points))
    steps = min(points, int((times[-1] - times[0]) / step + 1e-6))
    found = [at(times[-1] - back * step) for back in range(steps, -1, -1)]
    return [max(0.0, (b - a) / step) for a, b in pairwise(found)]
