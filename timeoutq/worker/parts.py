"""Keeps the parts of a worker running beside the pump: its cleaner and its watches. Each part is an asyncio task.

A handler may cancel asyncio tasks that it did not start. A part that was cancelled in this way is started again, with a
warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from timeoutq.worker.voice import Voice


class Parts:
    """The parts of one worker that one queue needs, by name."""

    def __init__(self, voice: Voice, wake: Callable[[], None]) -> None:
        """Prepare; `wake` is called when a part has ended."""
        self._voice = voice
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.closing = False
        """Set when the worker ends: from then on no part is started again."""

    def keep(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a part, and start it again whenever somebody other than the worker cancels it."""
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
        """Raise the error that has ended this part, if an error has ended it."""
        task = self._tasks.get(name)
        if task is not None and task.done() and not task.cancelled():
            task.result()

    def tell_cancelled(self) -> None:
        """Warn which parts were cancelled together with the worker."""
        parts = [name for name, task in self._tasks.items() if task.cancelling()]
        if parts:  # for a part that was started again, `keep` has logged its own warning
            self._voice.say(
                logging.WARNING, "worker %s was cancelled together with its %s: does a handler cancel tasks that it "
                "did not start?", self._voice.worker, ", ".join(parts),
            )  # fmt: skip

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel all parts; give their asyncio tasks."""
        for task in self._tasks.values():
            task.cancel()
        return set(self._tasks.values())
