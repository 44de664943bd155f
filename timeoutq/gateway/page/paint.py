"""From what was seen of a queue to HTML: the parts of pages, and whole pages. Pure but for the templates that it reads.

`views.py` and `acts.py` call it. Whatever came from a task passes a filter of `spelling.py` and Jinja's escaping.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import timeoutq
from timeoutq.gateway.page import spelling
from timeoutq.rooms.failures.operations import FailureKind
from timeoutq.watch import charts
from timeoutq.watch.directory import Listed
from timeoutq.watch.metrics import COUNTERS, rates, series
from timeoutq.watch.snapshot import Snapshot, is_gone
from timeoutq.words.counts import Period, Stats
from timeoutq.words.model import HostInfo, State, TaskInfo, WorkerInfo, raw
from timeoutq.words.standing import Standing, standing
from timeoutq.words.text import age, all_of, compact, counted, number, rate, safe, span

STATIC = Path(__file__).parent / "static"
WORDS = {"put": "put", "acked": "acked", "failed": "failed attempts", "expired": "leases run out"}
STATES = (State.WAITING, State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)
"""In the order in which the page shows them."""
SHOWN_WORKERS = 100
FEW = 8
"""Rows of a table on the page of a queue, which has many tables."""
MOST_KINDS = 100


@dataclass(frozen=True, slots=True)
class At:
    """Where a part stands, and for whom: what the templates need to make links and forms."""

    base: str
    """What stands before all paths of the application."""
    queue: str = ""
    rights: frozenset[str] = frozenset()
    """What the caller may do with the queue."""

    @staticmethod
    def shares(counts: Sequence[tuple[str, int]]) -> list[tuple[str, float, float]]:
        """Divide the bar of the states."""
        return shares(counts, 1000.0)


@cache
def environment() -> Environment:
    """Give the templates of the package; all of them escape what they are given."""
    made = Environment(
        loader=PackageLoader("timeoutq.gateway.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(spelling.FILTERS, plain=lambda value: safe(value, spelling.SHORT), for_one=for_one)
    return made


def warm() -> None:
    """Compile all templates, so that the first page does not wait for it."""
    for name in environment().list_templates():
        environment().get_template(name)
    asset_version()


@cache
def asset_version() -> str:
    """Give what changes when the style or the script does, so that browsers keep both until then."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def shares(counts: Sequence[tuple[str, int]], width: float) -> list[tuple[str, float, float]]:
    """Divide a bar among counts: the name, the left edge and the width of each piece that is not empty.

    A piece is at least two wide, so that one failed task among millions is seen.
    """
    held = [(name, count) for name, count in counts if count > 0]
    total = sum(count for _, count in held)
    wide = [max(2.0, count / total * width) for _, count in held]
    scale = width / sum(wide) if wide else 1.0
    found: list[tuple[str, float, float]] = []
    left = 0.0
    for (name, _), one in zip(held, wide, strict=True):
        found.append((name, round(left, 2), round(one * scale, 2)))
        left += one * scale
    return found


def spark(values: Sequence[float], width: float = 120, height: float = 28) -> str:
    """Give the points of a polyline through the values, the highest at the top; nothing for fewer than two values."""
    if len(values) < 2:
        return ""
    top = max(*values, 1e-9)
    step = width / (len(values) - 1)
    places = ((i * step, height - 1 - value / top * (height - 2)) for i, value in enumerate(values))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def part(name: str, *given: Any) -> Markup:
    """Write one part: a macro of `parts.html`."""
    macro: Callable[..., Markup] = getattr(environment().get_template("parts.html").module, name)
    return macro(*given)


def whole(template: str, at: At, **given: Any) -> str:
    """Write a whole page."""
    usual: dict[str, Any] = {
        "base": at.base, "queue": at.queue, "rights": at.rights, "at": at, "assets": asset_version(),
        "version": timeoutq.__version__, "live": "", "said": None, "parts": {}, "tab": "", "can_leave": False,
        "read_only": False, "tabs": [words for needs, *words in TABS if needs in at.rights],
    }  # fmt: skip
    return environment().get_template(template).render({**usual, **given})


