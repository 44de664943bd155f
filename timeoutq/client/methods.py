"""What the methods of the faces do: `QueueFlows` checks what the caller passed, and gives the flow that does the work.

The faces ask it for flows. A sharded queue has a subclass (`shards/methods.py`), which overrides what is not the same
for a queue of several shards. The checks come at once, and raise `InvalidInput` before the client connects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar, overload

from timeoutq.rooms.batches.flows import BatchFlows
from timeoutq.rooms.events import EventFlows
from timeoutq.rooms.events.setting import log_setting
from timeoutq.rooms.failures.flows import FailureFlows
from timeoutq.rooms.hosts.flows import HostFlows
from timeoutq.rooms.results import ResultFlows
from timeoutq.rooms.schedules.flows import ScheduleFlows
from timeoutq.server.calls import BATCH, Call, amount
from timeoutq.verbs import flows, reads, sending, why
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import BELL_WAIT, Flow, Talk, Terms
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments, tracebacks
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.counts import Period, Sample, Stats
from timeoutq.words.errors import InvalidInput, LeaseLost, TimeoutqError
from timeoutq.words.model import (
    Answer,
    Entry,
    Failure,
    Lease,
    Outcome,
    Page,
    Payload,
    Politeness,
    State,
    Task,
    TaskId,
    TaskInfo,
    Tasks,
    WorkerInfo,
)

T = TypeVar("T")

Build = Callable[[Talk, Sequence[Lease], Sequence[int]], list[Call[Any]]]
"""Builds the calls for some leases of one talk; the places of these leases among all leases are given, too."""
ById = Callable[[Talk, tuple[Tasks, ...]], list[Call[Outcome]]]
"""Builds the calls for some tasks of one talk, of which only the ids count."""


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


class QueueFlows:
    """The flows of a plain queue: all of its tasks are in one place, and `talk` is the talk with it."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.hosts = HostFlows(talk)
        """The flows of the room of the hosts."""
        self.schedules = ScheduleFlows(talk)
        """The flows of the room of the schedules."""
        self.results = ResultFlows(talk)
        """The flows of the room of the results."""
        self.batches = BatchFlows(talk)
        """The flows of the room of the batches."""
        self.events = EventFlows(talk)
        """The flows of the room of the event log."""
        self.failures = FailureFlows(talk)
        """The flows of the room of the failures."""

    # ---- tasks in

    def put(self, tasks: tuple[Tasks, ...], how: How, durable: int) -> Flow[Outcome]:
        """Put tasks."""
        calls = self.talk.operations.put(tasks, self.talk.nonce, how)
        return sending.answers(self.talk, calls, arguments.replicas(durable))

    def schedule(
        self,
        tasks: tuple[Tasks, ...],
        at: float | datetime | None,
        after: float | None,
        how: How,
        durable: int,
    ) -> Flow[Outcome]:
        """Schedule tasks."""
        calls = self.talk.operations.schedule(tasks, self.talk.nonce, at=at, after=after, how=how)
        return sending.answers(self.talk, calls, arguments.replicas(durable))

    # ---- leases

    def claim(self, n: int, timeout: float | None, max_runtime: float | None, wait: float) -> Claim:
        """Claim up to `n` tasks."""
        return Claim(self.talk, n, timeout, max_runtime, wait)

    def extend(self, lease: Lease | Iterable[Lease], timeout: float | None) -> Flow[Lease | Outcome]:
        """Extend one lease, or many."""
        timeout_ms = self.talk.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout)
        if isinstance(lease, Lease):
            return self._of(lease, lambda talk: flows.extend_one(talk, lease, timeout_ms))
        return self._extend(arguments.leases(lease), timeout_ms)

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        """Extend leases by the usual timeout, for a keeper or a heartbeat: no replica is waited for."""
        return flows.extend_many(self.talk, leases, self.talk.terms.timeout_ms, UNCONFIRMED)

    def lost(self, lease: Lease) -> Flow[LeaseLost]:
        """Find out who has the task of a lost lease, and give the error that says so."""
        return self._of(lease, lambda talk: flows.lost(talk, lease))

    def ack(
        self, lease: Lease | Iterable[Lease], put: Tasks | None, again_in: float | None, payload: Payload
    ) -> Flow[Answer | Outcome]:
        """Ack many leases, or one; one lease may be acked together with tasks that it found."""
        leases = arguments.leases(lease)
        again_ms, body = arguments.again(again_in, payload, leases[0].task if leases else "")
        if put is None and body is None:
            return self._end(lease, leases, lambda talk, part, _: talk.operations.ack(part, again_ms))
        if not isinstance(lease, Lease):
            raise InvalidInput("put= and payload= work with one lease only: ack such leases one by one")
        return self._ack_put(lease, arguments.tasks((() if put is None else put,)), again_ms, body)

    def release(self, lease: Lease | Iterable[Lease], delay: float, block_host: float) -> Flow[Answer | Outcome]:
        """Release one lease, or many."""
        leases = arguments.leases(lease)
        delay_ms, block_ms = arguments.delay_ms(delay, "delay"), arguments.delay_ms(block_host, "block_host")
        return self._end(lease, leases, lambda talk, part, _: talk.operations.release(part, delay_ms, block_ms))

    def fail(
        self,
        lease: Lease | Iterable[Lease],
        error: BaseException | str,
        retry_in: float | None,
        give_up: bool,
    ) -> Flow[Answer | Outcome]:
        """Fail one lease, or many."""
        leases = arguments.leases(lease)
        waits = _retries(self.talk.terms, leases, error, retry_in, give_up)
        text, trace = arguments.error_text(error), tracebacks.trace(error)

        def build(talk: Talk, part: Sequence[Lease], places: Sequence[int]) -> list[Call[Outcome]]:
            many = len(part)
            return talk.operations.fail(part, [waits[at] for at in places], [text] * many, [trace] * many)

        return self._end(lease, leases, build)

    def note(self, lease: Lease, done: float, total: float | None, text: str) -> Flow[Answer]:
        """Note how far a handler is."""
        if not isinstance(lease, Lease):  # pyright: ignore[reportUnnecessaryIsInstance]  # what callers pass
            raise InvalidInput(f"note() takes a Lease, not {arguments.shown(lease)}")
        far = [amount(done, "done"), "-" if total is None else amount(total, "total")]
        words = arguments.reason(text)
        return self._of(
            lease, lambda talk: flows.end_one(talk, lease, [talk.operations.note(lease, far[0], far[1], words)])
        )

    def pull(self, n: int) -> Flow[list[Task]]:
        """Take tasks without a lease."""
        return self._pull(arguments.count(n, high=BATCH))

    # ---- the cleaner's

    def requeue_expired(self, n: int) -> Flow[int]:
        """Take back tasks whose lease ran out."""
        return self._sum(flows.requeue_expired, arguments.count(n, high=BATCH))

    def promote_due(self, n: int) -> Flow[int]:
        """Make those scheduled tasks ready that are due."""
        return self._sum(flows.promote_due, arguments.count(n, high=BATCH))

    def prune(self, n: int) -> Flow[int]:
        """Drop done tasks that need not be kept, and do a part of what cleaners do besides."""
        return self._sum(flows.prune, arguments.count(n, high=BATCH))

    # ---- the operator's

    def retry_failed(self, tasks: tuple[Tasks, ...], all: bool, cancelled: bool) -> Flow[int]:
        """Make failed tasks ready again: those named, or all, with those that were `cancelled` or without."""
        with_cancelled = arguments.flag(cancelled, "cancelled")
        if arguments.flag(all, "all"):
            if tasks:
                raise InvalidInput("retry_failed() takes tasks or all=True, not both")
            return self._sum(flows.retry_all if with_cancelled else flows.retry_uncancelled)
        if with_cancelled:
            raise InvalidInput("cancelled=True goes with all=True: tasks that are named are retried in any case")
        if not tasks:
            raise InvalidInput("retry_failed() was given no tasks: pass all=True to retry all failed tasks")
        return flows.retried(self.retrial(tasks))

    def retrial(self, tasks: tuple[Tasks, ...]) -> Flow[Outcome]:
        """Make these failed tasks ready again; answer for each of them."""
        return self._by_id(tasks, lambda talk, part: talk.operations.retry_failed(part, talk.nonce), everywhere=True)

    def forget(self, tasks: tuple[Tasks, ...]) -> Flow[Outcome]:
        """Remove tasks from every state."""
        return self._by_id(tasks, lambda talk, part: talk.operations.forget(part, talk.nonce), everywhere=True)

    def cancel(self, tasks: tuple[Tasks, ...], by: str) -> Flow[Outcome]:
        """Cancel tasks that have not ended; `by` says who does."""
        who = arguments.reason(by)
        if not who:
            raise InvalidInput("by= says who cancels, and cannot be empty")
        return self._by_id(tasks, lambda talk, part: talk.operations.cancel(part, who, talk.nonce), everywhere=True)

    def states(self, tasks: tuple[Tasks, ...]) -> Flow[Outcome]:
        """Tell where tasks are."""
        return self._by_id(tasks, lambda talk, part: talk.operations.states(part), everywhere=False)

    def inspect(self, task: TaskId | Task) -> Flow[TaskInfo]:
        """Tell all about one task."""
        return sending.answer(self.talk, self.talk.operations.inspect(task))

    def why(self, task: TaskId | Task) -> Flow[Reason]:
        """Say why a task is not being worked on now, or who works on it."""
        return why.explain(self.talk, task)

    def page(self, state: State | str, cursor: str | None, n: int) -> Flow[Page]:
        """Read a page of about `n` entries of a state, from where the last page ended."""
        return reads.page(self.talk, state, cursor, n)

    def entries(self, state: State | str, cursor: str) -> Flow[tuple[list[Entry], str | None]]:
        """Read some entries of a state in no order; an entry that stays in the state is never missed."""
        return reads.entries(self.talk, state, cursor)

    def exported(self, states: Sequence[State | str]) -> list[tuple[State, bool]]:
        """Say which states an export goes through: each of them, and whether the caller has named it."""
        named = [arguments.state(state) for state in states]
        return [(state, bool(named)) for state in named or State]

    def rows(self, state: tuple[State, bool], cursor: str) -> Flow[tuple[list[dict[str, Any]], str | None]]:
        """Read some tasks of a state as an export tells of them; the state as `exported` gives it."""
        return reads.rows(self.talk, *state, cursor)

    def stats(self) -> Flow[Stats]:
        """Count all states, and read counters and settings."""
        return sending.answer(self.talk, self.talk.operations.stats())

    def workers(self) -> Flow[list[WorkerInfo]]:
        """Read the signs of life of workers."""
        return reads.workers(self.talk)

    @overload
    def history(self, by: None = None) -> Flow[list[Sample]]: ...
    @overload
    def history(self, by: str | None) -> Flow[list[Sample] | list[Period]]: ...
    def history(
        self, by: str | None = None
    ) -> Flow[list[Sample]] | Flow[list[Period]] | Flow[list[Sample] | list[Period]]:
        """Read the counters of the last twenty minutes; or minutes, or hours, with the sizes of states."""
        return reads.history(self.talk) if by is None else reads.periods(self.talk, reads.by_word(by))

    def errors(self, n: int) -> Flow[list[Failure]]:
        """Read the last errors, the newest first."""
        return reads.errors(self.talk, n)

    def server(self) -> Flow[dict[str, Any]]:
        """Read what the command INFO says about the server."""
        return reads.server(self.talk)

    def pause(self) -> Flow[None]:
        """Stop giving out tasks."""
        return self._configure({"paused": b"1"})

    def resume(self) -> Flow[None]:
        """Give out tasks again."""
        return self._configure({"paused": b"0"})

    def configure(
        self,
        keep_done: object,
        max_crashes: object,
        politeness: object,
        durable: object,
        events: object = None,
        level: object = None,
    ) -> Flow[None]:
        """Change settings of the queue; None leaves a setting as it is."""
        given = {"keep_done": keep_done, "max_crashes": max_crashes, "politeness": politeness, "durable": durable}
        settings = arguments.settings(given)
        if (of_log := log_setting(events, level)) is not None:
            settings["events"] = of_log
        return self._configure(settings)

    def be_polite(self, rules: Politeness) -> Flow[None]:
        """Make the queue polite, if nobody has said yet whether it is.

        Of many tasks, only some are adapted at once: cleaners adapt the others.
        """
        return self._configure({"politeness?": arguments.politeness(rules)}, flows.CONVERTS)

    def opening(self, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
        """Check the server, and write the settings that the caller gave."""
        return flows.opening(self.talk, settings, allow_eviction)

    def exists(self) -> Flow[bool]:
        """Say whether anything was put to the queue or set for it."""
        return reads.exists(self.talk)

    def drained(self, before: float | datetime | None) -> Flow[bool]:
        """Say whether the queue is drained."""
        return self._drained(_before_ms(before))

    def wait_drained(self, timeout: float | None, before: float | datetime | None) -> Flow[bool]:
        """Wait until the queue is drained."""
        seconds, before_ms = None if timeout is None else arguments.seconds(timeout, "timeout"), _before_ms(before)
        return flows.wait_drained(lambda: self._drained(before_ms), seconds)

    def purge(self) -> Flow[None]:
        """Remove the queue with all its keys."""
        return flows.purge(self.talk)

    # ---- what the flows above have in common: here with the one talk; a sharded queue chooses among its talks

    def _of(self, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        return flow(self.talk)

    def _extend(self, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
        return flows.extend_many(self.talk, leases, timeout_ms)

    def _end(self, given: object, leases: Sequence[Lease], build: Build) -> Flow[Answer | Outcome]:
        # a `Lease` gets one answer, or raises `LeaseLost`; an iterable of leases gets one answer for each lease
        calls = build(self.talk, leases, range(len(leases)))
        return flows.end_one(self.talk, given, calls) if isinstance(given, Lease) else sending.answers(self.talk, calls)

    def _ack_put(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
        return flows.ack_put(self.talk, lease, found, again_ms, payload)

    def _pull(self, n: int) -> Flow[list[Task]]:
        return sending.answer(self.talk, self.talk.operations.pull(n, self.talk.nonce))

    def _sum(self, flow: Callable[..., Flow[int]], *words: int) -> Flow[int]:
        return flow(self.talk, *words)

    def _by_id(self, tasks: tuple[Tasks, ...], build: ById, *, everywhere: bool) -> Flow[Outcome]:
        return sending.answers(self.talk, build(self.talk, tasks))

    def _configure(self, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
        return flows.configure(self.talk, settings, converts)

    def _drained(self, before_ms: int | None) -> Flow[bool]:
        return flows.drained(self.talk, before_ms)


def _retries(
    terms: Terms, leases: Sequence[Lease], error: BaseException | str, retry_in: float | None, give_up: bool
) -> list[int]:
    """Give for each lease the ms until the next attempt; -1 if there is to be none."""
    give_up = bool(arguments.flag(give_up, "give_up"))
    if give_up and retry_in is not None:
        raise InvalidInput("fail() takes retry_in= or give_up=True, not both")
    if retry_in is not None:
        return [arguments.delay_ms(retry_in, "retry_in")] * len(leases)
    if give_up:
        return [-1] * len(leases)
    waits = [terms.retry.decide(lease.attempt, error) for lease in leases]
    return [-1 if wait is None else arguments.delay_ms(wait, "retry") for wait in waits]


def _before_ms(before: float | datetime | None) -> int | None:
    """Give the time before which scheduled tasks count, ms; None for all of them."""
    return None if before is None else int(arguments.due(before, None))
