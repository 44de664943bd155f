"""The load in one tree: runs the part that a line on stdin names, and answers with its processor time per task."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

import redis

from timeoutq import AsyncQueue, Lease, Politeness, Queue, Worker
from timeoutq.functions import App

SINGLE = 2_000
"""Tasks of a part that makes one call per task."""
MANY = 20_000
"""Tasks of a part that makes calls of 100 or more."""
PICKED = 200
"""Tasks of the part that waits for each pick-up."""
HOSTS = 500

_numbers = count()


def ids(n: int) -> list[str]:
    """Give ids of pages that were not given before, spread over `HOSTS` hosts."""
    return [f"https://h{i % HOSTS}.example/page/{i}" for i in (next(_numbers) for _ in range(n))]


def put_all(queue: Queue, tasks: list[str], *, again: bool = False) -> None:
    for first in range(0, len(tasks), 1_000):
        queue.put(tasks[first : first + 1_000], again=again)


def worked(queue: Queue, at_once: int) -> None:
    while leases := queue.claim(at_once):
        queue.ack(leases)


Part = tuple[str, int, Callable[[], Callable[[], object]]]
"""Its name, how many tasks it has, and what prepares it, which gives what is measured."""


def by_queue(url: str, kind: str, politeness: Politeness | None) -> Iterator[Part]:
    def anew(count: int, *, put: bool) -> tuple[Queue, list[str]]:
        Queue(kind, url).purge()  # this forgets the settings, too
        queue = Queue(kind, url) if politeness is None else Queue(kind, url, politeness=politeness)
        tasks = ids(count)
        queue.put("warm")
        queue.ack(queue.claim(1))
        if put:
            put_all(queue, tasks)
        return queue, tasks

    def ones() -> Callable[[], object]:
        queue, tasks = anew(SINGLE, put=False)
        return lambda: [queue.put(task) for task in tasks]

    def thousands() -> Callable[[], object]:
        queue, tasks = anew(MANY, put=False)
        return lambda: put_all(queue, tasks)

    def claims(count: int, at_once: int) -> Callable[[], object]:
        queue, _ = anew(count, put=True)
        return lambda: worked(queue, at_once)

    def fails() -> Callable[[], object]:
        queue, tasks = anew(SINGLE, put=True)

        def run() -> None:
            while leases := queue.claim(50):
                queue.fail(leases, "no answer")
            put_all(queue, tasks, again=True)

        return run

    yield f"put one by one, {kind}", SINGLE, ones
    yield f"claim and ack one by one, {kind}", SINGLE, lambda: claims(SINGLE, 1)
    yield f"put in thousands, {kind}", MANY, thousands
    yield f"claim and ack in hundreds, {kind}", MANY, lambda: claims(MANY, 100)
    yield f"claim and fail in fifties, put again, {kind}", SINGLE, fails


def by_async_queue(url: str) -> Iterator[Part]:

    def prepare() -> Callable[[], object]:
        tasks = ids(SINGLE)
        with Queue("async", url) as queue:
            queue.purge()

        async def run() -> None:
            async with AsyncQueue("async", url) as queue:
                for task in tasks:
                    await queue.put(task)

        return lambda: asyncio.run(run())

    yield "AsyncQueue: put one by one", SINGLE, prepare


def picked_up(url: str) -> Iterator[Part]:
    """Wait for tasks that are put one at a time: what a pick-up by an idle claimer costs both sides."""
    queue = Queue("picked", url)

    def claim() -> None:
        for _ in range(PICKED):
            while not (leases := queue.claim(1, wait=10)):
                pass
            queue.ack(leases)

    def prepare() -> Callable[[], object]:
        tasks = ids(PICKED)

        def run() -> None:
            claimer = threading.Thread(target=claim)
            claimer.start()
            for task in tasks:
                queue.put(task)
                time.sleep(0.002)  # the claimer is idle again
            claimer.join()

        return run

    yield "pick-up of a put task by a waiting claim", PICKED, prepare


async def _async_nothing(lease: Lease) -> None:
    pass


def _nothing(lease: Lease) -> None:
    pass


def by_worker(url: str, kind: str, politeness: Politeness | None) -> Iterator[Part]:
    """Drain a queue by a worker whose handler does nothing."""
    words = {} if politeness is None else {"politeness": politeness}
    for shape, handler in (("async", _async_nothing), ("thread", _nothing)):
        name = f"{kind}-{shape}"

        def prepare(name: str = name, handler: object = handler) -> Callable[[], object]:
            with Queue(name, url) as queue:
                queue.purge()  # this forgets the settings, too
            with Queue(name, url, **words) as queue:  # type: ignore[arg-type]  # politeness, or nothing
                put_all(queue, ids(MANY))

            async def run() -> None:
                async with AsyncQueue(name, url, **words) as queue:  # type: ignore[arg-type]  # politeness, or nothing
                    await Worker(queue, handler, burst=True, signals=False).run()  # type: ignore[arg-type]  # of two shapes

            return lambda: asyncio.run(run())

        yield f"worker, {shape} handler, {kind}", MANY, prepare


def by_functions(url: str) -> Iterator[Part]:
    """Put calls of a function that does nothing one by one, put them in thousands, and run them."""
    app = App("calls", url=url)

    @app.task
    async def nothing(number: int, word: str) -> None:
        pass

    def anew() -> None:
        with Queue("calls", url) as queue:
            queue.purge()

    def delays() -> Callable[[], object]:
        anew()
        return lambda: [nothing.delay(number, "seven") for number in range(SINGLE)]

    def thousands() -> None:
        for first in range(0, MANY, 1_000):
            app.put([nothing.call(number, "seven") for number in range(first, first + 1_000)])

    def puts() -> Callable[[], object]:
        anew()
        return thousands

    def runs() -> Callable[[], object]:
        anew()
        thousands()
        return lambda: asyncio.run(app.worker(burst=True, signals=False).run())

    yield "functions: delay one by one", SINGLE, delays
    yield "functions: put of calls in thousands", MANY, puts
    yield "functions: worker, async", MANY, runs


def main() -> None:
    """Name the parts, then run those that are asked for."""
    polite = Politeness(delay=0, per_host=1_000)
    url = sys.argv[1]
    bare = redis.Redis.from_url(url)

    def now() -> tuple[float, float]:
        cpu = bare.info("cpu")
        assert isinstance(cpu, dict)
        mine = resource.getrusage(resource.RUSAGE_SELF)
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), mine.ru_utime + mine.ru_stime

    parts = [
        *by_queue(url, "plain", None), *by_queue(url, "polite", polite), *by_async_queue(url),
        *picked_up(url), *by_worker(url, "plain", None), *by_worker(url, "polite", polite),
        *by_functions(url),
    ]  # fmt: skip
    for _, _, prepare in parts:
        prepare()()
    print(json.dumps([name for name, _, _ in parts]), flush=True)
    for line in sys.stdin:
        _, tasks, prepare = parts[int(line)]
        run = prepare()
        before = now()
        run()
        print(json.dumps([(b - a) * 1e6 / tasks for a, b in zip(before, now(), strict=True)]), flush=True)


if __name__ == "__main__":
    main()
