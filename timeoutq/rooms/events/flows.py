"""`queue.events`, which reads pages of the event log and follows it, and its two faces. No I/O.

A plain queue has one log. A sharded queue has one in each shard : the order of entries holds within
a shard, and pages of several shards are sorted by time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from timeoutq.rooms.events.entry import START, Event, EventPage, before, behind, cursor_of, events_of, places
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.flows import is_final
from timeoutq.verbs.sending import BELL_WAIT, Alarm, Flow, Talk, a_moment, ask
from timeoutq.words import arguments
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import TaskId, text

T = TypeVar("T")

CHUNK = 100
"""How many entries of a log are read at once. An entry has some 64 KiB at most."""

READS = 100
"""How often a log is read for one page of the entries of a task, whether they hold such entries or not."""

After = str | float | datetime | None
"""Where to begin: a cursor, or a time (Unix seconds or an aware datetime); None is the end of the log."""


def read(talk: Talk, place: str, n: int, shard: int | None) -> Flow[Sequence[Event]]:
    """Read up to `n` entries behind a place of one log."""
    (reply,) = yield from ask(talk, [("XRANGE", talk.operations.key("events"), behind(place), "+", "COUNT", n)])
    return events_of(reply, shard)


def read_back(talk: Talk, place: str, n: int, shard: int | None) -> Flow[Sequence[Event]]:
    """Read the last `n` entries up to a place of one log, `+` for its end; the oldest first."""
    (reply,) = yield from ask(talk, [("XREVRANGE", talk.operations.key("events"), place, "-", "COUNT", n)])
    return events_of(reply, shard)[::-1]


class EventFlows:
    """The flows about the event log of a plain queue; those of a sharded queue read the logs of all shards."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    # ---- the logs: here the one of the queue

    def _talks(self) -> Sequence[tuple[int | None, Talk]]:
        return [(None, self.talk)]

    def _all(self, flows: Sequence[Flow[T]]) -> Flow[Sequence[T]]:
        (flow,) = flows
        return [(yield from flow)]

    def wait(self, known: Sequence[str], seconds: float) -> Flow[None]:
        """Wait until there is an entry behind the places, at most `seconds`."""
        heard = yield Alarm(self.talk.operations.key("events"), known[0].encode(), seconds, self.talk.at)
        if isinstance(heard, BaseException):
            raise self.talk.server.explain(heard)

    # ---- pages

    def list(self, after: After = None, n: int = 100, task: TaskId | None = None) -> Flow[EventPage]:
        """Read the next `n` entries (up to 1,000) behind a place in the log, oldest first; by default the last `n`.

        `after` is the cursor of an entry or of a page, or a time (Unix seconds or an aware datetime); 0 is the
        beginning of the log. With `task`, only entries that moved this task are given, and a
        page behind a place looks at 10,000 entries at most: go on from its cursor until the cursor stays as it is.
        In a sharded queue, the entries of all shards are sorted by time, and their order holds within a shard. Raises
        `InvalidInput` for an `after` that is neither a cursor of this queue nor a time.
        """
        begin, most, id = places(after, len(self._talks())), arguments.count(n, high=1000), _text_of(task)
        return self._last(most, id) if begin is None else self.forward(begin, most, id)

    def ends(self) -> Flow[Sequence[str]]:
        """Give the place behind the last entry of each log."""
        found = yield from self._all([read_back(talk, "+", 1, shard) for shard, talk in self._talks()])
        return [events[-1].id if events else START for events in found]

    def forward(self, known: Sequence[str], n: int, task: str | None) -> Flow[EventPage]:
        """Read up to `n` entries behind the places; with a task, those of the next `READS` reads that moved the task.

        The cursor of the page is where the reading ended: with a task, an empty page is the end of the log only if its
        cursor is that of before.
        """
        found = list[Event]()
        for _ in range(READS):
            if len(found) == n:
                break
            some = yield from self._next(known, CHUNK if task is not None else min(CHUNK, n - len(found)))
            if not some:
                break
            for event in some:
                known = event.cursor.split(".")
                if task is None or event.of(task):
                    found.append(event)
                    if len(found) == n:
                        break
        return EventPage(found, cursor_of(known))

    def _next(self, known: Sequence[str], n: int) -> Flow[Sequence[Event]]:
        flows = [read(talk, place, n, shard) for (shard, talk), place in zip(self._talks(), known, strict=True)]
        parts = yield from self._all(flows)
        return _with_cursors(sorted((event for part in parts for event in part), key=_time)[:n], known)

    def _last(self, n: int, task: str | None) -> Flow[EventPage]:
        known = yield from self.ends()
        found, ends = list[Event](), known
        while len(found) < n:
            most = CHUNK if task is not None else min(CHUNK, n - len(found))
            talks = zip(self._talks(), ends, strict=True)
            parts = yield from self._all([read_back(talk, place, most, shard) for (shard, talk), place in talks])
            some = sorted((event for part in parts for event in part), key=_time)[-most:]
            if not some:
                break
            ends = list(ends)
            for event in reversed(some):
                ends[event.shard or 0] = before(event.id)
            some = _with_cursors(some, ends)
            found = [event for event in some if task is None or event.of(task)] + found
        return EventPage(found[-n:], cursor_of(known))

    def follow(self, after: After = None, task: TaskId | None = None, timeout: float | None = None) -> Walk[Event]:
        """Go through the entries behind a place in the log as they come; by default, from now on.

        `after` and `task` are as for `list`. It ends after `timeout` seconds; without `timeout` it never ends. While
        the server is away, it waits. To go on later, pass the cursor of the last entry as `after`: entries that were
        trimmed meanwhile are left out.
        """
        seconds = math.inf if timeout is None else arguments.seconds(timeout, "timeout")
        return Reader(self, places(after, len(self._talks())), _text_of(task), seconds)


