"""The methods of a queue, each as a function that checks the arguments and gives the flow that does the work.

A sharded queue has a subclass of `QueueFlows` (`shards/methods.py`). The checks raise `InvalidInput` before the client
connects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, TypeVar, overload

from timeoutq.client.keeper import Keepers
from timeoutq.client.together import together
from timeoutq.rooms.batches import BatchFlows
from timeoutq.rooms.events import EventFlows, log_setting
from timeoutq.rooms.failures import FailureFlows
from timeoutq.rooms.hosts import HostFlows
from timeoutq.rooms.results import ResultFlows
from timeoutq.rooms.schedules.flows import ScheduleFlows
from timeoutq.server.calls import BATCH, Call, amount, refuse_rerun
from timeoutq.verbs import flows, reads, why
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk
from timeoutq.verbs.operations import how_words, one_id
from timeoutq.verbs.sending import Flow, Sleep, Talk, Terms, answer, answers
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments, tracebacks
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.counts import Period, Sample, Stats, summed
from timeoutq.words.errors import InvalidInput, LeaseLost, TimeoutqError
from timeoutq.words.model import (
    Answer,
    Entry,
    Failure,
    Group,
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

SAMPLE = 10.0
"""Seconds between two samples of a shard's history."""
ARRIVAL = 0.05
"""Seconds after which a server has read what was sent on a connection that has been closed since."""

Build = Callable[[Talk, Sequence[int]], list[Call[Any]]]
"""Builds the calls of one talk for those of the leases, or of the tasks, that are at these places."""
ById = Callable[[Talk, tuple[Tasks, ...]], list[Call[Outcome]]]
"""Builds the calls of one talk for these tasks, of which only the ids count."""
Sent = list[tuple[Talk, bytes]]
"""The talks of the last calls of a claim, and the tokens of these calls."""
Found = list
"""`list` is a method of the queue: below it, the type goes by this name."""


