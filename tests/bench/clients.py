"""How fast a program puts, claims and acks through `Queue` and `AsyncQueue`, and how much memory tasks take."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from typing import Any

from tests.bench.ground import Figure, Ground, Readings, measure
from tests.bench.limits import rate, slices
from timeoutq.cli.bench import ids
from timeoutq.client import AsyncQueue, Queue
from timeoutq.words.model import Politeness

HOUR = 3600


def _rate_async(ground: Ground, name: str, count: int, step: Callable[[AsyncQueue, int], Awaitable[object]],
                each: int = 1) -> float:  # fmt: skip
    async def run() -> float:
        queue, rates = AsyncQueue(name, ground.url), list[float]()
        try:
            await queue.drained()  # connects
            for part in slices(count):
                began = time.perf_counter()
                for number in part:
                    await step(queue, number)
                rates.append(each * len(part) / (time.perf_counter() - began))
        finally:
            await queue.close()
        return median(rates)

    return asyncio.run(run())


# ---- put


@measure(
    "put-one",
    Figure("put-one", "put one by one, Queue", "tasks/s", "evalsha", "≥ 0.75×"),
    Figure("put-one-async", "put one by one, AsyncQueue", "tasks/s", "evalsha"),
)
def put_one(ground: Ground) -> Readings:
    tasks = ids(ground.sizes.trips)
    with ground.queue() as queue:
        queue.put("first")
        sync = rate(len(tasks), lambda number: queue.put(tasks[number]))
    with ground.queue() as queue:
        queue.put("first")
        twin = _rate_async(ground, queue.name, len(tasks), lambda twin, number: twin.put(tasks[number]))
    return {"put-one": sync, "put-one-async": twin}


@measure("put-bulk", Figure("put-bulk", "put of 1,000 ids a call, Queue", "tasks/s", "sadd", "≥ 0.4×"))
def put_bulk(ground: Ground) -> Readings:
    tasks = ids(ground.sizes.bulk)
    with ground.queue() as queue:
        queue.put("first")

        def put(number: int) -> None:
            queue.put(tasks[number * 1000 : (number + 1) * 1000])

        return {"put-bulk": rate(len(tasks) // 1000, put, 1000)}


# ---- claim and ack


@measure(
    "claim-100",
    Figure("claim-100", "claim + ack of 100 through Queue", "tasks/s", "bare-100", "≥ 0.7×"),
    Figure("claim-100-async", "claim + ack of 100 through AsyncQueue", "tasks/s", "bare-100"),
    Figure(
        "claim-100-apart",
        "claim + ack of 100 through Queue, beside a bare client with two round trips as well",
        "tasks/s",
        "bare-100-apart",
    ),
)
def claim(ground: Ground) -> Readings:
    batch = 100
    count = ground.sizes.drained
    with ground.queue() as queue:
        _filled(ground, queue)
        sync = rate(count // batch, lambda _: queue.ack(queue.claim(batch)), batch)
    with ground.queue() as queue:
        _filled(ground, queue)

        async def step(twin: AsyncQueue, _: int) -> None:
            await twin.ack(await twin.claim(batch))

        twin = _rate_async(ground, queue.name, count // batch, step, batch)
    return {"claim-100": sync, "claim-100-async": twin, "claim-100-apart": sync}


def _filled(ground: Ground, queue: Queue) -> None:
    queue.put("first")
    ground.fill(queue.operations.key("todos"), ground.sizes.backlog)
    queue.ack(queue.claim(1))  # every script is known to the server now


# ---- what a round of the cleaner costs while nothing has expired


LABELS = ("1k", "100k", "1m")


@measure(
    "requeue",
    *[
        Figure(
            f"requeue-{label}",
            f"requeue_expired with {words} leases, none of which ran out",
            "ms",
            None if label == LABELS[0] else f"requeue-{LABELS[0]}",
            "≤ 1" if label == LABELS[-1] else None,
        )
        for label, words in zip(LABELS, ("1,000", "100,000", "1,000,000"), strict=True)
    ],
    once=True,
)
def requeue(ground: Ground) -> Readings:
    found: dict[str, float | None] = {}
    for label, count in zip(LABELS, ground.sizes.leases, strict=True):
        with ground.queue(timeout=HOUR) as queue:
            key = queue.operations.key
            # the queue knows then how long its leases are, and looks for some that are longer
            queue.put("first")
            queue.ack(queue.claim(1))
            now_ms = time.monotonic() * 1000 + ground.clock_offset_ms()
            ground.fill(key("in_progress"), count)
            ground.fill(key("owners"), count, kind="HSET")
            ground.fill(key("leases"), count, kind="ZADD", at=now_ms + 1_000_000, step=2_000_000 / count)
            queue.requeue_expired()
            calls, micros = ground.script_time()
            for _ in range(ground.sizes.rounds_of_requeue):
                queue.requeue_expired()
            calls_after, micros_after = ground.script_time()
            found[f"requeue-{label}"] = (micros_after - micros) / max(1, calls_after - calls) / 1000
            # without lock keys, these can go at once
            ground.bare.execute_command("UNLINK", key("in_progress"), key("owners"), key("leases"))
    return found


# ---- memory


_PATHS = {"host-short": "/of-the-benchmark".ljust(23, "-"), "host": "/of-the-benchmark".ljust(31, "-")}
"""Paths for ids of 60 bytes, and of 68, as all others: servers keep few tasks as a row if each id has 64 at most."""


@measure(
    "memory",
    Figure("memory-set", "a task in a plain SET", "bytes"),
    Figure("memory-todos", "a task in todos", "bytes", "memory-set", "≤ 1.1×"),
    Figure("memory-in-progress", "a task in progress", "bytes", "memory-set"),
    Figure("memory-done", "a task in done", "bytes", "memory-set", "≤ 1.1×"),
    Figure("memory-scheduled", "a scheduled task", "bytes", "memory-set"),
    Figure("memory-waiting", "a task that waits for its host, which has many", "bytes", "memory-set"),
    Figure("memory-compact", 'a task in done with keep_done="compact"', "bytes", "memory-set"),
    Figure("memory-host", "a host with one task that waits, and this task", "bytes", "memory-set"),
    Figure("memory-host-short", "the same with an id of 60 bytes; all others have 68", "bytes", "memory-set"),
    once=True,
)
def memory(ground: Ground) -> Readings:
    count, found = ground.sizes.weighed, dict[str, float | None]()
    tasks = ids(count)

    def weigh(name: str, before: int) -> None:
        found[f"memory-{name}"] = (ground.used_memory() - before) / count

    with ground.queue() as queue:
        before = ground.used_memory()
        for at in range(0, count, 1000):
            ground.bare.execute_command("SADD", queue.operations.key("todos"), *tasks[at : at + 1000])
        weigh("set", before)
    with ground.queue(timeout=HOUR) as queue:
        queue.stats()
        before = ground.used_memory()
        queue.put(tasks)
        weigh("todos", before)
        leases = [lease for _ in range(0, count, 500) for lease in queue.claim(500)]
        weigh("in-progress", before)
        queue.ack(leases)
        weigh("done", before)
    with ground.queue() as queue:
        before = ground.used_memory()
        queue.schedule(tasks, after=HOUR)
        weigh("scheduled", before)
    with ground.queue(politeness=Politeness(HOUR, 1)) as queue:
        before = ground.used_memory()
        queue.put(tasks)  # all of one host, which takes one of them
        weigh("waiting", before)
    with ground.queue(timeout=HOUR, keep_done="compact") as queue:
        queue.stats()
        before = ground.used_memory()
        for at in range(0, count, 500):
            queue.put(tasks[at : at + 500])
            queue.ack(queue.claim(500))
        weigh("compact", before)
    for name, path in _PATHS.items():
        with ground.queue(politeness=Politeness(HOUR, 1)) as queue:
            queue.stats()
            before, hosts = ground.used_memory(), max(1, count // 2)
            for page in range(2):  # each host takes the first one
                queue.put(f"https://{number:010d}.example.com/{page}{path}.html" for number in range(hosts))
            took = (ground.used_memory() - before) / hosts
            found[f"memory-{name}"] = took - (found["memory-todos"] or 0) + len(_PATHS["host"]) - len(path)
    return found


# ---- growth


SIZES = ("10k", "1m", "10m")
VERBS = {"put": "put", "claim": "claim", "ack": "ack", "random": "a raw SRANDMEMBER"}
_BYTES = 250
"""More than a task takes in the two sets that are filled, with room for a table that grows."""


@measure(
    "growth",
    *(
        Figure(
            f"growth-{verb}-{label}",
            f"{about} in hundreds with {words} tasks in the queue",
            "µs/task",
            None if label == SIZES[0] else f"growth-{verb}-{SIZES[0]}",
            "≤ 1.3×" if label == SIZES[-1] and verb != "random" else None,
        )
        for verb, about in VERBS.items()
        for label, words in zip(SIZES, ("10 thousand", "1 million", "10 million"), strict=True)
    ),
    once=True,
    heavy=True,
)
def growth(ground: Ground) -> Readings:
    found: dict[str, float | None] = {}
    with ExitStack() as stack:
        queues: dict[str, Queue] = {}
        for label, size in zip(SIZES, ground.sizes.grown, strict=True):
            for verb in VERBS:
                found[f"growth-{verb}-{label}"] = None
            if ground.room() < size * _BYTES + 500_000_000 and label != SIZES[0]:
                continue
            queue = queues[label] = stack.enter_context(ground.queue())
            # half of it is still to do, half is done: that is what a put looks through
            ground.fill(queue.operations.key("todos"), size // 2)
            ground.fill(queue.operations.key("done"), size - size // 2, first=size // 2)
        spent: dict[str, list[float]] = {name: [] for name in found}
        for cycle in range(ground.sizes.cycles):
            # in turns, so that all of them see the same machine
            for at, (label, queue) in enumerate(queues.items()):
                tasks = ids(100, first=100_000_000 + (cycle * len(queues) + at) * 100)
                moments = [time.perf_counter()]
                queue.put(tasks)
                moments.append(time.perf_counter())
                leases = queue.claim(100)
                moments.append(time.perf_counter())
                queue.ack(leases)
                moments.append(time.perf_counter())
                ground.bare.execute_command("SRANDMEMBER", queue.operations.key("todos"), 100)
                moments.append(time.perf_counter())
                for verb, (began, ended) in zip(VERBS, pairwise(moments), strict=True):
                    spent[f"growth-{verb}-{label}"].append((ended - began) * 1e4)  # µs, by 100 tasks
    return found | {name: median(values) for name, values in spent.items() if values}


# ---- how long a program takes to start


@measure(
    "starts",
    Figure("import-redis", "a program that imports redis-py alone", "s"),
    Figure("import", "a program that imports timeoutq and uses its names", "s", "import-redis", "≤ +0.1"),
    Figure("help", "timeoutq --help", "s", None, "≤ 0.35"),
)
def starts(ground: Ground) -> Readings:
    def seconds(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        return time.perf_counter() - began

    everything = "import timeoutq; timeoutq.Queue, timeoutq.AsyncQueue, timeoutq.Worker"
    kinds: dict[str, Any] = {
        "import-redis": ("-c", "import redis, redis.asyncio"),
        "import": ("-c", everything),
        "help": ("-m", "timeoutq", "--help"),
    }
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ground.sizes.starts):
        for name, words in kinds.items():
            spent[name].append(seconds(*words))
    return {name: median(values) for name, values in spent.items()}
