"""Where the crawl meets the queue's politeness: the one module that asks for delays, limits and blocks of hosts.

`crawl.py` gives tasks back through it, the command sets a crawl up with it and asks it how far a crawl is.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from timeoutq import Politeness, Release
from timeoutq.client.shards import AnyAsyncQueue, AnyQueue
from timeoutq.words.standing import Standing, standing


def host_of(url: str) -> str:
    """Give the host as the queue knows it: of a canonical address, with the port if it has one."""
    return urlsplit(url).netloc


def set_up(queue: AnyQueue, delay: float, per_host: int) -> None:
    """Tell the queue how far apart visits of a host are, in seconds, and how many there may be at once."""
    queue.configure(politeness=Politeness(delay=delay, per_host=per_host))


def set_budget(queue: AnyQueue, host: str, budget: int) -> None:
    """Limit how often a host is visited."""
    queue.hosts.set(host, budget=budget)


async def slow_down(queue: AnyAsyncQueue | None, host: str, delay: float) -> None:
    """Keep visits of one host further apart, because its robots.txt asks for it."""
    if queue is not None:
        await queue.hosts.set(host, delay=delay)


def give_back(seconds: float) -> Release:
    """Say that the task goes back without blame, and that its host is left alone for that time."""
    return Release(block_host=seconds)


def over(queue: AnyQueue) -> bool:
    """Say whether nothing is left that will be visited; what waits for a host whose budget is spent will not be."""
    return queue.drained()


@dataclass(frozen=True)
class HeldBack:
    """Hosts whose pages wait although the pages might be visited otherwise."""

    blocked: int = 0
    used_up: int = 0
    """Those whose budget is spent."""

    def __str__(self) -> str:
        """Say it in a few words; nothing when there are none."""
        words = [f"{many} {what}" for many, what in ((self.blocked, "blocked"), (self.used_up, "used up")) if many]
        return ", ".join(words)


def held_back(queue: AnyQueue) -> HeldBack:
    """Count the hosts that are blocked, and those whose budget is spent while pages wait for them."""
    stats = queue.stats()
    if stats.politeness is None:
        return HeldBack()
    blocked = used_up = 0
    cursor: str | None = None
    while True:
        page = queue.hosts.list(cursor, 500)
        for host in page.hosts:
            if host.used_up and host.waiting:
                used_up += 1
            elif standing(host, stats.now) is Standing.BLOCKED:
                blocked += 1
        cursor = page.cursor
        if cursor is None:
            return HeldBack(blocked, used_up)
