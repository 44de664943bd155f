"""How tasks of a sharded queue have ended: tasks and results are in the shard of the id, or of the group. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import chain

from timeoutq.client.shards import gathering
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms.results import flows, operations
from timeoutq.rooms.results.flows import ResultFlows
from timeoutq.server.calls import BATCH
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Ended

ROUND = 0.5
"""Seconds for which a wait listens to one shard, before it asks the others: no two shards have one list in common."""


class ShardedResultFlows(ResultFlows):
    """The flows about the results of a sharded queue."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def look(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        shards = self._shards
        found: list[Ended | None] = [None] * len(ids)
        yield from self._look(ids, gathering.places_of(map(shards.of_task, ids)), client, found)
        gone = [at for at, one in enumerate(found) if one is not None and one.is_gone]
        if gone and (yield from shards.may_be_elsewhere()):
            home = {at: shards.of_task(ids[at]) for at in gone}
            others = {shard: [at for at in gone if home[at] != shard] for shard in range(len(shards.talks))}
            yield from self._look(ids, {shard: places for shard, places in others.items() if places}, client, found)
        return found

    def _look(
        self, ids: Sequence[bytes], places: Mapping[int, Sequence[int]], client: str, found: list[Ended | None]
    ) -> Flow[None]:
        # notes in `found` what the shards say; what one of them knows goes before what another does not know
        shards = self._shards
        asked = [flows.look(shards.talks[shard], [ids[at] for at in part], client) for shard, part in places.items()]
        results = dict(zip(places, (yield from together(asked)), strict=True))
        if not client or all(isinstance(result, TimeoutqError) for result in results.values()):
            gathering.whole(shards, results)
        for shard, result in results.items():
            if isinstance(result, TimeoutqError):
                result = [None] * len(places[shard])  # who waits asks a silent shard again
            for at, ended in zip(places[shard], result, strict=True):
                if ended is None or not ended.is_gone or shard == shards.of_task(ids[at]):
                    found[at] = ended

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        shards = self._shards
        if shards.record.grouped:
            talks = list(shards.talks)
        else:
            talks = [shards.talks[shard] for shard in {shards.of_task(id) for id in ids}]
        one = random.choice(talks or shards.talks)  # noqa: S311  # not a secret
        heard = yield from flows.hear(one, client, seconds if len(talks) == 1 else min(seconds, ROUND))
        others = [_pop(talk, client) for talk in talks if talk is not one]
        if not others:
            return heard
        results = yield from together(others)
        for result in results:
            if isinstance(result, TimeoutqError):
                raise result
        return [*heard, *chain.from_iterable(gathering.known(dict(enumerate(results))))]


def _pop(talk: Talk, client: str) -> Flow[list[bytes]]:
    (popped,) = yield from ask(talk, [("LPOP", operations.answers(talk.operations, client), BATCH)])
    return popped or []
