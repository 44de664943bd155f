"""A schedule as it is stored in Redis and as users see it, and the calls that read and write it. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from timeoutq.server.calls import Argument, Call, Words, refuse_rerun, section
from timeoutq.verbs.operations import Operations
from timeoutq.words import arguments
from timeoutq.words.arguments import MAX_ID, Body, Packed
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import Payload, Task, TaskId, text

VERSION = 1
"""A reader refuses the definition of another version."""
LARGEST = 256 * 1024
"""The most bytes of a schedule's payload."""
LARGEST_COUNT = 2**53
TICK_ROOM = 20
"""How many bytes the time of a tick needs behind the id of a task."""

ScheduleState = Literal["running", "paused", "undeclared", "ended"]
STATES: Mapping[bytes, ScheduleState] = {b"r": "running", b"p": "paused", b"u": "undeclared", b"e": "ended"}
LETTERS: Mapping[ScheduleState, str] = {state: letter.decode() for letter, state in STATES.items()}
STAMP_ROOM = 24
"""How many bytes the time of a tick needs in a payload."""
Source = Literal["code", "set"]
SOURCES: Mapping[bytes, Source] = {b"c": "code", b"s": "set"}


class Stamped(Packed):
    """A payload that is a JSON object with a field or more: each tick adds its time to it, as the field `w`, in ms."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule puts, when, and what becomes of ticks that nobody put in time."""

    timing: str
    """As `Timing.text` gives it."""
    task: bytes
    payload: bytes | None = field(default=None, repr=False)
    """As it goes over the wire."""
    group: str | None = None
    priority: int | None = None
    missed: str = "last"
    grace_ms: int | None = None
    overlap: bool = False
    stamped: bool = False
    """Whether each tick adds its time to the payload."""
    declared_ms: int = 0
    """When it was written, by the server's clock."""
    over_code: bool = False
    """Whether code had declared the schedule before somebody set or moved it."""

    @classmethod
    def of(
        cls, name: str, task: TaskId | Task | None, timing: str, missed: str, grace_ms: int | None, overlap: object
    ) -> Definition:
        """Check what the ticks put. Without a task, the name of the schedule is the id."""
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
        overlaps = bool(arguments.flag(overlap, "overlap"))
        if overlaps and len(found.ids[0]) > MAX_ID - TICK_ROOM:
            raise InvalidInput(
                "with overlap=True, each tick adds its time to the id of the task: use an id of up to "
                f"{MAX_ID - TICK_ROOM:,} bytes"
            )
        named = None if group is None else text(group)
        stamped = isinstance(task, Task) and isinstance(task.payload, Stamped)
        return cls(timing, found.ids[0], payload, named, found.priorities.get(0), missed, grace_ms, overlaps, stamped)

    def payload_at(self, tick_ms: int) -> bytes | None:
        """Give the payload of the task that a tick puts."""
        return self.payload[:-1] + b',"w":%d}' % tick_ms if self.stamped and self.payload is not None else self.payload

    def text(self) -> str:
        """Give the definition as it is stored: JSON."""
        said: dict[str, Any] = {
            "v": VERSION,
            "timing": json.loads(self.timing),
            **arguments.id_field("task", self.task),
            "missed": self.missed,
            "declared": self.declared_ms,
        }
        if self.payload is not None:
            said["payload_b64"] = base64.b64encode(self.payload).decode()
        rare = {
            "group": self.group, "priority": self.priority, "grace": self.grace_ms, "overlap": self.overlap or None,
            "stamped": self.stamped or None, "over_code": self.over_code or None,
        }  # fmt: skip
        said |= {name: value for name, value in rare.items() if value is not None}
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def read(cls, stored: bytes) -> Definition:
        """Read what `text` has written. Raises `InvalidInput` if it is not that."""
        try:
            fields = cast("dict[str, Any]", json.loads(stored))
            version = fields["v"]
            if version != VERSION:
                raise InvalidInput(
                    f"its version is {version!r}, and this program reads {VERSION}: upgrade this program"
                )
            payload = fields.get("payload_b64")
            return cls(
                json.dumps(fields["timing"]),
                arguments.id_in(fields, "task"),
                None if payload is None else base64.b64decode(payload),
                fields.get("group"),
                fields.get("priority"),
                str(fields["missed"]),
                fields.get("grace"),
                fields.get("overlap") is True,
                fields.get("stamped") is True,
                int(fields["declared"]),
                fields.get("over_code") is True,
            )
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("what is stored of it cannot be read; set the schedule again") from None

    def digest(self) -> str:
        """Name what a caller has asked for, whenever it was written."""
        said = json.loads(self.text())
        del said["declared"]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the server knows of a schedule."""

    name: bytes
    state: ScheduleState
    source: Source
    rev: str
    """The call that has written the definition."""
    digest: str
    next_ms: int
    last_ms: int
    put: int
    skipped: int
    missed: int
    renewed_ms: int
    text: bytes = field(repr=False)

    @classmethod
    def read(cls, name: bytes, record: bytes | None, definition: bytes | None) -> Stored | None:
        """Read a row of `lua/schedules.lua`; None for a schedule that is not there, or whose record cannot be read."""
        words = (record or b"").split()
        if definition is None or len(words) != 10 or words[0] not in STATES or words[1] not in SOURCES:
            return None
        try:
            next_ms, last_ms, put, skipped, missed, renewed_ms = map(int, words[4:])
        except ValueError:
            return None
        return cls(
            name, STATES[words[0]], SOURCES[words[1]], text(words[2]), text(words[3]),
            next_ms, last_ms, put, skipped, missed, renewed_ms, definition,
        )  # fmt: skip

    def seen(self) -> str:
        """Give what a change compares: a schedule that has ticked, or is another one, has another text."""
        return f"{LETTERS[self.state]} {self.next_ms} {self.rev}"

    def line(self) -> str:
        """Give the line of an export: JSON in ASCII."""
        said: dict[str, Any] = {
            **arguments.id_field("schedule", self.name),
            "state": self.state,
            "source": self.source,
            "digest": self.digest,
            "counts": [self.last_ms, self.put, self.skipped, self.missed],
            "definition": json.loads(self.text),
        }
        if self.next_ms:
            said["next"] = self.next_ms
        return json.dumps(said)

    @classmethod
    def from_line(cls, fields: Mapping[str, Any]) -> Stored:
        """Read the line of an export, whose JSON is given. Raises `InvalidInput`."""
        try:
            name = arguments.id_in(fields, "schedule")
            states, sources = list(STATES.values()), list(SOURCES.values())
            last_ms, put, skipped, missed = (arguments.count(n, "counts", 0, LARGEST_COUNT) for n in fields["counts"])
            definition = json.dumps(fields["definition"]).encode()
            Definition.read(definition)
            return cls(
                name, states[states.index(fields["state"])], sources[sources.index(fields["source"])], "",
                str(fields.get("digest", "-")), arguments.count(fields.get("next", 0), "next", 0, LARGEST_COUNT),
                last_ms, put, skipped, missed, 0, definition,
            )  # fmt: skip
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("the line of a schedule that this program cannot read") from None

    def info(self) -> ScheduleInfo:
        """Give what users see. Raises `InvalidInput` if the definition cannot be read."""
        found = Definition.read(self.text)
        return ScheduleInfo(
            text(self.name),
            self.state,
            self.source,
            {name: _seen(name, value) for name, value in json.loads(found.timing).items() if name != "v"},
            text(found.task),
            arguments.unpack(found.payload),
            found.group,
            found.priority,
            found.missed,
            None if found.grace_ms is None else found.grace_ms / 1000,
            found.overlap,
            self.next_ms / 1000 if self.next_ms and self.state == "running" else None,
            self.last_ms / 1000 or None,
            self.put,
            self.skipped,
            self.missed,
            (self.renewed_ms if self.source == "code" else found.declared_ms) / 1000,
            found.over_code,
        )


def _seen(name: str, value: Any) -> Any:
    # a part of a timing, with its ms as seconds; what somebody else has stored there may be of any type
    return value / 1000 if name in ("every", "start", "until") and isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """All that a queue knows of a schedule. Times are Unix seconds of the server's clock."""

    name: str
    state: ScheduleState
    """`undeclared`: no code has declared it for an hour, so it is paused until some code does."""
    source: Source
    """`code`: workers declare it; `set`: a person or a program has set it."""
    timing: Mapping[str, Any]
    """`cron` and `tz`, or `every` (seconds); `times`, `start` and `until` (Unix seconds) if they are given.

    `every` without a `start` counts from when it was set, so it has a `start`, too.
    """
    task: str
    """The id that ticks put; with `overlap`, `@` and the time of the tick in ms follow."""
    payload: Payload = field(repr=False)
    group: str | None
    priority: int | None
    missed: str
    grace: float | None
    overlap: bool
    next: float | None
    """When it ticks next; None while it does not run."""
    last: float | None
    """The last tick that was put or skipped."""
    put: int
    skipped: int
    """How many ticks found their task ready or in progress, or were left out because the schedule was paused."""
    missed_ticks: int
    """How many ticks were not put, because nobody was there in time, and `missed` did not want them later; of a line of
    cron, up to 1,000 are counted at a time."""
    declared: float
    over_code: bool = False
    """Code had declared it before a person set or moved it: the code counts again after `cancel`."""


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A page of schedules. `cursor` is None on the last page."""

    schedules: Sequence[ScheduleInfo]
    cursor: str | None
    unread: Sequence[str] = ()
    """The names of those whose definition cannot be read."""

    def __iter__(self) -> Iterator[ScheduleInfo]:
        """Go through the schedules of this page."""
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)


@dataclass(frozen=True, slots=True)
class Rows:
    """Schedules as they are stored, at one moment."""

    now_ms: int
    cursor: str
    found: Sequence[Stored]
    lost: Sequence[str]
    """The names of those that are there in part, or cannot be read."""
    count: int
    """How many names the reply has, with those of which nothing is there."""


def call_due(operations: Operations, n: int, passed: int = 0) -> Call[Rows]:
    """Build the call that reads up to `n` schedules whose tick is due, the oldest tick first, but for `passed` ones."""
    return operations.call("schedules", ["due", n, passed], _rows)


def call_named(operations: Operations, *names: bytes) -> Call[Rows]:
    """Build the call that reads some schedules."""
    return operations.call("schedules", ["names", 0, *names], _rows)


def call_page(operations: Operations, cursor: str, n: int) -> Call[Rows]:
    """Build the call that reads about `n` schedules, from a cursor on."""
    return operations.call("schedules", ["page", cursor, n], _rows)


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


def call_write(
    operations: Operations,
    nonce: bytes,
    name: bytes,
    before: Stored | None,
    state: str,
    next_ms: int,
    definition: Definition | None = None,
    digest: str = "",
    source: str = "s",
    *,
    anew: bool = False,
    counts: Sequence[int] = (),
    skipped: int = 0,
    unread: bool = False,
) -> Call[str]:
    """Build the call that writes a schedule, unless it has changed since `before` was read, or a tick is due."""
    words: Words = [name, "-" if before is None else before.seen(), state, next_ms]
    if definition is not None:
        words += section("definition", definition.text()) + section("digest", digest) + section("source", source)
    if anew:
        words += section("anew")
    if counts:
        words += section("counts", *counts)
    if skipped:
        words += section("skipped", skipped)
    if unread:
        words += section("unread")
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
    skipped: int,
) -> Call[str]:
    """Build the call that puts the tasks of ticks and stores the next tick; it answers as `lua/verbs/tick.lua` says."""
    words: list[Argument] = [stored.name, stored.rev, stored.next_ms, next_ms, last_ms, missed, skipped]
    words += [len(ids), *ids]
    options: Words = []
    payload = definition.payload_at(last_ms) if ids else None
    if payload is not None:
        options += section("payload", payload)
    group = definition.group or (foreign_host(ids[0]) if ids else None)
    if group is not None and ids:
        options += section("group", group)
    if definition.priority is not None and ids:
        options += section("priority", definition.priority)
    weight = len(payload or b"")
    return operations.call("tick", [*words, *options], lambda reply: reply.decode(), id=nonce, weight=weight)
