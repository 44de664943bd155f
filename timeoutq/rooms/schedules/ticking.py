"""Puts the ticks that are due. Every cleaner does so; the scripts see to it that each tick is put once. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from timeoutq.rooms.schedules.definition import Definition, Stored, call_due, call_tick
from timeoutq.rooms.schedules.timing import ON_TIME_MS, Due, Timing, due, lateness, next_after, tick_id
from timeoutq.server.calls import BATCH, BYTES, Call
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import Flow, Talk, answer, settle
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import text

MOST = 100
"""The most schedules that one round looks at."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a round has done."""

    put: int = 0
    skipped: int = 0
    moved: bool = False
    """Whether a schedule has gone on to its next tick, by this client or by another one."""
    undeclared: tuple[str, ...] = ()
    """The schedules that were paused, because no code has declared them for an hour."""
    late: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The schedules whose ticks were more than a minute late: how many were put, and how many are missed."""
    stuck: Mapping[str, TimeoutqError] = field(default_factory=dict[str, TimeoutqError])
    """The schedules whose ticks this client cannot put, and why."""


def tick_due(talk: Talk, passed: int = 0) -> Flow[Ticked]:
    """Put the ticks that are due, of up to a hundred schedules behind the first `passed` ones. Raises `Unavailable`."""
    rows = yield from answer(talk, call_due(talk.operations, MOST, passed), UNCONFIRMED)
    lost = InvalidInput("what is stored of it cannot be read; set the schedule again")
    stuck: dict[str, TimeoutqError] = dict.fromkeys(rows.lost, lost)
    names, calls, late = list[str](), list[Call[str]](), dict[str, tuple[int, int]]()
    for stored in rows.found:
        try:
            call = tick(talk, stored, rows.now_ms)
        except InvalidInput as error:
            stuck[text(stored.name)] = error
        else:
            names.append(text(stored.name))
            calls.append(call)
            if rows.now_ms - stored.next_ms > ON_TIME_MS:
                found, _, _ = _due(stored, rows.now_ms)
                late[names[-1]] = len(found.ticks), found.skipped
    put = skipped = moved = 0
    undeclared = list[str]()
    answers = (yield from settle(talk, calls)) if calls else []
    for name, codes in zip(names, answers, strict=True):
        if isinstance(codes, TimeoutqError):
            if type(codes) is Unavailable:
                raise codes
            stuck[name] = codes
        elif codes == "U":
            undeclared.append(name)
        elif codes != "E":
            moved += 1
            if codes != "C":
                put += codes.count("A")
                skipped += len(codes) - codes.count("A")
    if rows.count and all(isinstance(codes, TimeoutqError) for codes in answers):  # they keep no other one from ticking
        further = yield from tick_due(talk, passed + rows.count)
        return replace(further, stuck={**stuck, **further.stuck})
    told = {name: late[name] for name, codes in zip(names, answers, strict=True) if name in late and _is_ours(codes)}
    return Ticked(put, skipped, moved > 0, tuple(undeclared), told, stuck)


def _is_ours(codes: str | TimeoutqError) -> bool:
    return isinstance(codes, str) and codes not in ("C", "E", "U")


def _due(stored: Stored, now_ms: int) -> tuple[Due, Definition, Timing]:
    definition = Definition.read(stored.text)
    timing = Timing.read(definition.timing)
    missed, _ = lateness(definition.missed)
    found = due(
        timing, stored.next_ms - 1, now_ms, missed=missed, grace_ms=definition.grace_ms, put=stored.put,
        stored_ms=stored.next_ms,
    )  # fmt: skip
    return found, definition, timing


def tick(talk: Talk, stored: Stored, now_ms: int, *, puts: bool = True) -> Call[str]:
    """Build the call that puts the ticks of a schedule that are due, or else counts them; raises `InvalidInput`."""
    found, definition, timing = _due(stored, now_ms)
    ticks, next_ms = found.ticks, found.next_ms
    if definition.overlap:
        # what does not fit into one call goes with the next one, which begins with the first tick that is left
        fits = max(1, min(BATCH, BYTES // max(1, len(definition.payload or b""))))
        if len(ticks) > fits:
            ticks, next_ms = ticks[:fits], ticks[fits]
        base = text(definition.task)
        ids = [tick_id(base, one, overlap=True).encode("utf-8", "surrogateescape") for one in ticks]
    else:
        ids = [definition.task] if ticks else []
    skipped = len(ticks) - len(ids)
    if not puts:
        ids, skipped = [], 0
    if next_ms is None and timing.times is not None and stored.put + len(ids) < timing.times:
        next_ms = next_after(timing, max((now_ms, *ticks)))
    return call_tick(
        talk.operations,
        talk.nonce(),
        stored,
        definition,
        ids,
        next_ms or 0,
        ticks[-1] if ids else 0,
        found.skipped + len(ticks) - len(ids) - skipped,
        skipped,
    )
