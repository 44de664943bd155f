"""Exchanges with one shard of a queue: each sends ends of leases and claims new ones. A plain queue is one shard.

Nothing is lost while the server is away: each call is kept until it was answered, and confirmed on a durable queue. A
claim is not sent again: its leases are given back, by its token, when the server has answered another exchange.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.verbs.sending import Flow
from timeoutq.words import retry
from timeoutq.words.errors import InvalidInput, NotReplicated, TimeoutqError, Unavailable
from timeoutq.words.model import Lease
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.decisions import AT_ONCE, Life, Pace
from timeoutq.worker.ends import PendingCall
from timeoutq.worker.leases import Leases

FIRST_ANSWER = 1.0  # seconds: a server that has not answered a new worker for longer counts as away
ARRIVAL = 1.0  # seconds, at most, for which a claim that was cut off may be on its way to the server
LATE = 0.25  # seconds after which an exchange that has no answer does not keep others from beginning with other shards
BELL_RETRY = 0.5
"""Seconds between two waits on the bell when it cannot be heard; a burst waits no longer than this at all."""


class Claims:
    """The claims from one shard: those under way, one that may wait at the server behind the bell, and missed ones."""

    def __init__(self, leases: Leases, pace: Pace, *, is_burst: bool, shard: int) -> None:
        """Prepare; `shard` is the number of the shard. The worker is woken when the bell has rung."""
        self._leases, self._queue, self.pace, self.shard = leases, leases.queue, pace, shard
        self.talk = leases.queue.division.talks[shard]
        self._lengths_ms = round(leases.queue.timeout * 1000), leases.runtime.ms
        self._is_burst = is_burst
        self.tended = True  # whether this worker waits on the bell
        self.idle = False  # whether the last claim found no more tasks, or no more for us
        self.plenty = False  # whether the last claim got as many tasks as it asked for
        self.strokes = 0  # how often the bell was waited for
        self.asked_at = time.monotonic()  # when the server has last answered a claim, or a wait on the bell
        self._coming: dict[bytes, int] = {}  # how many tasks may come from each claim that is under way, by its token
        self.bell: asyncio.Task[None] | None = None  # the wait on the bell, while there is one
        self._behind_bell: Call[Claimed] | None = None
        self._is_deaf = False  # whether the worker has ended this wait
        self._missed: deque[tuple[Call[Claimed], float, float]] = deque()
        """Claims whose replies nobody has read, and between which times each may have been sent (monotonic clock)."""

    @property
    def claiming(self) -> int:
        """How many tasks may come from the claims that are under way, and from the one behind the bell."""
        return sum(self._coming.values())

    @property
    def claiming_now(self) -> int:
        """How many tasks may come from the claims that the server carries out at once."""
        return self.claiming - (self._behind_bell is not None)

    def claim(self, n: int, peers: int) -> Call[Claimed]:
        """Build a call that claims up to `n` tasks, which count as coming until `over` is called."""
        token = self.talk.nonce()
        self._coming[token] = n
        if self._leases.ledger is not None:
            self._leases.ledger.ask(token, self.shard, self._lengths_ms)
        return self.talk.operations.claim(token, n, *self._lengths_ms, peers, read=self._leases.rules.read)

    def over(self, claim: Call[Claimed] | None) -> bool:
        """Note that nothing comes from this claim any more; say whether something might have come until now."""
        if claim is None or claim.id not in self._coming:
            return False
        self._answered(claim)
        return self._coming.pop(claim.id) > 0

    def _answered(self, claim: Call[Claimed]) -> None:
        if self._leases.ledger is not None:
            self._leases.ledger.answered(claim.id)

    def came(self, claim: Call[Claimed], claimed: Claimed, sent_at: float, strokes: int) -> list[Lease]:
        """Learn from the answer to a claim that was sent when the bell had rung `strokes` times; give the leases."""
        self.talk.clock.seen(claimed.now_ms, sent_at)
        self.asked_at = time.monotonic()
        self.plenty = len(claimed.leases) >= cast("int", claim.args[0])
        if not self.plenty and strokes == self.strokes:
            # there were no more tasks, or no more for us: tasks that are left ring the bell for the longest waiter
            self.idle = True
        return claimed.leases

    # ---- claims whose replies nobody has read

    def miss(self, claim: Call[Claimed] | None, sent_at: float, last_at: float) -> None:
        """Note a claim whose reply nobody has read; it was sent, or let through by the bell, between these times."""
        if claim is not None and self._coming.pop(claim.id, 0) > 0:
            self._missed.append((claim, sent_at, last_at))

    @property
    def has_missed(self) -> bool:
        """Whether it is worth an exchange to ask for the leases of missed claims."""
        lately = time.monotonic() - self.talk.deadline
        return any(last_at > lately for *_, last_at in self._missed)

    async def give_back_missed(self) -> TimeoutqError | None:
        """Give back the leases of the missed claims; give the error if the server does not answer."""
        longest = self._queue.timeout + self.talk.deadline
        while self._missed:
            claim, sent_at, last_at = missed = self._missed.popleft()
            if time.monotonic() - last_at > longest:
                self._answered(claim)
                continue  # its leases have run out
            try:
                arrives = last_at + min(ARRIVAL, self.pace.slow_trip) - time.monotonic()
                if arrives > 0:  # or the question may arrive before the claim
                    await asyncio.sleep(arrives)
                again = self.talk.operations.claim(claim.id, 0, *self._lengths_ms)
                await self._queue.run(flows.give_back(self.talk, again, int((time.monotonic() - sent_at) * 1000)))
            except TimeoutqError as error:
                if isinstance(error, Unavailable):
                    self._missed.append(missed)
                    return error
            except BaseException:
                self._missed.append(missed)
                raise
            self._answered(claim)
        return None

    def give_back_unread(self) -> Flow[None]:
        """Release the leases of the claims under way, in a process that will not read their replies any more."""
        for token in list(self._coming):
            yield from flows.give_back_unread(self.talk, token, *self._lengths_ms)

    # ---- the bell, which lets the claim behind it through

    def listen(
        self, claim: Call[Claimed] | None, take: Callable[[list[Lease]], None], has_room: Callable[[], bool]
    ) -> None:
        """Wait on the bell, with this claim behind the wait; `take` gets its leases.

        If there is no claim, and no room when the bell has rung, the stroke is passed on to another worker.
        """
        self._is_deaf, self._behind_bell = False, claim
        self.bell = asyncio.create_task(self._await_bell(claim, take, has_room), name=f"bell-{self._queue.name}")
        self.bell.add_done_callback(partial(self._left, claim))

    def deafen(self, *, always: bool = False) -> None:
        """End the wait on the bell if a claim stands behind it, or always: the worker wants no more tasks now."""
        if self.bell is not None and (always or self._behind_bell is not None):
            self._is_deaf = True
            self.bell.cancel()

    def _left(self, claim: Call[Claimed] | None, bell: asyncio.Task[None]) -> None:
        self.over(claim)  # a wait that was cancelled before its first step has not sent it
        if bell.cancelled() and not self._is_deaf:
            self._leases.on_cancelled("wait on the bell")
        # the pump may have looked while the wait was still ending
        if self.bell is bell:
            self.bell = self._behind_bell = None
            self._leases.wake()

    async def _await_bell(
        self, claim: Call[Claimed] | None, take: Callable[[list[Lease]], None], has_room: Callable[[], bool]
    ) -> None:
        seconds, sent_at = BELL_RETRY if self._is_burst else sending.BELL_WAIT, time.monotonic()
        found: Claimed | None = None
        try:
            if claim is not None:
                found = await self._queue.run(flows.hear_bell(self.talk, seconds, claim))
            else:
                await self._queue.run(flows.hear_stroke(self.talk, seconds, has_room))
            self.asked_at = time.monotonic()
        except BaseException as error:
            self._behind_bell = None
            self.miss(claim, sent_at, time.monotonic())
            self._leases.wake()
            if not isinstance(error, TimeoutqError):
                raise
            await asyncio.sleep(BELL_RETRY)
        self._behind_bell = self.bell = None
        self.strokes += 1
        # a claim that has found nothing was too late: others have taken all that there was
        self.idle = found is not None and not found.leases
        if found is not None:
            take(found.leases)
        self.over(claim)
        self._leases.wake()


class Exchanges:
    """The exchanges of one worker with one shard."""

    def __init__(
        self,
        leases: Leases,
        claims: Claims,
        life: Life,
        cleaner: Cleaner,
        received: Callable[[Exchanges, list[Lease]], None],
    ) -> None:
        """Prepare; `received` is called with this and the leases that each claim has brought."""
        self._leases, self._queue, self._log, self._life = leases, leases.queue, leases.log, life
        self.claims, self.cleaner, self._talk = claims, cleaner, claims.talk
        self.ends = leases.shards[claims.shard]  # the ends that are to be sent to this shard
        self.receive = partial(received, self)  # hands on the leases that a claim has brought
        self.under_way: set[asyncio.Task[None]] = set()
        self.began = 0.0  # when the last one began, by the monotonic clock
        self.failures = 0  # how many exchanges have failed since the last one that did not
        self.trouble = ""  # why the last one of them has failed
        self._failing_since = 0.0  # when the first of them failed, by the monotonic clock
        self._sending: list[deque[PendingCall]] = []  # the calls under way that have no answers yet, by exchange
        self.waiting_out = False  # whether one waits because the server is away
        self.unconfirmed = ""
        """Why replicas have not confirmed the last exchange; empty when they have, and while the server is away."""

    @property
    def away(self) -> bool:
        """Whether the server does not answer."""
        return self.failures > 0 or (not self._life.met and time.time() - self._leases.started > FIRST_ANSWER)

    @property
    def worth_asking(self) -> bool:
        """Whether to ask for the leases of missed claims if nothing else is to be sent: not a server that is away."""
        return self.claims.has_missed and not self.away

    @property
    def has_more(self) -> bool:
        """Whether there is something to send: ends, or a question about missed claims."""
        return bool(self.ends or self.worth_asking)

    @property
    def owes(self) -> bool:
        """Whether what handlers have given is still to be sent, and is worth it: their leases may run still."""
        if self.failures and time.monotonic() - self._failing_since > self._queue.timeout:
            return False
        sending = [one for calls in self._sending for one in calls if one.verb != "release"]
        return bool(sending or self.ends.leases("ack", "fail"))

    @property
    def is_late(self) -> bool:
        """Whether an exchange waits for its answer for a while, or for a server that is away to be tried again."""
        # between two tries it is not late: the next try begins as any exchange does, and only an answer ends the outage
        return bool(self.under_way) and (self.failures > 0 or time.monotonic() - self.began > LATE)

    @property
    def keeps_busy(self) -> int:
        """How many exchanges are under way that will soon have their answers."""
        return 0 if self.is_late else len(self.under_way)

    def begin(self, claim: Call[Claimed] | None) -> None:
        """Start an exchange in a task of its own."""
        task = asyncio.create_task(self.make(claim), name=f"exchange-{self._queue.name}")
        self.under_way.add(task)
        self.began = time.monotonic()
        task.add_done_callback(partial(self._over, claim))

    def _over(self, claim: Call[Claimed] | None, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        self.claims.over(claim)  # an exchange that was cancelled before its first step has not sent it
        if task.cancelled():
            self._leases.on_cancelled("exchange")
        else:
            self._life.broken = self._life.broken or task.exception()
        self._leases.wake()

    async def make(self, claim: Call[Claimed] | None = None) -> None:
        """Send the ends that have gathered, and a claim."""
        calls = self.ends.take(self.claims.pace.found_at_once())
        self._leases.last_sent = calls or self._leases.last_sent
        if await self._send(claim, calls) is not None:
            return
        self._life.met = self.cleaner.met = True
        self._life.refused.discard(self._leases.number)
        if self.failures:
            what = "the replicas confirm" if self.unconfirmed else "the server answers"
            self._log.say(logging.INFO, "worker %s: %s again", self._log.worker, what)
            self._life.returns += 1
            self._leases.wake()
        self.failures, self.unconfirmed = 0, ""

    async def _send(self, claim: Call[Claimed] | None, calls: list[PendingCall]) -> TimeoutqError | None:
        unsettled, sent_at = deque(calls), time.monotonic()
        self._sending.append(unsettled)
        try:
            trouble = await self._exchange(claim, unsettled, sent_at)
            if trouble is None or isinstance(trouble, NotReplicated):
                trouble = await self.claims.give_back_missed() or trouble
        except BaseException:  # the exchange was cancelled
            self.ends.calls[:0] = unsettled
            self.claims.miss(claim, sent_at, sent_at)
            raise
        finally:
            self._sending.remove(unsettled)
        if trouble is not None and not self.waiting_out:  # one waits for both
            self.waiting_out = True
            try:
                await self.wait_out(trouble)
            finally:
                self.waiting_out = False
        return trouble

    async def _exchange(
        self, claim: Call[Claimed] | None, unsettled: deque[PendingCall], sent_at: float
    ) -> TimeoutqError | None:
        """Send calls and a claim, and take the answers; the calls that are left in `unsettled` have none."""
        calls: list[Call[Any]] = [one.call for one in unsettled]
        if claim is not None:
            calls.append(claim)
        if not calls:
            return None
        strokes = self.claims.strokes
        puts, grouped = any(one.found for one in unsettled), any(one.grouped for one in unsettled)
        try:
            sent = self._queue.division.exchange(self._talk, calls, puts=puts, grouped=grouped)
            results = await self._queue.run(sent)
        except TimeoutqError as error:
            results = [error] * len(calls)
        if not any(isinstance(result, Unavailable) for result in results):
            self.claims.pace.took(time.monotonic() - sent_at)
        trouble: TimeoutqError | None = None
        for result in results[: len(unsettled)]:
            one = unsettled.popleft()
            if isinstance(result, InvalidInput) and one.verb in ("ack", "put"):
                self._leases.refused(one, result)
            elif isinstance(result, TimeoutqError):
                trouble = result
                self.ends.calls.append(one)
            else:
                self._leases.settled(one, result)
        if claim is not None:
            trouble = await self._take(claim, results[-1], sent_at, strokes) or trouble
        return trouble

    async def _take(
        self, claim: Call[Claimed], claimed: Claimed | TimeoutqError, sent_at: float, strokes: int
    ) -> TimeoutqError | None:
        """Take the leases that a claim has brought; give the error if it has brought none."""
        try:
            if isinstance(claimed, Claimed) and claimed.rest is not None:
                claimed = await self._queue.run(flows.whole(self._talk, claimed))
        except TimeoutqError as error:
            claimed = error
        if type(claimed) in (Unavailable, NotReplicated):
            self.claims.miss(claim, sent_at, sent_at)
        if isinstance(claimed, Claimed):
            self.receive(self.claims.came(claim, claimed, sent_at, strokes))
        self.claims.over(claim)  # after that: if the process dies now, the ledger has its leases
        return claimed if isinstance(claimed, TimeoutqError) else None

    async def wait_out(self, trouble: TimeoutqError) -> None:
        """Pause before the next attempt; raises an error that waiting cannot mend."""
        if flows.is_final(trouble, met=self._life.met):
            self._life.refuse(self._leases.number, trouble)
        self._failing_since = self._failing_since if self.failures else time.monotonic()
        self.failures += 1
        self.trouble = str(trouble)
        unconfirmed = self.trouble if isinstance(trouble, NotReplicated) else ""
        if self.failures == 1 or bool(unconfirmed) != bool(self.unconfirmed):
            who = "replicas" if unconfirmed else "the server"
            self._log.of_worker(logging.WARNING, "waits for %s: %s", who, trouble, error=trouble)
        self.unconfirmed = unconfirmed
        if self._life.level == AT_ONCE or self._life.leaving:
            return
        level, returns = self._life.level, self._life.returns
        with suppress(TimeoutError):
            async with asyncio.timeout(retry.pause(self.failures)):
                while (self._life.level, self._life.returns) == (level, returns):
                    self._leases.woken.clear()
                    await self._leases.woken.wait()

    async def end(self) -> None:
        """Wait for the exchanges under way; in a drain for the rest of it, and the time that one call may take."""
        while self.under_way:
            # heavy ends over a slow link take longer than a drain may
            seconds = self._life.seconds_left + self._talk.deadline if self._life.until else None
            _, slow = await asyncio.wait(self.under_way, timeout=seconds)
            for task in slow:
                task.cancel()

    async def end_claims(self) -> None:
        """Wait for the leases of the claims under way, at most the deadline of a call; then cancel all exchanges."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._talk.deadline):
                    # who stops the worker while the server does not answer is not kept waiting
                    while self.claims.claiming_now and self.under_way and not (self._life.level and self.away):
                        await asyncio.wait(self.under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self.under_way:
                task.cancel()
