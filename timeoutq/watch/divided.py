"""Examines a queue over several shards: its record, each node, each shard. Part of `timeoutq doctor`.

A node is examined once, however many shards it has. Of the shards, one line says what is right in all of them; what is
not right names the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.root import ROUTE, Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms.schedules.flows import Health
from timeoutq.server.calls import BATCH
from timeoutq.server.cluster import Map
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Send, Talk, answer, ask
from timeoutq.watch.doctor import QUEUE_CHECKS, SERVER_CHECKS, Finding, functions, judge
from timeoutq.watch.facts import Facts, of_queue, of_server
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, SchemaMismatch, TimeoutqError, Unavailable
from timeoutq.words.text import counted, safe

Name = TypeVar("Name", str, int)

SAMPLE = 50
"""How many tasks of each state of a shard doctor looks at, to see whether they belong to this shard."""

SHARED = ("keep_done", "max_crashes", "politeness", "durable", "events")
"""The settings that are the same in all shards, because `configure` writes them into each."""

OPTIONS = {
    "keep_done": "--keep-done",
    "max_crashes": "--max-crashes",
    "politeness": "--delay TIME",
    "durable": "--durable",
    "events": "--events",
}
"""The options of `timeoutq configure` that write them again."""


@dataclass(frozen=True, slots=True)
class Strays:
    """What a look at some tasks of a shard has found of their routes."""

    looked: int
    """How many tasks were looked at."""
    astray: Sequence[bytes] = ()
    """Those that belong to another shard."""
    grouped: bool = False
    """Whether one of them was put with a group."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What was seen of a shard."""

    facts: Facts
    strays: Strays


def examine(queue: ShardedQueue) -> list[Finding]:
    """Gather the facts and judge them. Raises `Unavailable` if the node of the record does not answer."""
    shards = queue.shards
    try:
        if not queue.exists():
            return []  # there is no record any more, so there are no shards either
    except (InvalidInput, SchemaMismatch) as error:
        return [_bad_record(queue.name, error)]
    homes = queue.run(_homes(shards))
    nodes: dict[str, Facts | TimeoutqError] = {"": Unavailable("no node of the cluster has their slots")}
    if not shards.root.server.nodes:
        nodes.clear()
    for talk, home in zip(shards.talks, homes, strict=True):
        if home not in nodes:  # one node after another, because a silent one would spoil the times of the others
            (nodes[home],) = queue.run(together([of_server(talk)]))
    asked = [shard for shard, home in enumerate(homes) if isinstance(nodes[home], Facts)]
    seen = queue.run(together([_look(shards, shards.talks[shard], nodes[homes[shard]]) for shard in asked]))
    workers = queue.run(answer(shards.root, shards.root.operations.stats())).workers
    silent: dict[int, TimeoutqError] = {
        shard: away for shard, home in enumerate(homes) if isinstance(away := nodes[home], TimeoutqError)
    }
    parts: dict[int, Shard] = {}
    for shard, one in zip(asked, seen, strict=True):
        if isinstance(one, TimeoutqError):
            silent[shard] = one
        elif one.facts.queue:
            parts[shard] = replace(one, facts=replace(one.facts, queue={**one.facts.queue, "workers": workers}))
        else:
            parts[shard] = one
    return [
        *_nodes(shards, {home: found for home, found in nodes.items() if isinstance(found, Facts)}, parts, homes),
        *_silent(shards, silent),
        *_record(shards, parts),
        *_shards(shards, parts),
    ]


# ---- gathering

_MAP = (("CLUSTER", "SLOTS"),)


def _homes(shards: Shards) -> Flow[list[str]]:
    """Give for each shard the name of its node; '' for a slot that no node has, and where there is no cluster."""
    known = yield from reads.nodes(shards.root)
    for node in known:
        reply = yield Send(_MAP, node)
        if isinstance(reply, list) and not isinstance(reply[0], BaseException):
            found = Map([node], 0)
            found.learn(reply[0], node)
            owners = [found.owner(talk.at) if isinstance(talk.at, int) else None for talk in shards.talks]
            return [f"{owner[0]}:{owner[1]}" if owner else "" for owner in owners]
    return [""] * len(shards.talks)


def _look(shards: Shards, talk: Talk, node: Any) -> Flow[Shard]:
    name = shards.name
    facts = replace(node, stem=talk.operations.key(""), pattern=_pattern(name), name=name)
    facts = yield from of_queue(talk, facts)
    return Shard(facts, (yield from _strays(shards, talk)))


def _pattern(name: str) -> str:
    # of the record and of all shards
    return f"timeoutq:{{{name}[:}}]*"


