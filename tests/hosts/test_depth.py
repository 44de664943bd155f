"""Depth-limited crawls of a random graph: priority is minus the depth, and `improve=True` brings pages back."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from timeoutq import LeaseLost, Politeness, Task
from timeoutq.testing import fake_queue

Graph = dict[str, list[str]]


def page(n: int) -> str:
    return f"http://h{n % 7}.example/{n}"


def graph(seed: int, pages: int = 150) -> Graph:
    """Draw a site: each page links to some others, so that most pages have ways of several lengths."""
    chance = random.Random(seed)
    counts = [6, *(chance.choice((1, 2, 3, 6)) for _ in range(1, pages))]
    return {page(n): [page(chance.randrange(pages)) for _ in range(count)] for n, count in enumerate(counts)}


def within(links: Graph, limit: int) -> dict[str, int]:
    """Give the pages within a depth, each with its depth, by BFS."""
    depths = {page(0): 0}
    level = [page(0)]
    for depth in range(1, limit + 1):
        level = list(dict.fromkeys(link for each in level for link in links[each] if link not in depths))
        depths |= dict.fromkeys(level, depth)
    return depths


def crawl(links: Graph, limit: int, seed: int) -> dict[str, int]:
    """Crawl with four workers, which die in the middle of a page; give how deep each page was taken to be."""
    chance = random.Random(seed)
    with fake_queue(timeout=1, politeness=Politeness(0, per_host=2), max_crashes=100_000) as queue:
        queue.put(Task(page(0), 0, priority=0))
        held: list[Any] = [None] * 4
        while not queue.drained():
            # the first worker is slow, so longer ways come before shorter ones
            worker = 0 if chance.random() < 0.02 else chance.randrange(1, 4)
            if chance.random() < 0.02:
                held[worker] = None
                queue.clock.advance(1.1)
                queue.requeue_expired()
            elif held[worker] is None:
                held[worker] = next(iter(queue.claim(1)), None)
                if not any(held):
                    queue.clock.advance(1.1)
            else:
                lease, held[worker] = held[worker], None
                deeper = lease.payload + 1
                found = links[lease.task] if deeper <= limit else []
                with suppress(LeaseLost):
                    queue.ack(lease, put=[Task(each, deeper, priority=-deeper, improve=True) for each in found])
        return {entry.task: -(queue.inspect(entry.task).priority or 0) for entry in queue.each("done")}


@pytest.mark.parametrize("seed", [5, 6])
def test_whatever_the_order_of_events_a_crawl_finds_what_bfs_finds(seed: int) -> None:
    links = graph(seed)
    assert crawl(links, 4, seed) == within(links, 4)
