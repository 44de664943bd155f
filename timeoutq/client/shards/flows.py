"""Flows of a sharded queue: tasks in, tasks by their ids, settings. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from timeoutq.client.methods import Build as BuildEnds
from timeoutq.client.methods import ById
from timeoutq.client.shards import gathering
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.route import route
from timeoutq.client.shards.together import together
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms.events import divided
from timeoutq.server.calls import Call, refuse_rerun
from timeoutq.verbs import confirming, flows, reads
from timeoutq.verbs.operations import how_words
from timeoutq.verbs.sending import Flow, ServerClock, Talk, answer, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import How, TaskList
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.hostname import host_of
from timeoutq.words.model import Answer, HostRecord, Lease, Outcome, Record, Tasks, raw

T = TypeVar("T")

Build = Callable[[Talk, TaskList], list[Call[Outcome]]]
"""Builds the calls that bring some tasks into one shard."""


def opening(shards: Shards, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
    """Meet the servers: refuse those that evict; look at the record; write the settings that the caller gave."""
    yield from flows.opening(shards.root, {}, allow_eviction)
    if shards.root.server.nodes:
        places = yield from reads.primaries(shards.root)
        met = yield from together(
            [flows.opening(replace(shards.root, at=place, clock=ServerClock()), {}, allow_eviction) for place in places]
        )
        # a node that is away fails the ids of its own shards, and not the client
        for error in met:
            if error is not None and not isinstance(error, Unavailable):
                raise error
    yield from shards.look()
    new = yield from _new(shards, settings)
    if new:
        yield from configure(shards, new)


def _new(shards: Shards, settings: Mapping[str, bytes]) -> Flow[Mapping[str, bytes]]:
    # a queue that is durable already is opened also while its replicas are away
    if not shards.made or "durable" not in settings:
        return settings
    looks = yield from together([ask(talk, [confirming.look(talk.operations)]) for talk in shards.talks])
    for talk, found in zip(shards.talks, looks, strict=True):
        if isinstance(found, TimeoutqError):
            return settings
        talk.durable.read(found[0], time.monotonic())
    wanted = int(settings["durable"])
    if any(talk.durable.replicas != wanted for talk in shards.talks):
        return settings
    return {name: value for name, value in settings.items() if name != "durable"}


# ---- tasks in


def put(shards: Shards, tasks: tuple[Tasks, ...], how: How, durable: int, due: bytes | None = None) -> Flow[Outcome]:
    """Put tasks; with `due`, as `arguments.due` gives it, schedule them."""
    check_group(shards, how.group)
    found = arguments.tasks(tasks)
    if due is not None:
        refuse_rerun(found, "schedule()")
    words = how_words(found, how)

    def build(talk: Talk, part: TaskList) -> list[Call[Outcome]]:
        if due is None:
            return talk.operations.put_checked(part, talk.nonce, words, how.call_id)
        return talk.operations.schedule_checked(due, part, talk.nonce, words)

    check_priorities(found, everything=how.priority is not None, grouped=how.group is not None)
    return bring(shards, found, _group(how), build, arguments.replicas(durable))


def check_priorities(found: TaskList, *, everything: bool = False, grouped: bool = False) -> None:
    """Refuse a priority of a task that belongs to no host: one shard would refuse, and the others would put theirs."""
    if grouped:
        return
    for at in range(len(found.ids)) if everything else found.priorities:
        if at not in found.groups and host_of(found.ids[at]) is None:
            raise InvalidInput(
                f"task {arguments.shown(found.ids[at])} belongs to no host, so it does not wait for a turn, and a "
                "priority would mean nothing: put it with group=, or without a priority"
            )


def check_group(shards: Shards, group: object) -> None:
    """Refuse the function `domain` of the installed package: another machine may find other domains."""
    name = getattr(group, "__module__", ""), getattr(group, "__qualname__", "")
    if name == ("timeoutq.urls.domains", "domain") and shards.by != "id":
        raise InvalidInput(
            f"group=domain would bring tasks of queue {shards.name} into the wrong shards on a machine that has "
            "another version of the public suffix list: write group=domains_of(queue), or for asyncio "
            "group=await async_domains_of(queue), both of timeoutq.urls; they use the list that the queue keeps"
        )


def _group(how: How) -> bytes | None:
    # a function has given its groups to the tasks already
    return None if how.group is None or callable(how.group) else arguments.host(how.group)


def bring(shards: Shards, found: TaskList, group: bytes | None, build: Build, replicas: int = 0) -> Flow[Outcome]:
    """Bring tasks into their shards, up to 500 in one call; give the answers."""
    if not found.ids:
        return Outcome((), b"")
    yield from shards.make(grouped=group is not None or bool(found.groups))
    places = spread(shards, found, group)
    calls = {
        shard: build(shards.talks[shard], found if len(chosen) == len(found.ids) else found.pick(chosen))
        for shard, chosen in places.items()
    }
    results = yield from gathering.gather(shards, calls, replicas)
    yield from shards.confirm(added=gathering.any_added(results.values()))
    return gathering.outcome_of(shards, found.ids, places, results)


def spread(shards: Shards, found: TaskList, group: bytes | None = None) -> dict[int, list[int]]:
    """Give for each shard the places of its tasks among all tasks."""
    groups, of = found.groups, shards.of_task
    return gathering.places_of(of(id, groups.get(at, group)) for at, id in enumerate(found.ids))


# ---- tasks by id


def by_id(shards: Shards, ids: Sequence[bytes], build: ById, *, everywhere: bool) -> Flow[Outcome]:
    """Send each id, in the calls that `build` makes, to the shard of the id; give the answers.

    An id that was put with a group may be elsewhere: `everywhere` sends all ids to all shards then; else other shards
    are asked for the ids that are unknown at home.
    """
    every, home = range(len(shards.talks)), list(map(shards.of_task, ids))
    if everywhere and (yield from shards.may_be_elsewhere()):
        return (yield from _asked(shards, ids, {shard: range(len(ids)) for shard in every}, build))
    outcome = yield from _asked(shards, ids, gathering.places_of(home), build)
    unknown = [at for at, answer in enumerate(outcome) if answer is Answer.UNKNOWN]
    if everywhere or not unknown or not (yield from shards.may_be_elsewhere()):
        return outcome
    others = {shard: [at for at in unknown if home[at] != shard] for shard in every}
    more = yield from _asked(shards, ids, {shard: places for shard, places in others.items() if places}, build)
    codes = bytearray(outcome.codes)
    for at in unknown:
        codes[at] = more.codes[at]
    return Outcome(ids, bytes(codes))


def _asked(shards: Shards, ids: Sequence[bytes], places: Mapping[int, Sequence[int]], build: ById) -> Flow[Outcome]:
    # if several shards answer for an id: a state goes before `UNANSWERED`, and `UNANSWERED` before `UNKNOWN`
    calls = {shard: build(shards.talks[shard], ([ids[at] for at in chosen],)) for shard, chosen in places.items()}
    results = yield from gathering.gather(shards, calls)
    order = sorted(results, key=lambda shard: isinstance(results[shard], Exception))
    codes = bytearray(b"u" * len(ids))
    for shard in order:
        part = gathering.merged(ids, places, {shard: results[shard]})
        for at in places[shard]:
            if codes[at] == b"u"[0]:
                codes[at] = part.codes[at]
    outcome = Outcome(ids, bytes(codes))
    gathering.whole(shards, results, outcome)
    return outcome


# ---- lines of an export


def restore(shards: Shards, records: Sequence[Record]) -> Flow[Outcome]:
    """Bring up to 500 tasks in as they were, those of each shard in one step."""
    groups = [None if record.group is None else arguments.host(record.group) for record in records]
    yield from shards.make(grouped=any(group is not None for group in groups))
    home = (shards.of_task(record.task, group) for record, group in zip(records, groups, strict=True))
    places = gathering.places_of(home)
    calls = {
        shard: [(talk := shards.talks[shard]).operations.restore([records[at] for at in chosen], talk.nonce)]
        for shard, chosen in places.items()
    }
    results = yield from gathering.gather(shards, calls)
    yield from shards.confirm(added=gathering.any_added(results.values()))
    return gathering.outcome_of(shards, [record.task for record in records], places, results)


def restore_hosts(shards: Shards, records: Sequence[HostRecord]) -> Flow[int | None]:
    """Give up to 500 hosts their rules and counts back; None if the queue is not polite."""
    places = gathering.places_of(route(record.host, len(shards.talks)) for record in records)
    calls: dict[int, list[Call[int | None]]] = {}
    for shard, chosen in places.items():
        talk = shards.talks[shard]
        calls[shard] = [of_hosts.restore_hosts(talk.operations, [records[at] for at in chosen], talk.nonce)]
    results = yield from gathering.gather(shards, calls)
    taken = [part for parts in gathering.whole(shards, results) for part in parts]
    return None if None in taken else sum(taken)


# ---- settings


def configure(shards: Shards, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
    """Change settings in every shard; `converts` as for `convert`."""
    if shards.record.by == "id" and settings.get("politeness", settings.get("politeness?", b"off")) != b"off":
        raise InvalidInput(
            f"queue {shards.name} routes its tasks by id, so many shards have tasks of one host, and no shard could be "
            'polite to this host: politeness needs a queue with by="host"'
        )
    durable = int(settings.get("durable", 0))
    if durable:  # before anything is written: neither a new record nor a part of the shards is to stay
        yield from gathering.each(shards, lambda talk: flows.find_replicas(talk, durable))
    yield from shards.make()
    for name in ("keep_done", "keep_done?"):
        if name in settings:
            yield from _check_keep_done(shards, is_compact=settings[name].startswith(b"compact"))
    if "events" in settings:
        settings = {**settings, "events": divided(settings["events"], len(shards.talks))}
    yield from gathering.each(shards, lambda talk: flows.configure(talk, settings, converts))


def _check_keep_done(shards: Shards, *, is_compact: bool) -> Flow[None]:
    # each shard refuses for itself; without this look, the shards that have no tasks would switch all the same
    parts = yield from gathering.each(shards, lambda talk: answer(talk, talk.operations.stats()))
    for part in parts:
        was = part.settings.get("keep_done") == "compact"
        if is_compact and not was and part.known:
            raise InvalidInput(
                f'keep_done="compact" can be set only while a queue has no tasks, and queue {shards.name} has '
                f"{sum(one.known for one in parts)}, done ones counted: set it on a new queue, then bring the tasks "
                "there (timeoutq export OLD | timeoutq import NEW); or purge this queue first"
            )
        if was and not is_compact and part.done:
            raise InvalidInput(
                f"queue {shards.name} keeps {sum(one.done for one in parts)} done tasks as fingerprints, which no "
                'other keep_done can read: keep_done stays "compact" until the queue is purged; for another keep_done '
                "use a new queue"
            )


def purge(shards: Shards) -> Flow[None]:
    """Remove the queue: the shards, and when all of them are gone, the record."""
    yield from gathering.each(shards, flows.purge)
    yield from flows.purge(shards.root)
    yield from shards.unmake()
    # a client may have put tasks into a shard meanwhile: then the queue is there again, with as many shards as before
    if any((yield from together([reads.exists(talk) for talk in shards.talks]))):
        yield from shards.make(grouped=shards.record.grouped)


# ---- leases: each in its own shard, those of many shards at the same time


def extend(shards: Shards, leases: Sequence[Lease], timeout_ms: int, within: float | None = None) -> Flow[Outcome]:
    """Extend leases. Raises if a shard is silent.

    With `within`, for a keeper or a heartbeat: no replica is waited for, and a silent shard is asked for so many
    seconds; its leases are then `UNANSWERED`, and only if all shards are silent does this raise.
    """

    def build(talk: Talk, part: Sequence[Lease], _: Sequence[int]) -> list[Call[Any]]:
        return talk.operations.extend(part, timeout_ms)

    ids, places, results = yield from send(shards, leases, build, within)
    found: dict[int, Any] = {
        shard: result if isinstance(result, TimeoutqError) else [one[1] for one in result]
        for shard, result in results.items()
    }
    if within is None or all(isinstance(result, TimeoutqError) for result in found.values()):
        return gathering.outcome_of(shards, ids, places, found)
    return gathering.merged(ids, places, found)


def ack_put(shards: Shards, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> Flow[Answer]:
    """Ack one lease and put the tasks that its handler found: first those of other shards, the rest with the ack.

    The ack goes when all other shards have their tasks. After a crash between the two steps, these tasks are in the
    queue and the lease is not acked: the handler runs again, and nothing is lost.
    """
    home = shards.of_lease(lease)
    check_priorities(found)
    places = spread(shards, found)
    foreign = sorted(at for shard, chosen in places.items() if shard != home for at in chosen)
    if found.groups:
        yield from shards.make(grouped=True)
    if foreign:
        yield from bring(
            shards, found.pick(foreign), None, lambda talk, part: talk.operations.put_checked(part, talk.nonce)
        )
    return (yield from flows.ack_put(shards.talks[home], lease, found.pick(places.get(home, [])), again_ms, payload))


def send(
    shards: Shards, leases: Sequence[Lease], build: BuildEnds, within: float | None = None
) -> Flow[tuple[list[bytes], Any, Any]]:
    """Send leases, in the calls that `build` makes, to their shards; give their ids, their places, and the answers."""
    places = gathering.places_of(map(shards.of_lease, leases))
    calls = {
        shard: build(shards.talks[shard], [leases[at] for at in chosen], chosen) for shard, chosen in places.items()
    }
    results = yield from gathering.gather(shards, calls, within=within)
    return [raw(lease.task) for lease in leases], places, results
