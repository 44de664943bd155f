"""The ends of leases on their way to one shard of a queue: acks, failures and releases gather here and become calls."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, cast

from timeoutq.server.calls import BATCH, BYTES, Call, Kept, fitting, flushes
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Talk
from timeoutq.words.arguments import TaskList
from timeoutq.words.model import Ack, Lease, Outcome
from timeoutq.worker.pace import NO_LIMIT
from timeoutq.worker.runs import Failure

NOWHERE: Mapping[int, TaskList] = {}
PRESSING, LINGER = 100, 0.25
"""With this many tasks, or after this many seconds, puts for other shards go though other exchanges are under way."""


@dataclass(slots=True)
class PendingCall:
    """A call that ends leases or puts tasks; it is kept whole, and sent again until the server has answered."""

    verb: str
    leases: list[Lease]
    call: Call[Outcome]
    found: int = 0  # how many found tasks the call puts
    grouped: bool = False  # whether one of them has a group
    acks: Sequence[AckOfFound] = ()  # the acks that wait for the puts of this call

    def void(self) -> list[Lease]:
        """Give the leases, which are ended in another way now."""
        leases = [ack.lease for ack in self.acks if not ack.is_void] if self.acks else self.leases
        for ack in self.acks:
            ack.is_void = True
        return leases


@dataclass(slots=True, eq=False)
class AckOfFound:
    """The end of a lease with which something goes: found tasks, a result, or the wish that the task runs again."""

    lease: Lease
    found: TaskList  # the tasks that go with the ack
    again_ms: int  # after how long the task runs again; -1: never
    payload: bytes | None  # the payload with which it runs again; None: the same
    away: Mapping[int, TaskList] = field(default_factory=lambda: NOWHERE)
    """The tasks that go to other shards before the ack, by the shard's number."""
    kept: Kept | None = None  # the result of the run
    keep_ms: int | None = None  # for how long done keeps the id; 0: not at all, None: as the queue says
    missing: int = 0  # how many puts for other shards are not confirmed
    is_void: bool = False  # whether the lease is being ended in another way
    fits: int = 0  # how many of the found tasks one call can carry

    def __post_init__(self) -> None:
        self.missing = len(self.away)
        size = 0 if self.kept is None else len(self.kept.body)
        self.fits = fitting(self.found.ids, self.found.payloads, size)

    @property
    def needs_a_call(self) -> bool:
        """Whether the ack cannot go in one call with acks of other leases."""
        return bool(self.found.ids) or self.again_ms >= 0

    @property
    def is_long(self) -> bool:
        """Whether one call is too small for the tasks that were found."""
        return self.fits < len(self.found.ids) or any(
            fitting(one.ids, one.payloads) < len(one.ids) for one in self.away.values()
        )

    @property
    def grouped(self) -> bool:
        """Whether a task that was found has a group."""
        return bool(self.found.groups) or any(one.groups for one in self.away.values())

    def calls(self, operations: Operations, nonce: Callable[[], bytes]) -> tuple[list[Call[Outcome]], Call[Outcome]]:
        """Build the puts that go before the ack, and the ack, which puts the first tasks itself."""
        return operations.ack_in_parts(
            self.lease, self.found, self.fits, nonce, self.again_ms, self.payload, self.kept,
            bare=self.keep_ms == 0, until_ms=self.keep_ms or None,
        )  # fmt: skip

    def take_out(self, talks: Sequence[Talk], home: Talk) -> list[tuple[Talk, Call[Outcome]]]:
        """Build the puts of all that one call cannot carry, other shards first; the ack is left with the rest."""
        puts = [
            (talks[shard], call)
            for shard, found in self.away.items()
            for call in talks[shard].operations.put_checked(found, talks[shard].nonce)
        ]
        puts += [(home, call) for call in self.calls(home.operations, home.nonce)[0]]
        self.found, self.away, self.missing = self.found.part(0, self.fits), NOWHERE, 0
        return puts


