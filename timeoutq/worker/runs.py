"""One run of a handler, its longest time, and the meaning of its failure: when it is repeated, and the log line."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from timeoutq.client import AsyncDriver
from timeoutq.server.calls import Kept
from timeoutq.words import arguments, tracebacks
from timeoutq.words.model import Lease, Task
from timeoutq.words.retry import Retry, RetryPolicy, decision
from timeoutq.worker.handlers import Verdict
from timeoutq.worker.worker_log import WorkerLog, log

MARGIN_MS = 300  # a handler is ended this much, or a tenth of its time, before the server would take its task back
NO_VERDICT = Verdict()

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Run:
    """A handler at work."""

    lease: Lease
    task: asyncio.Task[None] | None  # the asyncio task that runs it; None while it runs in a thread
    began: float  # when the handler was called, by the monotonic clock
    end: str = ""
    """Why the handler is being stopped: lost, max_runtime, cancelled, shutdown; empty while it is not being stopped."""
    cancelled: bool = False
    """Whether somebody has cancelled the task; a handler in a thread runs on, and the task fails when it ends."""
    returned: bool = False
    """Whether the handler has returned in time, and only waits until a server takes what goes before its ack."""
    waits: bool = False  # whether the handler only waits for its turn, and what it is to run has not begun
    settled: bool = False  # whether the lease is being ended already, although the handler has not ended
    left: bool = False  # whether the handler was left behind, because it does not end
    limit: float | None = None  # the most seconds that this handler may run, if it has a limit of its own
    stop: Callable[[], object] | None = None
    """Stops the handler when its own limit is over; tests call it, whose clock is not the loop's."""
    spent: float = 0.0  # how long its call in a thread took, seconds
    came: Any = None  # what a handler in a thread has returned, or raised
    raised: bool = False

    def cancelled_by_others(self, problem: BaseException) -> asyncio.CancelledError | None:
        """Give an error that says so if somebody else has cancelled the handler; the worker's own cancel has words."""
        is_ours = not isinstance(problem, asyncio.CancelledError) or problem.args
        if is_ours or self.task is None or not self.task.cancelling():
            return None
        words = "the handler was cancelled, and not by its worker: does a handler cancel tasks that it did not start?"
        return asyncio.CancelledError(words).with_traceback(problem.__traceback__)


