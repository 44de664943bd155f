"""What the methods of the faces do on a sharded queue: what is said here anew; all else is as on a plain queue.

In each shard, the flows are those of a plain queue. `flows.py`, `claims.py`, `ends.py`, `looking.py` and `quiet.py` say
how tasks find their shards, and how the answers of all shards become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from timeoutq.client.methods import Build, ById, QueueFlows
from timeoutq.client.shards import claims, ends, flows, gathering, looking, quiet, scheduling
from timeoutq.client.shards.events import ShardedEventFlows
from timeoutq.client.shards.results import ShardedResultFlows
from timeoutq.client.shards.root import Shards
from timeoutq.rooms.batches.flows import BatchFlows
from timeoutq.rooms.failures import FailureKind, Moved
from timeoutq.rooms.failures import flows as failures
from timeoutq.rooms.failures.flows import FailureFlows
from timeoutq.rooms.hosts.flows import HostFlows
from timeoutq.rooms.hosts.operations import Rule
from timeoutq.rooms.schedules import ScheduleInfo, SchedulePage
from timeoutq.rooms.schedules import flows as schedules
from timeoutq.rooms.schedules.definition import Definition
from timeoutq.rooms.schedules.flows import ScheduleFlows
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.counts import Stats
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import (
    Answer,
    Entry,
    Failure,
    HostInfo,
    HostPage,
    Lease,
    Outcome,
    Page,
    State,
    Task,
    TaskId,
    TaskInfo,
    Tasks,
)

if TYPE_CHECKING:
    from timeoutq.rooms.schedules.timing import Timing

T = TypeVar("T")


class ShardedHostFlows(HostFlows):
    """The flows about the hosts of a sharded queue. A host is wholly in one shard: what is about a host goes there."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def page(self, cursor: str | None, n: int) -> Flow[HostPage]:
        return looking.host_page(self._shards, cursor, n)

    def some(self, cursor: str) -> Flow[tuple[list[HostInfo], str | None]]:
        return looking.some_hosts(self._shards, cursor)

    def _ask(self, host: str, *rules: Rule) -> Flow[HostInfo]:
        return looking.one_host(self._shards, host, rules)


class ShardedScheduleFlows(ScheduleFlows):
    """The flows about the schedules of a sharded queue. Each is in the shard of its name, and so is its task."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def page(self, cursor: str | None, n: int) -> Flow[SchedulePage]:
        # a walk over all begins as one over a plain queue
        return scheduling.page(self._shards, None if cursor == reads.START else cursor, n)

    def tick(self) -> Flow[int]:
        return gathering.total(self._shards, schedules.tick)

    def _set(self, name: bytes, wanted: Definition) -> Flow[ScheduleInfo]:
        return (yield from scheduling.write(self._shards, name, wanted, "set")).info()

    def _declare(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        return scheduling.declare(self._shards, wanted)

    def _leave(self, names: Sequence[bytes]) -> Flow[None]:
        return scheduling.leave(self._shards, names)

    def _of(self, name: bytes, to: str, when: Timing | None = None) -> Flow[ScheduleInfo]:
        return scheduling.home(self._shards, name, lambda talk: schedules.change(talk, name, to, when))

    def _cancel(self, name: bytes) -> Flow[bool]:
        return scheduling.home(self._shards, name, lambda talk: schedules.cancel(talk, name))

    def _get(self, name: bytes) -> Flow[ScheduleInfo | None]:
        return scheduling.home(self._shards, name, lambda talk: schedules.one(talk, name))


class ShardedBatchFlows(BatchFlows):
    """A sharded queue has no batches: one script has to see the last task end and make the callback ready."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._name = shards.name

    @property
    def talk(self) -> Talk:
        raise InvalidInput(
            f"queue {self._name!r} lies in several shards, and a batch has to be in one place: use batches on a queue "
            "without shards, such as one beside this queue"
        )


