"""Exchanges with a part of the queue: each sends ends of leases and claims new ones. Ends go until they are answered.

The pump decides when an exchange begins, and what it claims. While the server is away one exchange waits, and then
tries again; nothing is lost meanwhile, because each errand is kept until it was answered. A claim without an answer is
not sent again: what it may have taken is given back, by its token, when the server has answered another exchange. On a
durable queue, what replicas have not confirmed is sent again, too, and what such a claim took is given back at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from timeoutq.server.calls import Call
from timeoutq.verbs import flows
from timeoutq.verbs.replies import Claimed
from timeoutq.words import retry
from timeoutq.words.errors import InvalidInput, NotReplicated, TimeoutqError, Unavailable
from timeoutq.words.model import Lease
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.desk import Desk
from timeoutq.worker.ends import Ends, Errand
from timeoutq.worker.sources import Source, asked
from timeoutq.worker.stopping import AT_ONCE, Stopping

FIRST_ANSWER = 1.0
"""Seconds: a server that has not answered a new worker for longer counts as away."""
ARRIVAL = 1.0
"""Seconds, at most, for which a claim that was cut off may be on its way to the server."""
LATE = 0.25
"""Seconds after which an exchange that has no answer does not keep others from beginning with other parts."""


@dataclass(slots=True)
class Common:
    """What the exchanges of one worker with all parts of its queues share."""

    met: bool = False
    """Whether a server has answered; from then on every error of it is waited out."""
    leaving: bool = False
    """Whether the worker ends early: nothing is waited out any more."""
    broken: BaseException | None = None
    """Why the worker must end."""
    lanes: int = 1
    """How many queues the worker has."""
    refused: set[int] = field(default_factory=set)
    """The numbers of the queues whose servers refuse what waiting cannot mend."""

    def refuse(self, lane: int, trouble: TimeoutqError) -> None:
        """Note that a queue cannot be worked on; raises the error if this holds for all queues of the worker."""
        self.refused.add(lane)
        if len(self.refused) == self.lanes:
            raise trouble


class Exchanges:
    """The exchanges of one worker with one part of its queue."""

    def __init__(
        self,
        desk: Desk,
        source: Source,
        stopping: Stopping,
        cleaner: Cleaner,
        receive: Callable[[list[Lease]], None],
        common: Common | None = None,
    ) -> None:
        """Prepare; `receive` is called with what each claim has brought."""
        self._queue, self._voice, self._woken = desk.queue, desk.voice, desk.woken
        self._desk = desk
        self.source = source
        self._talk = source.talk
        self.common = Common() if common is None else common
        self._stopping = stopping
        self._cleaner = cleaner
        self.receive = receive
        self._loop = asyncio.get_running_loop()
        self.under_way: set[asyncio.Task[None]] = set()
        self._began = 0.0
        """When the last one began, by the monotonic clock."""
        self.failures = 0
        """How many exchanges have failed since the last one that did not."""
        self.waiting_out = False
        """Whether one waits because the server is away."""
        self.unconfirmed = ""
        """Why replicas have not confirmed the last exchange; empty when they have, and while the server is away."""
        self._missed: deque[tuple[Call[Claimed], float, float]] = deque()
        """Claims whose replies nobody has read, and between which times each may have been sent (monotonic clock)."""

    @property
    def away(self) -> bool:
        """Whether the server does not answer."""
        return self.failures > 0 or (not self.common.met and time.time() - self._desk.started > FIRST_ANSWER)

    @property
    def stuck_since(self) -> float:
        """Since when an exchange is under way that does not wait for a server to come back; 0 if there is none."""
        return self._began if self.under_way and not self.waiting_out else 0.0

    @property
    def ends(self) -> Ends:
        """What is to be sent to this part."""
        return self._desk.parts[self.source.part]

    @property
    def has_more(self) -> bool:
        """Whether there is something to send: ends, or a question about what missed claims have taken."""
        return bool(self.ends or self.worth_asking)

    @property
    def is_late(self) -> bool:
        """Whether an exchange waits for its answer for a while, or for a server that is away to be tried again."""
        # between two tries it is not late: the next try begins as any exchange does, and only an answer ends the outage
        return bool(self.under_way) and (self.failures > 0 or time.monotonic() - self._began > LATE)

    @property
    def keeps_busy(self) -> int:
        """How many exchanges are under way that will soon have their answers."""
        return 0 if self.is_late else len(self.under_way)

    def fail(self, reason: BaseException) -> None:
        """End the worker with this error; the first one counts."""
        self.common.broken = self.common.broken or reason
        self._woken.set()

    def begin(self, claim: Call[Claimed] | None) -> None:
        """Start an exchange in a task of its own."""
        task = self._loop.create_task(self.make(claim), name=f"exchange-{self._queue.name}")
        self.under_way.add(task)
        self._began = time.monotonic()
        task.add_done_callback(partial(self._over, claim))

    def _over(self, claim: Call[Claimed] | None, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        if claim is not None:
            self.source.over(claim)  # an exchange that was cancelled before its first step has not sent it
        if task.cancelled():
            self._desk.on_cancelled("exchange")
        else:
            self.common.broken = self.common.broken or task.exception()
        self._woken.set()

    async def make(self, claim: Call[Claimed] | None = None) -> None:
        """Send the ends that have gathered, and a claim."""
        me, errands = object(), self.ends.take(self.source.pace.found_at_once())
        self._desk.sent[me] = errands
        self._desk.last_sent = errands or self._desk.last_sent
        try:
            trouble = await self._send(claim, errands)
        finally:
            del self._desk.sent[me]
        if trouble is None:
            self._note_answer()

    async def _send(self, claim: Call[Claimed] | None, errands: list[Errand]) -> TimeoutqError | None:
        unsettled, sent_at = deque(errands), time.monotonic()
        try:
            trouble = await self._exchange(claim, unsettled, sent_at)
            if trouble is None or isinstance(trouble, NotReplicated):
                trouble = await self._give_back_missed() or trouble
        except BaseException:  # the exchange was cancelled
            self.ends.errands[:0] = unsettled
            if claim is not None:
                self.miss(claim, sent_at, sent_at)
            raise
        if trouble is not None and not self.waiting_out:  # one waits for both
            self.waiting_out = True
            try:
                await self.wait_out(trouble)
            finally:
                self.waiting_out = False
        return trouble

    async def _exchange(
        self, claim: Call[Claimed] | None, unsettled: deque[Errand], sent_at: float
    ) -> TimeoutqError | None:
        """Send errands and a claim, and take the answers; what is left in `unsettled` has no answer."""
        calls: list[Call[Any]] = [errand.call for errand in unsettled]
        if claim is not None:
            calls.append(claim)
        if not calls:
            return None
        strokes = self.source.strokes
        puts, grouped = any(errand.found for errand in unsettled), any(errand.grouped for errand in unsettled)
        try:
            sent = self._queue.division.exchange(self._talk, calls, puts=puts, grouped=grouped)
            results = await self._queue.run(sent)
        except TimeoutqError as error:
            results = [error] * len(calls)
        self.source.pace.took(time.monotonic() - sent_at)
        trouble: TimeoutqError | None = None
        for result in results[: len(unsettled)]:
            errand = unsettled.popleft()
            if isinstance(result, InvalidInput) and errand.verb in ("ack", "put"):
                self._desk.refused(errand, result)
            elif isinstance(result, TimeoutqError):
                trouble = result
                self.ends.errands.append(errand)
            else:
                self._desk.settled(errand, result)
        if claim is not None:
            trouble = await self._take(claim, results[-1], sent_at, strokes) or trouble
        return trouble

    async def _take(
        self, claim: Call[Claimed], claimed: Claimed | TimeoutqError, sent_at: float, strokes: int
    ) -> TimeoutqError | None:
        """Take what a claim has brought; give the error if it has brought nothing."""
        try:
            if isinstance(claimed, Claimed) and claimed.rest is not None:
                claimed = await self._queue.run(flows.whole(self._talk, claimed))
        except TimeoutqError as error:
            claimed = error
        if type(claimed) in (Unavailable, NotReplicated):
            self.miss(claim, sent_at, sent_at)
        self.source.over(claim)
        if isinstance(claimed, TimeoutqError):
            return claimed
        self.receive(self.source.came(claimed, asked(claim), sent_at, strokes))
        return None

    # ---- claims whose replies nobody has read

    def miss(self, claim: Call[Claimed], sent_at: float, last_at: float) -> None:
        """Note a claim whose reply nobody has read; it was sent, or let through by the bell, between these times."""
        if self.source.over(claim):
            self._missed.append((claim, sent_at, last_at))

    @property
    def worth_asking(self) -> bool:
        """Whether to ask what missed claims have taken if nothing else is to be sent: not a server that is away."""
        lately = time.monotonic() - self._talk.deadline
        return bool(self._missed) and not self.away and any(last_at > lately for *_, last_at in self._missed)

    async def _give_back_missed(self) -> TimeoutqError | None:
        """Give back what the missed claims have taken; give the error if the server does not answer."""
        longest = self._queue.timeout + self._talk.deadline
        while self._missed:
            claim, sent_at, last_at = missed = self._missed.popleft()
            if time.monotonic() - last_at > longest:
                continue  # its leases have run out
            try:
                arrives = last_at + min(ARRIVAL, self.source.pace.slow_trip) - time.monotonic()
                if arrives > 0:  # or the question may arrive before the claim
                    await asyncio.sleep(arrives)
                await self._queue.run(self.source.give_back(claim, time.monotonic() - sent_at))
            except TimeoutqError as error:
                if isinstance(error, Unavailable):
                    self._missed.append(missed)
                    return error
            except BaseException:
                self._missed.append(missed)
                raise
        return None

    # ---- a server that does not answer

    def _note_answer(self) -> None:
        self.common.met = self._cleaner.met = True
        self.common.refused.discard(self._desk.lane)
        if self.failures:
            what = "the replicas confirm" if self.unconfirmed else "the server answers"
            self._voice.say(logging.INFO, "worker %s: %s again", self._voice.worker, what)
        self.failures, self.unconfirmed = 0, ""

    async def wait_out(self, trouble: TimeoutqError) -> None:
        """Pause before the next attempt; raises an error that waiting cannot mend."""
        if flows.is_final(trouble, met=self.common.met):
            self.common.refuse(self._desk.lane, trouble)
        self.failures += 1
        unconfirmed = str(trouble) if isinstance(trouble, NotReplicated) else ""
        if self.failures == 1 or bool(unconfirmed) != bool(self.unconfirmed):
            what, who = "worker %s waits for %s: %s", "replicas" if unconfirmed else "the server"
            self._voice.say(logging.WARNING, what, self._voice.worker, who, trouble, error=trouble)
        self.unconfirmed = unconfirmed
        if self._stopping.level == AT_ONCE or self.common.leaving:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(retry.pause(self.failures)):
                await self._stopped()

    async def _stopped(self) -> None:
        while not self._stopping.level:
            self._woken.clear()
            await self._woken.wait()

    # ---- the end

    async def end(self) -> None:
        """Wait for the exchanges under way; in a drain for what is left of it, and the time that one call may take."""
        if self.under_way and self._stopping.until:
            # heavy ends over a slow link take longer than a drain may
            seconds = self._stopping.seconds_left + self._talk.deadline
            _, slow = await asyncio.wait(self.under_way, timeout=seconds)
            for task in slow:
                task.cancel()
        if self.under_way:
            await asyncio.wait(self.under_way)

    async def end_claims(self) -> None:
        """Wait for what the claims under way bring, at most for the deadline of a call; then cancel all exchanges."""
        until = time.monotonic() + self._talk.deadline
        try:
            # who stops the worker while the server does not answer is not kept waiting
            while self.source.claiming_now and self.under_way and not (self._stopping.level and self.away):
                left = until - time.monotonic()
                if left <= 0:
                    break
                await asyncio.wait(self.under_way, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self.under_way:
                task.cancel()
