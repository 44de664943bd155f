"""What is told of a task and of a host: one record of each, in rows of a name and a value, and its advice. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from timeoutq.words.model import Attempt, CallRecord, HostInfo, TaskInfo
from timeoutq.words.standing import Standing, standing
from timeoutq.words.text import CLIENT, age

Fact = tuple[str, object]

ADVICE = {
    "done": "`timeoutq put {queue} {task} --again` makes it ready again",
    "failed": "`timeoutq retry {queue} {task}` brings it back",
    "banned": "first `timeoutq unblock {queue} {host}`, then `timeoutq retry {queue} {task}` brings it back; before "
    "that, it fails again at once",
    "no_replica": "start replicas, or `timeoutq configure {queue} --durable N` asks for fewer",
    "budget": "`timeoutq host {queue} {host} --budget N` gives the host more visits",
}
"""Advice for a person at a shell, in the place of the advice that `why` has for a program."""

KEYED = {
    **ADVICE,
    "failed": "R makes it ready again",
    "banned": "U unblocks its host, and then R makes the task ready again; before that, it fails again at once",
}
"""Advice for a person at the dashboard."""

TURNS: Mapping[Standing, Callable[[HostInfo, float], tuple[str, str]]] = {
    Standing.BANNED: lambda host, now: ("banned", "red"),
    Standing.BLOCKED: lambda host, now: (f"⊘ {age((host.blocked_until or now) - now)}", "red"),
    Standing.TURN: lambda host, now: (age(max(0.0, (host.turn or now) - now)), "magenta"),
    Standing.USED_UP: lambda host, now: ("used up" if host.waiting else "—", "yellow" if host.waiting else ""),
    Standing.FREE: lambda host, now: ("—", ""),
}


def turn(host: HostInfo, now: float) -> tuple[str, str]:
    """Give what a host waits for, in at most 9 cells, and the colour of this; '' for none."""
    return TURNS[standing(host, now, TURNS)](host, now)


def iso(at: float | None) -> str | None:
    """Give a moment as ISO 8601 in UTC, to the ms."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def length(seconds: float) -> str:
    """Give a length of time as options take it: 250ms, 30s, 5m, 12h, 7d."""
    ms = round(seconds * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms < 1000 else f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def of_task(info: TaskInfo) -> list[Fact]:
    """Give what is known of a task; None where nothing is."""
    payload, far, progress, hosts = info.payload, None, info.progress, info.host_releases
    if progress is not None:
        of = "" if progress.total is None else f" of {progress.total:,.15g}"
        far = f"{progress.done:,.15g}{of}{f': {progress.text}' if progress.text else ''}"
    shown = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False)
    released = f"{info.releases + hosts:,}, {hosts:,} of them blocked a host" if hosts else info.releases or None
    return [
        ("result", "kept for a time" if info.has_result else None),
        ("due", iso(info.due)),
        ("lease left", None if info.lease_left is None else age(info.lease_left)),
        ("deadline", iso(info.deadline)),
        ("host", info.host),
        ("priority", info.priority or None),
        ("runs again", "once this run has ended: it was put meanwhile" if info.again else None),
        ("holder", info.holder),
        ("cancelled by", info.cancelled_by),
        ("progress", far),
        ("failures", info.failures or None),
        ("crashes", info.crashes or None),
        ("releases", released),
        ("last error", info.error),
        ("last error at", iso(info.error_at)),
        ("payload", None if payload is None else shown),
        *of_record(info.record),
    ]


def of_record(record: CallRecord | None) -> list[Fact]:
    """Give what the record of a call says: when it was put and has ended, and each attempt."""
    if record is None:
        return []
    ended = None if record.ended is None else f"{iso(record.ended)}, {record.how}"
    return [
        ("put", iso(record.put)),
        *((f"attempt {number}", _attempt(one)) for number, one in enumerate(record.attempts, 1)),
        ("ended", ended),
    ]


def _attempt(one: Attempt) -> str:
    times = " to ".join(filter(None, (iso(one.start), iso(one.end)))) or "nobody knows when"
    error = f": {one.error}" if one.error else ""
    return f"{one.how}, {times}, {one.worker or 'its worker was lost'}{error}"


def of_host(info: HostInfo) -> list[Fact]:
    """Give what is known of a host; None where nothing is."""
    more = info.busy - len(info.in_flight)
    by = "blocked by" if CLIENT.fullmatch(info.blocked_by or "") else "why it is blocked"
    return [
        ("host", info.host), ("waiting", info.waiting), *(("in flight", task) for task in info.in_flight),
        ("in flight", f"and {more:,} more" if more > 0 else None),
        ("next", info.next_task), ("its priority", info.next_priority or None),
        ("turn", iso(info.turn)), ("delay", length(info.delay)), ("per host", info.per_host), ("budget", info.budget),
        ("visits", info.visits), ("failures", info.failures), ("next allowed", iso(info.next_allowed)),
        ("blocked until", iso(info.blocked_until)), (by, info.blocked_by or None), ("banned", info.banned),
    ]  # fmt: skip
