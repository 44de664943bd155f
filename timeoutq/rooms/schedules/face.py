"""`queue.schedules`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.schedules` gives `Schedules`, and `AsyncQueue.schedules` gives `AsyncSchedules`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Unpack

from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.rooms.schedules.definition import ScheduleInfo, SchedulePage
from timeoutq.rooms.schedules.flows import How, Schedule, ScheduleFlows, When
from timeoutq.verbs import reads
from timeoutq.words.model import Task, TaskId


class Schedules(Room[ScheduleFlows]):
    """The schedules of a queue. A schedule is known by its name, up to 200 bytes of text."""

    def set(
        self,
        name: str,
        task: TaskId | Task | None = None,
        **how: Unpack[How],
    ) -> ScheduleInfo:
        """Put a task again and again: at the times of a line of `cron` in the zone `tz` (UTC), or each `every` seconds.

        The options are those of `Schedule`. Workers and cleaners put the ticks. `task` is an id or a `Task` with a
        payload; without a task, the name is the id. A tick puts the task back if it is done or failed. If the task is
        ready or in progress, the tick is skipped and counted; with `overlap=True` each tick has an id of its own: the
        id, `@`, and the tick in ms.
        `times` ends the schedule after so many ticks; no tick is before `start` or after `until`, aware datetimes.
        `missed` says what becomes of ticks for which nobody was there: `"last"` puts the newest, `"all"` each of them
        (only with `overlap`: else all ticks have one id), `"none"` puts a tick within a minute or never. With `grace`,
        seconds, a tick that is later than this is not put.
        A new schedule does not put ticks of the past. A schedule that is there gets the new definition; if its timing
        is the same, its next tick stays, and if it is paused or has ended, it stays so: `cancel` it first. Before a
        schedule gets another timing, what is due by the old one is put, or counted, as its `missed` says.
        Needs the extra `functions`. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return self._queue.run(self._flows.set(Schedule(name, task, **how)))

    def declare(self, *schedules: Schedule) -> None:
        """Declare the schedules of a program; call this at its start, and again each minute.

        What has not changed costs one call for 500 schedules. A declared schedule that nobody declares for an hour is
        paused, and goes on when it is declared again. If a person has set or moved a schedule of this name, what the
        person has said counts, until it is cancelled. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return self._queue.run(self._flows.declare(schedules))

    def move(self, name: str, **when: Unpack[When]) -> ScheduleInfo:
        """Give a schedule another timing; what it puts stays, and so do its counts, `times` and `until`.

        What is due by the old timing is put before the move, or counted as missed or skipped, as `missed` says.
        A new `times` counts from the move, so the counts begin anew. If code declares the schedule, what the person has
        said counts from now on, until `cancel` gives the schedule back to the code.
        Raises `InvalidInput` if there is no schedule of this name, or if it has put all its `times`.
        """
        return self._queue.run(self._flows.move(name, when))

    def pause(self, name: str) -> ScheduleInfo:
        """Stop a schedule until `resume`. What is due by then is put before the pause, or counted, as `missed` says.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._queue.run(self._flows.pause(name))

    def resume(self, name: str) -> ScheduleInfo:
        """Let a schedule go on with its next tick; the ticks of the pause are not put, but counted as skipped.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._queue.run(self._flows.resume(name))

    def cancel(self, name: str) -> bool:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        A schedule of code that a person has moved or set is given back to the code, which declares it anew within a
        minute. Raises `InvalidInput` for a schedule that code declares and nobody has moved: pause it.
        """
        return self._queue.run(self._flows.cancel(name))

    def get(self, name: str) -> ScheduleInfo | None:
        """Tell all about one schedule; None if there is none of this name."""
        return self._queue.run(self._flows.get(name))

    def list(self, cursor: str | None = None, n: int = 100) -> SchedulePage:
        """Read a page of about `n` schedules, in no order; give the `cursor` of a page to read the next one."""
        return self._queue.run(self._flows.page(cursor, n))

    def each(self) -> Iterator[ScheduleInfo]:
        """Go through all schedules, in no order; each that stays is given at least once."""
        cursor: str | None = reads.START
        while cursor is not None:
            page = self._queue.run(self._flows.page(cursor, 100))
            cursor = page.cursor
            yield from page

    def tick(self) -> int:
        """Put the ticks that are due, as workers and cleaners do by themselves; give the number of tasks put.

        Raises the error of a schedule whose ticks cannot be put, after it has put those of the others.
        """
        return self._queue.run(self._flows.tick())


