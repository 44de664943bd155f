"""Schedules of a sharded queue: each is in the shard of its name, and what its ticks put is there, too. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from timeoutq.client.shards import gathering
from timeoutq.client.shards.looking import after, place
from timeoutq.client.shards.root import Shards
from timeoutq.rooms.schedules import ScheduleInfo, SchedulePage, flows
from timeoutq.rooms.schedules.definition import Definition, Stored
from timeoutq.rooms.schedules.flows import ScheduleFlows
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import text

if TYPE_CHECKING:
    from timeoutq.rooms.schedules.timing import Timing

T = TypeVar("T")


class ShardedScheduleFlows(ScheduleFlows):
    """The flows about the schedules of a sharded queue."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[SchedulePage]:
        many, found, unread = len(self._shards.talks), list[ScheduleInfo](), list[str]()
        n, cursor = arguments.count(n, high=500), None if cursor == reads.START else cursor
        while True:
            shard, start = place(cursor, many)
            part = yield from flows.page(self._shards.talks[shard], start, n)
            found += part.schedules
            unread += part.unread
            cursor = after(shard, part.cursor, many)
            if cursor is None or len(found) >= n:
                return SchedulePage(found, cursor, unread)

    def tick(self) -> Flow[int]:
        return gathering.total(self._shards, flows.tick)

    def _set(self, name: bytes, wanted: Definition) -> Flow[ScheduleInfo]:
        written = self._at(name, lambda talk: flows.write(talk, name, wanted, "set"))
        return (yield from made(self._shards, {name: wanted}, written)).info()

    def _declare(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        if wanted:
            yield from made(self._shards, wanted, self._each(wanted, lambda talk, some: flows.declare(talk, some)))

    def _each(
        self, wanted: Mapping[bytes, Definition], flow: Callable[[Talk, Mapping[bytes, Definition]], Flow[Any]]
    ) -> Flow[None]:
        shards, names = self._shards, list(wanted)
        places = gathering.places_of(map(shards.of_task, names))
        work = {at: flow(shards.talks[at], {names[i]: wanted[names[i]] for i in some}) for at, some in places.items()}
        gathering.whole(shards, (yield from gathering.of_shards(work)))

    def _leave(self, names: Sequence[bytes]) -> Flow[None]:
        for shard, chosen in gathering.places_of(map(self._shards.of_task, names)).items():
            yield from flows.leave(self._shards.talks[shard], [names[at] for at in chosen])

    def _of(self, name: bytes, to: str, when: Timing | None = None) -> Flow[ScheduleInfo]:
        return self._at(name, lambda talk: flows.change(talk, name, to, when))

    def _cancel(self, name: bytes) -> Flow[bool]:
        return self._at(name, lambda talk: flows.cancel(talk, name))

    def _get(self, name: bytes) -> Flow[ScheduleInfo | None]:
        return self._at(name, lambda talk: flows.one(talk, name))

    def _at(self, name: bytes, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
        return gathering.late(lambda: flow(self._shards.talks[self._shards.of_task(name)]))


def restore(shards: Shards, stored: Stored) -> Flow[bool]:
    """Bring a schedule of an export in as it was; say whether it was new here."""
    home = gathering.late(lambda: flows.restore(shards.talks[shards.of_task(stored.name)], stored))
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
