"""Warns when a handler blocks the event loop.

The log line says for how long, which task, which line of code, and what to do. The worker starts a thread for this.
While at least one handler runs, the thread asks the event loop again and again to call `_turn`. If the call does not
come, the loop is blocked: a call such as `time.sleep` in an `async def` keeps the loop from all else, such as other
handlers, acks, and cancellations at max_runtime. The thread cannot end the call, but it can say what is wrong. A call
that holds Python's global interpreter lock (GIL) stops this thread as well; it is logged when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from asyncio import events, runners
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.words.text import safe
from timeoutq.worker.machine import THIS, Machine

log = logging.getLogger(__name__)

SHORTEST = 1.0
"""Seconds. Blocks shorter than this are never logged."""
LONGEST = 10.0
"""Seconds. Blocks of this length are always logged, even if timeout is long."""
NAMED = 5
"""How many tasks the log line lists when we do not know whose handler blocks the loop."""
COMPUTED = 0.1
"""If this process used the processor for more than this part of a time, the process was not stopped for this time."""

_OURS = {str(path) for path in Path(__file__).parent.rglob("*.py")} | {
    str(events.__file__), str(runners.__file__),  # uvloop calls callbacks without events.py
}  # fmt: skip
"""Files that call the user's code. The stack is shown only below them."""


class AtWork(Protocol):
    """A handler at work, and the asyncio task that runs it, if one does."""

    lease: Lease
    task: asyncio.Task[None] | None


