"""The five measurements: put, claim + ack, a worker, the pick-up by an idle worker, calls of functions.

Each figure is taken for some seconds, so that a server far away takes no longer than one near by.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

import timeoutq
from timeoutq.cli.bench import handlers
from timeoutq.cli.bench.ground import Ground, ids
from timeoutq.client import Queue
from timeoutq.server import address
from timeoutq.words.errors import InvalidInput, MissingExtra


class Figure(NamedTuple):
    """One line of the table; the value is None where a package is not installed."""

    figure: str
    value: float | None
    unit: str
    about: str


# ---- one program


def _rate(seconds: float, step: Callable[[], int]) -> float:
    """Take steps for so long, or until a step handles no task; give the tasks a second."""
    step()  # connects
    began, done, took = time.perf_counter(), 0, 1e-9
    while took < seconds and (some := step()):
        done += some
        took = time.perf_counter() - began
    return done / took


def _fill(seconds: float, rate: int, step: Callable[[], int]) -> int:
    """Put enough tasks for `rate` a second, or as many as can be put in `seconds`; give how many there are."""
    until, tasks = time.monotonic() + seconds, step()
    while tasks < rate * seconds and time.monotonic() < until:
        tasks += step()
    return tasks


def _putting(queue: Queue, each: int = 1000) -> Callable[[], int]:
    firsts = count(step=each)

    def step() -> int:
        queue.put(ids(each, next(firsts)))
        return each

    return step


def _working(queue: Queue, each: int) -> Callable[[], int]:
    def step() -> int:
        leases = queue.claim(each)
        queue.ack(leases)
        return len(leases)

    return step


def _put(ground: Ground, seconds: float) -> Iterator[Figure]:
    for each, about in ((1, "put one by one, over one connection"), (1000, "put of 1,000 ids a call")):
        with ground.queue() as queue:
            yield Figure(f"put-{each}", _rate(seconds, _putting(queue, each)), "tasks/s", about)


def _claim(ground: Ground, seconds: float) -> Iterator[Figure]:
    for each in (1, 100):
        with ground.queue() as queue:
            _fill(seconds, 100_000, _putting(queue))
            rate = _rate(seconds, _working(queue, each))
            yield Figure(f"claim-{each}", rate, "tasks/s", f"claim + ack of {each}, over one connection")


# ---- a worker


class Sight(NamedTuple):
    """What is seen of a queue at one moment."""

    at: float
    acked: int
    cpu: float = 0.0  # the CPU time that the server has had, seconds, where that is asked


def watch(look: Callable[[], Sight], tasks: int, window: float) -> tuple[Sight, Sight]:
    """Watch workers for `window` seconds, or until nearly all tasks are acked; give the first sight and the last one.

    If there were too few tasks to be watched, the whole counts.
    """
    began = look()
    time.sleep(window / 10)
    first = last = look()
    while last.at < first.at + window:
        time.sleep(window / 40)
        seen = look()
        if seen.acked > 0.95 * tasks:
            break  # it is as if the window had ended a moment before
        last = seen
    if last is not first:
        return first, last
    while last.acked < tasks:
        time.sleep(window / 40)
        last = look()
    return Sight(began.at, 0, began.cpu), last


def _acks(ground: Ground, queue: Queue, handler: Any, tasks: int, seconds: float) -> float:
    """Let a worker run; give the acks a second."""

    def look() -> Sight:
        stats = queue.stats()
        return Sight(stats.now, stats.counters.get("acked", 0))

    with ground.worker(queue, handler) as crew:
        crew.until(lambda: look().acked, "ack anything")
        first, last = watch(look, tasks, seconds)
    return (last.acked - first.acked) / max(1e-3, last.at - first.at)


def _worker(ground: Ground, seconds: float) -> Iterator[Figure]:
    with ground.queue() as queue:
        tasks = _fill(seconds, 100_000, _putting(queue))
        rate = _acks(ground, queue, handlers.nothing, tasks, seconds)
        yield Figure("worker", rate, "tasks/s", "one worker process, whose handler does nothing")


def _calls(ground: Ground, seconds: float) -> Iterator[Figure]:
    with ground.queue() as queue:
        app = handlers.app(queue.name, ground.url)
        calls = [app.functions["nothing"].call(7, "seven")] * 1000
        try:
            tasks = _fill(seconds, 50_000, lambda: len(app.put(calls)))
        finally:
            app.sender.close()
        rate = _acks(ground, queue, f"{handlers.__name__}:calls", tasks, seconds)
        yield Figure("calls", rate, "calls/s", "one worker process, which runs calls of a function that does nothing")


# ---- how soon an idle worker picks up a task


def waits(ground: Ground, drive: Callable[[Callable[[str], object]], object]) -> list[float]:
    """Give for each task that `drive` puts how long it took from the call of put to the handler, ms."""
    put: dict[str, int] = {}
    with ground.queue() as queue, ground.worker(queue, handlers.note) as crew:

        def put_one(task: str) -> None:
            put[task] = time.monotonic_ns()
            queue.put(task)

        queue.put("first")
        crew.until(lambda: crew.noted(1), "pick up a task")
        drive(put_one)
        notes = crew.until(lambda: crew.noted(len(put) + 1), "pick up all tasks")
    return [(notes[task][0] - at) / 1e6 for task, at in put.items()]


def _pickup(ground: Ground, seconds: float) -> Iterator[Figure]:
    def drive(put: Callable[[str], object]) -> None:
        until = time.monotonic() + seconds
        for number in count():
            time.sleep(0.01)  # the worker is idle again
            put(f"task {number}")
            if time.monotonic() > until:
                return

    waited = waits(ground, drive)
    for part in (50, 99):
        about = f"from the call of put to the handler in an idle worker: {part} of 100 tasks wait no longer"
        yield Figure(f"pickup-p{part}", percentile(waited, part / 100), "ms", about)


def percentile(values: Sequence[float], part: float) -> float:
    """Give the smallest value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