TABS = (
    ("look", "Queue", "q", "", "the queue"),
    ("look", "Tasks", "t", "/tasks?state=todos", "tasks by state"),
    ("look", "Failures", "f", "/failures", "failures by kind"),
    ("look", "Hosts", "h", "/hosts", "hosts"),
    ("look", "Workers", "w", "/workers", "workers"),
    ("look", "Log", "l", "/log", "log of events"),
    ("put", "Put", "n", "/put", "put new tasks"),
)
"""What a caller must be allowed to do for each view of a queue; its name, key, path and words."""


# ---- a queue


def states_of(seen: Snapshot) -> list[tuple[str, int]]:
    """Give the states that the queue has, with the numbers of their tasks."""
    polite = seen.stats.politeness or seen.stats.waiting
    shown = [state for state in STATES if state is not State.WAITING or polite]
    return [(state.value, int(getattr(seen.stats, state.value))) for state in shown]


def counts(at: At, seen: Snapshot) -> Markup:
    """Write the equation of the states."""
    return part("counts", at, seen, states_of(seen))


def pace(at: At, seen: Snapshot) -> Markup:
    """Write what happens in a second, and how it has changed in the last minutes."""
    now = rates(seen.history)
    rows = [(name, WORDS[name], rate(now.get(name)), spark(series(seen.history, name, 40))) for name in COUNTERS]
    ran = seen.stats.durations
    durations = ran and {
        "count": compact(ran.count), "p50": span(ran.p50), "p95": span(ran.p95), "max": span(ran.max),
    }  # fmt: skip
    return part("rates", at, rows, seen, age(seen.waiting), durations)


def workers(at: At, seen: Snapshot, most: int = SHOWN_WORKERS) -> Markup:
    """Write the table of workers."""
    return part("workers", at, seen, [_worker(one, seen.stats.now) for one in seen.workers], most)


def _worker(one: WorkerInfo, now: float) -> Mapping[str, Any]:
    return {
        "name": one.worker, "gone": is_gone(one, now), "trouble": one.trouble, "slots": number(one.concurrency),
        "held": number(one.held), "acked": compact(one.acked), "failed": compact(one.failed),
        "beat": age(max(0.0, now - one.beat)),
    }  # fmt: skip


def leases(at: At, seen: Snapshot) -> Markup:
    """Write the leases that are nearest to their end."""
    rows = [_entry(one.task, one.holder or "", one.at, seen.stats.now) for one in seen.leases]
    return part("entries", at, "Leases nearest their end", rows, "holder")


def due(at: At, seen: Snapshot) -> Markup:
    """Write the scheduled tasks that are next."""
    rows = [_entry(one.task, spelling.moment(one.at), one.at, seen.stats.now) for one in seen.due]
    return part("entries", at, "Next due", [{**row, "late": False} for row in rows], "at")


def _entry(task: str, about: str, when: float | None, now: float) -> Mapping[str, Any]:
    left = None if when is None else when - now
    return {"task": task, "about": about, "time": age(left), "late": left is not None and left < 0}


def errors(at: At, seen: Snapshot) -> Markup:
    """Write the last errors."""
    rows = [
        {"task": one.task, "error": one.error, "ago": age(max(0.0, seen.stats.now - one.at))}
        for one in seen.errors[: FEW + 2]
    ]
    return part("errors", at, rows)


def hosts(at: At, seen: Snapshot, found: Sequence[HostInfo], most: int) -> Markup:
    """Write a table of hosts."""
    rows = [_host(one, seen.stats.now, seen.host_rates.get(one.host)) for one in found[:most]]
    return part("hosts", at, rows, f"{number(seen.stats.hosts)} met", spelling.LENGTHS)