class ShardedFailureFlows(FailureFlows):
    """The flows about the failures of a sharded queue: a kind may have tasks in every shard."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def _kinds(self, n: int) -> Flow[list[FailureKind]]:
        counts = Counter[bytes]()
        for part in (yield from gathering.each(self._shards, failures.counts)):
            counts.update(part)
        wanted = set(failures.most(counts, n))
        parts = yield from gathering.each(self._shards, lambda talk: failures.about(talk, wanted))
        return failures.merged(kind for part in parts for kind in part)

    def _page(self, kind: str, cursor: str | None, n: int) -> Flow[Page]:
        return looking.of_kind(self._shards, kind, cursor, n)

    def _through(self, verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
        return failures.in_turn(self._shards.talks, verb, kind, before, at_most)


class ShardedFlows(QueueFlows):
    """The flows of a sharded queue. `talk` is the talk with the root: it knows the workers, and no task."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards
        self.hosts = ShardedHostFlows(shards)
        self.schedules = ShardedScheduleFlows(shards)
        self.results = ShardedResultFlows(shards)
        self.batches = ShardedBatchFlows(shards)
        self.events = ShardedEventFlows(shards)
        self.failures = ShardedFailureFlows(shards)

    def opening(self, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
        return flows.opening(self._shards, settings, allow_eviction)

    def put(self, tasks: tuple[Tasks, ...], how: How, durable: int) -> Flow[Outcome]:
        return flows.put(self._shards, tasks, how, durable)

    def schedule(
        self,
        tasks: tuple[Tasks, ...],
        at: float | datetime | None,
        after: float | None,
        how: How,
        durable: int,
    ) -> Flow[Outcome]:
        return flows.later(self._shards, tasks, at, after, how, durable)

    def claim(self, n: int, timeout: float | None, max_runtime: float | None, wait: float) -> claims.Claim:
        return claims.Claim(self._shards, n, timeout, max_runtime, wait)

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        return ends.extension(self._shards, leases)

    def inspect(self, task: TaskId | Task) -> Flow[TaskInfo]:
        return looking.inspect(self._shards, task)

    def why(self, task: TaskId | Task) -> Flow[Reason]:
        return looking.explain(self._shards, task)

    def page(self, state: State | str, cursor: str | None, n: int) -> Flow[Page]:
        return looking.page(self._shards, state, cursor, n)

    def entries(self, state: State | str, cursor: str) -> Flow[tuple[list[Entry], str | None]]:
        return looking.entries(self._shards, state, cursor)

    def rows(self, state: tuple[State, bool], cursor: str) -> Flow[tuple[list[dict[str, Any]], str | None]]:
        return looking.rows(self._shards, *state, cursor)

    def stats(self) -> Flow[Stats]:
        return looking.stats(self._shards)

    def history(self, by: str | None = None) -> Any:
        return looking.history(self._shards) if by is None else looking.periods(self._shards, reads.by_word(by))

    def errors(self, n: int) -> Flow[list[Failure]]:
        return looking.errors(self._shards, n)

    def exists(self) -> Flow[bool]:
        return looking.exists(self._shards)

    def purge(self) -> Flow[None]:
        return flows.purge(self._shards)

    # ---- where the flows of `QueueFlows` go

    def _of(self, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        return ends.in_its_shard(self._shards, lease, flow)

    def _extend(self, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
        return ends.extend(self._shards, leases, timeout_ms)

    def _end(self, given: object, leases: Sequence[Lease], build: Build) -> Flow[Answer | Outcome]:
        return ends.end(self._shards, given, leases, build)

    def _ack_put(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
        return ends.ack_put(self._shards, lease, found, again_ms, payload)

    def _pull(self, n: int) -> Flow[list[Task]]:
        return claims.pull(self._shards, n)

    def _sum(self, flow: Callable[..., Flow[int]], *words: int) -> Flow[int]:
        return gathering.total(self._shards, lambda talk: flow(talk, *words))

    def _by_id(self, tasks: tuple[Tasks, ...], build: ById, *, everywhere: bool) -> Flow[Outcome]:
        return flows.by_id(self._shards, arguments.ids(tasks), build, everywhere=everywhere)

    def _configure(self, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
        return flows.configure(self._shards, settings, converts)

    def _drained(self, before_ms: int | None) -> Flow[bool]:
        return quiet.drained(self._shards, before_ms)
