"""The end of a worker: it stops what runs, sends the last ends, and gives back what it still holds.

What starts first stops last: handlers, then the parts, then the acks that wait, then the last exchange, then the
heartbeat, which extends leases until all of them have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from timeoutq.server.deadlines import SLOWEST
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker import interrupts, unending
from timeoutq.worker.desk import Desk
from timeoutq.worker.ends import Errand
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.lanes import Lane
from timeoutq.worker.machine import Machine
from timeoutq.worker.pump import Pump, all_of
from timeoutq.worker.stopping import DRAIN, GO_ON, Stopping

LAST_WORDS = 1.0
"""Seconds that handlers may take to end when the worker ends."""
ENDING = 2.0
"""Seconds that cancelled parts and idle consumers may take to end."""


class Beat(Protocol):
    """What extends the leases until all have ended."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Closing:
    """Ends the work of one worker."""

    pump: Pump
    heartbeat: Beat
    stopping: Stopping
    machine: Machine

    async def close(self) -> None:
        """End everything; a server that does not answer is not waited for."""
        lanes, stopping, crew = self.pump.lanes, self.stopping, self.pump.crew
        early = stopping.level == GO_ON
        cut_off = not early and self.pump.is_cut_off()
        for lane in lanes:
            self._tell_cut_off(lane.desk)
        stopping.level = max(stopping.level, DRAIN)
        crew.closing = True
        self.pump.give_back_unstarted()
        await self._end_handlers()
        consumers = crew.cancel()
        bells = {source.bell for source in self.pump.sources if source.bell is not None}
        for task in bells:
            task.cancel()
        await asyncio.wait(consumers.union(bells, *(lane.beside.cancel() for lane in lanes)), timeout=ENDING)
        await all_of(self._end_desk(lane.desk, early=early, cut_off=cut_off) for lane in lanes)
        crew.close()
        await all_of(self._send_last(lane) for lane in lanes)
        await self.machine.call(self.heartbeat.stop)
        await self._leave_unending(consumers)

    async def _end_desk(self, desk: Desk, *, early: bool, cut_off: bool) -> None:
        """Have all leases of a desk end, and let go of acks that wait."""
        await desk.end_losses()
        await self._end_waiting_acks(desk, desk.queue.talk.deadline if early else 0.0)
        if cut_off:
            self._give_back_heavy(desk)
        desk.given_back(
            run.lease
            for run in desk.running.values()
            if run.end != "lost" and not run.settled and run.lease.key in desk.held
        )

    def _tell_cut_off(self, desk: Desk) -> None:
        why = self.stopping.why()
        told: list[tuple[Lease, str]] = []
        for run in list(desk.running.values()):
            if not run.end:
                thread = "" if run.task is not None else "; its thread goes on until the process ends"
                told.append((run.lease, f"is cut off: {why}{thread}"))
        desk.voice.name_tasks(told, why)

    async def _end_handlers(self) -> None:
        lanes, woken = self.pump.lanes, self.pump.woken
        for lane in lanes:
            for run in list(lane.desk.running.values()):
                lane.interrupts.cancel(run, "shutdown")
        if any(run.task is not None for lane in lanes for run in lane.desk.running.values()):
            # handlers may clean up after themselves, but not for long
            until = time.monotonic() + LAST_WORDS
            while any(lane.desk.running for lane in lanes) and time.monotonic() < until:
                woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await woken.wait()

    async def _end_waiting_acks(self, desk: Desk, seconds: float) -> None:
        """End the acks that wait, after `seconds` at most; give the leases back whose acks are not confirmed."""
        if seconds:
            await desk.followers.wait(seconds)
        trouble = desk.followers.trouble
        left = await desk.followers.close()
        desk.given_back(left)
        self._tell_unsent(desk, left, trouble)

    def _give_back_heavy(self, desk: Desk) -> None:
        """Give back the tasks whose acks need more time on a slow link than is left for the last exchange."""
        desk.deal()
        left: list[Lease] = []
        for ends in desk.parts:
            ends.bundle()
            room = SLOWEST * desk.queue.talk.deadline / 2
            keep: list[Errand] = []
            for errand in sorted(ends.errands, key=lambda errand: errand.call.weight):
                room -= errand.call.weight
                if errand.verb in ("ack", "put") and room < 0:
                    left += errand.void()
                else:
                    keep.append(errand)
            ends.errands = keep
        desk.given_back(left)
        self._tell_unsent(desk, left, None)

    def _tell_unsent(self, desk: Desk, leases: list[Lease], trouble: TimeoutqError | None) -> None:
        why = self.stopping.why() + (f", and the last attempt failed: {trouble}" if trouble is not None else "")
        desk.voice.tell_unconfirmed(leases, why)

    async def _send_last(self, lane: Lane) -> None:
        """Send the last ends, and give back what is to be given back, for a little longer than one call may take."""
        desk = lane.desk
        seconds = desk.queue.talk.deadline + 1
        why, parts = "", list(lane.parts)
        try:
            async with asyncio.timeout(seconds):
                desk.deal()
                while rest := [part for part in parts if part.has_more]:
                    for part, trouble in zip(rest, await asyncio.gather(*map(_send_rest, rest)), strict=True):
                        if trouble:
                            why = trouble
                            parts.remove(part)
                    desk.deal()  # what was found for one part is there now, and its ack goes to another
        except TimeoutError:
            why = f"they were not sent within {seconds:g} s"
        left, unconfirmed = desk.ending, lane.unconfirmed
        if left and unconfirmed:
            desk.voice.say(
                logging.WARNING, "worker %s has ended %d leases, and a failover now may undo this: %s",
                desk.voice.worker, len(left), unconfirmed, error=unconfirmed,
            )  # fmt: skip
            return
        if left:
            desk.voice.say(
                logging.WARNING, "worker %s could not end %d leases: %s; each runs out, and its task runs again",
                desk.voice.worker, len(left), why, error=why,
            )  # fmt: skip
        words = f"runs again when its lease has run out, though its handler is done: its ack is not sent, because {why}"
        acks = {lease.key: lease for ends in desk.parts for lease in ends.unsent_acks}
        desk.voice.name_tasks([(lease, words) for lease in acks.values()], why)

    async def _leave_unending(self, consumers: set[asyncio.Task[None]]) -> None:
        """Leave handlers behind that do not end though they were cancelled: asyncio would wait for them without end."""
        runs = {
            run.task: (lane.desk.voice, run.lease)
            for lane in self.pump.lanes
            for run in lane.desk.running.values()
            if run.task is not None
        }
        left = {task for task in (*consumers, *runs) if not task.done()}
        if left:
            _, left = await asyncio.wait(left, timeout=interrupts.CLEANUP)
        for task in left:
            unending.leave(task)
            if task in runs:
                voice, lease = runs[task]
                voice.say(
                    logging.WARNING, "queue %s: the handler of task %a does not end though it was cancelled",
                    voice.queue, lease.task, lease=lease,
                )  # fmt: skip


async def _send_rest(part: Exchanges) -> str:
    """Send all that is left for one part of the queue; say why that was not possible."""
    try:
        while part.has_more:
            await part.make()
            if part.failures:
                return "the server does not answer"
    except TimeoutqError as error:
        return str(error)
    return ""
