"""Reads of a sharded queue: sums over all shards, and walks that go from shard to shard. No I/O.

The cursor of a page begins with the shard: `7.0` is the beginning of shard 7.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from timeoutq.client.shards.gathering import each, failure, late, whole
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms import failures, hosts
from timeoutq.rooms.hosts import Rule
from timeoutq.server.calls import Call
from timeoutq.verbs import reads, why
from timeoutq.verbs.replies import Why
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.verbs.why import Reason
from timeoutq.words import arguments
from timeoutq.words.counts import Period, Sample, Stats, summed
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import (
    Entry,
    Failure,
    HostInfo,
    HostPage,
    Page,
    State,
    TaskInfo,
    WorkerInfo,
)

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which a picture goes without a shard that does not answer."""

SAMPLE = 10.0
"""Seconds between two samples of a shard's history."""


def exists(shards: Shards) -> Flow[bool]:
    """Say whether anything was put to the queue or set for it."""
    return (yield from shards.look()) is not None


# ---- one task


def inspect(shards: Shards, id: bytes) -> Flow[TaskInfo]:
    """Tell all about one task."""
    return _first(shards, id, lambda talk: answer(talk, talk.operations.inspect(id)), lambda info: info.state)


def _first(shards: Shards, id: bytes, flow: Callable[[Talk], Flow[T]], knows: Callable[[T], object]) -> Flow[T]:
    # what the shard of the task says; or, if this shard does not know the task, what another shard says that does
    home = shards.of_task(id)
    found = yield from flow(shards.talks[home])
    if knows(found) or not (yield from shards.may_be_elsewhere()):
        return found
    others = [shard for shard in range(len(shards.talks)) if shard != home]
    results = dict(zip(others, (yield from together([flow(shards.talks[shard]) for shard in others])), strict=True))
    for result in results.values():
        if not isinstance(result, TimeoutqError) and knows(result):
            return result
    whole(shards, results)
    return found


def explain(shards: Shards, id: bytes) -> Flow[Reason]:
    """Say why a task is not being worked on now, or who works on it."""
    # the signs of life of workers are in the root, where no shard sees them
    alive = yield from _alive(shards)

    def ask_why(talk: Talk) -> Flow[Reason]:
        call = talk.operations.why(id)
        return why.explain_call(talk, _with_workers(call, alive))

    return (yield from _first(shards, id, ask_why, lambda reason: reason.code != "unknown"))


def _with_workers(call: Call[Why], alive: int) -> Call[Why]:
    def read(reply: Any) -> Why:
        return replace(call.read(reply), workers=alive)

    return replace(call, read=read)


def _alive(shards: Shards) -> Flow[int]:
    root = shards.root
    moment = (yield from ask(root, [("TIME",)]))[0]
    key, now_ms = root.operations.key("workers"), int(moment[0]) * 1000
    (alive,) = yield from ask(root, [("ZCOUNT", key, now_ms - 60_000, "+inf")])
    return int(alive)


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
    at: Callable[[T], float | None],
) -> Flow[tuple[list[T], str | None]]:
    """Read the next `n` of what all shards have together, by their times; give them, and the cursor of the rest."""
    many, found = len(shards.talks), list[T]()
    begins, few = places(cursor, many), max(10, min(n, 2 * n // many))
    ends = list[int | None](begins)
    read_so_far: list[list[T]] = [[] for _ in range(many)]
    while len(found) < n:
        hungry = [shard for shard in range(many) if not read_so_far[shard] and ends[shard] is not None]
        flows = [read(shards.talks[shard], str(ends[shard]), few) for shard in hungry]
        parts = whole(shards, dict(zip(hungry, (yield from together(flows)), strict=True))) if flows else []
        for shard, (rows, following) in zip(hungry, parts, strict=True):
            read_so_far[shard], ends[shard] = [*rows], None if following is None else int(following)
        heads = [(when(at(rows[0])), shard) for shard, rows in enumerate(read_so_far) if rows]
        while heads and len(found) < n:
            shard = min(heads)[1]
            found.append(read_so_far[shard].pop(0))
            begins[shard] = (begins[shard] or 0) + 1
            if not read_so_far[shard] and ends[shard] is not None:
                break  # the next of this shard may come before those of the others
            heads = [(when(at(rows[0])), shard) for shard, rows in enumerate(read_so_far) if rows]
        if not heads:
            break
    left = [None if ends[shard] is None and not read_so_far[shard] else begins[shard] for shard in range(many)]
    if all(one is None for one in left):
        return found, None
    return found, ".".join("x" if one is None else str(one) for one in left)


def when(at: float | None) -> float:
    """Give a time to sort by: what has no time comes last."""
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


def of_kind(shards: Shards, kind: str, cursor: str | None, n: int) -> Flow[Page]:
    """Read a page of the failed tasks of a kind, from all shards, the last one that was given up first."""

    def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[Entry], str | None]]:
        return failures.tasks(talk, kind, start, most)

    found, following = yield from in_order(shards, cursor, n, read, lambda entry: -(entry.at or 0.0))
    return Page(State.FAILED, found, following)


def entries(shards: Shards, state: State, cursor: str) -> Flow[tuple[list[Entry], str | None]]:
    """Read some entries of a state in no order; an entry that stays in the state is never missed."""
    many = len(shards.talks)
    shard, start = place(None if cursor == reads.START else cursor, many)
    found, following = yield from reads.entries(shards.talks[shard], state, start)
    return found, after(shard, following, many)


