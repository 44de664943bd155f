"""A schedule as it is asked for, stored in Redis and shown to users; the calls that read and write it. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from timeoutq.rooms.schedules.timing import Timing, lateness
from timeoutq.server.calls import Argument, Call, Words, refuse_rerun, section
from timeoutq.verbs.operations import Operations
from timeoutq.words import arguments
from timeoutq.words.arguments import MAX_ID, Body, Packed, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import Payload, Task, TaskId, text

VERSION = 1  # a reader refuses the definition of another version
MAX_NAME = 200  # bytes of a schedule's name
LARGEST = 256 * 1024  # bytes of a schedule's payload
LARGEST_COUNT = 2**53
TICK_ROOM = 20  # how many bytes the time of a tick needs behind the id of a task
STAMP_ROOM = 24  # how many bytes it needs in a payload

ScheduleState = Literal["running", "paused", "undeclared", "ended"]
STATES: Mapping[bytes, ScheduleState] = {b"r": "running", b"p": "paused", b"u": "undeclared", b"e": "ended"}
Source = Literal["code", "set"]
SOURCES: Mapping[bytes, Source] = {b"c": "code", b"s": "set"}

_TICK = re.compile(r"@[0-9]+\Z")


class When(TypedDict, total=False):
    """When a schedule ticks: `cron`, with `tz`, or `every`; the others go with both."""

    cron: str | None
    tz: str | None
    every: float | timedelta | None
    times: int | None
    start: datetime | None
    until: datetime | None


class How(When, total=False):
    """When a schedule ticks, and what becomes of ticks that are late, or find their task at work."""

    missed: str
    grace: float | timedelta | None
    overlap: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that code declares: what it puts, and when."""

    name: str
    task: TaskId | Task | None = None
    cron: str | None = None
    tz: str | None = None
    every: float | timedelta | None = None
    times: int | None = None
    start: datetime | None = None
    until: datetime | None = None
    missed: str = "last"
    grace: float | timedelta | None = None
    overlap: bool = False

    def timing(self) -> Timing:
        return Timing.of(
            cron=self.cron, tz=self.tz, every=self.every, times=self.times, start=self.start, until=self.until
        )


class Stamped(Packed):
    """A payload that is a JSON object with a field or more: each tick adds its time to it, as the field `w`, in ms."""


