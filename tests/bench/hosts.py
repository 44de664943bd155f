"""The cost of politeness, and whether it is fair: many hosts, and one huge host among them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

from tests.bench import handlers
from tests.bench.ground import Figure, Ground, Readings, measure
from tests.bench.workers import look, rate_of_acks
from timeoutq.cli.bench import Crew
from timeoutq.client import Queue
from timeoutq.words.model import Politeness

LABELS = ("10", "1k", "1m")


def pages(hosts: int, each: int, *, prefix: str = "host") -> Iterator[list[str]]:
    """Give `each` URLs per host: a page of every host, then the next page of every host; in lists of 5,000 at most."""
    part: list[str] = []
    for page in range(each):
        for number in range(hosts):
            part.append(f"https://{prefix}{number}.example.com/articles/2026/{page:06d}.html")
            if len(part) == 5000:
                yield part
                part = []
    if part:
        yield part


def _filled(queue: Queue, batches: Iterator[list[str]]) -> None:
    for part in batches:
        queue.put(part)


# ---- how much of a plain queue's throughput is left


@measure(
    "hosts",
    Figure("hosts-plain", "a worker with a no-op async def, on URLs of 1,000 hosts", "tasks/s"),
    Figure("hosts-plain-server", "the server's CPU during hosts-plain", "% of a core"),
    Figure(
        "hosts-polite",
        "a worker with a no-op async def on a polite queue, one visit of a host at once",
        "tasks/s",
        "hosts-plain",
        "≥ 0.6×",
    ),
    Figure("hosts-polite-server", "the server's CPU during hosts-polite", "% of a core"),
)
def polite(ground: Ground) -> Readings:
    hosts, each = ground.sizes.polite
    one = Politeness(delay=0, per_host=1)
    found: dict[str, float | None] = {}
    for name, politeness in ground.turned([("hosts-plain", None), ("hosts-polite", one)]):
        with ground.queue(politeness=politeness) as queue:
            _filled(queue, pages(hosts, each))
            with ground.worker(queue, handlers.nothing) as crew:
                crew.until(partial(_begun, ground, queue), "ack anything")
                found[name], found[f"{name}-server"] = rate_of_acks(ground, queue, hosts * each)
    return found


# ---- how much dearer a claim becomes with the number of hosts


@measure(
    "hosts-claim",
    *[
        Figure(
            f"hosts-claim-{label}",
            f"claim of 10 on a polite queue with {words} hosts",
            "µs/task",
            None if label == LABELS[0] else f"hosts-claim-{LABELS[0]}",
            "≤ 1.3×" if label == LABELS[-1] else None,
        )
        for label, words in zip(LABELS, ("10", "1,000", "1,000,000"), strict=True)
    ],
    once=True,
    heavy=True,
)
def claims(ground: Ground) -> Readings:
    spent: dict[str, list[float]] = {label: [] for label in LABELS}
    with ExitStack() as stack:
        queues: dict[str, Queue] = {}
        for label, hosts in zip(LABELS, ground.sizes.hosts, strict=True):
            queue = queues[label] = stack.enter_context(ground.queue(politeness=Politeness(delay=0, per_host=1)))
            _filled(queue, pages(hosts, max(2, 20 * ground.sizes.cycles // hosts)))
        for _ in range(ground.sizes.cycles):
            # in turns, so that all of them see the same machine
            for label, queue in queues.items():
                began = time.perf_counter()
                leases = queue.claim(10)
                spent[label].append((time.perf_counter() - began) * 1e6 / 10)  # µs for one of the 10 tasks
                queue.ack(leases)
    return {f"hosts-claim-{label}": median(values) for label, values in spent.items()}


# ---- one huge host among many small ones


@measure(
    "fair",
    Figure("fair-alone", "200 hosts with 50 tasks each: until all are visited", "s"),
    Figure(
        "fair-beside",
        "200 hosts with 50 tasks each, beside a host with 200,000: until the 200 are visited",
        "s",
        "fair-alone",
        "≤ 1.5×",
    ),
    once=True,
)
def fair(ground: Ground) -> Readings:
    huge, hosts, each = ground.sizes.fair
    found: dict[str, float | None] = {}
    for name, beside in (("fair-alone", 0), ("fair-beside", huge)):
        with ground.queue(politeness=Politeness(delay=0.02, per_host=1)) as queue:
            _filled(queue, pages(1, beside, prefix="huge"))
            _filled(queue, pages(hosts, each, prefix="small"))
            with ground.worker(queue, handlers.note) as crew:
                began = time.monotonic_ns()
                notes = crew.until(partial(_small, crew, hosts * each), "visit the small hosts", 300)
            found[name] = (max(times[-1] for times in notes.values()) - began) / 1e9
    return found


def _begun(ground: Ground, queue: Queue) -> bool:
    return look(ground, queue).acked > 0


def _small(crew: Crew, count: int) -> dict[str, list[int]] | None:
    found = {task: times for task, times in crew.notes().items() if "//small" in task}
    return found if len(found) >= count else None
