"""`app.schedules`, calls that are put again and again, and the schedules that decorators declare.

A schedule is kept in the queue of its call. Workers and cleaners put its ticks, as for any schedule of a queue; here a
call becomes the task that the ticks put.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack

import msgspec

from timeoutq.client.shards import AnyAsyncQueue, AnyQueue
from timeoutq.functions import calls, limits
from timeoutq.functions.calls import Call
from timeoutq.functions.envelope import LIMIT, Secrets
from timeoutq.functions.errors import CallTooLarge
from timeoutq.functions.options import Queues
from timeoutq.functions.posting import Posting
from timeoutq.functions.sender import Sender
from timeoutq.functions.task import TaskFunction
from timeoutq.rooms.schedules.definition import STAMP_ROOM, ScheduleInfo, Stamped
from timeoutq.rooms.schedules.flows import How, Schedule, ScheduleFlows, When, checked
from timeoutq.verbs.sending import Flow
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Task, text

_NOT_SCHEDULED = ("id", "at", "after", "unique", "rerun")
"""What nobody can choose for a call that a schedule puts."""


class Program(Protocol):
    """What says when functions are called by themselves."""

    @property
    def functions(self) -> Mapping[str, TaskFunction[..., Any]]:
        """The functions by their names."""
        ...

    secrets: Secrets


class HasSchedules(limits.HasHosts, Protocol):
    """The flows of a queue, with those about schedules."""

    schedules: ScheduleFlows


class Home(Program, Protocol):
    """What schedules need of an app."""

    @property
    def sender(self) -> Sender:
        """What puts calls."""
        ...

    queues: Queues


def task_of(name: str, call: Call[Any], secrets: Secrets, *, overlap: bool) -> tuple[str, Task]:
    """Give the queue of a call, and the task that the ticks of this schedule put.

    The name of the schedule is the id, to which `overlap` adds the tick; each tick adds its time to the payload.
    Raises `CallTooLarge`, and `InvalidInput` for what is no name, and for options that say when, or under which id.
    """
    id = checked(name)
    wrong = [f"{one}=" for one in call.chosen.named if one in _NOT_SCHEDULED]
    if wrong:
        raise InvalidInput(
            f"{call.function}() is called by schedule {shown(name)}, which says when, and whose name is the id: leave "
            f"out {', '.join(wrong)}"
        )
    if call.following:
        raise InvalidInput(
            f"schedule {shown(name)} takes one call, and this is a chain: let {call.function}() put the calls that "
            "follow, or schedule a function that does"
        )
    own = msgspec.structs.replace(call, chosen=replace(call.chosen, id=id))
    travels = msgspec.structs.replace(calls.travelling(own.chosen), ticks=overlap and bool(secrets))
    put = calls.posted(own, secrets, travels, is_now=False)
    size = len(put.payload) + STAMP_ROOM
    if size > LIMIT:
        raise CallTooLarge(
            f"the call of schedule {shown(name)} has {size:,} bytes with the time of its tick; the limit is {LIMIT:,}: "
            "store the data elsewhere and pass its address", size=size, limit=LIMIT,
        )  # fmt: skip
    return put.queue, Task(text(put.id), Stamped(put.payload), put.group, priority=put.priority)


def declared(app: Program, queue: str) -> list[Schedule]:
    """Give the schedules that decorators say for the functions of one queue: each has the name of its function."""
    found: list[Schedule] = []
    for name, function in app.functions.items():
        timed = function.settings.timed
        if timed is not None and function.settings.queue == queue:
            _, task = task_of(name, function.call(), app.secrets, overlap=timed.overlap)
            found.append(replace(timed, name=name, task=task))
    return found


async def declare(app: Program, queue: AnyAsyncQueue) -> None:
    """Declare the schedules of a queue's functions, and before that the limits of their calls.

    Workers do so at their start, and again each minute. One that nobody declares for an hour is paused; one whose
    function is here, without a time, after three minutes.
    Raises what `AsyncQueue.schedules.declare` raises, and `InvalidInput` if the queue keeps no limits: then the
    schedules of functions without a limit have been declared.
    """
    make = declaring(app, queue.name, queue.flows)
    if make is not None:
        await queue.run(make())


def declaring(app: Program, queue: str, flows: HasSchedules) -> Callable[[], Flow[None]] | None:
    """Give what declares the schedules of a queue's functions, as often as it is called; None for an app without any.

    A schedule that bears the name of a function whose code says no time any more, or another queue, is paused.
    """
    found = declared(app, queue)
    wanted = {name: one.settings.limit for name, one in app.functions.items() if one.settings.limit is not None}
    free = [one for one in found if one.name not in wanted]
    kept = [one for one in found if one.name in wanted]
    names = {one.name for one in found}
    untimed = [name for name in app.functions if name not in names]

    def declare_all() -> Flow[None]:
        if free:
            yield from flows.schedules.declare(*free)
        if kept:
            groups = {one.task.group: wanted[one.name] for one in kept if isinstance(one.task, Task)}
            yield from limits.declare(flows, {group: one for group, one in groups.items() if group is not None})
            yield from flows.schedules.declare(*kept)
        if untimed:
            yield from flows.schedules.leave(untimed)

    return declare_all if found or untimed else None


class AppSchedules:
    """The schedules in the queues of an app. The methods that begin with `a` do the same for asyncio."""

    def __init__(self, app: Home) -> None:
        """Prepare; asks nobody yet."""
        self._app = app

    def set(self, name: str, call: Call[Any], /, **how: Unpack[How]) -> ScheduleInfo:
        """Put a call again and again: at the times of a line of `cron` in the zone `tz` (UTC), or each `every` seconds.

        The name of the schedule is the id of the call: while a call is ready or in progress, further ticks are skipped
        and counted. With `overlap=True` each tick has an id of its own: the name, `@`, and the tick in ms. `times`,
        `start`, `until`, `missed` and `grace` are as for `Queue.schedules.set`. Blocks.
        Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        queue, task = task_of(name, self._own(call), self._app.secrets, overlap=bool(how.get("overlap")))
        _posting(self._app.sender).declare(queue, call.group, call.settings.limit)
        return self._queue(queue).schedules.set(name, task, **how)

    async def aset(self, name: str, call: Call[Any], /, **how: Unpack[How]) -> ScheduleInfo:
        """Do as `set`, for asyncio."""
        queue, task = task_of(name, self._own(call), self._app.secrets, overlap=bool(how.get("overlap")))
        await _posting(self._app.sender).adeclare(queue, call.group, call.settings.limit)
        return await (await self._aqueue(queue)).schedules.set(name, task, **how)

    def move(self, name: str, /, *, queue: str | None = None, **when: Unpack[When]) -> ScheduleInfo:
        """Give a schedule another timing; what it calls stays, and so do its counts, `times` and `until`.

        A new `times` counts from the move. A decorator's schedule that was moved does not follow its code any more,
        until `cancel` gives it back. `queue` is its queue, if several of the app's have it.
        Raises `InvalidInput` if there is no schedule of this name, or if it has put all its `times`.
        """
        return self._with(name, queue).schedules.move(name, **when)

    async def amove(self, name: str, /, *, queue: str | None = None, **when: Unpack[When]) -> ScheduleInfo:
        """Do as `move`, for asyncio."""
        return await (await self._awith(name, queue)).schedules.move(name, **when)

    def pause(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Stop a schedule until `resume`. Raises `InvalidInput` if there is none of this name, or it has ended."""
        return self._with(name, queue).schedules.pause(name)

    async def apause(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Do as `pause`, for asyncio."""
        return await (await self._awith(name, queue)).schedules.pause(name)

    def resume(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Let a schedule go on with its next tick; the ticks of the pause are not put. Raises `InvalidInput`."""
        return self._with(name, queue).schedules.resume(name)

    async def aresume(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Do as `resume`, for asyncio."""
        return await (await self._awith(name, queue)).schedules.resume(name)

    def cancel(self, name: str, *, queue: str | None = None) -> bool:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        A decorator's schedule that was moved or set is given back to the code: workers declare it anew within a minute.
        Raises `InvalidInput` for a schedule that code declares and nobody has moved: pause it.
        """
        return self._with(name, queue).schedules.cancel(name)

    async def acancel(self, name: str, *, queue: str | None = None) -> bool:
        """Do as `cancel`, for asyncio."""
        return await (await self._awith(name, queue)).schedules.cancel(name)

    def list(self, *, queue: str | None = None) -> Mapping[str, Sequence[ScheduleInfo]]:
        """Give the schedules of each queue, sorted by their names."""
        found = {one: list(self._queue(one).schedules.each()) for one in self._named(queue)}
        return {one: sorted(infos, key=lambda info: info.name) for one, infos in found.items()}

    async def alist(self, *, queue: str | None = None) -> Mapping[str, Sequence[ScheduleInfo]]:
        """Do as `list`, for asyncio."""
        found = {one: [info async for info in (await self._aqueue(one)).schedules.each()] for one in self._named(queue)}
        return {one: sorted(infos, key=lambda info: info.name) for one, infos in found.items()}

    # ---- which queue

    def _own(self, call: Call[Any]) -> Call[Any]:
        home: object = getattr(call, "home", None)
        if not isinstance(call, Call) or home is not self._app:  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
            named = f"{call.name}.call(…)" if isinstance(call, TaskFunction) else "a call of it, as send.call(…) makes"
            raise InvalidInput(f"a schedule of {self._app!r} takes {named}, not {shown(call)}")
        return call

    def _named(self, queue: str | None) -> Sequence[str]:
        return self._app.queues.names if queue is None else (self._app.queues.one(queue),)

    def _with(self, name: str, queue: str | None) -> AnyQueue:
        names = self._named(queue)
        if len(names) == 1:
            return self._queue(names[0])
        return self._queue(
            _one(name, [one for one in names if self._queue(one).schedules.get(name) is not None], names)
        )

    async def _awith(self, name: str, queue: str | None) -> AnyAsyncQueue:
        names = self._named(queue)
        if len(names) == 1:
            return await self._aqueue(names[0])
        having = [one for one in names if await (await self._aqueue(one)).schedules.get(name) is not None]
        return await self._aqueue(_one(name, having, names))

    def _queue(self, name: str) -> AnyQueue:
        return _posting(self._app.sender).queue(name)

    async def _aqueue(self, name: str) -> AnyAsyncQueue:
        return await _posting(self._app.sender).aqueue(name)


def _posting(sender: Sender) -> Posting:
    if not isinstance(sender, Posting):
        raise InvalidInput(f"schedules are kept in queues, and {shown(sender)} has none: give the app a Posting(url)")
    return sender


def _one(name: str, having: Sequence[str], names: Sequence[str]) -> str:
    if len(having) > 1:
        raise InvalidInput(f"schedule {shown(name)} is in the queues {', '.join(having)}: say queue=")
    return having[0] if having else names[0]  # which says that it has none of this name
