"""The flows of a sharded queue, in which they differ from those of a plain queue. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from timeoutq.client.keeper import Keepers
from timeoutq.client.methods import Build, ById, Found, QueueFlows, Sent, part_of, picked
from timeoutq.client.shards import gathering, looking, rooms
from timeoutq.client.shards.claims import Claim, pull
from timeoutq.client.shards.gathering import Places, each, gather, outcome_of, places_of
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.route import route
from timeoutq.client.together import together
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms.events import divided
from timeoutq.server.calls import Call
from timeoutq.verbs import confirming, flows, reads, why
from timeoutq.verbs.operations import one_id
from timeoutq.verbs.replies import Why
from timeoutq.verbs.sending import Flow, ServerClock, Talk, answer, ask
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.counts import Stats
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.hostname import host_of
from timeoutq.words.model import (
    Answer,
    HostRecord,
    Lease,
    Outcome,
    Page,
    Record,
    State,
    Task,
    TaskId,
    Tasks,
    raw,
)

T = TypeVar("T")


class ShardedFlows(QueueFlows):
    """The flows of a sharded queue. `talk` is the talk with the root: it knows the workers, and no task."""

    def __init__(self, shards: Shards, keepers: Keepers) -> None:
        super().__init__(shards.root, keepers)
        self._shards = shards
        self.hosts = rooms.ShardedHostFlows(shards)
        self.schedules = rooms.ShardedScheduleFlows(shards)
        self.results = rooms.ShardedResultFlows(shards)
        self.batches = rooms.ShardedBatchFlows(shards)
        self.events = rooms.ShardedEventFlows(shards)
        self.failures = rooms.ShardedFailureFlows(shards)

    # ---- opening and settings

    def opening(self, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
        shards = self._shards
        yield from flows.opening(shards.root, {}, allow_eviction)
        if shards.root.server.nodes:
            places = yield from reads.primaries(shards.root)
            talks = [replace(shards.root, at=place, clock=ServerClock()) for place in places]
            met = yield from together([flows.opening(talk, {}, allow_eviction) for talk in talks])
            # a node that is away fails the ids of its own shards, and not the client
            for error in met:
                if error is not None and not isinstance(error, Unavailable):
                    raise error
        yield from shards.look()
        if shards.made and "durable" in settings and (yield from self._is_durable(int(settings["durable"]))):
            # a queue that is durable already is opened also while its replicas are away
            settings = {name: value for name, value in settings.items() if name != "durable"}
        if settings:
            yield from self._configure(settings)

    def _is_durable(self, wanted: int) -> Flow[bool]:
        talks = self._shards.talks
        looks = yield from together([ask(talk, [confirming.look(talk.operations)]) for talk in talks])
        for talk, found in zip(talks, looks, strict=True):
            if isinstance(found, TimeoutqError):
                return False
            talk.durable.read(found[0], time.monotonic())
        return all(talk.durable.replicas == wanted for talk in talks)

    def _configure(self, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
        shards = self._shards
        if shards.record.by == "id" and settings.get("politeness", settings.get("politeness?", b"off")) != b"off":
            raise InvalidInput(
                f"queue {shards.name} routes its tasks by id, so many shards have tasks of one host, and no shard "
                'could be polite to this host: politeness needs a queue with by="host"'
            )
        durable = int(settings.get("durable", 0))
        if durable:  # before anything is written: neither a new record nor a part of the shards is to stay
            yield from each(shards, lambda talk: flows.find_replicas(talk, durable))
        yield from shards.make()
        if (keep_done := settings.get("keep_done", settings.get("keep_done?"))) is not None:
            yield from self._check_keep_done(is_compact=keep_done.startswith(b"compact"))
        if "events" in settings:
            settings = {**settings, "events": divided(settings["events"], len(shards.talks))}
        yield from each(shards, lambda talk: flows.configure(talk, settings, converts))

    def _check_keep_done(self, *, is_compact: bool) -> Flow[None]:
        # each shard refuses for itself; without this look, the shards that have no tasks would switch all the same
        parts = yield from each(self._shards, lambda talk: answer(talk, talk.operations.stats()))
        for part in parts:
            was = part.settings.get("keep_done") == "compact"
            if is_compact and not was and part.known:
                raise InvalidInput(
                    f'keep_done="compact" can be set only while a queue has no tasks, and queue {self._shards.name} '
                    f"has {sum(one.known for one in parts)}, done ones counted: set it on a new queue, then bring the "
                    "tasks there (timeoutq export OLD | timeoutq import NEW); or purge this queue first"
                )
            if was and not is_compact and part.done:
                raise InvalidInput(
                    f"queue {self._shards.name} keeps {sum(one.done for one in parts)} done tasks as fingerprints, "
                    'which no other keep_done can read: keep_done stays "compact" until the queue is purged; for '
                    "another keep_done use a new queue"
                )

    def exists(self) -> Flow[bool]:
        return (yield from self._shards.look()) is not None

    def purge(self) -> Flow[None]:
        # the shards, and when all of them are gone, the record
        shards = self._shards
        yield from each(shards, flows.purge)
        yield from flows.purge(shards.root)
        yield from shards.unmake()
        # a client may have put tasks into a shard meanwhile: then the queue is there again, with as many shards
        if any((yield from together([reads.exists(talk) for talk in shards.talks]))):
            yield from shards.make(grouped=shards.record.grouped)

    # ---- tasks in

    def _bring(self, found: TaskList, how: How, build: Build, replicas: int) -> Flow[Outcome]:
        check_group(self._shards, how.group)
        check_priorities(found, everything=how.priority is not None, grouped=how.group is not None)
        # a function has given its groups to the tasks already
        group = None if how.group is None or callable(how.group) else arguments.host(how.group)
        return bring(self._shards, found, group, build, replicas)

    # ---- tasks by id

    def _by_id(self, tasks: tuple[Tasks, ...], build: ById, *, everywhere: bool) -> Flow[Outcome]:
        return self._by_ids(arguments.ids(tasks), build, everywhere)

    def _by_ids(self, ids: Sequence[bytes], build: ById, everywhere: bool) -> Flow[Outcome]:
        # an id that was put with a group may be elsewhere: `everywhere` sends all ids to all shards then; else other
        # shards are asked for the ids that are unknown at home
        shards = self._shards
        if everywhere and (yield from shards.may_be_elsewhere()):
            return (yield from self._ask(ids, dict.fromkeys(range(len(shards.talks)), range(len(ids))), build))
        outcome = yield from self._ask(ids, places_of(map(shards.of_task, ids)), build)
        unknown = [at for at, answer in enumerate(outcome) if answer is Answer.UNKNOWN]
        if everywhere or not unknown or not (yield from shards.may_be_elsewhere()):
            return outcome
        more = yield from self._ask(ids, shards.elsewhere(ids, unknown), build)
        codes = zip(outcome.codes, more.codes, strict=True)
        return Outcome(ids, bytes(there if here == b"u"[0] else here for here, there in codes))

    def _ask(self, ids: Sequence[bytes], places: Places, build: ById) -> Flow[Outcome]:
        results = yield from gather(
            self._shards, places, lambda talk, chosen: build(talk, ([ids[at] for at in chosen],))
        )
        return outcome_of(self._shards, ids, places, results)

    def _knowing(self, id: bytes, flow: Callable[[Talk], Flow[T]], knows: Callable[[T], object]) -> Flow[T]:
        # the answer of the shard of a task, or of another shard, if only that one knows the task
        shards = self._shards
        home = shards.of_task(id)
        found = yield from flow(shards.talks[home])
        if knows(found) or not (yield from shards.may_be_elsewhere()):
            return found
        results = yield from gathering.of_shards({at: flow(talk) for at, talk in enumerate(shards.talks) if at != home})
        for result in results.values():
            if not isinstance(result, TimeoutqError) and knows(result):
                return result
        gathering.whole(shards, results)
        return found

    def why(self, task: TaskId | Task) -> Flow[Reason]:
        return self._why(one_id(task))

    def _why(self, id: bytes) -> Flow[Reason]:
        # the signs of life of workers are in the root, where no shard sees them
        root = yield from answer(self.talk, self.talk.operations.stats())

        def ask_why(talk: Talk) -> Flow[Reason]:
            call = talk.operations.why(id)

            def read(reply: Any) -> Why:
                return replace(call.read(reply), workers=root.workers)

            return why.explain_call(talk, replace(call, read=read))

        return (yield from self._knowing(id, ask_why, lambda reason: reason.code != "unknown"))

    # ---- leases: each in its own shard, those of many shards at the same time

    def _claim(self, n: int, timeout_ms: int, max_runtime_ms: int, wait: float, sent: Sent) -> Flow[Found[Lease]]:
        return Claim(self._shards, n, timeout_ms, max_runtime_ms, wait, sent).flow()

    def _pull(self, n: int) -> Flow[Found[Task]]:
        return pull(self._shards, n)

    def _of(self, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        return gathering.late(lambda: flow(self._shards.talk_of(lease)))

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        timeout_ms = self.talk.terms.timeout_ms  # meanwhile the leases of other shards run
        return self._extend(leases, timeout_ms, max(timeout_ms / 3000, 1.0))

    def _extend(self, leases: Sequence[Lease], timeout_ms: int, within: float | None = None) -> Flow[Outcome]:
        # with `within`, a silent shard is asked for so many seconds, and its leases are `UNANSWERED`
        def build(talk: Talk, at: Sequence[int]) -> Found[Call[Any]]:
            return talk.operations.extend(picked(leases, at), timeout_ms)

        ids, places, results = yield from self._send(leases, build, within)
        found: dict[int, Any] = {
            shard: result if isinstance(result, TimeoutqError) else [one[1] for one in result]
            for shard, result in results.items()
        }
        if within is None or all(isinstance(result, TimeoutqError) for result in found.values()):
            return outcome_of(self._shards, ids, places, found)
        return gathering.merged(ids, places, found)

    def _end_many(self, leases: Sequence[Lease], build: Build) -> Flow[Outcome]:
        return outcome_of(self._shards, *(yield from self._send(leases, build)))

    def _send(
        self, leases: Sequence[Lease], build: Build, within: float | None = None
    ) -> Flow[tuple[Found[bytes], Any, Any]]:
        # gives the ids of the leases, their places by shard, and the answers
        shards = self._shards
        places = places_of(map(shards.of_lease, leases))
        results = yield from gather(shards, places, build, within=within)
        return [raw(lease.task) for lease in leases], places, results

    def _ack_put(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
        # First the tasks of other shards are put, the rest with the ack, which goes when all other shards have their
        # tasks. After a crash between the two steps, these tasks are in the queue and the lease is not acked: the
        # handler runs again, and nothing is lost.
        shards = self._shards
        home = shards.of_lease(lease)
        check_priorities(found)
        places = spread(shards, found)
        foreign = sorted(at for shard, chosen in places.items() if shard != home for at in chosen)
        if found.groups:
            yield from shards.make(grouped=True)
        if foreign:
            others = found.pick(foreign)
            yield from bring(
                shards, others, None, lambda talk, at: talk.operations.put_checked(part_of(others, at), talk.nonce)
            )
        mine = found.pick(places.get(home, []))
        return (yield from flows.ack_put(shards.talks[home], lease, mine, again_ms, payload))

    # ---- of all shards

    def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Flow[Page]:
        return self._page(arguments.state(state), cursor, arguments.count(n, high=1000))

    def _page(self, state: State, cursor: str | None, n: int) -> Flow[Page]:
        def read(talk: Talk, start: str, most: int) -> looking.Rows[Any]:
            part = yield from reads.page(talk, state, start, most)
            return part.entries, part.cursor

        if state in reads.ORDERED:
            rows = looking.in_order(self._shards, cursor, n, read, lambda entry: entry.at)
        else:
            rows = looking.some(self._shards, cursor, n, read)
        return Page(state, *(yield from rows))

    def stats(self) -> Flow[Stats]:
        return looking.stats(self._shards)

    def _drained(self, before_ms: int | None) -> Flow[bool]:
        return looking.drained(self._shards, before_ms)

    def _each(self, flow: Callable[[Talk], Flow[T]], added: Callable[[Found[T]], T]) -> Flow[T]:
        return added((yield from each(self._shards, flow)))

    def _walk(
        self, cursor: str, read: Callable[[Talk, str], Flow[tuple[Found[T], str | None]]]
    ) -> Flow[tuple[Found[T], str | None]]:
        return looking.walk(self._shards, cursor, read)


def check_priorities(found: TaskList, *, everything: bool = False, grouped: bool = False) -> None:
    """Refuse a priority of a task that belongs to no host: one shard would refuse, and the others would put theirs."""
    if grouped:
        return
    for at in range(len(found.ids)) if everything else found.priorities:
        if at not in found.groups and host_of(found.ids[at]) is None:
            raise InvalidInput(
                f"task {arguments.shown(found.ids[at])} belongs to no host, so it does not wait for a turn, and a "
                "priority would mean nothing: put it with group=, or without a priority"
            )


def check_group(shards: Shards, group: object) -> None:
    """Refuse the function `domain` of the installed package: another machine may find other domains."""
    name = getattr(group, "__module__", ""), getattr(group, "__qualname__", "")
    if name == ("timeoutq.urls.domains", "domain") and shards.by != "id":
        raise InvalidInput(
            f"group=domain would bring tasks of queue {shards.name} into the wrong shards on a machine that has "
            "another version of the public suffix list: write group=domains_of(queue), or for asyncio "
            "group=await async_domains_of(queue), both of timeoutq.urls; they use the list that the queue keeps"
        )


def bring(shards: Shards, found: TaskList, group: bytes | None, build: Build, replicas: int = 0) -> Flow[Outcome]:
    """Bring tasks into their shards, up to 500 in one call; give the answers."""
    if not found.ids:
        return Outcome((), b"")
    yield from shards.make(grouped=group is not None or bool(found.groups))
    return (yield from _bring(shards, found.ids, spread(shards, found, group), build, replicas))


def _bring(shards: Shards, ids: Sequence[bytes], places: Places, build: Build, replicas: int = 0) -> Flow[Outcome]:
    results = yield from gather(shards, places, build, replicas)
    yield from shards.confirm(added=gathering.any_added(results.values()))
    return outcome_of(shards, ids, places, results)


def spread(shards: Shards, found: TaskList, group: bytes | None = None) -> dict[int, list[int]]:
    """Give for each shard the places of its tasks among all tasks."""
    groups, of = found.groups, shards.of_task
    return places_of(of(id, groups.get(at, group)) for at, id in enumerate(found.ids))


# ---- lines of an export


def restore(shards: Shards, records: Sequence[Record]) -> Flow[Outcome]:
    """Bring up to 500 tasks in as they were, those of each shard in one step."""
    groups = [None if record.group is None else arguments.host(record.group) for record in records]
    yield from shards.make(grouped=any(group is not None for group in groups))
    places = places_of(shards.of_task(one.task, group) for one, group in zip(records, groups, strict=True))

    def build(talk: Talk, chosen: Sequence[int]) -> list[Call[Outcome]]:
        return [talk.operations.restore([records[at] for at in chosen], talk.nonce)]

    return (yield from _bring(shards, [record.task for record in records], places, build))


def restore_hosts(shards: Shards, records: Sequence[HostRecord]) -> Flow[int | None]:
    """Give up to 500 hosts their rules and counts back; None if the queue is not polite."""
    places = places_of(route(record.host, len(shards.talks)) for record in records)

    def build(talk: Talk, chosen: Sequence[int]) -> list[Call[int | None]]:
        return [of_hosts.restore_hosts(talk.operations, [records[at] for at in chosen], talk.nonce)]

    taken = list(chain.from_iterable(gathering.whole(shards, (yield from gather(shards, places, build)))))
    return None if None in taken else sum(taken)
