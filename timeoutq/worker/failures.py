"""What a failed attempt means: when the task is tried again, what is kept of the error, and the line in the log.

The desk asks, for each error that a handler has raised or that a worker finds. Whatever the error and the policy of the
user do, asking raises nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from timeoutq.server.calls import Kept
from timeoutq.words import arguments, tracebacks
from timeoutq.words.model import Lease
from timeoutq.words.retry import Retry, RetryPolicy, decision
from timeoutq.worker.handlers import Verdict
from timeoutq.worker.voice import Voice

Judging = Callable[[Lease, BaseException], Verdict | None]
NO_VERDICT = Verdict()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, as the queue is told of it."""

    lease: Lease
    retry_ms: int
    """The delay before the next attempt; -1: the task is given up."""
    error: bytes
    trace: bytes
    """As `tracebacks.trace` gives it."""
    block_ms: int = 0
    """For how long the host of the task is blocked; 0: it is not."""
    kept: Kept | None = None
    """What is kept as the result, for a task that is given up."""


class Failures:
    """Decides by one policy, unless the handler judges by itself, and tells of each failure."""

    def __init__(self, policy: RetryPolicy, voice: Voice, judge: Judging | None = None) -> None:
        self.policy = policy
        self._voice = voice
        self._judge = judge

    def judge(self, lease: Lease, error: BaseException, *, hopeless: bool = False) -> Failure:
        """Decide what an error means for the task of this lease, and log it.

        What is `hopeless` is not tried again, unless the handler says so.
        """
        verdict = NO_VERDICT if self._judge is None else self._verdict(self._judge, lease, error)
        policy = self.policy if verdict.policy is None else verdict.policy
        retry_ms = -1 if hopeless and not verdict.repeats else self._retry_ms(policy, lease, error)
        text, trace = arguments.error_text(error), tracebacks.trace(error)
        given_up, said = retry_ms < 0, text.decode("utf-8", "replace")
        self._voice.say(
            logging.WARNING if given_up else logging.INFO, "queue %s: task %a failed on attempt %d, %s: %a",
            self._voice.queue, lease.task, lease.attempt,
            "given up" if given_up else f"again in {retry_ms / 1000:g} s", said, lease=lease, error=said,
            traceback=tracebacks.read_traceback(trace, said) if given_up or self._voice.is_detailed else None,
        )  # fmt: skip
        kept = self._kept(verdict.result, lease) if given_up and verdict.result is not None else None
        return Failure(lease, retry_ms, text, trace, _block_ms(error), kept)

    def _verdict(self, judge: Judging, lease: Lease, error: BaseException) -> Verdict:
        try:
            given: object = judge(lease, error)
            if given is None or isinstance(given, Verdict):
                return NO_VERDICT if given is None else given
            raise TypeError(f"judge() returned {arguments.shown(given)}; expected None or a Verdict")
        except BaseException as problem:  # the handler's code may raise anything
            self._voice.say(
                logging.ERROR, "queue %s: the handler could not judge the failure of task %a; the worker decides",
                self._voice.queue, lease.task, lease=lease, exc_info=problem,
            )  # fmt: skip
        return NO_VERDICT

    def _kept(self, result: Callable[[], Kept] | Kept, lease: Lease) -> Kept | None:
        try:
            given: object = result() if callable(result) else result
            if isinstance(given, Kept):
                return given
            raise TypeError(f"the result of a Verdict is {arguments.shown(given)}; expected a Kept")
        except BaseException as problem:  # likewise
            self._voice.say(
                logging.ERROR, "queue %s: the failure of task %a is kept without a result",
                self._voice.queue, lease.task, lease=lease, exc_info=problem,
            )  # fmt: skip
        return None

    def _retry_ms(self, policy: RetryPolicy, lease: Lease, error: BaseException) -> int:
        try:
            wait = policy.decide(lease.attempt, error)
        except BaseException as problem:  # the user's policy may raise anything
            self._voice.say(
                logging.ERROR, "queue %s: the retry policy failed; the usual one decides", self._voice.queue,
                lease=lease, exc_info=problem,
            )  # fmt: skip
            try:
                wait = RetryPolicy.of(None).decide(lease.attempt, error)
            except BaseException:  # to look at this error raises, too
                wait = RetryPolicy.of(None).decide(lease.attempt, "")
        return -1 if wait is None else arguments.delay_ms(wait, "retry")


def _block_ms(error: BaseException) -> int:
    with suppress(Exception):  # somebody may have tampered with this Retry
        decides = decision(error)
        if isinstance(decides, Retry):
            return arguments.delay_ms(decides.block_host, "block_host")
    return 0
