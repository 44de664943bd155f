"""The end of a worker: it stops what runs, sends the last ends, and gives back the leases that are left."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass

from timeoutq.client.heartbeat import Heartbeat
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker import interrupts
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.leases import Leases
from timeoutq.worker.pump import Pump, all_of
from timeoutq.worker.queue_work import QueueWork
from timeoutq.worker.state import DRAIN, Life

LAST_WORDS = 1.0  # seconds that handlers may take to end when the worker ends
ENDING = 2.0  # seconds that the cancelled asyncio tasks of the worker may take to end


@dataclass(frozen=True, slots=True)
class Closing:
    """Ends the work of one worker."""

    pump: Pump
    heartbeat: Heartbeat
    heart_is_over: asyncio.Event
    life: Life

    async def close(self) -> None:
        """End everything; a server that does not answer is not waited for."""
        works, life, crew = self.pump.works, self.life, self.pump.crew
        for work in works:
            self._tell_cut_off(work.leases)
        life.level, life.leaving = max(life.level, DRAIN), True
        crew.closing = True
        self.pump.shared.give_back_unstarted()
        await self._end_handlers()
        consumers = crew.cancel()
        bells = {one.bell for one in self.pump.shared.claims if one.bell is not None}
        for task in bells:
            task.cancel()
        await asyncio.wait(consumers.union(bells, *(work.background.cancel() for work in works)), timeout=ENDING)
        await all_of(self._end_leases(work.leases) for work in works)
        crew.close()
        await all_of(self._send_last(work) for work in works)
        await self._end_heartbeat()
        await self._leave_unending(consumers)

    async def _end_heartbeat(self) -> None:
        self.heartbeat.end()
        if self.heartbeat.lives:  # a thread that could not be started has no end
            with suppress(TimeoutError):
                async with asyncio.timeout(self.heartbeat.patience):
                    await self.heart_is_over.wait()

    async def _end_leases(self, leases: Leases) -> None:
        await leases.end_losses()
        leases.given_back(
            run.lease
            for run in leases.running.values()
            if run.end != "lost" and not run.settled and run.lease.key in leases.held
        )

    def _tell_cut_off(self, leases: Leases) -> None:
        why = self.life.why()
        told: list[tuple[Lease, str]] = []
        for run in list(leases.running.values()):
            if not run.end:
                thread = "" if run.task is not None else "; its thread goes on until the process ends"
                told.append((run.lease, f"is cut off: {why}{thread}"))
        leases.log.name_tasks(told, why)

    async def _end_handlers(self) -> None:
        works, woken = self.pump.works, self.pump.woken
        for work in works:
            for run in list(work.leases.running.values()):
                work.interrupts.cancel(run, "shutdown")
        if any(run.task is not None for work in works for run in work.leases.running.values()):
            # handlers may clean up after themselves, but not for long
            until = time.monotonic() + LAST_WORDS
            while any(work.leases.running for work in works) and time.monotonic() < until:
                woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await woken.wait()

    async def _send_last(self, work: QueueWork) -> None:
        """Send the last ends, and give back the rest, for a little longer than one call may take."""
        leases = work.leases
        seconds = leases.queue.talk.deadline + 1
        why, shards = "", list(work.shards)
        try:
            async with asyncio.timeout(seconds):
                # an ack goes when the puts for other shards are there, which the round before has sent
                while rest := [shard for shard in shards if shard.has_more]:
                    for shard, trouble in zip(rest, await asyncio.gather(*map(_send_rest, rest)), strict=True):
                        if trouble:
                            why = trouble
                            shards.remove(shard)
        except TimeoutError:
            why = f"they were not sent within {seconds:g} s"
        left, unconfirmed = leases.ending, work.unconfirmed
        if left and unconfirmed:
            words = "has ended %d leases, and a failover now may undo this: %s"
            leases.log.of_worker(logging.WARNING, words, len(left), unconfirmed, error=unconfirmed)
            return
        if left:
            words = "could not end %d leases: %s; each runs out, and its task runs again"
            leases.log.of_worker(logging.WARNING, words, len(left), why, error=why)
        words = f"runs again when its lease has run out, though its handler is done: its ack is not sent, because {why}"
        acks = {lease.key: lease for ends in leases.shards for lease in ends.unsent_acks}
        leases.log.name_tasks([(lease, words) for lease in acks.values()], why)

    async def _leave_unending(self, consumers: set[asyncio.Task[None]]) -> None:
        """Leave handlers behind that do not end though they were cancelled: asyncio would wait for them without end."""
        runs = {
            run.task: (work.leases.log, run.lease)
            for work in self.pump.works
            for run in work.leases.running.values()
            if run.task is not None
        }
        left = {task for task in (*consumers, *runs) if not task.done()}
        if left:
            _, left = await asyncio.wait(left, timeout=interrupts.CLEANUP)
        for task in left:
            interrupts.leave(task)
            if task in runs:
                worker_log, lease = runs[task]
                words = "the handler of task %a does not end though it was cancelled"
                worker_log.of_queue(logging.WARNING, words, lease.task, lease=lease)


async def _send_rest(shard: Exchanges) -> str:
    """Send all that is left for one shard of the queue; say why that was not possible."""
    try:
        while shard.has_more:
            await shard.make()
            if shard.failures:
                return shard.trouble
    except TimeoutqError as error:
        return str(error)
    return ""
