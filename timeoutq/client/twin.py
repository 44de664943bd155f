"""From an `AsyncQueue` to a `Queue` for a thread: the heartbeat, a worker process and the supervisor need one."""

from __future__ import annotations

from timeoutq.client.async_queue import AsyncQueue
from timeoutq.client.queue import Queue


def twin(queue: AsyncQueue) -> Queue:
    """Make a blocking client of the same queue and the same name, with connections of its own: for a thread."""
    url, client, deadline = queue.given
    made = Queue(
        queue.name,
        url,
        client=client,
        timeout=queue.timeout,
        max_runtime=queue.max_runtime,
        deadline=deadline,
        allow_eviction=queue.allow_eviction,
    )
    made.worker = queue.worker
    return made