class AsyncSchedules(AsyncRoom[ScheduleFlows]):
    """The schedules of a queue, for asyncio. A schedule is known by its name, up to 200 bytes of text."""

    async def set(
        self,
        name: str,
        task: TaskId | Task | None = None,
        **how: Unpack[How],
    ) -> ScheduleInfo:
        """Put a task again and again: at the times of a line of `cron` in the zone `tz` (UTC), or each `every` seconds.

        The options are those of `Schedule`. Workers and cleaners put the ticks. `task` is an id or a `Task` with a
        payload; without a task, the name is the id. A tick puts the task back if it is done or failed. If the task is
        ready or in progress, the tick is skipped and counted; with `overlap=True` each tick has an id of its own: the
        id, `@`, and the tick in ms.
        `times` ends the schedule after so many ticks; no tick is before `start` or after `until`, aware datetimes.
        `missed` says what becomes of ticks for which nobody was there: `"last"` puts the newest, `"all"` each of them
        (only with `overlap`: else all ticks have one id), `"none"` puts a tick within a minute or never. With `grace`,
        seconds, a tick that is later than this is not put.
        A new schedule does not put ticks of the past. A schedule that is there gets the new definition; if its timing
        is the same, its next tick stays, and if it is paused or has ended, it stays so: `cancel` it first. Before a
        schedule gets another timing, what is due by the old one is put, or counted, as its `missed` says.
        Needs the extra `functions`. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return await self._queue.run(self._flows.set(Schedule(name, task, **how)))

    async def declare(self, *schedules: Schedule) -> None:
        """Declare the schedules of a program; call this at its start, and again each minute.

        What has not changed costs one call for 500 schedules. A declared schedule that nobody declares for an hour is
        paused, and goes on when it is declared again. If a person has set or moved a schedule of this name, what the
        person has said counts, until it is cancelled. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return await self._queue.run(self._flows.declare(schedules))

    async def move(self, name: str, **when: Unpack[When]) -> ScheduleInfo:
        """Give a schedule another timing; what it puts stays, and so do its counts, `times` and `until`.

        What is due by the old timing is put before the move, or counted as missed or skipped, as `missed` says.
        A new `times` counts from the move, so the counts begin anew. If code declares the schedule, what the person has
        said counts from now on, until `cancel` gives the schedule back to the code.
        Raises `InvalidInput` if there is no schedule of this name, or if it has put all its `times`.
        """
        return await self._queue.run(self._flows.move(name, when))

    async def pause(self, name: str) -> ScheduleInfo:
        """Stop a schedule until `resume`. What is due by then is put before the pause, or counted, as `missed` says.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return await self._queue.run(self._flows.pause(name))

    async def resume(self, name: str) -> ScheduleInfo:
        """Let a schedule go on with its next tick; the ticks of the pause are not put, but counted as skipped.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return await self._queue.run(self._flows.resume(name))

    async def cancel(self, name: str) -> bool:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        A schedule of code that a person has moved or set is given back to the code, which declares it anew within a
        minute. Raises `InvalidInput` for a schedule that code declares and nobody has moved: pause it.
        """
        return await self._queue.run(self._flows.cancel(name))

    async def get(self, name: str) -> ScheduleInfo | None:
        """Tell all about one schedule; None if there is none of this name."""
        return await self._queue.run(self._flows.get(name))

    async def list(self, cursor: str | None = None, n: int = 100) -> SchedulePage:
        """Read a page of about `n` schedules, in no order; give the `cursor` of a page to read the next one."""
        return await self._queue.run(self._flows.page(cursor, n))

    async def each(self) -> AsyncIterator[ScheduleInfo]:
        """Go through all schedules, in no order; each that stays is given at least once."""
        cursor: str | None = reads.START
        while cursor is not None:
            page = await self._queue.run(self._flows.page(cursor, 100))
            cursor = page.cursor
            for info in page:
                yield info

    async def tick(self) -> int:
        """Put the ticks that are due, as workers and cleaners do by themselves; give the number of tasks put.

        Raises the error of a schedule whose ticks cannot be put, after it has put those of the others.
        """
        return await self._queue.run(self._flows.tick())
