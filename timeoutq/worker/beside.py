"""Keeps running what runs beside the pump of a worker: its cleaner and its watches. Each of these is an asyncio task.

A handler may cancel asyncio tasks that it did not start. What was cancelled in this way is started again, with a
warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from timeoutq.worker.voice import Voice


class Beside:
    """What runs beside the pump for one queue of a worker: asyncio tasks by their names."""

    def __init__(self, voice: Voice, wake: Callable[[], None]) -> None:
        """Prepare; `wake` is called when one of the asyncio tasks has ended."""
        self._voice = voice
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.closing = False
        """Set when the worker ends: from then on nothing is started again."""

    def keep(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start this under a name, and start it again whenever somebody other than the worker cancels it."""
        task = asyncio.create_task(run(), name=f"{name}-{self._voice.queue}")
        self._tasks[name] = task

        def start_again(_: asyncio.Task[None]) -> None:
            if task.cancelled() and not self.closing:
                self._voice.say(
                    logging.WARNING, "worker %s: its %s was cancelled by somebody else, and is started again; does a "
                    "handler cancel tasks that it did not start?", self._voice.worker, name,
                )  # fmt: skip
                self.keep(name, run)
            self._wake()

        task.add_done_callback(start_again)

    def check(self, name: str) -> None:
        """Raise the error that has ended what has this name, if an error has ended it."""
        task = self._tasks.get(name)
        if task is not None and task.done() and not task.cancelled():
            task.result()

    def tell_cancelled(self) -> None:
        """Warn what was cancelled together with the worker."""
        cancelled = [name for name, task in self._tasks.items() if task.cancelling()]
        if cancelled:  # for what was started again, `keep` has logged its own warning
            self._voice.say(
                logging.WARNING, "worker %s was cancelled together with its %s: does a handler cancel tasks that it "
                "did not start?", self._voice.worker, ", ".join(cancelled),
            )  # fmt: skip

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel all that runs here; give the asyncio tasks."""
        for task in self._tasks.values():
            task.cancel()
        return set(self._tasks.values())
