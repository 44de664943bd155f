"""The flows of a sharded queue, in which they differ from those of a plain queue."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from timeoutq.client.methods import Build, ById, Ending, Found, QueueFlows
from timeoutq.client.shards import claims, flows, gathering, looking, quiet, scheduling
from timeoutq.client.shards.root import Shards
from timeoutq.rooms import failures, results
from timeoutq.rooms.batches import BatchFlows
from timeoutq.rooms.events import EventFlows
from timeoutq.rooms.failures import FailureFlows, FailureKind, Moved
from timeoutq.rooms.results import ResultFlows
from timeoutq.server.calls import BATCH
from timeoutq.verbs import reads
from timeoutq.verbs.operations import one_id
from timeoutq.verbs.sending import Flow, Sleep, Talk, answer, ask
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.counts import Period, Sample, Stats, summed
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import (
    Answer,
    Ended,
    Entry,
    Failure,
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
    pass

T = TypeVar("T")


class ShardedBatchFlows(BatchFlows):
    """A sharded queue has no batches: one script has to see the last task end and make the callback ready."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._name = shards.name

    @property
    def talk(self) -> Talk:
        raise InvalidInput(
            f"queue {self._name!r} lies in several shards, and a batch has to be in one place: use batches on another "
            "queue, one without shards"
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
        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[Entry], str | None]]:
            return failures.tasks(talk, kind, start, most)

        # the last one that was given up first
        rows = looking.in_order(self._shards, cursor, n, read, lambda entry: -(entry.at or 0.0))
        return Page(State.FAILED, *(yield from rows))

    def _through(self, verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
        return failures.in_turn(self._shards.talks, verb, kind, before, at_most)


FOLLOW = 0.2
"""Seconds after which a reader that follows the logs looks at all again: no command waits for keys of many slots."""


class ShardedEventFlows(EventFlows):
    """The flows about the event logs of a sharded queue."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def wait(self, known: Sequence[str], seconds: float) -> Flow[None]:
        yield Sleep(min(FOLLOW, seconds))

    def _talks(self) -> Sequence[tuple[int | None, Talk]]:
        return list(enumerate(self._shards.talks))

    def _all(self, flows: Sequence[Flow[T]]) -> Flow[list[T]]:
        return gathering.whole(self._shards, (yield from gathering.of_shards(dict(enumerate(flows)))))


ROUND = 0.5
"""Seconds for which a wait listens to one shard, before it asks the others: no two shards have one list in common."""


class ShardedResultFlows(ResultFlows):
    """The flows about the results of a sharded queue."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def look(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        shards = self._shards
        found: list[Ended | None] = [None] * len(ids)
        yield from self._look(ids, gathering.places_of(map(shards.of_task, ids)), client, found)
        gone = [at for at, one in enumerate(found) if one is not None and one.is_gone]
        if gone and (yield from shards.may_be_elsewhere()):
            home = {at: shards.of_task(ids[at]) for at in gone}
            others = {shard: [at for at in gone if home[at] != shard] for shard in range(len(shards.talks))}
            yield from self._look(ids, {shard: places for shard, places in others.items() if places}, client, found)
        return found

    def _look(
        self, ids: Sequence[bytes], places: Mapping[int, Sequence[int]], client: str, found: list[Ended | None]
    ) -> Flow[None]:
        # notes in `found` the answers of the shards; a shard that knows a task goes before one that does not
        shards = self._shards
        parts = yield from gathering.of_shards(
            {
                shard: results.look(shards.talks[shard], [ids[at] for at in part], client)
                for shard, part in places.items()
            }
        )
        if not client or all(isinstance(result, TimeoutqError) for result in parts.values()):
            gathering.whole(shards, parts)
        for shard, result in parts.items():
            if isinstance(result, TimeoutqError):
                result = [None] * len(places[shard])  # who waits asks a silent shard again
            for at, ended in zip(places[shard], result, strict=True):
                if ended is None or not ended.is_gone or shard == shards.of_task(ids[at]):
                    found[at] = ended

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        shards = self._shards
        if shards.record.grouped:
            talks = list(shards.talks)
        else:
            talks = [shards.talks[shard] for shard in {shards.of_task(id) for id in ids}]
        one = random.choice(talks or shards.talks)  # noqa: S311  # not a secret
        heard = yield from results.hear(one, client, seconds if len(talks) == 1 else min(seconds, ROUND))
        others = [_pop(talk, client) for talk in talks if talk is not one]
        if not others:
            return heard
        parts = yield from gathering.of_shards(dict(enumerate(others)))
        for part in parts.values():
            if isinstance(part, TimeoutqError):
                raise part
        return [*heard, *chain.from_iterable(gathering.known(parts))]


def _pop(talk: Talk, client: str) -> Flow[list[bytes]]:
    (popped,) = yield from ask(talk, [("LPOP", results.answers_key(talk.operations, client), BATCH)])
    return popped or []


class ShardedFlows(QueueFlows):
    """The flows of a sharded queue. `talk` is the talk with the root: it knows the workers, and no task."""

    def __init__(self, shards: Shards, ending: Ending) -> None:
        super().__init__(shards.root, ending)
        self._shards = shards
        self.hosts = looking.ShardedHostFlows(shards)
        self.schedules = scheduling.ShardedScheduleFlows(shards)
        self.results = ShardedResultFlows(shards)
        self.batches = ShardedBatchFlows(shards)
        self.events = ShardedEventFlows(shards)
        self.failures = ShardedFailureFlows(shards)

    def opening(self, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
        return flows.opening(self._shards, settings, allow_eviction)

    def put_as(self, tasks: tuple[Tasks, ...], how: How, durable: int = 0) -> Flow[Outcome]:
        return flows.put(self._shards, tasks, how, durable)

    def schedule_as(
        self,
        tasks: tuple[Tasks, ...],
        at: float | datetime | None,
        after: float | None,
        how: How,
        durable: int = 0,
    ) -> Flow[Outcome]:
        return flows.put(self._shards, tasks, how, durable, arguments.due(at, after))

    def claim(
        self, n: int = 1, *, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0
    ) -> claims.Claim:
        return claims.Claim(self._shards, n, timeout, max_runtime, wait)

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        timeout_ms = self.talk.terms.timeout_ms  # meanwhile the leases of other shards run
        return flows.extend(self._shards, leases, timeout_ms, within=max(timeout_ms / 3000, 1.0))

    def inspect(self, task: TaskId | Task) -> Flow[TaskInfo]:
        id = one_id(task)

        def inspect(talk: Talk) -> Flow[TaskInfo]:
            return answer(talk, talk.operations.inspect(id))

        return looking.first_known(self._shards, id, inspect, lambda info: info.state)

    def why(self, task: TaskId | Task) -> Flow[Reason]:
        return looking.explain(self._shards, one_id(task))

    def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Flow[Page]:
        return looking.page(self._shards, arguments.state(state), cursor, arguments.count(n, high=1000))

    def stats(self) -> Flow[Stats]:
        return looking.stats(self._shards)

    def exists(self) -> Flow[bool]:
        return (yield from self._shards.look()) is not None

    def purge(self) -> Flow[None]:
        return flows.purge(self._shards)

    # ---- where the flows of `QueueFlows` go

    def _of(self, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        shards = self._shards
        return gathering.late(lambda: flow(shards.talks[shards.of_lease(lease)]))

    def _extend(self, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
        return flows.extend(self._shards, leases, timeout_ms)

    def _end_many(self, leases: Sequence[Lease], build: Build) -> Flow[Outcome]:
        return gathering.outcome_of(self._shards, *(yield from flows.send(self._shards, leases, build)))

    def _ack_put(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
        return flows.ack_put(self._shards, lease, found, again_ms, payload)

    def _pull(self, n: int) -> Flow[Found[Task]]:
        return claims.pull(self._shards, n)

    def _sum(self, flow: Callable[..., Flow[int]], *words: int) -> Flow[int]:
        return gathering.total(self._shards, lambda talk: flow(talk, *words))

    def _by_id(self, tasks: tuple[Tasks, ...], build: ById, *, everywhere: bool) -> Flow[Outcome]:
        return flows.by_id(self._shards, arguments.ids(tasks), build, everywhere=everywhere)

    def _entries(self, state: State, cursor: str) -> Flow[tuple[Found[Entry], str | None]]:
        return looking.walk(self._shards, cursor, lambda talk, start: reads.entries(talk, state, start))

    def _rows(self, state: State, named: bool, cursor: str) -> Flow[tuple[Found[dict[str, Any]], str | None]]:
        return looking.walk(self._shards, cursor, lambda talk, start: reads.rows(talk, state, named, start))

    def _history(self) -> Flow[Found[Sample]]:
        return looking.added_up((yield from gathering.each(self._shards, reads.history)))

    def _periods(self, by: str) -> Flow[Found[Period]]:
        return summed((yield from gathering.each(self._shards, lambda talk: reads.periods(talk, by))))

    def _errors(self, n: int) -> Flow[Found[Failure]]:
        parts = yield from gathering.each(self._shards, lambda talk: reads.errors(talk, n))
        return sorted(chain.from_iterable(parts), key=lambda one: one.at, reverse=True)[:n]

    def _configure(self, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
        return flows.configure(self._shards, settings, converts)

    def _drained(self, before_ms: int | None) -> Flow[bool]:
        return quiet.drained(self._shards, before_ms)
