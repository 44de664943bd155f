"""The cost of calls of functions: to run them, to put them, and to wait for their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.bench import handlers
from tests.bench.ground import Figure, Ground, Readings, measure
from tests.bench.limits import rate
from tests.bench.workers import look, rate_of_acks
from timeoutq.cli.bench import ids, percentile
from timeoutq.client import Queue
from timeoutq.words.arguments import Packed
from timeoutq.words.model import Task

if TYPE_CHECKING:
    from timeoutq.functions import App

CALLED = f"{handlers.__name__}:calls"
AT_ONCE = 10_000
"""How many calls are put at once, where many are."""


@contextmanager
def _app(ground: Ground, queue: Queue) -> Iterator[App]:
    made = handlers.app(queue.name, ground.url)
    try:
        yield made
    finally:
        made.sender.close()


# ---- to run them


@measure(
    "functions-calls",
    Figure(
        "functions-calls",
        "a worker that runs calls of an async def with two arguments, which does nothing",
        "tasks/s",
        "worker",
        "≥ 0.4×",
    ),
    Figure("functions-calls-rate", "the same, by itself", "tasks/s", None, "≥ 25,000"),
    Figure("functions-calls-server", "the server's CPU during functions-calls", "% of a core"),
    needs=("msgspec",),
)
def run_calls(ground: Ground) -> Readings:
    count, name = ground.sizes.backlog // 5, "functions-calls"
    with ground.queue() as queue, _app(ground, queue) as app:
        call = app.functions["nothing"].call(7, "seven")
        for first in range(0, count, AT_ONCE):
            app.put([call] * min(AT_ONCE, count - first))
        with ground.worker(queue, CALLED) as crew:
            crew.until(lambda: look(ground, queue).acked > 0, "ack anything")
            calls, cpu = rate_of_acks(ground, queue, count)
            return {name: calls, f"{name}-rate": calls, f"{name}-server": cpu}


# ---- to put them


@measure(
    "functions-delay",
    Figure("functions-put", "put one by one of a task with a payload, Queue", "tasks/s"),
    Figure("functions-delay", ".delay one by one of the same payload", "calls/s", "functions-put", "≥ 0.8×"),
    needs=("msgspec",),
)
def put_calls(ground: Ground) -> Readings:
    found, count = dict[str, float | None](), ground.sizes.trips
    with ground.queue() as queue, _app(ground, queue) as app:
        nothing, tasks = app.functions["nothing"], ids(count + 1)
        call = Packed(b'{"v":1,"f":"nothing","a":[7,"seven"],"k":{}}')
        kinds: dict[str, Callable[[int], object]] = {
            "functions-put": lambda number: queue.put(Task(tasks[number], call)),
            "functions-delay": lambda number: nothing.delay(7, "seven"),
        }
        for name, put in ground.turned(kinds.items()):
            put(count)  # connects
            found[name] = rate(count, put)
    return found


# ---- to wait for their results


@measure(
    "functions-wait",
    Figure("functions-began-p50", "from .delay to the function in an idle worker: p50", "ms"),
    Figure("functions-began-p99", "from .delay to the function in an idle worker: p99", "ms"),
    Figure("functions-wait-p50", "from .delay to what wait gives, of the same calls: p50", "ms", "functions-began-p50"),
    Figure(
        "functions-wait-p99",
        "from .delay to what wait gives, of the same calls: p99",
        "ms",
        "functions-began-p99",
        "≤ +3",
    ),
    needs=("msgspec",),
)
def wait_for_results(ground: Ground) -> Readings:
    count, gap = ground.sizes.paced, ground.sizes.paced_gap
    begun, waited = list[float](), list[float]()
    with ground.queue() as queue, _app(ground, queue) as app, ground.worker(queue, CALLED):
        began = app.functions["began"]
        began.delay(0).wait(60)
        for number in range(count):
            time.sleep(gap)
            at = time.monotonic_ns()
            moment = began.delay(number).wait(60)
            waited.append((time.monotonic_ns() - at) / 1e6)
            begun.append((moment - at) / 1e6)
    return {
        "functions-began-p50": percentile(begun, 0.5),
        "functions-began-p99": percentile(begun, 0.99),
        "functions-wait-p50": percentile(waited, 0.5),
        "functions-wait-p99": percentile(waited, 0.99),
    }


# ---- the table