def rows(shards: Shards, state: State, named: bool, cursor: str) -> Flow[tuple[list[dict[str, Any]], str | None]]:
    """Read some tasks of a state as an export tells of them."""
    many = len(shards.talks)
    shard, start = place(None if cursor == reads.START else cursor, many)
    found, following = yield from reads.rows(shards.talks[shard], state, named, start)
    return found, after(shard, following, many)


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
    """What a dashboard shows of a queue; of shards that do not answer, it says so, and shows the others."""

    stats: Stats
    workers: Sequence[WorkerInfo]
    leases: Sequence[Entry]
    due: Sequence[Entry]
    errors: Sequence[Failure]
    hosts: Sequence[HostInfo]
    history: Sequence[Sample]
    silent: Mapping[str, str]
    """What did not answer, in words, and why."""


@dataclass(frozen=True, slots=True)
class _Part:
    stats: Stats
    leases: Sequence[Entry]
    due: Sequence[Entry]
    errors: Sequence[Failure]
    hosts: Sequence[HostInfo]
    history: list[Sample]


def picture(shards: Shards, rows: int) -> Flow[Picture]:
    """Look at all shards at the same time, at most `rows` of each table. Raises `Unavailable` if no shard answers."""
    root, *talks = (replace(talk, deadline=min(talk.deadline, PATIENCE)) for talk in (shards.root, *shards.talks))
    work: list[Flow[Any]] = [_workers(root), *(_part(talk, rows) for talk in talks)]
    about, *found = yield from together(work)
    errors = {shard: part for shard, part in enumerate(found) if isinstance(part, TimeoutqError)}
    if len(errors) == len(found):
        raise failure(shards, errors, len(found))
    parts = [part for part in found if isinstance(part, _Part)]
    silent: dict[str, str] = {}
    if errors:
        shown = ", ".join(map(str, errors))
        silent[f"shard{'' if len(errors) == 1 else 's'} {shown}"] = str(next(iter(errors.values())))
    if isinstance(about, TimeoutqError):
        silent["workers"] = str(about)
        about = NOTHING, ()
    stats = [part.stats if isinstance(part, _Part) else part for part in found]

    def first(name: str, at: Callable[[Any], float | None]) -> list[Any]:
        some = [one for part in parts for one in getattr(part, name)]
        return sorted(some, key=lambda one: (found := at(one)) is None or found)[:rows]

    return Picture(
        _added(shards, stats, about[0]),
        about[1],
        first("leases", lambda entry: entry.at),
        first("due", lambda entry: entry.at),
        first("errors", lambda failure: -failure.at),
        # of those that have no turn, those with most to do come first
        sorted((host for part in parts for host in part.hosts), key=lambda host: (when(host.turn), -host.waiting))[
            :rows
        ],
        _history(part.history for part in parts),
        silent,
    )


def _workers(root: Talk) -> Flow[tuple[Stats, Sequence[WorkerInfo]]]:
    counted = yield from answer(root, root.operations.stats())
    return counted, (yield from reads.workers(root))


def _part(talk: Talk, rows: int) -> Flow[_Part]:
    counted = yield from answer(talk, talk.operations.stats())
    leases = yield from reads.page(talk, State.IN_PROGRESS, None, rows)
    due = yield from reads.page(talk, State.SCHEDULED, None, rows)
    met: Sequence[HostInfo] = ()
    if counted.politeness:
        with suppress(InvalidInput):  # it is polite no more
            met = (yield from hosts.page(talk, None, rows)).hosts
    last = yield from reads.errors(talk, min(rows, 50))
    return _Part(counted, leases.entries, due.entries, last, met, (yield from reads.history(talk)))


def history(shards: Shards) -> Flow[list[Sample]]:
    """Read the counters of the last twenty minutes, the oldest first: the sums over all shards."""
    return _history((yield from each(shards, reads.history)))


def periods(shards: Shards, by: str) -> Flow[list[Period]]:
    """Read the minutes of the last day, or the hours of the last 90 days: the sums over all shards."""
    return summed((yield from each(shards, lambda talk: reads.periods(talk, by))))


def _history(parts: Iterable[list[Sample]]) -> list[Sample]:
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


def errors(shards: Shards, n: int) -> Flow[list[Failure]]:
    """Read the last errors of all shards, the newest first."""
    parts = yield from each(shards, lambda talk: reads.errors(talk, n))
    return sorted((one for part in parts for one in part), key=lambda one: one.at, reverse=True)[:n]


# ---- hosts


def host_page(shards: Shards, cursor: str | None, n: int) -> Flow[HostPage]:
    """Read a page of `n` hosts, from where the last page ended: of all shards, the host with the next turn first."""

    def read(talk: Talk, start: str, most: int) -> Flow[tuple[Sequence[HostInfo], str | None]]:
        part = yield from hosts.page(talk, start, most)
        return part.hosts, part.cursor

    return HostPage(*(yield from in_order(shards, cursor, n, read, lambda host: host.turn)))


def some_hosts(shards: Shards, cursor: str) -> Flow[tuple[list[HostInfo], str | None]]:
    """Read some hosts in no order; no host is missed."""
    many = len(shards.talks)
    shard, start = place(None if cursor == reads.START else cursor, many)
    found, following = yield from hosts.some(shards.talks[shard], start)
    return found, after(shard, following, many)


def one_host(shards: Shards, host: str, rules: Sequence[Rule]) -> Flow[HostInfo]:
    """Set the rules of a host, if there are any, and tell all about the host, in the shard of the host."""
    hosts.one(shards.root, host, rules)  # this only checks what the caller passed
    return late(lambda: hosts.one(shards.of_host(host), host, rules))
