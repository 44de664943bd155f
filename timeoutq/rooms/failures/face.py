"""`queue.failures`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.failures` gives `Failures`, and `AsyncQueue.failures` gives `AsyncFailures`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from timeoutq.rooms.failures.flows import FORGET, RETRY, FailureFlows
from timeoutq.rooms.failures.operations import FailureKind, Moved
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.words.model import Page

Found: TypeAlias = list[FailureKind]
"""In the classes below, `list` is a method."""


class Failures(Room[FailureFlows]):
    """The failed tasks of a queue, grouped by kind."""

    def list(self, n: int = 100) -> Found:
        """Tell about the `n` kinds of failures with most tasks, those with most tasks first.

        A task is grouped when it is given up, by the type and the first line of its error. What differs from task to
        task is left out: URLs, the id of the task, and numbers, but not codes such as HTTP 404. A queue tells a
        thousand kinds apart; the tasks of all others are counted together, as the kind `other`. However many tasks have
        failed, this asks for counts only.
        """
        return self._queue.run(self._flows.kinds(n))

    def tasks(self, kind: FailureKind | str, cursor: str | None = None, n: int = 100) -> Page:
        """Read a page of the tasks of a kind, with their errors; the task that was given up last comes first.

        `kind` is a `FailureKind`, its id or its text. Give the `cursor` of a page to read the next one. Tasks that
        come or go meanwhile may be missed, or seen twice. Raises `InvalidInput` for what names no kind.
        """
        return self._queue.run(self._flows.tasks(kind, cursor, n))

    def retry(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Moved:
        """Make the tasks of a kind ready again, with a clean record; those that were given up first go first.

        It goes on part by part, up to 500 tasks in a call, until no task is left that was given up before it began:
        what fails anew is not retried again. With `at_most` it stops after so many tasks: `left` of the answer says how
        many are left, and who goes on later gives `before` of the answer. Whoever is interrupted calls it again. If the
        kind has no tasks, nothing is moved. Raises `InvalidInput` for what names no kind.
        """
        return self._queue.run(self._flows.move(RETRY, kind, at_most, before))

    def forget(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Moved:
        """Remove the tasks of a kind from the queue, those that were given up first go first.

        It goes on part by part, and `at_most` and `before` are as in `retry`. A task that is retried meanwhile is not
        removed.
        """
        return self._queue.run(self._flows.move(FORGET, kind, at_most, before))


class AsyncFailures(AsyncRoom[FailureFlows]):
    """The failed tasks of a queue, grouped by kind, for asyncio."""

    async def list(self, n: int = 100) -> Found:
        """Tell about the `n` kinds of failures with most tasks, those with most tasks first.

        A task is grouped when it is given up, by the type and the first line of its error. What differs from task to
        task is left out: URLs, the id of the task, and numbers, but not codes such as HTTP 404. A queue tells a
        thousand kinds apart; the tasks of all others are counted together, as the kind `other`. However many tasks have
        failed, this asks for counts only.
        """
        return await self._queue.run(self._flows.kinds(n))

    async def tasks(self, kind: FailureKind | str, cursor: str | None = None, n: int = 100) -> Page:
        """Read a page of the tasks of a kind, with their errors; the task that was given up last comes first.

        `kind` is a `FailureKind`, its id or its text. Give the `cursor` of a page to read the next one. Tasks that
        come or go meanwhile may be missed, or seen twice. Raises `InvalidInput` for what names no kind.
        """
        return await self._queue.run(self._flows.tasks(kind, cursor, n))

    async def retry(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Moved:
        """Make the tasks of a kind ready again, with a clean record; those that were given up first go first.

        It goes on part by part, up to 500 tasks in a call, until no task is left that was given up before it began:
        what fails anew is not retried again. With `at_most` it stops after so many tasks: `left` of the answer says how
        many are left, and who goes on later gives `before` of the answer. Whoever is interrupted calls it again. If the
        kind has no tasks, nothing is moved. Raises `InvalidInput` for what names no kind.
        """
        return await self._queue.run(self._flows.move(RETRY, kind, at_most, before))

    async def forget(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Moved:
        """Remove the tasks of a kind from the queue, those that were given up first go first.

        It goes on part by part, and `at_most` and `before` are as in `retry`. A task that is retried meanwhile is not
        removed.
        """
        return await self._queue.run(self._flows.move(FORGET, kind, at_most, before))
