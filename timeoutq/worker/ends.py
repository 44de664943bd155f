"""The ends of leases on their way to one shard of a queue: acks, failures and releases gather here and become calls."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, cast

from timeoutq.server.calls import BATCH, BYTES, Call, Kept, fitting, flushes
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Talk
from timeoutq.words.arguments import TaskList
from timeoutq.words.model import Ack, Lease, Outcome
from timeoutq.worker.decisions import NO_LIMIT
from timeoutq.worker.runs import Failure

PRESSING, LINGER = 100, 0.25
"""With this many tasks, or after this many seconds, puts for other shards go though other exchanges are under way."""


@dataclass(slots=True)
class PendingCall:
    """A call that ends leases or puts tasks; it is kept whole, and sent again until the server has answered."""

    verb: str
    leases: list[Lease]
    call: Call[Any]  # gives an `Outcome`; an extension, the new deadline and one
    found: int = 0  # how many found tasks the call puts
    grouped: bool = False  # whether one of them has a group
    acks: Sequence[AckOfFound] = ()  # the acks that wait for the puts of this call
    made: float = 0.0  # of an extension: when it was built, by the monotonic clock


@dataclass(slots=True, eq=False)
class AckOfFound:
    """The end of a lease with which something goes: found tasks, a result, or the wish that the task runs again."""

    lease: Lease
    found: TaskList  # the tasks that go with the ack
    again_ms: int = -1  # after how long the task runs again; -1: never
    payload: bytes | None = None  # the payload with which it runs again; None: the same
    away: Mapping[int, TaskList] = field(default_factory=dict[int, TaskList])
    """The tasks that go to other shards before the ack, by the shard's number."""
    kept: Kept | None = None  # the result of the run
    record: bytes | None = None  # what the record of the call says of this attempt, which leaves a result
    keep_ms: int | None = None  # for how long done keeps the id; 0: not at all, None: as the queue says
    missing: int = 0  # how many puts for other shards are not confirmed
    failure: Failure | None = None  # what ends the lease instead of an ack, once its puts are confirmed
    is_void: bool = False  # whether the lease is being ended in another way

    @property
    def is_long(self) -> bool:
        """Whether one call is too small for the tasks that were found."""
        return self._fits < len(self.found.ids) or any(
            fitting(one.ids, one.payloads) < len(one.ids) for one in self.away.values()
        )

    @property
    def _fits(self) -> int:
        return fitting(self.found.ids, self.found.payloads, 0 if self.kept is None else len(self.kept.body))

    @property
    def grouped(self) -> bool:
        """Whether a task that was found has a group."""
        return bool(self.found.groups) or any(one.groups for one in self.away.values())

    def take_out(self, talks: Sequence[Talk], home: Talk) -> list[tuple[Talk, Call[Outcome]]]:
        """Build the puts of all that one call cannot carry, other shards first; the ack is left with the rest."""
        puts = [
            (talks[shard], call)
            for shard, found in self.away.items()
            for call in talks[shard].operations.put_checked(found, talks[shard].nonce)
        ]
        fits, operations = self._fits, home.operations
        more, _ = operations.ack_in_parts(self.lease, self.found, fits, home.nonce, self.again_ms, self.payload)
        self.found, self.away = self.found.part(0, fits), {}
        return puts + [(home, call) for call in more]

    def call(self, operations: Operations) -> PendingCall:
        """Build the call of an ack that cannot go with acks of other leases."""
        call = operations.ack_put(
            self.lease, self.found, self.again_ms, self.payload, self.kept,
            bare=self.keep_ms == 0, until_ms=self.keep_ms or None, record=self.record,
        )  # fmt: skip
        return PendingCall("ack", [self.lease], call, len(self.found.ids), self.grouped)


class AckOfResult(NamedTuple):
    """The end of a lease with which a result goes, and nothing else; the fields are as of `AckOfFound`."""

    lease: Lease
    kept: Kept | None
    keep_ms: int | None
    record: bytes | None


