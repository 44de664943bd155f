"""The pump of a worker: it goes round the queues, has each claim and send, runs suspects alone, drains, and closes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from timeoutq.client.heartbeat import Heartbeat
from timeoutq.words.errors import TimeoutqError, UnsafeServer
from timeoutq.worker import interrupts
from timeoutq.worker.crews import Crew
from timeoutq.worker.decisions import DRAIN, Life, Strict
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.health import Phase, Signs
from timeoutq.worker.leases import Leases
from timeoutq.worker.queue_work import QueueWork, Shared
from timeoutq.worker.worker_log import WorkerLog

LAST_WORDS = 1.0  # seconds that handlers may take to end when the worker ends
ENDING = 2.0  # seconds that the cancelled asyncio tasks of the worker may take to end


class Pump(Shared):
    """Claims and exchanges for one worker until it is stopped, or has nothing more to do."""

    def __init__(
        self, concurrency: int, crew: Crew, sharing: Strict, life: Life, woken: asyncio.Event, worker_log: WorkerLog
    ) -> None:
        super().__init__(concurrency, crew, sharing, life)
        self.woken, self._log = woken, worker_log
        self._turned = time.monotonic()  # when it has last begun a round

    @property
    def is_away(self) -> bool:
        """Whether no server answers."""
        return all(work.is_away for work in self.works)

    def signs(self, now: float, lease: float) -> Signs:
        """Give the signs of health; `now` is the monotonic clock, `lease` the length of the shortest lease."""
        turned, answered = self._turned, 0.0
        for work in self.works:
            heard = work.beat.answered
            answered = max(answered, heard)
            stuck = [shard.began for shard in work.shards if shard.under_way and not shard.waiting_out]
            # an exchange that has not ended since then hangs, though its server answers
            turned = min([turned, *(began for began in stuck if began < heard - lease)])
        phase = Phase.DRAINING if self.life.level else Phase.WORKING
        return Signs(phase, lease, now, turned, answered, self.is_away, self.running)

    async def run(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        """Pump until the worker ends; `check` raises what ends it, `stop` is called when `max_tasks` have run."""
        try:
            await self._go_round(check, stop)
        except BaseException:
            self.life.leaving = True
            self.give_back_unstarted()
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

    async def _go_round(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        while True:
            check()
            if self.life.broken is not None:
                raise self.life.broken
            self._turned = time.monotonic()
            self.woken.clear()
            self._heed_max_tasks(stop)
            if self.life.level:
                self.deafen()
                self.life.begin_drain()
                self.give_back_unstarted()
                unsent = any(work.unsent for work in self.works)
                if self.life.is_over(gets_on=unsent) or not (self.running or unsent):
                    return
            self._start_suspect()
            if sum(work.begin() for work in self.works):
                await asyncio.sleep(0)  # lets the exchange take the ends that have gathered, and send them
                continue
            if self.life.burst and self._has_nothing and await self._is_drained():
                self.works[0].leases.tally.end = "drained"
                return
            await self._rest()

    def _heed_max_tasks(self, stop: Callable[[], None]) -> None:
        most, runs = self.life.max_tasks, self.runs
        if most is not None and runs >= most and not self.life.level:
            self._log.of_worker(logging.INFO, "has run %d tasks, the most that it may", runs)
            self.works[0].leases.tally.end = "max_tasks"
            stop()
            self.life.by_itself = True

    async def _rest(self) -> None:
        if not self.life.level:
            for work in self.works:
                work.listen()
        now = time.monotonic()
        until = [self.life.until] if self.life.until > now else []
        if self.suspects.waiting is not None:
            until.append(self.suspects.until)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(until) - now) if until else None):
                await self.woken.wait()

    def _start_suspect(self) -> None:
        suspect = self.suspects.waiting
        if suspect is None:
            return
        claiming_now = sum(shard.claims.claiming_now for shard in self.shards)
        held = sum(len(work.leases.held) for work in self.works)
        if time.monotonic() >= self.suspects.until:  # handlers that do not end keep it from its turn
            delay, leases = self.suspects.postpone(suspect), self.works[self.suspects.number].leases
            leases.log.of_worker(
                logging.INFO, "must run task %a alone, but %d handlers do not end: it is given back for %g s",
                suspect.task, self.running, delay, lease=suspect,
            )  # fmt: skip
            leases.ends_of(suspect).postpone(suspect, round(delay * 1000))
        elif not (self.running or claiming_now or held > 1):
            self.suspects.begin()
            self.crew.take([suspect], self.suspects.number)

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


# ---- the end of a worker


async def close(pump: Pump, heartbeat: Heartbeat, heart_is_over: asyncio.Event) -> None:
    """End a worker: stop what runs, send the last ends, and give back the rest; no silent server is waited for."""
    works, life, crew = pump.works, pump.life, pump.crew
    for work in works:
        _tell_cut_off(work.leases, life.why())
    life.level, life.leaving = max(life.level, DRAIN), True
    crew.closing = True
    pump.give_back_unstarted()
    await _end_handlers(pump)
    consumers = crew.close()
    others = {shard.claims.bell for shard in pump.shards if shard.claims.bell is not None}
    others |= {task for work in works for task in work.tasks.values()}
    for task in others:
        task.cancel()
    await asyncio.wait(consumers | others, timeout=ENDING)
    await all_of(_end_leases(work.leases) for work in works)
    await all_of(_send_last(work) for work in works)
    heartbeat.end()
    if heartbeat.lives:  # a thread that could not be started has no end
        with suppress(TimeoutError):
            async with asyncio.timeout(heartbeat.patience):
                await heart_is_over.wait()
    await _leave_unending(pump, consumers)


def _tell_cut_off(leases: Leases, why: str) -> None:
    cut = [run for run in list(leases.running.values()) if not run.end]
    words = {False: f"is cut off: {why}", True: f"is cut off: {why}; its thread goes on until the process ends"}
    leases.log.name_tasks([(run.lease, words[run.task is None]) for run in cut], why)


async def _end_handlers(pump: Pump) -> None:
    for work in pump.works:
        for run in list(work.leases.running.values()):
            work.interrupts.cancel(run, "shutdown")
    if any(run.task is not None for work in pump.works for run in work.leases.running.values()):
        # handlers may clean up after themselves, but not for long
        until = time.monotonic() + LAST_WORDS
        while pump.running and time.monotonic() < until:
            pump.woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await pump.woken.wait()


async def _end_leases(leases: Leases) -> None:
    await leases.end_losses()
    leases.given_back(
        run.lease
        for run in leases.running.values()
        if run.end != "lost" and not run.settled and run.lease.key in leases.held
    )


async def _send_last(work: QueueWork) -> None:
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
    acks = {lease.key: lease for ends in leases.shards for lease in ends.leases("ack")}
    leases.log.name_tasks([(lease, words) for lease in acks.values()], why)


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


async def _leave_unending(pump: Pump, consumers: set[asyncio.Task[None]]) -> None:
    """Leave handlers behind that do not end though they were cancelled: asyncio would wait for them without end."""
    runs = {
        run.task: (work.leases.log, run.lease)
        for work in pump.works
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


async def all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; a single one needs no asyncio task of its own."""
    some = list(coroutines)
    if len(some) == 1:
        await some[0]
    else:
        await asyncio.gather(*some)
