"""Answers for monitors: `/metrics` for Prometheus, whose labels name no task, host, worker or error; and `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from timeoutq.client import AsyncServerClient
from timeoutq.client.shards import looking
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.gateway.names import Names, Shared, end
from timeoutq.gateway.requests import Request
from timeoutq.gateway.settings import Settings
from timeoutq.server.cluster import slot_of
from timeoutq.server.troubles import is_sharded
from timeoutq.verbs.flows import eviction_policy
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.words import errors, retry, telling
from timeoutq.words.counts import Stats
from timeoutq.words.errors import AccessDenied, SchemaMismatch, ShardsUnavailable, TimeoutqError
from timeoutq.words.model import MAX_TIME_MS, State

log = logging.getLogger(__name__)

LOOK = 5.0  # seconds between two looks at a server that answers
PATIENCE = 2.0  # seconds for one scrape: a queue that has not answered by then is left out, and counts as away
WALK = 1.0  # for how many of these seconds a scrape waits for a walk through the keys of the server
SHARE = 40.0  # a walk rests this many times as long as it took
SIDE_BY_SIDE = 8  # how many queues are asked at once
MOST = 1000  # how many queues one scrape tells of
PAGE, PAGES = 1000, 100  # rules of hosts that are read in one step, and how many steps there are at most
FIELDS = 3  # fields of each kind of failure in the key `kinds`, which has one or two more
BOUNDS = tuple(2.0**power for power in range(-10, 17))
"""Upper bounds of the histogram of durations, seconds, from 1 ms to 18 hours: each is the end of a bucket of
`durations.py`, so no run is counted on the wrong side."""
EVENTS = (
    "put", "claimed", "acked", "failed", "gave_up", "expired", "crashed", "released", "promoted", "retried", "reruns",
    "again", "cancelled", "cancelling", "calls_expired", "forgotten", "pulled", "pruned", "adopted", "ticked",
    "ticks_missed", "ticks_skipped", "results_lost",
)  # fmt: skip
"""The counters of a queue."""
SILENT = "the server has not answered in time"
_WORDS: Mapping[type[TimeoutqError], str] = {
    errors.ReadOnly: "the server is a replica, or takes no writes now",
    errors.ServerFull: "the server is full",
    AccessDenied: "the server does not let this gateway in, or does not let it write",
    SchemaMismatch: "the queues are of another version of timeoutq",
    errors.NotRedis: "what answers at the address of the server is not Redis",
}
"""What everybody may hear of an error: no names, and no addresses."""


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
    """Give the buckets of Prometheus, each with the runs up to its bound, and the sum of all runs in seconds."""
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
        stats = yield from answer(talk, talk.operations.stats())
    except TimeoutqError as error:
        if not is_sharded(error):
            raise
        shards = Shards(talk)
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
    """Count the hosts that are blocked or banned now, and the kinds of failures."""
    key = talk.operations.key
    kinds, moment = yield from ask(talk, [("HLEN", key("kinds")), ("TIME",)])
    blocked, cursor, now_ms = 0, "0", float(moment[0]) * 1000
    for _ in range(PAGES if polite else 0):
        ((following, rules),) = yield from ask(talk, [("HSCAN", key("policies"), cursor, "COUNT", PAGE)])
        for rule in rules.values():
            # delay, visits at once, budget, until when, and `b` for blocked or `x` for banned
            words = rule.split(b" ", 5)
            if len(words) >= 5 and words[3].isdigit():
                blocked += words[4] == b"x" or (words[4] == b"b" and now_ms < int(words[3]) <= MAX_TIME_MS)
        if int(following) == 0:
            break
        cursor = str(int(following))
    return blocked, int(kinds) // FIELDS


class Watcher:
    """Looks at a server and all its queues for monitors, with one client, and warns in the log of an absent server."""

    def __init__(self, settings: Settings) -> None:
        self.client = AsyncServerClient("metrics", settings.url, deadline=min(settings.deadline, PATIENCE))
        self.shared = Shared(self._look, share=0.0)
        """The look at all queues; it takes `PATIENCE` seconds at most, and an error of the server ends it."""
        self.ready = Shared(self._ready, share=0.0)  # why requests cannot be carried out; '' if they can
        self._names = Names(self.client, lambda name: fnmatchcase(name, settings.queues), SHARE)
        self._writes = not settings.read_only
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to look at the server, and to warn in the log while it is away."""
        self._watching = asyncio.create_task(self._watch(), name="gateway-watch")

    async def close(self) -> None:
        await end(self._watching)
        for look in (self.ready, self.shared, self._names.walk):
            await look.close()
        await self.client.close()

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                await self._ask("TIME")
            except TimeoutqError as error:
                failures += 1
                if failures == 1:
                    fields = {"error": str(error)}
                    telling.say(log, logging.WARNING, "the gateway waits for the server: %s", error, fields=fields)
            else:
                if failures:
                    telling.say(log, logging.INFO, "the server answers the gateway again")
                failures = 0
            await asyncio.sleep(retry.pause(failures) if failures else LOOK)

    async def _ask(self, *command: str) -> Any:
        return (await self.client.run(ask(self.client.talk, [command])))[0]

    async def _ready(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE + 0.5):
                # a key that never exists: a primary that takes writes finds nothing to delete
                await (self._ask("DEL", Operations("readyz").key("probe")) if self._writes else self._ask("TIME"))
                with suppress(AccessDenied):  # the server does not tell; queues are opened then
                    if eviction_policy(await self._ask("INFO", "memory")) not in (None, "noeviction"):
                        return "the server may throw tasks away: its maxmemory-policy is not noeviction"
                look = await self.shared.get()
        except TimeoutError:
            return SILENT
        except TimeoutqError as error:
            return next((words for kind, words in _WORDS.items() if isinstance(error, kind)), SILENT)
        # if all queues are of another version, this gateway cannot do anything
        strange = look.queues and all(facts.is_strange for facts in look.queues)
        return _WORDS[SchemaMismatch] if strange else ""

    async def _look(self) -> Look:
        began, found, is_up = time.monotonic(), dict[str, Facts](), False

        async def read_some(rest: Iterator[str]) -> None:
            for name in rest:
                found[name] = await self._read(name)

        with suppress(TimeoutError, TimeoutqError):
            async with asyncio.timeout(PATIENCE):
                await self._ask("TIME")
                is_up = True
                rest = iter(sorted(await self._names.get(WALK))[:MOST])
                async with asyncio.TaskGroup() as group:
                    for _ in range(SIDE_BY_SIDE):
                        group.create_task(read_some(rest))
        names = sorted(self._names.found)
        rows = [found.get(name, Facts(name, None)) for name in names[:MOST]]
        there = [row for row in rows if row.stats is None or row.stats.exists or row.stats.workers]
        return Look(is_up, there, time.monotonic() - began, names[MOST:])

    async def _read(self, name: str) -> Facts:
        talk = replace(self.client.talk, operations=Operations(name))
        if talk.server.nodes:
            talk = replace(talk, at=slot_of(name))
        try:
            return await self.client.run(facts_of(talk, name))
        except TimeoutqError as error:  # its node is away, or the queue is of another version
            return Facts(name, None, is_strange=isinstance(error, SchemaMismatch))


async def metrics(request: Request) -> Response:
    """Give the metrics of all queues that the caller may look at, for Prometheus."""
    watcher: Watcher = request.state.watcher
    look, may = await watcher.shared.get(), request.caller.may
    seen = replace(
        look,
        queues=[facts for facts in look.queues if may("look", facts.queue)],
        left_out=[name for name in look.left_out if may("look", name)],
    )
    text, media_type = exposition(seen, request.head.first(b"accept"))
    return Response(text, media_type=media_type)


async def readyz(request: Request) -> Response:
    """Say whether the gateway can carry out requests: 503, and why not, if it cannot."""
    watcher: Watcher = request.state.watcher
    why = await watcher.ready.get()
    return JSONResponse({"ok": False, "why": why}, 503, {"retry-after": "2"}) if why else JSONResponse({"ok": True})
