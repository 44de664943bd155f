"""Claims with the client's own token: sent again with the token and its age, a claim gives the same leases. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue, claims
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.server.calls import BATCH
from timeoutq.verbs import flows
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import Flow, Talk, answer, answers
from timeoutq.words import arguments
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Answer, Lease


@dataclass(frozen=True, slots=True)
class Wish:
    """The words of a claim, checked."""

    token: str
    n: int
    timeout_ms: int
    max_runtime_ms: int
    age_ms: int = 0  # how long ago the claim was first sent, if it was sent before; else 0

    @classmethod
    def of(
        cls, queue: AnyAsyncQueue, token: str, n: int, timeout: float | None, max_runtime: float | None, age: float
    ) -> Wish:
        """Check the words of a claim; raises `InvalidInput`."""
        age_ms = arguments.delay_ms(age, "age")
        return cls(
            token,
            arguments.count(n, high=BATCH),
            queue.talk.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout),
            0 if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime"),
            max(1, age_ms) if age > 0 else 0,
        )


def take(queue: AnyAsyncQueue, wish: Wish) -> Flow[list[Lease]]:
    """Claim ready tasks; a claim that was sent before first looks for the leases that it took then."""
    if isinstance(queue, AsyncShardedQueue):
        return (yield from _take_sharded(queue.shards, wish))
    token = wish.token.encode()
    found = (yield from _replay(queue.talk, wish, token, wish.n)) if wish.age_ms else []
    # nothing was taken, and nothing is ready: a plain claim looks also for tasks that are due or lost their lease
    return found or (
        yield from flows.claim(queue.talk, wish.n, wish.timeout_ms, wish.max_runtime_ms, 0.0, lambda: token)
    )


def _replay(talk: Talk, wish: Wish, token: bytes, n: int) -> Flow[list[Lease]]:
    """Send the claim as one that was sent before: gives the leases that it took then, else leases up to `n` tasks.

    The leases that it took then run anew from now on. So a gateway that carried out the first claim, and sees late that
    its client has hung up, does not give them back.
    """
    asked = time.monotonic()
    call = talk.operations.claim(token, n, wish.timeout_ms, wish.max_runtime_ms)
    found = yield from flows.whole(talk, (yield from answer(talk, replace(call, sent_ms=wish.age_ms))))
    talk.clock.seen(found.now_ms, asked)
    if not found.leases:
        return []
    # one ms more: so the deadline is another one even if the first claim came in this very ms
    deadline, outcome = yield from flows.extend(talk, found.leases, wish.timeout_ms + 1)
    kept = zip(found.leases, outcome, strict=True)
    return [replace(lease, deadline=deadline) for lease, answered in kept if answered in (Answer.OK, Answer.CANCELLED)]


class _Named(claims.Claim):
    """A claim of a sharded queue, with the client's own token."""

    def __init__(self, shards: Shards, wish: Wish) -> None:
        super().__init__(shards, wish.n, wish.timeout_ms / 1000, wish.max_runtime_ms / 1000 or None, 0.0)
        self._wish = wish

    def _noting(self, shard: int, talk: Talk) -> Callable[[], bytes]:
        token = b"%s@%d" % (self._wish.token.encode(), shard)
        return lambda: token


def _take_sharded(shards: Shards, wish: Wish) -> Flow[list[Lease]]:
    if not shards.made:
        yield from shards.look()
    if wish.age_ms:
        token = wish.token.encode()
        # n=0: a shard whose part of the claim took nothing takes nothing now
        replays = [_replay(talk, wish, b"%s@%d" % (token, shard), 0) for shard, talk in enumerate(shards.talks)]
        found = yield from together(replays)
        leases = [lease for one in found if not isinstance(one, TimeoutqError) for lease in one]
        if leases:
            return leases
        for one in found:
            if isinstance(one, TimeoutqError):
                raise one  # the shard that does not answer may have the leases
    return (yield from _Named(shards, wish).flow())


def give_back(queue: AnyAsyncQueue, leases: Sequence[Lease]) -> Flow[None]:
    """Release leases that nobody has heard of. Leases that cannot be given back run out by themselves.

    A lease that runs longer meanwhile stays: its client has sent the claim again, and has it from there.
    """
    for talk, part in queue.division.parted(leases):
        with suppress(TimeoutqError):
            # the leases of one claim of one shard end together
            deadline_ms = round(1000 * part[0].deadline)
            yield from answers(talk, talk.operations.release(part, deadline_ms=deadline_ms), UNCONFIRMED)
