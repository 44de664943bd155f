"""Reads of a sharded queue: sums over all shards, and walks that go from shard to shard. No I/O.

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

from timeoutq.client.shards.gathering import failure, late, of_shards, whole
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms import hosts
from timeoutq.rooms.hosts import HostFlows, Rule
from timeoutq.verbs import reads, why
from timeoutq.verbs.replies import Why
from timeoutq.verbs.sending import Flow, Talk, answer
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import (
    Entry,
    Failure,
    HostInfo,
    HostPage,
    Page,
    State,
    WorkerInfo,
)

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which a picture goes without a shard that does not answer."""

SAMPLE = 10.0
"""Seconds between two samples of a shard's history."""


# ---- one task


def first_known(shards: Shards, id: bytes, flow: Callable[[Talk], Flow[T]], knows: Callable[[T], object]) -> Flow[T]:
    """Give the answer of the shard of a task, or of another shard, if only that one knows the task."""
    home = shards.of_task(id)
    found = yield from flow(shards.talks[home])
    if knows(found) or not (yield from shards.may_be_elsewhere()):
        return found
    results = yield from of_shards({shard: flow(talk) for shard, talk in enumerate(shards.talks) if shard != home})
    for result in results.values():
        if not isinstance(result, TimeoutqError) and knows(result):
            return result
    whole(shards, results)
    return found


def explain(shards: Shards, id: bytes) -> Flow[Reason]:
    """Say why a task is not being worked on now, or who works on it."""
    # the signs of life of workers are in the root, where no shard sees them
    root = yield from answer(shards.root, shards.root.operations.stats())

    def ask_why(talk: Talk) -> Flow[Reason]:
        call = talk.operations.why(id)

        def read(reply: Any) -> Why:
            return replace(call.read(reply), workers=root.workers)

        return why.explain_call(talk, replace(call, read=read))

    return (yield from first_known(shards, id, ask_why, lambda reason: reason.code != "unknown"))


# ---- pages


def place(cursor: object, shards: int) -> tuple[int, str]:
    """Read a cursor: the shard, and where the walk goes on there."""
    if cursor is None:
        return 0, "0"
    found = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,18})", cursor) if isinstance(cursor, str) else None
    if found is None or int(found[1]) >= shards:
        raise _no_cursor(cursor)
    return int(found[1]), found[2]


def after(shard: int, cursor: str | None, shards: int) -> str | None:
    """Give the cursor with which a walk goes on; None at the end of the last shard."""
    if cursor is not None:
        return f"{shard}.{cursor}"
    return f"{shard + 1}.0" if shard + 1 < shards else None


def places(cursor: object, shards: int) -> list[int | None]:
    """Read a cursor of a walk in order: how far the walk has come in each shard, None where it has ended."""
    if cursor is None:
        return [0] * shards
    words = cursor.split(".") if isinstance(cursor, str) else []
    if len(words) != shards or not all(re.fullmatch(r"[0-9]{1,18}|x", word, re.ASCII) for word in words):
        raise _no_cursor(cursor)
    return [None if word == "x" else int(word) for word in words]


def _no_cursor(cursor: object) -> InvalidInput:
    return InvalidInput(f"{arguments.shown(cursor)} is not a cursor that a page of this queue ended with")


def in_order(
    shards: Shards,
    cursor: str | None,
    n: int,
    read: Callable[[Talk, str, int], Flow[tuple[Sequence[T], str | None]]],
    time: Callable[[T], float | None],
) -> Flow[tuple[list[T], str | None]]:
    """Read the next `n` rows of all shards together, by their times; give them, and the cursor of the rest."""
    many, found, begins = len(shards.talks), list[T](), places(cursor, len(shards.talks))
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


def when(at: float | None) -> float:
    """Give a time to sort by: a row without a time comes last."""
    return inf if at is None else at


def page(shards: Shards, state: State, cursor: str | None, n: int) -> Flow[Page]:
    """Read a page of about `n` entries of a state, from where the last page ended."""
    if state in reads.ORDERED:

        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[Entry], str | None]]:
            part = yield from reads.page(talk, state, start, most)
            return part.entries, part.cursor

        entries, following = yield from in_order(shards, cursor, n, read, lambda entry: entry.at)
        return Page(state, entries, following)
    many, found = len(shards.talks), list[Entry]()
    while True:
        shard, start = place(cursor, many)
        part = yield from reads.page(shards.talks[shard], state, start, n - len(found))
        found += part.entries
        cursor = after(shard, part.cursor, many)
        if cursor is None or len(found) >= n:
            return Page(state, found, cursor)


def walk(
    shards: Shards, cursor: str, read: Callable[[Talk, str], Flow[tuple[Sequence[T], str | None]]]
) -> Flow[tuple[list[T], str | None]]:
    """Read the next part of a walk in no order, which goes from shard to shard; what stays is never missed."""
    many = len(shards.talks)
    shard, start = place(None if cursor == reads.START else cursor, many)
    found, following = yield from read(shards.talks[shard], start)
    return [*found], after(shard, following, many)


# ---- sums


