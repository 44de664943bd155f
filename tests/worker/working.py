"""What tests of the worker have in common: waiting in the event loop, and a worker that runs for a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from timeoutq import Queue, Worker

T = TypeVar("T")


async def until(predicate: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is so; the predicate may be awaitable."""
    async with asyncio.timeout(seconds):
        while True:
            found = predicate()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


async def ended(running: asyncio.Task[T] | Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
    """Give what a worker gives at its end, which must come in time: a worker that `wait_for` cancels ends well."""
    task = running if isinstance(running, asyncio.Task) else asyncio.create_task(running)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        raise TimeoutError(f"the worker has not ended after {seconds:g} s: {await task}")
    return task.result()


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker; stop it at the end of the block."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await ended(task)


def know_the_library(queue: Queue) -> None:
    """Have the server know the library, and the bell be silent: a call that the server does not know is sent twice."""
    queue.put("first")
    queue.ack(queue.claim(1))
    queue.purge()
