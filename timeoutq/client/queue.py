"""`Queue` and `AsyncQueue`: the two faces of one queue, whose methods are made of `QueueFlows` in `methods.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.keeper import AsyncKeeper, Keeper, OnLost
from timeoutq.client.methods import QueueFlows
from timeoutq.rooms.batches import AsyncBatches, Batches
from timeoutq.rooms.events import AsyncEvents, Events
from timeoutq.rooms.failures import AsyncFailures, Failures
from timeoutq.rooms.hosts import AsyncHosts, Hosts
from timeoutq.rooms.results import AsyncResults, Results
from timeoutq.rooms.schedules import AsyncSchedules, Schedules
from timeoutq.verbs.faces import aiterating, awaiting, blocking, iterating

R = TypeVar("R")

_ROOMS = {
    "hosts": 'The hosts of a polite queue, such as `queue.hosts.block("a.example", for_=60)`.',
    "results": 'How tasks have ended, such as `queue.results.wait("https://example.com/", timeout=10)`.',
    "schedules": 'The schedules of the queue, such as `queue.schedules.set("https://a.example/news", every=60)`.',
    "batches": (
        'Tasks counted together: `queue.batches.put("b7", *urls)`, then `queue.batches.seal("b7", "report of b7")`.'
    ),
    "events": 'The event log, such as `queue.events.list(task="https://a.example/")`.',
    "failures": "The failed tasks, grouped by kind, such as `queue.failures.retry(queue.failures.list()[0])`.",
}


def _room(name: str, kind: Callable[[Any, Any], R]) -> R:
    """Make the property that gives a room, of the queue and the flows about the room."""
    made: Any = property(lambda queue: kind(queue, getattr(queue.flows, name)), doc=_ROOMS[name])
    return made  # type: ignore[no-any-return]  # what the property gives


class Queue(Driver):
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

    put = blocking(QueueFlows.put)
    schedule = blocking(QueueFlows.schedule)

    claim = blocking(QueueFlows.claim)
    extend = blocking(QueueFlows.extend)
    ack = blocking(QueueFlows.ack)
    release = blocking(QueueFlows.release)
    fail = blocking(QueueFlows.fail)
    note = blocking(QueueFlows.note)
    pull = blocking(QueueFlows.pull)

    requeue_expired = blocking(QueueFlows.requeue_expired)
    promote_due = blocking(QueueFlows.promote_due)
    prune = blocking(QueueFlows.prune)

    retry_failed = blocking(QueueFlows.retry_failed)
    forget = blocking(QueueFlows.forget)
    cancel = blocking(QueueFlows.cancel)
    inspect = blocking(QueueFlows.inspect)
    states = blocking(QueueFlows.states)
    list = blocking(QueueFlows.list)
    each = iterating(QueueFlows.each)
    export = iterating(QueueFlows.export)
    stats = blocking(QueueFlows.stats)
    workers = blocking(QueueFlows.workers)
    history = blocking(QueueFlows.history)
    errors = blocking(QueueFlows.errors)
    pause = blocking(QueueFlows.pause)
    resume = blocking(QueueFlows.resume)
    configure = blocking(QueueFlows.configure)
    exists = blocking(QueueFlows.exists)
    drained = blocking(QueueFlows.drained)
    wait_drained = blocking(QueueFlows.wait_drained)
    why = blocking(QueueFlows.why)
    purge = blocking(QueueFlows.purge)
    server = blocking(QueueFlows.server)

    hosts = _room("hosts", Hosts)
    results = _room("results", Results)
    schedules = _room("schedules", Schedules)
    batches = _room("batches", Batches)
    events = _room("events", Events)
    failures = _room("failures", Failures)

    def keeper(self, on_lost: OnLost | None = None, *, concurrency: int = 1) -> Keeper:
        """Make a keeper, which extends all leases that it holds, each third of `timeout`, until they are removed.

        `with queue.keeper() as keeper` (for an `AsyncQueue`: `async with`), then `keeper.add(lease)` after a claim; an
        `ack`, `fail` or `release` of this queue object takes the lease out, and `keeper.remove(lease)` does so without
        an end; all take any number of leases. When a lease is lost, the keeper lets go of it and calls `on_lost`, a
        plain function, with the lease and the answer: `LOST`, `MAX_RUNTIME` or `CANCELLED`. A keeper has a thread,
        which calls `on_lost`, too; that of an `AsyncQueue` has it called in the event loop. In a forked process a
        keeper begins again, with no leases. `workers` shows the program as a worker, with `concurrency`, the number of
        leases that the keeper holds, and the counts `keeper.acked` and `keeper.failed`, which the program may raise.
        One keeper for each queue object is enough.
        """
        return self._keepers.add(Keeper(self, on_lost, concurrency, self._keepers.ending))


class AsyncQueue(AsyncDriver):
    """A queue, for asyncio: it has the methods of `Queue`. Each event loop that uses it has connections of its own."""

    blocking = Queue

    put = awaiting(QueueFlows.put)
    schedule = awaiting(QueueFlows.schedule)

    claim = awaiting(QueueFlows.claim)
    extend = awaiting(QueueFlows.extend)
    ack = awaiting(QueueFlows.ack)
    release = awaiting(QueueFlows.release)
    fail = awaiting(QueueFlows.fail)
    note = awaiting(QueueFlows.note)
    pull = awaiting(QueueFlows.pull)

    requeue_expired = awaiting(QueueFlows.requeue_expired)
    promote_due = awaiting(QueueFlows.promote_due)
    prune = awaiting(QueueFlows.prune)

    retry_failed = awaiting(QueueFlows.retry_failed)
    forget = awaiting(QueueFlows.forget)
    cancel = awaiting(QueueFlows.cancel)
    inspect = awaiting(QueueFlows.inspect)
    states = awaiting(QueueFlows.states)
    list = awaiting(QueueFlows.list)
    each = aiterating(QueueFlows.each)
    export = aiterating(QueueFlows.export)
    stats = awaiting(QueueFlows.stats)
    workers = awaiting(QueueFlows.workers)
    history = awaiting(QueueFlows.history)
    errors = awaiting(QueueFlows.errors)
    pause = awaiting(QueueFlows.pause)
    resume = awaiting(QueueFlows.resume)
    configure = awaiting(QueueFlows.configure)
    exists = awaiting(QueueFlows.exists)
    drained = awaiting(QueueFlows.drained)
    wait_drained = awaiting(QueueFlows.wait_drained)
    why = awaiting(QueueFlows.why)
    purge = awaiting(QueueFlows.purge)
    server = awaiting(QueueFlows.server)

    hosts = _room("hosts", AsyncHosts)
    results = _room("results", AsyncResults)
    schedules = _room("schedules", AsyncSchedules)
    batches = _room("batches", AsyncBatches)
    events = _room("events", AsyncEvents)
    failures = _room("failures", AsyncFailures)

    def keeper(self, on_lost: OnLost | None = None, *, concurrency: int = 1) -> AsyncKeeper:
        """Make a keeper, which extends all leases that it holds until they are removed; see `Queue.keeper`."""
        return self._keepers.add(AsyncKeeper(self, on_lost, concurrency, self._keepers.ending))


class ServerClient(Queue):
    """A client that opens no queue, for code that blocks: `run` carries out flows that are about the server."""

    _opened = True


class AsyncServerClient(AsyncQueue):
    """A client that opens no queue, for asyncio: `run` carries out flows that are about the server."""

    _opened = True


@overload
def twin(queue: AsyncQueue) -> Queue: ...
@overload
def twin(queue: AsyncDriver) -> Driver: ...
def twin(queue: AsyncDriver) -> Driver:
    """Make a blocking client of the same queue and the same name, with connections of its own: for a thread."""
    return queue.another(queue.blocking)


def sibling(queue: AsyncDriver) -> AsyncDriver:
    """Make a client for asyncio of the same queue and the same name, with connections of its own."""
    return queue.another(queue.asynchronous)
