"""Puts the ticks that are due. Every cleaner does so; the scripts see to it that each tick is put once. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from timeoutq.rooms.schedules.definition import Definition, Stored, call_rows, call_tick
from timeoutq.rooms.schedules.timing import ON_TIME_MS, Due, due
from timeoutq.server.calls import BATCH, BYTES, Call
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import Flow, Talk, answer, settle
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import text

MOST = 100  # the most schedules that one round looks at


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a round has done."""

    put: int = 0
    moved: bool = False  # whether a schedule has gone on to its next tick, by this client or by another one
    undeclared: tuple[str, ...] = ()  # the schedules that were paused, because no code has declared them for an hour
    late: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The schedules whose ticks were more than a minute late: how many were put, and how many are missed."""
    stuck: Mapping[str, TimeoutqError] = field(default_factory=dict[str, TimeoutqError])
    """The schedules whose ticks this client cannot put, and why."""


def tick_due(talk: Talk, passed: int = 0) -> Flow[Ticked]:
    """Put the ticks that are due, of up to a hundred schedules behind the first `passed` ones. Raises `Unavailable`."""
    rows = yield from answer(talk, call_rows(talk.operations, "due", MOST, passed), UNCONFIRMED)
    lost = InvalidInput("what is stored of it cannot be read; set the schedule again")
    stuck: dict[str, TimeoutqError] = dict.fromkeys(rows.lost, lost)
    sent, calls = list[tuple[str, int, Due]](), list[Call[str]]()
    for stored in rows.found:
        try:
            call, found = tick(talk, stored, rows.now_ms)
        except InvalidInput as error:
            stuck[text(stored.name)] = error
        else:
            sent.append((text(stored.name), stored.next_ms, found))
            calls.append(call)
    put = moved = 0
    undeclared, late = list[str](), dict[str, tuple[int, int]]()
    answers = (yield from settle(talk, calls)) if calls else []
    for (name, next_ms, found), codes in zip(sent, answers, strict=True):
        if type(codes) is Unavailable:
            raise codes
        if isinstance(codes, TimeoutqError):
            stuck[name] = codes
        elif codes == "U":
            undeclared.append(name)
        elif codes != "E":
            moved += 1
            if codes != "C":
                put += codes.count("A")
                if rows.now_ms - next_ms > ON_TIME_MS:
                    late[name] = len(found.ticks), found.missed
    if rows.count and all(isinstance(codes, TimeoutqError) for codes in answers):  # they keep no other one from ticking
        further = yield from tick_due(talk, passed + rows.count)
        return replace(further, stuck={**stuck, **further.stuck})
    return Ticked(put, moved > 0, tuple(undeclared), late, stuck)


def tick(talk: Talk, stored: Stored, now_ms: int, *, puts: bool = True) -> tuple[Call[str], Due]:
    """Build the call that puts the ticks of a schedule that are due, or else counts them as missed; give these, too.

    Raises `InvalidInput`.
    """
    definition = Definition.read(stored.text)
    found = due(
        definition.timing, stored.next_ms, now_ms, missed=definition.missed, grace_ms=definition.grace_ms,
        put=stored.put,
    )  # fmt: skip
    if not puts:
        next_ms = definition.timing.after(now_ms) if found.next_ms is None else found.next_ms
        found = Due((), next_ms, found.missed + len(found.ticks))
    # what does not fit into one call goes with the next one, which begins with the first tick that is left
    fits = max(1, min(BATCH, BYTES // max(1, len(definition.payload or b""))))
    if len(found.ticks) > fits:
        found = replace(found, ticks=found.ticks[:fits], next_ms=found.ticks[fits])
    ids = [b"%s@%d" % (definition.task, one) if definition.overlap else definition.task for one in found.ticks]
    last_ms = found.ticks[-1] if found.ticks else 0
    call = call_tick(talk.operations, talk.nonce(), stored, definition, ids, found.next_ms or 0, last_ms, found.missed)
    return call, found