def _strays(shards: Shards, talk: Talk) -> Flow[Strays]:
    key = talk.operations.key
    sets = [("SSCAN", key(state), 0, "COUNT", SAMPLE) for state in ("todos", "waiting", "failed")]
    times = [("ZRANGE", key(name), 0, SAMPLE - 1) for name in ("scheduled", "leases")]
    try:
        *scans, due, held = yield from ask(talk, [*sets, *times])
        found: list[Any] = [*due, *held, *chain.from_iterable(some[:SAMPLE] for _, some in scans)]
        ids: list[bytes] = list(dict.fromkeys(found))[:BATCH]
        _, records = yield from answer(talk, talk.operations.describe(ids))
    except Unavailable:
        raise
    except TimeoutqError:  # another check reports this error
        return Strays(0)
    home, astray, grouped = shards.talks.index(talk), list[bytes](), False
    for record in records:
        group = None if record.group is None else arguments.host(record.group)
        grouped = grouped or group is not None
        if shards.of_task(record.task, group) != home:
            astray.append(record.task)
    return Strays(len(records), astray, grouped)


# ---- judging


def _named(shards: Iterable[int], many: int) -> str:
    found = sorted(shards)
    if len(found) == many:
        return f"all {many} shards"
    return f"shard{'' if len(found) == 1 else 's'} {', '.join(map(str, found))}"


def _bad_record(name: str, error: TimeoutqError) -> Finding:
    key = f"timeoutq:{{{name}}}:meta"
    if isinstance(error, SchemaMismatch):
        return Finding("record", "red", str(error), "upgrade timeoutq")
    return Finding(
        "record", "red", str(error),
        f"redis-cli --scan --pattern 'timeoutq:{{{name}:*}}:meta' shows the shards; then write their number back, and "
        f"what tasks are routed by: redis-cli HSET '{key}' shards '12 host v1'",
    )  # fmt: skip


def _silent(shards: Shards, silent: Mapping[int, TimeoutqError]) -> Iterator[Finding]:
    words: dict[str, list[int]] = {}
    for shard, error in silent.items():
        words.setdefault(str(error), []).append(shard)
    for said, which in words.items():
        yield Finding(
            "shards", "red", f"{_named(which, len(shards.talks))} cannot be asked: {said}",
            "start the node; until then the tasks of these shards wait, and the other shards go on",
        )  # fmt: skip


def _nodes(
    shards: Shards, nodes: Mapping[str, Facts], parts: Mapping[int, Shard], homes: Sequence[str]
) -> list[Finding]:
    # what `nodes.py` says of all nodes of the cluster is not said again
    is_cluster = bool(shards.root.server.nodes)
    durable = max((part.facts.queue.get("durable", 0) for part in parts.values()), default=0)
    compact = any(part.facts.compact for part in parts.values())
    said: Collection[str] = ()
    if is_cluster:
        said = ("eviction",) if durable else ("eviction", "replicas")
    found = {
        home: [
            _with_shards(one, [shard for shard, other in enumerate(homes) if other == home], len(homes))
            for one in judge(
                replace(
                    facts, queue={"durable": durable}, compact=compact, name=shards.name, pattern=_pattern(shards.name)
                ),
                SERVER_CHECKS,
            )
            if one.check not in said
        ]
        for home, facts in nodes.items()
    }
    return list(_merged(found, lambda homes: ", ".join(sorted(homes)), _each_green))


def _with_shards(finding: Finding, here: Sequence[int], many: int) -> Finding:
    # a node without replicas stops its own shards, and no others
    if (finding.check, finding.verdict) != ("replicas", "red"):
        return finding
    return replace(finding, found=f"{finding.found}: {_named(here, many)} stand{'s' if len(here) == 1 else ''} still")


def _each_green(found: Mapping[str, Finding]) -> Finding:
    first = next(iter(found.values()))
    if len({one.found for one in found.values()}) == 1:
        return first
    return replace(first, found="; ".join(f"{home}: {one.found}" for home, one in sorted(found.items())))


