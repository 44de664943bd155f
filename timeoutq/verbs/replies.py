"""From the reply of a script to a value.

A value that somebody has edited by hand, and that is no number, counts as absent, here as in the scripts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from timeoutq.server.calls import Call
from timeoutq.words.model import (
    MAX_TIME_MS,
    Attempt,
    CallRecord,
    Ended,
    HostInfo,
    HostRecord,
    Lease,
    Progress,
    State,
    TaskInfo,
    text,
)

STATES = {
    b"t": State.TODOS,
    b"w": State.WAITING,
    b"s": State.SCHEDULED,
    b"p": State.IN_PROGRESS,
    b"d": State.DONE,
    b"f": State.FAILED,
}


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim found: leases, or when to look again (server ms; 0 for no known time)."""

    now_ms: int
    leases: list[Lease] = field(default_factory=list[Lease])
    next_ms: int = 0
    paused: bool = False
    rest: Call[Claimed] | None = None
    """Sent again, it looked for its leases among a part of all: the call that goes on; see `flows.whole`."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a round of the cleaner did."""

    now_ms: int
    moved: int
    failed: int = 0
    more: bool = False
    given_up: tuple[str, ...] = ()  # up to ten of the tasks that went to failed


@dataclass(frozen=True, slots=True)
class Plan:
    """Until when a cleaner may sleep (server ms)."""

    now_ms: int
    at_ms: int
    micros: int  # how many µs more than `now_ms` the server's clock shows
    tick_ms: int = 0  # when the next tick of a schedule is due; 0 if none is
    cancelling: int = 0  # how many tasks in progress were ever cancelled; 0 if none of them is in progress any more


@dataclass(frozen=True, slots=True)
class Why:
    """What `timeoutq.verbs.why` finds its reason in."""

    info: TaskInfo
    now: float
    host: HostInfo | None
    paused: bool
    todos: int
    workers: int
    states: tuple[State, ...] = ()  # all that hold it: one, unless somebody has edited the keys by hand
    stranded: bool = False  # it waits where nobody will hand it over
    trace: str = ""  # what is left of a task that is in no state: `lane`, or nothing
    before: int | None = None  # of a task that waits: how many of its host's tasks go before it
    durable: int = 0  # how many replicas must confirm a claim
    replicas: int = -1
    """Of a durable queue: how many replicas the server has heard in the last 10 s; -1 if it does not tell."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did, and where the next one goes on."""

    pruned: int
    cursor: bytes
    more: bool
    converting: bool
    """Whether the queue is not yet in line with its politeness, because who changed it died, or is still at it."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a part of the walk through a queue found, and where the walk goes on; empty at its end."""

    cursor: bytes
    looked: int
    found: Mapping[str, int]


LARGEST = 2**53  # larger numbers are none of the queue's: Lua does not tell them apart


def number(value: Any) -> int | None:
    """Read a whole number; None for anything else."""
    try:
        found = int(value) if value is not None else None
    except (ValueError, OverflowError, TypeError):
        return None
    return found if found is not None and -LARGEST <= found <= LARGEST else None


def whole(value: Any) -> int:
    """Read a count; 0 where there is none, or where it is no number."""
    return 0 if value is None else number(value) or 0


def when(value: Any) -> float | None:
    """Read a time in ms as seconds; None where there is none, or none before the year 10000."""
    try:
        found = float(value) if value is not None else math.nan
    except (ValueError, TypeError):
        return None
    return max(0.0, found / 1000) if found <= MAX_TIME_MS else None


def said(value: bytes) -> str:
    """Read a word."""
    return value.decode("utf-8", "replace")


def flat(fields: Any) -> Sequence[bytes]:
    """Give fields with their values as one list: redis-py makes a dict of them where it knows the command."""
    if isinstance(fields, dict):
        return [word for pair in cast("dict[bytes, bytes]", fields).items() for word in pair]
    return fields or ()


def holder(token: bytes | None) -> str | None:
    """Give the worker part of the token of a lease."""
    return said(token).partition("#")[0] if token else None


def last_error(line: bytes | None) -> tuple[float | None, str | None]:
    """Read the last error of a task: when it was, and its text."""
    if not line:
        return None, None
    at, _, message = line.partition(b" ")
    return when(at), message.decode("utf-8", "replace")


def releases_of(value: bytes | None) -> tuple[int, int, float | None]:
    """Read how often a task was released, how often to block its host, and since when workers give it back unrun."""
    own, blocking, since, *_ = [*(value or b"").split(b" "), b"", b""]
    return whole(own), whole(blocking), when(since or None)


