"""Reads of a sharded queue: sums over all shards, walks from shard to shard, and whether all are drained. No I/O.

The cursor of a page begins with the shard: `7.0` is the beginning of shard 7.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from timeoutq.client.methods import added_up
from timeoutq.client.shards.gathering import each, errors_of, failure, of_shards, whole
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.rooms import hosts
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Talk, answer
from timeoutq.words import arguments
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Entry, Failure, HostInfo, State, WorkerInfo

T = TypeVar("T")
Rows = Flow[tuple[Sequence[T], str | None]]
"""Reads rows, and the cursor of the rest, which is None at the end."""

PATIENCE = 2.0
"""Seconds after which a picture goes without a shard that does not answer."""


# ---- pages and walks


def _no_cursor(cursor: object) -> InvalidInput:
    return InvalidInput(f"{arguments.shown(cursor)} is not a cursor that a page of this queue ended with")


def walk(shards: Shards, cursor: str | None, read: Callable[[Talk, str], Rows[T]]) -> Flow[tuple[list[T], str | None]]:
    """Read the next part of a walk in no order, which goes from shard to shard; what stays is never missed."""
    shard, start, many = 0, reads.START, len(shards.talks)
    if cursor not in (None, reads.START):
        found = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,18})", cursor) if isinstance(cursor, str) else None
        if found is None or int(found[1]) >= many:
            raise _no_cursor(cursor)
        shard, start = int(found[1]), found[2]
    rows, following = yield from read(shards.talks[shard], start or "0")
    if following is not None:
        return [*rows], f"{shard}.{following}"
    return [*rows], f"{shard + 1}.0" if shard + 1 < many else None


def some(
    shards: Shards, cursor: str | None, n: int, read: Callable[[Talk, str, int], Rows[T]]
) -> Flow[tuple[list[T], str | None]]:
    """Read about `n` rows in no order, from shard to shard; `read` is told how many are still to come."""
    found = list[T]()

    def more(talk: Talk, start: str) -> Rows[T]:
        return read(talk, start, n - len(found))

    while True:
        rows, cursor = yield from walk(shards, cursor, more)
        found += rows
        if cursor is None or len(found) >= n:
            return found, cursor


def in_order(
    shards: Shards,
    cursor: str | None,
    n: int,
    read: Callable[[Talk, str, int], Rows[T]],
    time: Callable[[T], float | None],
) -> Flow[tuple[list[T], str | None]]:
    """Read the next `n` rows of all shards together, by their times.

    The cursor says how far the walk has come in each shard, `x` where it has ended.
    """
    many, found, begins = len(shards.talks), list[T](), _begins(cursor, len(shards.talks))
    few = max(10, min(n, 2 * n // many))
    while len(found) < n and (left := {shard: begin for shard, begin in enumerate(begins) if begin is not None}):
        results = yield from of_shards({shard: read(shards.talks[shard], str(at), few) for shard, at in left.items()})
        parts = dict(zip(left, whole(shards, results), strict=True))
        # what comes behind the last row of a shard that has more is not known yet
        known_to = min(
            (when(time(rows[-1])) for rows, more in parts.values() if rows and more is not None), default=inf
        )
        times = [(when(time(row)), shard, i) for shard, (rows, _) in parts.items() for i, row in enumerate(rows)]
        taken = Counter[int]()
        for moment, shard, i in sorted(times):
            if moment <= known_to and len(found) < n:
                found.append(parts[shard][0][i])
                taken[shard] += 1
        for shard, (rows, more) in parts.items():
            if not rows:
                begins[shard] = None if more is None else int(more)
            else:
                begins[shard] = None if more is None and taken[shard] == len(rows) else left[shard] + taken[shard]
    if all(begin is None for begin in begins):
        return found, None
    return found, ".".join("x" if begin is None else str(begin) for begin in begins)


def _begins(cursor: object, shards: int) -> list[int | None]:
    if cursor is None:
        return [0] * shards
    words = cursor.split(".") if isinstance(cursor, str) else []
    if len(words) != shards or not all(re.fullmatch(r"[0-9]{1,18}|x", word, re.ASCII) for word in words):
        raise _no_cursor(cursor)
    return [None if word == "x" else int(word) for word in words]


def when(at: float | None) -> float:
    """Give a time to sort by: a row without a time comes last."""
    return inf if at is None else at


# ---- sums


def stats(shards: Shards) -> Flow[Stats]:
    """Count all states, and read counters and settings."""
    *parts, root = yield from together([answer(talk, talk.operations.stats()) for talk in (*shards.talks, shards.root)])
    if isinstance(root, TimeoutqError):
        raise root
    errors = errors_of(dict(enumerate(parts)))
    if len(errors) == len(parts):
        raise failure(shards, errors, len(parts))
    found = _added(shards, parts, root)
    if errors:
        raise failure(shards, errors, len(parts), found)
    return found


NOTHING = Stats(0.0, 0, 0, 0, 0, 0, paused=False, counters={})
"""Stands among the stats of shards for a shard that did not answer."""


def _added(shards: Shards, found: Sequence[Stats | TimeoutqError], root: Stats) -> Stats:
    every = [NOTHING if isinstance(part, TimeoutqError) else part for part in found]
    parts = [part for part in every if part is not NOTHING]

    def first(name: str) -> Any:
        return min((at for at in map(attrgetter(name), parts) if at is not None), default=None)

    counters = Counter[str]()
    settings = dict[str, str]()
    for part in reversed(parts):
        counters.update(part.counters)
        settings.update(part.settings)
    if shards.made:
        settings.update(schema="s1", shards=shards.record.words)
    added = ("todos", "scheduled", "in_progress", "done", "failed", "waiting", "hosts")
    return Stats(
        now=max(part.now for part in parts),
        paused=all(part.paused for part in parts),
        counters=dict(counters),
        settings=settings,
        workers=root.workers,
        durations=root.durations,
        ran=root.ran,
        shards=tuple(every),
        **{name: first(name) for name in ("next_due", "next_deadline", "todos_since", "next_turn")},
        **{name: sum(map(attrgetter(name), parts)) for name in added},
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """A queue as a dashboard shows it; shards that do not answer are named, and the others are shown."""

    stats: Stats
    workers: Sequence[WorkerInfo]
    leases: Sequence[Entry]
    due: Sequence[Entry]
    errors: Sequence[Failure]
    hosts: Sequence[HostInfo]
    history: Sequence[Sample]
    silent: Mapping[str, str]
    """What did not answer, in words, and why."""


def picture(shards: Shards, rows: int) -> Flow[Picture]:
    """Look at all shards at the same time, at most `rows` of each table. Raises `Unavailable` if no shard answers."""
    root, *talks = (replace(talk, deadline=min(talk.deadline, PATIENCE)) for talk in (shards.root, *shards.talks))
    work: list[Flow[Any]] = [_workers(root), *(part(talk, rows) for talk in talks)]
    about, *found = yield from together(work)
    errors = errors_of(dict(enumerate(found)))
    if len(errors) == len(found):
        raise failure(shards, errors, len(found))
    silent: dict[str, str] = {}
    if errors:
        shown = ", ".join(map(str, errors))
        silent[f"shard{'' if len(errors) == 1 else 's'} {shown}"] = str(next(iter(errors.values())))
    if isinstance(about, TimeoutqError):
        silent["workers"] = str(about)
        about = NOTHING, ()
    parts = [one for one in found if not isinstance(one, TimeoutqError)]
    _, leases, due, last, met, histories = zip(*parts, strict=True)
    stats = [one if isinstance(one, TimeoutqError) else one[0] for one in found]

    def first(tables: Iterable[Iterable[T]], key: Callable[[T], Any]) -> list[T]:
        return sorted(chain.from_iterable(tables), key=key)[:rows]

    return Picture(
        _added(shards, stats, about[0]),
        about[1],
        first(leases, lambda entry: when(entry.at)),
        first(due, lambda entry: when(entry.at)),
        first(last, lambda failed: -failed.at),
        # of those that have no turn, those with most to do come first
        first(met, lambda host: (when(host.turn), -host.waiting)),
        added_up(histories),
        silent,
    )


def _workers(root: Talk) -> Flow[tuple[Stats, Sequence[WorkerInfo]]]:
    counted = yield from answer(root, root.operations.stats())
    return counted, (yield from reads.workers(root))


def part(talk: Talk, rows: int) -> Flow[tuple[Any, ...]]:
    """Read the stats of a shard or a plain queue, its leases, scheduled tasks, errors and hosts, and its history."""
    counted = yield from answer(talk, talk.operations.stats())
    leases = yield from reads.page(talk, State.IN_PROGRESS, None, rows)
    due = yield from reads.page(talk, State.SCHEDULED, None, rows)
    last = yield from reads.errors(talk, min(rows, 50))
    met: Sequence[HostInfo] = ()
    if counted.politeness:
        with suppress(InvalidInput):  # it is polite no more
            met = (yield from hosts.page(talk, None, rows)).hosts
    return counted, leases.entries, due.entries, last, met, (yield from reads.history(talk))


# ---- drained

LOOKS = 10
"""How often all shards are looked at while they are quiet but their counters change; cleaners change counters, too."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at one shard; `quiet` is the answer that `drained` gives for a plain queue."""

    quiet: bool
    began: object = None
    """All counters, at the beginning of the look."""
    ended: object = None
    """All counters, at its end. A look takes several calls if tasks wait for hosts whose budget is used up."""


