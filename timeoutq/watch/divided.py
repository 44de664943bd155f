"""Examines a queue over several shards: its record, each node, each shard. Part of `timeoutq doctor`.

A node is examined once, however many shards it has. Of the shards, one line says what is right in all of them; what is
not right names the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.root import ROUTE, Shards
from timeoutq.client.shards.together import together
from timeoutq.server.calls import BATCH
from timeoutq.server.cluster import Map
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Send, answer, ask
from timeoutq.watch.doctor import QUEUE_CHECKS, SERVER_CHECKS, Finding, judge
from timeoutq.watch.facts import Facts, of_queue, of_server
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, SchemaMismatch, TimeoutqError, Unavailable
from timeoutq.words.text import counted, safe

Name = TypeVar("Name", str, int)

SAMPLE = 50  # how many tasks of each state of a shard doctor looks at, to see whether they belong to this shard

OPTIONS = {
    "keep_done": "--keep-done", "max_crashes": "--max-crashes", "politeness": "--delay TIME", "durable": "--durable",
    "events": "--events",
}  # fmt: skip
"""The settings that are the same in all shards, and the options of `timeoutq configure` that write them again."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What was seen of a shard."""

    facts: Facts
    looked: int = 0  # how many tasks were looked at, to see whether they belong to this shard
    astray: Sequence[bytes] = ()  # those that belong to another shard
    grouped: bool = False  # whether one of them was put with a group


def examine(queue: ShardedQueue) -> list[Finding]:
    """Gather the facts and judge them. Raises `Unavailable` if the node of the record does not answer."""
    shards = queue.shards
    try:
        if not queue.exists():
            return []  # there is no record any more, so there are no shards either
    except (InvalidInput, SchemaMismatch) as error:
        return [_bad_record(queue.name, error)]
    homes = queue.run(_homes(shards))
    nodes: dict[str, Facts | TimeoutqError] = {}
    if shards.root.server.nodes:
        nodes[""] = Unavailable("no node of the cluster has their slots")
    for talk, home in zip(shards.talks, homes, strict=True):
        if home not in nodes:  # one node after another, because a silent one would spoil the times of the others
            (nodes[home],) = queue.run(together([of_server(talk)]))
    asked = {shard: facts for shard, home in enumerate(homes) if isinstance(facts := nodes[home], Facts)}
    seen = queue.run(together([_look(shards, shard, facts) for shard, facts in asked.items()]))
    found = {shard: nodes[home] for shard, home in enumerate(homes)} | dict(zip(asked, seen, strict=True))
    workers = queue.run(answer(shards.root, shards.root.operations.stats())).workers
    parts: dict[int, Shard] = {}
    for shard, one in found.items():
        if isinstance(one, Shard):
            known = one.facts.queue and {**one.facts.queue, "workers": workers}
            parts[shard] = replace(one, facts=replace(one.facts, queue=known))
    silent = {shard: str(error) for shard, error in found.items() if isinstance(error, TimeoutqError)}
    answering = {home: facts for home, facts in nodes.items() if isinstance(facts, Facts)}
    return [*_nodes(shards, answering, parts, homes), *_silent(shards, silent), *_record(shards, parts),
            *_shards(shards, parts)]  # fmt: skip


# ---- gathering


def _homes(shards: Shards) -> Flow[list[str]]:
    """Give for each shard the name of its node; '' for a slot that no node has, and where there is no cluster."""
    known = yield from reads.nodes(shards.root)
    for node in known:
        reply = yield Send((("CLUSTER", "SLOTS"),), node)
        if isinstance(reply, list) and not isinstance(reply[0], BaseException):
            found = Map([node], 0)
            found.learn(reply[0], node)
            owners = [found.owner(talk.at) if isinstance(talk.at, int) else None for talk in shards.talks]
            return [f"{owner[0]}:{owner[1]}" if owner else "" for owner in owners]
    return [""] * len(shards.talks)


