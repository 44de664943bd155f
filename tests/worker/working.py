"""What tests of the worker have in common: waiting in the event loop, and a worker that runs for a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from timeoutq import Queue, Worker


async def until(predicate: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is so; the predicate may be awaitable."""
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker; stop it at the end of the block."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)


def know_the_library(queue: Queue) -> None:
    """Have the server know the library, and the bell be silent: a call that the server does not know is sent twice."""
    queue.put("first")
    queue.ack(queue.claim(1))
    queue.purge()
