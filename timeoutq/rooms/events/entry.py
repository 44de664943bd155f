"""One entry of the event log as users see it, and the cursors with which readers go on. Pure; `flows.py` reads.

The cursor of a log is the id of the last entry that was read. A sharded queue has a log in each shard: its cursor is
one id for each shard, in the order of the shards, with dots between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from timeoutq.verbs import replies
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import text

START = "0-0"
"""The place before the first entry of a log."""
MOST = 2**64 - 1
"""The highest number that the second half of an id can be."""

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ID = re.compile(r"([0-9]{1,16})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Event:
    """What one call did to the tasks of a queue; a call that moved many long ids has several entries."""

    cursor: str
    """The place right behind this entry: a reader goes on from here."""
    id: str
    """The id of the entry in its stream: the server's time in ms, and a number."""
    at: float
    """The server's time, seconds since 1970."""
    verb: str
    """What was called, such as `put`, `claim` or `requeue_expired`."""
    by: str | None
    """Who called, if that is known: the token of a lease, or the name of a client, of a schedule, or of who cancels."""
    moves: Mapping[str, Sequence[str]]
    """The tasks that went each way: `{"todos>in_progress": ["https://a.example/"]}`; `-` is no state."""
    shard: int | None = None
    """The shard whose log this is; None on a queue without shards."""
    level: str | None = None
    """The level from here on, in an entry that tells of a new level."""
    tasks: int | None = None
    """How many tasks the queue had when the level changed."""
    offset: int | None = field(default=None, compare=False)
    """How many bytes were logged before this entry."""

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
    """Read the ids of a move."""
    lines = value.split(b"\n")
    if b"\\" in value:
        lines = [_ESCAPED.sub(lambda found: b"\n" if found[1] == b"n" else found[1], line) for line in lines]
    return [text(line) for line in lines]


def event_of(id: bytes, words: Sequence[bytes], shard: int | None = None) -> Event:
    """Read an entry; what a foreign hand has added to the log is an event without moves."""
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


def events_of(reply: Any, shard: int | None = None) -> list[Event]:
    """Read the reply to XRANGE, or to XREVRANGE, whose order is kept."""
    return [event_of(id, replies.flat(words), shard) for id, words in reply or ()]


def before(place: str) -> str:
    """Give the last id that there can be before this one."""
    found = _ID.fullmatch(place)
    ms, number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{MOST}" if ms else START


def behind(place: str) -> str:
    """Give the first id that there can be behind this one."""
    found = _ID.fullmatch(place)
    ms, number = (int(found[1]), int(found[2])) if found else (0, 0)
    return f"{ms}-{number + 1}" if number < MOST else f"{ms + 1}-0"


def places(after: object, logs: int) -> list[str] | None:
    """Read a cursor, or a time (Unix seconds or an aware datetime): the place in each log; None for None."""
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


def cursor_of(known: Iterable[str]) -> str:
    """Give the cursor of the places in all logs."""
    return ".".join(known)
