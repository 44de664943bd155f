"""A sharded queue as a worker sees it: which shards the worker tends and helps, and where leases and links belong.

Two workers tend each shard: those with the highest scores for it, among all that gave a sign of life lately. A score is
a hash of the worker's name and the shard (rendezvous hashing). So each worker finds the two by itself, and when a
worker comes or goes, only its own shards change hands.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from timeoutq.client.shards import looking
from timeoutq.client.shards.claims import Depth, depth
from timeoutq.client.shards.gathering import any_added, places_of
from timeoutq.client.shards.methods import spread
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.server.calls import Call
from timeoutq.verbs import flows, reads
from timeoutq.verbs.division import Division
from timeoutq.verbs.sending import Flow, Talk, ask, settle
from timeoutq.words.arguments import TaskList
from timeoutq.words.model import Lease

TENDERS = 2
"""How many workers tend a shard."""
LATE = 1.0
"""A shard is not cleaned by anybody if something in it has been due for this many seconds."""
GLANCE = 1.0
"""About how many seconds an idle worker waits for a shard that does not answer, before it helps another one."""
CLEANED = 4
"""How many of such shards a worker that helps cleans at once."""
LIVE = 15.0
"""A worker that has given no sign of life for this many seconds does not count."""


def tenders(workers: Iterable[str], shard: int) -> list[str]:
    """Give the workers that tend a shard, the best first."""

    def score(worker: str) -> bytes:
        return hashlib.sha1(f"{worker} {shard}".encode(), usedforsecurity=False).digest()

    return sorted(workers, key=score, reverse=True)[:TENDERS]


def tended(worker: str, others: Iterable[str], shards: int) -> list[int]:
    """Give the shards that a worker tends."""
    everybody = {worker, *others}
    return [shard for shard in range(shards) if worker in tenders(everybody, shard)]


class ShardedDivision(Division):
    """A queue that consists of shards."""

    key_of = attrgetter("key")

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    @property
    def is_known(self) -> bool:
        return self._shards.wanted is not None

    def look(self) -> Flow[object]:
        return self._shards.look()

    @property
    def talks(self) -> Sequence[Talk]:
        return self._shards.talks

    def which(self, lease: Lease) -> int:
        return self._shards.of_lease(lease)

    def talk_of(self, lease: Lease) -> Talk:
        return self._shards.talk_of(lease)

    def parted(self, leases: Sequence[Lease]) -> list[tuple[Talk, Sequence[Lease]]]:
        places = places_of(map(self._shards.of_lease, leases))
        return [(self._shards.talks[shard], [leases[at] for at in chosen]) for shard, chosen in places.items()]

    def sorted(self, lease: Lease, found: TaskList) -> tuple[TaskList, Mapping[int, TaskList]]:
        if not found.ids:
            return found, {}
        places = spread(self._shards, found)
        home = found.pick(places.pop(self._shards.of_lease(lease), []))
        return home, {shard: found.pick(chosen) for shard, chosen in places.items()}

    def exchange(self, talk: Talk, calls: Sequence[Call[Any]], *, puts: bool, grouped: bool) -> Flow[list[Any]]:
        if grouped:  # before a task is in another shard than its id says, the record tells that there may be such tasks
            yield from self._shards.make(grouped=True)
        results = yield from settle(talk, calls)
        if puts:
            yield from self._shards.confirm(added=any_added([results]))
        return results

    def sharing(self, alive: int) -> int:
        return min(alive, TENDERS)

    def drained(self) -> Flow[bool]:
        return looking.drained(self._shards, None)

    def tended(self, worker: str) -> Flow[Collection[int]]:
        shards = self._shards
        yield from shards.look()
        ((seconds, _),) = yield from ask(shards.root, [("TIME",)])
        alive = yield from reads.workers(shards.root)
        # a program with a keeper gives signs of life, too, and tends nothing
        others = [one.worker for one in alive if one.tends is not None and one.beat >= int(seconds) - LIVE]
        return tended(worker, others, len(shards.talks))

    def deepest(self) -> Flow[int | None]:
        talks = self._shards.talks
        looks = yield from together([depth(replace(talk, deadline=min(talk.deadline, GLANCE))) for talk in talks])
        found = {shard: look for shard, look in enumerate(looks) if isinstance(look, Depth)}
        # both workers that tended a shard may have died: until others tend it, those that help clean it, too
        late = [shard for shard, look in found.items() if look.wait < -LATE]
        if late:
            some = random.sample(late, min(CLEANED, len(late)))
            yield from together([flows.clean(talks[shard]) for shard in some])
            return some[0]
        # the better of two at random, not the deepest of all: all idle workers would go there at once
        ready = [shard for shard, look in found.items() if look.ready]
        return max(random.sample(ready, min(2, len(ready))), key=lambda shard: found[shard].ready, default=None)
