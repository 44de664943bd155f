"""From a client for asyncio to one for another thread: heartbeats, a worker process and the supervisor need one."""

from __future__ import annotations

from typing import overload

from timeoutq.client.async_queue import AsyncQueue
from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.queue import Queue


@overload
def twin(queue: AsyncQueue) -> Queue: ...
@overload
def twin(queue: AsyncDriver) -> Driver: ...
def twin(queue: AsyncDriver) -> Driver:
    """Make a blocking client of the same queue and the same name, with connections of its own: for a thread."""
    made = queue.blocking(queue.name, **queue.settings())
    made.worker = queue.worker
    return made


def sibling(queue: AsyncDriver) -> AsyncDriver:
    """Make a client for asyncio of the same queue and the same name, with connections of its own."""
    # the face itself: a class that somebody has made of it may take other arguments
    kind = next(found for found in type(queue).__mro__ if "blocking" in vars(found))
    made: AsyncDriver = kind(queue.name, **queue.settings())
    made.worker = queue.worker
    return made
