"""`Queue`: the face of a queue for code that blocks, one line per method. `AsyncQueue` is its twin.

`methods.py` says what a method does; the driver carries it out. The twins have the same names, signatures and
docstrings, which a test holds equal. The methods stand in `Verbs`, because sharded queues have them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, overload

from timeoutq.client.driving import Driver
from timeoutq.client.keeper import Keeper, OnLost
from timeoutq.rooms.batches import Batches
from timeoutq.rooms.events import Events
from timeoutq.rooms.failures import Failures
from timeoutq.rooms.hosts import Hosts
from timeoutq.rooms.results import Results
from timeoutq.rooms.schedules import Schedules
from timeoutq.verbs import reads
from timeoutq.verbs.why import Reason
from timeoutq.words.arguments import How
from timeoutq.words.counts import Period, Sample, Stats
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

Found = list
"""`list` is a method of the queue: below it, the type goes by this name."""


class Verbs(Driver):
    """The verbs of a queue, for code that blocks: `Queue` has them, and `ShardedQueue`."""

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
    ) -> Outcome:
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
        return self.run(self.flows.put(tasks, How(again, group, priority, improve, rerun=rerun), durable))

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
    ) -> Outcome:
        """Schedule tasks `at` a time (Unix seconds or an aware datetime), or `after` a number of seconds.

        A task that is scheduled already gets the new time, earlier or later, and the answer `SCHEDULED`. `after` counts
        by the server's clock. `group`, `priority`, `improve` and `durable` are as for `put`. Raises `InvalidInput`,
        `ServerFull`, `Unavailable`, `NotReplicated`.
        """
        return self.run(self.flows.schedule(tasks, at, after, How(again, group, priority, improve), durable))

    # ---- leases

    def claim(
        self, n: int = 1, *, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0
    ) -> list[Lease]:
        """Lease up to `n` ready tasks (500 at most) for `timeout` seconds; wait up to `wait` seconds for the first.

        Gives an empty list when nothing is ready or the queue is paused. Expired and due tasks are made ready first.
        Raises `InvalidInput`, `Unavailable`, and `NotReplicated` on a durable queue whose replicas do not confirm the
        leases in time: then the tasks have been given back.
        """
        return self._claim(self.flows.claim(n, timeout, max_runtime, wait))

    @overload
    def extend(self, lease: Lease, timeout: float | None = None) -> Lease: ...
    @overload
    def extend(self, lease: Iterable[Lease], timeout: float | None = None) -> Outcome: ...
    def extend(self, lease: Lease | Iterable[Lease], timeout: float | None = None) -> Lease | Outcome:
        """Let leases run for `timeout` seconds from now; also one that ran out, if nobody has taken the task back yet.

        For one lease: gives the lease with its new deadline, or raises `LeaseLost`. For many: gives an answer for each,
        `OK`, `LOST`, or `MAX_RUNTIME` if the lease may not be extended any more.
        """
        return self.run(self.flows.extend(lease, timeout))

    def keeper(self, on_lost: OnLost | None = None, *, concurrency: int = 1) -> Keeper:
        """Make a keeper, which extends all leases that it holds, each third of `timeout`, until they are removed.

        `with queue.keeper() as keeper` (for an `AsyncQueue`: `async with`), then `keeper.add(lease)` after a claim; an
        `ack`, `fail` or `release` of this queue object takes the lease out, and `keeper.remove(lease)` does so without
        an end; all take any number of leases. When a lease is lost, the keeper lets go of it and calls
        `on_lost(lease, answer)`, a plain function: the answer is `LOST` or `MAX_RUNTIME`. A `Queue` has a thread for
        this, which calls `on_lost`, too; an `AsyncQueue` has an asyncio task. In a forked process a keeper begins
        anew, with no leases. `workers` shows the program as a worker, with `concurrency`, the number of leases that the
        keeper holds, and the counts `keeper.acked` and `keeper.failed`, which the program may raise. One keeper for
        each queue object is enough.
        """
        return self._keep(Keeper(self, on_lost, concurrency))

    @overload
    def ack(
        self, lease: Lease, put: Tasks | None = None, *, again_in: float | None = None, payload: Payload = None
    ) -> Answer: ...
    @overload
    def ack(self, lease: Iterable[Lease], put: None = None, *, again_in: float | None = None) -> Outcome: ...
    def ack(
        self,
        lease: Lease | Iterable[Lease],
        put: Tasks | None = None,
        *,
        again_in: float | None = None,
        payload: Payload = None,
    ) -> Answer | Outcome:
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
        return self._end(lease, lambda ended: self.flows.ack(ended, put, again_in, payload))

    @overload
    def release(self, lease: Lease, delay: float = 0.0, *, block_host: float = 0.0) -> Answer: ...
    @overload
    def release(self, lease: Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0) -> Outcome: ...
    def release(
        self, lease: Lease | Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0
    ) -> Answer | Outcome:
        """Give leases back; their tasks are ready at once, or after `delay` seconds. Answers as `ack` does.

        A release does not count as an attempt. On a polite queue, `block_host` also keeps all workers from the hosts of
        these tasks for that many seconds, in the same step.
        """
        return self._end(lease, lambda ended: self.flows.release(ended, delay, block_host))

    @overload
    def fail(
        self, lease: Lease, error: BaseException | str, *, retry_in: float | None = None, give_up: bool = False
    ) -> Answer: ...
    @overload
    def fail(
        self,
        lease: Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Outcome: ...
    def fail(
        self,
        lease: Lease | Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Answer | Outcome:
        """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as the policy says.

        `error` is kept with the task, at most 4 KiB of it. Answers as `ack` does.
        """
        return self._end(lease, lambda ended: self.flows.fail(ended, error, retry_in, give_up))

    def note(self, lease: Lease, done: float, total: float | None = None, text: str = "") -> Answer:
        """Note how far the work on a task is, and a text of at most 200 bytes; `inspect` shows it until the lease ends.

        Gives `OK`, or `CANCELLED` if somebody has cancelled the task. Raises `LeaseLost` if the lease is lost.
        """
        return self.run(self.flows.note(lease, done, total, text))

    def pull(self, n: int = 1) -> list[Task]:
        """Take up to `n` tasks (500 at most) without a lease; they count as done at once.

        This is at most once: if you die, the tasks are lost. One call brings about 4 MiB of payloads, so fewer tasks
        when their payloads are large, and in a sharded queue the tasks of one shard; no task comes only when no task is
        ready.

        Raises `Unavailable` when the reply was lost; its tasks are not given again. Raises `InvalidInput` on a durable
        queue, because a failover may bring tasks back that have no lease.
        """
        return self.run(self.flows.pull(n))

    # ---- the cleaner's

    def requeue_expired(self, n: int = 200) -> int:
        """Take back up to `n` tasks (or `n` of each shard) whose lease ran out; give their number.

        Any number of processes may do this.
        """
        return self.run(self.flows.requeue_expired(n))

    def promote_due(self, n: int = 500) -> int:
        """Make up to `n` scheduled tasks (or `n` of each shard) ready whose time has come; give their number."""
        return self.run(self.flows.promote_due(n))

    def prune(self, n: int = 500) -> int:
        """Drop up to `n` done tasks (or `n` of each shard) that `keep_done` does not keep; give their number."""
        return self.run(self.flows.prune(n))

    # ---- the operator's

    def retry_failed(self, *tasks: Tasks, all: bool = False, cancelled: bool = False) -> int:
        """Make failed tasks ready again with a clean record: these, or with `all` every failed task; give their number.

        Of all, those that somebody has cancelled stay where they are, but for `cancelled=True`.
        Raises `InvalidInput` when no tasks are named and `all` is not given, and when both are.
        """
        return self.run(self.flows.retry_failed(tasks, all, cancelled))

    def forget(self, *tasks: Tasks) -> Outcome:
        """Remove tasks from every state. A running task loses its lease. Gives the state in which each task was."""
        return self.run(self.flows.forget(tasks))

    def cancel(self, *tasks: Tasks, by: str | None = None) -> Outcome:
        """Cancel tasks that have not ended: none of them runs again, unless somebody retries it or puts it again.

        A task that is ready or scheduled goes to failed, and its answer is `CANCELLED`. A task in progress is marked,
        and its answer is `CANCELLING`: its worker hears of it at once, cancels the handler (a handler that is no
        coroutine runs to its end), and the task goes to failed. If the handler has ended before, its ack or its last
        failure counts; a retry or a release does not. The error of the task says "cancelled by", and then `by`: by
        default the name of this client. The answers for other tasks are the states in which they are.
        """
        return self.run(self.flows.cancel(tasks, self.worker if by is None else by))

    def inspect(self, task: TaskId | Task) -> TaskInfo:
        """Tell all that is known of one task; `state` is None when no state holds the task."""
        return self.run(self.flows.inspect(task))

    def states(self, *tasks: Tasks) -> Outcome:
        """Give the state of each task, any number of them; `UNKNOWN` for a task in no state.

        Each 500 of them, in a sharded queue those of one shard, are looked at in one moment.
        `outcome["https://example.com/"]` is the state of one task, `outcome.items()` gives pairs of id and state, and
        `outcome.counts()` the number of tasks in each state.
        """
        return self.run(self.flows.states(tasks))

    def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Page:
        """Read a page of a state, about `n` entries: leases by deadline, scheduled by due time, sets in no order.

        A sharded queue is read shard by shard.
        Raises `InvalidInput` for done tasks if the queue has keep_done="compact": it keeps no ids of them.
        """
        return self.run(self.flows.page(state, cursor, n))

    def each(self, state: State | str) -> Iterator[Entry]:
        """Go through all entries of a state, in no order, some hundred at a time.

        A task that stays in the state is given at least once; a task that moves meanwhile may be left out.
        Raises `InvalidInput` as `list` does.
        """
        cursor = reads.START
        while cursor is not None:
            found, cursor = self.run(self.flows.entries(state, cursor))
            yield from found

    def export(self, *states: State | str) -> Iterator[dict[str, Any]]:
        """Go through all tasks of some states, or of all, in no order: each as a dict, such as pandas makes tables of.

        A dict has task, state, due, acked, failures, crashes, error, error_at, payload, group, priority and until; what
        a task does not have is None. A task that moves meanwhile may be left out, or come twice: `timeoutq export` has
        each task once. A queue with keep_done="compact" has no ids of its done tasks: they are left out, and raise
        `InvalidInput` if they are named.
        """
        for state in self.flows.exported(states):
            cursor = reads.START
            while cursor is not None:
                found, cursor = self.run(self.flows.rows(state, cursor))
                yield from found

    def stats(self) -> Stats:
        """Count all states, read counters and settings, at one moment; of a sharded queue, each shard at its own.

        `shards` has the same of each shard.
        """
        return self.run(self.flows.stats())

    def workers(self) -> Found[WorkerInfo]:
        """Tell which workers there are: the 500 whose signs of life are the newest."""
        return self.run(self.flows.workers())

    @overload
    def history(self, by: None = None) -> Found[Sample]: ...
    @overload
    def history(self, by: Literal["minute", "hour"]) -> Found[Period]: ...
    def history(self, by: Literal["minute", "hour"] | None = None) -> Found[Sample] | Found[Period]:
        """Give the counters of the last twenty minutes: about one sample per ten seconds, the oldest first.

        Workers and cleaners take the samples; the counters of now are `stats().sample`.

        With `by="minute"`, give the minutes of the last day, with `by="hour"` the hours of the last 90 days, the oldest
        first, up to now: how many tasks each state had when the minute began, and what happened in it. Workers and
        cleaners note this. A minute in which none was running has None in place of counts, and what happened then
        counts in the minute before; what happened before the first minute counts in the first one. So what happened in
        all periods adds up to the counters of `stats()`, until the oldest periods are removed.
        """
        return self.run(self.flows.history(by))

    def errors(self, n: int = 10) -> Found[Failure]:
        """Give the last errors, newest first, 50 at most."""
        return self.run(self.flows.errors(n))

    def pause(self) -> None:
        """Stop giving out tasks; tasks that have a lease are finished."""
        self.run(self.flows.pause())

    def resume(self) -> None:
        """Give out tasks again."""
        self.run(self.flows.resume())

    def configure(
        self,
        *,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | Literal["off"] | None = None,
        durable: int | None = None,
        events: int | str | None = None,
        level: Literal["all", "ends", "off"] | None = None,
    ) -> None:
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
        self.run(self.flows.configure(keep_done, max_crashes, politeness, durable, events, level))

    def exists(self) -> bool:
        """Say whether anything was put to the queue, or set for it, since the queue was last purged.

        A queue does not exist only because a worker or a cleaner waits there.
        """
        return self.run(self.flows.exists())

    def drained(self, before: float | datetime | None = None) -> bool:
        """Say whether nothing is ready, held, scheduled (before a time, if one is given), or waiting for a host's turn.

        This is one atomic answer; for a sharded queue it is as exact, though the shards are asked one by one. A task
        that waits because its host's budget is used up does not count. A queue to which nothing was put is drained,
        too: `exists` tells a mistyped name from a queue that is done.
        """
        return self.run(self.flows.drained(before))

    def wait_drained(self, timeout: float | None = None, before: float | datetime | None = None) -> bool:
        """Wait until the queue is drained (see `drained`), for `timeout` seconds at most; say whether it is."""
        return self.run(self.flows.wait_drained(timeout, before))

    def why(self, task: TaskId | Task) -> Reason:
        """Say why a task is not being worked on now, or who works on it."""
        return self.run(self.flows.why(task))

    def purge(self) -> None:
        """Remove the queue with all its keys. Workers that hold leases lose them."""
        self.run(self.flows.purge())

    def server(self) -> dict[str, Any]:
        """Give what the command INFO says about the server."""
        return self.run(self.flows.server())

    # ---- rooms

    @property
    def hosts(self) -> Hosts:
        """The hosts of a polite queue: `list`, `each` and `inspect` look; `set`, `block`, `unblock` and `ban` change.

        For example `queue.hosts.block("a.example", for_=60)`.
        """
        return Hosts(self, self.flows.hosts)

    @property
    def results(self) -> Results:
        """How tasks have ended: `look` tells how, with their results, and `wait` waits until they have.

        For example `queue.results.wait("https://example.com/", timeout=10)`.
        """
        return Results(self, self.flows.results, self._waits)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the queue: `set`, `move`, `pause`, `resume` and `cancel` change, `list` and `get` look.

        For example `queue.schedules.set("news", "https://a.example/news", cron="0 7 * * *", tz="Europe/Berlin")`.
        """
        return Schedules(self, self.flows.schedules)

    @property
    def batches(self) -> Batches:
        """The batches of the queue: `put` and `seal` make them; `look`, `list` and `members` look; `forget` drops one.

        For example `queue.batches.put("b7", *urls)`, and then `queue.batches.seal("b7", "report of b7")`.
        """
        return Batches(self, self.flows.batches)

    @property
    def events(self) -> Events:
        """The event log of the queue: `list` reads a page of it, and `follow` goes through what comes.

        For example `queue.events.list(task="https://a.example/")`, after `queue.configure(events="64MB")`.
        """
        return Events(self, self.flows.events)

    @property
    def failures(self) -> Failures:
        """The failed tasks, grouped by kind: `list` and `tasks` look; `retry` and `forget` move all tasks of a kind.

        For example `queue.failures.retry(queue.failures.list()[0])`.
        """
        return Failures(self, self.flows.failures)


class Queue(Verbs):
    """A queue, for code that blocks. Safe to share between threads; in a forked process it becomes a new client.

    put, schedule                                        tasks in
    claim, extend, keeper, ack, release, fail, pull      leases, and tasks without one
    note                                                 how far the work on a lease is
    requeue_expired, promote_due, prune                  what cleaners do
    states, inspect, why, list, each, export             look at tasks
    stats, workers, history, errors, server              look at the queue
    exists, drained, wait_drained                        ask the queue
    pause, resume, configure                             change the queue
    retry_failed, cancel, forget, purge                  move or remove tasks
    hosts                                                the room of the hosts of a polite queue
    results                                              the room of the results: how tasks have ended
    schedules                                            the room of the schedules: tasks put again and again
    batches                                              the room of the batches: tasks counted together
    events                                               the room of the event log: what moved, and by whom
    failures                                             the room of the failures: failed tasks by kind
    """