def _shards(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    if not parts:
        return
    many = len(shards.talks)
    whole = {one.check: one for one in judge(_sum([part.facts for part in parts.values()]), QUEUE_CHECKS)}
    lacking = whole.pop("functions", None)  # the same workers serve all shards: one line says what they lack
    each = [check for check in QUEUE_CHECKS if check is not functions]
    found = {shard: judge(part.facts, each) for shard, part in parts.items()}
    yield from _merged(found, lambda which: _named(which, many), lambda one: whole.get(next(iter(one.values())).check))
    if lacking is not None:
        yield lacking


def _sum(parts: Sequence[Facts]) -> Facts:
    """Give the facts about all shards, as if they were one queue."""
    queues = [part.queue for part in parts if part.queue]
    now = max((queue["now"] for queue in queues), default=0.0)
    whole: dict[str, Any] = {"now": now, "paused": False}
    for name in ("known", "in_progress", "scheduled"):
        whole[name] = sum(queue[name] for queue in queues)
    for name in ("next_deadline", "next_due"):  # each node has a clock of its own
        left = [queue[name] - queue["now"] for queue in queues if queue[name]]
        whole[name] = now + min(left) if left else None
    settings: list[Mapping[str, str]] = [queue["settings"] for queue in queues]
    whole["settings"] = next((one for one in settings if "schema" in one), dict[str, str]())
    timed: list[tuple[Health, float]] = [(one["schedules"], one["now"]) for one in queues if one.get("schedules")]
    if timed:
        ahead = [found.next - there for found, there in timed if found.next is not None]
        counts = Counter[str]()
        for found, _ in timed:
            counts.update(found.counts)
        whole["schedules"] = Health(counts, (), now + min(ahead) if ahead else None)
    told: list[tuple[bool, Mapping[str, str]]] = [queue.get("functions", (False, {})) for queue in queues]
    calls = {name: id for _, lacking in told for name, id in lacking.items()}
    whole["functions"] = any(tells for tells, _ in told), calls
    whole["workers"] = max((queue["workers"] for queue in queues), default=0)
    large = sum(part.large[0] for part in parts), sum(part.large[1] for part in parts)
    return replace(parts[0], queue=whole, script_error="", foreign={}, crooked={}, large=large)


def _merged(
    parts: Mapping[Name, Sequence[Finding]],
    named: Callable[[Iterable[Name]], str],
    green: Callable[[Mapping[Name, Finding]], Finding | None],
) -> Iterator[Finding]:
    """Say of several nodes, or shards, what is right in all that tell of it in one line, and what is not with names."""
    checks = dict.fromkeys(one.check for found in parts.values() for one in found)
    for check in checks:
        told = {part: one for part, found in parts.items() for one in found if one.check == check}
        wrong: dict[Finding, list[Name]] = {}
        for part, one in told.items():
            if one.verdict != "green":
                wrong.setdefault(one, []).append(part)
        for one, which in wrong.items():
            name = named(which)
            yield replace(one, found=f"{name}: {one.found}") if name else one
        if not wrong and (right := green(told)) is not None:
            yield right


def _record(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    found = [*_settings(shards, parts), *_routes(shards, parts)]
    yield from found
    if not found:
        record = shards.record
        grouped = ", tasks with groups were put" if record.grouped else ""
        agree = f"all {len(parts)}" if len(parts) == len(shards.talks) else f"the {len(parts)} that answer"
        yield Finding(
            "record", "green", f"{record.shards} shards by {record.by}, route {ROUTE}{grouped}; {agree} agree with it"
        )


def _settings(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    for name in SHARED:
        values: dict[str, list[int]] = {}
        for shard, part in parts.items():
            if part.facts.queue:
                values.setdefault(_value(part.facts.queue["settings"], name), []).append(shard)
        if len(values) > 1:
            said = "; ".join(f"{safe(value, 60)} in {_named(which, 0)}" for value, which in values.items())
            yield Finding(
                "record", "yellow", f"the shards do not agree: {name} is {said}",
                f"set it again, which writes it into all shards: timeoutq configure {shards.name} {OPTIONS[name]} …",
            )  # fmt: skip


def _value(settings: Mapping[str, str], name: str) -> str:
    value = settings.get(name, "")
    return "not set" if not value or value.endswith(" off") else value


def _routes(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    looked = sum(part.strays.looked for part in parts.values())
    astray = {shard: part.strays.astray for shard, part in parts.items() if part.strays.astray}
    if astray:
        example = next(iter(astray.values()))[0]
        n = sum(map(len, astray.values()))
        yield Finding(
            "record", "red", f"{n:,} of {counted(looked, 'task')} that were looked at, in {_named(astray, 0)}, belong "
            f"to other shards, such as {safe(example.decode('utf-8', 'replace'), 80)}: put again, such a task is in "
            "two shards",
            "the record was changed by hand, or keys came from another queue: pause the queue, export it, and import "
            "it into a new one, which routes each task anew",
        )  # fmt: skip
    elif not shards.record.grouped and any(part.strays.grouped for part in parts.values()):
        yield Finding(
            "record", "yellow", "tasks with groups are there, and the record does not say so: `inspect`, `why` and "
            "`forget` look for them in the wrong shard",
            f"redis-cli HSET 'timeoutq:{{{shards.name}}}:meta' groups 1",
        )  # fmt: skip
