"""From a snapshot of a queue to HTML: the parts of pages. Pure but for the templates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from timeoutq.gateway.page import spelling
from timeoutq.rooms.events import Event
from timeoutq.watch import charts
from timeoutq.watch.records import of_task
from timeoutq.watch.snapshot import COUNTERS, Snapshot, rates, series
from timeoutq.words.counts import Period, Stats
from timeoutq.words.model import HostInfo, State, TaskInfo, raw
from timeoutq.words.standing import Standing, standing
from timeoutq.words.text import age, all_of, compact, counted, number, rate, safe, span

STATIC = Path(__file__).parent / "static"
WORDS = {"put": "put", "acked": "acked", "failed": "failed attempts", "expired": "leases run out"}
STATES = (State.WAITING, State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)
"""In the order in which the page shows them."""
LENGTHS: Mapping[float, str] = {
    600: "10 minutes", 3600: "an hour", 21_600: "6 hours", 86_400: "a day", 604_800: "a week",
}  # fmt: skip
"""For how long the page offers to block a host, seconds; an hour unless somebody chooses."""
FEW = 8  # rows of a table on the page of a queue, which has many tables
MOST_KINDS = 100
APART = ("progress", "last error", "payload")  # facts of a task that have a place of their own on its page


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


def question(act: str, **words: object) -> str:
    """Give the question before an act; a word that is not given stays for the script of the page."""
    return re.sub(r"\{(\w+)\}", lambda one: safe(words.get(one[1], one[0]), spelling.SHORT), ACTS[act].ask)


def note_of(one: HostInfo, now: float) -> str:
    """Say why a host is not visited now."""
    left = (one.blocked_until or now) - now
    notes = {
        Standing.BANNED: f"banned: {one.banned}",
        Standing.BLOCKED: f"blocked for {age(left)} by {one.blocked_by}",
        Standing.USED_UP: "its budget is used up",
    }
    return notes.get(standing(one, now), "")


TEMPLATES = Environment(
    loader=PackageLoader("timeoutq.gateway.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
FILTERS: Mapping[str, Any] = {
    "age": age, "number": number, "compact": compact, "rate": rate, "span": span, "shown": spelling.shown,
    "block": spelling.block, "payload": spelling.payload, "moment": spelling.moment, "query": spelling.query,
    "field": spelling.field, "plain": partial(safe, width=spelling.SHORT),
}  # fmt: skip
USED: Mapping[str, Any] = {
    "acts": ACTS, "ask": question, "states": STATES, "few": FEW, "lengths": LENGTHS,
    "note_of": note_of, "counted": counted, "all_of": all_of, "max": max,
}  # fmt: skip
TEMPLATES.filters.update(FILTERS)
TEMPLATES.globals.update(USED)


@cache
def asset_version() -> str:
    """Give a word that changes when the style or the script does, so that browsers keep both until then."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))).hexdigest()[:10]


def spark(values: Sequence[float]) -> str:
    """Give the points of a polyline through the values, 120 wide and 28 high; nothing for fewer than two values."""
    if len(values) < 2:
        return ""
    top, step = max(*values, 1e-9), 120 / (len(values) - 1)
    return " ".join(f"{i * step:.1f},{27 - value / top * 26:.1f}" for i, value in enumerate(values))


def part(name: str, *given: Any) -> Markup:
    """Write one part: a macro of `parts.html`."""
    macro: Callable[..., Markup] = getattr(TEMPLATES.get_template("parts.html").module, name)
    return macro(*given)


def counts(at: At, seen: Snapshot) -> Markup:
    """Write the equation of the states that the queue has, and a bar, 1,000 wide, that is divided among them."""
    polite = seen.stats.politeness or seen.stats.waiting
    shown = [state.value for state in STATES if state is not State.WAITING or polite]
    states = {state: int(getattr(seen.stats, state)) for state in shown}
    held = {state: count for state, count in states.items() if count > 0}
    # a piece is at least two wide, so that one failed task among millions is seen
    wide = {state: max(2.0, count / sum(held.values()) * 1000) for state, count in held.items()}
    shares, left = list[tuple[str, float, float]](), 0.0
    for state, width in wide.items():
        width *= 1000 / sum(wide.values())
        shares.append((state, round(left, 2), round(width, 2)))
        left += width
    return part("counts", at, seen, states.items(), shares)


def pace(at: At, seen: Snapshot) -> Markup:
    """Write the rates of now, and how they have changed in the last minutes."""
    now = rates(seen.history)
    rows = [(name, WORDS[name], rate(now.get(name)), spark(series(seen.history, name, 40))) for name in COUNTERS]
    return part("rates", at, rows, seen)


def pictures(at: At, minutes: Sequence[Period], stats: Stats) -> Markup:
    """Write the pictures of the last day: states and rates. The functions that draw escape what they are given."""
    states = charts.states(minutes, "states-of-minutes", stats)
    pace = charts.rates(minutes, 60.0, "rates-of-minutes", stats.now)
    return part("charts", at, [Markup(one) for one in (states, pace)])  # noqa: S704  # SVG of our own, escaped there


def events(at: At, found: Sequence[Event], head: str, *, with_ids: bool) -> Markup:
    """Write entries of the event log."""
    rows: list[tuple[Event, list[str], str]] = []
    for one in found:
        ways = [f"{way.replace('>', ' → ')}: {number(len(tasks))}" for way, tasks in one.moves.items()]
        level = [f"level {one.level}"] if one.level else []
        ids = [task for tasks in one.moves.values() for task in tasks]
        rows.append((one, ids, ", ".join([*ways, *level])))
    return part("events", at, rows, head, with_ids)


def task(at: At, info: TaskInfo, why: str) -> Markup:
    """Write all that is known of a task."""
    state = info.state.value if info.state else ""
    acts = OF_STATES[info.state] if info.state and "manage" in at.rights else ()
    word = state or ("done, not kept" if info.has_result else "unknown")
    size = ("id", f"{len(raw(info.task)):,} bytes")
    facts = [(name, value) for name, value in [*of_task(info), size] if value is not None and name not in APART]
    return part("task", at, info, state, word, why, acts, facts)
