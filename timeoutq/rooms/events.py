"""The event log of a queue: which tasks each call has moved, and to where. `queue.events` is the face of this room."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.server.calls import Command
from timeoutq.verbs import replies
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.flows import is_final
from timeoutq.verbs.sending import BELL_WAIT, Alarm, Flow, Talk, a_moment, ask, once
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import State, TaskId, text

LEVELS = ("all", "ends", "off")

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(events: object) -> int:
    """Give how many bytes the log keeps: of a number of bytes, or of a text such as "64MB" or "1GiB"."""
    word = events.strip().upper() if isinstance(events, str) else ""
    found = re.fullmatch(r"([0-9]{1,12}) ?([KMG]I?B|)", word, re.ASCII)
    try:
        return arguments.count(int(found[1]) * _UNITS[found[2]] if found else events, "events", 100_000, 10**12)
    except InvalidInput:
        raise InvalidInput(
            'events is how many bytes the event log keeps, 100KB to 1000GB, such as "64MB", not '
            f'{arguments.shown(events)}; level="off" ends the log'
        ) from None


def log_setting(events: object, level: object) -> bytes | None:
    """Give the setting, `SIZE LEVEL` with `-` for what stays as it is; None if both do."""
    if events is None and level is None:
        return None
    if level is not None and level not in LEVELS:
        raise InvalidInput(f'level must be "all", "ends" or "off", not {arguments.shown(level)}')
    return f"{'-' if events is None else size(events)} {level or '-'}".encode()


def divided(setting: bytes, shards: int) -> bytes:
    """Give the setting of one shard of so many: all logs together keep what the setting of the queue says."""
    most, _, level = setting.partition(b" ")
    return setting if most == b"-" else b"%d %s" % (max(1, int(most) // shards), level)


START = "0-0"  # the place before the first entry of a log
MOST = 2**64 - 1  # the highest number that the second half of an id can be
CHUNK = 100  # how many entries of a log are read at once. An entry has some 64 KiB at most
READS = 100  # how often a log is read for one page of the entries of a task, whether they hold such entries or not

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ID = re.compile(r"([0-9]{1,16})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Event:
    """What one call did to the tasks of a queue; a call that moved many long ids has several entries."""

    cursor: str  # the place right behind this entry: a reader goes on from here
    id: str  # the id of the entry in its stream: the server's time in ms, and a number
    at: float  # the server's time, seconds since 1970
    verb: str  # what was called, such as `put`, `claim` or `requeue_expired`
    by: str | None
    """Who called, if that is known: the token of a lease, or the name of a client, of a schedule, or of who cancels."""
    moves: Mapping[str, Sequence[str]]
    """The tasks that went each way: `{"todos>in_progress": ["https://a.example/"]}`; `-` is no state."""
    shard: int | None = None  # the shard whose log this is; None on a queue without shards
    level: str | None = None  # the level from here on, in an entry that tells of a new level
    tasks: int | None = None  # how many tasks the queue had when the level changed
    offset: int | None = field(default=None, compare=False)  # how many bytes were logged before this entry

    def of(self, task: str) -> list[tuple[str, str]]:
        """Give the moves of one task, each with the state that it left and the state that it entered."""
        return [(left, entered) for one, left, entered in self.each() if one == task]

    def each(self) -> Iterator[tuple[str, str, str]]:
        """Go through the moves: the task, the state that it left, and the state that it entered."""
        for way, tasks in self.moves.items():
            left, _, entered = way.partition(">")
            for task in tasks:
                yield task, left, entered


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some entries of the event log, the oldest first, and the place behind them, where a reader goes on."""

    events: Sequence[Event]
    cursor: str


def ids_of(value: bytes) -> list[str]:
    lines = value.split(b"\n")
    if b"\\" in value:
        lines = [_ESCAPED.sub(lambda found: b"\n" if found[1] == b"n" else found[1], line) for line in lines]
    return [text(line) for line in lines]


def event_of(id: bytes, words: Sequence[bytes], shard: int | None = None) -> Event:
    """Read an entry; what somebody has added to the log by hand is an event without moves."""
    moves: dict[str, Sequence[str]] = {}
    known: dict[str, str] = {}
    for name, value in zip(map(text, words[::2]), words[1::2], strict=False):
        if ">" in name:
            moves[name] = ids_of(value)
        else:
            known[name] = text(value)
    place = id.decode()
    return Event(
        place, place, int(place.partition("-")[0]) / 1000, known.get("verb", ""), known.get("by"), moves, shard,
        known.get("level"), _number(known.get("tasks")), _number(known.get("offset")),
    )  # fmt: skip


def _number(word: str | None) -> int | None:
    return int(word) if word is not None and re.fullmatch(r"[0-9]{1,18}", word, re.ASCII) else None


def before(place: str) -> str:
    """Give the last id that there can be before this one."""
    found = _ID.fullmatch(place)
    ms, number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{MOST}" if ms else START


def places(after: object, logs: int) -> list[str] | None:
    """Read a cursor, or a time (Unix seconds or an aware datetime): the place in each log; None for None.

    The cursor of a log (`lua/events.lua`) is the id of the last entry that was read; that of a sharded queue is one id
    for each shard, in their order, with dots between them.
    """
    if after is None:
        return None
    if isinstance(after, datetime | int | float) and not isinstance(after, bool):
        return [before(f"{int(arguments.due(after, None))}-0")] * logs
    found = after.split(".") if isinstance(after, str) else []
    if len(found) != logs or not all(
        (one := _ID.fullmatch(place)) and int(one[2]) <= MOST and place.isascii() for place in found
    ):
        raise InvalidInput(
            f"{arguments.shown(after)} is neither a cursor of this event log nor a time: use the cursor of an event, "
            "or 0 for the beginning"
        )
    return found


