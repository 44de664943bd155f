"""What the methods of the faces do: each function checks what the caller passed, and gives the flow that does the work.

`Queue` and `AsyncQueue` call these functions. A method has no function here if it passes its arguments as they are to
one operation, or to one function of `flows.py`, `reads.py` or `why.py`.

The functions check at once, and raise `InvalidInput` before the client connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from timeoutq import arguments, flows, sending, tracebacks
from timeoutq.arguments import How
from timeoutq.calls import BATCH, Call
from timeoutq.errors import InvalidInput, TimeoutqError
from timeoutq.model import Answer, Lease, Outcome, Payload, Task, Tasks
from timeoutq.sending import BELL_WAIT, Flow, Talk

# ---- tasks in


def put(talk: Talk, tasks: tuple[Tasks, ...], how: How, durable: int) -> Flow[Outcome]:
    """Put tasks."""
    calls = talk.operations.put(tasks, talk.nonce, how)
    return sending.answers(talk, calls, arguments.replicas(durable))


def later(
    talk: Talk,
    tasks: tuple[Tasks, ...],
    at: float | datetime | None,
    after: float | None,
    how: How,
    durable: int,
) -> Flow[Outcome]:
    """Schedule tasks."""
    calls = talk.operations.schedule(tasks, talk.nonce, at=at, after=after, how=how)
    return sending.answers(talk, calls, arguments.replicas(durable))


# ---- leases


class Claim:
    """A claim that Ctrl-C or a cancel may interrupt: what the claim took can then be given back."""

    def __init__(self, talk: Talk, n: int, timeout: float | None, max_runtime: float | None, wait: float) -> None:
        """Check what the caller passed."""
        terms = talk.terms
        self._talk = talk
        self.n = arguments.count(n, high=BATCH)
        self.timeout_ms = terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout)
        self.max_runtime_ms = (
            terms.max_runtime_ms if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime")
        )
        self.wait = arguments.seconds(wait, "wait")
        self._token = b""

    def flow(self) -> Flow[list[Lease]]:
        """Claim."""
        return flows.claim(self._talk, self.n, self.timeout_ms, self.max_runtime_ms, self.wait, self._nonce)

    def _nonce(self) -> bytes:
        self._token = self._talk.nonce()
        return self._token

    @property
    def sent(self) -> bool:
        """Whether a call of this claim may have been sent."""
        return self._token != b""

    def give_back(self) -> Flow[None]:
        """Release what the last call of the claim took, if the server answers at once."""
        talk = self._talk
        call = talk.operations.claim(self._token, 0, self.timeout_ms, self.max_runtime_ms)
        with suppress(TimeoutqError):
            # the last call may have stood behind a wait for the bell
            yield from flows.give_back(talk, call, int((BELL_WAIT + talk.deadline) * 1000))


def extend(talk: Talk, lease: Lease | Iterable[Lease], timeout: float | None) -> Flow[Lease | Outcome]:
    """Extend one lease, or many."""
    timeout_ms = talk.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout)
    if isinstance(lease, Lease):
        return flows.extend_one(talk, lease, timeout_ms)
    return flows.extend_many(talk, arguments.leases(lease), timeout_ms)


def ack(
    talk: Talk, lease: Lease | Iterable[Lease], put: Tasks | None, again_in: float | None, payload: Payload
) -> Flow[Answer | Outcome]:
    """Ack many leases, or one; one lease may be acked together with tasks that it found."""
    leases = arguments.leases(lease)
    again_ms, body = arguments.again(again_in, payload, leases[0].task if leases else "")
    if put is None and body is None:
        return _end(talk, lease, leases, talk.operations.ack(leases, again_ms))
    if not isinstance(lease, Lease):
        raise InvalidInput("put= and payload= work with one lease only: ack such leases one by one")
    return flows.ack_put(talk, lease, arguments.tasks((() if put is None else put,)), again_ms, body)


def release(talk: Talk, lease: Lease | Iterable[Lease], delay: float, block_host: float) -> Flow[Answer | Outcome]:
    """Release one lease, or many."""
    leases = arguments.leases(lease)
    delay_ms, block_ms = arguments.delay_ms(delay, "delay"), arguments.delay_ms(block_host, "block_host")
    return _end(talk, lease, leases, talk.operations.release(leases, delay_ms, block_ms))


def fail(
    talk: Talk,
    lease: Lease | Iterable[Lease],
    error: BaseException | str,
    retry_in: float | None,
    give_up: bool,
) -> Flow[Answer | Outcome]:
    """Fail one lease, or many."""
    leases = arguments.leases(lease)
    waits = retries(talk, leases, error, retry_in, give_up)
    text, trace = arguments.error_text(error), tracebacks.trace(error)
    calls = talk.operations.fail(leases, waits, [text] * len(leases), [trace] * len(leases))
    return _end(talk, lease, leases, calls)


def retries(
    talk: Talk, leases: Sequence[Lease], error: BaseException | str, retry_in: float | None, give_up: bool
) -> list[int]:
    """Give for each lease the ms until the next attempt; -1 if there is to be none."""
    give_up = bool(arguments.flag(give_up, "give_up"))
    if give_up and retry_in is not None:
        raise InvalidInput("fail() takes retry_in= or give_up=True, not both")
    if retry_in is not None:
        return [arguments.delay_ms(retry_in, "retry_in")] * len(leases)
    if give_up:
        return [-1] * len(leases)
    waits = [talk.terms.retry.decide(lease.attempt, error) for lease in leases]
    return [-1 if wait is None else arguments.delay_ms(wait, "retry") for wait in waits]


def _end(talk: Talk, given: object, leases: Sequence[Lease], calls: Sequence[Call[Outcome]]) -> Flow[Answer | Outcome]:
    # a `Lease` gets one answer, or raises `LeaseLost`; an iterable of leases gets one answer for each lease
    if isinstance(given, Lease):
        return flows.end_one(talk, leases[0], calls)
    return sending.answers(talk, calls)


def pull(talk: Talk, n: int) -> Flow[list[Task]]:
    """Take tasks without a lease."""
    return sending.answer(talk, talk.operations.pull(arguments.count(n, high=BATCH)))


# ---- the cleaner's


def requeue_expired(talk: Talk, n: int) -> Flow[int]:
    """Take back tasks whose lease ran out."""
    return flows.requeue_expired(talk, arguments.count(n, high=BATCH))


def promote_due(talk: Talk, n: int) -> Flow[int]:
    """Make those scheduled tasks ready that are due."""
    return flows.promote_due(talk, arguments.count(n, high=BATCH))


def prune(talk: Talk, n: int) -> Flow[int]:
    """Drop done tasks that need not be kept, and do a part of what cleaners do besides."""
    return flows.prune(talk, arguments.count(n, high=BATCH))


# ---- the operator's


def retry_failed(talk: Talk, tasks: tuple[Tasks, ...], all: bool) -> Flow[int]:
    """Make failed tasks ready again: those named, or all."""
    if arguments.flag(all, "all"):
        if tasks:
            raise InvalidInput("retry_failed() takes tasks or all=True, not both")
        return flows.retry_all(talk)
    if not tasks:
        raise InvalidInput("retry_failed() was given no tasks: pass all=True to retry all failed tasks")
    return flows.retry_some(talk, talk.operations.retry_failed(tasks))


def pause(talk: Talk) -> Flow[object]:
    """Stop giving out tasks."""
    return sending.answer(talk, talk.operations.configure({"paused": b"1"}))


def resume(talk: Talk) -> Flow[object]:
    """Give out tasks again."""
    return sending.answer(talk, talk.operations.configure({"paused": b"0"}))


def configure(talk: Talk, keep_done: object, max_crashes: object, politeness: object, durable: object) -> Flow[None]:
    """Change settings of the queue; None leaves a setting as it is."""
    given = {"keep_done": keep_done, "max_crashes": max_crashes, "politeness": politeness, "durable": durable}
    return flows.configure(talk, arguments.settings(given))


def drained(talk: Talk, before: float | datetime | None) -> Flow[bool]:
    """Say whether the queue is drained."""
    return flows.drained(talk, before_ms(before))


def wait_drained(talk: Talk, timeout: float | None, before: float | datetime | None) -> Flow[bool]:
    """Wait until the queue is drained."""
    seconds = None if timeout is None else arguments.seconds(timeout, "timeout")
    return flows.wait_drained(talk, seconds, before_ms(before))


def before_ms(before: float | datetime | None) -> int | None:
    """Give the time before which scheduled tasks count, ms; None for all of them."""
    return None if before is None else int(arguments.due(before, None))
