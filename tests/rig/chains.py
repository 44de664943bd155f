"""Chains over two queues while the server is full, and while it stands still; and many clients that wait for one task.

python -m tests.rig.chains --chains 1000 --full 60 --outages 5 --seconds 8 --clients 60
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import redis

from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, Worker
from timeoutq.functions import App, Calls
from timeoutq.server.embedded import EmbeddedServer

FIRST, SECOND = "chains-first", "chains-second"
SERVED = ((FIRST, SECOND), (FIRST,), (SECOND,))
"""The queues of each worker: one puts what follows by its own client, one by the sender of the app."""
CONCURRENCY = 150
PATIENCE = 120.0
"""Seconds after which a chain that has not ended is lost."""
SOON = 0.5
"""Seconds within which clients must be told."""


@dataclass(slots=True)
class Verdict:
    chains: int
    lost: int = 0
    repeated: int = 0
    failed: int = 0
    expired: int = 0
    met: list[int] = field(default_factory=list[int])
    """In each trouble, how many functions returned."""
    seconds: float = 0.0
    clients: int = 0
    told: list[float] = field(default_factory=list[float])
    """How long each client waited for the end of the task, seconds."""

    @property
    def good(self) -> bool:
        chains = not (self.lost or self.repeated or self.failed or self.expired) and min(self.met, default=0) > 0
        return chains and len(self.told) == self.clients and max(self.told, default=0.0) <= SOON

    def line(self) -> str:
        return (
            f"{self.chains:,} chains: {self.lost} lost, {self.repeated} functions ran more than once, {self.failed} "
            f"attempts failed, {self.expired} leases ran out; in the troubles {self.met} functions returned; "
            f"{self.seconds:.0f} s\n{len(self.told)} of {self.clients} clients were told of the end of one task, the "
            f"last after {max(self.told, default=0.0):.3f} s"
        )


class Chains:
    """An app whose chains go on when they are let go, and its workers."""

    def __init__(self, url: str, deadline: float) -> None:
        self.url = url
        self.deadline = deadline
        self.gate = asyncio.Semaphore(0)
        self.ran: Counter[str] = Counter()
        self.put = self.begun = 0
        self.app = app = App("chains", queues=[FIRST, SECOND], url=url, retry=[])

        @app.task(queue=FIRST, name="charge")
        async def charge(n: int) -> int:
            self.begun += 1
            await self.gate.acquire()
            self.ran[f"charge {n}"] += 1
            return n

        @app.task(queue=SECOND, name="bill")
        async def bill(n: int) -> None:
            self.ran[f"bill {n}"] += 1

        self.charge, self.bill = charge, bill

    @property
    def returned(self) -> int:
        return sum(name.startswith("charge") for name in self.ran)

    @property
    def ended(self) -> int:
        return sum(name.startswith("bill") for name in self.ran)

    async def begin(self, n: int) -> None:
        """Put so many chains, and wait until their first functions run: as many as handlers are sure to be free."""
        await self.app.aput(self.charge.call(self.put + at).then(self.bill) for at in range(n))
        running = self.put + min(n, CONCURRENCY)
        self.put += n
        await until(lambda: self.begun >= running)

    async def let_go(self, n: int, seconds: float) -> int:
        """Let so many functions return, one after another; give how many did, in these seconds."""
        before, end = self.returned, time.monotonic() + seconds
        for _ in range(n):
            self.gate.release()
            await asyncio.sleep(seconds / n / 2)
        await asyncio.sleep(end - time.monotonic())
        return self.returned - before


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, or for as long as patience lasts."""
    end = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < end:
        await asyncio.sleep(0.02)


async def trial(
    chains: int, full: float, outages: int, seconds: float, *, deadline: float = 5.0, settled: float = 2.0
) -> Verdict:
    """Run chains through a full server and outages; half of the functions return while the server is full."""
    verdict, began = Verdict(chains), time.monotonic()
    with EmbeddedServer(binary=valkey()) as server, redis.Redis.from_url(server.url) as raw:
        found = Chains(server.url, deadline)
        async with AsyncExitStack() as stack:
            queues = [
                [await stack.enter_async_context(AsyncQueue(name, server.url, deadline=deadline)) for name in names]
                for names in SERVED
            ]
            workers = [Worker(some, Calls(found.app), concurrency=CONCURRENCY, signals=False) for some in queues]
            working = [asyncio.create_task(worker.run()) for worker in workers]
            await found.begin(chains // 2)
            raw.config_set("maxmemory", "1")
            verdict.met.append(await found.let_go(chains // 2, full))
            raw.config_set("maxmemory", "0")
            await until(lambda: found.ended == found.put)
            for outage in range(outages):
                await asyncio.sleep(settled)  # claims and beats as usual, between two outages
                portion = (chains - found.put) // (outages - outage)
                await found.begin(portion)
                os.kill(server.pid or 0, signal.SIGSTOP)
                try:
                    verdict.met.append(await found.let_go(portion, seconds))
                finally:
                    os.kill(server.pid or 0, signal.SIGCONT)
                await until(lambda: found.ended == found.put)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*working)
        await found.app.aclose()
        verdict.lost, verdict.repeated = chains - found.ended, sum(times > 1 for times in found.ran.values())
        for name in (FIRST, SECOND):
            with Queue(name, server.url) as queue:
                stats = queue.stats()
                verdict.failed += stats.counters.get("failed", 0)
                verdict.expired += stats.counters.get("expired", 0)
    verdict.seconds = time.monotonic() - began
    return verdict


def crowd(clients: int) -> list[float]:
    """Have so many clients wait for one task; give how long after its end each was told, seconds."""
    told: list[float] = []
    with (
        EmbeddedServer(binary=valkey()) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as raw,
        Queue("crowd", server.url) as queue,
        ThreadPoolExecutor(clients) as pool,
    ):
        queue.put("before")
        queue.ack(queue.claim(1))  # so that the server knows the scripts
        queue.put("task")
        (lease,) = queue.claim(1)
        some = [Queue("crowd", server.url) for _ in range(clients)]

        def wait(client: Queue) -> None:
            if client.results.wait("task", timeout=60):
                told.append(time.monotonic())

        waits = [pool.submit(wait, client) for client in some]
        wait_until(lambda: sum("b" in one["flags"] for one in raw.client_list()) == clients, 60)
        ended = time.monotonic()
        queue.ack(lease)
        for one in waits:
            one.result()
        for client in some:
            client.close()
    return [at - ended for at in told]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--full", type=float, default=60.0, help="seconds for which the server is full")
    parser.add_argument("--outages", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each outage lasts")
    parser.add_argument("--clients", type=int, default=60)
    given = parser.parse_args(words)
    verdict = asyncio.run(trial(given.chains, given.full, given.outages, given.seconds))
    verdict.clients, verdict.told = given.clients, crowd(given.clients)
    print(verdict.line())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
