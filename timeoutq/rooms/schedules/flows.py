"""`queue.schedules`: what it does, and its two faces, `Schedules` and `AsyncSchedules`. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, Unpack

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.rooms.schedules import ticking
from timeoutq.rooms.schedules.definition import (
    STATES,
    Definition,
    How,
    Schedule,
    ScheduleInfo,
    SchedulePage,
    Source,
    Stored,
    When,
    call_renew,
    call_rows,
    call_write,
    checked,
)
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.server.calls import BATCH, Command, Words, section
from timeoutq.verbs import reads, replies
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, Unavailable
from timeoutq.words.model import Task, TaskId, text
from timeoutq.words.text import counted, safe

T = TypeVar("T")

DECLARED_MS = 180_000  # code that runs declares its schedules each minute: after this time, it does not any more
TRIES = 20  # how often a change is tried again when somebody else has changed the schedule meanwhile


def defined(schedule: Schedule) -> tuple[bytes, Definition]:
    """Check a schedule, and give its name and its definition."""
    if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]  # what callers pass
        raise InvalidInput(f"declare() takes a Schedule(name, …), not {shown(schedule)}")
    return checked(schedule.name), Definition.of(schedule)


def read(talk: Talk, name: bytes) -> Flow[tuple[int, Stored | None]]:
    """Read one schedule, and the time of the server, ms."""
    rows = yield from answer(talk, call_rows(talk.operations, "names", 0, name), UNCONFIRMED)
    return rows.now_ms, rows.found[0] if rows.found else None


def _there(talk: Talk, name: bytes, found: Stored | None) -> Stored:
    if found is None:
        raise InvalidInput(
            f"queue {talk.operations.name!r} has no schedule {shown(text(name))}: 'timeoutq schedules list "
            f"{talk.operations.name}' names those that it has"
        )
    return found


def _refuse_declared(before: Stored, now_ms: int) -> None:
    if before.source == "code" and before.state != "undeclared" and now_ms - before.renewed_ms < DECLARED_MS:
        raise InvalidInput(
            f"code declares schedule {shown(text(before.name))}, which would be there again as the code says within a "
            "minute: pause it, or change the code"
        )


# ---- changes


def _changed(talk: Talk, name: bytes, choose: Callable[[int, Stored | None], Words | None]) -> Flow[Stored | None]:
    # `choose` says, from the time and what is stored, what the schedule becomes, None to leave it. What is due is put
    # before the schedule changes. Gives what is stored then
    unread = False
    for _ in range(TRIES):
        now_ms, before = yield from read(talk, name)
        wanted = choose(now_ms, before)
        if wanted is None:
            return before
        if before is not None and wanted[1] != before.next_ms and (skipped := _left_out(before, now_ms)):
            wanted = [*wanted, *section("skipped", skipped)]
        if unread:
            wanted = [*wanted, *section("unread")]
        letter = yield from answer(talk, call_write(talk.operations, talk.nonce(), name, before, wanted))
        if letter == "F":
            raise InvalidInput(
                f"queue {talk.operations.name!r} has 10,000 schedules, and takes no more: cancel some, or let a task "
                "schedule others, with queue.schedule"
            )
        if letter == "O":
            return (yield from read(talk, name))[1]
        unread = not (yield from _settled(talk, name))  # it has changed meanwhile, or a tick is due
    raise Unavailable(f"schedule {shown(text(name))} was changed by others {TRIES} times in a row: try again")


def _settled(talk: Talk, name: bytes) -> Flow[bool]:
    # puts what is due of a schedule that is to change, by the definition that it still has, or counts it as missed;
    # False if nobody here can read it
    while True:
        now_ms, before = yield from read(talk, name)
        if before is None or before.state != "running" or not 0 < before.next_ms <= now_ms:
            return True
        try:
            call, _ = ticking.tick(talk, before, now_ms)
        except InvalidInput:
            return False
        try:
            yield from answer(talk, call)
        except InvalidInput:
            yield from answer(talk, ticking.tick(talk, before, now_ms, puts=False)[0])


def _left_out(before: Stored, now_ms: int) -> int:
    # how many ticks came while a schedule was paused
    if before.state not in ("paused", "undeclared") or not 0 < before.next_ms <= now_ms:
        return 0
    try:
        return 1 + Definition.read(before.text).timing.count(before.next_ms, now_ms)
    except InvalidInput:
        return 0


def _fitted(
    wanted: Definition, before: Stored | None, now_ms: int, source: Source, *, anew: bool | None = None
) -> Words:
    # what a schedule becomes that gets this definition; `anew`: whether its counts begin anew, None if that depends
    asked, old, since_ms = wanted.timing, None, None
    if before is not None:
        with suppress(InvalidInput):  # a definition that cannot be read is replaced
            old = Definition.read(before.text).timing
        if source == "code" and before.state == "running" and old is not None and old.every_ms:
            # it goes on from the last tick: two programs that declare it with another interval each do not stop it
            since_ms = max(old.start_ms or 0, before.last_ms)
    timing = asked.anchored(now_ms, old, since_ms)
    sections = replace(wanted, timing=timing).sections(wanted.digest(), source)
    if before is not None and timing == old and not anew:
        return ["r" if before.state == "undeclared" else before.state[0], before.next_ms, *sections]
    goes_on = since_ms is not None and asked.every_ms is not None and asked.start_ms is None
    found = timing.after(max(timing.start_ms or 0, now_ms - 1) if goes_on else now_ms)
    if found is None:
        raise InvalidInput(
            f"schedule {shown(str(timing))} would never tick: no tick is between start=, or now, and until=: let "
            "until= be later, or leave it out"
        )
    if anew is None:
        anew = before is not None and not (goes_on and old is not None and asked.times == old.times)
    state = "p" if before is not None and before.state == "paused" else "r"
    return [state, found, *sections, *section("zones", timing.zones), *(section("anew") if anew else [])]


def write(talk: Talk, name: bytes, wanted: Definition, source: Source) -> Flow[Stored]:
    """Set a schedule, or declare one of code; give what is stored then."""

    def choose(now_ms: int, before: Stored | None) -> Words:
        if before is not None and source == "set":
            _refuse_declared(before, now_ms)
        return _fitted(wanted, before, now_ms, source)

    return _there(talk, name, (yield from _changed(talk, name, choose)))


def change(talk: Talk, name: bytes, choose: Callable[[int, Stored], Words | None]) -> Flow[ScheduleInfo]:
    """Move, pause or resume a schedule. Raises `InvalidInput` if there is none."""

    def chosen(now_ms: int, before: Stored | None) -> Words | None:
        return choose(now_ms, _there(talk, name, before))

    return _there(talk, name, (yield from _changed(talk, name, chosen))).info()


def _moved(when: Timing, before: Stored, now_ms: int) -> Words:
    # times and until stay unless they are given, and so do the counts
    _refuse_declared(before, now_ms)
    definition = Definition.read(before.text)
    old = definition.timing
    if when.times is None and old.times is not None and before.put >= old.times:
        raise InvalidInput(
            f"schedule {shown(text(before.name))} has put its {counted(old.times, 'tick')}: move it with times=, which "
            "counts from the move"
        )
    until_ms = old.until_ms if when.until_ms is None else when.until_ms
    timing = replace(when, times=old.times if when.times is None else when.times, until_ms=until_ms)
    return _fitted(replace(definition, timing=timing), before, now_ms, "set", anew=when.times is not None)


def _paused(_: int, before: Stored) -> Words:
    if before.state == "ended":
        raise InvalidInput(f"schedule {shown(text(before.name))} has ended: there is nothing to pause")
    return ["p", before.next_ms]


def _resumed(now_ms: int, before: Stored) -> Words | None:
    # ticks of the time in which it was paused are not put
    if before.state == "running":
        return None
    found = (timing := Definition.read(before.text).timing).after(now_ms)
    if found is None or before.state == "ended":
        raise InvalidInput(
            f"schedule {shown(text(before.name))} has ended: cancel it, and set it again with another until= or times="
        )
    return ["r", found, *section("zones", timing.zones)]


def cancel(talk: Talk, name: bytes) -> Flow[bool]:
    """Remove a schedule; say whether there was one."""
    was_there = False

    def choose(now_ms: int, before: Stored | None) -> Words | None:
        nonlocal was_there
        if before is None:
            return None
        _refuse_declared(before, now_ms)
        was_there = True
        return ["x", 0]

    yield from _changed(talk, name, choose)
    return was_there


def declare(talk: Talk, wanted: Mapping[bytes, Definition]) -> Flow[None]:
    """Declare schedules of code: one call for 500 that have not changed."""
    names = list(wanted)
    for at in range(0, len(names), BATCH):
        part = names[at : at + BATCH]
        call = call_renew(talk.operations, {name: wanted[name].digest() for name in part})
        letters = yield from answer(talk, call, UNCONFIRMED)
        for name, letter in zip(part, letters, strict=True):
            if letter != "O":
                yield from write(talk, name, wanted[name], "code")


def leave(talk: Talk, names: Sequence[bytes]) -> Flow[None]:
    """Pause those schedules of code that no code has declared for three minutes. What is due is put before."""

    def choose(now_ms: int, before: Stored | None) -> Words | None:
        if before is None or (before.source, before.state) != ("code", "running"):
            return None
        return ["u", before.next_ms] if now_ms - before.renewed_ms >= DECLARED_MS else None

    for at in range(0, len(names), BATCH):
        rows = yield from answer(talk, call_rows(talk.operations, "names", 0, *names[at : at + BATCH]), UNCONFIRMED)
        for one in rows.found:
            if choose(rows.now_ms, one) is not None:
                yield from _changed(talk, one.name, choose)


def restore(talk: Talk, stored: Stored) -> Flow[bool]:
    """Bring a schedule of an export in as it was; say whether it was new here: one that is there stays as it is."""
    _, before = yield from read(talk, stored.name)
    if before is not None:
        return False
    definition = Definition.read(stored.text)
    counts = section("counts", stored.last_ms, stored.put, stored.skipped, stored.missed)
    words = [*definition.sections(definition.digest(), stored.source), *counts, *section("zones", stored.zones)]
    wanted = [stored.state[0], stored.next_ms, *words]
    yield from _changed(talk, stored.name, lambda _, before: wanted if before is None else None)
    return True


# ---- looks, and ticks


def page(talk: Talk, cursor: str | None, n: int) -> Flow[SchedulePage]:
    """Read a page of about `n` schedules, from where the last page ended."""
    call = call_rows(talk.operations, "page", arguments.cursor(cursor), arguments.count(n, high=500))
    rows = yield from answer(talk, call, UNCONFIRMED)
    found, unread = list[ScheduleInfo](), list(rows.lost)
    for stored in rows.found:
        try:
            found.append(stored.info())
        except InvalidInput:
            unread.append(text(stored.name))
    return SchedulePage(found, reads.next_cursor(rows.cursor), unread)


def health(talk: Talk) -> Flow[tuple[float | None, tuple[str, str, str]]]:
    """Look at the schedules, for doctor: give the next tick; green or yellow, what was found, and the cure."""
    counts, undeclared, next_tick, cursor = Counter[str](), set[str](), None, reads.START
    while cursor is not None:
        commands: list[Command] = [
            ("ZRANGE", talk.operations.key("ticks"), 0, 0, "WITHSCORES"),
            ("HSCAN", talk.operations.key("ticked"), cursor, "COUNT", 1000),
        ]
        first, (following, rows) = yield from ask(talk, commands)
        for name, record in reads.pairs_of(replies.flat(rows)):
            state = STATES.get(bytes(record)[:1], "ended")
            counts[state] += 1
            if state == "undeclared":
                undeclared.add(text(name))
        next_tick = next((float(at) / 1000 for _, at in reads.pairs_of(first)), None)
        cursor = reads.next_cursor(following)
    many = counted(counts.total(), "schedule")
    if not undeclared:
        return next_tick, ("green", f"{many}, {counts['running']:,} of them running", "")
    names = ", ".join(safe(name) for name in sorted(undeclared)[:5])
    found = f"of {many}, {len(undeclared):,} paused, because no code declares them: {names}"
    cure = "start the worker whose code declares them, or cancel them: queue.schedules.cancel(name)"
    return next_tick, ("yellow", found, cure)


def tick(talk: Talk) -> Flow[int]:
    """Put all ticks that are due; give the number of tasks that were put."""
    total = 0
    while True:
        found = yield from ticking.tick_due(talk)
        total += found.put
        if found.moved:
            continue
        for name, error in found.stuck.items():
            if not isinstance(error, InvalidInput):
                raise error
            raise InvalidInput(f"the ticks of schedule {shown(name)} cannot be put here: {error}")
        return total


class ScheduleFlows(RoomFlows):
    """The flows about the schedules of a plain queue, which has one talk; those of a sharded queue choose one."""

    def set(self, name: str, task: TaskId | Task | None = None, **how: Unpack[How]) -> Flow[ScheduleInfo]:
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
        Needs the extra `functions`. Raises `InvalidInput`, also for a schedule that code declares, `MissingExtra`, and
        what `put` raises.
        """
        return self._set(*defined(Schedule(name, task, **how)))

    def declare(self, *schedules: Schedule) -> Flow[None]:
        """Declare the schedules of a program; call this at its start, and again each minute.

        What is declared replaces what is stored, whoever has set it; only a pause stays. What has not changed costs one
        call for 500 schedules. A declared schedule that nobody declares for an hour is paused, and goes on when it is
        declared again. Raises `InvalidInput`, `MissingExtra`, and what `put` raises.
        """
        return self._declare(dict(map(defined, schedules)))

    def leave(self, names: Sequence[str]) -> Flow[None]:
        """Pause the schedules of code that have these names, if no code declares them any more."""
        return self._leave([name.encode() for name in names])

    def move(self, name: str, **when: Unpack[When]) -> Flow[ScheduleInfo]:
        """Give a schedule another timing; what it puts stays, and so do its counts, `times` and `until`.

        What is due by the old timing is put before the move, or counted as missed or skipped, as `missed` says.
        A new `times` counts from the move, so the counts begin anew. Raises `InvalidInput` if there is no schedule of
        this name, if it has put all its `times`, or if code declares it: change the code.
        """
        timing = Timing.of(**when)
        return self._change(name, lambda now_ms, before: _moved(timing, before, now_ms))

    def pause(self, name: str) -> Flow[ScheduleInfo]:
        """Stop a schedule until `resume`. What is due by then is put before the pause, or counted, as `missed` says.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._change(name, _paused)

    def resume(self, name: str) -> Flow[ScheduleInfo]:
        """Let a schedule go on with its next tick; the ticks of the pause are not put, but counted as skipped.

        Raises `InvalidInput` if there is none of this name, or it has ended.
        """
        return self._change(name, _resumed)

    def cancel(self, name: str) -> Flow[bool]:
        """Remove a schedule; say whether there was one. What its ticks have put stays.

        Raises `InvalidInput` for a schedule that code declares: pause it.
        """
        return self._at(checked(name), cancel)

    def get(self, name: str) -> Flow[ScheduleInfo | None]:
        """Tell all about one schedule; None if there is none of this name."""
        _, found = yield from self._at(checked(name), read)
        return None if found is None else found.info()

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

    def _change(self, name: str, choose: Callable[[int, Stored], Words | None]) -> Flow[ScheduleInfo]:
        return self._at(checked(name), lambda talk, name: change(talk, name, choose))

    # ---- with the one talk; a sharded queue chooses among its talks

    def _set(self, name: bytes, wanted: Definition) -> Flow[ScheduleInfo]:
        return (yield from write(self.talk, name, wanted, "set")).info()

    def _declare(self, wanted: Mapping[bytes, Definition]) -> Flow[None]:
        return declare(self.talk, wanted)

    def _leave(self, names: Sequence[bytes]) -> Flow[None]:
        return leave(self.talk, names)

    def _at(self, name: bytes, flow: Callable[[Talk, bytes], Flow[T]]) -> Flow[T]:
        return flow(self.talk, name)


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
