"""The order of the queues of an app while its worker is full: strict order, and weights of 3 to 1.

`tests/functions/test_calls_under_load.py` runs it for a moment; the long form is

    python -m tests.rig.order --urgent 200 --starts 8000

Strict order: a worker is full of calls of the low queue, each of which runs for `RUNS` seconds, and urgent calls come
into the high queue at any time. Each must begin within one running call and one pick-up. A pick-up is as long as an
idle worker beside it, in the same process, takes from the put of a call to its start, at most; how much longer than
`RUNS` the calls have run is lag of the machine, and counts as their runtime.

Weights: both queues have more calls than are run, and the first so many starts are counted. A claim fills its places
until the clocks of the queues agree, so at any time the count is wrong by what one claim can bring, at most: by 1 to 2
percent of 4,000 starts. A worker that looks at its queues in turn, or that forgets who has had what, is off by far more
than the 5 percent that are allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.rig.servers import valkey
from timeoutq import Worker
from timeoutq.functions import App
from timeoutq.server.embedded import EmbeddedServer

RUNS = 0.05
"""Seconds for which a call of the low queue runs."""
PLACES = 4


@dataclass(slots=True)
class Strict:
    """How long urgent calls have waited, seconds."""

    waits: list[float] = field(default_factory=list[float])
    before: list[int] = field(default_factory=list[int])
    """How many calls of the low queue have begun between the put of each urgent call and its start."""
    pick_ups: list[float] = field(default_factory=list[float])
    longest: float = 0.0
    """How long a call of the low queue has run, at most."""

    @property
    def good(self) -> bool:
        """Whether each urgent call has begun within one running call and one pick-up."""
        return max(self.waits) <= self.longest + max(self.pick_ups) and max(self.before) <= PLACES

    def line(self) -> str:
        """Say it in one line."""
        return (
            f"{len(self.waits)} urgent calls began {1000 * max(self.waits):.0f} ms after their put, at most; calls ran "
            f"for {1000 * self.longest:.0f} ms and pick-ups took {1000 * max(self.pick_ups):.0f} ms, at most; "
            f"{max(self.before)} others began before an urgent one, at most, in {PLACES} places"
        )


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """Run a worker; stop it at the end of the block."""
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def strict(urgent: int, seed: int = 0) -> Strict:
    """Put urgent calls beside a full queue."""
    found, chance, began = Strict(), random.Random(seed), dict[str, float]()
    lows = 0
    with EmbeddedServer(binary=valkey()) as server:
        app, beside = App("order", queues=["high", "low"], url=server.url), App("beside", url=server.url)

        @app.task(queue="low")
        async def low() -> None:
            nonlocal lows
            lows += 1
            at = time.monotonic()
            await asyncio.sleep(RUNS)
            found.longest = max(found.longest, time.monotonic() - at)

        @app.task(queue="high")
        async def high(name: str) -> None:
            began[name] = time.monotonic()
            found.before.append(lows)

        @beside.task
        async def idle(name: str) -> None:
            began[name] = time.monotonic()

        await app.aput(low.call() for _ in range(int(urgent * 4 * PLACES) + 500))
        options: Any = {"signals": False, "concurrency": PLACES}
        async with working(app.worker(**options)), working(beside.worker(**options)):
            await _until(lambda: lows > 10 * PLACES)
            for n in range(urgent):
                await asyncio.sleep(chance.random() * 2 * RUNS)
                before = lows
                at = time.monotonic()
                await high.adelay(f"high{n}")
                await _until(partial(began.__contains__, f"high{n}"))
                found.waits.append(began[f"high{n}"] - at)
                found.before[-1] -= before
                at = time.monotonic()
                await idle.adelay(f"idle{n}")
                await _until(partial(began.__contains__, f"idle{n}"))
                found.pick_ups.append(began[f"idle{n}"] - at)
        await app.aclose()
        await beside.aclose()
    return found


async def weighted(starts: int, weights: tuple[int, int] = (3, 1)) -> float:
    """Give the share of the first queue in so many starts, while both queues are full."""
    counts = Counter[str]()
    with EmbeddedServer(binary=valkey()) as server:
        app = App("weights", queues=dict(zip(("first", "second"), weights, strict=True)), url=server.url)

        @app.task(queue="first")
        async def first() -> None:
            await _run("first")

        @app.task(queue="second")
        async def second() -> None:
            await _run("second")

        async def _run(name: str) -> None:
            if counts.total() < starts:
                counts[name] += 1
            await asyncio.sleep(random.random() / 500)

        for function in (first, second):
            await app.aput(function.call() for _ in range(starts))
        async with working(app.worker(signals=False, concurrency=20)):
            await _until(lambda: counts.total() >= starts)
        await app.aclose()
    return counts["first"] / starts


async def _until(condition: Any, seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def is_fair(share: float, weights: tuple[int, int] = (3, 1)) -> bool:
    """Say whether the share of the first queue is what its weight says, within 5 percent of it."""
    return abs(share * sum(weights) / weights[0] - 1) <= 0.05


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run both trials, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--urgent", type=int, default=200)
    parser.add_argument("--starts", type=int, default=8000)
    given = parser.parse_args(words)
    found = asyncio.run(strict(given.urgent))
    print(found.line())
    share = asyncio.run(weighted(given.starts))
    print(f"weights 3:1: the first queue had {100 * share:.2f} % of {given.starts:,} starts (75 % is its part)")
    return 0 if found.good and is_fair(share) else 1


if __name__ == "__main__":
    sys.exit(main())
