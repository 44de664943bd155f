"""What a worker gets from its machine: threads, what threads wait with, and a client that blocks a thread.

The worker, its heartbeat, its watch and its crew of threads take all of it from one `Machine`. So a simulation can run
whole workers in one process, with threads that it lets go on in an order of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from timeoutq.client import AsyncDriver, Driver, twin


class Machine:
    """The machine on which this process runs."""

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Make a thread that ends with the process at the latest; it is not started yet."""
        return threading.Thread(target=target, name=name, daemon=True)

    def event(self) -> threading.Event:
        """Make an event that threads can wait for."""
        return threading.Event()

    def pipe(self) -> SimpleQueue[Any]:
        """Make a queue from which threads take, and wait while it is empty."""
        return SimpleQueue()

    def client(self, queue: AsyncDriver) -> Driver:
        """Make a client of the same queue and the same name for a thread; each call blocks the thread."""
        return twin(queue)

    async def call(self, blocking: Callable[[], object]) -> None:
        """Call a function that blocks, in a thread of its own, and wait until the function has returned."""
        # the event loop's own threads may all be taken by what handlers have started and left behind
        own = ThreadPoolExecutor(1)
        await asyncio.get_running_loop().run_in_executor(own, blocking)
        own.shutdown(wait=False)


THIS = Machine()
"""The machine of every worker that was given no other."""
