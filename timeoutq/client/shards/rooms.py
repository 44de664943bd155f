"""The flows of a sharded queue's rooms, in which they differ from those of a plain queue."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from timeoutq.client.shards.gathering import each, errors_of, late, of_shards, places_of, whole
from timeoutq.client.shards.looking import in_order, some, walk
from timeoutq.client.shards.root import Shards
from timeoutq.rooms import failures, hosts
from timeoutq.rooms.batches import BatchFlows
from timeoutq.rooms.events import EventFlows
from timeoutq.rooms.failures import FailureFlows
from timeoutq.rooms.hosts import HostFlows, Rule
from timeoutq.rooms.results import ResultFlows, answers_key
from timeoutq.rooms.room import RoomFlows
from timeoutq.rooms.schedules import ScheduleInfo, SchedulePage, flows
from timeoutq.rooms.schedules.definition import Definition, Stored
from timeoutq.rooms.schedules.flows import ScheduleFlows
from timeoutq.server.calls import BATCH
from timeoutq.verbs.sending import Flow, Sleep, Talk, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Ended, Entry, HostInfo, HostPage, Page, State, text

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


class _OfShards(RoomFlows):
    """The flows of a room, which are made of the shards; `talk` is the talk with the root."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def _talks(self) -> Sequence[Talk]:
        return self._shards.talks

    def _all(self, flows: Sequence[Flow[T]]) -> Flow[Sequence[T]]:
        return whole(self._shards, (yield from of_shards(dict(enumerate(flows)))))


class ShardedHostFlows(_OfShards, HostFlows):
    """A host is wholly in one shard."""

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[HostPage]:
        n = arguments.count(n, high=500)

        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[HostInfo], str | None]]:
            part = yield from hosts.page(talk, start, most)
            return part.hosts, part.cursor

        return HostPage(*(yield from in_order(self._shards, cursor, n, read, lambda host: host.turn)))

    def _some(self, cursor: str) -> Flow[tuple[Sequence[HostInfo], str | None]]:
        return walk(self._shards, cursor, hosts.some)

    def _ask(self, host: str, *rules: Rule) -> Flow[HostInfo]:
        arguments.host(host)  # before a shard is asked
        return late(lambda: hosts.one(self._shards.of_host(host), host, rules))


class ShardedFailureFlows(_OfShards, FailureFlows):
    """A kind of failure may have tasks in every shard."""

    def _page(self, kind: str, cursor: str | None, n: int) -> Flow[Page]:
        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[Entry], str | None]]:
            return failures.tasks(talk, kind, start, most)

        # the last one that was given up first
        rows = in_order(self._shards, cursor, n, read, lambda entry: -(entry.at or 0.0))
        return Page(State.FAILED, *(yield from rows))


FOLLOW = 0.2
"""Seconds after which a reader that follows the logs looks at all again: no command waits for keys of many slots."""


class ShardedEventFlows(_OfShards, EventFlows):
    """Each shard has a log of its own."""

    def wait(self, known: Sequence[str], seconds: float) -> Flow[None]:
        yield Sleep(min(FOLLOW, seconds))


ROUND = 0.5
"""Seconds for which a wait listens to one shard, before it asks the others: no two shards have one list in common."""


