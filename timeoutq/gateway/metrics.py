"""The metrics of queues for Prometheus: `/metrics` of the gateway.

No label names a worker, a host, a task or an error: a queue with ten thousand hosts and a million tasks has as many
series as an empty queue, some seventy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from timeoutq.client import AsyncServerClient
from timeoutq.client.shards import looking
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.gateway.names import Names, Shared
from timeoutq.server.cluster import slot_of
from timeoutq.server.troubles import is_sharded
from timeoutq.verbs import sending
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words.counts import Stats
from timeoutq.words.errors import SchemaMismatch, ShardsUnavailable, TimeoutqError
from timeoutq.words.model import MAX_TIME_MS, State

PATIENCE = 2.0  # seconds for one scrape: a queue that has not answered by then is left out, and counts as away
WALK = 1.0  # for how many of these seconds a scrape waits for a walk through the keys of the server
SHARE = 40.0  # a walk rests this many times as long as it took
SIDE_BY_SIDE = 8  # how many queues are asked at once
MOST = 1000  # how many queues one scrape tells of
PAGE, PAGES = 1000, 100
"""Rules of hosts that are read in one step, and how many steps there are at most."""
FIELDS = 3  # fields of each kind of failure in the key `kinds`, which has one or two more
BOUNDS = tuple(2.0**power for power in range(-10, 17))
"""Upper bounds of the histogram of durations, seconds, from 1 ms to 18 hours: each is the end of a bucket of
`durations.py`, so no run is counted on the wrong side."""
EVENTS = (
    "put", "claimed", "acked", "failed", "gave_up", "expired", "crashed", "released", "promoted", "retried", "reruns",
    "again", "cancelled", "cancelling", "forgotten", "pulled", "pruned", "adopted", "ticked", "ticks_missed",
    "ticks_skipped", "results_lost",
)  # fmt: skip
"""The counters of a queue."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A queue, as one scrape has seen it."""

    queue: str
    stats: Stats | None  # None: the queue could not be read
    blocked: int = 0  # hosts that are blocked or banned now
    kinds: int = 0  # kinds of failures that the queue tells apart
    is_strange: bool = False  # whether the queue is of another version of timeoutq
    silent: int = 0  # shards that did not answer; all else is of the other shards


@dataclass(frozen=True, slots=True)
class Look:
    """All queues, as one scrape has seen them."""

    is_up: bool  # whether the server has answered
    queues: Sequence[Facts] = ()
    seconds: float = 0.0  # how long it took
    left_out: Sequence[str] = ()  # names of queues beyond the first `MOST`: nobody has looked at them


# ---- from facts to metrics


_GAUGES: Mapping[str, tuple[str, Callable[[Facts, Stats], float]]] = {
    "oldest_ready_seconds": (
        "For how long there have been ready tasks without a break; no ready task has waited longer.",
        lambda _, stats: _age(stats, stats.todos_since),
    ),
    "lease_overdue_seconds": (
        "How long ago the first lease ran out that nobody has taken back yet.",
        lambda _, stats: _age(stats, stats.next_deadline),
    ),
    "due_overdue_seconds": (
        "How long ago the first scheduled task became due that nobody has moved to the ready tasks yet.",
        lambda _, stats: _age(stats, stats.next_due),
    ),
    "workers": (
        "Workers that gave a sign of life in the last minute; clients of the HTTP API are not counted.",
        lambda _, stats: stats.workers,
    ),
    "paused": ("Whether the queue is paused.", lambda _, stats: stats.paused),
    "hosts": ("Hosts of a polite queue that have tasks.", lambda _, stats: stats.hosts),
    "hosts_blocked": ("Hosts that are blocked or banned now.", lambda facts, _: facts.blocked),
    "failure_kinds": ("Kinds of failures that the queue tells apart.", lambda facts, _: facts.kinds),
    "shards": ("Shards; 1 for a queue that is not divided.", lambda _, stats: max(1, len(stats.shards))),
    "shards_silent": (
        "Shards that did not answer; the other figures leave them out.", lambda facts, _: facts.silent,
    ),
}  # fmt: skip


def families(look: Look) -> Iterator[Metric]:
    """Give the metrics of a look."""

    def gauge(name: str, help: str, value: float | None = None, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"timeoutq_{name}", help, value, labels or None)

    yield gauge("up", "Whether the Redis server answers.", float(look.is_up))
    left = "Queues beyond the first 1,000 of the server, of which no scrape tells."
    yield gauge("queues_left_out", left, len(look.left_out))
    yield gauge("scrape_seconds", "How long it took to look at the queues.", look.seconds)
    up = gauge("queue_up", "Whether the queue can be read.", None, "queue")
    tasks = gauge("tasks", "Tasks in each state.", None, "queue", "state")
    events = CounterMetricFamily(
        "timeoutq_task_events", "What has happened to tasks since the queue was made.", labels=["queue", "event"]
    )
    ran = HistogramMetricFamily(
        "timeoutq_handler_seconds", "How long handlers ran, at most 12.5 % too high.", labels=["queue"]
    )
    others = {name: gauge(name, help, None, "queue") for name, (help, _) in _GAUGES.items()}
    for facts in look.queues:
        stats, queue = facts.stats, facts.queue
        up.add_metric([queue], stats is not None)
        if stats is None:
            continue
        for state in State:
            tasks.add_metric([queue, state.value], getattr(stats, state.value))
        for event in EVENTS:
            events.add_metric([queue, event], max(0, stats.counters.get(event, 0)))
        ran.add_metric([queue], *histogram(stats.ran))
        for name, (_, value) in _GAUGES.items():
            others[name].add_metric([queue], value(facts, stats))
    yield from (up, tasks, events, ran, *others.values())


