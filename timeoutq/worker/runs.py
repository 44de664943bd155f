"""One run of a handler, and the longest time that the run may take. No I/O.

Crews make a `Run` for each call of a handler; the desk keeps the runs, by the key of their leases.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from timeoutq.client import AsyncDriver
from timeoutq.words import arguments
from timeoutq.words.model import Lease

MARGIN_MS = 300
"""A handler is ended this much, or a tenth of its time, before the server would take its task back."""


@dataclass(slots=True, eq=False)
class Run:
    """A handler at work."""

    lease: Lease
    task: asyncio.Task[None] | None
    """The asyncio task that runs it; None while it runs in a thread."""
    began: float
    """When the handler was called, by the monotonic clock."""
    thread: threading.Thread | None = None
    end: str = ""
    """Why the handler is being stopped: lost, max_runtime, cancelled, shutdown; empty while it is not being stopped."""
    cancelled: bool = False
    """Whether somebody has cancelled the task; a handler in a thread runs on, and the task fails when it ends."""
    settled: bool = False
    """Whether the lease is being ended already, although the handler has not ended."""
    left: bool = False
    """Whether the handler was left behind, because it does not end."""
    limit: float | None = None
    """The most seconds that this handler may run, if it has a limit of its own."""
    stop: Callable[[], object] | None = None
    """What stops the handler when its own limit is over; tests call it, whose clock is not the loop's."""
    spent: float = 0.0
    """How long its call in a thread took, seconds."""

    @property
    def lives(self) -> bool:
        """Whether a task or a thread is still there to run the handler to its end."""
        if self.task is not None:
            return not self.task.done()
        return self.thread is None or self.thread.is_alive()

    def cancelled_by_others(self, problem: BaseException) -> asyncio.CancelledError | None:
        """Give the error of a handler that was cancelled, and not by its worker, with words that say so.

        The worker says why it cancels, so the error of its own cancel has words already.
        """
        if not isinstance(problem, asyncio.CancelledError) or problem.args:
            return None
        if self.task is None or not self.task.cancelling():
            return None
        told = asyncio.CancelledError(
            "the handler was cancelled, and not by its worker: does a handler cancel asyncio tasks that it did not "
            "start?"
        )
        return told.with_traceback(problem.__traceback__)


class MaxRuntime:
    """When max_runtime ends a lease, and the error of a task whose time is over."""

    def __init__(self, queue: AsyncDriver, seconds: float | None) -> None:
        """Prepare; `seconds` is the limit, None: the queue's own. Raises `InvalidInput` for what is no limit."""
        limit = queue.max_runtime if seconds is None else seconds
        self.ms = 0 if limit is None else arguments.timeout_ms(limit, "max_runtime")
        """0: no limit."""
        self.margin_ms = min(MARGIN_MS, self.ms // 10)
        self._first_ms = min(round(queue.timeout * 1000), self.ms)
        self._queue = queue

    def ends_ms(self, lease: Lease) -> float:
        """Give when max_runtime ends a lease, which is as it was claimed; ms of the server, 0 if nothing limits it."""
        return lease.deadline * 1000 - self._first_ms + self.ms if self.ms else 0.0

    def over_ms(self, lease: Lease) -> float:
        """Give for how long the time of a lease has been over; below 0 while it is not, or if nothing limits it."""
        return self._queue.division.talk_of(lease).clock.now_ms - self.ends_ms(lease) if self.ms else -math.inf

    def error(self, more: str = "", seconds: float | None = None) -> TimeoutError:
        """Write the error of a task whose time is over; `seconds` is its own limit, if it has one."""
        limit = self.ms / 1000 if seconds is None else seconds
        return TimeoutError(f"max_runtime of {limit:g} s is over{more}")

    def overrun(self, run: Run, problem: BaseException | None) -> TimeoutError | None:
        """Give the error of a handler that ended by itself, but after max_runtime; None if it ended in time.

        The loop was blocked, so nothing could cancel the handler. The queue may have given the task to somebody else:
        what the handler says counts no more, and the attempt has failed.
        """
        if not self.ms:
            return None
        over_ms = self.over_ms(run.lease)
        if over_ms < 0 or run.end or not (problem is None or isinstance(problem, Exception)):
            return None
        error = self.error(
            f": the handler ended {over_ms / 1000:.1f} s later, "
            "because the event loop was blocked and could not cancel it"
        )
        error.__cause__ = problem
        return error