class LoopWatch:
    """Context manager that watches the event loop of a worker. Enter it in the loop's own thread."""

    def __init__(
        self,
        queue: str,
        running: Sequence[Mapping[int, AtWork]],
        fields: Mapping[str, object],
        timeout: float,
        max_runtime: float = 0.0,
        machine: Machine = THIS,
    ) -> None:
        """Prepare; `running` holds the handlers at work, for each queue of the worker.

        `timeout` and `max_runtime` (0: none) are seconds.
        A block is logged when it lasts for a third of the shorter of the two; at least `SHORTEST` and at most `LONGEST`
        seconds.
        """
        self._queue = queue
        self._running = running
        self._fields = fields
        self._limit = max(SHORTEST, min(LONGEST, timeout / 3, (max_runtime or timeout) / 3))
        self._stop = machine.event()
        self._questions = self._answers = 0
        self._turned = 0.0
        """When the loop answered the last time, by the monotonic clock."""
        self._thread = machine.thread(self._watch, f"loopwatch-{queue}")

    def __enter__(self) -> None:
        """Begin to watch the loop that runs in this thread."""
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Ask the thread to end, and wait at most 1 s for it."""
        self._turn(self._questions)
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _turn(self, question: int) -> None:
        self._turned = time.monotonic()
        self._answers = question

    def _watch(self) -> None:
        period = min(1.0, self._limit / 4)
        last_look, last_used, blocked_since = time.monotonic(), time.process_time(), 0.0
        culprit, seen = "", list[AtWork]()
        while True:
            stopping = self._stop.wait(period)
            now, used = time.monotonic(), time.process_time()
            # This thread did not run either: the process was stopped, the machine was too busy, or a call held the GIL.
            slept = max(0.0, now - last_look - period)
            computed = used - last_used - period > slept * COMPUTED
            last_look, last_used = now, used
            held = computed and slept >= self._limit
            at_work = self._at_work()
            if held and (at_work or seen):
                self._report_held(slept, at_work or seen)
            seen = at_work
            if self._answers < self._questions:
                if held or not computed:
                    blocked_since += slept
                if not culprit and now - blocked_since >= self._limit:
                    culprit = self._report_block(now - blocked_since)
            else:
                if culprit:
                    self._warn("queue %s: the event loop turns again: it was blocked for %.1f s by %s",
                               self._queue, max(0.0, self._turned - blocked_since), culprit)  # fmt: skip
                    culprit = ""
                if at_work and not stopping:
                    blocked_since = now
                    self._questions += 1
                    try:
                        self._loop.call_soon_threadsafe(self._turn, self._questions)
                    except RuntimeError:  # the loop is closed already
                        return
            if stopping:
                return

    def _at_work(self) -> list[AtWork]:
        return [run for runs in self._running for run in list(runs.values())]

    def _report_held(self, seconds: float, runs: Sequence[AtWork]) -> None:
        lease, culprit, place, _ = self._find()
        who = f"one of the handlers of tasks {_names(runs)}" if lease is None else f"{culprit}, at {place},"
        self._warn(
            "queue %s: for %.1f s no other thread of this process ran, because a call by %s held Python's global "
            "interpreter lock (GIL). Was it a regular expression, or a large text to parse? Then run it in another "
            "process", self._queue, seconds, who, lease=lease,
        )  # fmt: skip

    def _report_block(self, seconds: float) -> str:
        lease, culprit, place, is_handler = self._find()
        if is_handler:
            harm = "no other handler of this worker runs, no task is acked, and max_runtime cannot end the handler"
            cure = (
                "Does an async def make a blocking call? Then write the handler as a plain def (it runs in a thread), "
                "or use await asyncio.to_thread(…)"
            )
        else:
            harm = "no async def handler of this worker runs, and no task is acked"
            cure = "Does it make a blocking call? Then use await asyncio.to_thread(…)"
        self._warn(
            "queue %s: the event loop has been blocked for %.1f s by %s, at %s. Meanwhile %s. %s",
            self._queue, seconds, culprit, place, harm, cure, lease=lease,
        )  # fmt: skip
        return culprit

    def _warn(self, message: str, *words: object, lease: Lease | None = None) -> None:
        own = {} if lease is None else {"task": lease.task, "attempt": lease.attempt}
        telling.say(log, logging.WARNING, message, *words, fields={**self._fields, **own})

    def _find(self) -> tuple[Lease | None, str, str, bool]:
        """Return what blocks the loop: its lease, if known, words for it, its line, and whether it is a handler."""
        lease, culprit, place, is_handler = None, "an unknown call", "an unknown line", False
        with suppress(Exception):  # the loop may go on while we read its stack; then we log what we have
            task: Any = asyncio.current_task(self._loop)
            lease = self._lease(task)
            culprit, is_handler = self._culprit(task, lease)
            place = self._place()
        return lease, culprit, place, is_handler

    def _lease(self, task: Any) -> Lease | None:
        """Return the lease of the handler that runs now.

        If the running asyncio task was started by a handler, return the lease of that handler.
        """
        at_work = self._at_work()
        for run in at_work:
            if task is not None and run.task is task:
                return run.lease
        get_context: Any = getattr(task, "get_context", None)
        if get_context is None:  # Python 3.11 has no Task.get_context()
            return None
        about: tuple[object, Lease] | None = get_context().get(telling.running)
        # another worker in this loop may have a lease with the same key
        return next((run.lease for run in at_work if about and run.lease is about[1]), None)

    def _culprit(self, task: Any, lease: Lease | None) -> tuple[str, bool]:
        if lease is not None:
            return f"the handler of task {lease.task!a}", True
        # a handler that runs in a thread cannot block the loop, and since Python 3.12 a task's handler is known
        runs = [run for run in self._at_work() if run.task is not None]
        if runs and not hasattr(task, "get_context"):
            return f"one of the handlers of tasks {_names(runs)}", True
        if task is not None:
            return f"the asyncio task {safe(ascii(task.get_name()), 80)}", False
        return "code that belongs to no handler", False

    def _place(self) -> str:
        """Return the line that the loop's thread executes now, and the outermost line of user code that led to it."""
        frame: FrameType | None = sys._current_frames()[self._ident]
        stack: list[str] = []
        while frame is not None and (not stack or frame.f_code.co_filename not in _OURS):
            stack.append(_line(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return stack[0] if len(stack) == 1 else f"{stack[0]}, called from {stack[-1]}"


def _names(runs: Sequence[AtWork]) -> str:
    more = f" and {len(runs) - NAMED:,} more" * (len(runs) > NAMED)
    return ", ".join(safe(ascii(run.lease.task), 80) for run in runs[:NAMED]) + more


def _line(code: CodeType, number: int | None) -> str:
    return safe(f"{code.co_filename}:{number} in {code.co_name}")