def histogram(ran: Mapping[float, int]) -> tuple[list[tuple[str, float]], float]:
    """Give the buckets of Prometheus, each with the runs up to its bound, and the sum of all runs in seconds.

    All these numbers only grow while those in `ran` do.
    """
    rest, passed, buckets = sorted(ran.items(), reverse=True), 0, list[tuple[str, float]]()
    for bound in BOUNDS:
        while rest and rest[-1][0] <= bound:
            passed += rest.pop()[1]
        buckets.append((str(bound), passed))
    buckets.append(("+Inf", passed + sum(runs for _, runs in rest)))
    return buckets, sum(bound * runs for bound, runs in ran.items())


def _age(stats: Stats, at: float | None) -> float:
    return 0.0 if at is None else max(0.0, stats.now - at)


def exposition(look: Look, accept: str = "") -> tuple[bytes, str]:
    """Give the text of a scrape and its media type; `accept` is what the scraper takes."""
    encode, media_type = cast("tuple[Callable[[Any], bytes], str]", choose_encoder(accept))
    return encode(SimpleNamespace(collect=lambda: families(look))), media_type


# ---- looking at queues


def facts_of(talk: Talk, name: str) -> Flow[Facts]:
    """Look at one queue; raises `TimeoutqError` if it cannot be read."""
    silent, talks = 0, [talk]
    try:
        stats = yield from sending.answer(talk, talk.operations.stats())
    except TimeoutqError as error:
        if not is_sharded(error):
            raise
        shards = Shards(talk, None, None, talk.nonce)
        yield from shards.look()
        try:
            stats = yield from looking.stats(shards)
        except ShardsUnavailable as some:
            if not isinstance(some.outcome, Stats):
                raise
            stats, silent = some.outcome, len(some.shards)
        talks = list(shards.talks)
    polite = stats.politeness is not None
    found = yield from together([_more_of(talk, polite=polite) for talk in talks])
    more = [one for one in found if not isinstance(one, TimeoutqError)]
    # shards know the same kinds of failures, and hosts that are all different
    blocked, kinds = sum(blocked for blocked, _ in more), max((kinds for _, kinds in more), default=0)
    return Facts(name, stats, blocked, kinds, silent=silent)


def _more_of(talk: Talk, *, polite: bool) -> Flow[tuple[int, int]]:
    key = talk.operations.key
    kinds, time = yield from sending.ask(talk, [("HLEN", key("kinds")), ("TIME",)])
    blocked, cursor, now_ms = 0, "0", float(time[0]) * 1000
    for _ in range(PAGES if polite else 0):
        ((following, rules),) = yield from sending.ask(talk, [("HSCAN", key("policies"), cursor, "COUNT", PAGE)])
        blocked += sum(is_blocked(rule, now_ms) for rule in rules.values())
        if int(following) == 0:
            break
        cursor = str(int(following))
    return blocked, int(kinds) // FIELDS


def is_blocked(rule: bytes, now_ms: float) -> bool:
    """Say whether the rule of a host, as it is stored, keeps the host from being visited now."""
    # delay, visits at once, budget, until when, and `b` for blocked or `x` for banned
    words = rule.split(b" ", 5)
    if len(words) < 5 or not words[3].isdigit():
        return False
    return words[4] == b"x" or (words[4] == b"b" and now_ms < int(words[3]) <= MAX_TIME_MS)


class Watcher:
    """Looks at all queues of a server for those who scrape.

    It has one client for all queues, and opens none of them: a scrape leaves nothing behind.
    """

    def __init__(self, url: str | None = None, queues: str = "*", deadline: float = 5.0) -> None:
        """Prepare; `url` says where the server is, and `queues` is a glob. Nothing connects yet."""
        self.client = AsyncServerClient("metrics", url, deadline=min(deadline, PATIENCE))
        self._names = Names(lambda: self.client, lambda name: fnmatchcase(name, queues), SHARE)
        self.shared = Shared(self._look, share=0.0)

    async def look(self) -> Look:
        """Look at the queues, for `PATIENCE` seconds at most; an error of the server ends the look."""
        return await self.shared.get()

    async def close(self) -> None:
        """Close the client."""
        await self.shared.close()
        await self._names.close()
        await self.client.close()

    async def _look(self) -> Look:
        began, found, is_up = time.monotonic(), dict[str, Facts](), False
        with suppress(TimeoutError, TimeoutqError):
            async with asyncio.timeout(PATIENCE):
                await self.client.run(sending.ask(self.client.talk, [("TIME",)]))
                is_up = True
                await self._names.get(WALK)
                await self._read_all(found)
        names = sorted(self._names.found)
        rows = [found.get(name, Facts(name, None)) for name in names[:MOST]]
        there = [row for row in rows if row.stats is None or row.stats.exists or row.stats.workers]
        return Look(is_up, there, time.monotonic() - began, names[MOST:])

    async def _read_all(self, found: dict[str, Facts]) -> None:
        rest = iter(sorted(self._names.found)[:MOST])

        async def read_some() -> None:
            for name in rest:
                found[name] = await self._read(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(SIDE_BY_SIDE):
                group.create_task(read_some())

    async def _read(self, name: str) -> Facts:
        talk = replace(self.client.talk, operations=Operations(name))
        if talk.server.nodes:
            talk = replace(talk, at=slot_of(name))
        try:
            return await self.client.run(facts_of(talk, name))
        except TimeoutqError as error:  # its node is away, or the queue is of another version
            return Facts(name, None, is_strange=isinstance(error, SchemaMismatch))