def _host(one: HostInfo, now: float, visits_a_second: float | None) -> Mapping[str, Any]:
    now_is = standing(one, now)
    blocked = one.blocked_until is not None and one.blocked_until > now
    notes = {
        Standing.BANNED: f"banned: {one.banned}",
        Standing.BLOCKED: f"blocked for {age((one.blocked_until or now) - now)} by {one.blocked_by}",
        Standing.USED_UP: "its budget is used up",
    }
    turn = "—" if one.turn is None else age(max(0.0, one.turn - now))
    return {
        "name": one.host, "waiting": compact(one.waiting), "busy": compact(one.busy), "turn": turn,
        "visits": compact(one.visits), "pace": rate(visits_a_second), "failures": compact(one.failures),
        "note": notes.get(now_is, ""), "closed": one.banned is not None or blocked,
    }  # fmt: skip


def kinds(at: At, found: Sequence[FailureKind], stats: Stats, most: int) -> Markup:
    """Write the kinds of failures, those with most tasks first."""
    rows = [
        {
            "kind": one.id, "text": one.text, "count": number(one.count), "sample": one.task,
            "asked": f"{all_of(one.count, 'task')} of {at.queue}",
            "first": age(max(0.0, stats.now - one.first)), "last": age(max(0.0, stats.now - one.last)),
        }
        for one in found[:most]
    ]  # fmt: skip
    cut = f", the {len(rows)} kinds with most tasks" if len(found) > len(rows) else ""
    total = f"{counted(stats.failed, 'task')}{cut}"
    return part("kinds", at, {"rows": rows, "total": total})


def pictures(at: At, minutes: Sequence[Period], stats: Stats) -> Markup:
    """Write the pictures of the last day: states and rates. The functions that draw escape what they are given."""
    drawn = (
        charts.states(minutes, "states-of-minutes", stats),
        charts.rates(minutes, 60.0, "rates-of-minutes", stats.now),
    )
    return part("charts", at, [Markup(one) for one in drawn])  # noqa: S704  # SVG of our own, escaped there


def events(at: At, found: Sequence[Any], head: str, *, with_ids: bool) -> Markup:
    """Write entries of the event log."""
    return part("events", at, [_event(one) for one in found], head, with_ids)


def _event(one: Any) -> Mapping[str, Any]:
    ids = [task for tasks in one.moves.values() for task in tasks]
    ways = [f"{way.replace('>', ' → ')}: {number(len(tasks))}" for way, tasks in one.moves.items()]
    level = [f"level {one.level}"] if one.level else []
    return {
        "time": spelling.moment(one.at), "verb": one.verb, "tasks": ids[:3], "more": len(ids[3:]),
        "actor": one.by or "", "about": ", ".join([*ways, *level]),
    }  # fmt: skip


def memory(at: At, info: Mapping[str, Any]) -> Markup:
    """Write how much memory the server has in use, from the reply of INFO."""
    most, maker = int(info.get("maxmemory", 0) or 0), "Valkey" if "valkey_version" in info else "Redis"
    rows = [
        ("in use", spelling.size(_number(info, "used_memory"))),
        ("at most so far", spelling.size(_number(info, "used_memory_peak"))),
        ("limit", spelling.size(most) if most else "none"),
        ("when full", str(info.get("maxmemory_policy", "—"))),
        ("server", f"{maker} {info.get('valkey_version', info.get('redis_version', ''))}"),
    ]
    return part("memory", at, rows)


def _number(info: Mapping[str, Any], name: str) -> float | None:
    try:
        return float(info[name])
    except (KeyError, TypeError, ValueError):
        return None


# ---- all queues


@dataclass(frozen=True, slots=True)
class Row:
    """A queue in the overview."""

    name: str
    stats: Any
    trouble: str
    link: bool


