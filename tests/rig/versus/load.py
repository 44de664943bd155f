"""One round in one tree: each part of the load, its processor time per task as JSON. Runs with that tree on its path.

Both trees run this file, so it calls only what both have.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable

import redis

from timeoutq import AsyncQueue, Lease, Politeness, Queue, Worker
from timeoutq.embedded import EmbeddedServer

SINGLE = 3_000
"""Tasks of a part that makes one call per task."""
MANY = 30_000
"""Tasks of a part that makes calls of 100 or more."""
PICKED = 400
"""Tasks of the part that waits for each pick-up."""
HOSTS = 500

Costs = dict[str, tuple[float, float]]
"""By part: microseconds of the server and of the client per task."""


class Meter:
    """Reads the processor time of the server and of this process around a part."""

    def __init__(self, url: str) -> None:
        """Connect to the server at `url`."""
        self._server = redis.Redis.from_url(url)
        self.costs: Costs = {}

    def _now(self) -> tuple[float, float]:
        cpu = self._server.info("cpu")
        assert isinstance(cpu, dict)
        mine = resource.getrusage(resource.RUSAGE_SELF)
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), mine.ru_utime + mine.ru_stime

    def part(self, name: str, tasks: int, run: Callable[[], object]) -> None:
        """Run a part, and note what each of its tasks costs."""
        server, client = self._now()
        run()
        server_after, client_after = self._now()
        self.costs[name] = (server_after - server) * 1e6 / tasks, (client_after - client) * 1e6 / tasks


def ids(first: int, count: int) -> list[str]:
    """Give ids of pages, spread over `HOSTS` hosts."""
    return [f"https://h{i % HOSTS}.example/page/{i}" for i in range(first, first + count)]


def calls(meter: Meter, url: str, name: str, politeness: Politeness | None) -> None:
    """Put, claim and ack by `Queue`."""
    words = {} if politeness is None else {"politeness": politeness}
    kind = "plain" if politeness is None else "polite"
    with Queue(name, url, **words) as queue:  # type: ignore[arg-type]
        queue.put("warm")
        queue.ack(queue.claim(1))

        def ones() -> None:
            for task in ids(0, SINGLE):
                queue.put(task)

        def worked(at_once: int) -> None:
            while leases := queue.claim(at_once):
                queue.ack(leases)

        def bulk() -> None:
            for first in range(SINGLE, SINGLE + MANY, 1_000):
                queue.put(ids(first, 1_000))

        def failed() -> None:
            for first in range(0, SINGLE, 500):
                queue.put(ids(first, 500), again=True)
                while leases := queue.claim(50):
                    queue.fail(leases, "no answer")

        meter.part(f"put one by one, {kind}", SINGLE, ones)
        meter.part(f"claim and ack one by one, {kind}", SINGLE, lambda: worked(1))
        meter.part(f"put in thousands, {kind}", MANY, bulk)
        meter.part(f"claim and ack in hundreds, {kind}", MANY, lambda: worked(100))
        meter.part(f"put again, claim and fail in fifties, {kind}", SINGLE, failed)


def put_async(meter: Meter, url: str) -> None:
    """Put one by one by `AsyncQueue`."""

    async def run() -> None:
        async with AsyncQueue("async", url) as queue:
            for task in ids(0, SINGLE):
                await queue.put(task)

    meter.part("AsyncQueue: put one by one", SINGLE, lambda: asyncio.run(run()))


def pick_up(meter: Meter, url: str) -> None:
    """Wait for tasks that are put one at a time: what a pick-up by an idle claimer costs both sides."""
    with Queue("picked", url) as queue:

        def claim() -> None:
            for _ in range(PICKED):
                while not (leases := queue.claim(1, wait=10)):
                    pass
                queue.ack(leases)

        def run() -> None:
            claimer = threading.Thread(target=claim)
            claimer.start()
            for task in ids(0, PICKED):
                queue.put(task)
                time.sleep(0.002)  # the claimer is idle again
            claimer.join()

        meter.part("pick-up of a put task by a waiting claim", PICKED, run)


async def _async_nothing(lease: Lease) -> None:
    pass


def _nothing(lease: Lease) -> None:
    pass


def work(meter: Meter, url: str, name: str, politeness: Politeness | None) -> None:
    """Drain a queue by a worker whose handler does nothing."""
    words = {} if politeness is None else {"politeness": politeness}
    kind = "plain" if politeness is None else "polite"
    for shape, handler, count in (("async", _async_nothing, MANY), ("thread", _nothing, MANY // 3)):

        async def run(handler: object = handler, shape: str = shape) -> None:
            async with AsyncQueue(f"{name}-{shape}", url, **words) as queue:  # type: ignore[arg-type]
                await Worker(queue, handler, burst=True, signals=False).run()  # type: ignore[arg-type]

        with Queue(f"{name}-{shape}", url, **words) as queue:  # type: ignore[arg-type]
            for first in range(0, count, 1_000):
                queue.put(ids(first, min(1_000, count - first)))
        meter.part(f"worker, {shape} handler, {kind}", count, lambda: asyncio.run(run()))


def main() -> None:
    """Run all parts on a server of our own."""
    polite = Politeness(delay=0, per_host=1_000)
    with EmbeddedServer() as server:
        meter = Meter(server.url)
        calls(meter, server.url, "calls", None)
        calls(meter, server.url, "calls-polite", polite)
        put_async(meter, server.url)
        pick_up(meter, server.url)
        work(meter, server.url, "work", None)
        work(meter, server.url, "work-polite", polite)
    json.dump(meter.costs, sys.stdout)


if __name__ == "__main__":
    main()
