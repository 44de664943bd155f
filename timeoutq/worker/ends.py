"""The ends of leases on their way to the queue: acks, failures and releases gather here and become calls.

The desk puts ends in, an exchange takes calls out. This is the one place where the room builds the calls that end
leases; the acks that are too long for one exchange are built here, too, and sent by `long_acks.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from timeoutq.arguments import TaskList
from timeoutq.calls import BATCH, Call, fitting, flushes
from timeoutq.client import AsyncQueue
from timeoutq.model import Lease, Outcome
from timeoutq.operations import Operations
from timeoutq.worker.failures import Failure
from timeoutq.worker.pace import NO_LIMIT


@dataclass(slots=True)
class Errand:
    """A call that ends leases; it is kept whole, and sent again until the server has answered."""

    verb: str
    leases: list[Lease]
    call: Call[Outcome]
    found: int = 0
    """How many found tasks the call puts."""


class AckOfFound:
    """The end of a lease whose handler found tasks, or wants its own task again."""

    __slots__ = ("_again_ms", "_fits", "_found", "_payload", "lease")

    def __init__(self, lease: Lease, found: TaskList, again_ms: int, payload: bytes | None) -> None:
        """Prepare; after `again_ms` (-1: never) the task runs again, with this payload unless it is None."""
        self.lease = lease
        self._found = found
        self._again_ms = again_ms
        self._payload = payload
        self._fits = fitting(found.ids, found.payloads)

    def __len__(self) -> int:
        """Give the number of found tasks."""
        return len(self._found.ids)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was found, and the task does not run again."""
        return not self._found.ids and self._again_ms < 0

    @property
    def is_long(self) -> bool:
        """Whether one call is too small for what was found."""
        return self._fits < len(self._found.ids)

    def calls(self, operations: Operations, nonce: Callable[[], bytes]) -> tuple[deque[Call[Outcome]], Call[Outcome]]:
        """Build the puts that go before the ack, and the ack, which puts the first tasks itself."""
        puts, ack = operations.ack_in_parts(self.lease, self._found, self._fits, nonce, self._again_ms, self._payload)
        return deque(puts), ack


class Ends:
    """The leases that have ended since the last exchange."""

    def __init__(self, queue: AsyncQueue, most_releases: int) -> None:
        """Prepare; a task that handlers release `most_releases` times goes to failed."""
        self._queue = queue
        self._most_releases = most_releases
        self.acks: list[Lease] = []
        """Leases whose handlers have found nothing and are done."""
        self.fails: list[Failure] = []
        self.releases: list[Lease] = []
        """Leases that the worker itself gives back."""
        self.refused: list[Lease] = []
        """Leases that handlers released: these releases are counted."""
        self.errands: list[Errand] = []
        """Ends that have their calls already."""

    def __len__(self) -> int:
        return len(self.acks) + len(self.errands) + len(self.fails) + len(self.releases) + len(self.refused)

    @property
    def leases(self) -> Iterator[Lease]:
        """All leases that are to be ended."""
        yield from self.acks
        yield from self.releases
        yield from self.refused
        for errand in self.errands:
            yield from errand.leases
        for failure in self.fails:
            yield failure.lease

    @property
    def unsent_acks(self) -> list[Lease]:
        """The leases that are done, and of which the queue has not heard yet."""
        return [*self.acks, *(lease for errand in self.errands if errand.verb == "ack" for lease in errand.leases)]

    # ---- in

    def ack_found(self, ack: AckOfFound) -> None:
        """Add an ack that fits into one call."""
        _, call = ack.calls(self._queue.operations, self._queue.talk.nonce)
        self.errands.append(Errand("ack", [ack.lease], call, len(ack)))

    def release(self, lease: Lease, delay_ms: int, block_ms: int) -> None:
        """Add a release of a handler."""
        if delay_ms or block_ms:
            call = self._queue.operations.release([lease], delay_ms, block_ms, self._most_releases)[0]
            self.errands.append(Errand("release", [lease], call))
        else:
            self.refused.append(lease)

    def postpone(self, lease: Lease, delay_ms: int) -> None:
        """Add a release of the worker itself, after which nobody gets the task for a while."""
        call = self._queue.operations.release([lease], delay_ms)[0]
        self.errands.append(Errand("release", [lease], call))

    # ---- out

    def take(self, most_found: int = NO_LIMIT) -> list[Errand]:
        """Take out as much as is sent at once; the rest stays, as calls.

        Acks that put more than `most_found` tasks in all are too much, but a single ack is not.
        """
        errands = self._build()
        # heavy calls go one flush at a time, so that claims and other ends need not wait for all of them
        light = len(next(flushes([errand.call for errand in errands])))
        found = accumulate(errand.found for errand in errands[:light])
        light = max(1, bisect_right(list(found), most_found)) if light else 0
        self.errands = errands[light:]
        return errands[:light]

    def _build(self) -> list[Errand]:
        ops, errands = self._queue.operations, self.errands
        acks, fails, releases, refused = self.acks, self.fails, self.releases, self.refused
        self.acks, self.fails, self.releases, self.refused, self.errands = [], [], [], [], []
        for call, part in zip(ops.ack(acks), _parts(acks), strict=True):
            errands.append(Errand("ack", part, call))
        errands += _failing(ops, fails)
        for call, part in zip(ops.release(releases), _parts(releases), strict=True):
            errands.append(Errand("release", part, call))
        for call, part in zip(ops.release(refused, most=self._most_releases), _parts(refused), strict=True):
            errands.append(Errand("release", part, call))
        return errands


def _failing(operations: Operations, fails: list[Failure]) -> Iterator[Errand]:
    leases = [failure.lease for failure in fails]
    calls = operations.fail(
        leases,
        [failure.retry_ms for failure in fails],
        [failure.error for failure in fails],
        [failure.trace for failure in fails],
        blocks_ms={at: failure.block_ms for at, failure in enumerate(fails) if failure.block_ms},
    )
    for call in calls:
        n = cast("int", call.args[0])  # as many as fit into one call
        yield Errand("fail", leases[:n], call)
        del leases[:n]


def _parts(leases: list[Lease]) -> list[list[Lease]]:
    return [leases[at : at + BATCH] for at in range(0, len(leases), BATCH)]