def _look(shards: Shards, shard: int, node: Facts) -> Flow[Shard]:
    talk, name = shards.talks[shard], shards.name
    key = talk.operations.key
    facts = yield from of_queue(talk, replace(node, stem=key(""), pattern=_pattern(name), name=name))
    sets = [("SSCAN", key(state), 0, "COUNT", SAMPLE) for state in ("todos", "waiting", "failed")]
    times = [("ZRANGE", key(name), 0, SAMPLE - 1) for name in ("scheduled", "leases")]
    try:
        *scans, due, held = yield from ask(talk, [*sets, *times])
        ids: list[bytes] = list(dict.fromkeys([*due, *held, *chain.from_iterable(some[:SAMPLE] for _, some in scans)]))
        _, records = yield from answer(talk, talk.operations.describe(ids[:BATCH]))
    except Unavailable:
        raise
    except TimeoutqError:  # another check reports this error
        return Shard(facts)
    groups = [None if record.group is None else arguments.host(record.group) for record in records]
    astray = [
        record.task
        for record, group in zip(records, groups, strict=True)
        if shards.of_task(record.task, group) != shard
    ]
    return Shard(facts, len(records), astray, any(group is not None for group in groups))


def _pattern(name: str) -> str:
    """Give the pattern of the keys of the record and of all shards."""
    return f"timeoutq:{{{name}[:}}]*"


# ---- judging


def _named(shards: Iterable[int], many: int) -> str:
    found = sorted(shards)
    if len(found) == many:
        return f"all {many} shards"
    return f"shard{'' if len(found) == 1 else 's'} {', '.join(map(str, found))}"


def _bad_record(name: str, error: TimeoutqError) -> Finding:
    if isinstance(error, SchemaMismatch):
        return Finding("record", "red", str(error), "upgrade timeoutq")
    return Finding(
        "record", "red", str(error),
        f"redis-cli --scan --pattern 'timeoutq:{{{name}:*}}:meta' shows the shards; then write their number back, and "
        f"the rule by which tasks are routed: redis-cli HSET 'timeoutq:{{{name}}}:meta' shards '12 host v1'",
    )  # fmt: skip


def _silent(shards: Shards, silent: Mapping[int, str]) -> Iterator[Finding]:
    for said, which in _alike(silent).items():
        yield Finding(
            "shards", "red", f"{_named(which, len(shards.talks))} cannot be asked: {said}",
            "start the node; until then the tasks of these shards wait, and the other shards go on",
        )  # fmt: skip


def _alike(values: Mapping[int, str]) -> dict[str, list[int]]:
    return {value: [shard for shard in values if values[shard] == value] for value in dict.fromkeys(values.values())}


def _nodes(
    shards: Shards, nodes: Mapping[str, Facts], parts: Mapping[int, Shard], homes: Sequence[str]
) -> Iterator[Finding]:
    durable = max((part.facts.queue.get("durable", 0) for part in parts.values()), default=0)
    compact = any(part.facts.compact for part in parts.values())
    checks = dict(SERVER_CHECKS)
    if shards.root.server.nodes:  # `nodes.py` examines all nodes of the cluster
        del checks["eviction"]
        if not durable:
            del checks["replicas"]
    found: dict[str, list[Finding]] = {}
    for home, facts in nodes.items():
        here = _named([shard for shard, other in enumerate(homes) if other == home], len(homes))
        pattern = _pattern(shards.name)
        facts = replace(facts, queue={"durable": durable}, compact=compact, name=shards.name, pattern=pattern)
        # a node without replicas stops its own shards, and no others
        stand = f": {here} stand{'s' if here.startswith('shard ') else ''} still"
        found[home] = [
            replace(one, found=one.found + stand) if (one.check, one.verdict) == ("replicas", "red") else one
            for one in judge(facts, checks)
        ]

    return _merged(found, lambda homes: ", ".join(sorted(homes)))


