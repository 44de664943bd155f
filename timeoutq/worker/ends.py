"""The ends of leases on their way to the queue: acks, failures and releases gather here and become calls.

The desk puts ends in, an exchange takes calls out. This is the one place where the room builds the calls that end
leases.

Each part of a queue has `Ends` of its own. What a handler found for other parts than that of its lease is put there
first: its `Parcel`s wait among the ends of those parts, so that many small puts become one call, and the ack follows
when all of them are confirmed.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from timeoutq.client import AsyncDriver
from timeoutq.server.calls import BATCH, BYTES, Call, Kept, fitting, flushes
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Talk
from timeoutq.words.arguments import TaskList
from timeoutq.words.model import Ack, Lease, Outcome
from timeoutq.worker.failures import Failure
from timeoutq.worker.pace import NO_LIMIT

NOWHERE: Mapping[int, TaskList] = {}
PRESSING, LINGER = 100, 0.25
"""With this many tasks, or after this many seconds, parcels go though other exchanges are under way."""


@dataclass(slots=True)
class Errand:
    """A call that ends leases, or puts parcels; it is kept whole, and sent again until the server has answered."""

    verb: str
    leases: list[Lease]
    call: Call[Outcome]
    found: int = 0
    """How many found tasks the call puts."""
    grouped: bool = False
    """Whether one of them has a group."""
    acks: Sequence[AckOfFound] = ()
    """The acks that wait for parcels in this call."""

    def void(self) -> list[Lease]:
        """Give the leases, which are ended in another way now."""
        leases = [ack.lease for ack in self.acks if not ack.is_void] if self.acks else self.leases
        for ack in self.acks:
            ack.is_void = True
        return leases


class AckOfFound:
    """The end of a lease with which something goes: found tasks, a result, or the wish that the task runs again."""

    __slots__ = (
        "_again_ms",
        "_fits",
        "_found",
        "_payload",
        "away",
        "bare",
        "is_void",
        "kept",
        "lease",
        "missing",
        "until_ms",
    )

    def __init__(
        self,
        lease: Lease,
        found: TaskList,
        again_ms: int,
        payload: bytes | None,
        away: Mapping[int, TaskList] = NOWHERE,
        kept: Kept | None = None,
        *,
        keep_ms: int | None = None,
    ) -> None:
        """Prepare; after `again_ms` (-1: never) the task runs again, with this payload unless it is None.

        `found` goes with the ack, and `away` goes to other parts of the queue before it, by their number. `kept` is the
        result of the run; for `keep_ms`, done keeps the id, whatever `keep_done` says: with 0, the task
        leaves no id there.
        """
        self.lease = lease
        self.kept = kept
        self.bare = keep_ms == 0
        self.until_ms = keep_ms or None
        self.away = away
        self.missing = len(away)
        """How many parcels are not confirmed."""
        self.is_void = False
        """Whether the lease is being ended in another way."""
        self._found = found
        self._again_ms = again_ms
        self._payload = payload
        self._fits = fitting(found.ids, found.payloads, 0 if kept is None else len(kept.body))

    def __len__(self) -> int:
        """Give the number of found tasks."""
        return len(self._found.ids)

    @property
    def needs_a_call(self) -> bool:
        """Whether the ack cannot go in one call with acks of other leases."""
        return bool(self._found.ids) or self._again_ms >= 0

    @property
    def is_long(self) -> bool:
        """Whether one call is too small for what was found."""
        if self._fits < len(self._found.ids):
            return True
        return bool(self.away) and any(fitting(one.ids, one.payloads) < len(one.ids) for one in self.away.values())

    @property
    def grouped(self) -> bool:
        """Whether a task that was found has a group."""
        return bool(self._found.groups) or any(part.groups for part in self.away.values())

    def calls(self, operations: Operations, nonce: Callable[[], bytes]) -> tuple[list[Call[Outcome]], Call[Outcome]]:
        """Build the puts that go before the ack, and the ack, which puts the first tasks itself."""
        return operations.ack_in_parts(
            self.lease,
            self._found,
            self._fits,
            nonce,
            self._again_ms,
            self._payload,
            self.kept,
            bare=self.bare,
            until_ms=self.until_ms,
        )

    def take_out(self, talks: Sequence[Talk], home: Talk) -> list[tuple[Talk, Call[Outcome]]]:
        """Build the puts of what one call cannot carry, those for other parts first; the ack is left with the rest."""
        puts = [
            (talks[part], call)
            for part, found in self.away.items()
            for call in talks[part].operations.put_checked(found, talks[part].nonce)
        ]
        puts += [(home, call) for call in self.calls(home.operations, home.nonce)[0]]
        self._found, self.away, self.missing = self._found.part(0, self._fits), NOWHERE, 0
        return puts


def may_be_long(came: object) -> bool:
    """Say whether one call may be too small for what a handler has given: it is an `Ack` that was listed, and large."""
    if not (isinstance(came, Ack) and isinstance(put := cast("object", came.put), TaskList)):
        return False
    return fitting(put.ids, put.payloads, 0 if came.result is None else BYTES) < len(put.ids)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one handler found for one part of the queue."""

    ack: AckOfFound
    found: TaskList

    @property
    def weight(self) -> int:
        """How many bytes of payloads the parcel has."""
        return sum(map(len, self.found.payloads.values()))

    @property
    def is_about_done(self) -> bool:
        """Whether the put asks more of done tasks than a queue with fingerprints can tell, which refuses it."""
        return any(self.found.uniques.values()) or bool(self.found.improved)


