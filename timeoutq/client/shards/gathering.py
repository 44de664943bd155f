"""Sends calls to many shards at the same time, makes one answer of their answers, and says which shards gave none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

from timeoutq.client.methods import Build
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.server.calls import BATCH, FLUSH, Call
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import CALLS, Flow, Talk, settle
from timeoutq.words.counts import Stats
from timeoutq.words.errors import NotReplicated, ShardsUnavailable, TimeoutqError, Unavailable
from timeoutq.words.model import Outcome
from timeoutq.words.text import counted

T = TypeVar("T")
Places = Mapping[int, Sequence[int]]
"""For each shard, the places of what belongs to it in a list of tasks, leases or hosts."""

WORDS = 2 * CALLS * BATCH
"""About the most arguments of calls that are sent before the answers are read."""


def of_shards(flows: Mapping[int, Flow[T]]) -> Flow[dict[int, T | TimeoutqError]]:
    """Carry out a flow in some shards; give for each shard the result, or the error in which the flow ended."""
    return dict(zip(flows, (yield from together([*flows.values()])), strict=True))


def each(shards: Shards, flow: Callable[[Talk], Flow[T]]) -> Flow[list[T]]:
    """Carry out a flow in every shard; give the results. Raises an error that names the shards that failed."""
    return whole(shards, (yield from of_shards({shard: flow(talk) for shard, talk in enumerate(shards.talks)})))


def late(make: Callable[[], Flow[T]]) -> Flow[T]:
    """Make a flow when it is carried out: by then the record has been read, which says how many shards there are."""
    return (yield from make())


def whole(shards: Shards, results: Mapping[int, T | TimeoutqError], outcome: Outcome | None = None) -> list[T]:
    """Give the results of shards; raise an error that names those that failed, if any did."""
    if errors := errors_of(results):
        raise failure(shards, errors, len(results), outcome)
    return [result for result in results.values() if not isinstance(result, TimeoutqError)]


def errors_of(results: Mapping[int, object]) -> dict[int, TimeoutqError]:
    """Give the errors among the results of shards."""
    return {shard: result for shard, result in results.items() if isinstance(result, TimeoutqError)}


def failure(
    shards: Shards, errors: Mapping[int, TimeoutqError], asked: int, outcome: Outcome | Stats | None = None
) -> TimeoutqError:
    """Make the error that says which of the `asked` shards failed, and why; if all failed alike, it names no shard."""
    error = next((one for one in errors.values() if not isinstance(one, Unavailable)), next(iter(errors.values())))
    if len(errors) == asked and len({type(one) for one in errors.values()}) == 1:
        return error
    named = ", ".join(map(str, sorted(errors)))
    words = f"shard{'' if len(errors) == 1 else 's'} {named} of queue {shards.name}"
    if isinstance(error, Unavailable):
        others = counted(asked - len(errors), "other")
        silent = [one for one in errors.values() if not isinstance(one, NotReplicated)]
        if not silent:  # the error of one shard says all the rest, and the cure
            said = f"{words}: no replica has confirmed it, and {others} had no such trouble: {error}"
        else:
            what = "did not answer" if len(silent) == len(errors) else "did not answer, or their replicas did not"
            said = f"{words} {what}, and {others} did: {silent[0]}; call again: nothing is done twice"
        return ShardsUnavailable(said, shards=errors, outcome=outcome)
    return type(error)(f"{words}: {error}")


def gather(
    shards: Shards, places: Places, build: Build, replicas: int = 0, within: float | None = None
) -> Flow[dict[int, list[Any] | TimeoutqError]]:
    """Send each shard the calls that are built for its places; give its answers, or the first error that it met."""
    talks: Sequence[Talk] = shards.talks
    calls = {shard: build(talks[shard], chosen) for shard, chosen in places.items()}
    if within is not None:
        # who holds leases has been given them by the scripts, so there is nothing to prove
        talks = [replace(talk, deadline=min(talk.deadline, within), proved=True) for talk in talks]
        replicas = UNCONFIRMED
    found: dict[int, list[Any]] = {shard: [] for shard in calls}
    errors: dict[int, TimeoutqError] = {}
    for flush in _flushes(calls):
        sent = [shard for shard in flush if shard not in errors]
        ended = yield from together([settle(talks[shard], flush[shard], replicas) for shard in sent], within)
        for shard, results in zip(sent, ended, strict=True):
            some = [results] if isinstance(results, TimeoutqError) else results
            if (error := next((one for one in some if isinstance(one, TimeoutqError)), None)) is not None:
                errors[shard] = error
            found[shard] += some
    return {**found, **errors}


def _flushes(calls: Mapping[int, Sequence[Call[Any]]]) -> Iterator[dict[int, list[Call[Any]]]]:
    # the first call of each shard, then the second of each, cut into flushes
    flush: dict[int, list[Call[Any]]] = {}
    words = weight = 0
    for row in zip_longest(*calls.values()):
        for shard, call in zip(calls, row, strict=True):
            if call is None:
                continue
            more = len(call.args)
            if flush and (words + more > WORDS or weight + call.weight > FLUSH):
                yield flush
                flush, words, weight = {}, 0, 0
            flush.setdefault(shard, []).append(call)
            words, weight = words + more, weight + call.weight
    if flush:
        yield flush


def places_of(shards: Iterable[int]) -> dict[int, list[int]]:
    """Give for each shard the places in this list at which the shard stands."""
    found: dict[int, list[int]] = {}
    for place, shard in enumerate(shards):
        found.setdefault(shard, []).append(place)
    return found


def any_added(results: Iterable[Iterable[object] | TimeoutqError]) -> bool:
    """Say whether one of these answers of shards tells of a task that its shard did not have."""
    given = (one for result in results if not isinstance(result, TimeoutqError) for one in result)
    return any(isinstance(one, Outcome) and b"A" in one.codes for one in given)


def outcome_of(
    shards: Shards, ids: Sequence[bytes], places: Places, results: Mapping[int, Sequence[Outcome] | TimeoutqError]
) -> Outcome:
    """Make one outcome of those of the shards, as `merged` does; raise an error that has it if some did not answer."""
    outcome = merged(ids, places, results)
    whole(shards, results, outcome)
    return outcome


def merged(ids: Sequence[bytes], places: Places, results: Mapping[int, Sequence[Outcome] | TimeoutqError]) -> Outcome:
    """Make one outcome of those of the shards; ids of a shard that did not answer are `UNANSWERED`.

    If several shards answer for an id, a state goes before `UNANSWERED`, and `UNANSWERED` before `UNKNOWN`.
    """
    unknown, unanswered = b"u?"
    codes = bytearray(b"u" * len(ids))
    for shard, result in results.items():
        some = [Outcome((), b"?" * len(places[shard]))] if isinstance(result, TimeoutqError) else result
        for place, letter in zip(places[shard], b"".join(one.codes for one in some), strict=True):
            if codes[place] == unknown or (codes[place] == unanswered and letter != unknown):
                codes[place] = letter
    return Outcome(ids, bytes(codes))
