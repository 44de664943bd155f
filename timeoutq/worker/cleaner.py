"""Takes back expired leases, makes due tasks ready, puts due ticks, and sleeps until the next of these is due."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from timeoutq.client import AsyncDriver
from timeoutq.rooms import schedules
from timeoutq.verbs import flows, repairs, sending
from timeoutq.verbs.replies import Plan
from timeoutq.verbs.sending import Talk
from timeoutq.words import retry, telling
from timeoutq.words.errors import MissingExtra, TimeoutqError
from timeoutq.words.text import counted, safe

log = logging.getLogger(__name__)

TICK = 0.0012  # seconds by which a timer of asyncio may be late on an idle machine: it counts in whole ms
AWAKE = 0.2  # the share of its time that a cleaner spends awake so that it is in time
STUCK = 1.0  # seconds after which ticks that this process cannot put are tried again
PRUNE_EVERY = 30.0
WALK_EVERY = 0.35
"""Seconds between two parts of a walk through a queue: a walk through 10,000 tasks takes half a minute."""


class Cleaner:
    """Keeps one queue, or one shard of a queue, moving while it runs."""

    def __init__(self, queue: AsyncDriver, *, longest: float = 10.0, talk: Talk | None = None) -> None:
        """Prepare; `longest` is the most seconds between two looks at the queue, `talk` is with the shard."""
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
        self._tick_again_at = 0.0  # before this time, a tick that this process cannot put is not tried again
        self._stuck: set[str] = set()  # the schedules whose ticks this process cannot put, as it has said already
        self._due_at = math.inf  # the monotonic clock when something will be due, as far as this cleaner knows
        self._trip = 0.01  # seconds that a short exchange takes
        self._tired_until = 0.0  # until when the cleaner sleeps by timers alone, for it has been awake

    async def run(self) -> None:
        """Clean until cancelled. While the server is away, wait without end."""
        listener = asyncio.create_task(self._listen(), name=f"alarm-{self.queue.name}")
        listener.add_done_callback(lambda _: self._alarm.set())
        failures = 0
        try:
            while True:
                self._alarm.clear()
                if listener.done():
                    listener.result()  # raises the error that has ended it
                try:
                    seconds = await self.round()
                except TimeoutqError as error:
                    if flows.is_final(error, met=self.met):
                        raise
                    failures += 1
                    if failures == 1:
                        fields = {"queue": self.queue.name, "error": str(error)}
                        words = "cleaner of queue %s waits for the server: %s"
                        telling.say(log, logging.WARNING, words, self.queue.name, error, fields=fields)
                    await asyncio.sleep(retry.pause(failures))
                    continue
                failures = 0
                await self._sleep(seconds)
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

    async def round(self) -> float:
        """Do all that is due; give the number of seconds to sleep."""
        async with self._asking:
            return await self._round()

    async def _round(self) -> float:
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
                words = "took back %d expired leases, %d of their tasks went to failed"
                self._say(logging.INFO, words, requeued.moved, requeued.failed)
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
        if plan.tick_ms:
            tick_at = max(self._here(plan, asked, plan.tick_ms), self._tick_again_at)
            if plan.tick_ms <= plan.now_ms and tick_at <= time.monotonic() and await self._tick():
                self._due_at = 0.0  # what comes next is asked for at once
                return 0.0
            self._due_at = min(self._due_at, max(tick_at, self._tick_again_at))
        if time.monotonic() >= self._prune_at:
            await self._prune()
        if self._converting:
            # the client that changed the politeness may have died; between two parts, do what is due
            self._converting = await queue.run(sending.answer(self.talk, ops.convert())) != b"end"
            if self._converting:
                return 0.0
        if time.monotonic() >= self._repair_at:
            # all cleaners of a queue share one walk: however many there are, they look no more often than one
            found = await queue.run(sending.answer(self.talk, ops.repair()))
            if found.found:
                self._say(logging.WARNING, "%s", repairs.told(found.found))
            jitter = random.uniform(0.5, 1.5)  # noqa: S311  # no secret
            pause = WALK_EVERY * max(1, self.peers) * jitter if found.cursor else PRUNE_EVERY
            self._repair_at = time.monotonic() + pause
        return max(0.0, min(self._due_at, self._prune_at, self._repair_at) - time.monotonic())

    async def _tick(self) -> bool:
        """Put the ticks that are due; say whether any schedule has gone on."""
        try:
            found = await self.queue.run(schedules.tick_due(self.talk))
        except MissingExtra as error:
            self._tick_again_at = math.inf  # it needs the extra `functions`
            words = "queue %s has schedules, and this process leaves their ticks to others: %s"
            telling.say(log, logging.WARNING, words, self.queue.name, error, fields={"queue": self.queue.name})
            return False
        self.ticked += found.put
        if found.late:
            first = sorted(found.late.items())[:5]
            told = ", ".join(f"{safe(name)} ({put} put late, {missed} missed)" for name, (put, missed) in first)
            late = counted(len(found.late), "schedule")
            self._say(logging.WARNING, "ticks of %s were more than a minute late: %s", late, told)
        for name in found.undeclared:
            self._say(logging.WARNING, "schedule %s is paused, because no code has declared it for an hour", safe(name))
        for name in sorted(found.stuck.keys() - self._stuck):
            why = safe(str(found.stuck[name]))
            self._say(logging.WARNING, "the ticks of schedule %s cannot be put here: %s", safe(name), why)
        self._stuck = set(found.stuck)
        if not found.moved:
            # another cleaner was quicker; or this one cannot, and looks again in case that somebody mends it
            self._tick_again_at = time.monotonic() + (STUCK if found.stuck else 0.005)
        return found.moved

    def _here(self, plan: Plan, asked: float, at_ms: int) -> float:
        """Give when to ask for tasks that are due at `at_ms`, by the monotonic clock; `asked`: when the plan was."""
        now = time.monotonic()
        # the ways of the reply and of the next call take as long as the shortest exchange: half of it is made up for
        self._trip = min(now - asked, self._trip * 1.05)
        return now + (at_ms - plan.now_ms) / 1000 - plan.micros / 1e6 - self._trip / 2

    async def _prune(self) -> None:
        more = True
        while more:
            call = self.talk.operations.prune(cursor=self._cursor)
            found = await self.queue.run(sending.answer(self.talk, call))
            self._cursor, self._converting, more = found.cursor, found.converting, found.more
        self._prune_at = time.monotonic() + PRUNE_EVERY

    def _say(self, level: int, message: str, *words: object) -> None:
        name = self.queue.name
        telling.say(log, level, f"queue %s: {message}", name, *words, fields={"queue": name})

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
                self._say(logging.DEBUG, "the alarm is not heard: %s", error)
                last = b""
                await asyncio.sleep(retry.pause(failures))
