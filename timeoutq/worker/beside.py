"""What runs beside the pump of a worker: its cleaner and its watches. Each of these is an asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from timeoutq.worker.desk import Desk


class Beside:
    """What runs beside the pump for one queue of a worker: asyncio tasks by their names."""

    def __init__(self, desk: Desk) -> None:
        """Prepare; the desk is woken when one of the asyncio tasks has ended."""
        self._desk = desk
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, run: Coroutine[Any, Any, None]) -> None:
        """Start this under a name."""

        def over(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self._desk.on_cancelled(name)
            self._desk.wake()

        self._tasks[name] = asyncio.create_task(run, name=f"{name}-{self._desk.queue.name}")
        self._tasks[name].add_done_callback(over)

    def check(self, name: str) -> None:
        """Raise the error that has ended what has this name, if an error has ended it."""
        task = self._tasks.get(name)
        if task is not None and task.done() and not task.cancelled():
            task.result()

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel all that runs here; give the asyncio tasks."""
        for task in self._tasks.values():
            task.cancel()
        return set(self._tasks.values())
