"""Tells when a handler blocks the event loop: for how long, which task's handler, at which line, and the cure.

The worker starts it. It runs in a thread of its own, and asks the loop again and again to call it back; while no
handler runs it does not ask. A call such as `time.sleep` in an `async def` keeps the loop from all else: other
handlers, acks, cancellations at max_runtime. The thread cannot end the call, but it can say what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from asyncio import events
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

from timeoutq import telling
from timeoutq.model import Lease
from timeoutq.text import safe

log = logging.getLogger(__name__)

SHORTEST = 1.0
"""Seconds: a loop that is blocked for less is never told of."""
LONGEST = 10.0
"""Seconds: a loop that is blocked for this long is told of, however long the leases are."""
NAMED = 5
"""How many tasks the line names when it is not known which of their handlers blocks the loop."""

_HERE = Path(__file__).parent
_OURS = {str(path) for path in (*(_HERE / "worker").glob("*.py"), _HERE / "handlers.py")} | {str(events.__file__)}
"""What calls handlers and callbacks."""


class AtWork(Protocol):
    """A handler at work, and the asyncio task that runs it, if one does."""

    lease: Lease
    task: asyncio.Task[None] | None


class LoopWatch:
    """Watches the loop of a worker while it is entered as a context manager, in the thread of that loop."""

    def __init__(
        self,
        queue: str,
        running: Mapping[int, AtWork],
        fields: Mapping[str, object],
        timeout: float,
        max_runtime: float = 0.0,
    ) -> None:
        """Prepare; `running` holds the handlers at work; `timeout` and `max_runtime` (0: none) are seconds.

        A loop is told of when it has not turned for a third of the shorter of the two, but at least `SHORTEST`.
        """
        self._queue = queue
        self._running = running
        self._fields = fields
        self._limit = max(SHORTEST, min(LONGEST, timeout / 3, (max_runtime or timeout) / 3))
        self._stop = threading.Event()
        self._questions = self._answers = 0
        self._turned = 0.0
        """When the loop answered the last time, by the monotonic clock."""
        self._thread = threading.Thread(target=self._watch, name=f"loopwatch-{queue}", daemon=True)

    def __enter__(self) -> None:
        """Begin to watch the loop that runs in this thread."""
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self._turn(self._questions)
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _turn(self, question: int) -> None:
        self._turned = time.monotonic()
        self._answers = question

    def _watch(self) -> None:
        period = min(1.0, self._limit / 4)
        looked, asked = time.monotonic(), 0.0
        culprit = ""
        while True:
            stops = self._stop.wait(period)
            now = time.monotonic()
            # while this thread did not run either, the process was stopped, or the machine was too busy
            slept, looked = max(0.0, now - looked - period), now
            if self._answers < self._questions:
                asked += slept
                if not culprit and now - asked >= self._limit:
                    culprit = self._tell(now - asked)
            else:
                if culprit:
                    self._say("queue %s: the event loop turns again: it was blocked for %.1f s by %s",
                              self._queue, max(0.0, self._turned - asked), culprit)  # fmt: skip
                    culprit = ""
                if self._running and not stops:
                    asked = now
                    self._questions += 1
                    try:
                        self._loop.call_soon_threadsafe(self._turn, self._questions)
                    except RuntimeError:  # the loop is closed already
                        return
            if stops:
                return

    def _tell(self, seconds: float) -> str:
        lease, culprit, place = None, "an unknown call", "an unknown line"
        with suppress(Exception):  # the loop may turn again while its thread is looked at
            lease = self._lease()
            culprit = self._culprit(lease)
            place = self._place()
        own = {} if lease is None else {"task": lease.task, "attempt": lease.attempt}
        self._say(
            "queue %s: the event loop has been blocked for %.1f s by %s, at %s: meanwhile no other handler runs, "
            "nothing is acked, and max_runtime cannot end it; if an `async def` makes a blocking call, write the "
            "handler as a plain `def`, which gets a thread, or await asyncio.to_thread(…)",
            self._queue, seconds, culprit, place, **own,
        )  # fmt: skip
        return culprit

    def _say(self, message: str, *words: object, **own: object) -> None:
        telling.say(log, logging.WARNING, message, *words, fields={**self._fields, **own})

    def _lease(self) -> Lease | None:
        """Give the lease whose handler, or an asyncio task that the handler started, runs in the loop."""
        task = asyncio.current_task(self._loop)
        runs = list(self._running.values())
        for run in runs:
            if task is not None and run.task is task:
                return run.lease
        if task is None or sys.version_info < (3, 12):  # there the context of a task cannot be read
            return None
        about = task.get_context().get(telling.running)
        return about[1] if about is not None and about[1].fence in self._running else None

    def _culprit(self, lease: Lease | None) -> str:
        if lease is not None:
            return f"the handler of task {lease.task!a}"
        runs = list(self._running.values())
        names = ", ".join(f"{run.lease.task!a:.80}" for run in runs[:NAMED])
        more = f" and {len(runs) - NAMED:,} more" * (len(runs) > NAMED)
        return f"one of the handlers of tasks {names}{more}" if runs else "a call outside of all handlers"

    def _place(self) -> str:
        """Give the line at which the thread of the loop stands, and the line of the handler that led there."""
        frame: FrameType | None = sys._current_frames()[self._ident]
        stack: list[str] = []
        while frame is not None and (not stack or frame.f_code.co_filename not in _OURS):
            stack.append(_line(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return stack[0] if len(stack) == 1 else f"{stack[0]}, called from {stack[-1]}"


def _line(code: CodeType, number: int | None) -> str:
    return safe(f"{code.co_filename}:{number} in {code.co_name}")