def queues(at: At, found: Sequence[Listed], left: int, looking: bool) -> Markup:
    """Write the overview of queues; `left` further ones are not shown."""
    rows = [
        Row(one.name, one.stats, one.trouble, one.name.strip(".") != "") for one in sorted(found, key=lambda o: o.name)
    ]
    shown = {
        "rows": rows, "more": left, "looking": looking,
        "states": [state.value for state in STATES],
    }  # fmt: skip
    return part("queues", at, shown)


# ---- a task

Act = tuple[str, str, str, str, str]
"""Verb, label, question, key, and the kind of the button."""

RETRY: Act = ("retry", "Retry", "Make {n} failed tasks ready again?", "R", "act")
AGAIN: Act = ("run-now", "Run again", "Put {n} done tasks again?", "A", "act")
NOW: Act = ("run-now", "Run now", "Make {n} scheduled tasks ready now?", "A", "act")
CANCEL: Act = ("cancel", "Cancel", "Cancel {n} tasks?", "C", "")
RELEASE: Act = ("release", "Release", "Take {n} leases from their workers? The tasks are ready again.", "L", "")
FORGET: Act = ("forget", "Forget", "Forget {n} tasks for good?", "F", "danger")

ACTS: Mapping[str, Sequence[Act]] = {
    State.TODOS.value: [CANCEL, FORGET],
    State.WAITING.value: [CANCEL, FORGET],
    State.SCHEDULED.value: [NOW, CANCEL, FORGET],
    State.IN_PROGRESS.value: [CANCEL, RELEASE, FORGET],
    State.DONE.value: [AGAIN, FORGET],
    State.FAILED.value: [RETRY, FORGET],
}
"""What can be done with the tasks of each state."""


def for_one(ask: str) -> str:
    """Give the question of an act for one task."""
    words = {"{n} failed tasks": "this task", "{n} done tasks": "this task", "{n} scheduled tasks": "this task",
             "{n} tasks": "this task", "{n} leases from their workers? The tasks are": "the lease from its worker? "
             "The task is"}  # fmt: skip
    for many, one in words.items():
        ask = ask.replace(many, one)
    return ask


def task(at: At, info: TaskInfo, why: str, now: float) -> Markup:
    """Write all that is known of a task."""
    state = info.state.value if info.state else ""
    acts = [
        (verb, label, for_one(ask), key, kind)
        for verb, label, ask, key, kind in ACTS.get(state, ())
        if "manage" in at.rights
    ]
    far = info.progress
    progress = far and {
        "done": far.done, "total": far.total, "text": far.text,
        "told": f"{far.done:g} of {far.total:g}" if far.total else f"{far.done:g}",
    }  # fmt: skip
    shown = {
        "task": info.task, "state": state, "state_word": state or ("done, not kept" if info.has_result else "unknown"),
        "why": why, "facts": _facts(info, now), "error": info.error, "traceback": info.traceback,
        "payload": info.payload, "has_payload": info.payload is not None, "acts": acts, "progress": progress,
        "back": f"task?{spelling.query(info.task)}",
    }  # fmt: skip
    return part("task", at, shown)


def _facts(info: TaskInfo, now: float) -> list[tuple[str, str]]:
    facts: dict[str, str | None] = {
        "lease ends in": None if info.lease_left is None else age(info.lease_left),
        "due in": None if info.due is None else f"{age(info.due - now)} ({spelling.moment(info.due)})",
        "holder": info.holder,
        "cancelled by": info.cancelled_by,
        "runs again": "once this run has ended" if info.again else None,
        "host": info.host,
        "priority": f"{info.priority}" if info.priority else None,
        "failed attempts": f"{info.failures}" if info.failures else None,
        "lost leases": f"{info.crashes}" if info.crashes else None,
        "releases": f"{info.releases + info.host_releases}" if info.releases + info.host_releases else None,
        "last error at": None if info.error_at is None else spelling.moment(info.error_at),
        "result": "kept" if info.has_result else None,
        "id": f"{len(raw(info.task)):,} bytes",
    }
    return [(name, value) for name, value in facts.items() if value is not None]
