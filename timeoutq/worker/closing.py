"""The end of a worker: it stops what runs, sends the last ends, and gives back what it still holds.

What starts first stops last: handlers, then the parts, then the lane of long acks, then the last exchange, then the
heartbeat, which extends leases until all of them have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass

from timeoutq import unending
from timeoutq.deadlines import SLOWEST
from timeoutq.errors import TimeoutqError
from timeoutq.heartbeat import Heartbeat
from timeoutq.machine import Machine
from timeoutq.model import Lease
from timeoutq.worker import interrupts
from timeoutq.worker.desk import Desk
from timeoutq.worker.ends import Errand
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.parts import Parts
from timeoutq.worker.pump import Pump
from timeoutq.worker.stopping import DRAIN, GO_ON, Stopping

LAST_WORDS = 1.0
"""Seconds that handlers may take to end when the worker ends."""
ENDING = 2.0
"""Seconds that cancelled parts and idle consumers may take to end."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Ends the work of one worker."""

    desk: Desk
    pump: Pump
    parts: Parts
    interrupts: Interrupts
    heartbeat: Heartbeat
    stopping: Stopping
    machine: Machine

    async def close(self) -> None:
        """End everything; a server that does not answer is not waited for."""
        desk, stopping, deadline = self.desk, self.stopping, self.desk.queue.talk.deadline
        early = stopping.level == GO_ON
        cut_off = not early and self.pump.is_cut_off()
        self._tell_cut_off()
        stopping.level = max(stopping.level, DRAIN)
        self.pump.crew.closing = self.parts.closing = True
        self.pump.give_back_unstarted()
        await self._end_handlers()
        consumers = self.pump.crew.cancel()
        bell = set[asyncio.Task[None]]() if self.pump.source.bell is None else {self.pump.source.bell}
        for task in bell:
            task.cancel()
        await asyncio.wait(consumers | bell | self.parts.cancel(), timeout=ENDING)
        await desk.end_losses()
        await self._end_long_acks(deadline if early else 0.0)
        if cut_off:
            self._give_back_heavy()
        desk.given_back(
            run.lease
            for run in desk.running.values()
            if run.end != "lost" and not run.settled and run.lease.fence in desk.held
        )
        self.pump.crew.close()
        await self._send_last()
        await self.machine.call(self.heartbeat.stop)
        await self._leave_unending(consumers)

    def _tell_cut_off(self) -> None:
        why = self.stopping.why()
        told: list[tuple[Lease, str]] = []
        for run in list(self.desk.running.values()):
            if not run.end:
                thread = "" if run.task is not None else "; its thread goes on until the process ends"
                told.append((run.lease, f"is cut off: {why}{thread}"))
        self.desk.voice.name_tasks(told, why)

    async def _end_handlers(self) -> None:
        running = self.desk.running
        for run in list(running.values()):
            self.interrupts.cancel(run, "shutdown")
        if any(run.task is not None for run in running.values()):
            # handlers may clean up after themselves, but not for long
            until = time.monotonic() + LAST_WORDS
            while running and time.monotonic() < until:
                self.desk.woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await self.desk.woken.wait()

    async def _end_long_acks(self, seconds: float) -> None:
        """End the long acks, after `seconds` at most; give the leases back whose acks are not confirmed."""
        long_acks = self.desk.long_acks
        if seconds and long_acks:
            await long_acks.wait(seconds)
        trouble = long_acks.trouble
        left = await long_acks.close()
        self.desk.given_back(left)
        self._tell_unsent(left, trouble)

    def _give_back_heavy(self) -> None:
        """Give back the tasks whose acks need more time on a slow link than is left for the last exchange."""
        room = SLOWEST * self.desk.queue.talk.deadline / 2
        left: list[Lease] = []
        keep: list[Errand] = []
        ends = self.desk.ends
        for errand in sorted(ends.errands, key=lambda errand: errand.call.weight):
            room -= errand.call.weight
            if errand.verb == "ack" and room < 0:
                left += errand.leases
            else:
                keep.append(errand)
        ends.errands = keep
        self.desk.given_back(left)
        self._tell_unsent(left, None)

    def _tell_unsent(self, leases: list[Lease], trouble: TimeoutqError | None) -> None:
        why = self.stopping.why() + (f", and the last attempt failed: {trouble}" if trouble is not None else "")
        self.desk.voice.tell_unconfirmed(leases, why)

    async def _send_last(self) -> None:
        """Send the last ends, and give back what is to be given back, for a little longer than one call may take."""
        seconds = self.desk.queue.talk.deadline + 1
        exchanges, ends = self.pump.exchanges, self.desk.ends
        why = "the server does not answer"
        try:
            async with asyncio.timeout(seconds):
                while ends or exchanges.worth_asking:
                    await exchanges.make()
                    if exchanges.failures:
                        break
        except TimeoutqError as error:
            why = str(error)
        except TimeoutError:
            why = f"they were not sent within {seconds:g} s"
        left = list(ends.leases)
        if left and exchanges.unconfirmed:
            self.desk.voice.say(
                logging.WARNING, "worker %s has ended %d leases, and a failover now may undo this: %s",
                self.desk.voice.worker, len(left), exchanges.unconfirmed, error=exchanges.unconfirmed,
            )  # fmt: skip
            return
        if left:
            self.desk.voice.say(
                logging.WARNING, "worker %s could not end %d leases: %s; each runs out, and its task runs again",
                self.desk.voice.worker, len(left), why, error=why,
            )  # fmt: skip
        words = f"runs again when its lease has run out, though its handler is done: its ack is not sent, because {why}"
        self.desk.voice.name_tasks([(lease, words) for lease in ends.unsent_acks], why)

    async def _leave_unending(self, consumers: set[asyncio.Task[None]]) -> None:
        """Leave handlers behind that do not end though they were cancelled: asyncio would wait for them without end."""
        runs = {run.task: run.lease for run in self.desk.running.values() if run.task is not None}
        left = {task for task in (*consumers, *runs) if not task.done()}
        if left:
            _, left = await asyncio.wait(left, timeout=interrupts.CLEANUP)
        for task in left:
            unending.leave(task)
            if task in runs:
                self.desk.voice.say(
                    logging.WARNING, "queue %s: the handler of task %a does not end though it was cancelled",
                    self.desk.voice.queue, runs[task].task, lease=runs[task],
                )  # fmt: skip
