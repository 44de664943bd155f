"""The pump of a worker: it goes round the queues, has each claim and send, runs suspects alone, and drains."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from timeoutq.words.errors import TimeoutqError, UnsafeServer
from timeoutq.words.model import Lease
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.health import Phase, Signs
from timeoutq.worker.queue_work import Shared
from timeoutq.worker.worker_log import WorkerLog


class Pump:
    """Claims and exchanges for one worker until it is stopped, or has nothing more to do."""

    def __init__(self, shared: Shared, worker_log: WorkerLog) -> None:
        self.shared = shared
        self._log = worker_log
        self.works = shared.works
        self.crew, self.suspects, self.life = shared.crew, shared.suspects, shared.life
        self._first = self.works[0].leases
        self.woken = self._first.woken
        self.turns = 0  # how many rounds it has gone
        self._seen, self._turned = 0, 0.0
        """How many rounds the health check has seen, and when the number has last changed."""

    @property
    def shards(self) -> list[Exchanges]:
        """The exchanges with all shards of all queues."""
        return [shard for work in self.works for shard in work.shards]

    @property
    def is_away(self) -> bool:
        """Whether no server answers."""
        return all(work.is_away for work in self.works)

    def signs(self, now: float, lease: float) -> Signs:
        """Give the signs of health; `now` is the monotonic clock, `lease` the length of the shortest lease."""
        if self.turns != self._seen or not self._turned:
            self._seen, self._turned = self.turns, now
        turned, answered = self._turned, 0.0
        for work in self.works:
            if work.beat is not None:
                heard = work.beat.answered
                answered = max(answered, heard)
                # an exchange that has not ended since then hangs, though its server answers
                turned = min([turned, *(one.stuck_since for one in work.shards if 0 < one.stuck_since < heard - lease)])
        phase = Phase.DRAINING if self.life.level else Phase.WORKING
        return Signs(phase, lease, now, turned, answered, self.is_away, self.shared.running)

    async def run(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        """Pump until the worker ends; `check` raises what ends it, `stop` is called when `max_tasks` have run."""
        try:
            await self._go_round(check, stop)
        except BaseException:
            self.life.leaving = True
            self.shared.give_back_unstarted()
            await all_of(shard.end_claims() for shard in self.shards)
            raise
        finally:
            # tasks that the exchanges still bring are given back at the end
            await all_of(shard.end() for shard in self.shards)
        if self.life.broken is not None:
            raise self.life.broken

    def fail(self, reason: BaseException) -> None:
        """End the worker with this error; the first one counts."""
        self.life.broken = self.life.broken or reason
        self.woken.set()

    # ---- rounds

    async def _go_round(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        while True:
            check()
            if self.life.broken is not None:
                raise self.life.broken
            self.turns += 1
            self.woken.clear()
            self._heed_max_tasks(stop)
            if self.life.level:
                self.shared.deafen()
                self.life.begin_drain()
                self.shared.give_back_unstarted()
                if self.is_cut_off() or not (self.shared.running or self._unsent):
                    return
            self._start_suspect()
            begun = False
            for work in self.works:
                begun = work.begin() or begun
            if begun:
                await asyncio.sleep(0)  # lets the exchange take the ends that have gathered, and send them
                continue
            if self.life.burst and self._has_nothing and await self._is_drained():
                self._first.tally.end = "drained"
                return
            await self._rest()

    def _heed_max_tasks(self, stop: Callable[[], None]) -> None:
        most, runs = self.life.max_tasks, self.shared.runs
        if most is not None and runs >= most and not self.life.level:
            self._log.of_worker(logging.INFO, "has run %d tasks, the most that it may", runs)
            self._first.tally.end = "max_tasks"
            stop()
            self.life.by_itself = True

    async def _rest(self) -> None:
        if not self.life.level:
            for work in self.works:
                work.listen()
        now = time.monotonic()
        drain_until = self.life.until if self.life.until > now else 0.0
        suspect_until = self.suspects.until if self.suspects.waiting is not None else 0.0
        until = [at for at in (drain_until, suspect_until) if at]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(until) - now) if until else None):
                await self.woken.wait()

    # ---- suspects

    def _start_suspect(self) -> None:
        suspect, shared = self.suspects.waiting, self.shared
        if suspect is None:
            return
        claiming_now = sum(one.claiming_now for one in shared.claims)
        if time.monotonic() >= self.suspects.until:
            self._postpone(suspect)
        elif not (shared.running or self.crew.unstarted or claiming_now or self._holds_others(suspect)):
            self.suspects.begin()
            self.crew.take([suspect], self.suspects.number)

    def _holds_others(self, suspect: Lease) -> bool:
        own = self.works[self.suspects.number]
        return any(work.leases.held.keys() - ({suspect.key} if work is own else set()) for work in self.works)

    def _postpone(self, suspect: Lease) -> None:
        """Give a suspect back, because handlers that do not end keep it from its turn."""
        delay, leases = self.suspects.postpone(suspect), self.works[self.suspects.number].leases
        leases.log.say(
            logging.INFO, "worker %s: task %a must run alone, but %d handlers do not end: it is given back for %g s",
            leases.log.worker, suspect.task, self.shared.running, delay, lease=suspect,
        )  # fmt: skip
        leases.ends_of(suspect).postpone(suspect, round(delay * 1000))

    # ---- the end

    @property
    def _unsent(self) -> bool:
        """Whether something that handlers have given is still to be sent, and a server takes it."""
        return any(work.unsent for work in self.works)

    def is_cut_off(self) -> bool:
        """Say whether the drain must end now, whatever still runs or is not sent yet."""
        return self.life.is_over(gets_on=self._unsent)

    @property
    def _has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from any queue."""
        return all(work.has_nothing for work in self.works)

    async def _is_drained(self) -> bool:
        """Say whether all queues are drained."""
        # a task may bring work from a queue that is asked later to one that was asked before: ask all once more
        rounds = 1 if len(self.works) == 1 else 2
        for work in self.works * rounds:
            if not work.shards:
                continue  # nobody has made this queue yet
            queue = work.leases.queue
            try:
                if not await queue.run(queue.division.drained()):
                    return False
                is_gone = work.leases.tally.claimed and not await queue.run(queue.flows.exists())
            except TimeoutqError as error:
                await work.shards[0].wait_out(error)
                return False
            if is_gone:
                raise UnsafeServer(
                    f"queue {queue.name} had tasks, and is not at {queue.url} any more: it was purged, or the server "
                    "has lost its data (timeoutq doctor says under durability what a restart loses)"
                )
        return self._has_nothing


async def all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; a single one needs no asyncio task of its own."""
    some = list(coroutines)
    if len(some) == 1:
        await some[0]
    else:
        await asyncio.gather(*some)
