"""A queue, or a part of one, as the pump sees it: whether it has ready tasks, how many may still come, at which pace.

While a source is idle, a claim of one task may wait at the server behind its bell, whose stroke lets the claim through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.verbs.sending import Flow
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.desk import Desk
from timeoutq.worker.pace import Pace

BELL_RETRY = 0.5
"""Seconds between two waits on the bell when it cannot be heard; a burst waits no longer than this at all."""


class Source:
    """A part of a queue, from which a worker claims; a plain queue is one part."""

    def __init__(self, desk: Desk, pace: Pace, *, is_burst: bool, part: int = 0) -> None:
        """Prepare; the desk is woken when the bell has rung. `part` is the number of the part."""
        self._queue = desk.queue
        self.part = part
        self.talk = desk.queue.division.talks[part]
        self.tended = True
        """Whether this worker waits on the bell."""
        self._runtime_ms = desk.rules.runtime.ms
        self._timeout_ms = round(desk.queue.timeout * 1000)
        self._read = desk.rules.read
        self._wake, self._on_cancelled = desk.wake, desk.on_cancelled
        self._is_burst = is_burst
        self.pace = pace
        self.idle = False
        """Whether the last claim found no more tasks, or no more for us."""
        self.plenty = False
        """Whether the last claim got as many tasks as it asked for."""
        self.strokes = 0
        """How often the bell was waited for."""
        self.asked_at = time.monotonic()
        """When the server has last answered a claim, or a wait on the bell."""
        self._behind_bell: Call[Claimed] | None = None
        self._coming: dict[bytes, int] = {}
        """How many tasks may come from each claim that is under way, by its token."""
        self.bell: asyncio.Task[None] | None = None
        """The wait on the bell, while there is one."""
        self._is_deaf = False
        """Whether the worker has ended this wait."""

    @property
    def claiming(self) -> int:
        """How many tasks may come from the claims that are under way, and from the one behind the bell."""
        return sum(self._coming.values())

    @property
    def claiming_now(self) -> int:
        """How many tasks may come from the claims that are under way, which the server carries out at once."""
        return self.claiming - (self._behind_bell is not None)

    @property
    def waiting(self) -> int:
        """How many tasks may come from the claim behind the bell."""
        return self.claiming - self.claiming_now

    def claim(self, n: int, peers: int) -> Call[Claimed]:
        """Build a call that claims up to `n` tasks, which count as coming until `over` is called."""
        token = self.talk.nonce()
        self._coming[token] = n
        return self.talk.operations.claim(token, n, self._timeout_ms, self._runtime_ms, peers, read=self._read)

    def over(self, claim: Call[Claimed]) -> bool:
        """Note that nothing comes from this claim any more; say whether something might have come until now."""
        return self._coming.pop(claim.id, 0) > 0

    def give_back(self, claim: Call[Claimed], age: float) -> Flow[None]:
        """Release what a claim has taken that was first sent `age` seconds ago, and whose reply nobody has read."""
        return self._give_back(claim.id, age)

    def give_back_unread(self) -> Flow[None]:
        """Release what the claims under way have taken, in a process that will not read their replies any more."""
        longest = sending.BELL_WAIT + self.talk.deadline
        for token in list(self._coming):
            yield from self._give_back(token, longest)

    def _give_back(self, token: bytes, age: float) -> Flow[None]:
        again = self.talk.operations.claim(token, 0, self._timeout_ms, self._runtime_ms)
        return flows.give_back(self.talk, again, int(age * 1000))

    def came(self, claimed: Claimed, n: int, sent_at: float, strokes: int) -> list[Lease]:
        """Learn from the answer to a claim of `n` tasks, sent when the bell had rung `strokes` times; give the leases.

        `sent_at` is the monotonic clock then.
        """
        self.talk.clock.seen(claimed.now_ms, sent_at)
        self.asked_at = time.monotonic()
        self.plenty = len(claimed.leases) >= n
        if not self.plenty and strokes == self.strokes:
            # there were no more tasks, or no more for us: tasks that are left ring the bell for the longest waiter
            self.idle = True
        return claimed.leases

    def listen(
        self,
        claim: Callable[[], Call[Claimed] | None],
        take: Callable[[list[Lease]], None],
        miss: Callable[[Call[Claimed], float, float], None],
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        """Wait on the bell, if nobody does, in a task of its own, with the claim that `claim` gives behind the wait.

        `take` is called with the leases that come, and `miss(claim, from, to)` if nobody has read the reply to a claim
        that may have run between these times. If there is no claim, and no room when the bell has rung, the stroke is
        passed on to another worker; without `has_room` there always is room.
        """
        if self.bell is None:
            self._is_deaf, self._behind_bell = False, (behind := claim())
            self.bell = asyncio.create_task(
                self._await_bell(behind, take, miss, has_room), name=f"bell-{self._queue.name}"
            )
            self.bell.add_done_callback(partial(self._left, behind))

    def deafen(self, *, always: bool = False) -> None:
        """End the wait on the bell if a claim stands behind it, or always: the worker wants no more tasks now."""
        if self.bell is not None and (always or self._behind_bell is not None):
            self._is_deaf = True
            self.bell.cancel()

    def _left(self, claim: Call[Claimed] | None, bell: asyncio.Task[None]) -> None:
        if claim is not None:
            self.over(claim)  # a wait that was cancelled before its first step has not sent it
        if bell.cancelled() and not self._is_deaf:
            self._on_cancelled("wait on the bell")
        # the pump may have looked while the wait was still ending
        if self.bell is bell:
            self.bell = self._behind_bell = None
            self._wake()

    async def _await_bell(
        self,
        claim: Call[Claimed] | None,
        take: Callable[[list[Lease]], None],
        miss: Callable[[Call[Claimed], float, float], None],
        has_room: Callable[[], bool] | None,
    ) -> None:
        seconds, sent_at = BELL_RETRY if self._is_burst else sending.BELL_WAIT, time.monotonic()
        found: Claimed | None = None
        try:
            if claim is not None or has_room is None:
                found = await self._queue.run(flows.hear_bell(self.talk, seconds, claim))
            else:
                await self._queue.run(flows.hear_stroke(self.talk, seconds, has_room))
            self.asked_at = time.monotonic()
        except BaseException as error:
            self._behind_bell = None
            if claim is not None:
                miss(claim, sent_at, time.monotonic())
                self._wake()
            if not isinstance(error, TimeoutqError):
                raise
            await asyncio.sleep(BELL_RETRY)
        self._behind_bell = self.bell = None
        self.strokes += 1
        if claim is not None:
            self.over(claim)
        # a claim that has found nothing was too late: others have taken what there was
        self.idle = found is not None and not found.leases
        if found is not None:
            take(found.leases)
        self._wake()


def asked(claim: Call[Claimed]) -> int:
    """Say for how many tasks a call asks."""
    return cast("int", claim.args[0])
