"""From the reply of a script to a value.

A value that somebody has edited by hand, and that is no number, counts as absent, here as in the scripts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from timeoutq.server.calls import Call
from timeoutq.words import arguments
from timeoutq.words.counts import HAPPENED, Period, Sample, Stats
from timeoutq.words.durations import read as read_durations
from timeoutq.words.durations import read_all
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import (
    MAX_TIME_MS,
    Ended,
    Entry,
    Failure,
    HostInfo,
    HostRecord,
    Lease,
    Outcome,
    Progress,
    Record,
    State,
    Task,
    TaskInfo,
    WorkerInfo,
    text,
)
from timeoutq.words.tracebacks import read_traceback

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
    given_up: tuple[str, ...] = ()
    """Up to ten of the tasks that went to failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Until when a cleaner may sleep (server ms)."""

    now_ms: int
    at_ms: int
    micros: int
    """How many µs more than `now_ms` the server's clock shows."""
    tick_ms: int = 0
    """When the next tick of a schedule is due; 0 if none is."""
    cancelling: int = 0
    """How many tasks in progress were ever cancelled; 0 if none of them is in progress any more."""


@dataclass(frozen=True, slots=True)
class Why:
    """What `timeoutq.verbs.why` finds its reason in."""

    info: TaskInfo
    now: float
    host: HostInfo | None
    paused: bool
    todos: int
    workers: int
    states: tuple[State, ...] = ()
    """All that hold it: one, unless somebody has edited the keys by hand."""
    stranded: bool = False
    """It waits where nobody will hand it over."""
    trace: str = ""
    """What is left of a task that is in no state: `lane`, or nothing."""
    before: int | None = None
    """Of a task that waits: how many of its host's tasks go before it."""
    durable: int = 0
    """How many replicas must confirm a claim."""
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


LARGEST = 2**53
"""Larger numbers are none of the queue's: Lua does not tell them apart."""


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


def outcome(ids: Sequence[bytes]) -> Callable[[Any], Outcome]:
    return lambda reply: Outcome(ids, reply)


def extended(ids: Sequence[bytes]) -> Callable[[Any], tuple[float, Outcome]]:
    return lambda reply: (reply[1] / 1000, Outcome(ids, reply[2]))


def claimed(
    reply: Any,
    token: str,
    rest: Callable[[bytes], Call[Claimed]],
    read: Callable[[bytes | None], Any] = arguments.unpack,
) -> Claimed:
    if len(reply) in (4, 8):
        return replace(claimed(reply[:-1], token, rest, read), rest=rest(reply[-1]))
    if len(reply) == 3:
        return Claimed(reply[0], [], reply[1], bool(reply[2]))
    now_ms, deadline_ms, fence, ids, failures, crashes, bodies = reply
    deadline, fence = deadline_ms / 1000, int(fence)
    names = [id.decode("utf-8", "surrogateescape") for id in ids]  # as text() does, without a call for each task
    if not failures and not crashes and not bodies:
        return Claimed(now_ms, [Lease(name, token, deadline, 1, 0, fence + i) for i, name in enumerate(names)])
    return Claimed(
        now_ms,
        [
            Lease(name, token, deadline, whole(failed) + 1, whole(lost), fence + i, read(body))
            for i, (name, failed, lost, body) in enumerate(zip(names, failures, crashes, bodies, strict=True))
        ],
    )


def flat(fields: Any) -> Sequence[bytes]:
    """Give fields with their values as one list: redis-py makes a dict of them where it knows the command."""
    if isinstance(fields, dict):
        return [word for pair in cast("dict[bytes, bytes]", fields).items() for word in pair]
    return fields or ()


def pulled(reply: Any) -> list[Task]:
    return [Task(text(id), arguments.unpack(body)) for id, body in zip(reply[0], reply[1], strict=True)]


def swept(reply: Any) -> Swept:
    now_ms, back, failed, more, *given_up = reply
    return Swept(now_ms, back + failed, failed, bool(more), tuple(map(text, given_up)))


def _error(line: bytes | None) -> tuple[float | None, str | None]:
    if not line:
        return None, None
    at, _, message = line.partition(b" ")
    return when(at), message.decode("utf-8", "replace")


def releases_of(value: bytes | None) -> tuple[int, int, float | None]:
    """Read how often a task was released, how often to block its host, and since when workers give it back unrun."""
    own, blocking, since, *_ = [*(value or b"").split(b" "), b"", b""]
    return whole(own), whole(blocking), when(since or None)