class Fold:
    """The tasks in each state, as the entries that were added so far tell it."""

    def __init__(self) -> None:
        self.states: dict[State, set[str]] = {state: set() for state in State}
        self._whole: dict[int | None, bool] = {}

    @property
    def is_whole(self) -> bool:
        """Whether the entries tell of all that has happened to the queue: then the sets are those of the queue."""
        return bool(self._whole) and all(self._whole.values())

    def add(self, *events: Event) -> None:
        """Add entries, in the order of the log; those of different shards may come in any order."""
        for event in events:
            if event.level is not None:
                # a log begins, or goes on after moves that were not logged: it tells of all if there are no tasks now
                self._whole[event.shard] = event.level == "all" and event.tasks == 0
                if event.tasks == 0 and event.shard is None:
                    self.states = {state: set() for state in State}
            elif event.shard not in self._whole:
                self._whole[event.shard] = False
            for task, left, entered in event.each():
                if left in self.states:
                    self.states[State(left)].discard(task)
                if entered in self.states:
                    self.states[State(entered)].add(task)

    def where(self, task: str) -> State | None:
        """Tell in which state a task is; None if it is in none."""
        return next((state for state, tasks in self.states.items() if task in tasks), None)


def fold(events: Iterable[Event]) -> Fold:
    """Fold entries of a log, from its beginning on, to the tasks in each state."""
    found = Fold()
    for event in events:
        found.add(event)
    return found


After = str | float | datetime | None
"""Where to begin: a cursor, or a time (Unix seconds or an aware datetime); None is the end of the log."""


def _entries(talk: Talk, shard: int | None, place: str, n: int, back: bool) -> Flow[list[Event]]:
    # up to `n` entries of one log behind a place, or the last ones up to the place; `+` is its end
    key = talk.operations.key("events")
    command: Command = ("XREVRANGE", key, place, "-") if back else ("XRANGE", key, f"({place}", "+")
    (reply,) = yield from ask(talk, [(*command, "COUNT", n)])
    return [event_of(id, replies.flat(words), shard) for id, words in reply or ()]


class EventFlows(RoomFlows):
    """The flows about the event log of a plain queue; those of a sharded queue read the logs of all shards."""

    def wait(self, known: Sequence[str], seconds: float) -> Flow[None]:
        """Wait until there is an entry behind the places, at most `seconds`."""
        alarm = Alarm(self.talk.operations.key("events"), known[0].encode(), seconds, self.talk.at)
        yield from once(self.talk, alarm)

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
        logs = len(self._talks())
        last = {event.shard or 0: event.id for event in (yield from self._read(["+"] * logs, 1, back=True))}
        return [last.get(log, START) for log in range(logs)]

    def forward(self, known: Sequence[str], n: int, task: str | None) -> Flow[EventPage]:
        """Read up to `n` entries behind the places; with a task, those of the next `READS` reads that moved the task.

        With a task, an empty page is the end of the log only if its cursor is that of before.
        """
        found = list[Event]()
        for _ in range(READS):
            if len(found) == n:
                break
            most = CHUNK if task is not None else min(CHUNK, n - len(found))
            some = _with_cursors((yield from self._read(known, most))[:most], known)
            if not some:
                break
            for event in some:
                known = event.cursor.split(".")
                if task is None or event.of(task):
                    found.append(event)
                    if len(found) == n:
                        break
        return EventPage(found, ".".join(known))

    def _read(self, known: Sequence[str], n: int, *, back: bool = False) -> Flow[Sequence[Event]]:
        """Read up to `n` entries of each log behind a place, or the last ones up to it; give all, by their times."""
        talks = self._talks()
        shards = range(len(talks)) if len(talks) > 1 else [None]
        logs = zip(talks, shards, known, strict=True)
        parts = yield from self._all([_entries(talk, shard, place, n, back) for talk, shard, place in logs])
        # a shard's own entries stay in their order: a clock that steps back makes no smaller id
        return sorted(chain.from_iterable(parts), key=lambda event: tuple(map(int, event.id.split("-"))))

    def _last(self, n: int, task: str | None) -> Flow[EventPage]:
        known = yield from self.ends()
        found, ends = list[Event](), known
        while len(found) < n:
            most = CHUNK if task is not None else min(CHUNK, n - len(found))
            some = (yield from self._read(ends, most, back=True))[-most:]
            if not some:
                break
            ends = list(ends)
            for event in reversed(some):
                ends[event.shard or 0] = before(event.id)
            some = _with_cursors(some, ends)
            found = [event for event in some if task is None or event.of(task)] + found
        return EventPage(found[-n:], ".".join(known))

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
        return time.monotonic() >= self._until

    def more(self) -> Flow[Sequence[Event]]:
        """Give the next entries; none if none has come for some seconds. While the server is away, the reader waits."""
        try:
            if self._known is None:
                self._known = yield from self._flows.ends()
            page = yield from self._flows.forward(self._known, CHUNK, self._task)
            if not page.events and page.cursor == ".".join(self._known):
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


def _with_cursors(events: Sequence[Event], known: Sequence[str]) -> list[Event]:
    # each entry has the place behind it, and behind all entries before it
    places, found = list(known), list[Event]()
    for event in events:
        places[event.shard or 0] = event.id
        found.append(replace(event, cursor=".".join(places)))
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
