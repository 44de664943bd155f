"""Batches: tasks whose ends are counted together, and one more task that becomes ready when all of them have ended."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, overload

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.server.calls import BATCH, BATCH_KEPT, Argument, Call, Words, refuse_rerun, section
from timeoutq.verbs import reads
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk, answer, answers
from timeoutq.words import arguments
from timeoutq.words.arguments import Body, How, TaskList, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import Outcome, Task, TaskId, Tasks, text
from timeoutq.words.text import counted, safe

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
    tasks: int  # how many tasks have joined
    outstanding: int  # how many of them have not ended. A task that is retried or released has not ended
    failed: int  # how many have ended in any other way than done: they are in failed, or were forgotten
    on: On | None  # when the callback becomes ready; None while the batch is open
    callback: str | None  # the id of the callback
    at: float  # when the state changed or a task joined, Unix seconds

    @property
    def done(self) -> int:
        return self.tasks - self.outstanding - self.failed

    @property
    def is_over(self) -> bool:
        """Whether the batch is sealed, and all of its tasks have ended."""
        return self.state in ("ended", "broken")


@dataclass(frozen=True, slots=True)
class BatchPage(Sequence[BatchInfo]):
    """A page of batches, in no order."""

    batches: Sequence[BatchInfo]
    cursor: str | None  # give it to read the next page; None: this was the last one

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
    place: int  # its place in the batch, from 1 on, in the order in which the tasks were put
    end: End  # `open`: it has not ended; `done`; `lost`: it has ended in another way


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
    digest: str  # names the call that has sealed the batch: the same call again is not refused
    callback: bytes  # empty where there is no callback


def call_seal(operations: Operations, nonce: bytes, name: str, callback: TaskList, on: On, keep_ms: int) -> Call[bool]:
    """Build the call that seals a batch; `callback` is one task, or none."""
    options: Words = []
    if callback.ids:
        id, body = callback.ids[0], callback.payloads.get(0)
        payload, group = body.pack() if isinstance(body, Body) else body, callback.groups.get(0) or foreign_host(id)
        given = {"callback": id, "payload": payload, "group": group, "priority": callback.priorities.get(0)}
        options = [word for name, value in given.items() if value is not None for word in section(name, value)]
    words: Words = [on[:1], keep_ms]
    said = b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in [*words, *options])
    digest = hashlib.sha256(said).hexdigest()[:24]
    weight = sum(len(word) for word in options if isinstance(word, bytes))
    call = operations.call("seal_batch", [name, *words, digest, *options], _is_done, id=nonce, weight=weight)
    return operations.if_room(call, links=True)


def call_forget(operations: Operations, nonce: bytes, name: str) -> Call[bool]:
    """Build the call that forgets a batch; it says whether there was one."""
    return operations.call("seal_batch", [name, "x", 0, "-"], _is_done, id=nonce)


def _is_done(reply: Any) -> bool:
    return bool(reply == b"O")


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


def seals(operations: Operations, cursor: str, n: int) -> Call[tuple[str | None, list[Sealed]]]:
    """Build the call that reads about `n` batches for an export; it gives the next cursor, too."""

    def read(reply: Any) -> tuple[str | None, list[Sealed]]:
        _, following, *rows = reply
        found = list[Sealed]()
        for name, record, tasks, _, _ in zip(*[iter(rows)] * 5, strict=True):
            state, on, keep_ms, _, digest, callback = [*record.split(b" ", 5), *[b""] * 6][:6]
            if state in (b"e", b"b") and on in ONS and keep_ms.isdigit() and tasks:
                found.append(Sealed(text(name), ONS[on], int(keep_ms), text(digest), callback))
        return reads.next_cursor(following), found

    return operations.call("batches", ["page", cursor, n], read)


def call_batches(operations: Operations, *words: Argument) -> Call[BatchPage]:
    """Build the call that reads up to 500 batches; the words are as `lua/verbs/batches.lua` says."""
    return operations.call("batches", words, _page)


def call_members(operations: Operations, name: str, first: int, last: int) -> Call[tuple[int, list[Member]]]:
    """Build the call that reads the tasks of a batch at these places, up to 500; it says how many tasks there are."""

    def read(reply: Any) -> tuple[int, list[Member]]:
        _, count, *rows = reply
        found = [Member(text(id), int(at), ENDS[end]) for at, end, id in zip(*[iter(rows)] * 3, strict=True)]
        return int(count), sorted(found, key=lambda member: member.place)

    return operations.call("batches", ["tasks", name, first, last], read)


def _page(reply: Any) -> BatchPage:
    _, cursor, *rows = reply
    found = [_read_batch(*row) for row in zip(*[iter(rows)] * 5, strict=True)]
    return BatchPage([one for one in found if one is not None], reads.next_cursor(cursor))


def _read_batch(name: bytes, record: bytes, tasks: int, outstanding: int, failed: int) -> BatchInfo | None:
    """Read a batch; None for one whose record cannot be read, which the next walk of a cleaner removes."""
    state, on, _, at, *rest = [*record.split(b" ", 5), b""][:6]
    if state not in STATES or not at.isdigit():
        return None
    callback = rest[1] if len(rest) > 1 and rest[1] else None
    named = None if callback is None else text(callback)
    return BatchInfo(text(name), STATES[state], tasks, outstanding, failed, ONS.get(on), named, int(at) / 1000)


_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
STALE = 86_400.0  # a batch that nobody has sealed for so many seconds is worth a word of doctor


def checked(name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInput(f"{shown(name)} is no name of a batch: use 1 to 64 of A-Z a-z 0-9 . _ : -")
    return name


def some(talk: Talk) -> Flow[list[BatchInfo]]:
    """Tell about all batches, or about ten thousand of them; one that changes meanwhile may come twice."""
    found = list[BatchInfo]()
    cursor = reads.START
    while cursor is not None and len(found) < 10_000:
        page = yield from answer(talk, call_batches(talk.operations, "page", cursor, BATCH), UNCONFIRMED)
        found += page.batches
        cursor = page.cursor
    return found


def health(talk: Talk) -> Flow[tuple[str, str, str]]:
    """Look at up to 10,000 batches, for doctor; give green or yellow, what was found, and the cure."""
    found = yield from some(talk)
    now = talk.clock.now_ms / 1000
    running = [one for one in found if not one.is_over]
    stale = sorted((one.at, one.name) for one in running if one.state == "open" and 0 < one.at < now - STALE)
    broken = sorted(one.name for one in found if one.state == "broken")
    many = "1 batch" if len(running) == 1 else f"{len(running):,} batches"
    said = f"{many} not over, {counted(sum(one.outstanding for one in running), 'task')} outstanding"
    if stale:
        names = ", ".join(safe(name) for _, name in stale[:5])
        return "yellow", f"{said}; nobody has sealed: {names}", "queue.batches.seal(name), or forget(name)"
    if broken:
        names = ", ".join(safe(name) for name in broken[:5])
        return (
            "yellow", f"{said}; tasks are not done, so callbacks are in failed: {names}",
            "retry the failed tasks, and then the callback: queue.retry_failed(task)",
        )  # fmt: skip
    return "green", said, ""


class BatchFlows(RoomFlows):
    """The flows about the batches of a plain queue."""

    def put(
        self,
        name: str,
        *tasks: Tasks,
        again: bool = False,
        group: str | None = None,
        priority: int | None = None,
        at: float | datetime | None = None,
        after: float | None = None,
    ) -> Flow[Outcome]:
        """Put tasks into a batch, in as many calls as you like, up to a million; with `at` or `after`, schedule them.

        The answers and the options are those of `put` and `schedule`. A task that the queue has already joins the
        batch, too; one that is done or failed counts as ended at once. The same tasks put again change nothing. A task
        can be in four batches that have not ended.
        Raises `InvalidInput` for a batch that is sealed, and for a queue over shards; and what `put` raises.
        """
        return self.put_as(name, tasks, How(again, group, priority), at, after)

    def put_as(
        self, name: str, tasks: tuple[Tasks, ...], how: How, at: float | datetime | None, after: float | None
    ) -> Flow[Outcome]:
        into = replace(how, batch=checked(name))
        if at is None and after is None:
            return answers(self.talk, self.talk.operations.put(tasks, self.talk.nonce, into))
        calls = self.talk.operations.schedule(tasks, self.talk.nonce, at=at, after=after, how=into)
        return answers(self.talk, calls)

    def seal(
        self,
        name: str,
        callback: TaskId | Task | None = None,
        *,
        on: On = "ended",
        keep: float | timedelta = BATCH_KEPT,
    ) -> Flow[BatchInfo]:
        """Say that all tasks of a batch are put. When all of them have ended, the callback becomes ready: once.

        A task ends when it is done, goes to failed, or is forgotten; one that is retried has not ended. With
        `on="ended"` the callback becomes ready however the tasks end. With `on="done"` all of them must be done; else
        the callback goes to failed, and its error says how many are not. Until then the callback is in scheduled, and
        no put changes it. A batch without tasks ends at once. The batch is kept for `keep` seconds after its end, and
        the result of each task for so long after the end of the task, at least.
        Sealing again in the same way changes nothing. Raises `InvalidInput` for a batch that was sealed in another way,
        for a callback that is in the queue already, and for a queue over shards.
        """
        name, found = checked(name), arguments.tasks(() if callback is None else (callback,))
        refuse_rerun(found, "the callback of a batch")
        if len(found.ids) > 1:
            raise InvalidInput(
                f"a batch has one callback, and this names {len(found.ids):,}: let the callback put the others"
            )
        if on not in ONS.values():
            raise InvalidInput(f"on= is 'ended' (however the tasks end) or 'done' (all must be done), not {shown(on)}")
        keep_ms = round(arguments.seconds(keep, "keep") * 1000)
        yield from answer(self.talk, call_seal(self.talk.operations, self.talk.nonce(), name, found, on, keep_ms))
        # whoever keeps a batch for no time does not find it again
        there = yield from self.look(name)
        return there.get(name) or BatchInfo(name, "ended", 0, 0, 0, None, None, 0.0)

    def look(self, *names: str) -> Flow[dict[str, BatchInfo]]:
        """Tell about batches, any number of them; those that are not known are left out."""
        named, found = list(map(checked, names)), dict[str, BatchInfo]()
        for at in range(0, len(named), BATCH):
            call = call_batches(self.talk.operations, "names", 0, *named[at : at + BATCH])
            found.update((one.name, one) for one in (yield from answer(self.talk, call, UNCONFIRMED)))
        return found

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[BatchPage]:
        """Read a page of about `n` batches, in no order; give the `cursor` of a page to read the next one."""
        start, most = arguments.cursor(cursor), arguments.count(n, high=BATCH)
        call = call_batches(self.talk.operations, "page", start, most)
        return answer(self.talk, call, UNCONFIRMED)

    def members(self, name: str) -> Walk[Member]:
        """Go through the tasks of a batch, in the order in which they were put; each says how it has ended."""

        def read(cursor: str) -> Flow[tuple[Sequence[Member], str | None]]:
            behind = int(cursor) + BATCH
            call = call_members(self.talk.operations, checked(name), int(cursor) + 1, behind)
            count, found = yield from answer(self.talk, call, UNCONFIRMED)
            return found, str(behind) if behind <= count else None

        return Walk(read)

    def forget(self, name: str) -> Flow[bool]:
        """Forget a batch, and say whether there was one: nothing is counted any more, and its tasks stay.

        The callback of a sealed batch goes to failed.
        """
        call = call_forget(self.talk.operations, self.talk.nonce(), checked(name))
        return answer(self.talk, call)


class Batches(Room[BatchFlows]):
    """The batches of a queue. A batch is known by its name: 1 to 64 of A-Z a-z 0-9 . _ : -.

    The scripts that end tasks count for their batches in the same step (`lua/batches.lua`): each end counts once.
    """

    put = blocking(BatchFlows.put)
    seal = blocking(BatchFlows.seal)
    look = blocking(BatchFlows.look)
    list = blocking(BatchFlows.list)
    members = iterating(BatchFlows.members)
    forget = blocking(BatchFlows.forget)


class AsyncBatches(AsyncRoom[BatchFlows]):
    """The batches of a queue, for asyncio: the methods are those of `Batches`."""

    put = awaiting(BatchFlows.put)
    seal = awaiting(BatchFlows.seal)
    look = awaiting(BatchFlows.look)
    list = awaiting(BatchFlows.list)
    members = aiterating(BatchFlows.members)
    forget = awaiting(BatchFlows.forget)


_DIGEST = re.compile(r"[!-~]{1,64}\Z")


def write_line(one: Joined | Sealed) -> str:
    """Give the line: JSON in ASCII; an id that is not text goes into a field of its own, in base64."""
    if isinstance(one, Joined):
        return json.dumps({**arguments.id_field("member", one.task), "batch": one.batch, "end": one.end})
    callback = arguments.id_field("callback", one.callback) if one.callback else {}
    return json.dumps({"batch": one.batch, "on": one.on, "keep": one.keep_ms / 1000, "digest": one.digest, **callback})


def read_line(fields: Mapping[str, Any]) -> Joined | Sealed:
    """Read a line, whose JSON is given. Raises `InvalidInput`."""
    name = checked(fields.get("batch"))
    if "member" in fields or "member_b64" in fields:
        end = fields.get("end", "open")
        if end not in ENDS.values():
            raise InvalidInput(f'"end" is one of {", ".join(ENDS.values())}, not {shown(end)}')
        return Joined(name, arguments.id_in(fields, "member"), end)
    on: Any = fields.get("on")
    digest = fields.get("digest")
    if on not in ONS.values():
        raise InvalidInput(f'"on" is one of {", ".join(ONS.values())}, not {shown(on)}')
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise InvalidInput(f'"digest" is up to 64 letters and digits, not {shown(digest)}')
    keep = fields.get("keep")
    arguments.delay_ms(keep, "keep")
    keep_ms = round(arguments.seconds(keep, "keep") * 1000)
    callback = arguments.id_in(fields, "callback") if "callback" in fields or "callback_b64" in fields else b""
    return Sealed(name, on, keep_ms, digest, callback)