class Ends:
    """The leases that have ended since the last exchange."""

    def __init__(self, queue: AsyncDriver, most_releases: int, talk: Talk | None = None) -> None:
        """Prepare; a task that handlers release `most_releases` times goes to failed. `talk` is with the ends' part."""
        self._division = queue.division
        self._talk = queue.talk if talk is None else talk
        self._most_releases = most_releases
        self.acks: list[Lease] = []
        """Leases whose handlers are done, and have found nothing."""
        self.kept: list[AckOfFound] = []
        """Acks with results, or of tasks that leave no id in done; many of them go in one call."""
        self.fails: list[Failure] = []
        self.releases: list[Lease] = []
        """Leases that the worker itself gives back."""
        self.refused: list[Lease] = []
        """Leases that handlers released: these releases are counted."""
        self.bare: list[Lease] = []
        """Leases that end like those in `acks`, on tasks that leave no id in done."""
        self.errands: list[Errand] = []
        """Ends that have their calls already."""
        self.parcels: list[Parcel] = []
        """What handlers found whose leases belong to other parts."""
        self._since = 0.0

    def __len__(self) -> int:
        ended = len(self.acks) + len(self.errands) + len(self.fails) + len(self.releases) + len(self.refused)
        return ended + len(self.parcels) + len(self.kept) + len(self.bare)

    @property
    def leases(self) -> Iterator[Lease]:
        """All leases that are to be ended."""
        yield from self.acks
        yield from self.bare
        yield from self.releases
        yield from self.refused
        for errand in self.errands:
            yield from errand.leases
        for ack in self.kept:
            yield ack.lease
        for failure in self.fails:
            yield failure.lease
        for parcel in self.parcels:
            yield parcel.ack.lease

    @property
    def unsent_acks(self) -> list[Lease]:
        """The leases that are done, and of which the queue has not heard yet."""
        sent = [lease for errand in self.errands if errand.verb in ("ack", "put") for lease in errand.leases]
        kept = (ack.lease for ack in self.kept)
        return [*self.acks, *self.bare, *sent, *kept, *(parcel.ack.lease for parcel in self.parcels)]

    # ---- in

    def ack_found(self, ack: AckOfFound) -> None:
        """Add an ack that fits into one call, and whose parcels are there."""
        if ack.needs_a_call:
            talk = self._division.talk_of(ack.lease)
            _, call = ack.calls(talk.operations, talk.nonce)
            self.errands.append(Errand("ack", [ack.lease], call, len(ack), ack.grouped))
        elif ack.kept is not None or ack.bare or ack.until_ms is not None:
            self.kept.append(ack)
        else:
            self.acks.append(ack.lease)

    def post(self, parcel: Parcel) -> None:
        """Add tasks that are put here before their ack goes to another part."""
        if not self.parcels:
            self._since = time.monotonic()
        self.parcels.append(parcel)

    @property
    def presses(self) -> bool:
        """Whether the parcels have waited long enough, or are many."""
        if not self.parcels:
            return False
        return time.monotonic() - self._since >= LINGER or sum(len(one.found.ids) for one in self.parcels) >= PRESSING

    def release(self, lease: Lease, delay_ms: int, block_ms: int) -> None:
        """Add a release of a handler."""
        if delay_ms or block_ms:
            operations = self._division.talk_of(lease).operations
            call = operations.release([lease], delay_ms, block_ms, self._most_releases)[0]
            self.errands.append(Errand("release", [lease], call))
        else:
            self.refused.append(lease)

    def postpone(self, lease: Lease, delay_ms: int, within_ms: int = 0) -> None:
        """Add a release of the worker itself, after which nobody gets the task for a while.

        Once `within_ms` have passed since the first such release, the task is not released.
        """
        call = self._division.talk_of(lease).operations.release([lease], delay_ms, within_ms=within_ms)[0]
        self.errands.append(Errand("release", [lease], call))

    def deal(self, parts: Sequence[Ends]) -> None:
        """Give all ends to those of the parts that they belong to."""
        which = self._division.which
        for lease in self.acks:
            parts[which(lease)].acks.append(lease)
        for lease in self.bare:
            parts[which(lease)].bare.append(lease)
        for ack in self.kept:
            parts[which(ack.lease)].kept.append(ack)
        for failure in self.fails:
            parts[which(failure.lease)].fails.append(failure)
        for lease in self.releases:
            parts[which(lease)].releases.append(lease)
        for lease in self.refused:
            parts[which(lease)].refused.append(lease)
        for errand in self.errands:
            parts[which(errand.leases[0])].errands.append(errand)
        self.acks, self.fails, self.releases, self.refused, self.errands, self.kept = [], [], [], [], [], []
        self.bare = []

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
        self.bundle()
        ops, errands = self._talk.operations, self.errands
        acks, fails, releases, refused = self.acks, self.fails, self.releases, self.refused
        self.acks, self.fails, self.releases, self.refused, self.errands = [], [], [], [], []
        for call, part in zip(ops.ack(acks), _parts(acks), strict=True):
            errands.append(Errand("ack", part, call))
        if self.bare:
            bare, self.bare = self.bare, []
            for part in _parts(bare):
                (call,) = ops.ack(part, bare=range(len(part)))
                errands.append(Errand("ack", part, call))
        errands += _failing(ops, fails)
        for call, part in zip(ops.release(releases), _parts(releases), strict=True):
            errands.append(Errand("release", part, call))
        for call, part in zip(ops.release(refused, most=self._most_releases), _parts(refused), strict=True):
            errands.append(Errand("release", part, call))
        if self.parcels:
            errands += self._posting()
        return errands

    def bundle(self) -> None:
        """Build the calls of the acks with results: as many acks in one call as fit."""
        if not self.kept:
            return
        kept, self.kept = self.kept, []
        calls = self._talk.operations.ack(
            [ack.lease for ack in kept],
            results={at: ack.kept for at, ack in enumerate(kept) if ack.kept is not None},
            bare={at for at, ack in enumerate(kept) if ack.bare},
            until={at: ack.until_ms for at, ack in enumerate(kept) if ack.until_ms is not None},
        )
        self.errands += _in_turn("ack", [ack.lease for ack in kept], calls)

    def _posting(self) -> Iterator[Errand]:
        """Build the calls that put the parcels: as many of them in one call as fit."""
        # what a queue may refuse goes in calls of its own: or the acks of other handlers would be refused with it
        parcels = sorted((one for one in self.parcels if not one.ack.is_void), key=lambda one: one.is_about_done)
        self.parcels = []
        while parcels:
            found, weight, acks = TaskList(), 0, list[AckOfFound]()
            for parcel in parcels:
                weight += parcel.weight
                if acks and (len(found.ids) + len(parcel.found.ids) > BATCH or weight > BYTES):
                    break
                if parcel.is_about_done != parcels[0].is_about_done:
                    break
                found.join(parcel.found)
                acks.append(parcel.ack)
            (call,) = self._talk.operations.put_checked(found, self._talk.nonce)
            yield Errand("put", [ack.lease for ack in acks], call, len(found.ids), bool(found.groups), acks)
            del parcels[: len(acks)]


def _failing(operations: Operations, fails: list[Failure]) -> Iterator[Errand]:
    leases = [failure.lease for failure in fails]
    calls = operations.fail(
        leases,
        [failure.retry_ms for failure in fails],
        [failure.error for failure in fails],
        [failure.trace for failure in fails],
        blocks_ms={at: failure.block_ms for at, failure in enumerate(fails) if failure.block_ms},
        results={at: failure.kept for at, failure in enumerate(fails) if failure.kept is not None},
    )
    return _in_turn("fail", leases, calls)


def _in_turn(verb: str, leases: list[Lease], calls: Sequence[Call[Outcome]]) -> Iterator[Errand]:
    """Give each call with its leases: as many, of the first that are left, as the call says."""
    for call in calls:
        n = cast("int", call.args[0])
        yield Errand(verb, leases[:n], call)
        del leases[:n]


def _parts(leases: list[Lease]) -> list[list[Lease]]:
    return [leases[at : at + BATCH] for at in range(0, len(leases), BATCH)]
