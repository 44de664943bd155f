"""The things that run besides the pump of a worker: asyncio tasks by name, and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

from timeoutq.client.heartbeat import daemon_thread


class Machine:
    """The machine of a worker, from which it takes all its threads; a simulation has another."""

    thread = staticmethod(daemon_thread)

    def event(self) -> threading.Event:
        """Make an event that threads can wait for."""
        return threading.Event()

    def pipe(self) -> SimpleQueue[Any]:
        """Make a queue from which threads take, and wait while it is empty."""
        return SimpleQueue()


THIS = Machine()  # the machine of every worker that was given no other


class Background:
    """The asyncio tasks of one queue of a worker, by their names."""

    def __init__(self, queue: str, on_cancelled: Callable[[str], None], wake: Callable[[], object]) -> None:
        """Prepare; `wake` is called when one has ended, `on_cancelled` with its name if somebody has cancelled it."""
        self._queue, self._on_cancelled, self._wake = queue, on_cancelled, wake
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, run: Coroutine[Any, Any, None]) -> None:
        """Start this under a name."""

        def over(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self._on_cancelled(name)
            self._wake()

        self._tasks[name] = asyncio.create_task(run, name=f"{name}-{self._queue}")
        self._tasks[name].add_done_callback(over)

    def check(self, name: str) -> None:
        """Raise the error that has ended what has this name, if an error has ended it."""
        task = self._tasks.get(name)
        if task is not None and task.done() and not task.cancelled():
            task.result()

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel all, and give the asyncio tasks."""
        for task in self._tasks.values():
            task.cancel()
        return set(self._tasks.values())
