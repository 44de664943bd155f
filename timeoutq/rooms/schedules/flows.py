"""`queue.schedules`: what it does, and its two faces, `Schedules` and `AsyncSchedules`. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack, cast

from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.rooms.schedules import ticking
from timeoutq.rooms.schedules.definition import (
    LETTERS,
    STATES,
    Definition,
    ScheduleInfo,
    SchedulePage,
    Source,
    Stored,
    call_named,
    call_page,
    call_renew,
    call_write,
)
from timeoutq.rooms.schedules.ticking import tick_due
from timeoutq.rooms.schedules.timing import Timing, count, is_tick, lateness, next_after, schedule_name
from timeoutq.server.calls import BATCH, Command
from timeoutq.verbs import reads
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, Unavailable
from timeoutq.words.model import Task, TaskId, text
from timeoutq.words.text import counted, safe

DECLARED_MS = 180_000
"""Code that runs declares its schedules each minute: after this time, it does not any more."""
TRIES = 20
"""How often a change is tried again when somebody else has changed the schedule meanwhile."""


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

    def when(self) -> When:
        """Give the words that say when it ticks."""
        return When(cron=self.cron, tz=self.tz, every=self.every, times=self.times, start=self.start, until=self.until)


@dataclass(frozen=True, slots=True)
class Health:
    """What doctor wants to know of the schedules of a queue."""

    counts: Mapping[str, int]
    """How many are in each state."""
    undeclared: Sequence[str]
    next: float | None

    def says(self) -> tuple[str, str, str]:
        """Give green or yellow, what was found, and the cure."""
        many = counted(sum(self.counts.values()), "schedule")
        if not self.undeclared:
            return "green", f"{many}, {self.counts.get('running', 0):,} of them running", ""
        names = ", ".join(safe(name) for name in self.undeclared[:5])
        return (
            "yellow",
            f"of {many}, {len(self.undeclared):,} paused, because no code declares them: {names}",
            "start the worker whose code declares them, or cancel them: queue.schedules.cancel(name)",
        )


def checked(name: object) -> bytes:
    """Check the name of a schedule."""
    return schedule_name(name).encode()


def timing_of(when: When) -> Timing:
    """Check when a schedule ticks."""
    return Timing.of(**when)


def defined(schedule: Schedule) -> tuple[bytes, Definition]:
    """Check a schedule, and give its name and its definition."""
    if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]  # what callers pass
        raise InvalidInput(f"declare() takes a Schedule(name, …), not {shown(schedule)}")
    name, timing = checked(schedule.name), timing_of(schedule.when())
    missed, grace_ms = lateness(schedule.missed, schedule.grace, overlap=schedule.overlap)
    found = Definition.of(schedule.name, schedule.task, timing.text(), missed, grace_ms, schedule.overlap)
    return name, found


Change = dict[str, Any]
"""The arguments of `call_write` that say what a schedule becomes, `state` and `next_ms` among them."""


def _changed(
    talk: Talk, name: bytes, choose: Callable[[int, Stored | None], Change | None], *, puts: bool = True
) -> Flow[Stored | None]:
    # `choose` says, from the time and what is stored, what the schedule becomes, None to leave it. What is due is put
    # before the schedule changes. Gives what is stored then
    for _ in range(TRIES):
        now_ms, before = yield from read(talk, name)
        wanted = choose(now_ms, before)
        if wanted is None:
            return before
        moves = before is not None and wanted["next_ms"] != before.next_ms
        late = puts and (moves or wanted["state"] != "r") and _is_due(before, now_ms)
        if late and (yield from _settled(talk, name, before, now_ms))[1] is not before:
            continue
        skipped = _left_out(before, now_ms) if moves and puts else 0
        call = call_write(talk.operations, talk.nonce(), name, before, **wanted, skipped=skipped, unread=late)
        letter = yield from answer(talk, call)
        if letter == "F":
            raise InvalidInput(
                f"queue {talk.operations.name!r} has 10,000 schedules, and takes no more: cancel some, or let a task "
                "schedule others, with queue.schedule"
            )
        if letter == "O":
            return (yield from read(talk, name))[1]
    raise Unavailable(f"schedule {shown(text(name))} was changed by others {TRIES} times in a row: try again")


def write(talk: Talk, name: bytes, wanted: Definition, source: Source) -> Flow[Stored]:
    """Set a schedule, or declare one of code; give what is stored then."""

    def choose(now_ms: int, before: Stored | None) -> Change | None:
        if source == "code" and before is not None and before.source == "set":
            return None
        return _fitted(wanted, before, now_ms, source)

    return _there(talk, name, (yield from _changed(talk, name, choose)))


def _fitted(wanted: Definition, before: Stored | None, now_ms: int, source: Source, *, anew: bool = False) -> Change:
    # what a schedule becomes that gets this definition
    old: Timing | None = None
    over_code = source == "set" and before is not None and before.source == "code"
    if before is not None:
        try:
            definition = Definition.read(before.text)
            over_code = over_code or (source == "set" and definition.over_code)
            old = Timing.read(definition.timing)
        except InvalidInput:
            old = None  # a definition that cannot be read is replaced
    asked, after_ms, goes_on = Timing.read(wanted.timing), now_ms, False
    timing = asked.anchored(now_ms, old)
    if source == "code" and before is not None and before.state == "running" and old is not None and old.every_ms:
        timing = asked.continuing(now_ms, old, before.last_ms)
        if asked.every_ms and asked.start_ms is None and timing.start_ms is not None:
            after_ms, goes_on = max(timing.start_ms, now_ms - 1), asked.times == old.times
    definition = replace(wanted, timing=timing.text(), declared_ms=now_ms, over_code=over_code)
    change: Change = {"definition": definition, "digest": wanted.digest(), "source": source[0]}
    if before is not None and old is not None and old.text() == timing.text() and not anew:
        state = "r" if before.state == "undeclared" else LETTERS[before.state]
        return {**change, "state": state, "next_ms": before.next_ms}
    found = next_after(timing, after_ms)
    if found is None:
        raise InvalidInput(f"schedule {shown(str(timing))} would never tick: its until= is over")
    state = "p" if before is not None and before.state == "paused" else "r"
    return {**change, "state": state, "next_ms": found, "anew": before is not None and not goes_on}


def read(talk: Talk, name: bytes) -> Flow[tuple[int, Stored | None]]:
    """Read one schedule, and the time of the server, ms."""
    rows = yield from answer(talk, call_named(talk.operations, name), UNCONFIRMED)
    return rows.now_ms, rows.found[0] if rows.found else None


def _there(talk: Talk, name: bytes, found: Stored | None) -> Stored:
    if found is None:
        raise InvalidInput(
            f"queue {talk.operations.name!r} has no schedule {shown(text(name))}: 'timeoutq schedules list "
            f"{talk.operations.name}' names those that it has"
        )
    return found


def _is_due(before: Stored | None, now_ms: int) -> bool:
    return before is not None and before.state == "running" and 0 < before.next_ms <= now_ms


def _settled(talk: Talk, name: bytes, before: Stored | None, now_ms: int) -> Flow[tuple[int, Stored | None]]:
    # what is due of a schedule that is to change is put by the definition that it still has, or counted as missed;
    # gives the time and the schedule, which is `before` itself if nothing was due. One that cannot be read stays
    while before is not None and _is_due(before, now_ms):
        try:
            call = ticking.tick(talk, before, now_ms)
        except InvalidInput:
            break
        try:
            yield from answer(talk, call)
        except InvalidInput:
            yield from answer(talk, ticking.tick(talk, before, now_ms, puts=False))
        now_ms, before = yield from read(talk, name)
    return now_ms, before


def _left_out(before: Stored | None, now_ms: int) -> int:
    # how many ticks came while a schedule was paused
    if before is None or before.state not in ("paused", "undeclared") or not before.next_ms:
        return 0
    try:
        timing = Timing.read(Definition.read(before.text).timing)
    except InvalidInput:
        return 0
    return count(timing, before.next_ms - 1, now_ms) + (
        before.next_ms <= now_ms and not is_tick(timing, before.next_ms)
    )


def change(talk: Talk, name: bytes, to: str, when: Timing | None = None) -> Flow[ScheduleInfo]:
    """Move, pause or resume a schedule. Raises `InvalidInput` if there is none."""

    def choose(now_ms: int, before: Stored | None) -> Change | None:
        before = _there(talk, name, before)
        if when is not None:
            wanted, anew = _moved(before, when)
            return {**_fitted(wanted, before, now_ms, "set", anew=anew), "anew": anew}
        if to == "pause" and before.state == "ended":
            raise InvalidInput(f"schedule {shown(text(name))} has ended: there is nothing to pause")
        if to == "pause":
            return {"state": "p", "next_ms": before.next_ms}
        return None if before.state == "running" else {"state": "r", "next_ms": _resumed(before, now_ms)}

    return _there(talk, name, (yield from _changed(talk, name, choose))).info()


def _moved(before: Stored, when: Timing) -> tuple[Definition, bool]:
    # the definition with another timing, and whether the counts begin anew: times and until stay unless they are given
    definition = Definition.read(before.text)
    old = Timing.read(definition.timing)
    if when.times is None and old.times is not None and before.put >= old.times:
        raise InvalidInput(
            f"schedule {shown(text(before.name))} has put its {counted(old.times, 'tick')}: move it with times=, which "
            "counts from the move"
        )
    times = old.times if when.times is None else when.times
    until_ms = old.until_ms if when.until_ms is None else when.until_ms
    return replace(definition, timing=replace(when, times=times, until_ms=until_ms).text()), when.times is not None


def _resumed(before: Stored, now_ms: int) -> int:
    # ticks of the time in which it was paused are not put
    timing = Timing.read(Definition.read(before.text).timing)
    found = next_after(timing, now_ms)
    if found is None or before.state == "ended":
        raise InvalidInput(
            f"schedule {shown(text(before.name))} has ended: cancel it, and set it again with another until= or times="
        )
    return found


def cancel(talk: Talk, name: bytes) -> Flow[bool]:
    """Remove a schedule; say whether there was one."""
    was_there = False

    def choose(now_ms: int, before: Stored | None) -> Change | None:
        nonlocal was_there
        if before is None:
            return None
        if before.source == "code" and before.state != "undeclared" and now_ms - before.renewed_ms < DECLARED_MS:
            raise InvalidInput(
                f"code declares schedule {shown(text(name))}, which would be there again within a minute: pause it, or "
                "remove it from the code"
            )
        was_there = True
        return {"state": "x", "next_ms": 0}

    yield from _changed(talk, name, choose, puts=False)
    return was_there


def declare(talk: Talk, wanted: Mapping[bytes, Definition]) -> Flow[None]:
    """Declare schedules of code: one call for 500 that have not changed."""
    names = list(wanted)
    for at in range(0, len(names), BATCH):
        part = names[at : at + BATCH]
        call = call_renew(talk.operations, {name: wanted[name].digest() for name in part})
        letters = yield from answer(talk, call, UNCONFIRMED)
        for name, letter in zip(part, letters, strict=True):
            if letter == "N":
                yield from write(talk, name, wanted[name], "code")


def leave(talk: Talk, names: Sequence[bytes]) -> Flow[None]:
    """Pause those schedules of code that no code has declared for three minutes. What is due is put before."""

    def choose(now_ms: int, before: Stored | None) -> Change | None:
        if before is None or (before.source, before.state) != ("code", "running"):
            return None
        return {"state": "u", "next_ms": before.next_ms} if now_ms - before.renewed_ms >= DECLARED_MS else None

    for at in range(0, len(names), BATCH):
        rows = yield from answer(talk, call_named(talk.operations, *names[at : at + BATCH]), UNCONFIRMED)
        for one in rows.found:
            if choose(rows.now_ms, one) is not None:
                yield from _changed(talk, one.name, choose)


def page(talk: Talk, cursor: str | None, n: int) -> Flow[SchedulePage]:
    """Read a page of about `n` schedules, from where the last page ended."""
    return _page(talk, arguments.cursor(cursor), arguments.count(n, high=500))


def _page(talk: Talk, cursor: str, n: int) -> Flow[SchedulePage]:
    rows = yield from answer(talk, call_page(talk.operations, cursor, n), UNCONFIRMED)
    found, unread = list[ScheduleInfo](), list(rows.lost)
    for stored in rows.found:
        try:
            found.append(stored.info())
        except InvalidInput:
            unread.append(text(stored.name))
    return SchedulePage(found, None if rows.cursor == "0" else rows.cursor, unread)


def restore(talk: Talk, stored: Stored) -> Flow[bool]:
    """Bring a schedule of an export in as it was; say whether it was new here: one that is there stays as it is."""
    _, before = yield from read(talk, stored.name)
    if before is not None:
        return False
    wanted: Change = {
        "state": LETTERS[stored.state], "next_ms": stored.next_ms, "definition": Definition.read(stored.text),
        "digest": stored.digest, "source": stored.source[0],
        "counts": (stored.last_ms, stored.put, stored.skipped, stored.missed),
    }  # fmt: skip
    yield from _changed(talk, stored.name, lambda _, before: wanted if before is None else None, puts=False)
    return True


def one(talk: Talk, name: bytes) -> Flow[ScheduleInfo | None]:
    """Read one schedule; None if there is none of this name."""
    _, found = yield from read(talk, name)
    return None if found is None else found.info()


def health(talk: Talk) -> Flow[Health]:
    """Count schedules, for doctor."""
    key = talk.operations.key
    counts, undeclared = Counter[str](), list[str]()
    cursor = "0"
    while True:
        commands: list[Command] = [
            ("ZRANGE", key("ticks"), 0, 0, "WITHSCORES"), ("HSCAN", key("ticked"), cursor, "COUNT", 1000),
        ]  # fmt: skip
        first, (following, found) = yield from ask(talk, commands)
        rows: Any = found
        records: list[tuple[Any, Any]] = (
            list(cast("Any", rows).items()) if isinstance(rows, dict) else reads.pairs_of(rows)
        )
        for name, record in records:
            state = STATES.get(bytes(record)[:1], "ended")
            counts[state] += 1
            if state == "undeclared":
                undeclared.append(text(name))
        further = reads.next_cursor(following)
        if further is None:
            ticks = [float(at) / 1000 for _, at in reads.pairs_of(first)]
            return Health(counts, sorted(set(undeclared)), ticks[0] if ticks else None)
        cursor = further


def tick(talk: Talk) -> Flow[int]:
    """Put all ticks that are due; give the number of tasks that were put."""
    total = 0
    while True:
        found = yield from tick_due(talk)
        total += found.put
        if found.moved:
            continue
        for name, error in found.stuck.items():
            if not isinstance(error, InvalidInput):
                raise error
            raise InvalidInput(f"the ticks of schedule {shown(name)} cannot be put here: {error}")
        return total


class ScheduleFlows:
    """The flows about the schedules of a plain queue, which has one talk; those of a sharded queue choose one."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def set(
        self,
        name: str,
        task: TaskId | Task | None = None,
        **how: Unpack[How],
    ) -> Flow[ScheduleInfo]:
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
        return self._set(*defined(Schedule(name, task, **how)))

    def declare(self, *schedules: Schedule) -> Flow[None]:
        """Declare the schedules of a program; call this at its start, and again each minute.

        What has not changed costs one call for 500 schedules. A declared schedule that nobody declares for an hour is
        paused, and goes on when it is declared again. If a person has set or moved a schedule of this name, what the
        person has said counts, until it is cancelled. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return self._declare(dict(map(defined, schedules)))

    def leave(self, names: Sequence[str]) -> Flow[None]:
        """Pause the schedules of code that have these names, if no code declares them any more."""
        return self._leave([name.encode() for name in names])

    def move(self, name: str, **when: Unpack[When]) -> Flow[ScheduleInfo]:
        """Give a schedule another timing; what it puts stays, and so do its counts, `times` and `until`.

        What is due by the old timing is put before the move, or counted as missed or skipped, as `missed` says.
        A new `times` counts from the move, so the counts begin anew. If code declares the schedule, what the person has
        said counts from now on, until `cancel` gives the schedule back to the code.
        Raises `InvalidInput` if there is no schedule of this name, or if it has put all its `times`.
        """
        timing = timing_of(when)
        return self._of(checked(name), "move", timing)

    def pause(self, name: str) -> Flow[ScheduleInfo]:
        """Stop a schedule until `resume`. What is due by then is put before the pause, or counted, as `missed` says.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._of(checked(name), "pause")

    def resume(self, name: str) -> Flow[ScheduleInfo]:
        """Let a schedule go on with its next tick; the ticks of the pause are not put, but counted as skipped.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._of(checked(name), "resume")

    def cancel(self, name: str) -> Flow[bool]:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        A schedule of code that a person has moved or set is given back to the code, which declares it anew within a
        minute. Raises `InvalidInput` for a schedule that code declares and nobody has moved: pause it.
        """
        return self._cancel(checked(name))

    def get(self, name: str) -> Flow[ScheduleInfo | None]:
        """Tell all about one schedule; None if there is none of this name."""
        return self._get(checked(name))

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[SchedulePage]:
        """Read a page of about `n` schedules, in no order; give the `cursor` of a page to read the next one."""
        return page(self.talk, cursor, n)

    def each(self) -> Walk[ScheduleInfo]:
        """Go through all schedules, in no order; each that stays is given at least once."""

        def read(cursor: str) -> Flow[tuple[Sequence[ScheduleInfo], str | None]]:
            found = yield from self.list(cursor, 100)
            return found.schedules, found.cursor

        return Walk(read)

    def tick(self) -> Flow[int]:
        """Put the ticks that are due, as workers and cleaners do by themselves; give the number of tasks put.

        Raises the error of a schedule whose ticks cannot be put, after it has put those of the others.
        """
        return tick(self.talk)

    # ---- with the one talk; a sharded queue chooses among its talks

    def _set(self, name: bytes, wanted: Definition) -> Flow[ScheduleInfo]:
        return (yield from write(self.talk, name, wanted, "set")).info()

    def _declare(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        return declare(self.talk, wanted)

    def _leave(self, names: Sequence[bytes]) -> Flow[None]:
        return leave(self.talk, names)

    def _of(self, name: bytes, to: str, when: Timing | None = None) -> Flow[ScheduleInfo]:
        return change(self.talk, name, to, when)

    def _cancel(self, name: bytes) -> Flow[bool]:
        return cancel(self.talk, name)

    def _get(self, name: bytes) -> Flow[ScheduleInfo | None]:
        return one(self.talk, name)


class Schedules(Room[ScheduleFlows]):
    """The schedules of a queue. A schedule is known by its name, up to 200 bytes of text."""

    set = blocking(ScheduleFlows.set)
    declare = blocking(ScheduleFlows.declare)
    move = blocking(ScheduleFlows.move)
    pause = blocking(ScheduleFlows.pause)
    resume = blocking(ScheduleFlows.resume)
    cancel = blocking(ScheduleFlows.cancel)
    get = blocking(ScheduleFlows.get)
    list = blocking(ScheduleFlows.list)
    each = iterating(ScheduleFlows.each)
    tick = blocking(ScheduleFlows.tick)


class AsyncSchedules(AsyncRoom[ScheduleFlows]):
    """The schedules of a queue, for asyncio: the methods are those of `Schedules`."""

    set = awaiting(ScheduleFlows.set)
    declare = awaiting(ScheduleFlows.declare)
    move = awaiting(ScheduleFlows.move)
    pause = awaiting(ScheduleFlows.pause)
    resume = awaiting(ScheduleFlows.resume)
    cancel = awaiting(ScheduleFlows.cancel)
    get = awaiting(ScheduleFlows.get)
    list = awaiting(ScheduleFlows.list)
    each = aiterating(ScheduleFlows.each)
    tick = awaiting(ScheduleFlows.tick)