def _shards(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    if not parts:
        return
    each = {name: check for name, check in QUEUE_CHECKS.items() if name != "functions"}
    found = {shard: judge(part.facts, each) for shard, part in parts.items()}
    yield from _merged(found, lambda which: _named(which, len(shards.talks)))
    # the same workers serve all shards: one line says what they lack
    seen = [part.facts for part in parts.values()]
    told: list[tuple[bool, Mapping[str, str]]] = [facts.queue.get("functions", (False, {})) for facts in seen]
    lacking = {name: id for _, one in told for name, id in one.items()}
    workers = max(facts.queue.get("workers", 0) for facts in seen)
    whole = {"functions": (any(tells for tells, _ in told), lacking), "workers": workers}
    yield from judge(replace(seen[0], queue=whole), {"functions": QUEUE_CHECKS["functions"]})


def _merged(parts: Mapping[Name, Sequence[Finding]], named: Callable[[Iterable[Name]], str]) -> Iterator[Finding]:
    """Say of several nodes, or shards, in one line what is right in all of them; and what is not with names."""
    for check in dict.fromkeys(one.check for found in parts.values() for one in found):
        told = {part: one for part, found in parts.items() for one in found if one.check == check}
        wrong = list(dict.fromkeys(one for one in told.values() if one.verdict != "green"))
        for one in wrong:
            name = named([part for part in told if told[part] == one])
            yield replace(one, found=f"{name}: {one.found}") if name else one
        if not wrong:
            first, *others = told.values()
            name = named(told) if others else ""
            same = all(one.found == first.found for one in others)
            said = f"{name}: {first.found}" if same else f"right in {name}"
            yield replace(first, found=said) if name else first


def _record(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    found = [*_settings(shards, parts), *_routes(shards, parts)]
    yield from found
    if not found:
        record = shards.record
        grouped = ", tasks with groups were put" if record.grouped else ""
        agree = f"all {len(parts)}" if len(parts) == len(shards.talks) else f"the {len(parts)} that answer"
        said = f"{record.shards} shards by {record.by}, route {ROUTE}{grouped}; {agree} agree with it"
        yield Finding("record", "green", said)


def _settings(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    settings = {shard: part.facts.queue["settings"] for shard, part in parts.items() if part.facts.queue}
    for name, option in OPTIONS.items():
        given = {shard: one.get(name, "") for shard, one in settings.items()}
        values = _alike({shard: "" if value.endswith(" off") else value for shard, value in given.items()})
        if len(values) > 1:
            said = [f"{safe(value or 'not set', 60)} in {_named(which, 0)}" for value, which in values.items()]
            yield Finding(
                "record", "yellow", f"the shards do not agree: {name} is {'; '.join(said)}",
                f"set it again, which writes it into all shards: timeoutq configure {shards.name} {option} …",
            )  # fmt: skip


def _routes(shards: Shards, parts: Mapping[int, Shard]) -> Iterator[Finding]:
    astray = {shard: part.astray for shard, part in parts.items() if part.astray}
    if astray:
        looked = counted(sum(part.looked for part in parts.values()), "task")
        example = safe(next(iter(astray.values()))[0], 80)
        yield Finding(
            "record", "red", f"{sum(map(len, astray.values())):,} of {looked} that were looked at, in "
            f"{_named(astray, 0)}, belong to other shards, such as {example}: put again, such a task is in two shards",
            "the record was changed by hand, or keys came from another queue: pause the queue, export it, and import "
            "it into a new one, which routes each task again",
        )  # fmt: skip
    elif not shards.record.grouped and any(part.grouped for part in parts.values()):
        yield Finding(
            "record", "yellow", "tasks with groups are there, and the record does not say so: `inspect`, `why` and "
            "`forget` look for them in the wrong shard",
            f"redis-cli HSET 'timeoutq:{{{shards.name}}}:meta' groups 1",
        )  # fmt: skip
