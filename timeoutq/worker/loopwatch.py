"""Warns when a handler blocks the event loop: for how long, which task, which line of code, and the cure."""

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
from types import FrameType
from typing import Any

from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.words.text import safe
from timeoutq.worker.background import THIS, Machine
from timeoutq.worker.runs import Run
from timeoutq.worker.worker_log import named

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 1.0, 10.0
"""Seconds: no shorter block is logged, and each longer one is, whatever the length of the leases."""
COMPUTED = 0.1
"""If this process used the processor for more than this part of a time, the process was not stopped for this time."""

_OURS = {str(path) for path in Path(__file__).parent.rglob("*.py")} | {
    str(events.__file__), str(runners.__file__),  # uvloop calls callbacks without events.py
}  # fmt: skip
"""Files that call the user's code. The stack is shown only below them."""


class LoopWatch:
    """Context manager that watches the event loop of a worker. Enter it in the loop's own thread."""

    def __init__(
        self,
        queue: str,
        running: Sequence[Mapping[int, Run]],
        fields: Mapping[str, object],
        timeout: float,
        max_runtime: float = 0.0,
        machine: Machine = THIS,
    ) -> None:
        """Prepare; `running` holds the handlers at work, for each queue of the worker.

        A block is logged after a third of `timeout` or of `max_runtime` (0: none), whichever is shorter, in seconds.
        """
        self._queue = queue
        self._running = running
        self._fields = fields
        self._limit = max(SHORTEST, min(LONGEST, timeout / 3, (max_runtime or timeout) / 3))
        self._stop = machine.event()
        self._questions = self._answers = 0
        self._turned = 0.0  # when the loop answered the last time, by the monotonic clock
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
        culprit, seen = "", list[Run]()
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

    def _at_work(self) -> list[Run]:
        return [run for runs in self._running for run in list(runs.values())]

    def _report_held(self, seconds: float, runs: Sequence[Run]) -> None:
        lease, culprit, line, _ = self._find()
        tasks = named([run.lease for run in runs])
        who = f"one of the handlers of tasks {tasks}" if lease is None else f"{culprit}, at {line},"
        self._warn(
            "queue %s: for %.1f s no other thread of this process ran, because a call by %s held Python's global "
            "interpreter lock (GIL). Was it a regular expression, or a large text to parse? Then run it in another "
            "process", self._queue, seconds, who, lease=lease,
        )  # fmt: skip

    def _report_block(self, seconds: float) -> str:
        lease, culprit, line, is_handler = self._find()
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
            self._queue, seconds, culprit, line, harm, cure, lease=lease,
        )  # fmt: skip
        return culprit

    def _warn(self, message: str, *words: object, lease: Lease | None = None) -> None:
        own = {} if lease is None else {"task": lease.task, "attempt": lease.attempt}
        telling.say(log, logging.WARNING, message, *words, fields={**self._fields, **own})

    def _find(self) -> tuple[Lease | None, str, str, bool]:
        """Give the lease whose handler blocks the loop, if it is known, words for it, its line, whether it is one."""
        lease, culprit, line, is_handler = None, "an unknown call", "an unknown line", False
        with suppress(Exception):  # the loop may go on while its stack is read; then the rest is logged
            task: Any = asyncio.current_task(self._loop)
            lease = self._lease(task)
            runs = [run for run in self._at_work() if run.task is not None]
            is_handler = lease is not None or (bool(runs) and not hasattr(task, "get_context"))
            if lease is not None:
                culprit = f"the handler of task {lease.task!a}"
            elif is_handler:  # before Python 3.12 nobody knows which
                culprit = f"one of the handlers of tasks {named([run.lease for run in runs])}"
            elif task is not None:
                culprit = f"the asyncio task {safe(ascii(task.get_name()), 80)}"
            else:
                culprit = "code that belongs to no handler"
            line = self._line()
        return lease, culprit, line, is_handler

    def _lease(self, task: Any) -> Lease | None:
        """Give the lease of the handler that runs now, or that has started the asyncio task that runs now."""
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

    def _line(self) -> str:
        """Give the line that the loop's thread executes now, and the outermost line of user code that led to it."""
        frame: FrameType | None = sys._current_frames()[self._ident]
        stack: list[str] = []
        while frame is not None and (not stack or frame.f_code.co_filename not in _OURS):
            stack.append(safe(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"))
            frame = frame.f_back
        return stack[0] if len(stack) == 1 else f"{stack[0]}, called from {stack[-1]}"