def may_be_long(came: object) -> bool:
    """Say whether one call may be too small for the end that a handler gave: a large `Ack` that was listed."""
    if not (isinstance(came, Ack) and isinstance(put := cast("object", came.put), TaskList)):
        return False
    return fitting(put.ids, put.payloads, 0 if came.result is None else BYTES) < len(put.ids)


class Ends:
    """The leases of one shard that have ended since the last exchange with it."""

    def __init__(self, talk: Talk, most_releases: int) -> None:
        """Prepare; a task that handlers release `most_releases` times goes to failed."""
        self._talk = talk
        self._most_releases = most_releases
        self.acks: list[Lease] = []  # leases whose handlers are done, and have found nothing
        self.bare: list[Lease] = []  # the same, of tasks that leave no id in done
        self.kept: list[AckOfFound | AckOfResult] = []
        """Acks with results, or of ids that done keeps for a time; many of them go in one call."""
        self.fails: list[Failure] = []
        self.releases: list[Lease] = []  # leases that the worker itself gives back
        self.refused: list[Lease] = []  # leases that handlers released: these releases are counted
        self.puts: list[tuple[AckOfFound, TaskList]] = []  # tasks for this shard that are put before acks go to others
        self.calls: list[PendingCall] = []  # ends that have their calls already
        self._since = 0.0  # when the first of the puts came, by the monotonic clock

    def __len__(self) -> int:
        ended = len(self.acks) + len(self.bare) + len(self.kept) + len(self.fails) + len(self.releases)
        return ended + len(self.refused) + len(self.puts) + len(self.calls)

    def leases(self, *verbs: str) -> list[Lease]:
        """Give the leases that are to be ended: those of these verbs (ack, fail, release), or all."""
        waiting = {
            "ack": [*self.acks, *self.bare, *(ack.lease for ack in self.kept), *(ack.lease for ack, _ in self.puts)],
            "fail": [failure.lease for failure in self.fails],
            "release": self.releases + self.refused,
        }
        for one in self.calls:
            waiting[{"put": "ack", "extend": "fail"}.get(one.verb, one.verb)] += one.leases
        return [lease for verb in verbs or waiting for lease in waiting[verb]]

    def ack_found(self, ack: AckOfFound) -> None:
        """Add an ack that fits into one call, and whose puts for other shards are confirmed."""
        if ack.failure is not None:
            self.fails.append(ack.failure)
        elif ack.found.ids or ack.again_ms >= 0:
            self.calls.append(ack.call(self._talk.operations))
        elif ack.kept is not None or ack.keep_ms is not None:
            self.kept.append(ack)
        else:
            self.acks.append(ack.lease)

    def extend(self, ack: AckOfFound, timeout_ms: int) -> None:
        """Extend a lease, to know that it is still held, before something is put because its attempt has failed."""
        (call,) = self._talk.operations.extend([ack.lease], timeout_ms)
        self.calls.append(PendingCall("extend", [ack.lease], call, acks=[ack], made=time.monotonic()))

    def put_first(self, ack: AckOfFound, found: TaskList) -> None:
        """Add tasks that are put here before their ack goes to another shard."""
        if not self.puts:
            self._since = time.monotonic()
        self.puts.append((ack, found))

    @property
    def presses(self) -> bool:
        """Whether the puts have waited long enough, or are many."""
        if not self.puts:
            return False
        return time.monotonic() - self._since >= LINGER or sum(len(found.ids) for _, found in self.puts) >= PRESSING

    def release(self, lease: Lease, delay_ms: int, block_ms: int) -> None:
        """Add a release of a handler."""
        if delay_ms or block_ms:
            call = self._talk.operations.release([lease], delay_ms, block_ms, self._most_releases)[0]
            self.calls.append(PendingCall("release", [lease], call))
        else:
            self.refused.append(lease)

    def postpone(
        self, lease: Lease, delay_ms: int, within_ms: int = 0, why: bytes = b"", record: bytes = b""
    ) -> None:  # fmt: skip
        """Add a release of the worker itself; the arguments are as of `Operations.release`."""
        (call,) = self._talk.operations.release([lease], delay_ms, within_ms=within_ms, why=why, record=record)
        self.calls.append(PendingCall("release", [lease], call))

    def take(self, most_found: int = NO_LIMIT) -> list[PendingCall]:
        """Take out as much as is sent at once, with `most_found` found tasks in all, but at least one call."""
        calls = [*self.calls, *self._acking(), *self._ending(), *self._putting()]
        # heavy calls go one flush at a time, so that claims and other ends need not wait for all of them
        light = len(next(flushes([one.call for one in calls]), ()))
        found = accumulate(one.found for one in calls[:light])
        light = max(1, bisect_right(list(found), most_found)) if light else 0
        self.calls = calls[light:]
        return calls[:light]

    def _acking(self) -> Iterator[PendingCall]:
        """Build the calls of the acks that put nothing: as many acks in one call as fit."""
        leases, kept = [*self.acks, *self.bare, *(ack.lease for ack in self.kept)], self.kept
        first, after = len(self.acks), len(self.acks) + len(self.bare)
        self.acks, self.bare, self.kept = [], [], []
        calls = self._talk.operations.ack(
            leases,
            results={at: ack.kept for at, ack in enumerate(kept, after) if ack.kept is not None},
            bare={*range(first, after), *(at for at, ack in enumerate(kept, after) if ack.keep_ms == 0)},
            until={at: ack.keep_ms for at, ack in enumerate(kept, after) if ack.keep_ms},
            records={at: ack.record for at, ack in enumerate(kept, after) if ack.record is not None},
        )
        return _in_turn("ack", leases, calls)

    def _ending(self) -> Iterator[PendingCall]:
        ops, fails, releases, refused = self._talk.operations, self.fails, self.releases, self.refused
        self.fails, self.releases, self.refused = [], [], []
        if fails:
            calls = ops.fail(
                [failure.lease for failure in fails],
                [failure.retry_ms for failure in fails],
                [failure.error for failure in fails],
                [failure.trace for failure in fails],
                blocks_ms={at: failure.block_ms for at, failure in enumerate(fails) if failure.block_ms},
                results={at: failure.kept for at, failure in enumerate(fails) if failure.kept is not None},
                records={at: failure.record for at, failure in enumerate(fails) if failure.record is not None},
            )
            yield from _in_turn("fail", [failure.lease for failure in fails], calls)
        yield from _in_turn("release", releases, ops.release(releases))
        yield from _in_turn("release", refused, ops.release(refused, most=self._most_releases))

    def _putting(self) -> Iterator[PendingCall]:
        """Build the calls of the puts: as many puts in one call as fit."""
        # puts that a queue may refuse go in calls of their own: or the acks of other handlers would be refused, too
        puts = sorted(((ack, found) for ack, found in self.puts if not ack.is_void), key=lambda put: _is_odd(put[1]))
        self.puts = []
        while puts:
            found, weight, acks = TaskList(), 0, list[AckOfFound]()
            for ack, more in puts:
                weight += sum(map(len, more.payloads.values()))
                if acks and (len(found.ids) + len(more.ids) > BATCH or weight > BYTES):
                    break
                if _is_odd(more) != _is_odd(puts[0][1]):
                    break
                found.join(more)
                acks.append(ack)
            (call,) = self._talk.operations.put_checked(found, self._talk.nonce)
            yield PendingCall("put", [ack.lease for ack in acks], call, len(found.ids), bool(found.groups), acks)
            del puts[: len(acks)]


def _is_odd(found: TaskList) -> bool:
    """Say whether a put asks more of done tasks than a queue with fingerprints can tell, which refuses it."""
    return any(found.uniques.values()) or bool(found.improved)


def _in_turn(verb: str, leases: Iterable[Lease], calls: Sequence[Call[Outcome]]) -> Iterator[PendingCall]:
    """Give each call with its leases: as many, of the first that are left, as the call says."""
    left = list(leases)
    for call in calls:
        n = cast("int", call.args[0])
        yield PendingCall(verb, left[:n], call)
        del left[:n]
