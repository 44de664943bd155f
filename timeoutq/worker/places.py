"""One queue of a worker, as a handler sees it that is an object and `Serves`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timeoutq.worker.desk import Desk


class Place:
    """Where the tasks of one queue are run."""

    def __init__(self, desk: Desk, state: Any) -> None:
        """Prepare; `state` is what the lifespan yielded."""
        self.name = desk.queue.name
        self.state = state
        self._desk = desk

    def at_end(self, close: Callable[[], object]) -> None:
        """Have this called when the worker has ended all work."""
        self._desk.at_end.append(close)
