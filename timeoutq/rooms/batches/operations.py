"""The operations on batches: which script, which arguments, how to read the reply; and what users learn of a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, overload

from timeoutq.server.calls import Call, Words, section
from timeoutq.verbs.operations import Operations
from timeoutq.words.arguments import Body, TaskList
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import text

BatchState = Literal["open", "sealed", "ended", "broken"]
STATES: Mapping[bytes, BatchState] = {b"o": "open", b"s": "sealed", b"e": "ended", b"b": "broken"}
On = Literal["ended", "done"]
ONS: Mapping[bytes, On] = {b"e": "ended", b"d": "done"}
End = Literal["open", "done", "lost"]
ENDS: Mapping[bytes, End] = {b"o": "open", b"d": "done", b"l": "lost"}


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What is known of a batch at one moment."""

    name: str
    state: BatchState
    """`open`: tasks may join; `sealed`: no more; `ended`: all have ended, and the callback, if there is one, was put;
    `broken`: all have ended, not all of them are done, and the callback is in failed."""
    tasks: int
    """How many tasks have joined."""
    outstanding: int
    """How many of them have not ended. A task that is retried or released has not ended."""
    failed: int
    """How many have ended in any other way than done: they are in failed, or were forgotten."""
    on: On | None
    """When the callback becomes ready; None while the batch is open."""
    callback: str | None
    """The id of the callback."""
    at: float
    """When the state changed or a task joined, Unix seconds."""

    @property
    def done(self) -> int:
        """How many tasks are done."""
        return self.tasks - self.outstanding - self.failed

    @property
    def is_over(self) -> bool:
        """Whether the batch is sealed, and all of its tasks have ended."""
        return self.state in ("ended", "broken")


@dataclass(frozen=True, slots=True)
class BatchPage(Sequence[BatchInfo]):
    """A page of batches, in no order."""

    batches: Sequence[BatchInfo]
    cursor: str | None
    """Give it to read the next page; None: this was the last one."""

    @overload
    def __getitem__(self, at: int) -> BatchInfo: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[BatchInfo]: ...
    def __getitem__(self, at: int | slice) -> BatchInfo | Sequence[BatchInfo]:
        return self.batches[at]

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a batch."""

    task: str
    place: int
    """Its place in the batch, from 1 on, in the order in which the tasks were put."""
    end: End
    """`open`: it has not ended; `done`; `lost`: it has ended in another way."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A task of a batch, as an export tells it."""

    batch: str
    task: bytes
    end: End


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a batch that is over was sealed with, as an export tells it."""

    batch: str
    on: On
    keep_ms: int
    digest: str
    """Names the call that has sealed the batch: the same call again is not refused."""
    callback: bytes
    """Empty where there is no callback."""


def seal(operations: Operations, nonce: bytes, name: str, callback: TaskList, on: On, keep_ms: int) -> Call[bool]:
    """Build the call that seals a batch; `callback` is one task, or none."""
    options: Words = []
    if callback.ids:
        options += section("callback", callback.ids[0])
        body, group, priority = callback.payloads.get(0), callback.groups.get(0), callback.priorities.get(0)
        if body is not None:
            options += section("payload", body.pack() if isinstance(body, Body) else body)
        group = group or foreign_host(callback.ids[0])
        if group is not None:
            options += section("group", group)
        if priority is not None:
            options += section("priority", priority)
    words: Words = [on[:1], keep_ms]
    said = b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in [*words, *options])
    digest = hashlib.sha256(said).hexdigest()[:24]
    weight = sum(len(word) for word in options if isinstance(word, bytes))
    call = operations.call("seal_batch", [name, *words, digest, *options], _known, id=nonce, weight=weight)
    return operations.if_room(call, links=True)


def forget(operations: Operations, nonce: bytes, name: str) -> Call[bool]:
    """Build the call that forgets a batch; it says whether there was one."""
    return operations.call("seal_batch", [name, "x", 0, "-"], _known, id=nonce)


def _known(reply: Any) -> bool:
    return cast("bool", reply == b"O")


def restore_batch(
    operations: Operations, nonce: Callable[[], bytes], name: str, joined: Sequence[Joined], seal: Sealed | None
) -> Call[int]:
    """Build the call that brings up to 500 tasks of a batch in, and seals the batch if `seal` says with what."""
    on, keep_ms, digest, callback = "-", 0, "-", b""
    if seal is not None:
        on, keep_ms, digest, callback = seal.on[:1], seal.keep_ms, seal.digest, seal.callback
    letters = "".join(one.end[:1] for one in joined)
    words: Words = [name, on, keep_ms, digest, callback, len(joined), *(one.task for one in joined), letters]
    return operations.call("restore_batch", words, int, id=nonce())


def seals(operations: Operations, cursor: str, n: int) -> Call[tuple[str, list[Sealed]]]:
    """Build the call that reads about `n` batches for an export; it gives the next cursor, too."""

    def read(reply: Any) -> tuple[str, list[Sealed]]:
        _, following, *rows = reply
        found = list[Sealed]()
        for name, record, tasks, _, _ in zip(*[iter(rows)] * 5, strict=True):
            state, on, keep_ms, _, digest, callback = [*record.split(b" ", 5), *[b""] * 6][:6]
            if state in (b"e", b"b") and on in ONS and keep_ms.isdigit() and tasks:
                found.append(Sealed(text(name), ONS[on], int(keep_ms), text(digest), callback))
        return following.decode() if isinstance(following, bytes) else str(following), found

    return operations.call("batches", ["page", cursor, n], read)


def named(operations: Operations, names: Sequence[str]) -> Call[BatchPage]:
    """Build the call that reads up to 500 batches by their names."""
    return operations.call("batches", ["names", 0, *names], _page)


def page(operations: Operations, cursor: str, n: int) -> Call[BatchPage]:
    """Build the call that reads about `n` batches, from a cursor on."""
    return operations.call("batches", ["page", cursor, n], _page)


def members(operations: Operations, name: str, first: int, last: int) -> Call[tuple[int, list[Member]]]:
    """Build the call that reads the tasks of a batch at these places, up to 500; it says how many tasks there are."""

    def read(reply: Any) -> tuple[int, list[Member]]:
        _, count, *rows = reply
        found = [Member(text(id), int(at), ENDS[end]) for at, end, id in zip(*[iter(rows)] * 3, strict=True)]
        return int(count), sorted(found, key=lambda member: member.place)

    return operations.call("batches", ["tasks", name, first, last], read)


def _page(reply: Any) -> BatchPage:
    _, cursor, *rows = reply
    found = [read(*row) for row in zip(*[iter(rows)] * 5, strict=True)]
    cursor = cursor.decode() if isinstance(cursor, bytes) else str(cursor)
    return BatchPage([one for one in found if one is not None], None if cursor == "0" else cursor)


def read(name: bytes, record: bytes, tasks: int, outstanding: int, failed: int) -> BatchInfo | None:
    """Read a batch; None for one whose record cannot be read, which the next walk of a cleaner removes."""
    state, on, _, at, *rest = [*record.split(b" ", 5), b""][:6]
    if state not in STATES or not at.isdigit():
        return None
    callback = rest[1] if len(rest) > 1 and rest[1] else None
    named = None if callback is None else text(callback)
    return BatchInfo(text(name), STATES[state], tasks, outstanding, failed, ONS.get(on), named, int(at) / 1000)
