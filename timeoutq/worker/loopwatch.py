"""Warns when a handler blocks the event loop: for how long, which task, which line of code, and the cure."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from asyncio import events, runners
from collections.abc import Sequence
from contextlib import suppress
from logging import WARNING
from pathlib import Path
from types import FrameType
from typing import Any

from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.words.text import safe
from timeoutq.worker.leases import Leases
from timeoutq.worker.runs import Run
from timeoutq.worker.threads import Machine
from timeoutq.worker.worker_log import WorkerLog, named

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

    def __init__(self, queues: Sequence[Leases], worker_log: WorkerLog, machine: Machine) -> None:
        """Prepare; a block is logged after a third of the shortest lease, or of the shortest max_runtime."""
        self._queues, self._log = queues, worker_log
        times = [seconds for one in queues for seconds in (one.queue.timeout, one.runtime.ms / 1000) if seconds]
        self._limit = max(SHORTEST, min(LONGEST, min(times) / 3))
        self._stop = machine.event()
        self._questions = self._answers = 0
        self._turned = 0.0  # when the loop answered the last time, by the monotonic clock
        self._thread = machine.thread(self._watch, f"loopwatch-{worker_log.queue}")

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
                    seconds, words = max(0.0, self._turned - blocked_since), "it was blocked for %.1f s by %s"
                    self._log.of_queue(WARNING, f"the event loop turns again: {words}", seconds, culprit)
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
        return [run for one in self._queues for run in list(one.running.values())]

    def _report_held(self, seconds: float, runs: Sequence[Run]) -> None:
        lease, culprit, line, _ = self._find()
        who = f"one of the handlers of tasks {named([run.lease for run in runs])}"
        self._log.of_queue(
            WARNING, "for %.1f s no other thread of this process ran, because a call by %s held Python's global "
            "interpreter lock (GIL). Was it a regular expression, or a large text to parse? Then run it in another "
            "process", seconds, who if lease is None else f"{culprit}, at {line},", lease=lease,
        )  # fmt: skip

    def _report_block(self, seconds: float) -> str:
        lease, culprit, line, is_handler = self._find()
        harm = "no async def handler of this worker runs, and no task is acked"
        cure = "Does it make a blocking call? Then use await asyncio.to_thread(…)"
        if is_handler:
            harm = "no other handler of this worker runs, no task is acked, and max_runtime cannot end the handler"
            cure = (
                "Does an async def make a blocking call? Then write the handler as a plain def (it runs in a thread), "
                "or use await asyncio.to_thread(…)"
            )
        self._log.of_queue(
            WARNING, "the event loop has been blocked for %.1f s by %s, at %s. Meanwhile %s. %s", seconds, culprit,
            line, harm, cure, lease=lease,
        )  # fmt: skip
        return culprit

    def _find(self) -> tuple[Lease | None, str, str, bool]:
        """Give the lease whose handler blocks the loop, if it is known, words for it, its line, whether it is one."""
        lease, culprit, line, is_handler = None, "an unknown call", "an unknown line", False
        with suppress(Exception):  # the loop may go on while its stack is read; then the rest is logged
            task: Any = asyncio.current_task(self._loop)
            at_work = self._at_work()
            context: Any = task.get_context() if hasattr(task, "get_context") else {}  # Python 3.11 does not tell
            _, started_by = context.get(telling.running) or (None, None)
            # the handler that runs now, or that has started the asyncio task that runs now
            found = (run.lease for run in at_work if run.task is not None and run.task is task)
            # another worker in this loop may have a lease with the same key
            lease = next(found, None) or next((run.lease for run in at_work if run.lease is started_by), None)
            runs = [run for run in at_work if run.task is not None]
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

    def _line(self) -> str:
        """Give the line that the loop's thread executes now, and the outermost line of user code that led to it."""
        frame: FrameType | None = sys._current_frames()[self._ident]
        stack: list[str] = []
        while frame is not None and (not stack or frame.f_code.co_filename not in _OURS):
            stack.append(safe(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"))
            frame = frame.f_back
        return stack[0] if len(stack) == 1 else f"{stack[0]}, called from {stack[-1]}"