def stats(shards: Shards) -> Flow[Stats]:
    """Count all states, and read counters and settings."""
    *parts, root = yield from together([answer(talk, talk.operations.stats()) for talk in (*shards.talks, shards.root)])
    if isinstance(root, TimeoutqError):
        raise root
    errors = {shard: part for shard, part in enumerate(parts) if isinstance(part, TimeoutqError)}
    if len(errors) == len(parts):
        raise failure(shards, errors, len(parts))
    found = _added(shards, parts, root)
    if errors:
        raise failure(shards, errors, len(parts), found)
    return found


NOTHING = Stats(0.0, 0, 0, 0, 0, 0, paused=False, counters={})
"""Stands among the stats of shards for a shard that did not answer."""


def _added(shards: Shards, found: Sequence[Stats | TimeoutqError], root: Stats) -> Stats:
    each_part = [NOTHING if isinstance(part, TimeoutqError) else part for part in found]
    parts = [part for part in each_part if part is not NOTHING]

    def total(name: str) -> int:
        return sum(map(attrgetter(name), parts))

    def first(name: str) -> Any:
        return min((at for at in map(attrgetter(name), parts) if at is not None), default=None)

    counters = Counter[str]()
    settings = dict[str, str]()
    for part in reversed(parts):
        counters.update(part.counters)
        settings.update(part.settings)
    if shards.made:
        settings.update(schema="s1", shards=shards.record.words)
    names = ("todos", "scheduled", "in_progress", "done", "failed", "waiting", "hosts")
    return Stats(
        now=max(part.now for part in parts),
        paused=all(part.paused for part in parts),
        counters=dict(counters),
        next_due=first("next_due"),
        next_deadline=first("next_deadline"),
        todos_since=first("todos_since"),
        settings=settings,
        workers=root.workers,
        next_turn=first("next_turn"),
        durations=root.durations,
        ran=root.ran,
        shards=tuple(each_part),
        **{name: total(name) for name in names},
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
    work: list[Flow[Any]] = [_workers(root), *(_part(talk, rows) for talk in talks)]
    about, *found = yield from together(work)
    errors = {shard: part for shard, part in enumerate(found) if isinstance(part, TimeoutqError)}
    if len(errors) == len(found):
        raise failure(shards, errors, len(found))
    silent: dict[str, str] = {}
    if errors:
        shown = ", ".join(map(str, errors))
        silent[f"shard{'' if len(errors) == 1 else 's'} {shown}"] = str(next(iter(errors.values())))
    if isinstance(about, TimeoutqError):
        silent["workers"] = str(about)
        about = NOTHING, ()
    parts = [part for part in found if not isinstance(part, TimeoutqError)]
    _, leases, due, last, met, histories = zip(*parts, strict=True)
    stats = [part if isinstance(part, TimeoutqError) else part[0] for part in found]

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


def _part(talk: Talk, rows: int) -> Flow[tuple[Any, ...]]:
    # the stats of a shard, its leases, scheduled tasks, errors and hosts, and its history
    counted = yield from answer(talk, talk.operations.stats())
    leases = yield from reads.page(talk, State.IN_PROGRESS, None, rows)
    due = yield from reads.page(talk, State.SCHEDULED, None, rows)
    last = yield from reads.errors(talk, min(rows, 50))
    met: Sequence[HostInfo] = ()
    if counted.politeness:
        with suppress(InvalidInput):  # it is polite no more
            met = (yield from hosts.page(talk, None, rows)).hosts
    return counted, leases.entries, due.entries, last, met, (yield from reads.history(talk))


def added_up(parts: Iterable[list[Sample]]) -> list[Sample]:
    """Give the history of a queue from those of its shards."""
    # each shard takes samples at its own moments: so every ten seconds, the last samples of all shards are added
    kept = [part for part in parts if part]
    if not kept:
        return []
    names = ("put", "claimed", "acked", "failed", "expired")
    begin, end = max(part[0].at for part in kept), max(part[-1].at for part in kept)
    found: list[Sample] = []
    places = [0] * len(kept)
    at = min(begin, end)
    while at <= end:
        for i, part in enumerate(kept):
            while places[i] + 1 < len(part) and part[places[i] + 1].at <= at:
                places[i] += 1
        last = [part[places[i]] for i, part in enumerate(kept)]
        found.append(Sample(at, *(sum(map(attrgetter(name), last)) for name in names)))
        at += SAMPLE
    return found


# ---- hosts


class ShardedHostFlows(HostFlows):
    """The flows about the hosts of a sharded queue. A host is wholly in one shard."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[HostPage]:
        n = arguments.count(n, high=500)

        def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[HostInfo], str | None]]:
            part = yield from hosts.page(talk, start, most)
            return part.hosts, part.cursor

        return HostPage(*(yield from in_order(self._shards, cursor, n, read, lambda host: host.turn)))

    def _some(self, cursor: str) -> Flow[tuple[Sequence[HostInfo], str | None]]:
        return walk(self._shards, cursor, hosts.some)

    def _ask(self, host: str, *rules: Rule) -> Flow[HostInfo]:
        hosts.one(self._shards.root, host, rules)  # this only checks what the caller passed
        return late(lambda: hosts.one(self._shards.of_host(host), host, rules))