def may_be_long(came: object) -> bool:
    """Say whether one call may be too small for the end that a handler gave: a large `Ack` that was listed."""
    if not (isinstance(came, Ack) and isinstance(put := cast("object", came.put), TaskList)):
        return False
    return fitting(put.ids, put.payloads, 0 if came.result is None else BYTES) < len(put.ids)


class PutElsewhere(NamedTuple):
    """The tasks that one handler found for another shard than that of its lease."""

    ack: AckOfFound
    found: TaskList

    @property
    def is_about_done(self) -> bool:
        """Whether the put asks more of done tasks than a queue with fingerprints can tell, which refuses it."""
        return any(self.found.uniques.values()) or bool(self.found.improved)


class Ends:
    """The leases of one shard that have ended since the last exchange with it."""

    def __init__(self, talk: Talk, most_releases: int) -> None:
        """Prepare; a task that handlers release `most_releases` times goes to failed."""
        self._talk = talk
        self._most_releases = most_releases
        self.acks: list[Lease] = []  # leases whose handlers are done, and have found nothing
        self.bare: list[Lease] = []  # the same, of tasks that leave no id in done
        self.kept: list[AckOfFound] = []
        """Acks with results, or of ids that done keeps for a time; many of them go in one call."""
        self.fails: list[Failure] = []
        self.releases: list[Lease] = []  # leases that the worker itself gives back
        self.refused: list[Lease] = []  # leases that handlers released: these releases are counted
        self.calls: list[PendingCall] = []  # ends that have their calls already
        self.puts: list[PutElsewhere] = []  # tasks for this shard whose acks go to others
        self._since = 0.0

    def __len__(self) -> int:
        ended = len(self.acks) + len(self.calls) + len(self.fails) + len(self.releases) + len(self.refused)
        return ended + len(self.puts) + len(self.kept) + len(self.bare)

    @property
    def leases(self) -> list[Lease]:
        """All leases that are to be ended."""
        failed = [failure.lease for failure in self.fails]
        return [*self._acked(self.calls), *self.releases, *self.refused, *failed]

    @property
    def unsent_acks(self) -> list[Lease]:
        """The leases that are done, and of which the queue has not heard yet."""
        return self._acked([one for one in self.calls if one.verb in ("ack", "put")])

    def owes(self, sending: Iterable[PendingCall]) -> bool:
        """Whether the queue has not heard yet of all that handlers have ended or put; these calls are under way."""
        waiting = self.acks or self.bare or self.kept or self.fails or self.puts
        return bool(waiting) or any(one.verb != "release" for one in (*self.calls, *sending))

    def _acked(self, calls: list[PendingCall]) -> list[Lease]:
        waiting = [*(ack.lease for ack in self.kept), *(put.ack.lease for put in self.puts)]
        return [*self.acks, *self.bare, *(lease for one in calls for lease in one.leases), *waiting]

    # ---- in

    def ack_found(self, ack: AckOfFound) -> None:
        """Add an ack that fits into one call, and whose puts for other shards are confirmed."""
        if ack.needs_a_call:
            _, call = ack.calls(self._talk.operations, self._talk.nonce)
            self.calls.append(PendingCall("ack", [ack.lease], call, len(ack.found.ids), ack.grouped))
        elif ack.kept is not None or ack.keep_ms is not None:
            self.kept.append(ack)
        else:
            self.acks.append(ack.lease)

    def put_first(self, put: PutElsewhere) -> None:
        """Add tasks that are put here before their ack goes to another shard."""
        if not self.puts:
            self._since = time.monotonic()
        self.puts.append(put)

    @property
    def presses(self) -> bool:
        """Whether the puts have waited long enough, or are many."""
        if not self.puts:
            return False
        return time.monotonic() - self._since >= LINGER or sum(len(one.found.ids) for one in self.puts) >= PRESSING

    def release(self, lease: Lease, delay_ms: int, block_ms: int) -> None:
        """Add a release of a handler."""
        if delay_ms or block_ms:
            call = self._talk.operations.release([lease], delay_ms, block_ms, self._most_releases)[0]
            self.calls.append(PendingCall("release", [lease], call))
        else:
            self.refused.append(lease)

    def postpone(self, lease: Lease, delay_ms: int, within_ms: int = 0) -> None:
        """Add a release of the worker itself; once `within_ms` are over, the queue refuses such releases."""
        call = self._talk.operations.release([lease], delay_ms, within_ms=within_ms)[0]
        self.calls.append(PendingCall("release", [lease], call))

    # ---- out

    def take(self, most_found: int = NO_LIMIT) -> list[PendingCall]:
        """Take out as much as is sent at once, with `most_found` found tasks in all, but at least one call."""
        calls = self._build()
        # heavy calls go one flush at a time, so that claims and other ends need not wait for all of them
        light = len(next(flushes([one.call for one in calls])))
        found = accumulate(one.found for one in calls[:light])
        light = max(1, bisect_right(list(found), most_found)) if light else 0
        self.calls = calls[light:]
        return calls[:light]

    def _build(self) -> list[PendingCall]:
        self.bundle()
        ops, calls = self._talk.operations, self.calls
        acks, bare, fails, releases, refused = self.acks, self.bare, self.fails, self.releases, self.refused
        self.acks, self.bare, self.fails, self.releases, self.refused = [], [], [], [], []
        for call, some in zip(ops.ack(acks), _batches(acks), strict=True):
            calls.append(PendingCall("ack", some, call))
        for some in _batches(bare):
            (call,) = ops.ack(some, bare=range(len(some)))
            calls.append(PendingCall("ack", some, call))
        if fails:
            calls += _failing(ops, fails)
        for call, some in zip(ops.release(releases), _batches(releases), strict=True):
            calls.append(PendingCall("release", some, call))
        for call, some in zip(ops.release(refused, most=self._most_releases), _batches(refused), strict=True):
            calls.append(PendingCall("release", some, call))
        if self.puts:
            calls += self._putting()
        return calls

    def bundle(self) -> None:
        """Build the calls of the acks with results: as many acks in one call as fit."""
        if not self.kept:
            return
        kept, self.kept = self.kept, []
        calls = self._talk.operations.ack(
            [ack.lease for ack in kept],
            results={at: ack.kept for at, ack in enumerate(kept) if ack.kept is not None},
            bare={at for at, ack in enumerate(kept) if ack.keep_ms == 0},
            until={at: ack.keep_ms for at, ack in enumerate(kept) if ack.keep_ms},
        )
        self.calls += _in_turn("ack", [ack.lease for ack in kept], calls)

    def _putting(self) -> Iterator[PendingCall]:
        """Build the calls of the puts: as many puts in one call as fit."""
        # puts that a queue may refuse go in calls of their own: or the acks of other handlers would be refused, too
        puts = sorted((one for one in self.puts if not one.ack.is_void), key=lambda one: one.is_about_done)
        self.puts = []
        while puts:
            found, weight, acks = TaskList(), 0, list[AckOfFound]()
            for put in puts:
                weight += sum(map(len, put.found.payloads.values()))
                if acks and (len(found.ids) + len(put.found.ids) > BATCH or weight > BYTES):
                    break
                if put.is_about_done != puts[0].is_about_done:
                    break
                found.join(put.found)
                acks.append(put.ack)
            (call,) = self._talk.operations.put_checked(found, self._talk.nonce)
            yield PendingCall("put", [ack.lease for ack in acks], call, len(found.ids), bool(found.groups), acks)
            del puts[: len(acks)]


def _failing(operations: Operations, fails: list[Failure]) -> Iterator[PendingCall]:
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


def _in_turn(verb: str, leases: list[Lease], calls: Sequence[Call[Outcome]]) -> Iterator[PendingCall]:
    """Give each call with its leases: as many, of the first that are left, as the call says."""
    for call in calls:
        n = cast("int", call.args[0])
        yield PendingCall(verb, leases[:n], call)
        del leases[:n]


def _batches(leases: list[Lease]) -> list[list[Lease]]:
    return [leases[at : at + BATCH] for at in range(0, len(leases), BATCH)]