def info(task: str, reply: Any) -> TaskInfo:
    now_ms, state, due, deadline, token, failures, crashes, error, body, host, trace, releases, level, *rest = reply
    again, kept, by, far = rest
    error_at, message = _error(error)
    ends, (own, blocking, since) = when(deadline), releases_of(releases)
    return TaskInfo(
        task=task,
        state=STATES.get(state),
        due=when(due),
        deadline=ends,
        lease_left=None if ends is None else ends - now_ms / 1000,
        holder=token.decode("utf-8", "replace").partition("#")[0] if token else None,
        failures=whole(failures),
        crashes=whole(crashes),
        error=message,
        error_at=error_at,
        payload=arguments.unpack(body),
        releases=own,
        traceback=read_traceback(trace, message),
        host=text(host) if host else None,
        host_releases=blocking,
        unrun_since=since,
        priority=whole(level),
        again=bool(again),
        has_result=bool(kept),
        cancelled_by=said(by) if by else None,
        progress=read_progress(far),
    )


def read_progress(line: bytes | None) -> Progress | None:
    """Read a value of the key `progress`: its time, how much is done, of how much, and the text."""
    at, done, total, text = ((line or b"").split(b" ", 3) + [b""] * 4)[:4]
    try:
        return Progress(float(done), None if total == b"-" else float(total), said(text), (whole(at)) / 1000)
    except ValueError:
        return None


def ended(ids: Sequence[bytes], reply: Any) -> list[Ended | None]:
    """Read how tasks have ended, None for one that has not; fewer than were asked for if their results are long."""
    letters, results, errors = reply
    found: list[Ended | None] = []
    for id, letter, result, error in zip(ids, letters, results, errors, strict=False):
        is_open = letter in b"twps"
        found.append(None if is_open else Ended(text(id), STATES.get(bytes((letter,))), result, _error(error)[1]))
    return found


def why(task: str, reply: Any) -> Why:
    found, row, paused, todos, workers, letters, stranded, trace, before, *durable = reply
    return Why(
        info(task, found), found[0] / 1000, host(row) if row else None, bool(paused), todos, workers,
        tuple(STATES[bytes((letter,))] for letter in letters), bool(stranded), trace.decode(), before,
        *durable,
    )  # fmt: skip


def host(row: Any) -> HostInfo:
    name, waiting, held, turn, delay, per_host, budget, visits, failures, allowed, until, flag, reason, *rest = row
    busy, recalling, following, level = rest
    reason = said(reason)
    return HostInfo(
        host=text(name),
        waiting=waiting,
        in_flight=[text(id) for id in held],
        turn=when(turn),
        delay=delay / 1000,
        per_host=per_host,
        budget=budget if budget >= 0 else None,
        visits=visits,
        failures=failures,
        next_allowed=when(allowed) or None,
        blocked_until=when(until) if flag == b"b" else None,
        blocked_by=reason if flag == b"b" else "",
        banned=reason if flag == b"x" else None,
        busy=busy,
        recalling=bool(recalling),
        next_task=text(following) if following else None,
        next_priority=whole(level),
    )


def host_record(name: bytes, row: Any, now: float) -> HostRecord:
    """Read what an export says of a host; a block or a pause that is over by `now` is left out."""
    delay, per_host, budget, visits, failures, allowed, until, flag, reason = row
    reason = said(reason)
    ends, allowed = when(until) or 0.0, when(allowed) or 0.0
    blocked = flag == b"b" and ends > now
    return HostRecord(
        host=name,
        delay=None if delay is None else delay / 1000,
        per_host=per_host,
        budget=budget,
        visits=visits,
        failures=failures,
        next_allowed=allowed if allowed > now else None,
        blocked_until=ends if blocked else None,
        blocked_by=reason if blocked else "",
        banned=reason if flag == b"x" else None,
    )


def _group(id: bytes, group: bytes | None) -> str | None:
    # the host that a client sends with an id is no group
    return None if group is None or group == foreign_host(id) else text(group)