class QueueFlows:
    """The flows of a plain queue: all of its tasks are in one place, and `talk` is the talk with it."""

    def __init__(self, talk: Talk, keepers: Keepers) -> None:
        self.talk = talk
        self._keepers = keepers
        self.hosts = HostFlows(talk)
        self.schedules = ScheduleFlows(talk)
        self.results = ResultFlows(talk)
        self.batches = BatchFlows(talk)
        self.events = EventFlows(talk)
        self.failures = FailureFlows(talk)

    # ---- tasks in

    def put(
        self,
        *tasks: Tasks,
        again: bool = False,
        group: Group | None = None,
        priority: int | None = None,
        improve: bool = False,
        rerun: bool = False,
        durable: int = 0,
    ) -> Flow[Outcome]:
        """Put tasks: ids, `Task`s, mappings of ids to payloads, or iterables of ids and `Task`s, any number.

        Gives for each id, in order, `ADDED` or the state that holds the id already; `again=True` puts done and failed
        tasks back with a clean record. Each 500 ids (or each MiB of payloads) are one atomic step, in a sharded queue
        those of one shard. If one of the ids is bad, nothing is put. If some shards do not answer, `ShardsUnavailable`
        has the answers of the others.
        On a polite queue, `group` is the host that the tasks count for, instead of the host of their URL; it may be a
        function that gives the host for each id, and a `Task` may have a group of its own. A queue that is not polite
        keeps groups for later. Also on a polite queue, `priority` (-1000 to 1000, 0 if omitted) says which of the tasks
        that wait for one host is next: the one with the highest priority, then the longest wait. A task that is there
        already with a lower priority, and is not claimed yet, gets this priority and this payload, and the answer is
        `RAISED`. With `improve=True` a task in progress is raised, too: it runs once more after this run; and a task
        that was done at a lower priority is put back. Without `priority`, nothing is raised.
        With `rerun=True`, a run of each task begins after this call, with the payload that is given: a task that is
        not claimed yet gets the payload, a done task is put back, and a task in progress runs once more after this run,
        with a clean record; the answer is then `RERUN`. Failed tasks stay as they are.
        With `durable`, the call returns when that many replicas have confirmed the tasks (WAIT), so that a failover to
        one of them does not lose the tasks. If the queue is durable, too, the higher number counts.
        Raises `InvalidInput`, `ServerFull`, `Unavailable`, `NotReplicated`.
        """
        return self.put_as(tasks, How(again, group, priority, improve, rerun=rerun), durable)

    def schedule(
        self,
        *tasks: Tasks,
        at: float | datetime | None = None,
        after: float | None = None,
        again: bool = False,
        group: Group | None = None,
        priority: int | None = None,
        improve: bool = False,
        durable: int = 0,
    ) -> Flow[Outcome]:
        """Schedule tasks `at` a time (Unix seconds or an aware datetime), or `after` a number of seconds.

        A task that is scheduled already gets the new time, earlier or later, and the answer `SCHEDULED`. `after` counts
        by the server's clock. `group`, `priority`, `improve` and `durable` are as for `put`. Raises `InvalidInput`,
        `ServerFull`, `Unavailable`, `NotReplicated`.
        """
        return self.schedule_as(tasks, at, after, How(again, group, priority, improve), durable)

    # ---- leases

    def claim(
        self, n: int = 1, *, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0
    ) -> Flow[list[Lease]]:
        """Lease up to `n` ready tasks (500 at most) for `timeout` seconds; wait up to `wait` seconds for the first.

        Gives an empty list when nothing is ready or the queue is paused. Expired and due tasks are made ready first.
        Raises `InvalidInput`, `Unavailable`, and `NotReplicated` on a durable queue whose replicas do not confirm the
        leases in time: then the tasks have been given back.
        """
        terms = self.talk.terms
        return self._claimed(
            arguments.count(n, high=BATCH),
            terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout),
            terms.max_runtime_ms if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime"),
            arguments.seconds(wait, "wait"),
        )

    @overload
    def extend(self, lease: Lease, timeout: float | None = None) -> Flow[Lease]: ...
    @overload
    def extend(self, lease: Iterable[Lease], timeout: float | None = None) -> Flow[Outcome]: ...
    def extend(self, lease: Lease | Iterable[Lease], timeout: float | None = None) -> Flow[Lease | Outcome]:
        """Let leases run for `timeout` seconds from now; also one that ran out, if nobody has taken the task back yet.

        For one lease: gives the lease with its new deadline, or raises `LeaseLost`. For many: gives an answer for each:
        `OK`, `LOST`, `MAX_RUNTIME` if the lease may not be extended any more, or `CANCELLED` if the task was cancelled.
        """
        timeout_ms = self.talk.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout)
        if isinstance(lease, Lease):
            return self._of(lease, lambda talk: flows.extend_one(talk, lease, timeout_ms))
        return self._extend(arguments.leases(lease), timeout_ms)

    @overload
    def ack(
        self, lease: Lease, put: Tasks | None = None, *, again_in: float | None = None, payload: Payload = None
    ) -> Flow[Answer]: ...
    @overload
    def ack(self, lease: Iterable[Lease], put: None = None, *, again_in: float | None = None) -> Flow[Outcome]: ...
    def ack(
        self,
        lease: Lease | Iterable[Lease],
        put: Tasks | None = None,
        *,
        again_in: float | None = None,
        payload: Payload = None,
    ) -> Flow[Answer | Outcome]:
        """End leases as done; with `put`, put the tasks that one of them found in the same atomic step.

        The step takes up to 499 tasks and 1 MiB of their payloads, in a sharded queue those of the lease's own shard;
        further tasks are put before the ack, never after.

        With `again_in`, the tasks are not done, but scheduled again in that many seconds, with a clean record; a single
        lease may also give its task a new `payload`.

        An ack after the deadline counts as long as nobody has taken the task back. For one lease: gives `OK`, or
        `ALREADY` when this very ack was carried out before, and raises `LeaseLost` when the lease is lost. For many:
        gives an answer for each. On a durable queue, raises `NotReplicated` when the replicas do not confirm in time:
        the leases have ended, and a failover may undo this until the same call has confirmed it.
        """
        leases = arguments.leases(lease)
        again_ms, body = arguments.again(again_in, payload, leases[0].task if leases else "")
        if put is None and body is None:
            return self._end(lease, leases, lambda talk, at: talk.operations.ack(picked(leases, at), again_ms))
        if not isinstance(lease, Lease):
            raise InvalidInput("put= and payload= work with one lease only: ack such leases one by one")
        found = arguments.tasks((() if put is None else put,))
        return self._keepers.ended(leases, self._ack_put(lease, found, again_ms, body))

    @overload
    def release(self, lease: Lease, delay: float = 0.0, *, block_host: float = 0.0) -> Flow[Answer]: ...
    @overload
    def release(self, lease: Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0) -> Flow[Outcome]: ...
    def release(
        self, lease: Lease | Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0
    ) -> Flow[Answer | Outcome]:
        """Give leases back; their tasks are ready at once, or after `delay` seconds. Answers as `ack` does.

        A release does not count as an attempt. On a polite queue, `block_host` also keeps all workers from the hosts of
        these tasks for that many seconds, in the same step.
        """
        leases = arguments.leases(lease)
        delay_ms, block_ms = arguments.delay_ms(delay, "delay"), arguments.delay_ms(block_host, "block_host")
        return self._end(
            lease, leases, lambda talk, at: talk.operations.release(picked(leases, at), delay_ms, block_ms)
        )

    @overload
    def fail(
        self, lease: Lease, error: BaseException | str, *, retry_in: float | None = None, give_up: bool = False
    ) -> Flow[Answer]: ...
    @overload
    def fail(
        self,
        lease: Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Flow[Outcome]: ...
    def fail(
        self,
        lease: Lease | Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Flow[Answer | Outcome]:
        """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as the policy says.

        `error` is kept with the task, at most 4 KiB of it. Answers as `ack` does.
        """
        leases = arguments.leases(lease)
        waits = _retries(self.talk.terms, leases, error, retry_in, give_up)
        text, trace = arguments.error_text(error), tracebacks.trace(error)
        if text.startswith(tuple(flows.LEFT.values())):
            text = b"failed: " + text  # else it would be read as the word of somebody who has cancelled the task

        def build(talk: Talk, at: Sequence[int]) -> list[Call[Outcome]]:
            many = len(at)
            return talk.operations.fail(picked(leases, at), picked(waits, at), [text] * many, [trace] * many)

        return self._end(lease, leases, build)

    def note(self, lease: Lease, done: float, total: float | None = None, text: str = "") -> Flow[Answer]:
        """Note how far the work on a task is, and a text of at most 200 bytes; `inspect` shows it until the lease ends.

        Gives `OK`, or `CANCELLED` if somebody has cancelled the task. Raises `LeaseLost` if the lease is lost.
        """
        if not isinstance(lease, Lease):  # pyright: ignore[reportUnnecessaryIsInstance]  # what callers pass
            raise InvalidInput(f"note() takes a Lease, not {arguments.shown(lease)}")
        far = [amount(done, "done"), "-" if total is None else amount(total, "total")]
        words = arguments.reason(text)
        return self._of(
            lease, lambda talk: flows.end_one(talk, lease, [talk.operations.note(lease, far[0], far[1], words)])
        )

    def pull(self, n: int = 1) -> Flow[list[Task]]:
        """Take up to `n` tasks (500 at most) without a lease; they count as done at once.

        This is at most once: if you die, the tasks are lost. One call brings about 4 MiB of payloads, so fewer tasks
        when their payloads are large, and in a sharded queue the tasks of one shard; no task comes only when no task is
        ready.

        Raises `Unavailable` when the reply was lost; its tasks are not given again. Raises `InvalidInput` on a durable
        queue, because a failover may bring tasks back that have no lease.
        """
        return self._pull(arguments.count(n, high=BATCH))

    # ---- the cleaner's

    def requeue_expired(self, n: int = 200) -> Flow[int]:
        """Take back up to `n` tasks (or `n` of each shard) whose lease ran out; give their number.

        Any number of processes may do this.
        """
        n = arguments.count(n, high=BATCH)
        return self._each(lambda talk: flows.requeue_expired(talk, n), sum)

    def promote_due(self, n: int = 500) -> Flow[int]:
        """Make up to `n` scheduled tasks (or `n` of each shard) ready whose time has come; give their number."""
        n = arguments.count(n, high=BATCH)
        return self._each(lambda talk: flows.promote_due(talk, n), sum)

    def prune(self, n: int = 500) -> Flow[int]:
        """Drop up to `n` done tasks (or `n` of each shard) that `keep_done` does not keep; give their number."""
        n = arguments.count(n, high=BATCH)
        return self._each(lambda talk: flows.prune(talk, n), sum)

    # ---- the operator's

    def retry_failed(
        self, *tasks: Tasks, all: bool = False, cancelled: bool = False, expired: bool = False
    ) -> Flow[int]:
        """Make failed tasks ready again with a clean record: these, or with `all` every failed task; give their number.

        Of all, those that somebody has cancelled stay where they are, but for `cancelled=True`, and so do calls that
        have expired, but for `expired=True`.
        Raises `InvalidInput` when no tasks are named and `all` is not given, and when both are.
        """
        chosen = {"cancelled": arguments.flag(cancelled, "cancelled"), "expired": arguments.flag(expired, "expired")}
        left = [name for name, is_chosen in chosen.items() if not is_chosen]
        if arguments.flag(all, "all"):
            if tasks:
                raise InvalidInput("retry_failed() takes tasks or all=True, not both")
            return self._each(partial(flows.retry_but, left=left) if left else flows.retry_all, sum)
        for name in chosen.keys() - left:
            raise InvalidInput(f"{name}=True goes with all=True: tasks that are named are retried in any case")
        if not tasks:
            raise InvalidInput("retry_failed() was given no tasks: pass all=True to retry all failed tasks")
        return flows.retried(self.retrial(tasks))

    def forget(self, *tasks: Tasks) -> Flow[Outcome]:
        """Remove tasks from every state. A running task loses its lease. Gives the state in which each task was."""
        return self._by_id(tasks, lambda talk, part: talk.operations.forget(part, talk.nonce), everywhere=True)

    def cancel(self, *tasks: Tasks, by: str | None = None) -> Flow[Outcome]:
        """Cancel tasks that have not ended: none of them runs again, unless somebody retries it or puts it again.

        A task that is ready or scheduled goes to failed, and its answer is `CANCELLED`. A task in progress is marked,
        and its answer is `CANCELLING`: its worker hears of it at once, cancels the handler (a handler that is no
        coroutine runs to its end), and the task goes to failed. If the handler has ended before, its ack or its last
        failure counts; a retry or a release does not. The error of the task says "cancelled by", and then `by`: by
        default the name of this client. The answers for other tasks are the states in which they are.
        """
        who = arguments.reason(self.talk.client if by is None else by)
        if not who:
            raise InvalidInput("by= says who cancels, and cannot be empty")
        return self._by_id(tasks, lambda talk, part: talk.operations.cancel(part, who, talk.nonce), everywhere=True)

    def inspect(self, task: TaskId | Task) -> Flow[TaskInfo]:
        """Tell all that is known of one task; `state` is None when no state holds the task."""
        id = one_id(task)
        return self._knowing(id, lambda talk: answer(talk, talk.operations.inspect(id)), lambda info: info.state)

    def states(self, *tasks: Tasks) -> Flow[Outcome]:
        """Give the state of each task, any number of them; `UNKNOWN` for a task in no state.

        Each 500 of them, in a sharded queue those of one shard, are looked at in one moment. `outcome[id]` is the state
        of one task, and `outcome.counts()` has the number of tasks in each state.
        """
        return self._by_id(tasks, lambda talk, part: talk.operations.states(part), everywhere=False)

    def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Flow[Page]:
        """Read a page of a state, about `n` entries: leases by deadline, scheduled by due time, sets in no order.

        The sets of a sharded queue are read shard by shard.
        Raises `InvalidInput` for done tasks if the queue has keep_done="compact": it keeps no ids of them.
        """
        return reads.page(self.talk, state, cursor, n)

    def each(self, state: State | str) -> Walk[Entry]:
        """Go through all entries of a state, in no order, some hundred at a time.

        A task that stays in the state is given at least once; a task that moves meanwhile may be left out.
        Raises `InvalidInput` as `list` does.
        """
        known = arguments.state(state)
        return Walk(lambda cursor: self._walk(cursor, lambda talk, start: reads.entries(talk, known, start)))

    def export(self, *states: State | str) -> Walk[dict[str, Any]]:
        """Go through all tasks of some states, or of all, in no order: each as a dict, such as pandas makes tables of.

        A dict has task, state, due, acked, failures, crashes, error, error_at, payload, group, priority and until; what
        a task does not have is None. A task that moves meanwhile may be left out, or come twice: `timeoutq export` has
        each task once. A queue with keep_done="compact" has no ids of its done tasks: they are left out, and raise
        `InvalidInput` if they are named.
        """
        named = [arguments.state(state) for state in states]
        left = [(state, bool(named)) for state in named or State]

        def read(cursor: str) -> Flow[tuple[Found[dict[str, Any]], str | None]]:
            state, is_named = left[0]
            found, following = yield from self._walk(
                cursor, lambda talk, start: reads.rows(talk, state, is_named, start)
            )
            if following is None:
                left.pop(0)
                following = reads.START if left else None
            return found, following

        return Walk(read)

    def stats(self) -> Flow[Stats]:
        """Count all states, read counters and settings, at one moment; of a sharded queue, each shard at its own.

        `shards` has the same of each shard.
        """
        return answer(self.talk, self.talk.operations.stats())

    def workers(self) -> Flow[Found[WorkerInfo]]:
        """Tell which workers there are: the 500 whose signs of life are the newest."""
        return reads.workers(self.talk)

    @overload
    def history(self, by: None = None) -> Flow[Found[Sample]]: ...
    @overload
    def history(self, by: Literal["minute", "hour"]) -> Flow[Found[Period]]: ...
    def history(self, by: Literal["minute", "hour"] | None = None) -> Flow[Found[Sample] | Found[Period]]:
        """Give the counters of the last twenty minutes: about one sample per ten seconds, the oldest first.

        With `by="minute"`, give the minutes of the last day, with `by="hour"` the hours of the last 90 days, the oldest
        first, up to now: how many tasks each state had when the minute began, and what happened in it; see `Period`.
        Workers and cleaners note all this; the counters of now are `stats().sample`.
        """
        if by is None:
            return self._each(reads.history, added_up)
        known = reads.by_word(by)
        return self._each(lambda talk: reads.periods(talk, known), summed)

    def errors(self, n: int = 10) -> Flow[Found[Failure]]:
        """Give the last errors, newest first, 50 at most."""
        n = arguments.count(n, high=50)
        return self._each(
            lambda talk: reads.errors(talk, n),
            lambda parts: nlargest(n, chain.from_iterable(parts), key=lambda failure: failure.at),
        )

    def pause(self) -> Flow[None]:
        """Stop giving out tasks; tasks that have a lease are finished."""
        return self._configure({"paused": b"1"})

    def resume(self) -> Flow[None]:
        """Give out tasks again."""
        return self._configure({"paused": b"0"})

    def configure(
        self,
        *,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | Literal["off"] | None = None,
        durable: int | None = None,
        events: int | str | None = None,
        level: Literal["all", "ends", "off"] | None = None,
    ) -> Flow[None]:
        """Change settings of the queue for all its clients; see `Queue()` for their meaning.

        `events` begins the event log, if there is none, and is how many bytes the log keeps: a number, or a text such
        as "64MB"; in a sharded queue, for all shards together. `level` is "all" (every move between two states),
        "ends" (only moves to done and to failed) or "off".

        When politeness begins or ends (`"off"`), the tasks that are in the queue are adapted too, 500 in each step;
        handlers that run are not disturbed. When politeness ends, the hosts and their rules are forgotten.
        Raises `NotReplicated`, and writes nothing, if `durable` asks for more replicas than the server has.
        In a sharded queue, every shard gets the settings; after an error that names shards, call again.

        `keep_done="compact"` keeps done tasks as fingerprints. Raises `InvalidInput` if it is to begin and the queue
        has tasks, and if it is to end and the queue has done tasks.
        """
        given = {"keep_done": keep_done, "max_crashes": max_crashes, "politeness": politeness, "durable": durable}
        settings = arguments.settings(given)
        if (of_log := log_setting(events, level)) is not None:
            settings["events"] = of_log
        return self._configure(settings)

    def exists(self) -> Flow[bool]:
        """Say whether anything was put to the queue, or set for it, since the queue was last purged.

        A queue does not exist only because a worker or a cleaner waits there.
        """
        return reads.exists(self.talk)

    def drained(self, before: float | datetime | None = None) -> Flow[bool]:
        """Say whether nothing is ready, held, scheduled (before a time, if one is given), or waiting for a host's turn.

        This is one atomic answer; for a sharded queue it is as exact, though the shards are asked one by one. A task
        that waits because its host's budget is used up does not count. A queue to which nothing was put is drained,
        too: `exists` tells a mistyped name from a queue that is done.
        """
        return self._drained(_before_ms(before))

    def wait_drained(self, timeout: float | None = None, before: float | datetime | None = None) -> Flow[bool]:
        """Wait until the queue is drained (see `drained`), for `timeout` seconds at most; say whether it is."""
        seconds, before_ms = None if timeout is None else arguments.seconds(timeout, "timeout"), _before_ms(before)
        return flows.wait_drained(lambda: self._drained(before_ms), seconds)

    def why(self, task: TaskId | Task) -> Flow[Reason]:
        """Say why a task is not being worked on now, or who works on it."""
        return why.explain(self.talk, task)

    def purge(self) -> Flow[None]:
        """Remove the queue with all its keys. Workers that hold leases lose them."""
        return flows.purge(self.talk)

    def server(self) -> Flow[dict[str, Any]]:
        """Give the reply of the server to the command INFO."""
        return reads.server(self.talk)

    # ---- for the rest of the package

    def put_as(self, tasks: tuple[Tasks, ...], how: How, durable: int = 0) -> Flow[Outcome]:
        """Put tasks as `how` says."""
        found = arguments.tasks(tasks)
        words = how_words(found, how)

        def build(talk: Talk, at: Sequence[int]) -> Found[Call[Outcome]]:
            return talk.operations.put_checked(part_of(found, at), talk.nonce, words, how.call_id)

        return self._bring(found, how, build, arguments.replicas(durable))

    def schedule_as(
        self,
        tasks: tuple[Tasks, ...],
        at: float | datetime | None,
        after: float | None,
        how: How,
        durable: int = 0,
    ) -> Flow[Outcome]:
        """Schedule tasks as `how` says."""
        due, found = arguments.due(at, after), arguments.tasks(tasks)
        refuse_rerun(found, "schedule()")
        words = how_words(found, how)

        def build(talk: Talk, at: Sequence[int]) -> Found[Call[Outcome]]:
            return talk.operations.schedule_checked(due, part_of(found, at), talk.nonce, words)

        return self._bring(found, how, build, arguments.replicas(durable))

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        """Extend leases by the usual timeout, for a keeper or a heartbeat: no replica is waited for."""
        return flows.extend_many(self.talk, leases, self.talk.terms.timeout_ms, UNCONFIRMED)

    def lost(self, lease: Lease) -> Flow[LeaseLost]:
        """Find out who has the task of a lost lease, and give the error that says so."""
        return self._of(lease, lambda talk: flows.lost(talk, lease))

    def retrial(self, tasks: tuple[Tasks, ...]) -> Flow[Outcome]:
        """Make these failed tasks ready again; answer for each of them."""
        return self._by_id(tasks, lambda talk, part: talk.operations.retry_failed(part, talk.nonce), everywhere=True)

    def be_polite(self, rules: Politeness) -> Flow[None]:
        """Make the queue polite, if nobody has said yet whether it is.

        Of many tasks, only some are adapted at once: cleaners adapt the others.
        """
        return self._configure({"politeness?": arguments.politeness(rules)}, flows.CONVERTS)

    def opening(self, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
        """Check the server, and write the settings that the caller gave."""
        return flows.opening(self.talk, settings, allow_eviction)

    # ---- with the one talk; a sharded queue chooses among its talks

    def _bring(self, found: TaskList, how: How, build: Build, replicas: int) -> Flow[Outcome]:
        return answers(self.talk, build(self.talk, range(len(found.ids))), replicas)

    def _claimed(self, n: int, timeout_ms: int, max_runtime_ms: int, wait: float) -> Flow[Found[Lease]]:
        sent: Sent = []
        try:
            return (yield from self._claim(n, timeout_ms, max_runtime_ms, wait, sent))
        except (TimeoutqError, GeneratorExit):
            raise
        except BaseException:  # Ctrl-C, another signal or a cancel: what was sent last may have run
            # leases that cannot be given back run out by themselves
            yield Sleep(ARRIVAL)
            lengths = timeout_ms, max_runtime_ms
            yield from together([flows.give_back_unread(talk, token, *lengths) for talk, token in sent])
            raise

    def _claim(self, n: int, timeout_ms: int, max_runtime_ms: int, wait: float, sent: Sent) -> Flow[Found[Lease]]:
        def nonce() -> bytes:
            sent[:] = [(self.talk, self.talk.nonce())]
            return sent[0][1]

        return flows.claim(self.talk, n, timeout_ms, max_runtime_ms, wait, nonce)

    def _of(self, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        return flow(self.talk)

    def _extend(self, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
        return flows.extend_many(self.talk, leases, timeout_ms)

    def _end(self, given: object, leases: Found[Lease], build: Build) -> Flow[Answer | Outcome]:
        # a `Lease` gets one answer, or raises `LeaseLost`; an iterable of leases gets one answer for each lease
        if isinstance(given, Lease):
            one = self._of(given, lambda talk: flows.end_one(talk, given, build(talk, (0,))))
            return self._keepers.ended(leases, one)
        return self._keepers.ended(leases, self._end_many(leases, build))

    def _end_many(self, leases: Sequence[Lease], build: Build) -> Flow[Outcome]:
        return answers(self.talk, build(self.talk, range(len(leases))))

    def _ack_put(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
        return flows.ack_put(self.talk, lease, found, again_ms, payload)

    def _pull(self, n: int) -> Flow[Found[Task]]:
        return answer(self.talk, self.talk.operations.pull(n, self.talk.nonce))

    def _by_id(self, tasks: tuple[Tasks, ...], build: ById, *, everywhere: bool) -> Flow[Outcome]:
        return answers(self.talk, build(self.talk, tasks))

    def _knowing(self, id: bytes, flow: Callable[[Talk], Flow[T]], knows: Callable[[T], object]) -> Flow[T]:
        return flow(self.talk)

    def _each(self, flow: Callable[[Talk], Flow[T]], added: Callable[[Found[T]], T]) -> Flow[T]:
        return flow(self.talk)

    def _walk(
        self, cursor: str, read: Callable[[Talk, str], Flow[tuple[Found[T], str | None]]]
    ) -> Flow[tuple[Found[T], str | None]]:
        return read(self.talk, cursor)

    def _configure(self, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
        return flows.configure(self.talk, settings, converts)

    def _drained(self, before_ms: int | None) -> Flow[bool]:
        return flows.drained(self.talk, before_ms)


def picked(rows: Sequence[T], at: Sequence[int]) -> Sequence[T]:
    """Give those of the rows that are at these places; all of them, if there are as many places."""
    return rows if len(at) == len(rows) else [rows[i] for i in at]


def part_of(found: TaskList, at: Sequence[int]) -> TaskList:
    """Give those of the tasks that are at these places, as `picked` does."""
    return found if len(at) == len(found.ids) else found.pick(at)


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


def added_up(parts: Iterable[Sequence[Sample]]) -> list[Sample]:
    """Give the history of a queue from those of its shards."""
    # each shard takes samples at its own moments: so every ten seconds, the last samples of all shards are added
    kept = [part for part in parts if part]
    if not kept:
        return []
    names = ("put", "claimed", "acked", "failed", "expired")
    begin, end = max(part[0].at for part in kept), max(part[-1].at for part in kept)
    found, at = list[Sample](), min(begin, end)
    while at <= end:
        last = [part[max(0, bisect_right(part, at, key=attrgetter("at")) - 1)] for part in kept]
        found.append(Sample(at, *(sum(map(attrgetter(name), last)) for name in names)))
        at += SAMPLE
    return found


def _before_ms(before: float | datetime | None) -> int | None:
    """Give the time before which scheduled tasks count, ms; None for all of them."""
    return None if before is None else int(arguments.due(before, None))