class Reader(Walk[Event]):
    """Follows the log: `more` waits for the next entries, until the time of the reader is over."""

    def __init__(self, flows: EventFlows, known: Sequence[str] | None, task: str | None, seconds: float) -> None:
        self._flows, self._known, self._task = flows, known, task
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self._until

    def more(self) -> Flow[Sequence[Event]]:
        """Give the next entries; none if none has come for some seconds. While the server is away, the reader waits."""
        try:
            if self._known is None:
                self._known = yield from self._flows.ends()
            page = yield from self._flows.forward(self._known, CHUNK, self._task)
            if not page.events and page.cursor == cursor_of(self._known):
                left = max(0.001, min(BELL_WAIT, self._until - time.monotonic()))
                yield from self._flows.wait(self._known, left)
                page = yield from self._flows.forward(self._known, CHUNK, self._task)
        except TimeoutqError as error:
            if is_final(error) or self.is_over:
                raise
            yield a_moment()
            return []
        self._known = page.cursor.split(".")
        return page.events


def _time(event: Event) -> tuple[int, ...]:
    # a shard's own entries stay in their order: a clock that steps back makes no smaller id
    return tuple(map(int, event.id.split("-")))


def _with_cursors(events: Sequence[Event], known: Sequence[str]) -> list[Event]:
    # each entry has the place behind it, and behind all entries before it
    places, found = list(known), list[Event]()
    for event in events:
        places[event.shard or 0] = event.id
        found.append(replace(event, cursor=cursor_of(places)))
    return found


def _text_of(task: TaskId | None) -> str | None:
    return None if task is None else text(arguments.task_id(task))


class Events(Room[EventFlows]):
    """The event log of a queue, which `configure(events="64MB")` begins. A queue without a log has no events."""

    list = blocking(EventFlows.list)
    follow = iterating(EventFlows.follow)


class AsyncEvents(AsyncRoom[EventFlows]):
    """The event log of a queue, for asyncio: the methods are those of `Events`."""

    list = awaiting(EventFlows.list)
    follow = aiterating(EventFlows.follow)
