"""`app.schedules`, calls that are put again and again, and the schedules that decorators declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, Unpack, cast

import msgspec

from timeoutq.functions import calls, limits, options
from timeoutq.functions.calls import FunctionCall, Program, TaskFunction
from timeoutq.functions.client import Steps, through
from timeoutq.functions.envelope import LIMIT, Secrets
from timeoutq.functions.errors import CallTooLarge
from timeoutq.functions.options import Limit
from timeoutq.rooms.schedules.definition import STAMP_ROOM, How, Schedule, ScheduleInfo, Stamped, When, checked
from timeoutq.rooms.schedules.flows import Schedules
from timeoutq.verbs.sending import Flow
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Task, text
from timeoutq.words.retry import Delay

T = TypeVar("T")

_NOT_SCHEDULED = ("id", "at", "after", "unique", "rerun")  # what nobody can choose for a call that a schedule puts


def task_of(
    name: str, call: FunctionCall[Any], secrets: Secrets, *, overlap: bool, grace: Delay | None,
    expires: Delay | None = None,
) -> tuple[str, Task]:  # fmt: skip
    """Give the queue of a call, and the task that the ticks of this schedule put; the schedule's name is its id.

    A call begins within `grace` of its tick, and within `expires` (by default that of the call), or never.
    """
    id = checked(name)
    whose = f"{call.function}() is called by schedule {shown(name)}"
    call.chosen.refuse(_NOT_SCHEDULED, f"{whose}, which says when, and whose name is the id")
    if call.following:
        raise InvalidInput(
            f"schedule {shown(name)} takes one call, and this is a chain: let {call.function}() put the calls that "
            "follow, or schedule a function that does"
        )
    given = call.chosen.expires if expires is None else options.checked("expires", expires)
    if isinstance(given, datetime):
        raise InvalidInput(f"{whose}: expires= is seconds or a timedelta here, which count from each tick")
    spans = [one for one in (given or call.settings.expires,) if one is not None]
    if grace is not None:
        spans.append(arguments.delay_ms(grace, "grace") / 1000)
    own = msgspec.structs.replace(call, chosen=replace(call.chosen, id=id, expires=None))
    put = calls.posted(own, secrets, ticks=overlap and bool(secrets), lasts=min(spans, default=None))
    size = len(put.payload) + STAMP_ROOM
    if size > LIMIT:
        raise CallTooLarge(
            f"the call of schedule {shown(name)} has {size:,} bytes with the time of its tick; the limit is {LIMIT:,}: "
            "store the data elsewhere and pass its address", size=size, limit=LIMIT,
        )  # fmt: skip
    return put.queue, Task(text(put.id), Stamped(put.payload), put.group, priority=put.priority)


def declaring(app: Program, queue: str, flows: Any) -> Callable[[], Flow[None]] | None:
    """Give what declares the schedules of a queue's functions, at the start of a worker and each minute; None for none.

    Those of functions without a limit come first: the queue may keep no limits.
    """
    free, limited, groups = list[Schedule](), list[Schedule](), dict[str, Limit]()
    for name, function in app.functions.items():
        timed, limit = function.settings.timed, function.settings.limit
        if timed is None or function.settings.queue != queue:
            continue
        _, task = task_of(name, function.call(), app.secrets, overlap=timed.overlap, grace=timed.grace)
        (free if limit is None else limited).append(replace(timed, name=name, task=task))
        if limit is not None and task.group is not None:
            groups[task.group] = limit
    untimed = app.functions.keys() - {one.name for one in (*free, *limited)}

    def declare_all() -> Flow[None]:
        if free:
            yield from flows.schedules.declare(*free)
        if limited:
            yield from limits.declare(flows, groups)
            yield from flows.schedules.declare(*limited)
        if untimed:
            yield from flows.schedules.leave(sorted(untimed))

    return declare_all if free or limited or untimed else None


class AppSchedules:
    """The schedules in the queues of an app. The methods that begin with `a` do the same for asyncio."""

    def __init__(self, app: Program) -> None:
        self._app = app
        self._sender = app.sender

    def set(
        self, name: str, call: FunctionCall[Any], /, *, expires: Delay | None = None, **how: Unpack[How]
    ) -> ScheduleInfo:
        """Put a call again and again: at the times of a line of `cron` in the zone `tz` (UTC), or each `every` seconds.

        The name of the schedule is the id of the call: while a call is ready or in progress, further ticks are skipped
        and counted. With `overlap=True` each tick has an id of its own: the name, `@`, and the tick in ms. `times`,
        `start`, `until`, `missed` and `grace` are as for `Queue.schedules.set`. A call that has not begun `grace` or
        `expires` seconds after its tick never begins. Blocks.
        Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return self._sender.do(self._setting(name, call, expires, how))

    async def aset(
        self, name: str, call: FunctionCall[Any], /, *, expires: Delay | None = None, **how: Unpack[How]
    ) -> ScheduleInfo:
        """Do as `set`, for asyncio."""
        return await self._sender.ado(self._setting(name, call, expires, how))

    def move(self, name: str, /, *, queue: str | None = None, **when: Unpack[When]) -> ScheduleInfo:
        """Give a schedule another timing; what it calls stays, and so do its counts, `times` and `until`.

        A new `times` counts from the move. `queue` is its queue, if several of the app's have it. Raises `InvalidInput`
        if there is no schedule of this name, if it has put all its `times`, or if a decorator declares it.
        """
        return self._sender.do(self._asking(name, queue, lambda found: found.move(name, **when)))

    async def amove(self, name: str, /, *, queue: str | None = None, **when: Unpack[When]) -> ScheduleInfo:
        """Do as `move`, for asyncio."""
        return await self._sender.ado(self._asking(name, queue, lambda found: found.move(name, **when)))

    def pause(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Stop a schedule until `resume`. Raises `InvalidInput` if there is none of this name, or it has ended."""
        return self._sender.do(self._asking(name, queue, lambda found: found.pause(name)))

    async def apause(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Do as `pause`, for asyncio."""
        return await self._sender.ado(self._asking(name, queue, lambda found: found.pause(name)))

    def resume(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Let a schedule go on with its next tick; the ticks of the pause are not put. Raises `InvalidInput`."""
        return self._sender.do(self._asking(name, queue, lambda found: found.resume(name)))

    async def aresume(self, name: str, *, queue: str | None = None) -> ScheduleInfo:
        """Do as `resume`, for asyncio."""
        return await self._sender.ado(self._asking(name, queue, lambda found: found.resume(name)))

    def cancel(self, name: str, *, queue: str | None = None) -> bool:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        Raises `InvalidInput` for a schedule that a decorator declares: pause it.
        """
        return self._sender.do(self._asking(name, queue, lambda found: found.cancel(name)))

    async def acancel(self, name: str, *, queue: str | None = None) -> bool:
        """Do as `cancel`, for asyncio."""
        return await self._sender.ado(self._asking(name, queue, lambda found: found.cancel(name)))

    def list(self, *, queue: str | None = None) -> Mapping[str, Sequence[ScheduleInfo]]:
        """Give the schedules of each queue, sorted by their names."""
        return self._sender.do(self._listing(queue))

    async def alist(self, *, queue: str | None = None) -> Mapping[str, Sequence[ScheduleInfo]]:
        """Do as `list`, for asyncio."""
        return await self._sender.ado(self._listing(queue))

    # ---- steps

    def _setting(self, name: str, call: FunctionCall[Any], expires: Delay | None, how: How) -> Steps[ScheduleInfo]:
        if not isinstance(call, FunctionCall) or call.home is not self._app:  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
            named = f"{call.name}.call(…)" if isinstance(call, TaskFunction) else "a call of it, as send.call(…) makes"
            raise InvalidInput(f"a schedule of {self._app!r} takes {named}, not {shown(call)}")
        overlap, grace = bool(how.get("overlap")), how.get("grace")
        queue, task = task_of(name, call, self._app.secrets, overlap=overlap, grace=grace, expires=expires)
        if call.group is not None and call.settings.limit is not None:
            yield from self._sender.declaring(queue, {call.group: call.settings.limit})
        found = yield queue, lambda opened: opened.schedules.set(name, task, **how)
        return cast("ScheduleInfo", found)

    def _asking(self, name: str, queue: str | None, ask: Callable[[Schedules], T]) -> Steps[T]:
        """Ask the schedules of the queue that has this one."""
        names, having = self._named(queue), list[str]()
        for one in names if len(names) > 1 else ():
            if (yield one, lambda opened: opened.schedules.get(name)) is not None:
                having.append(one)
        if len(having) > 1:
            raise InvalidInput(f"schedule {shown(name)} is in the queues {', '.join(having)}: say queue=")
        found = yield next(iter(having), names[0]), lambda opened: ask(opened.schedules)
        return cast("T", found)

    def _listing(self, queue: str | None) -> Steps[Mapping[str, Sequence[ScheduleInfo]]]:
        found: dict[str, Sequence[ScheduleInfo]] = {}
        for name in self._named(queue):
            infos = yield name, lambda opened: opened.run(through(opened.flows.schedules.each()))
            found[name] = sorted({info.name: info for info in infos}.values(), key=lambda info: info.name)
        return found

    def _named(self, queue: str | None) -> Sequence[str]:
        return self._app.queues.names if queue is None else (self._app.queues.one(queue),)
