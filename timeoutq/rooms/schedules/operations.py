"""The operations on schedules: which script, which arguments, how to read the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timeoutq.rooms.schedules.definition import Definition, Stored
from timeoutq.server.calls import Argument, Call, Words, section
from timeoutq.verbs.operations import Operations
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import text


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


def due(operations: Operations, n: int, passed: int = 0) -> Call[Rows]:
    """Build the call that reads up to `n` schedules whose tick is due, the oldest tick first, but for `passed` ones."""
    return operations.call("schedules", ["due", n, passed], _rows)


def named(operations: Operations, *names: bytes) -> Call[Rows]:
    """Build the call that reads some schedules."""
    return operations.call("schedules", ["names", 0, *names], _rows)


def page(operations: Operations, cursor: str, n: int) -> Call[Rows]:
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


def write(
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


def renew(operations: Operations, digests: Mapping[bytes, str]) -> Call[str]:
    """Build the call that declares schedules of code again; it answers a letter for each, as `lua/renew.lua` says."""
    return operations.call("renew", [word for pair in digests.items() for word in pair], lambda reply: reply.decode())


def tick(
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
    """Build the call that puts the tasks of ticks and stores the next tick; it answers as `lua/tick.lua` says."""
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
