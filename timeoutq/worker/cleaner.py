"""Takes back expired leases, makes due tasks ready, puts due ticks, and sleeps exactly until the next of these is due.

Every worker runs a cleaner, `timeoutq cleaner` runs a cleaner alone, and any number of cleaners may run at once: their
scripts are idempotent, and there is no leader. A cleaner sleeps until the next deadline or due time that it knows. A
script that adds an earlier time rings the alarm (a stream of one entry, which wakes all cleaners). If the alarm is
silent, the cleaner looks again after `longest` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from timeoutq.client import AsyncDriver
from timeoutq.rooms import schedules
from timeoutq.verbs import flows, repairs, sending
from timeoutq.verbs.replies import Plan
from timeoutq.verbs.sending import Talk
from timeoutq.words import retry, telling
from timeoutq.words.errors import MissingExtra, TimeoutqError
from timeoutq.words.text import counted, safe

log = logging.getLogger(__name__)

TICK = 0.0012
"""Seconds by which a timer of asyncio may be late on an idle machine: it counts in whole ms."""
AWAKE = 0.2
"""The share of its time that a cleaner spends awake so that it is in time."""
STUCK = 1.0
"""Seconds after which ticks that this process cannot put are tried again."""
PRUNE_EVERY = 30.0
WALK_EVERY = 0.35
"""Seconds between two parts of a walk through a queue: a walk through 10,000 tasks takes half a minute."""


def waiting_for(queue: str, mends: Callable[[BaseException], bool]) -> AsyncRetrying:
    """Give the loop in which the cleaner of a queue waits for a server that is away, restarting or in failover.

    The loop waits with full jitter, without end. It waits only if `mends(error)` says that waiting may help; other
    errors are raised.
    """

    def tell(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            error = state.outcome.exception()
            fields = {"queue": queue, "error": str(error)}
            telling.say(
                log, logging.WARNING, "cleaner of queue %s waits for the server: %s", queue, error, fields=fields
            )

    return AsyncRetrying(
        retry=retry_if_exception(mends),
        wait=lambda state: retry.pause(state.attempt_number),
        before_sleep=tell,
        reraise=True,
    )


class Cleaner:
    """Keeps one queue, or one part of a queue, moving while it runs."""

    def __init__(self, queue: AsyncDriver, *, longest: float = 10.0, talk: Talk | None = None) -> None:
        """Prepare; `longest` is the most seconds between two looks at the queue, `talk` is with the part."""
        self.queue = queue
        self.talk = queue.talk if talk is None else talk
        self.longest = longest
        self.peers = 1
        """How many cleaners this queue has. With many, each waits a little longer, so that not all do the same work."""
        self.met = False
        """Whether the server has answered before. If so, the cleaner waits after every error of the server."""
        self.heed_cancels: Callable[[], Awaitable[None]] | None = None
        """Called when tasks in progress were cancelled that may be those of this process."""
        self.requeued = 0
        self.promoted = 0
        self.ticked = 0
        self._alarm = asyncio.Event()
        self._asking = asyncio.Lock()
        """Held while the server is asked, so that a cleaner takes one connection, besides the one for the alarm."""
        self._cancelling = 0
        """How many tasks in progress had been cancelled when this process last looked for its own among them."""
        self._cursor = b"0"
        self._prune_at = self._repair_at = 0.0
        self._converting = False
        self._may_tick = True
        """Whether this process can put ticks of schedules: it needs the extra `functions`."""
        self._tick_again_at = 0.0
        """Before this time, a tick that this process cannot put is not tried again."""
        self._stuck: set[str] = set()
        """The schedules whose ticks this process cannot put, as it has said already."""
        self._due_at = math.inf
        """The monotonic clock when something will be due, as far as this cleaner knows."""
        self._trip = 0.01
        """Seconds that a short exchange takes."""
        self._tired_until = 0.0
        """Until when the cleaner sleeps by timers alone, for it has been awake."""

    async def run(self) -> None:
        """Clean until cancelled. While the server is away, wait without end."""
        listener = asyncio.create_task(self._listen(), name=f"alarm-{self.queue.name}")
        listener.add_done_callback(lambda _: self._alarm.set())
        try:
            while True:
                self._alarm.clear()
                if listener.done():
                    listener.result()  # raises the error that has ended it
                pause = 0.0
                try:
                    pause = await self.round()
                except TimeoutqError:
                    async for attempt in waiting_for(self.queue.name, self._mends):
                        with attempt:
                            pause = await self.round()
                await self._sleep(pause)
                if self.peers > 1:
                    await asyncio.sleep(random.uniform(0, min(0.02, 0.001 * self.peers)))  # noqa: S311  # jitter
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _sleep(self, seconds: float) -> None:
        """Sleep this long, or until the alarm."""
        until = time.monotonic() + seconds
        # after the longest sleep, nothing is due
        is_due = self._due_at <= until + TICK and seconds < 0.99 * self.longest
        if self.peers == 1 and is_due and until - TICK >= self._tired_until:
            # timers of asyncio are up to a ms late: the last ms goes by in turns of the loop, in which others may work
            await self._doze(seconds - TICK)
            before, now = -math.inf, time.monotonic()
            began = now
            while before < now < until and not self._alarm.is_set():  # the clock of a simulation stands still meanwhile
                await asyncio.sleep(0)
                before, now = now, time.monotonic()
            self._tired_until = now + (now - began) * (1 / AWAKE - 1)
        await self._doze(until - time.monotonic())

    async def _doze(self, seconds: float) -> None:
        if seconds <= 0:
            # on a queue of `timeoutq.testing` nothing else gives others their turn, and its clock stands meanwhile
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._alarm.wait()

    def _mends(self, error: BaseException) -> bool:
        return isinstance(error, TimeoutqError) and not flows.is_final(error, met=self.met)

    async def round(self) -> float:
        """Do all that is due; give the number of seconds to sleep."""
        async with self._asking:
            return await self._do_due()

    async def _do_due(self) -> float:
        queue, ops, longest_ms = self.queue, self.talk.operations, int(self.longest * 1000)
        plan: Plan | None = None
        asked, idle = time.monotonic(), 0
        if self._due_at > asked:
            plan = await queue.run(sending.answer(self.talk, ops.plan(longest_ms)))
        while plan is None or plan.at_ms <= plan.now_ms:
            asked = time.monotonic()
            # what is due is done before anything is asked: it is late already
            requeued, promoted, following = await queue.run(flows.clean_and_plan(self.talk, longest_ms))
            plan, self.met = following, True
            self.requeued += requeued.moved
            self.promoted += promoted.moved
            if requeued.moved:
                telling.say(
                    log, logging.INFO, "queue %s: took back %d expired leases, %d of their tasks went to failed",
                    queue.name, requeued.moved, requeued.failed, fields={"queue": queue.name},
                )  # fmt: skip
            idle = 0 if requeued.moved or promoted.moved else idle + 1
            if idle > 1 and following.at_ms <= following.now_ms:
                # another cleaner was quicker, or no lease may be taken back yet (grace): look again soon. Once it may
                # be that a task became due between two calls of one exchange
                return 0.05
        self.met = True
        self._due_at = self._here(plan, asked, plan.at_ms)
        if plan.cancelling not in (0, self._cancelling) and self.heed_cancels is not None:
            await self.heed_cancels()
            self._cancelling = plan.cancelling
        if plan.tick_ms and self._may_tick:
            tick_at = max(self._here(plan, asked, plan.tick_ms), self._tick_again_at)
            if plan.tick_ms <= plan.now_ms and tick_at <= time.monotonic() and await self._tick():
                self._due_at = 0.0  # what comes next is asked for at once
                return 0.0
            self._due_at = min(self._due_at, max(tick_at, self._tick_again_at))
        if time.monotonic() >= self._prune_at:
            await self._prune()
        if self._converting:
            # the client that changed the politeness may have died; between two parts, do what is due
            part = await self.queue.run(sending.answer(self.talk, ops.convert()))
            self._converting = part != b"end"
            if self._converting:
                return 0.0
        if time.monotonic() >= self._repair_at:
            await self._repair()
        return max(0.0, min(self._due_at, self._prune_at, self._repair_at) - time.monotonic())

    async def _tick(self) -> bool:
        """Put the ticks that are due; say whether any schedule has gone on."""
        try:
            found = await self.queue.run(schedules.tick_due(self.talk))
        except MissingExtra as error:
            self._may_tick = False
            telling.say(
                log, logging.WARNING, "queue %s has schedules, and this process leaves their ticks to others: %s",
                self.queue.name, error, fields={"queue": self.queue.name},
            )  # fmt: skip
            return False
        self.ticked += found.put
        if found.late:
            first = sorted(found.late.items())[:5]
            told = ", ".join(f"{safe(name)} ({put} put late, {missed} missed)" for name, (put, missed) in first)
            telling.say(
                log, logging.WARNING, "queue %s: ticks of %s were more than a minute late: %s",
                self.queue.name, counted(len(found.late), "schedule"), told, fields={"queue": self.queue.name},
            )  # fmt: skip
        for name in found.undeclared:
            telling.say(
                log, logging.WARNING, "queue %s: schedule %s is paused, because no code has declared it for an hour",
                self.queue.name, safe(name), fields={"queue": self.queue.name},
            )  # fmt: skip
        for name in sorted(found.stuck.keys() - self._stuck):
            telling.say(
                log, logging.WARNING, "queue %s: the ticks of schedule %s cannot be put here: %s",
                self.queue.name, safe(name), safe(str(found.stuck[name])), fields={"queue": self.queue.name},
            )  # fmt: skip
        self._stuck = set(found.stuck)
        if not found.moved:
            # another cleaner was quicker; or this one cannot, and looks again in case that somebody mends it
            self._tick_again_at = time.monotonic() + (STUCK if found.stuck else 0.005)
        return found.moved

    def _here(self, plan: Plan, asked: float, at_ms: int) -> float:
        """Give the monotonic clock of this process when to ask for what is due at `at_ms`; `asked`: when the plan was.

        The way back of the reply has cost time, and so will the way there of the next call: together they take as long
        as the shortest exchange, at least. Half of it is made up for, so that the call is not there too early.
        """
        now = time.monotonic()
        self._trip = min(now - asked, self._trip * 1.05)
        return now + (at_ms - plan.now_ms) / 1000 - plan.micros / 1e6 - self._trip / 2

    async def _prune(self) -> None:
        while True:
            call = self.talk.operations.prune(cursor=self._cursor)
            found = await self.queue.run(sending.answer(self.talk, call))
            self._cursor, self._converting = found.cursor, found.converting
            if not found.more:
                break
        self._prune_at = time.monotonic() + PRUNE_EVERY

    async def _repair(self) -> None:
        # all cleaners of a queue share one walk: however many there are, they look no more often than one
        found = await self.queue.run(sending.answer(self.talk, self.talk.operations.repair()))
        if found.found:
            fields = {"queue": self.queue.name}
            telling.say(log, logging.WARNING, "queue %s: %s", self.queue.name, repairs.told(found.found), fields=fields)
        pause = WALK_EVERY * max(1, self.peers) * random.uniform(0.5, 1.5) if found.cursor else PRUNE_EVERY  # noqa: S311  # jitter
        self._repair_at = time.monotonic() + pause

    async def _listen(self) -> None:
        queue, last = self.queue, b""
        failures = 0
        while True:
            try:
                if not last:
                    async with self._asking:
                        last = await queue.run(flows.newest_alarm(self.talk))
                    self._alarm.set()
                heard = await queue.run(flows.hear_alarm(self.talk, last, sending.BELL_WAIT))
                if heard != last:
                    self._alarm.set()
                last, failures = heard, 0
            except TimeoutqError as error:
                failures += 1
                telling.say(log, logging.DEBUG, "queue %s: the alarm is not heard: %s", queue.name, error)
                last = b""
                await asyncio.sleep(retry.pause(failures))
