"""What a failed attempt means: when the task is tried again, what is kept of the error, and the line in the log.

The desk asks, for each error that a handler has raised or that a worker finds. Whatever the error and the policy of the
user do, asking raises nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from timeoutq import arguments, tracebacks
from timeoutq.model import Lease
from timeoutq.retry import Retry, RetryPolicy, decision
from timeoutq.worker.voice import Voice


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


class Failures:
    """Decides by one policy, and tells of each failure."""

    def __init__(self, policy: RetryPolicy, voice: Voice) -> None:
        self.policy = policy
        self._voice = voice

    def judge(self, lease: Lease, error: BaseException) -> Failure:
        """Decide what an error means for the task of this lease, and log it."""
        retry_ms, text, trace = self._retry_ms(lease, error), arguments.error_text(error), tracebacks.trace(error)
        given_up, said = retry_ms < 0, text.decode("utf-8", "replace")
        self._voice.say(
            logging.WARNING if given_up else logging.INFO, "queue %s: task %a failed on attempt %d, %s: %a",
            self._voice.queue, lease.task, lease.attempt,
            "given up" if given_up else f"again in {retry_ms / 1000:g} s", said, lease=lease, error=said,
            traceback=tracebacks.read_traceback(trace, said) if given_up or self._voice.is_detailed else None,
        )  # fmt: skip
        return Failure(lease, retry_ms, text, trace, _block_ms(error))

    def _retry_ms(self, lease: Lease, error: BaseException) -> int:
        try:
            wait = self.policy.decide(lease.attempt, error)
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
        if issubclass(type(decides), Retry):
            return arguments.delay_ms(cast("Retry", decides).block_host, "block_host")
    return 0