def checked(name: object) -> bytes:
    """Check the name of a schedule: up to 200 bytes, and not as the id of a tick ends."""
    try:
        found = name.encode() if isinstance(name, str) else b""
    except UnicodeEncodeError:
        found = b""
    if not 0 < len(found) <= MAX_NAME:
        raise InvalidInput(f"{shown(name)} is no name of a schedule: use text of 1 to {MAX_NAME} bytes")
    if _TICK.search(str(name)):
        raise InvalidInput(
            f"the name of a schedule does not end in @ and digits, as {shown(name)} does: ids of ticks do"
        )
    return found


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule puts, when, and what becomes of ticks that nobody put in time."""

    timing: Timing
    task: bytes
    payload: bytes | None = field(default=None, repr=False)  # as it goes over the wire
    group: str | None = None
    priority: int | None = None
    missed: str = "last"
    grace_ms: int | None = None
    overlap: bool = False
    stamped: bool = False  # whether each tick adds its time to the payload

    @classmethod
    def of(cls, schedule: Schedule) -> Definition:
        """Check a schedule. Without a task, its name is the id."""
        name, task = schedule.name, schedule.task
        timing, grace_ms = schedule.timing(), lateness(schedule.missed, schedule.grace, overlap=schedule.overlap)
        found = arguments.tasks((name if task is None else task,))
        refuse_rerun(found, "a schedule")
        if len(found.ids) != 1:
            raise InvalidInput(
                f"a schedule puts one task, and this names {len(found.ids):,}: make one schedule of each"
            )
        body, group = found.payloads.get(0), found.groups.get(0)
        payload = body.pack() if isinstance(body, Body) else body
        if payload is not None and len(payload) > LARGEST:
            raise InvalidInput(
                f"the payload of schedule {name!r} has {len(payload):,} bytes; the limit is {LARGEST:,}: store it "
                "elsewhere and put its address here"
            )
        overlap = bool(arguments.flag(schedule.overlap, "overlap"))
        if overlap and len(found.ids[0]) > MAX_ID - TICK_ROOM:
            raise InvalidInput(
                "with overlap=True, each tick adds its time to the id of the task: use an id of up to "
                f"{MAX_ID - TICK_ROOM:,} bytes"
            )
        named = None if group is None else text(group)
        stamped = isinstance(task, Task) and isinstance(task.payload, Stamped)
        return cls(
            timing, found.ids[0], payload, named, found.priorities.get(0), schedule.missed, grace_ms, overlap, stamped
        )

    def payload_at(self, tick_ms: int) -> bytes | None:
        return self.payload[:-1] + b',"w":%d}' % tick_ms if self.stamped and self.payload is not None else self.payload

    def text(self) -> str:
        """Give the definition as it is stored: JSON."""
        payload = None if self.payload is None else base64.b64encode(self.payload).decode()
        said: dict[str, Any] = {
            "v": VERSION, "timing": self.timing.stored(), **arguments.id_field("task", self.task),
            "missed": self.missed, "payload_b64": payload, "group": self.group, "priority": self.priority,
            "grace": self.grace_ms, "overlap": self.overlap or None, "stamped": self.stamped or None,
        }  # fmt: skip
        return json.dumps({name: value for name, value in said.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def read(cls, stored: bytes) -> Definition:
        """Read what `text` has written. Raises `InvalidInput` if it is not that."""
        try:
            fields: dict[str, Any] = json.loads(stored)
            version, payload = fields["v"], fields.get("payload_b64")
            if version != VERSION:
                raise InvalidInput(
                    f"its version is {version!r}, and this program reads {VERSION}: upgrade this program"
                )
            return cls(
                Timing.read(fields["timing"]), arguments.id_in(fields, "task"),
                None if payload is None else base64.b64decode(payload), fields.get("group"), fields.get("priority"),
                str(fields["missed"]), fields.get("grace"), fields.get("overlap") is True,
                fields.get("stamped") is True,
            )  # fmt: skip
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("what is stored of it cannot be read; set the schedule again") from None

    def digest(self) -> str:
        """Name what a caller has asked for."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:24]

    def sections(self, digest: str, source: Source) -> Words:
        """Give the words of a change to this definition; `digest` names what was asked for."""
        return section("definition", self.text()) + section("digest", digest) + section("source", source[0])


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """All that a queue knows of a schedule. Times are Unix seconds of the server's clock."""

    name: str
    state: ScheduleState  # `undeclared`: no code has declared it for an hour, so it is paused until some code does
    source: Source  # `code`: workers declare it; `set`: a person or a program has set it
    timing: Mapping[str, Any]
    """`cron` and `tz`, or `every` (seconds); `times`, `start` and `until` (Unix seconds) if they are given.

    `every` without a `start` counts from when it was set, so it has a `start`, too.
    """
    task: str  # the id that ticks put; with `overlap`, `@` and the time of the tick in ms follow
    payload: Payload = field(repr=False)
    group: str | None
    priority: int | None
    missed: str
    grace: float | None
    overlap: bool
    next: float | None  # when it ticks next; None while it does not run
    last: float | None  # the last tick that was put or skipped
    put: int
    skipped: int
    """How many ticks found their task ready or in progress, or were left out because the schedule was paused."""
    missed_ticks: int
    """How many ticks were not put, because nobody was there in time, and `missed` did not want them later; of a line of
    cron, up to 1,000 are counted at a time."""
    declared: float  # when it was set, or when code has declared it last
    zones: str | None  # the version of the data of time zones that gave `next`, such as 2026b; None without `cron`


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A page of schedules. `cursor` is None on the last page."""

    schedules: Sequence[ScheduleInfo]
    cursor: str | None
    unread: Sequence[str] = ()  # the names of those whose definition cannot be read

    def __iter__(self) -> Iterator[ScheduleInfo]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the server knows of a schedule."""

    name: bytes
    state: ScheduleState
    source: Source
    rev: str  # the call that has written the definition
    next_ms: int
    last_ms: int
    put: int
    skipped: int
    missed: int
    renewed_ms: int  # when it was set, or declared last
    text: bytes = field(repr=False)
    zones: str = "-"  # the version of the data of time zones that gave the next tick

    @classmethod
    def read(cls, name: bytes, record: bytes | None, definition: bytes | None) -> Stored | None:
        """Read a row of `lua/schedules.lua`; None for a schedule that is not there, or whose record cannot be read."""
        words = (record or b"").split()
        if definition is None or len(words) < 10 or words[0] not in STATES or words[1] not in SOURCES:
            return None
        try:
            next_ms, last_ms, put, skipped, missed, renewed_ms = map(int, words[4:10])
        except ValueError:
            return None
        return cls(
            name, STATES[words[0]], SOURCES[words[1]], text(words[2]),
            next_ms, last_ms, put, skipped, missed, renewed_ms, definition, text(words[10]) if len(words) > 10 else "-",
        )  # fmt: skip

    def seen(self) -> str:
        """Give what a change compares: a schedule that has ticked, or is another one, has another text."""
        return f"{self.state[0]} {self.next_ms} {self.rev}"

    def line(self) -> str:
        """Give the line of an export: JSON in ASCII."""
        said: dict[str, Any] = {
            **arguments.id_field("schedule", self.name), "state": self.state, "source": self.source,
            "counts": [self.last_ms, self.put, self.skipped, self.missed], "next": self.next_ms, "zones": self.zones,
            "definition": json.loads(self.text),
        }  # fmt: skip
        return json.dumps(said)

    @classmethod
    def from_line(cls, fields: Mapping[str, Any]) -> Stored:
        """Read the line of an export, whose JSON is given. Raises `InvalidInput`."""
        try:
            name, state, source = arguments.id_in(fields, "schedule"), fields["state"], fields["source"]
            if state not in STATES.values() or source not in SOURCES.values():
                raise LookupError
            last_ms, put, skipped, missed, next_ms = (
                arguments.count(n, "counts", 0, LARGEST_COUNT) for n in (*fields["counts"], fields.get("next", 0))
            )
            definition = json.dumps(fields["definition"]).encode()
            Definition.read(definition)
            zones = str(fields.get("zones", "-"))
            return cls(name, state, source, "", next_ms, last_ms, put, skipped, missed, 0, definition, zones)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("the line of a schedule that this program cannot read") from None

    def info(self) -> ScheduleInfo:
        """Give what users see. Raises `InvalidInput` if the definition cannot be read."""
        found = Definition.read(self.text)
        timing = found.timing.stored()
        seconds = {name: value / 1000 for name, value in timing.items() if name in ("every", "start", "until")}
        return ScheduleInfo(
            text(self.name), self.state, self.source, timing | seconds, text(found.task),
            arguments.unpack(found.payload), found.group, found.priority, found.missed,
            None if found.grace_ms is None else found.grace_ms / 1000, found.overlap,
            self.next_ms / 1000 if self.next_ms and self.state == "running" else None, self.last_ms / 1000 or None,
            self.put, self.skipped, self.missed, self.renewed_ms / 1000, None if self.zones == "-" else self.zones,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Schedules as they are stored, at one moment."""

    now_ms: int
    cursor: str
    found: Sequence[Stored]
    lost: Sequence[str]  # the names of those that are there in part, or cannot be read
    count: int  # how many names the reply has, with those of which nothing is there


def call_rows(operations: Operations, *words: Argument) -> Call[Rows]:
    """Build the call that reads schedules; the words are as `lua/verbs/schedules.lua` says."""
    return operations.call("schedules", words, _rows)


def _rows(reply: Any) -> Rows:
    now_ms, cursor, *rows, _ = reply
    found, lost = list[Stored](), list[str]()
    for name, record, definition in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        one = Stored.read(name, record, definition)
        if one is not None:
            found.append(one)
        elif record is not None or definition is not None:
            lost.append(text(name))
    return Rows(now_ms, cursor.decode(), found, lost, len(rows) // 3)


def call_write(operations: Operations, nonce: bytes, name: bytes, before: Stored | None, change: Words) -> Call[str]:
    """Build the call that writes a schedule, unless it has changed since `before` was read, or a tick is due.

    `change` is what it becomes: state, next tick in ms, and sections, as `lua/verbs/set_schedule.lua` has them.
    """
    words = [name, "-" if before is None else before.seen(), *change]
    return operations.call("set_schedule", words, lambda reply: reply.decode(), id=nonce)


def call_renew(operations: Operations, digests: Mapping[bytes, str]) -> Call[str]:
    """Build the call that declares schedules of code again; a letter for each is as `lua/verbs/renew.lua` says."""
    return operations.call("renew", [word for pair in digests.items() for word in pair], lambda reply: reply.decode())


def call_tick(
    operations: Operations,
    nonce: bytes,
    stored: Stored,
    definition: Definition,
    ids: Sequence[bytes],
    next_ms: int,
    last_ms: int,
    missed: int,
) -> Call[str]:
    """Build the call that puts the tasks of ticks and stores the next tick; it answers as `lua/verbs/tick.lua` says."""
    words: list[Argument] = [stored.name, stored.rev, stored.next_ms, next_ms, last_ms, missed, 0, len(ids), *ids]
    payload, options = None, section("zones", definition.timing.zones)
    if ids:
        payload, group = definition.payload_at(last_ms), definition.group or foreign_host(ids[0])
        given = {"payload": payload, "group": group, "priority": definition.priority}
        options += [word for name, value in given.items() if value is not None for word in section(name, value)]
    weight = len(payload or b"")
    return operations.call("tick", [*words, *options], lambda reply: reply.decode(), id=nonce, weight=weight)