def progress(line: bytes | None) -> Progress | None:
    """Read a value of the key `progress`: its time, how much is done, of how much, and the text."""
    at, done, total, text = ((line or b"").split(b" ", 3) + [b""] * 4)[:4]
    try:
        return Progress(float(done), None if total == b"-" else float(total), said(text), whole(at) / 1000)
    except ValueError:
        return None


_HOW = {
    b"a": "done", b"f": "failed", b"F": "failed", b"x": "crashed", b"X": "crashed", b"c": "cancelled",
    b"e": "expired",
}  # fmt: skip


def called(payload: object) -> tuple[str | None, float | None]:
    """Give the function of a call, and when it was put; None for what a payload does not say."""
    fields = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    name, put = fields.get("f"), fields.get("c")
    is_call = isinstance(name, str) and "v" in fields
    return (name, when(put)) if is_call else (None, None)


def record(task: bytes, lines: bytes | None, crashes: int = 0, payload: object = None) -> CallRecord | None:
    """Read the record of a call, as `lua/results.lua` writes it; `crashes` are those of which the queue knows.

    If no worker has told of an attempt, the payload says what is called.
    """
    rows = [row for line in (lines or b"").split(b"\n") if len(row := line.split(b" ", 8)) == 9]
    if not rows:
        return None
    attempts, function, put, seen, ended, how = list[Attempt](), None, None, 0, None, b""
    lost = Attempt(None, None, None, "crashed")
    for _, before, start, at, name, how, end, worker, error in rows:
        attempts += [lost] * (whole(before) - seen)  # of the first one of a queue, nothing is noted
        seen = max(seen, whole(before)) + (how in b"xX")
        function, put = (said(name), when(at)) if name != b"-" else (function, put)
        ended = when(end)
        by = None if worker == b"-" else said(worker)
        if how != b"e" and (by is not None or how != b"c"):  # a call that has expired never began
            began = when(start) if start not in (b"-", b"0") else None
            attempts.append(Attempt(by, began, ended, _HOW.get(how, said(how)), said(error) or None))
    if function is None:
        function, put = called(payload)
    if how in (b"f", b"x"):
        attempts += [lost] * (crashes - seen)
        return CallRecord(text(task), function, put, attempts)
    words = "failed" if how == b"X" else _HOW.get(how)
    return CallRecord(text(task), function, put, attempts, ended, words, said(rows[-1][-1]) or None)


def ended(ids: Sequence[bytes], reply: Any) -> list[Ended | None]:
    """Read how tasks have ended, None for one that has not; fewer than were asked for if their results are long."""
    letters, results, errors = reply
    found: list[Ended | None] = []
    for id, letter, result, error in zip(ids, letters, results, errors, strict=False):
        is_open = letter in b"twps"
        found.append(None if is_open else Ended(text(id), STATES.get(bytes((letter,))), result, last_error(error)[1]))
    return found


def host(row: Any) -> HostInfo:
    name, waiting, held, turn, delay, per_host, budget, visits, failures, allowed, until, flag, reason, *rest = row
    busy, recalling, following, level = rest
    reason = said(reason)
    return HostInfo(
        text(name), waiting=waiting, in_flight=[text(id) for id in held], turn=when(turn), delay=delay / 1000,
        per_host=per_host, budget=budget if budget >= 0 else None, visits=visits, failures=failures,
        next_allowed=when(allowed) or None, blocked_until=when(until) if flag == b"b" else None,
        blocked_by=reason if flag == b"b" else "", banned=reason if flag == b"x" else None, busy=busy,
        recalling=bool(recalling), next_task=text(following) if following else None, next_priority=whole(level),
    )  # fmt: skip


def host_record(name: bytes, row: Any, now: float) -> HostRecord:
    """Read what an export says of a host; a block or a pause that is over by `now` is left out."""
    delay, per_host, budget, visits, failures, allowed, until, flag, reason = row
    reason = said(reason)
    ends, allowed = when(until) or 0.0, when(allowed) or 0.0
    blocked = flag == b"b" and ends > now
    return HostRecord(
        name, delay=None if delay is None else delay / 1000, per_host=per_host, budget=budget, visits=visits,
        failures=failures, next_allowed=allowed if allowed > now else None, blocked_until=ends if blocked else None,
        blocked_by=reason if blocked else "", banned=reason if flag == b"x" else None,
    )  # fmt: skip
