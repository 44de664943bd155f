"""Depth-limited crawls of a random graph, by several workers that are killed: do they find exactly what BFS finds?

Priority is minus the depth, and `improve=True` brings a page back that was visited on a longer way. `python -m
tests.rig.depth` crawls with real processes and SIGKILL; `--memory` with workers whose steps are drawn one after the
other, on the model of the queue, and `on_scripts` the same with the real scripts on fakeredis.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.rig.model import Given
from tests.rig.polite_model import PoliteModel
from timeoutq import LeaseLost, Politeness, Queue, Task, TimeoutqError
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_queue

PAGES = 400
HOSTS = 7
LIMITS = range(2, 7)
LEASE = 0.4
"""Seconds; a page takes some ms."""
PATIENCE = 120.0
"""How long one crawl may take, seconds."""

TOLD = ("visits", "improved", "reruns", "kills", "expired")
"""What is told of the crawls of a limit."""

Graph = Mapping[str, Sequence[str]]


def page(n: int) -> str:
    """Name a page; it is of one of a few hosts."""
    return f"http://h{n % HOSTS}.example/{n}"


def graph(seed: int, pages: int = PAGES) -> Graph:
    """Draw a site: each page links to some others, so that most pages have ways of several lengths."""
    chance = random.Random(seed)
    counts = [6, *(chance.choice((1, 2, 3, 6)) for _ in range(1, pages))]
    return {page(n): [page(chance.randrange(pages)) for _ in range(count)] for n, count in enumerate(counts)}


def within(links: Graph, limit: int) -> dict[str, int]:
    """Give the pages within a depth, each with its depth, by BFS."""
    depths = {page(0): 0}
    level = [page(0)]
    for depth in range(1, limit + 1):
        found = dict.fromkeys(link for each in level for link in links[each] if link not in depths)
        level = list(found)
        depths |= dict.fromkeys(level, depth)
    return depths


@dataclass(slots=True)
class Crawled:
    """What a crawl found: how deep it took each page to be; and what happened to it."""

    depths: dict[str, int]
    kills: int = 0
    visits: int = 0
    counters: Mapping[str, int] = field(default_factory=Counter[str])

    def wrong(self, links: Graph, limit: int) -> list[str]:
        """Tell where the crawl and BFS differ."""
        right = within(links, limit)
        found = [f"{each} was not found, its depth is {right[each]}" for each in sorted(right.keys() - self.depths)]
        found += [f"{each} is deeper than {limit}" for each in sorted(self.depths.keys() - right)]
        both = sorted(right.keys() & self.depths)
        return found + [
            f"{each} was taken for {self.depths[each]} deep, and is {right[each]}"
            for each in both
            if right[each] != self.depths[each]
        ]


# ---- in memory: an order of events that is drawn


def on_the_model(links: Graph, limit: int, seed: int, *, workers: int = 4, improve: bool = True) -> Crawled:
    """Crawl on the model of the queue; workers die in the middle of a page, and some are slow."""
    chance = random.Random(seed)
    model = PoliteModel(1_800_000_000_000)
    model.max_crashes = 1_000_000
    model.configure_politeness(0, 2)
    while model.convert() != "end":
        pass
    model.put("seed", 0, [page(0)], given=Given(payloads=((0, 0),), priority=0))
    crawled, tokens = Crawled({}), iter(range(10**9))
    held: dict[int, tuple[str, str] | None] = dict.fromkeys(range(workers))
    while not (model.drained() and not model.waiting):
        # the first worker is slow, so longer ways come before shorter ones
        worker = chance.randrange(workers) if chance.random() < 0.1 else chance.randrange(min(1, workers - 1), workers)
        model.now += 1
        if chance.random() < 0.03:
            # the lease of a dead worker ends, and with it those of whoever is slow
            crawled.kills += held[worker] is not None
            held[worker] = None
            model.now += 1000 * chance.randint(0, 1)
            model.requeue_expired()
            model.promote_due()
        lease = held[worker]
        if lease is None:
            token = f"w{worker}#{next(tokens)}"
            some = chance.sample(sorted(model.todos), min(1, len(model.todos)))
            model.claim(token, 0, 900, some)
            if not some and not any(held.values()):
                model.now += 1000
                model.requeue_expired()
            held[worker] = (some[0], token) if some else None
        elif chance.random() < 0.5:
            held[worker] = None
            found, given = _found(links, lease[0], model.payload.get(lease[0], 0), limit, improve=improve)
            crawled.visits += model.ack(next_call(tokens), [lease], found, given=given) == "O"
    crawled.depths = {each: -model.priorities.get(each, 0) for each in model.done}
    crawled.counters = model.counters
    return crawled


def next_call(numbers: Iterator[int]) -> str:
    """Name a call that is not sent again."""
    return f"call {next(numbers)}"


def _found(links: Graph, each: str, depth: int, limit: int, *, improve: bool) -> tuple[Sequence[str], Given]:
    if depth >= limit:
        return (), Given()
    found = list(dict.fromkeys(links[each]))
    depths = tuple((i, depth + 1) for i in range(len(found)))
    levels = tuple((i, -depth - 1) for i in range(len(found)))
    return found, Given(payloads=depths, priorities=levels, improve=() if improve else None)


def tasks_found(links: Graph, each: str, depth: int, limit: int) -> list[Task]:
    """Give the tasks that a handler puts when it has visited a page."""
    if depth >= limit:
        return []
    return [Task(link, depth + 1, priority=-depth - 1, improve=True) for link in links[each]]


def on_scripts(links: Graph, limit: int, seed: int, *, workers: int = 4) -> Crawled:
    """Crawl with the real scripts on fakeredis; workers die in the middle of a page."""
    chance = random.Random(seed)
    crawled = Crawled({})
    with fake_queue(timeout=1, politeness=Politeness(0, per_host=2), max_crashes=100_000) as queue:
        queue.put(Task(page(0), 0, priority=0))
        held: list[Any] = [None] * workers
        while not queue.drained():
            worker = chance.randrange(workers)
            if chance.random() < 0.03:
                crawled.kills += held[worker] is not None
                held[worker] = None
                queue.clock.advance(1.1)
                queue.requeue_expired()
            elif held[worker] is None:
                held[worker] = next(iter(queue.claim(1)), None)
                if not any(held):
                    queue.clock.advance(1.1)
            else:
                lease, held[worker] = held[worker], None
                with suppress(LeaseLost):
                    queue.ack(lease, put=tasks_found(links, lease.task, lease.payload, limit))
                    crawled.visits += 1
        done = [entry.task for entry in queue.each("done")]
        crawled.depths = {each: -(queue.inspect(each).priority or 0) for each in done}
        crawled.counters = queue.stats().counters
    return crawled


# ---- real processes, and SIGKILL


def _crawl(url: str, name: str, limit: int, graph_seed: int, pages: int, seed: int) -> None:
    chance, links = random.Random(seed), graph(graph_seed, pages)
    queue = Queue(name, url, timeout=LEASE)
    while True:
        with suppress(TimeoutqError):  # a lease that was lost, or a server that was slow
            for lease in queue.claim(chance.randint(1, 3), wait=0.2):
                # some pages are slow, so longer ways come before shorter ones
                time.sleep(chance.random() * (0.1 if chance.random() < 0.15 else 0.003))
                depth = lease.payload
                assert isinstance(depth, int)
                queue.ack(lease, put=tasks_found(links, lease.task, depth, limit))


@contextmanager
def _crew(arguments: tuple[Any, ...], workers: int, chance: random.Random) -> Iterator[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rig.polite_model", "timeoutq.testing"])
    crew: list[Any] = []

    def hire() -> None:
        one = context.Process(target=_crawl, args=(*arguments, chance.getrandbits(32)), daemon=True)
        one.start()
        crew.append(one)

    def strike() -> None:
        victim = crew.pop(chance.randrange(len(crew)))
        victim.kill()
        victim.join()
        hire()

    try:
        for _ in range(workers):
            hire()
        yield strike
    finally:
        for one in crew:
            one.kill()
            one.join()


def with_processes(
    url: str, limit: int, seed: int, *, workers: int = 4, pages: int = PAGES, every: float = 0.15
) -> Crawled:
    """Crawl with real processes, of which one is killed and replaced `every` so many seconds."""
    chance, name = random.Random(seed), f"depth-{limit}-{seed}"
    crawled = Crawled({})
    with Queue(name, url, timeout=LEASE, politeness=Politeness(0, per_host=3), max_crashes=100_000) as queue:
        queue.purge()
        queue.configure(politeness=Politeness(0, per_host=3), max_crashes=100_000)
        queue.put(Task(page(0), 0, priority=0))
        until = time.monotonic() + PATIENCE
        with _crew((url, name, limit, seed, pages), workers, chance) as strike:
            next_strike = time.monotonic() + chance.random() * every
            acked = -1
            while not queue.drained():
                if time.monotonic() > until:
                    raise TimeoutError(f"{name} is not drained after {PATIENCE:g} s: {queue.stats()}")
                stats = queue.stats()
                # a kill meets a lease; and on a machine that cannot keep up, work goes on between two kills
                if time.monotonic() >= next_strike and stats.in_progress and stats.counters.get("acked", 0) > acked:
                    strike()
                    crawled.kills += 1
                    acked = stats.counters.get("acked", 0)
                    next_strike = time.monotonic() + chance.random() * 2 * every
                time.sleep(0.005)
        stats = queue.stats()
        crawled.counters, crawled.visits = stats.counters, stats.counters.get("acked", 0)
        done = [entry.task for entry in queue.each("done")]
        crawled.depths = {each: -(queue.inspect(each).priority or 0) for each in done}
        queue.purge()
    return crawled


# ---- the command


def main() -> int:
    """Crawl, and print a line a limit; give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.depth", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many graphs for each limit")
    parser.add_argument("--limits", type=int, nargs=2, default=(2, 6), metavar=("FROM", "TO"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=0.15, help="seconds between two kills, on average")
    parser.add_argument("--memory", action="store_true", help="on the model, without processes")
    given = parser.parse_args()
    wrong = 0
    server = EmbeddedServer()
    with server:
        for limit in range(given.limits[0], given.limits[1] + 1):
            began, total, sizes = time.monotonic(), Counter[str](), list[int]()
            for seed in range(given.seed, given.seed + given.runs):
                links = graph(seed, given.pages)
                if given.memory:
                    crawled = on_the_model(links, limit, seed, workers=given.workers)
                else:
                    crawled = with_processes(
                        server.url, limit, seed, workers=given.workers, pages=given.pages, every=given.every
                    )
                errors = crawled.wrong(links, limit)
                wrong += bool(errors)
                for error in errors[:5]:
                    print(f"limit {limit}, seed {seed}: {error}")
                sizes.append(len(within(links, limit)))
                total += Counter({"kills": crawled.kills, "visits": crawled.visits, **crawled.counters})
                total["improved"] += crawled.visits - len(crawled.depths)
            words = ", ".join(f"{total[what]:,} {what}" for what in TOLD)
            print(
                f"limit {limit}: {given.runs} runs, {min(sizes)} to {max(sizes)} of {given.pages} pages by BFS, "
                f"{words}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"{wrong} runs differ from BFS")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