class ShardedResultFlows(_OfShards, ResultFlows):
    """A result is in the shard of its task."""

    def look_at(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        shards, found = self._shards, list[Ended | None]([None] * len(ids))
        yield from self._look(ids, places_of(map(shards.of_task, ids)), client, found)
        gone = [at for at, one in enumerate(found) if one is not None and one.is_gone]
        if gone and (yield from shards.may_be_elsewhere()):
            yield from self._look(ids, shards.elsewhere(ids, gone), client, found)
        return found

    def _look(
        self, ids: Sequence[bytes], places: Mapping[int, Sequence[int]], client: str, found: list[Ended | None]
    ) -> Flow[None]:
        # notes in `found` the answers of the shards; a shard that knows a task goes before one that does not
        shards = self._shards
        parts = yield from of_shards(
            {
                shard: ResultFlows(shards.talks[shard]).look_at([ids[at] for at in part], client)
                for shard, part in places.items()
            }
        )
        if not client or len(errors_of(parts)) == len(parts):
            whole(shards, parts)
        for shard, result in parts.items():
            if isinstance(result, TimeoutqError):
                result = [None] * len(places[shard])  # who waits asks a silent shard again
            for at, ended in zip(places[shard], result, strict=True):
                if ended is None or not ended.is_gone or shard == shards.of_task(ids[at]):
                    found[at] = ended

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        shards, every = self._shards, range(len(self._shards.talks))
        mine = [*every] if shards.record.grouped else [*{*map(shards.of_task, ids)}]
        one = random.choice(mine or every)  # noqa: S311  # not a secret
        seconds = seconds if len(mine) == 1 else min(seconds, ROUND)
        heard = yield from ResultFlows(shards.talks[one]).hear(ids, client, seconds)
        parts = yield from of_shards({shard: _pop(shards.talks[shard], client) for shard in mine if shard != one})
        return [*heard, *chain.from_iterable(whole(shards, parts))]


def _pop(talk: Talk, client: str) -> Flow[list[bytes]]:
    (popped,) = yield from ask(talk, [("LPOP", answers_key(talk.operations, client), BATCH)])
    return popped or []


class ShardedScheduleFlows(_OfShards, ScheduleFlows):
    """Each schedule is in the shard of its name, and what its ticks put is there, too."""

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[SchedulePage]:
        n, unread = arguments.count(n, high=500), list[str]()

        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[ScheduleInfo], str | None]]:
            part = yield from flows.page(talk, start, most)
            unread.extend(part.unread)
            return part.schedules, part.cursor

        found, following = yield from some(self._shards, cursor, n, read)
        return SchedulePage(found, following, unread)

    def tick(self) -> Flow[int]:
        return sum((yield from each(self._shards, flows.tick)))

    def _set(self, name: bytes, wanted: Definition) -> Flow[ScheduleInfo]:
        written = self._at(name, lambda talk, name: flows.write(talk, name, wanted, "set"))
        return (yield from made(self._shards, {name: wanted}, written)).info()

    def _declare(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        if wanted:
            yield from made(self._shards, wanted, self._declare_all(wanted))

    def _declare_all(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        shards, names = self._shards, list(wanted)
        work = {
            shard: flows.declare(shards.talks[shard], {names[at]: wanted[names[at]] for at in chosen})
            for shard, chosen in places_of(map(shards.of_task, names)).items()
        }
        whole(shards, (yield from of_shards(work)))

    def _leave(self, names: Sequence[bytes]) -> Flow[None]:
        for shard, chosen in places_of(map(self._shards.of_task, names)).items():
            yield from flows.leave(self._shards.talks[shard], [names[at] for at in chosen])

    def _at(self, name: bytes, flow: Callable[[Talk, bytes], Flow[T]]) -> Flow[T]:
        return late(lambda: flow(self._shards.talks[self._shards.of_task(name)], name))


def restore_schedule(shards: Shards, stored: Stored) -> Flow[bool]:
    """Bring a schedule of an export in as it was; say whether it was new here."""
    home = late(lambda: flows.restore(shards.talks[shards.of_task(stored.name)], stored))
    return made(shards, {stored.name: Definition.read(stored.text)}, home)


def made(shards: Shards, wanted: Mapping[bytes, Definition], written: Flow[T]) -> Flow[T]:
    """Write schedules. Raises `InvalidInput` if the task of one belongs to another shard."""
    yield from shards.make()  # which reads by what tasks are routed
    for name, one in wanted.items():
        group = None if one.group is None else arguments.host(one.group)
        if shards.of_task(one.task, group) != shards.of_task(name):
            raise InvalidInput(
                f"schedule {shown(text(name))} lies in another shard than its task {shown(text(one.task))}: on a queue "
                "over shards, let the task's id be the name of the schedule, and leave out its group"
            )
        if one.overlap and shards.record.by == "id":
            raise InvalidInput(
                f"queue {shards.name} routes its tasks by id, and with overlap=True each tick has an id of its own: "
                f"set schedule {shown(text(name))} without overlap"
            )
    # the ids of single ticks are not where their ids say, but where the schedule is
    yield from shards.make(grouped=any(one.overlap for one in wanted.values()))
    found = yield from written
    yield from shards.confirm(added=True)
    return found
