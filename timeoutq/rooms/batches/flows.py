"""`queue.batches`: what it does, and its two faces, `Batches` and `AsyncBatches`. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from timeoutq.rooms.batches import operations
from timeoutq.rooms.batches.operations import BatchInfo, BatchPage, Member, On
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.server.calls import BATCH, BATCH_KEPT, Call, refuse_rerun
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.sending import Flow, Talk, answer, answers
from timeoutq.words import arguments
from timeoutq.words.arguments import How, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Outcome, Task, TaskId, Tasks
from timeoutq.words.text import counted, safe

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")
Members = list[Member]
"""In the classes below, `list` is a method."""
STALE = 86_400.0
"""A batch that nobody has sealed for so many seconds is worth a word of doctor."""


def checked(name: object) -> str:
    """Check the name of a batch."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInput(f"{shown(name)} is no name of a batch: use 1 to 64 of A-Z a-z 0-9 . _ : -")
    return str.__str__(name)


def seal(talk: Talk, name: str, callback: TaskId | Task | None, on: On, keep: object) -> Flow[BatchInfo]:
    """Seal a batch, and tell about it."""
    found = arguments.tasks(() if callback is None else (callback,))
    refuse_rerun(found, "the callback of a batch")
    if len(found.ids) > 1:
        raise InvalidInput(
            f"a batch has one callback, and this names {len(found.ids):,}: let the callback put the others"
        )
    if not any(arguments.is_word(on, word) for word in ("ended", "done")):
        raise InvalidInput(f"on= is 'ended' (however the tasks end) or 'done' (all must be done), not {shown(on)}")
    keep_ms = round(arguments.seconds(keep, "keep") * 1000)
    return _seal(talk, name, operations.seal(talk.operations, talk.nonce(), name, found, on, keep_ms))


def _seal(talk: Talk, name: str, call: Call[bool]) -> Flow[BatchInfo]:
    yield from answer(talk, call)
    found = yield from look(talk, [name])
    # whoever keeps a batch for no time does not find it again
    return found.get(name) or BatchInfo(name, "ended", 0, 0, 0, None, None, 0.0)


def look(talk: Talk, names: Sequence[str]) -> Flow[dict[str, BatchInfo]]:
    """Tell about batches, without those that are not known."""
    found: dict[str, BatchInfo] = {}
    for at in range(0, len(names), BATCH):
        page = yield from answer(talk, operations.named(talk.operations, names[at : at + BATCH]), UNCONFIRMED)
        found.update((one.name, one) for one in page.batches)
    return found


def forget(talk: Talk, name: str) -> Flow[bool]:
    """Forget a batch; say whether there was one."""
    return (yield from answer(talk, operations.forget(talk.operations, talk.nonce(), name)))


def some(talk: Talk) -> Flow[list[BatchInfo]]:
    """Tell about all batches, or about ten thousand of them; one that changes meanwhile may come twice."""
    found = list[BatchInfo]()
    cursor: str | None = "0"
    while cursor is not None and len(found) < 10_000:
        page = yield from answer(talk, operations.page(talk.operations, cursor, BATCH), UNCONFIRMED)
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
        return (
            "yellow",
            f"{said}; nobody has sealed: {names}",
            "queue.batches.seal(name), or forget(name)",
        )
    if broken:
        names = ", ".join(safe(name) for name in broken[:5])
        return (
            "yellow", f"{said}; tasks are not done, so callbacks are in failed: {names}",
            "retry the failed tasks, and then the callback: queue.retry_failed(task)",
        )  # fmt: skip
    return "green", said, ""


class BatchFlows:
    """The flows about the batches of a plain queue."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def talk(self) -> Talk:
        """The one talk of the queue; a queue over shards has none, and says so."""
        return self._talk

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
        """Put tasks into a batch as `how` says."""
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
        return seal(self.talk, checked(name), callback, on, keep)

    def look(self, *names: str) -> Flow[dict[str, BatchInfo]]:
        """Tell about batches, any number of them; those that are not known are left out."""
        return look(self.talk, [checked(name) for name in names])

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[BatchPage]:
        """Read a page of about `n` batches, in no order; give the `cursor` of a page to read the next one."""
        call = operations.page(self.talk.operations, arguments.cursor(cursor), arguments.count(n, high=BATCH))
        return answer(self.talk, call, UNCONFIRMED)

    def members(self, name: str) -> Walk[Member]:
        """Go through the tasks of a batch, in the order in which they were put; each says how it has ended."""

        def read(cursor: str) -> Flow[tuple[Sequence[Member], str | None]]:
            behind = int(cursor) + BATCH
            count, found = yield from self.some_members(name, int(cursor), BATCH)
            return found, str(behind) if behind <= count else None

        return Walk(read)

    def some_members(self, name: str, after: int, n: int) -> Flow[tuple[int, Members]]:
        """Read up to `n` tasks of a batch, those behind the place `after`; give the number of all, too."""
        first = 1 + arguments.count(after, "after", 0, 1_000_000)
        last = first + arguments.count(n, high=BATCH) - 1
        return answer(self.talk, operations.members(self.talk.operations, checked(name), first, last), UNCONFIRMED)

    def forget(self, name: str) -> Flow[bool]:
        """Forget a batch, and say whether there was one: nothing is counted any more, and its tasks stay.

        The callback of a sealed batch goes to failed.
        """
        return forget(self.talk, checked(name))


class Batches(Room[BatchFlows]):
    """The batches of a queue. A batch is known by its name: 1 to 64 of A-Z a-z 0-9 . _ : -."""

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
