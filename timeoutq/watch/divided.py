"""Examines a queue over several shards: its record, each node, each shard. Part of `timeoutq doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.root import ROUTE, Shards
from timeoutq.client.together import together
from timeoutq.server.calls import BATCH
from timeoutq.server.cluster import Map
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Send, answer, ask
from timeoutq.watch.doctor import QUEUE_CHECKS, SERVER_CHECKS, Finding, green, judge, named, red, yellow
from timeoutq.watch.facts import NOTHING, Facts, of_queue, of_server
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
    workers = queue.run(answer(shards.root, shards.root.operations.stats())).workers
    seen = queue.run(together([_look(shards, shard, nodes[home], workers) for shard, home in enumerate(homes)]))
    parts = {shard: facts for shard, facts in enumerate(seen) if isinstance(facts, Facts)}
    silent = {shard: str(error) for shard, error in enumerate(seen) if isinstance(error, TimeoutqError)}
    answering = {home: facts for home, facts in nodes.items() if isinstance(facts, Facts)}
    record = [*_settings(shards, parts), *_routes(shards, parts)] or [_agreed(shards, len(parts))]
    return [
        *_nodes(shards, answering, parts, homes), *named("shards", _silent(shards, silent)), *named("record", record),
        *_shards(shards, parts),
    ]  # fmt: skip


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


def _look(shards: Shards, shard: int, node: Facts | TimeoutqError, workers: int) -> Flow[Facts]:
    if isinstance(node, TimeoutqError):
        raise node
    talk = shards.talks[shard]
    key = talk.operations.key
    facts = yield from of_queue(talk, replace(node, stem=key(""), pattern=_pattern(shards.name)))
    facts = replace(facts, stats=replace(facts.stats, workers=workers))  # they are in the root, which no shard sees
    sets = [("SSCAN", key(state), 0, "COUNT", SAMPLE) for state in ("todos", "waiting", "failed")]
    times = [("ZRANGE", key(name), 0, SAMPLE - 1) for name in ("scheduled", "leases")]
    try:
        *scans, due, held = yield from ask(talk, [*sets, *times])
        ids: list[bytes] = list(dict.fromkeys([*due, *held, *chain.from_iterable(some[:SAMPLE] for _, some in scans)]))
        _, records = yield from answer(talk, talk.operations.describe(ids[:BATCH]))
    except Unavailable:
        raise
    except TimeoutqError:  # another check reports this error
        return facts
    groups = {record.task: None if record.group is None else arguments.host(record.group) for record in records}
    astray = [task for task, group in groups.items() if shards.of_task(task, group) != shard]
    grouped = any(group is not None for group in groups.values())
    return replace(facts, looked=len(records), astray=astray, grouped=grouped)


def _pattern(name: str) -> str:
    """Give the pattern of the keys of the record and of all shards."""
    return f"timeoutq:{{{name}[:}}]*"


# ---- judging


def _these(shards: Iterable[int], many: int) -> str:
    found = sorted(shards)
    if len(found) == many:
        return f"all {many} shards"
    return f"shard{'' if len(found) == 1 else 's'} {', '.join(map(str, found))}"


def _bad_record(name: str, error: TimeoutqError) -> Finding:
    cure = "upgrade timeoutq"
    if not isinstance(error, SchemaMismatch):
        cure = (
            f"redis-cli --scan --pattern 'timeoutq:{{{name}:*}}:meta' shows the shards; then write their number back, "
            f"and the rule by which tasks are routed: redis-cli HSET 'timeoutq:{{{name}}}:meta' shards '12 host v1'"
        )
    return Finding("record", "red", str(error), cure)


def _silent(shards: Shards, silent: Mapping[int, str]) -> Iterator[Finding]:
    for said, which in _alike(silent).items():
        yield red(
            f"{_these(which, len(shards.talks))} cannot be asked: {said}",
            "start the node; until then the tasks of these shards wait, and the other shards go on",
        )


def _alike(values: Mapping[int, str]) -> dict[str, list[int]]:
    return {value: [shard for shard in values if values[shard] == value] for value in dict.fromkeys(values.values())}


def _nodes(
    shards: Shards, nodes: Mapping[str, Facts], parts: Mapping[int, Facts], homes: Sequence[str]
) -> Iterator[Finding]:
    stats = max((facts.stats for facts in parts.values()), key=lambda stats: stats.durable, default=NOTHING)
    checks = dict(SERVER_CHECKS)
    if shards.root.server.nodes:  # `nodes.py` examines all nodes of the cluster
        del checks["eviction"]
        if not stats.durable:
            del checks["replicas"]
    found: dict[str, list[Finding]] = {}
    for home, facts in nodes.items():
        here = _these([shard for shard, other in enumerate(homes) if other == home], len(homes))
        # a node without replicas stops its own shards, and no others
        stand = f": {here} stand{'s' if here.startswith('shard ') else ''} still"
        found[home] = [
            replace(one, found=one.found + stand) if (one.check, one.verdict) == ("replicas", "red") else one
            for one in judge(replace(facts, stats=stats, pattern=_pattern(shards.name)), checks)
        ]
    return _merged(found, lambda homes: ", ".join(sorted(homes)))


def _shards(shards: Shards, parts: Mapping[int, Facts]) -> Iterator[Finding]:
    if not parts:
        return
    each = {name: check for name, check in QUEUE_CHECKS.items() if name not in ("claims", "functions")}
    found = {shard: judge(facts, each) for shard, facts in parts.items()}
    yield from _merged(found, lambda which: _these(which, len(shards.talks)))
    # the same workers serve all shards: one line says that there are none, or what they lack
    seen = list(parts.values())
    lacking = {name: id for facts in seen for name, id in facts.functions[1].items()}
    whole = replace(
        seen[0], functions=(any(facts.functions[0] for facts in seen), lacking), name=shards.name,
        stats=replace(seen[0].stats, todos=sum(facts.stats.todos for facts in seen)),
    )  # fmt: skip
    yield from judge(whole, {name: QUEUE_CHECKS[name] for name in ("claims", "functions")})


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


def _agreed(shards: Shards, many: int) -> Finding:
    record = shards.record
    grouped = ", tasks with groups were put" if record.grouped else ""
    agree = f"all {many}" if many == len(shards.talks) else f"the {many} that answer"
    return green(f"{record.shards} shards by {record.by}, route {ROUTE}{grouped}; {agree} agree with it")


def _settings(shards: Shards, parts: Mapping[int, Facts]) -> Iterator[Finding]:
    settings = {shard: facts.stats.settings for shard, facts in parts.items() if facts.error is None}
    for name, option in OPTIONS.items():
        given = {shard: one.get(name, "") for shard, one in settings.items()}
        values = _alike({shard: "" if value.endswith(" off") else value for shard, value in given.items()})
        if len(values) > 1:
            said = [f"{safe(value or 'not set', 60)} in {_these(which, 0)}" for value, which in values.items()]
            yield yellow(
                f"the shards do not agree: {name} is {'; '.join(said)}",
                f"set it again, which writes it into all shards: timeoutq configure {shards.name} {option} …",
            )


def _routes(shards: Shards, parts: Mapping[int, Facts]) -> Iterator[Finding]:
    astray = {shard: facts.astray for shard, facts in parts.items() if facts.astray}
    if astray:
        looked = counted(sum(facts.looked for facts in parts.values()), "task")
        example = safe(next(iter(astray.values()))[0], 80)
        yield red(
            f"{sum(map(len, astray.values())):,} of {looked} that were looked at, in {_these(astray, 0)}, belong to "
            f"other shards, such as {example}: put again, such a task is in two shards",
            "the record was changed by hand, or keys came from another queue: pause the queue, export it, and import "
            "it into a new one, which routes each task again",
        )
    elif not shards.record.grouped and any(facts.grouped for facts in parts.values()):
        yield yellow(
            "tasks with groups are there, and the record does not say so: `inspect`, `why` and `forget` look for them "
            "in the wrong shard",
            f"redis-cli HSET 'timeoutq:{{{shards.name}}}:meta' groups 1",
        )