def described(ids: Sequence[bytes], reply: Any) -> tuple[int, list[Record]]:
    letters, times, failures, crashes, errors, bodies, groups, levels, ends = reply
    records: list[Record] = []
    for i, letter in enumerate(letters):
        state = STATES.get(bytes((letter,)))
        if state is not None:
            error_at, message = _error(errors[i])
            at = when(times[i])
            records.append(
                Record(
                    task=ids[i],
                    state=state,
                    due=at if state is State.SCHEDULED else None,
                    acked=at if state is State.DONE else None,
                    failures=whole(failures[i]),
                    crashes=whole(crashes[i]),
                    error=message,
                    error_at=error_at,
                    payload=arguments.unpack(bodies[i]) if bodies else None,
                    group=_group(ids[i], groups[i]) if groups else None,
                    priority=whole(levels[i]) if levels else 0,
                    until=when(ends[i]) if ends else None,
                )
            )
    return len(letters), records


def stats(reply: Any) -> Stats:
    (
        now, todos, scheduled, in_progress, done, failed, due, deadline, workers, counters, settings,
        waiting, hosts, turn, spans,
    ) = reply  # fmt: skip
    counted = {
        said(name): count
        for name, value in zip(counters[::2], counters[1::2], strict=True)
        if (count := number(value)) is not None
    }
    kept = {said(name): said(value) for name, value in zip(settings[::2], settings[1::2], strict=True)}
    since = counted.pop("todos_since", None)
    return Stats(
        now=now / 1000,
        todos=todos,
        scheduled=scheduled,
        in_progress=in_progress,
        done=done,
        failed=failed,
        paused=kept.get("paused") == "1",
        counters=counted,
        next_due=when(due),
        next_deadline=when(deadline),
        todos_since=since / 1000 if since and todos else None,
        settings=kept,
        workers=workers,
        waiting=waiting,
        hosts=hosts,
        next_turn=when(turn),
        durations=read_durations(spans),
        ran=read_all(spans[2]),
    )


def read_worker(worker: bytes, about: bytes | None, beat: bytes | float, now: float) -> WorkerInfo:
    """Read an entry of `workers` and `worker_info`; what a worker does not say is zero or empty."""
    told: dict[str, Any] = json.loads(about or b"{}")
    heard, lasts = when(beat) or 0.0, told.get("holds_for", 0)
    tends = told.get("tends")
    return WorkerInfo(
        worker=text(worker),
        host=told.get("host", ""),
        pid=told.get("pid", 0),
        concurrency=told.get("concurrency", 0),
        held=0 if 0 < lasts < now - heard else told.get("held", 0),
        acked=told.get("acked", 0),
        failed=told.get("failed", 0),
        started=float(told.get("started", 0)),
        beat=heard,
        trouble=told.get("trouble", ""),
        claims=bool(told.get("claims", not told.get("trouble"))),
        tends=None if tends is None else tuple(tends),
    )


def read_sample(line: bytes) -> Sample:
    """Read a line of `history`."""
    at, *counts = line.split()
    return Sample(int(at) / 1000, *map(int, counts))


NOTED = (*HAPPENED, "todos", "scheduled", "in_progress", "done", "failed", "waiting")
"""What a line of `minutes` or `hours` counts, in its order, behind the time."""


def read_noted(line: bytes) -> Period:
    """Read a line of `minutes` or `hours`."""
    at, *counts = line.split()
    return Period(int(at) / 1000, **dict(zip(NOTED, map(int, counts), strict=True)))


def read_failure(line: bytes) -> Failure:
    """Read a line of `error_log`: length of the id, id, time, message."""
    length, _, rest = line.partition(b" ")
    size = whole(length)
    at, message = _error(rest[size:])
    return Failure(text(rest[:size]), at or 0.0, message or "")


def is_cancelled(error: bytes | None) -> bool:
    """Say whether the last error of a failed task, as it is kept, says that somebody has cancelled the task."""
    return (error or b"").partition(b" ")[2].startswith(b"cancelled by ")


def read_entry(
    task: bytes,
    *,
    at: float | bytes | None = None,
    token: bytes | None = None,
    error: bytes | None = None,
    releases: bytes | None = None,
    trace: bytes | None = None,
    level: bytes | None = None,
) -> Entry:
    """Make one line of a page."""
    error_at, message = _error(error)
    return Entry(
        text(task),
        at=error_at if at is None else when(at),
        holder=token.decode("utf-8", "replace").partition("#")[0] if token else None,
        error=message,
        releases=releases_of(releases)[0],
        traceback=read_traceback(trace, message),
        priority=whole(level),
    )


def renew(lease: Lease, deadline: float) -> Lease:
    """Give the lease with its new deadline."""
    return replace(lease, deadline=deadline)
