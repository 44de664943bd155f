"""One queue of a worker, as a handler sees it that is an object and `Serves`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from timeoutq import sending
from timeoutq.errors import TimeoutqError
from timeoutq.worker.desk import Desk

AGAIN_EVERY, AGAIN_SOON = 60.0, 1.0
"""Seconds after which a queue is told again which functions there are: if the server has heard, and if it has not."""


class Place:
    """Where the tasks of one queue are run."""

    def __init__(self, desk: Desk, state: Any) -> None:
        """Prepare; `state` is what the lifespan yielded."""
        self.name = desk.queue.name
        self.queue: Any = desk.queue
        self.state = state
        self._desk = desk

    def publish(self, functions: Mapping[str, tuple[str, str]]) -> None:
        """Have the queue told which functions there are here: of each the digest and the JSON of what it takes."""
        self._desk.functions = functions

    def at_end(self, close: Callable[[], object]) -> None:
        """Have this called when the worker has ended all work."""
        self._desk.at_end.append(close)


async def tell_functions(desk: Desk) -> None:
    """Tell each part of a queue which functions there are here, again and again."""
    while True:
        pause = AGAIN_EVERY
        for talk in desk.queue.division.talks:
            try:
                for call in talk.operations.publish(desk.functions):
                    await desk.queue.run(sending.answer(talk, call))
            except TimeoutqError:  # what else the worker asks of the server says so in the log
                pause = AGAIN_SOON
        await asyncio.sleep(pause)