# ---- a run


MEASURES: Mapping[str, Callable[[Ground, float], Iterator[Figure]]] = {
    "put": _put, "claim": _claim, "worker": _worker, "pickup": _pickup, "calls": _calls,
}  # fmt: skip


def measure(
    url: str | None = None,
    only: Sequence[str] = (),
    *,
    seconds: float = 3.0,
    tell: Callable[[str], object] = lambda words: None,
) -> dict[str, Any]:
    """Measure the server at `url`, or an embedded one, each figure for so many seconds; give where, and the figures.

    Raises `InvalidInput` for a wrong name, `MissingExtra` for calls that were asked for by name without the package
    that they need, and what timeoutq raises when the server is away or refuses.
    """
    if seconds <= 0:
        raise InvalidInput("--for 0: a figure needs some time, such as 500ms")
    asked = [name for words in only for name in words.replace(",", " ").split()]
    for name in asked:
        if name not in MEASURES:
            raise InvalidInput(f"no measurement has the name {name!r:.60}; there are: {', '.join(MEASURES)}")
    names, figures = [name for name in MEASURES if name in asked or not asked], list[Figure]()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with Ground(url) as ground:
        for at, name in enumerate(names, 1):
            tell(f"measures {name}, {at} of {len(names)}")
            try:
                figures += MEASURES[name](ground, seconds)
            except MissingExtra as error:
                if asked:
                    raise
                figures.append(Figure(name, None, "-", str(error)))
        return about(ground, began) | {"seconds": seconds, "figures": [figure._asdict() for figure in figures]}


def about(ground: Ground, began: str) -> dict[str, Any]:
    """Tell where figures come from."""
    return {
        "began": began,
        "server": ground.server,
        "url": "embedded" if ground.embedded else address.redact(ground.url),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "timeoutq": timeoutq.__version__,
    }


def number(value: float | None) -> str:
    """Write a number with three digits that count."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
