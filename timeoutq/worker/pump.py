"""The pump of a worker: it claims, starts all exchanges with the queue, and drains.

At most two exchanges are under way side by side: so batches form by themselves under load, and the server works on one
exchange while handlers work on the tasks of the other. The way of a task: `_begin` claims it, `_receive` gives it to
the crew, the crew runs the handler and puts its end on the desk, and the next `_begin` sends the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from timeoutq.calls import Call
from timeoutq.cleaner import Cleaner
from timeoutq.errors import TimeoutqError
from timeoutq.heartbeat import Heartbeat
from timeoutq.model import Lease
from timeoutq.replies import Claimed
from timeoutq.worker.crews import Crew
from timeoutq.worker.desk import Desk
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.pace import Load
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import Stopping
from timeoutq.worker.suspects import CRASHES, Suspects

SIDE_BY_SIDE = 2
"""How many exchanges are under way at once, at most; each has a connection of its own."""


class Pump:
    """Claims and exchanges for one worker until it is stopped, or has nothing more to do."""

    def __init__(
        self,
        desk: Desk,
        crew: Crew,
        source: Source,
        suspects: Suspects,
        stopping: Stopping,
        heartbeat: Heartbeat,
        cleaner: Cleaner,
    ) -> None:
        self._queue, self._voice = desk.queue, desk.voice
        self._desk = desk
        self.crew = crew
        self.source = source
        self.suspects = suspects
        self._pace = source.pace
        self._stopping = stopping
        self._limits = stopping.limits
        self._heartbeat = heartbeat
        self._cleaner = cleaner
        self.exchanges = Exchanges(desk, source, stopping, cleaner, receive=self._receive)

    async def run(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        """Pump until the worker ends.

        `check` is called again and again, and raises what must end the worker; `stop` when `max_tasks` have run.
        """
        exchanges = self.exchanges
        try:
            await self._go_round(check, stop)
        except BaseException:
            exchanges.leaving = True
            self.give_back_unstarted()
            await exchanges.end_claims()
            raise
        finally:
            # tasks that the exchanges still bring are given back at the end
            await exchanges.end()
        if exchanges.broken is not None:
            raise exchanges.broken

    # ---- rounds

    async def _go_round(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        while True:
            check()
            if self.exchanges.broken is not None:
                raise self.exchanges.broken
            self._desk.woken.clear()
            self._heed_max_tasks(stop)
            if self._stopping.level:
                self.source.deafen()
                self._stopping.begin_drain()
                self.give_back_unstarted()
                if self.is_cut_off() or not (self._desk.running or self._unsent):
                    return
            self._desk.long_acks.go_on()
            self._start_suspect()
            if self._begin():
                await asyncio.sleep(0)  # lets the exchange take the ends that have gathered, and send them
                continue
            if self._limits.burst and self._has_nothing and await self._is_drained():
                self._desk.tally.end = "drained"
                return
            await self._rest()

    def _heed_max_tasks(self, stop: Callable[[], None]) -> None:
        most, runs = self._limits.max_tasks, self._desk.runs
        if most is not None and runs >= most and not self._stopping.level:
            what = "worker %s has run %d tasks, the most that it may"
            self._voice.say(logging.INFO, what, self._voice.worker, runs)
            self._desk.tally.end = "max_tasks"
            stop()
            self._stopping.by_itself = True

    async def _rest(self) -> None:
        if self.source.idle and not self._stopping.level:
            self.source.listen(self._next, self._receive, self.exchanges.miss)
        now = time.monotonic()
        drain_until = self._stopping.until if self._stopping.until > now else 0.0
        suspect_until = self.suspects.until if self.suspects.waiting is not None else 0.0
        until = [at for at in (drain_until, suspect_until) if at]
        timeout = max(0.0, min(until) - now) if until else None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._desk.woken.wait()

    # ---- claims go out, and come back

    def _begin(self) -> bool:
        """Start an exchange, if there is something to send and nothing against it; say whether it was started."""
        exchanges, under_way = self.exchanges, len(self.exchanges.under_way)
        if under_way >= SIDE_BY_SIDE or exchanges.waiting_out or (under_way and exchanges.failures):
            return False
        want = self._wanted()
        if not self._pace.is_worth(len(self._desk.ends) + exchanges.worth_asking, want, under_way):
            return False
        exchanges.begin(self.source.claim(want, self._heartbeat.peers) if want else None)
        return True

    def _wanted(self) -> int:
        desk, source = self._desk, self.source
        if self._stopping.level or source.idle or self.suspects.keeps_others_away(desk.held.keys()):
            return 0
        return self._room()

    def _next(self) -> Call[Claimed] | None:
        """Build the claim that waits behind the bell: of one task, so that a worker that hangs keeps no more."""
        if self._queue.talk.durable.replicas:
            return None  # replicas must confirm a claim, and `hear_bell` would not send it
        if self.suspects.keeps_others_away(self._desk.held.keys()) or not self._room():
            return None
        return self.source.claim(1, self._heartbeat.peers)

    def _room(self) -> int:
        desk, crew, source = self._desk, self.crew, self.source
        self._pace.ended(desk.tally.acked + desk.tally.failed, time.monotonic())
        left = None
        if self._limits.max_tasks is not None:
            left = self._limits.max_tasks - desk.runs - crew.taken - source.claiming
        load = Load(len(desk.running), crew.unstarted, source.claiming, len(desk.long_acks), left)
        want = self._pace.wanted(load, plenty=source.plenty)
        if self.exchanges.unconfirmed:
            # ends that wait show whether replicas confirm again; or else one task, which is given back if they do not
            want = min(want, 0 if desk.ends else 1)
        return want

    def _receive(self, leases: list[Lease]) -> None:
        self._cleaner.peers = self._heartbeat.peers
        if not leases:
            return
        self._desk.took(leases)
        if self._stopping.level or self.exchanges.leaving or self.suspects.waiting is not None:
            # the claim was under way before the stop, or before the suspect came
            self._desk.given_back(leases)
        elif leases[0].crashes >= CRASHES:
            self.suspects.waits(leases[0], self._queue.timeout, time.monotonic())
            self.source.idle = False
            self.source.deafen()
            self.give_back_unstarted()
        else:
            self.crew.take(leases)

    # ---- suspects

    def _start_suspect(self) -> None:
        suspect, desk = self.suspects.waiting, self._desk
        if suspect is None:
            return
        if time.monotonic() >= self.suspects.until:
            self._postpone(suspect)
        elif not (desk.running or self.crew.unstarted or self.source.claiming or desk.held.keys() - {suspect.fence}):
            self.suspects.begin()
            self.crew.take([suspect])

    def _postpone(self, suspect: Lease) -> None:
        """Give a suspect back, because handlers that do not end keep it from its turn."""
        delay = self.suspects.postpone(suspect)
        self._voice.say(
            logging.INFO, "worker %s: task %a must run alone, but %d handlers do not end: it is given back for %g s",
            self._voice.worker, suspect.task, len(self._desk.running), delay, lease=suspect,
        )  # fmt: skip
        self._desk.ends.postpone(suspect, round(delay * 1000))

    # ---- the end

    def give_back_unstarted(self) -> None:
        """Release the leases whose handlers have not begun; when the worker stops, a waiting suspect, too."""
        self._desk.given_back(self.crew.give_back())
        suspect = self.suspects.take_out() if self._stopping.level else None
        if suspect is not None:
            self._desk.given_back([suspect])

    @property
    def _unsent(self) -> bool:
        """Whether something that handlers have given is still to be sent, and the server takes it."""
        waits = bool(self._desk.ends or self.exchanges.under_way)
        return bool(self._desk.long_acks) or (self.exchanges.failures == 0 and waits)

    def is_cut_off(self) -> bool:
        """Say whether the drain must end now, whatever still runs or is not sent yet."""
        return self._stopping.is_over(gets_on=self._unsent and self._desk.long_acks.trouble is None)

    @property
    def _has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from the queue."""
        desk, under_way = self._desk, self.exchanges.under_way
        return self.source.idle and not (under_way or desk.held or desk.ends or desk.running)

    async def _is_drained(self) -> bool:
        try:
            return await self._queue.drained()
        except TimeoutqError as error:
            await self.exchanges.wait_out(error)
            return False
