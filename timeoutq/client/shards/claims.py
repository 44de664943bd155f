"""Claims of a client that has no shards of its own: it tries two shards, looks at all, then waits and tries again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from timeoutq.client.methods import Sent
from timeoutq.client.shards.gathering import errors_of, failure, of_shards
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.verbs import flows, replies
from timeoutq.verbs.reads import pairs_of
from timeoutq.verbs.sending import Flow, Talk, a_moment, answer, answers, ask
from timeoutq.words.errors import NotReplicated, TimeoutqError, Unavailable
from timeoutq.words.model import Lease, Task

LISTEN = 1.0
"""How long a client waits for the bell of one shard before it looks at the others again, seconds."""

AWAY = 1.0
"""For how long a client leaves a shard alone that did not answer, seconds; unless fewer than two others are left."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many tasks a shard has to claim, and when it may have more."""

    ready: int
    wait: float
    """Seconds until the next lease runs out, or the next task or host is due; infinity if there is none of these."""


def depth(talk: Talk) -> Flow[Depth]:
    """Look how many tasks a shard has to claim, and when it may have more."""
    key = talk.operations.key
    commands = [("ZRANGE", key(name), 0, 0, "WITHSCORES") for name in ("leases", "scheduled", "hosts")]
    ready, moment, *firsts = yield from ask(talk, [("SCARD", key("todos")), ("TIME",), *commands])
    pairs: list[tuple[Any, Any]] = [pair for first in firsts for pair in pairs_of(first)]
    times = [at for _, score in pairs if (at := replies.when(score)) is not None]
    return Depth(int(ready), min(times, default=inf) - int(moment[0]) - int(moment[1]) / 1e6)


class Claim:
    """A claim of a client that has no shards of its own."""

    def __init__(self, shards: Shards, n: int, timeout_ms: int, max_runtime_ms: int, wait: float, sent: Sent) -> None:
        """Prepare; `sent` is told which calls a round has sent: a shard may get two calls in a round."""
        self._shards, self._n, self._wait, self._sent = shards, n, wait, sent
        self._timeout_ms, self._max_runtime_ms = timeout_ms, max_runtime_ms
        self._away: dict[int, float] = {}
        self._errors: dict[int, TimeoutqError] = {}

    def flow(self) -> Flow[list[Lease]]:
        """Claim."""
        shards, until = self._shards, time.monotonic() + self._wait
        while True:
            self._sent.clear()
            self._errors = {}
            leases, pause = yield from self._round(self._n)
            if leases:  # an error of another shard comes again, when there is nothing to hand out
                return (yield from self._without_company(leases))
            for error in self._errors.values():
                if not isinstance(error, Unavailable):
                    raise error
            left = until - time.monotonic()
            if left <= 0 and not self._errors:
                return []
            if left <= 0:
                missing = list(self._errors.values())
                if all(isinstance(error, NotReplicated) for error in missing):
                    raise missing[0]  # the shards have answered, and this error says what became of their tasks
                raise failure(shards, self._errors, len(shards.talks))
            yield from self._listen(min(left, pause))
            if not shards.made:
                yield from shards.look()

    def _round(self, n: int) -> Flow[tuple[list[Lease], float]]:
        # claims from two shards at once cost one exchange, and usually bring enough
        first, second = random.sample(self._present(), 2)
        leases = yield from self._take({first: n - n // 2, second: n // 2})
        if len(leases) == n:
            return leases, 0.0
        asked = self._present()
        random.shuffle(asked)
        looks = yield from of_shards({shard: depth(self._shards.talks[shard]) for shard in asked})
        depths = dict[int, Depth](self._heard(looks))
        wanted, left = dict[int, int](), n - len(leases)
        for shard, found in depths.items():
            if left and found.ready:
                wanted[shard] = min(left, found.ready)
                left -= wanted[shard]
        leases += yield from self._take(wanted)
        for shard, found in depths.items():
            if not leases and found.wait <= 0:
                leases += yield from self._take({shard: n})
        return leases, min([LISTEN, *(max(0.01, found.wait) for found in depths.values())])

    def _present(self) -> list[int]:
        now, every = time.monotonic(), range(len(self._shards.talks))
        present = [shard for shard in every if self._away.get(shard, 0.0) <= now]
        return present if len(present) > 1 else list(every)

    def _take(self, wanted: Mapping[int, int]) -> Flow[list[Lease]]:
        def claim(shard: int, n: int) -> Flow[list[Lease]]:
            talk = self._shards.talks[shard]
            return flows.claim(talk, n, self._timeout_ms, self._max_runtime_ms, 0.0, self._noting(shard, talk))

        results = yield from of_shards({shard: claim(shard, n) for shard, n in wanted.items() if n})
        leases: list[Lease] = []
        for shard, result in self._heard(results):
            self._errors.pop(shard, None)
            leases += result
        return leases

    def _heard(self, results: Mapping[int, Any]) -> Iterable[tuple[int, Any]]:
        # gives the results of the shards that answered, and notes the errors of the others, and which of them are away
        for shard, result in results.items():
            if not isinstance(result, TimeoutqError):
                yield shard, result
                continue
            # not raised here: leases that other shards have just given would be lost with this error
            self._errors[shard] = result
            if isinstance(result, Unavailable):
                self._away[shard] = time.monotonic() + AWAY

    def _noting(self, shard: int, talk: Talk) -> Callable[[], bytes]:
        def nonce() -> bytes:
            self._sent.append((talk, talk.nonce()))
            return self._sent[-1][1]

        return nonce

    def _without_company(self, leases: list[Lease]) -> Flow[list[Lease]]:
        # a task that lost two leases is handed out alone: no task of another shard comes with it either
        suspects = [lease for lease in leases if lease.crashes >= 2]
        if not suspects or len(leases) == 1:
            return leases
        others = [lease for lease in leases if lease.crashes < 2]
        kept = suspects[:1] if not others or random.random() < 0.5 else others  # noqa: S311  # neither waits for ever
        back = [lease for lease in leases if lease not in kept]
        talks = [(self._shards.talk_of(lease), lease) for lease in back]
        yield from together([answers(talk, talk.operations.release([lease])) for talk, lease in talks])
        return kept

    def _listen(self, seconds: float) -> Flow[None]:
        talk = self._shards.talks[random.choice(self._present())]  # noqa: S311  # not a secret
        try:
            yield from flows.hear_bell(talk, seconds)
        except Unavailable:
            yield a_moment()


def pull(shards: Shards, n: int) -> Flow[list[Task]]:
    """Take tasks without a lease, from one shard: an error of a second shard would lose the tasks of the first."""
    every = list(range(len(shards.talks)))
    random.shuffle(every)
    depths = yield from of_shards({shard: depth(shards.talks[shard]) for shard in every})
    deep = [(found.ready, shard) for shard, found in depths.items() if isinstance(found, Depth)]
    # if no shard has a task, one is asked all the same: it says whether the queue allows this at all
    for shard in [shard for ready, shard in sorted(deep, reverse=True) if ready] or [shard for _, shard in deep[:1]]:
        talk = shards.talks[shard]
        tasks = yield from answer(talk, talk.operations.pull(n, talk.nonce))
        if tasks:
            return tasks
    if errors := errors_of(depths):
        raise failure(shards, errors, len(every))
    return []
