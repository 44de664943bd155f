"""Many waits for calls in one process: one blocked connection serves all of them, and none is lost while it is cut.

`tests/functions/test_calls_under_load.py` runs it for a moment; the long form is

    python -m tests.rig.waits --waits 10000 --cuts 100

which prints how many connections were blocked at once, at most, and how many waits were lost.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from tests.rig.proxy import Fault, Proxy
from tests.rig.servers import valkey
from timeoutq import AsyncQueue, Worker
from timeoutq.functions import App, Calls, Result
from timeoutq.server.embedded import EmbeddedServer

LISTENS = b"answers:"
"""What a request has in it that hears of ended calls."""


@dataclass(slots=True)
class Verdict:
    """What became of the waits."""

    waits: int = 0
    lost: int = 0
    wrong: int = 0
    """Waits that got the result of another call."""
    cuts: int = 0
    blocked: int = 0
    """Connections of the waiting process that were blocked at once, at most."""
    connections: int = 0
    """Its connections at once, at most."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether each wait has its own result, and all shared one blocked connection."""
        return self.waits > 0 and self.lost == self.wrong == 0 and self.blocked == 1 and self.cuts > 0

    def line(self) -> str:
        """Say it in one line."""
        return (
            f"{self.waits:,} waits, {self.lost} lost, {self.wrong} wrong; {self.cuts} cuts "
            f"while they listened; {self.blocked} blocked of {self.connections} connections, at most; "
            f"{self.seconds:.1f} s"
        )


async def trial(waits: int, cuts: int, *, seconds: float = 300.0) -> Verdict:
    """Wait for calls through a proxy that cuts all connections again and again; a worker ends the calls meanwhile."""
    verdict, gate, began = Verdict(waits, lost=waits), asyncio.Semaphore(0), time.monotonic()
    with EmbeddedServer(binary=valkey()) as server, Proxy(server.url) as proxy:
        app = App("waits", url=proxy.url)

        @app.task(keep_result=600)
        async def triple(n: int) -> int:
            await gate.acquire()
            return 3 * n

        async with AsyncQueue("waits", server.url) as near, redis.asyncio.Redis.from_url(server.url) as raw:
            calls = await app.aput(triple.call(n) for n in range(waits))
            found = [asyncio.create_task(_wait(call, n, verdict)) for n, call in enumerate(calls)]
            worker = Worker(near, Calls(app), concurrency=200, signals=False)
            running = asyncio.create_task(worker.run())
            look = asyncio.create_task(_look(raw, proxy, verdict, over := asyncio.Event()))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _until(lambda: verdict.blocked > 0)
                    for cut in range(cuts):
                        await _until(lambda: _blocked(raw, proxy))
                        if cut % 2:  # the reply is lost that tells of the calls which end now, or the one after it
                            proxy.arm(Fault.RESET_AFTER, LISTENS)
                        for _ in range(waits // cuts if cut else waits - waits // cuts * (cuts - 1)):
                            gate.release()
                        if cut % 2:
                            await _until(lambda: proxy.struck or not verdict.lost)
                            proxy.disarm()
                        else:
                            proxy.cut()
                        verdict.cuts += 1
                    await asyncio.gather(*found)
            over.set()  # redis-py may swallow a cancel
            for one in found:
                one.cancel()
            for _ in range(waits):
                gate.release()
            worker.stop()
            everything: list[asyncio.Future[Any]] = [running, *found, look]
            await asyncio.gather(*everything, return_exceptions=True)
            await app.aclose()
    verdict.seconds = time.monotonic() - began
    return verdict


async def _wait(call: Result[int], n: int, verdict: Verdict) -> None:
    value = await call
    verdict.lost -= 1
    verdict.wrong += value != 3 * n


async def _blocked(raw: redis.asyncio.Redis, proxy: Proxy) -> int:
    """Give how many connections of the waits are blocked now."""
    mine = proxy.far_ports()
    found: Any = await raw.client_list()
    return sum("b" in one["flags"] and int(one["addr"].rpartition(":")[2]) in mine for one in found)


async def _look(raw: redis.asyncio.Redis, proxy: Proxy, verdict: Verdict, over: asyncio.Event) -> None:
    while not over.is_set():
        verdict.blocked = max(verdict.blocked, await _blocked(raw, proxy))
        verdict.connections = max(verdict.connections, len(proxy.far_ports()))
        await asyncio.sleep(0.02)


async def _until(condition: Callable[[], Any]) -> None:
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.005)


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run the trial, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=int, default=10_000)
    parser.add_argument("--cuts", type=int, default=100)
    given = parser.parse_args(words)
    verdict = asyncio.run(trial(given.waits, given.cuts))
    print(verdict.line())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
