"""A crawl of a site on loopback, judged by the site's own log: does any visit of a host begin too soon?

python -m tests.rig.spacing --seconds 120
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import redis

from tests.rig.servers import valkey
from timeoutq import Ack, AsyncQueue, GiveUp, Lease, Politeness, Queue, Release, Task, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch import transfer

PLACES = (1, 2, 8, 100)
DELAYS = (0.2, 1.0)
LEASE = 2.0
VISITS = 20
"""A process is killed after as many visits, at least."""
PAGES = 3
TOLERANCE = 0.002
"""The queue counts in whole milliseconds, seconds."""
WORK = [sys.executable, "-m", "tests.rig.spacing", "--work"]
ROADS = ("links", "fail", "release", "again", "give up", "block", "rerun", "priority")


@dataclass(frozen=True, slots=True)
class Pair:
    """A queue, and how polite it is."""

    number: int
    places: int
    delay: float

    @property
    def queue(self) -> str:
        return f"spacing{self.number}"

    @property
    def address(self) -> str:
        return f"127.0.3.{self.number + 1}"

    def page(self, port: int, n: int | str) -> str:
        return f"http://{self.address}:{port}/{n}"


PAIRS = [Pair(number, places, delay) for number, (places, delay) in enumerate(product(PLACES, DELAYS))]


@dataclass(slots=True)
class Visit:
    """A visit as the site saw it, Unix seconds; the request tells when its task was claimed."""

    url: str
    claimed: float
    start: float
    end: float = 0.0
    broken: bool = False


@dataclass(slots=True)
class Site:
    """The hosts, and the log of all their visits."""

    log: dict[str, list[Visit]] = field(default_factory=lambda: defaultdict(list[Visit]))
    open: set[asyncio.Task[Any] | None] = field(default_factory=set[Any])
    visited: Counter[int] = field(default_factory=Counter[int])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(serving := asyncio.current_task())
        with suppress(ConnectionError, ValueError):  # a worker is killed before its request is whole
            url, claimed, pid = (await reader.readline()).decode().split()
            self.visited[int(pid)] += 1
            visit = Visit(url, float(claimed), time.time())
            host = writer.get_extra_info("sockname")[0]
            self.log[host].append(visit)
            gone = asyncio.create_task(reader.read(1))
            done, _ = await asyncio.wait({gone}, timeout=random.uniform(0.02, 0.2))
            visit.end, visit.broken = time.time(), bool(done)
            gone.cancel()
            writer.write(b"page\n")
            await writer.drain()
        writer.close()
        self.open.discard(serving)


@dataclass(frozen=True, slots=True)
class Row:
    pair: Pair
    visits: int
    killed: int
    unheard: int
    gap: float
    early: Sequence[str]


def judge(pair: Pair, visits: Sequence[Visit], heard: dict[str, list[float]]) -> Row:
    """Compare each begin with the last end before it of which the queue had heard at the claim."""
    ends: list[tuple[float, float]] = []  # when the visit ended, and when the queue heard of it
    for visit in visits:
        known = next((at for at in heard.get(visit.url, ()) if at >= visit.claimed), float("inf"))
        ends.append((known if visit.broken else min(visit.end or known, known), known))
    gaps, early, unheard = [float("inf")], list[str](), 0
    for visit in visits:
        last = max((end for end, known in ends if known <= visit.claimed), default=float("-inf"))
        gap = visit.start - last
        gaps.append(gap)
        if gap < pair.delay - TOLERANCE:
            early.append(f"{visit.url} {gap:.3f} s after the last end of a visit, and the delay is {pair.delay:g} s")
        elif any(0 < visit.start - end < pair.delay - TOLERANCE for end, known in ends if known > visit.claimed):
            unheard += 1
    return Row(pair, len(visits), sum(visit.broken for visit in visits), unheard, min(gaps), early)


# ---- the worker processes


class Crawler:
    """The handler of one queue in one process: visits a page, and ends the visit by the road of the page."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.met: set[str] = set()

    async def __call__(self, lease: Lease) -> Any:
        url = str(lease.task)
        parts = urlsplit(url)
        page, port = parts.path[1:], parts.port or 0
        reader, writer = await asyncio.open_connection(parts.hostname, port)
        writer.write(f"{url} {lease.deadline - LEASE} {os.getpid()}\n".encode())
        await reader.readline()
        writer.close()
        is_first, number = url not in self.met, sum(page.encode())
        self.met.add(url)
        road, rng = ROADS[number % len(ROADS)], random.Random(url)
        links = [self.pair.page(port, f"{page[:12]}{rng.randrange(10)}") for _ in range(rng.randint(1, PAGES))]
        if not is_first or road == "links":
            return Ack(put=links)
        if road == "fail":
            raise ValueError("no")
        if road in ("release", "block"):
            return Release(block_host=self.pair.delay / 4 if road == "block" else 0.0)
        if road == "again":
            return Ack(put=links, again_in=0.01)
        if road == "give up":
            return GiveUp("no")
        if road == "rerun":
            return Ack(put=[*links, Task(url, rerun=True)])
        return Ack(put=[Task(link, priority=rng.randint(1, 5)) for link in links])


