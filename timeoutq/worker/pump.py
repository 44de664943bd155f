"""The pump of a worker: it claims, starts all exchanges with the queue, and drains.

At most two exchanges are under way side by side: so batches form by themselves under load, and the server works on one
exchange while handlers work on the tasks of the other. The way of a task: `_begin` claims it, `_receive` gives it to
the crew, the crew runs the handler and puts its end on the desk, and the next `_begin` sends the end.

If the queue has several parts, an exchange is with one of them, and the parts take turns. A part whose server does not
answer keeps no other part waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from timeoutq.calls import Call
from timeoutq.cleaner import Cleaner
from timeoutq.errors import TimeoutqError
from timeoutq.heartbeat import Heartbeat
from timeoutq.model import Lease
from timeoutq.replies import Claimed
from timeoutq.worker.crews import Crew
from timeoutq.worker.desk import Desk
from timeoutq.worker.exchanges import LATE, Common, Exchanges
from timeoutq.worker.pace import Load
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import Stopping
from timeoutq.worker.suspects import CRASHES, Suspects

SIDE_BY_SIDE = 2
"""How many exchanges are under way at once, at most; each has a connection of its own. Late ones do not count."""


class Pump:
    """Claims and exchanges for one worker until it is stopped, or has nothing more to do."""

    def __init__(
        self,
        desk: Desk,
        crew: Crew,
        parts: Sequence[tuple[Source, Cleaner]],
        suspects: Suspects,
        stopping: Stopping,
        heartbeat: Heartbeat,
    ) -> None:
        """Prepare; `parts` has a source and a cleaner for each part of the queue."""
        self._queue, self._voice = desk.queue, desk.voice
        self._desk = desk
        self.crew = crew
        self.suspects = suspects
        self._stopping = stopping
        self._limits = stopping.limits
        self._heartbeat = heartbeat
        self.common = Common()
        self.sources = [source for source, _ in parts]
        self._pace = self.source.pace
        self.parts = [
            Exchanges(desk, source, stopping, cleaner, partial(self._receive, source, cleaner), self.common)
            for source, cleaner in parts
        ]
        self._turn = 0
        """Which part has the next turn."""
        self.fed_at = time.monotonic()
        """When a claim has last brought something."""

    @property
    def source(self) -> Source:
        """The source of the first part; a plain queue has no other."""
        return self.sources[0]

    @property
    def exchanges(self) -> Exchanges:
        """The exchanges with the first part; a plain queue has no other."""
        return self.parts[0]

    @property
    def is_away(self) -> bool:
        """Whether no server answers."""
        return all(part.away for part in self.parts)

    @property
    def unconfirmed(self) -> str:
        """Why replicas do not confirm what the worker does; empty while they do."""
        return next((part.unconfirmed for part in self.parts if part.unconfirmed), "")

    @property
    def starves(self) -> bool:
        """Whether no part of the queue has tasks for this worker, as far as it knows."""
        return not self.suspects.keeps_others_away(self._desk.held.keys()) and all(s.idle for s in self.sources)

    async def run(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        """Pump until the worker ends.

        `check` is called again and again, and raises what must end the worker; `stop` when `max_tasks` have run.
        """
        try:
            await self._go_round(check, stop)
        except BaseException:
            self.common.leaving = True
            self.give_back_unstarted()
            await _all(part.end_claims() for part in self.parts)
            raise
        finally:
            # tasks that the exchanges still bring are given back at the end
            await _all(part.end() for part in self.parts)
        if self.common.broken is not None:
            raise self.common.broken

    # ---- rounds

    async def _go_round(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        while True:
            check()
            if self.common.broken is not None:
                raise self.common.broken
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
        if not self._stopping.level:
            for part in self.parts:
                if part.source.idle and part.source.tended:
                    part.source.listen(partial(self._next, part), part.receive, part.miss)
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
        """Start exchanges, if there is something to send and nothing against it; say whether one was started."""
        self._desk.deal()
        many = len(self.parts)
        if many == 1:
            return self._begin_with(self.exchanges)
        begun, turn = False, self._turn
        busy = sum(part.keeps_busy for part in self.parts)
        for at in range(turn, turn + many):
            part = self.parts[at % many]
            if part.source.idle and not part.has_more:
                continue
            if busy - part.keeps_busy >= SIDE_BY_SIDE and not part.ends.presses:
                continue
            if self._begin_with(part):
                begun, busy, self._turn = True, busy + 1, (at + 1) % many
        return begun

    def _begin_with(self, part: Exchanges) -> bool:
        under_way = len(part.under_way)
        if under_way >= SIDE_BY_SIDE or part.waiting_out or (under_way and part.failures):
            return False
        want = self._wanted(part)
        if not self._pace.is_worth(len(part.ends) + part.worth_asking, want, under_way):
            return False
        peers = self._queue.division.sharing(self._heartbeat.peers)
        part.begin(part.source.claim(want, peers) if want else None)
        if len(self.parts) > 1:
            asyncio.get_running_loop().call_later(LATE, self._desk.wake)
        return True

    def _wanted(self, part: Exchanges) -> int:
        desk, source = self._desk, part.source
        if self._stopping.level or source.idle or self.suspects.keeps_others_away(desk.held.keys()):
            return 0
        return self._room(part)

    def _next(self, part: Exchanges) -> Call[Claimed] | None:
        """Build the claim that waits behind the bell: of one task, so that a worker that hangs keeps no more."""
        if len(self.parts) > 1:
            return None  # a claim behind the bell of each part would take handlers from each other
        if part.source.talk.durable.replicas:
            return None  # replicas must confirm a claim, and `hear_bell` would not send it
        if self.suspects.keeps_others_away(self._desk.held.keys()) or not self._room(part):
            return None
        return part.source.claim(1, self._heartbeat.peers)

    def _room(self, part: Exchanges) -> int:
        desk, crew, source = self._desk, self.crew, part.source
        self._pace.ended(desk.tally.acked + desk.tally.failed, time.monotonic())
        left, claiming = None, self._claiming(part)
        if self._limits.max_tasks is not None:
            left = self._limits.max_tasks - desk.runs - crew.taken - self.claiming
        load = Load(len(desk.running), crew.unstarted, claiming, len(desk.long_acks), left)
        want = self._pace.wanted(load, plenty=source.plenty)
        if part.unconfirmed:
            # ends that wait show whether replicas confirm again; or else one task, which is given back if they do not
            want = min(want, 0 if part.ends else 1)
        return want

    @property
    def claiming(self) -> int:
        """How many tasks may come from all claims that are under way."""
        return sum(source.claiming for source in self.sources)

    @property
    def _claiming_now(self) -> int:
        return sum(source.claiming_now for source in self.sources)

    def _claiming(self, part: Exchanges) -> int:
        """Give how many tasks may soon come from claims: those from other parts that are late keep no handler free."""
        return sum(other.source.claiming for other in self.parts if other is part or not other.is_late)

    def _receive(self, source: Source, cleaner: Cleaner, leases: list[Lease]) -> None:
        cleaner.peers = self._queue.division.sharing(self._heartbeat.peers)
        if not leases:
            return
        self.fed_at = time.monotonic()
        self._desk.took(leases)
        if self._stopping.level or self.common.leaving or self.suspects.waiting is not None:
            # the claim was under way before the stop, or before the suspect came
            self._desk.given_back(leases)
        elif leases[0].crashes >= CRASHES:
            self.suspects.waits(leases[0], self._queue.timeout, time.monotonic())
            source.idle = False
            source.deafen()
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
        elif not (desk.running or self.crew.unstarted or self._claiming_now or desk.held.keys() - {suspect.key}):
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
        self._desk.deal()
        waits = any(part.failures == 0 and (part.ends or part.under_way) for part in self.parts)
        return bool(self._desk.long_acks) or waits

    def is_cut_off(self) -> bool:
        """Say whether the drain must end now, whatever still runs or is not sent yet."""
        return self._stopping.is_over(gets_on=self._unsent and self._desk.long_acks.trouble is None)

    @property
    def _has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from the queue."""
        desk = self._desk
        if desk.held or desk.running or desk.ends:
            return False
        return all(part.source.idle and not (part.under_way or part.ends) for part in self.parts)

    async def _is_drained(self) -> bool:
        try:
            return await self._queue.run(self._queue.division.drained())
        except TimeoutqError as error:
            await self.exchanges.wait_out(error)
            return False


async def _all(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    first, *others = endings
    if others:
        await asyncio.gather(first, *others)
    else:
        await first
