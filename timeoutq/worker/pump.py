"""The pump of a worker: it goes round the lanes, has each claim and send what it can, runs suspects alone, and drains.

Two exchanges of a lane are under way side by side at most: so batches form by themselves under load, and the server
works on one exchange while handlers work on the tasks of the other. The way of a task: `Lane.begin` claims it,
`Lane.receive` gives it to the crew, the crew runs the handler and puts its end on the desk, and the next `Lane.begin`
sends the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.desk import Desk
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.lanes import Shared
from timeoutq.worker.sources import Source
from timeoutq.worker.voice import Voice


class Pump:
    """Claims and exchanges for one worker until it is stopped, or has nothing more to do."""

    def __init__(self, shared: Shared, voice: Voice) -> None:
        """Prepare; the lanes of the worker stand in `shared`."""
        self._shared = shared
        self._voice = voice
        self.lanes = shared.lanes
        self.crew, self.suspects, self.common = shared.crew, shared.suspects, shared.common
        self._stopping = shared.stopping
        self._limits = shared.stopping.limits
        self.woken = self._desk.woken
        self.turns = 0
        """How many rounds it has gone."""

    @property
    def _desk(self) -> Desk:
        return self.lanes[0].desk

    @property
    def sources(self) -> list[Source]:
        """The sources of all parts of all queues."""
        return [source for lane in self.lanes for source in lane.sources]

    @property
    def parts(self) -> list[Exchanges]:
        """The exchanges with all parts of all queues."""
        return [part for lane in self.lanes for part in lane.parts]

    @property
    def source(self) -> Source:
        """The source of the first part; a worker with one plain queue has no other."""
        return self.sources[0]

    @property
    def exchanges(self) -> Exchanges:
        """The exchanges with the first part; a worker with one plain queue has no other."""
        return self.parts[0]

    @property
    def is_away(self) -> bool:
        """Whether no server answers."""
        return all(lane.is_away for lane in self.lanes)

    async def run(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        """Pump until the worker ends.

        `check` is called again and again, and raises what must end the worker; `stop` when `max_tasks` have run.
        """
        try:
            await self._go_round(check, stop)
        except BaseException:
            self.common.leaving = True
            self.give_back_unstarted()
            await all_of(part.end_claims() for part in self.parts)
            raise
        finally:
            # tasks that the exchanges still bring are given back at the end
            await all_of(part.end() for part in self.parts)
        if self.common.broken is not None:
            raise self.common.broken

    def fail(self, reason: BaseException) -> None:
        """End the worker with this error; the first one counts."""
        self.common.broken = self.common.broken or reason
        self.woken.set()

    # ---- rounds

    async def _go_round(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        while True:
            check()
            if self.common.broken is not None:
                raise self.common.broken
            self.turns += 1
            self.woken.clear()
            self._heed_max_tasks(stop)
            if self._stopping.level:
                self._shared.deafen()
                self._stopping.begin_drain()
                self.give_back_unstarted()
                if self.is_cut_off() or not (self._shared.running or self._unsent):
                    return
            self._start_suspect()
            self._shared.make_room()
            begun = False
            for lane in self.lanes:
                begun = lane.begin() or begun
            if begun:
                await asyncio.sleep(0)  # lets the exchange take the ends that have gathered, and send them
                continue
            if self._limits.burst and self._has_nothing and await self._is_drained():
                self._desk.tally.end = "drained"
                return
            await self._rest()

    def _heed_max_tasks(self, stop: Callable[[], None]) -> None:
        most, runs = self._limits.max_tasks, self._shared.runs
        if most is not None and runs >= most and not self._stopping.level:
            what = "worker %s has run %d tasks, the most that it may"
            self._voice.say(logging.INFO, what, self._voice.worker, runs)
            self._desk.tally.end = "max_tasks"
            stop()
            self._stopping.by_itself = True

    async def _rest(self) -> None:
        if not self._stopping.level:
            for lane in self.lanes:
                lane.listen()
        now = time.monotonic()
        drain_until = self._stopping.until if self._stopping.until > now else 0.0
        suspect_until = self.suspects.until if self.suspects.waiting is not None else 0.0
        until = [at for at in (drain_until, suspect_until) if at]
        timeout = max(0.0, min(until) - now) if until else None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.woken.wait()

    # ---- suspects

    def _start_suspect(self) -> None:
        suspect, shared = self.suspects.waiting, self._shared
        if suspect is None:
            return
        if time.monotonic() >= self.suspects.until:
            self._postpone(suspect)
        elif not (shared.running or self.crew.unstarted or shared.claiming_now or self._holds_others(suspect)):
            self.suspects.begin()
            self.crew.take([suspect], self.suspects.lane)

    def _holds_others(self, suspect: Lease) -> bool:
        own = self.lanes[self.suspects.lane]
        return any(lane.desk.held.keys() - ({suspect.key} if lane is own else set()) for lane in self.lanes)

    def _postpone(self, suspect: Lease) -> None:
        """Give a suspect back, because handlers that do not end keep it from its turn."""
        delay, desk = self.suspects.postpone(suspect), self.lanes[self.suspects.lane].desk
        desk.voice.say(
            logging.INFO, "worker %s: task %a must run alone, but %d handlers do not end: it is given back for %g s",
            desk.voice.worker, suspect.task, self._shared.running, delay, lease=suspect,
        )  # fmt: skip
        desk.ends.postpone(suspect, round(delay * 1000))

    # ---- the end

    def give_back_unstarted(self) -> None:
        """Release the leases whose handlers have not begun; when the worker stops, a waiting suspect, too."""
        self._shared.give_back_unstarted()

    @property
    def _unsent(self) -> bool:
        """Whether something that handlers have given is still to be sent, and a server takes it."""
        return any(lane.unsent for lane in self.lanes)

    def is_cut_off(self) -> bool:
        """Say whether the drain must end now, whatever still runs or is not sent yet."""
        gets_on = self._unsent and not any(lane.desk.trouble for lane in self.lanes)
        return self._stopping.is_over(gets_on=gets_on)

    @property
    def _has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from any queue."""
        return all(lane.has_nothing for lane in self.lanes)

    async def _is_drained(self) -> bool:
        """Say whether all queues are drained.

        Several queues are asked one after another, and a task may bring work from one that is asked later to one that
        was asked before. So all of them are asked once more.
        """
        rounds = 1 if len(self.lanes) == 1 else 2
        for lane in self.lanes * rounds:
            if not lane.parts:
                continue  # nobody has made this queue yet
            queue = lane.desk.queue
            try:
                if not await queue.run(queue.division.drained()):
                    return False
            except TimeoutqError as error:
                await lane.parts[0].wait_out(error)
                return False
        return self._has_nothing


async def all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; a single one needs no asyncio task of its own."""
    some = list(coroutines)
    if len(some) == 1:
        await some[0]
    else:
        await asyncio.gather(*some)
