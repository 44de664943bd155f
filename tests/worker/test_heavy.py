"""Heavy tasks: what has many bytes is slow on a slow link, and never stuck; and nobody copies all of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.rig.faces import Blocking
from tests.rig.proxy import Proxy
from timeoutq import Ack, AsyncQueue, Lease, Queue, Worker
from timeoutq.server.calls import BYTES, fitting

FACES: list[Any] = [Queue, Blocking]
PAGE = os.urandom(10_000)
MIB = 1024 * 1024


def links(n: int = 499) -> dict[str, bytes]:
    """Give the links of a page, each with 10 kB."""
    return {f"link{i}": PAGE for i in range(n)}


def know_the_scripts(queue: Queue) -> None:
    """Have the server know the scripts: what is sent to one that does not know them is sent twice."""
    queue.put("first")
    queue.ack(queue.claim(1)[0], ["second"])
    queue.forget("first", "second")


async def until(predicate: Callable[[], bool], seconds: float = 40.0) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.01)


# ---- over a slow link


async def test_a_worker_acks_499_links_of_10_kb_over_a_slow_link_once_and_goes_on(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> Ack | None:
        return Ack(put=links()) if lease.task == "page" else None

    know_the_scripts(queue)
    with Proxy(url, rate=2_000_000) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20) as mine:
            worker = Worker(mine, handler, concurrency=4, signals=False)
            queue.put("page")
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.carried > 100_000)
            # others are worked on beside it
            queue.put("other")
            await until(lambda: queue.inspect("other").state == "done")
            assert queue.inspect("page").state == "in_progress"
            await until(lambda: queue.stats().done == 501)
            worker.stop()
            tally = await running
    assert (tally.acked, tally.lost, tally.failed) == (501, 0, 0)
    assert proxy.carried < 1.3 * 499 * len(PAGE)
    counters = queue.stats().counters
    assert (counters["acked"] - 1, counters.get("expired", 0)) == (501, 0)


@pytest.mark.parametrize("kind", FACES)
def test_an_ack_with_more_than_fits_puts_the_surplus_first(kind: Any, url: str, queue: Queue) -> None:
    with kind(queue.name, url, timeout=5) as mine:
        mine.put("page")
        (lease,) = mine.claim()
        mine.ack(lease, links(), again_in=60, payload=b"x" * MIB)
        stats = mine.stats()
        assert (stats.todos, stats.scheduled) == (499, 1)
        assert {lease.payload for lease in mine.claim(500)} == {PAGE}


# ---- while the server pauses


# ---- memory


# ---- how batches are cut


def test_an_ack_takes_499_tasks_or_a_mebibyte_of_what_was_found() -> None:
    ids = [b"%d" % i for i in range(600)]
    assert fitting(ids, {}) == 499
    assert fitting(ids[:3], {}) == 3
    half = b"x" * (BYTES // 2)
    assert fitting(ids, {1: half, 5: half, 9: half}) == 9
    assert fitting(ids, {1: half * 3, 5: b"x"}) == 5
    assert fitting(ids, {520: half * 3}) == 499