async def work(url: str) -> None:
    async with asyncio.TaskGroup() as group:
        for pair in PAIRS:
            queue = AsyncQueue(pair.queue, url, timeout=LEASE, retry=[0.01] * 20, max_crashes=1000)
            worker = Worker(queue, Crawler(pair), concurrency=pair.places, prefetch=0, signals=False)
            group.create_task(worker.run())


# ---- the run


def listen(url: str, heard: dict[str, list[float]]) -> Callable[[], None]:
    """Note when the owner of each lease is forgotten: then its visit has ended for the queue. Gives what stops this."""
    with redis.Redis.from_url(url) as client:
        client.config_set("client-output-buffer-limit", "normal 0 0 0")
    parts = urlsplit(url)
    wire = socket.create_connection((parts.hostname, parts.port))
    words = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in (b"AUTH", (parts.password or "").encode()))
    wire.sendall((b"*2\r\n" + words if parts.password else b"") + b"MONITOR\r\n")

    def read() -> None:
        for line in wire.makefile("rb"):
            if b'"HDEL"' in line and b':owners"' in line:
                said = line.decode().split(" ")
                for task in said[5:]:
                    heard[task.strip().strip('"')].append(float(said[0][1:]))

    thread = threading.Thread(target=read)
    thread.start()

    def stop() -> None:
        wire.shutdown(socket.SHUT_RDWR)
        thread.join()
        wire.close()

    return stop


def tend(url: str, queues: Sequence[Queue], port: int, count: int) -> None:
    """Bring tasks in by the roads that are not a worker's."""
    for pair, queue in zip(PAIRS, queues, strict=True):
        queue.put(pair.page(port, f"put{count}"))
        queue.schedule(pair.page(port, f"due{count}"), after=0.05)
        queue.retry_failed(all=True)
        queue.requeue_expired()
        if count % 5 == 0:
            with Queue(f"{queue.name}.export", url) as other:
                other.put(pair.page(port, f"import{count}"))
                for part in transfer.export(other):
                    transfer.restore(queue, part)
                other.purge()


async def trial(seconds: float, workers: int = 2) -> list[Row]:
    site, heard = Site(), defaultdict[str, list[float]](list)
    with EmbeddedServer(binary=valkey()) as server:
        queues = [
            Queue(pair.queue, server.url, timeout=LEASE, politeness=Politeness(pair.delay, pair.places))
            for pair in PAIRS
        ]
        first = await asyncio.start_server(site.serve, PAIRS[0].address, 0)
        port = first.sockets[0].getsockname()[1]
        servers = [first, *[await asyncio.start_server(site.serve, pair.address, port) for pair in PAIRS[1:]]]
        for pair, queue in zip(PAIRS, queues, strict=True):
            queue.put(pair.page(port, f"seed{n}") for n in range(3 * pair.places))
        stop = listen(server.url, heard)
        start = partial(subprocess.Popen[bytes], [*WORK, server.url], stderr=subprocess.DEVNULL)
        running = [start() for _ in range(workers)]
        ends, count = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < ends:
                await asyncio.sleep(1)
                count += 1
                await asyncio.to_thread(tend, server.url, queues, port, count)
                # a process that has done nothing yet, because the machine is busy, is left to begin
                if count % 6 == 0 and site.visited[running[0].pid] > VISITS:
                    running.append(start())
                    os.kill(running[0].pid, signal.SIGKILL)
                    running.pop(0).wait()
        finally:
            for process in running:
                process.kill()
                process.wait()
            stop()
            for each in servers:
                each.close()
            while site.open:
                await asyncio.sleep(0.01)
            for queue in queues:
                queue.close()
    return [judge(pair, site.log[pair.address], heard) for pair in PAIRS]


def table(rows: Sequence[Row]) -> str:
    lines = ["per_host  delay  visits  killed  unheard  smallest gap  violations"]
    lines += [
        f"{row.pair.places:8}  {row.pair.delay:5g}  {row.visits:6}  {row.killed:6}  {row.unheard:7}  "
        f"{row.gap:12.3f}  {len(row.early):10}"
        for row in rows
    ]
    return "\n".join([*lines, *[line for row in rows for line in row.early[:3]]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long the crawl takes")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.work))
        return 0
    rows = asyncio.run(trial(given.seconds))
    print(table(rows))
    return int(any(row.early or not row.visits for row in rows))


if __name__ == "__main__":
    sys.exit(main())