class MaxRuntime:
    """When max_runtime ends a lease, and the error of a task whose time is over."""

    def __init__(self, queue: AsyncDriver, seconds: float | None) -> None:
        """Prepare; `seconds` is the limit, None: the queue's own. Raises `InvalidInput` for what is no limit."""
        limit = queue.max_runtime if seconds is None else seconds
        self.ms = 0 if limit is None else arguments.timeout_ms(limit, "max_runtime")  # 0: no limit
        self.margin_ms = min(MARGIN_MS, self.ms // 10)
        lease_ms = round(queue.timeout * 1000)
        self._first_ms = min(lease_ms, self.ms or lease_ms)  # how long a lease is when it is claimed
        self._queue = queue

    def claimed_ms(self, lease: Lease) -> float:
        """Give when a lease was claimed, which is as it was then; ms of the server."""
        return lease.deadline * 1000 - self._first_ms

    def ends_ms(self, lease: Lease) -> float:
        """Give when max_runtime ends a lease, which is as it was claimed; ms of the server, 0 if nothing limits it."""
        return self.claimed_ms(lease) + self.ms if self.ms else 0.0

    def over_ms(self, lease: Lease) -> float:
        """Give for how long the time of a lease has been over; below 0 while it is not, or if nothing limits it."""
        return self._queue.division.talk_of(lease).clock.now_ms - self.ends_ms(lease) if self.ms else -math.inf

    def error(self, more: str = "", seconds: float | None = None) -> TimeoutError:
        """Write the error of a task whose time is over; `seconds` is its own limit, if it has one."""
        limit = self.ms / 1000 if seconds is None else seconds
        return TimeoutError(f"max_runtime of {limit:g} s is over{more}")

    def overrun(self, run: Run, problem: BaseException | None) -> TimeoutError | None:
        """Give the error of a handler that ended after max_runtime, because the loop was blocked, if it did."""
        if not self.ms or run.returned:
            return None
        over_ms = self.over_ms(run.lease)
        ended = problem is None or isinstance(problem, Exception)
        if over_ms < 0 or run.end not in ("", "max_runtime") or not ended:
            return None
        run.end = ""  # the loop may have turned to stop the handler before it turned to its end
        error = self.error(
            f": the handler ended {over_ms / 1000:.1f} s later, "
            "because the event loop was blocked and could not cancel it"
        )
        error.__cause__ = problem
        return error


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, as the queue is told of it."""

    lease: Lease
    retry_ms: int  # the delay before the next attempt; -1: the task is given up
    error: bytes
    trace: bytes  # as `tracebacks.trace` gives it
    block_ms: int = 0  # for how long the host of the task is blocked; 0: it is not
    kept: Kept | None = None  # the result that is kept of a task that is given up
    then: Task | None = None  # what is put first
    record: bytes | None = None  # what the record of the call says of this attempt


class Failures:
    """Decides by one policy, unless the handler judges by itself, and logs each failure."""

    def __init__(
        self, queue: str, policy: RetryPolicy, worker_log: WorkerLog,
        ask: Callable[[Lease, BaseException], Verdict | None],
    ) -> None:  # fmt: skip
        """Prepare; `ask` asks the handler."""
        self._queue, self._policy, self._log, self._ask = queue, policy, worker_log, ask

    def judge(
        self, lease: Lease, error: BaseException, record: bytes | None = None, *, hopeless: bool = False
    ) -> Failure:
        """Decide what an error means for the task of a lease, and log it; no repeat mends one that is `hopeless`."""
        words = "fails, and the handler could not judge why; the worker decides"
        verdict = self._of_user(lambda: self._ask(lease, error), lease, words) or NO_VERDICT
        policy = self._policy if verdict.policy is None else verdict.policy
        retry_ms = -1 if hopeless else self._retry_ms(policy, lease, error)
        text, trace = arguments.error_text(error), tracebacks.trace(error)
        given_up, said = retry_ms < 0, text.decode("utf-8", "replace")
        is_detailed = given_up or log.isEnabledFor(logging.DEBUG)
        self._log.of_task(
            logging.WARNING if given_up else logging.INFO, lease, "failed on attempt %d, %s: %a", lease.attempt,
            "given up" if given_up else f"again in {retry_ms / 1000:g} s", said, error=said,
            traceback=tracebacks.read_traceback(trace, said) if is_detailed else None,
        )  # fmt: skip
        kept = then = None
        if given_up and verdict.result is not None:
            kept = self._of_user(verdict.result, lease, "has failed, and is kept without a result")
        if given_up and verdict.then is not None:
            then = self._of_user(partial(verdict.then, self._queue), lease, "has failed, and nothing is put for it")
        decides = decision(error)
        block_ms = arguments.delay_ms(decides.block_host, "block_host") if isinstance(decides, Retry) else 0
        return Failure(lease, retry_ms, text, trace, block_ms, kept, then, record)

    def _retry_ms(self, policy: RetryPolicy, lease: Lease, error: BaseException) -> int:
        def decided(policy: RetryPolicy) -> int:
            wait = policy.decide(lease.attempt, error)
            return -1 if wait is None else arguments.delay_ms(wait, "retry")

        words = "fails, and so does the retry policy; the usual one decides"
        found = self._of_user(lambda: decided(policy), lease, words)
        return decided(RetryPolicy.of(None)) if found is None else found

    def _of_user(self, call: Callable[[], T], lease: Lease, words: str) -> T | None:
        """Call code of the user, which may raise anything; None if it raises."""
        try:
            return call()
        except BaseException as problem:
            self._log.of_task(logging.ERROR, lease, words, exc_info=problem)
        return None
