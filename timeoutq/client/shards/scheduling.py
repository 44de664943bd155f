"""Schedules of a sharded queue: each is in the shard of its name, and what its ticks put is there, too. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from timeoutq.client.shards import gathering
from timeoutq.client.shards.looking import after, place
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms.schedules import ScheduleInfo, SchedulePage, flows
from timeoutq.rooms.schedules.definition import Definition, Source, Stored
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import text

T = TypeVar("T")


def home(shards: Shards, name: bytes, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
    """Carry out a flow in the shard of a schedule."""
    return gathering.late(lambda: flow(shards.talks[shards.of_task(name)]))


def write(shards: Shards, name: bytes, wanted: Definition, source: Source) -> Flow[Stored]:
    """Set a schedule, or declare one of code. Raises `InvalidInput` if its task belongs to another shard."""
    yield from _make(shards, {name: wanted})
    found = yield from home(shards, name, lambda talk: flows.write(talk, name, wanted, source))
    yield from shards.confirm(added=True)
    return found


def declare(shards: Shards, wanted: Mapping[bytes, Definition]) -> Flow[None]:
    """Declare schedules of code, those of all shards at the same time."""
    if not wanted:
        return
    yield from _make(shards, wanted)
    places = gathering.places_of(map(shards.of_task, wanted))
    names = list(wanted)
    ended = yield from together(
        [
            flows.declare(shards.talks[shard], {names[at]: wanted[names[at]] for at in chosen})
            for shard, chosen in places.items()
        ]
    )
    gathering.whole(shards, dict(zip(places, ended, strict=True)))
    yield from shards.confirm(added=True)


def leave(shards: Shards, names: Sequence[bytes]) -> Flow[None]:
    """Pause those schedules of code that no code declares any more, shard by shard."""
    for shard, chosen in gathering.places_of(map(shards.of_task, names)).items():
        yield from flows.leave(shards.talks[shard], [names[at] for at in chosen])


def restore(shards: Shards, stored: Stored) -> Flow[bool]:
    """Bring a schedule of an export in as it was; say whether it was new here."""
    yield from _make(shards, {stored.name: Definition.read(stored.text)})
    found = yield from home(shards, stored.name, lambda talk: flows.restore(talk, stored))
    yield from shards.confirm(added=True)
    return found


def _make(shards: Shards, wanted: Mapping[bytes, Definition]) -> Flow[None]:
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


def page(shards: Shards, cursor: str | None, n: int) -> Flow[SchedulePage]:
    """Read a page of about `n` schedules, from where the last page ended; shard by shard."""
    many, found, unread = len(shards.talks), list[ScheduleInfo](), list[str]()
    while True:
        shard, start = place(cursor, many)
        part = yield from flows.page(shards.talks[shard], start, n)
        found += part.schedules
        unread += part.unread
        cursor = after(shard, part.cursor, many)
        if cursor is None or len(found) >= n:
            return SchedulePage(found, cursor, unread)