def agree(before: Iterable[Look], after: Iterable[Look]) -> bool:
    """Say whether two looks at each quiet shard show that all of them were quiet at one moment."""
    return all(first.began == second.ended for first, second in zip(before, after, strict=True))


def _look(talk: Talk, before_ms: int | None) -> Flow[Look]:
    cursor, began = b"0", None
    while True:
        quiet, cursor, counters = yield from answer(talk, talk.operations.drained(before_ms, cursor, counted=True))
        began = counters if began is None else began
        if not quiet or cursor == b"0":
            return Look(quiet, began, counters)


def drained(shards: Shards, before_ms: int | None) -> Flow[bool]:
    """Say whether the queue is drained, exactly; tasks that are scheduled count if they are due before `before_ms`.

    The shards are asked one after another, and one that is looked at later may send a task to one that was quiet
    before: so each is looked at twice. If all are quiet both times, and their counters are the same, there is a moment
    between the first looks and the second looks at which all were quiet. A task on its way is not missed: the tasks
    that a handler found are put before the ack of its own task, whose shard is busy until then. `python -m
    tests.rig.drained` tries this.
    """
    last: list[Look] | None = None
    for _ in range(LOOKS):
        looks = yield from each(shards, lambda talk: _look(talk, before_ms))
        if not all(look.quiet for look in looks):
            return False
        if last is not None and agree(last, looks):
            return True
        last = looks
    return False
