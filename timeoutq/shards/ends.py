"""Extends and ends leases: each in its own shard, those of many shards at the same time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from timeoutq import arguments, flows, methods, tracebacks
from timeoutq.arguments import TaskList
from timeoutq.calls import Call
from timeoutq.errors import InvalidInput, TimeoutqError
from timeoutq.model import Answer, Lease, Outcome, Payload, Tasks, raw
from timeoutq.sending import Flow, Talk
from timeoutq.shards import gathering
from timeoutq.shards.flows import bring, check_priorities, spread
from timeoutq.shards.root import Shards

Build = Callable[[Talk, Sequence[Lease], Sequence[int]], list[Call[Any]]]
"""Builds the calls for some leases of one shard; the places of these leases among all leases are given, too."""


def extend(shards: Shards, lease: Lease | Iterable[Lease], timeout: float | None) -> Flow[Lease | Outcome]:
    """Extend one lease, or many."""
    timeout_ms = shards.root.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout)
    if isinstance(lease, Lease):
        return _in_its_shard(shards, lease, lambda talk: flows.extend_one(talk, lease, timeout_ms))
    return _extend_many(shards, arguments.leases(lease), timeout_ms, strict=True)


def extension(shards: Shards, leases: Sequence[Lease]) -> Flow[Outcome]:
    """Extend leases by the usual timeout; leases of a silent shard are `UNANSWERED`. Raises if all are silent.

    No replica is waited for, and a silent shard is asked for a third of the timeout, or for a second if this is longer:
    meanwhile, the other leases run.
    """
    timeout_ms = shards.root.terms.timeout_ms
    return _extend_many(shards, leases, timeout_ms, strict=False, within=max(timeout_ms / 3000, 1.0))


def _extend_many(
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


def ack(
    shards: Shards,
    lease: Lease | Iterable[Lease],
    put: Tasks | None,
    again_in: float | None,
    payload: Payload,
) -> Flow[Answer | Outcome]:
    """Ack one lease, or many; with `put`, one lease, and put the tasks that its handler found."""
    leases = arguments.leases(lease)
    again_ms, body = arguments.again(again_in, payload, leases[0].task if leases else "")
    if put is None and body is None:
        return _end(shards, lease, leases, lambda talk, part, _: talk.operations.ack(part, again_ms))
    if not isinstance(lease, Lease):
        raise InvalidInput("put= and payload= work with one lease only: ack such leases one by one")
    return ack_put(shards, lease, arguments.tasks((() if put is None else put,)), again_ms, body)


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


def release(shards: Shards, lease: Lease | Iterable[Lease], delay: float, block_host: float) -> Flow[Answer | Outcome]:
    """Release one lease, or many."""
    leases = arguments.leases(lease)
    delay_ms, block_ms = arguments.delay_ms(delay, "delay"), arguments.delay_ms(block_host, "block_host")
    return _end(shards, lease, leases, lambda talk, part, _: talk.operations.release(part, delay_ms, block_ms))


def fail(
    shards: Shards,
    lease: Lease | Iterable[Lease],
    error: BaseException | str,
    retry_in: float | None,
    give_up: bool,
) -> Flow[Answer | Outcome]:
    """Fail one lease, or many."""
    leases = arguments.leases(lease)
    waits = methods.retries(shards.root, leases, error, retry_in, give_up)
    text, trace = arguments.error_text(error), tracebacks.trace(error)

    def build(talk: Talk, part: Sequence[Lease], places: Sequence[int]) -> list[Call[Outcome]]:
        many = len(part)
        return talk.operations.fail(part, [waits[at] for at in places], [text] * many, [trace] * many)

    return _end(shards, lease, leases, build)


def _end(shards: Shards, given: object, leases: Sequence[Lease], build: Build) -> Flow[Answer | Outcome]:
    # a `Lease` gets one answer, or raises `LeaseLost`; an iterable of leases gets one answer for each lease
    if isinstance(given, Lease):
        return _in_its_shard(shards, given, lambda talk: flows.end_one(talk, given, build(talk, leases, [0])))
    return _end_many(shards, leases, build)


def _in_its_shard(shards: Shards, lease: Lease, flow: Callable[[Talk], Flow[Any]]) -> Flow[Any]:
    return (yield from flow(shards.talks[shards.of_lease(lease)]))


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


def lost(shards: Shards, lease: Lease) -> Flow[Any]:
    """Find out who has the task of a lost lease, and give the error that says so."""
    return _in_its_shard(shards, lease, lambda talk: flows.lost(talk, lease))
