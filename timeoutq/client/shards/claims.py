"""Claims of a client that has no shards of its own: it tries two shards, looks at all, then waits and tries again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from timeoutq.client import methods
from timeoutq.client.shards.gathering import failure, of_shards
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
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
    next_at: float | None
    """When the next lease runs out, or the next task or host is due: Unix seconds of the server's clock."""
    now: float

    @property
    def is_due(self) -> bool:
        """Whether a cleaner would make something ready now."""
        return self.next_at is not None and self.next_at <= self.now


def depth(talk: Talk) -> Flow[Depth]:
    """Look how many tasks a shard has to claim, and when it may have more."""
    key = talk.operations.key
    commands = [("ZRANGE", key(name), 0, 0, "WITHSCORES") for name in ("leases", "scheduled", "hosts")]
    ready, moment, *firsts = yield from ask(talk, [("SCARD", key("todos")), ("TIME",), *commands])
    pairs: list[tuple[Any, Any]] = [pair for first in firsts for pair in pairs_of(first)]
    times = [at for _, score in pairs if (at := replies.when(score)) is not None]
    return Depth(int(ready), min(times, default=None), int(moment[0]) + int(moment[1]) / 1e6)


class Claim(methods.Claim):
    """A claim that Ctrl-C or a cancel may interrupt: its leases can then be given back."""

    def __init__(self, shards: Shards, n: int, timeout: float | None, max_runtime: float | None, wait: float) -> None:
        """Check the arguments."""
        super().__init__(shards.root, n, timeout, max_runtime, wait)
        self._shards = shards
        self._tokens: list[tuple[int, bytes]] = []
        """The tokens of this round, and the shards that got them: a shard may get two calls in a round."""
        self._away: dict[int, float] = {}
        self._errors: dict[int, TimeoutqError] = {}

    @property
    def sent(self) -> bool:
        """Whether a call of this claim may have been sent."""
        return bool(self._tokens)

    def flow(self) -> Flow[list[Lease]]:
        """Claim."""
        shards, until = self._shards, time.monotonic() + self.wait
        while True:
            self._tokens, self._errors = [], {}
            leases, pause = yield from self._round(self.n)
            if leases:  # an error of another shard comes again, when there is nothing to hand out
                return (yield from self._without_company(leases))
            for error in self._errors.values():
                if not isinstance(error, Unavailable):
                    raise error
            left = until - time.monotonic()
            if left <= 0:
                if self._errors:
                    missing = list(self._errors.values())
                    if all(isinstance(error, NotReplicated) for error in missing):
                        raise missing[0]  # the shards have answered, and this error says what became of their tasks
                    raise failure(shards, self._errors, len(shards.talks))
                return []
            yield from self._listen(min(left, pause))
            if not shards.made:
                yield from shards.look()

    def _round(self, n: int) -> Flow[tuple[list[Lease], float]]:
        # claims from two shards at once cost one exchange, and usually bring enough
        first, second = random.sample(self._present(), 2)
        leases = yield from self._take({first: n - n // 2, second: n // 2})
        if len(leases) == n:
            return leases, 0.0
        depths = yield from self._depths()
        wanted: dict[int, int] = {}
        left = n - len(leases)
        for shard, found in depths.items():
            if left and found.ready:
                wanted[shard] = min(left, found.ready)
                left -= wanted[shard]
        leases += yield from self._take(wanted)
        for shard, found in depths.items():
            if not leases and found.is_due:
                leases += yield from self._take({shard: n})
        soon = [max(0.01, found.next_at - found.now) for found in depths.values() if found.next_at is not None]
        return leases, min([LISTEN, *soon])

    def _present(self) -> list[int]:
        now, every = time.monotonic(), range(len(self._shards.talks))
        present = [shard for shard in every if self._away.get(shard, 0.0) <= now]
        return present if len(present) > 1 else list(every)

    def _take(self, wanted: Mapping[int, int]) -> Flow[list[Lease]]:
        def claim(shard: int, n: int) -> Flow[list[Lease]]:
            talk = self._shards.talks[shard]
            return flows.claim(talk, n, self.timeout_ms, self.max_runtime_ms, 0.0, self._noting(shard, talk))

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
            token = talk.nonce()
            self._tokens.append((shard, token))
            return token

        return nonce

    def _depths(self) -> Flow[dict[int, Depth]]:
        asked = self._present()
        random.shuffle(asked)
        results = yield from of_shards({shard: depth(self._shards.talks[shard]) for shard in asked})
        return dict(self._heard(results))

    def _without_company(self, leases: list[Lease]) -> Flow[list[Lease]]:
        # a task that lost two leases is handed out alone: no task of another shard comes with it either
        suspects = [lease for lease in leases if lease.crashes >= 2]
        if not suspects or len(leases) == 1:
            return leases
        others = [lease for lease in leases if lease.crashes < 2]
        kept = suspects[:1] if not others or random.random() < 0.5 else others  # noqa: S311  # neither waits for ever
        back = [lease for lease in leases if lease not in kept]
        yield from together([self._release(lease) for lease in back])
        return kept

    def _release(self, lease: Lease) -> Flow[object]:
        talk = self._shards.talks[self._shards.of_lease(lease)]
        return answers(talk, talk.operations.release([lease]))

    def _listen(self, seconds: float) -> Flow[None]:
        talk = self._shards.talks[random.choice(self._present())]  # noqa: S311  # not a secret
        try:
            yield from flows.hear_bell(talk, seconds)
        except Unavailable:
            yield a_moment()

    def give_back(self) -> Flow[None]:
        """Release the leases of the last calls, if the servers answer at once."""

        def back(shard: int, token: bytes) -> Flow[None]:
            talk = self._shards.talks[shard]
            call = talk.operations.claim(token, 0, self.timeout_ms, self.max_runtime_ms)
            with suppress(TimeoutqError):
                yield from flows.give_back(talk, call, int(talk.deadline * 1000))

        yield from together([back(shard, token) for shard, token in self._tokens])


def pull(shards: Shards, n: int) -> Flow[list[Task]]:
    """Take tasks without a lease, from one shard: an error of a second shard would lose the tasks of the first."""
    every = list(range(len(shards.talks)))
    random.shuffle(every)
    depths = yield from of_shards({shard: depth(shards.talks[shard]) for shard in every})
    errors = {shard: found for shard, found in depths.items() if isinstance(found, TimeoutqError)}
    deep = [(found.ready, shard) for shard, found in depths.items() if isinstance(found, Depth)]
    # if no shard has a task, one is asked all the same: it says whether the queue allows this at all
    for shard in [shard for ready, shard in sorted(deep, reverse=True) if ready] or [shard for _, shard in deep[:1]]:
        talk = shards.talks[shard]
        tasks = yield from answer(talk, talk.operations.pull(n, talk.nonce))
        if tasks:
            return tasks
    if errors:
        raise failure(shards, errors, len(every))
    return []
