"""From a snapshot of a queue to HTML: the parts of pages, and whole pages. Pure but for the templates that it reads.

Whatever came from a task passes a filter of `spelling.py` and Jinja's escaping.
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
from timeoutq.rooms.events import Event
from timeoutq.watch import charts
from timeoutq.watch.metrics import COUNTERS, rates, series
from timeoutq.watch.snapshot import Snapshot, is_gone
from timeoutq.words.counts import Period, Stats
from timeoutq.words.model import HostInfo, State, TaskInfo, raw
from timeoutq.words.standing import Standing, standing
from timeoutq.words.text import age, all_of, compact, counted, number, rate, safe, span

STATIC = Path(__file__).parent / "static"
WORDS = {"put": "put", "acked": "acked", "failed": "failed attempts", "expired": "leases run out"}
STATES = (State.WAITING, State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)
"""In the order in which the page shows them."""
FEW = 8  # rows of a table on the page of a queue, which has many tables
MOST_KINDS = 100


@dataclass(frozen=True, slots=True)
class At:
    """Where a part stands, and for whom: the templates need this to make links and forms."""

    base: str  # the beginning of all paths of the application
    queue: str = ""
    rights: frozenset[str] = frozenset()  # the rights of the caller in this queue


@dataclass(frozen=True, slots=True)
class Act:
    """A button that changes something: its label, and the question that the page asks before."""

    label: str
    ask: str  # `{n}` stands for the chosen tasks, `{all}` for all of so many
    key: str = ""
    kind: str = ""
    sure: bool = True  # whether a page asks, too, where there is no script
    verb: str = ""  # where the form is sent to, if not to the name of the act


ACTS: Mapping[str, Act] = {
    "retry": Act("Retry", "Make {n} ready again?", "R", "act", sure=False),
    "run-now": Act("Run now", "Run {n} now?", "A", "act", sure=False),
    "run-again": Act("Run again", "Run {n} again?", "A", "act", sure=False, verb="run-now"),
    "cancel": Act("Cancel", "Cancel {n}?", "C"),
    "release": Act("Release", "Take the leases of {n} from their workers?", "L"),
    "forget": Act("Forget", "Forget {n}?", "F", "danger"),
    "pause": Act("Pause", "Give out no tasks of {queue} until somebody resumes it?", "P"),
    "resume": Act("Resume", "Give out tasks of {queue} again?", "P", sure=False),
    "block": Act("Block", "Do not visit {host} for {time}?"),
    "unblock": Act("Unblock", "Visit {host} again?", sure=False),
    "empty": Act("Empty", "Forget {all} in {state} of {queue}?", "E", "danger"),
    "retry-all": Act("Retry all", "Make {all} in failed of {queue} ready again?", "A"),
    "retry-kind": Act("Retry all", "Make {all} of {queue} ready again that failed with: {error}?"),
    "forget-kind": Act("Forget all", "Forget {all} of {queue} that failed with: {error}?", kind="danger"),
    "purge": Act("Purge", "Remove {queue} with all its tasks, settings and history?", kind="danger"),
}
OF_STATES: Mapping[State, Sequence[str]] = {
    State.TODOS: ("cancel", "forget"),
    State.WAITING: ("cancel", "forget"),
    State.SCHEDULED: ("run-now", "cancel", "forget"),
    State.IN_PROGRESS: ("cancel", "release", "forget"),
    State.DONE: ("run-again", "forget"),
    State.FAILED: ("retry", "forget"),
}
"""The acts on the tasks of each state."""


class _Words(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


def question(act: str, **words: object) -> str:
    """Give the question before an act; a word that is not given stays for the script of the page."""
    return ACTS[act].ask.format_map(_Words({name: safe(word, spelling.SHORT) for name, word in words.items()}))


@cache
def environment() -> Environment:
    """Give the templates of the package; all of them escape what they are given."""
    made = Environment(
        loader=PackageLoader("timeoutq.gateway.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(spelling.FILTERS, age=age, number=number, compact=compact, rate=rate, span=span)
    used: dict[str, Any] = {
        "acts": ACTS, "ask": question, "states": STATES, "few": FEW, "lengths": spelling.LENGTHS, "is_gone": is_gone,
        "note_of": note_of, "counted": counted, "all_of": all_of, "max": max,
    }  # fmt: skip
    made.globals.update(used)
    return made


def warm() -> None:
    """Compile all templates, so that the first page does not wait for it."""
    for name in environment().list_templates():
        environment().get_template(name)


@cache
def asset_version() -> str:
    """Give a word that changes when the style or the script does, so that browsers keep both until then."""
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
"""The views of a queue: the right that the caller must have, name, key, path and words."""


# ---- a queue


def counts(at: At, seen: Snapshot) -> Markup:
    """Write the equation of the states that the queue has."""
    polite = seen.stats.politeness or seen.stats.waiting
    shown = [state.value for state in STATES if state is not State.WAITING or polite]
    states = [(state, int(getattr(seen.stats, state))) for state in shown]
    return part("counts", at, seen, states, shares(states, 1000.0))


def pace(at: At, seen: Snapshot) -> Markup:
    """Write the rates of now, and how they have changed in the last minutes."""
    now = rates(seen.history)
    rows = [(name, WORDS[name], rate(now.get(name)), spark(series(seen.history, name, 40))) for name in COUNTERS]
    return part("rates", at, rows, seen)


def note_of(one: HostInfo, now: float) -> str:
    """Say why a host is not visited now."""
    left = (one.blocked_until or now) - now
    notes = {
        Standing.BANNED: f"banned: {one.banned}",
        Standing.BLOCKED: f"blocked for {age(left)} by {one.blocked_by}",
        Standing.USED_UP: "its budget is used up",
    }
    return notes.get(standing(one, now), "")


def pictures(at: At, minutes: Sequence[Period], stats: Stats) -> Markup:
    """Write the pictures of the last day: states and rates. The functions that draw escape what they are given."""
    drawn = (
        charts.states(minutes, "states-of-minutes", stats),
        charts.rates(minutes, 60.0, "rates-of-minutes", stats.now),
    )
    return part("charts", at, [Markup(one) for one in drawn])  # noqa: S704  # SVG of our own, escaped there


def events(at: At, found: Sequence[Event], head: str, *, with_ids: bool) -> Markup:
    """Write entries of the event log."""
    rows: list[tuple[Event, list[str], str]] = []
    for one in found:
        ways = [f"{way.replace('>', ' → ')}: {number(len(tasks))}" for way, tasks in one.moves.items()]
        level = [f"level {one.level}"] if one.level else []
        ids = [task for tasks in one.moves.values() for task in tasks]
        rows.append((one, ids, ", ".join([*ways, *level])))
    return part("events", at, rows, head, with_ids)


# ---- a task


def task(at: At, info: TaskInfo, why: str, now: float) -> Markup:
    """Write all that is known of a task."""
    state = info.state.value if info.state else ""
    acts = OF_STATES[info.state] if info.state and "manage" in at.rights else ()
    word = state or ("done, not kept" if info.has_result else "unknown")
    return part("task", at, info, state, word, why, acts, _facts(info, now))


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
