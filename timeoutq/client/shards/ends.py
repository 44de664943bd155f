"""Extends and ends leases: each in its own shard, those of many shards at the same time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from timeoutq.client.methods import Build
from timeoutq.client.shards import gathering
from timeoutq.client.shards.flows import bring, check_priorities, spread
from timeoutq.client.shards.root import Shards
from timeoutq.server.calls import Call
from timeoutq.verbs import flows
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words.arguments import TaskList
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Answer, Lease, Outcome, raw

T = TypeVar("T")


def extend(shards: Shards, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
    """Extend leases. Raises if a shard is silent."""
    return _extend(shards, leases, timeout_ms, strict=True)


def extension(shards: Shards, leases: Sequence[Lease]) -> Flow[Outcome]:
    """Extend leases by the usual timeout; leases of a silent shard are `UNANSWERED`. Raises if all are silent.

    No replica is waited for, and a silent shard is asked for a third of the timeout, or for a second if this is longer:
    meanwhile, the other leases run.
    """
    timeout_ms = shards.root.terms.timeout_ms
    return _extend(shards, leases, timeout_ms, strict=False, within=max(timeout_ms / 3000, 1.0))


def _extend(
    shards: Shards, leases: Sequence[Lease], timeout_ms: int, *, strict: bool, within: float | None = None
) -> Flow[Outcome]:
    def build(talk: Talk, part: Sequence[Lease], _: Sequence[int]) -> list[Call[Any]]:
        return talk.operations.extend(part, timeout_ms)

    ids, places, results = yield from _send(shards, leases, build, within)
    found: dict[int, Any] = {
        shard: result if isinstance(result, TimeoutqError) else [one[1] for one in result]
        for shard, result in results.items()
    }
    if strict or not any(isinstance(result, list) for result in found.values()):
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


def in_its_shard(shards: Shards, lease: Lease, flow: Callable[[Talk], Flow[T]]) -> Flow[T]:
    """Carry out a flow about a lease in the shard of the lease."""
    return (yield from flow(shards.talks[shards.of_lease(lease)]))


def end(shards: Shards, given: object, leases: Sequence[Lease], build: Build) -> Flow[Answer | Outcome]:
    """End leases: if one was given, give its answer or raise `LeaseLost`; if many were given, give all answers."""
    if isinstance(given, Lease):
        return in_its_shard(shards, given, lambda talk: flows.end_one(talk, given, build(talk, leases, (0,))))
    return _end_many(shards, leases, build)


def _end_many(shards: Shards, leases: Sequence[Lease], build: Build) -> Flow[Outcome]:
    ids, places, results = yield from _send(shards, leases, build)
    return gathering.outcome_of(shards, ids, places, results)


def _send(
    shards: Shards, leases: Sequence[Lease], build: Build, within: float | None = None
) -> Flow[tuple[list[bytes], Any, Any]]:
    places = gathering.places_of(map(shards.of_lease, leases))
    calls = {
        shard: build(shards.talks[shard], [leases[at] for at in chosen], chosen) for shard, chosen in places.items()
    }
    results = yield from gathering.gather(shards, calls, within=within)
    return [raw(lease.task) for lease in leases], places, results
