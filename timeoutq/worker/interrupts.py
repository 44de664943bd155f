"""Ends what does not end by itself: handlers that lost their lease or have no time left, and leases that nobody ends.

The heartbeat reports leases that were lost, two watches look for the rest, and the worker's end stops all handlers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from timeoutq.verbs import flows
from timeoutq.verbs.sending import Talk
from timeoutq.words.model import Answer, Lease
from timeoutq.worker import unending
from timeoutq.worker.crews import Crew
from timeoutq.worker.desk import Desk
from timeoutq.worker.runs import Run
from timeoutq.worker.suspects import Suspects

LOOKS = 3
"""A lease on which nothing works is given back when it was seen like this that many times."""
CLEANUP = 5.0
"""Seconds that a cancelled handler may clean up; then it is left behind, and another takes its place."""


class Living(Protocol):
    """What extends the leases."""

    @property
    def lives(self) -> bool:
        """Whether it goes on."""
        ...

    def told_of_end(self) -> str:
        """Say what has ended it."""
        ...


class Interrupts:
    """Whatever ends handlers and leases of one queue of a worker from outside."""

    def __init__(self, desk: Desk, crew: Crew, suspects: Suspects) -> None:
        self._queue, self._voice, self._runtime = desk.queue, desk.voice, desk.rules.runtime
        self._desk = desk
        self._crew = crew
        self._suspects = suspects
        self._loop = asyncio.get_running_loop()

    # ---- lost leases

    def lose_soon(self, refused: list[tuple[Lease, Answer]]) -> None:
        """Have the event loop end what works on these leases; another thread may call this."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._lose, refused)

    def _lose(self, refused: list[tuple[Lease, Answer]]) -> None:
        for lease, answer in refused:
            run = self._desk.running.get(lease.key)
            if answer is Answer.CANCELLED:
                self._stop_cancelled(lease, run)
            elif run is not None:
                self.cancel(run, "max_runtime" if answer is Answer.MAX_RUNTIME else "lost")
            elif self._take_out(lease):
                self._desk.lost(lease)

    def _take_out(self, lease: Lease) -> bool:
        """Take a lease out whose handler has not begun, or whose ack waits for something; say whether it was there."""
        if self._suspects.take_out(lease.key, self._desk.lane) is not None:
            self._desk.wake()
            return True
        return self._desk.followers.take_out(lease) or self._crew.take_out(lease, self._desk.lane)

    # ---- cancelled tasks

    async def heed_cancels(self, talk: Talk) -> None:
        """Stop the handlers of those tasks that were cancelled in the part of the queue with which `talk` is."""
        talk_of = self._queue.division.talk_of
        held = [lease for lease in list(self._desk.held.values()) if talk_of(lease) is talk]
        if held:
            self._lose([(one, Answer.CANCELLED) for one in await self._queue.run(flows.cancelled(talk, held))])

    def _stop_cancelled(self, lease: Lease, run: Run | None) -> None:
        if run is None:  # no handler has begun; or the handler has ended already, and the end of the lease counts
            if self._take_out(lease):
                self._desk.given_back([lease])
                self._desk.wake()
        elif not run.end:
            if not run.cancelled:
                thread = "" if run.task is not None else "; it runs in a thread, and is waited for"
                self._voice.say(
                    logging.INFO, "queue %s: task %a was cancelled, and its handler is to stop%s", self._voice.queue,
                    lease.task, thread, lease=lease,
                )  # fmt: skip
            run.cancelled = True
            if run.task is not None:
                self.cancel(run, "cancelled")

    # ---- handlers

    def cancel(self, run: Run, why: str) -> None:
        """Stop a handler: lost, max_runtime, cancelled, or shutdown."""
        if run.end:
            return
        run.end = why
        if run.task is not None:
            run.task.cancel(why)
            if why == "max_runtime":
                # the lease runs out soon: before that, the task fails with the reason
                margin = self._runtime.margin_ms / 2000 if run.limit is None else min(CLEANUP, self._queue.timeout / 3)
                self._loop.call_later(margin, self._fail_unended, run)
            if why != "shutdown":
                self._loop.call_later(CLEANUP, self._leave_behind, run)
            return
        # a thread cannot be stopped: its result will not be acked, and another thread takes its place
        if why == "max_runtime":
            self._voice.say(
                logging.WARNING, "queue %s: task %a is over its max_runtime; its thread still runs and may go on "
                "beside the next attempt", self._voice.queue, run.lease.task, lease=run.lease,
            )  # fmt: skip
            self._desk.spans.add(time.monotonic() - run.began)
        self._desk.abandon(run)
        self._crew.replace(run)
        self._desk.wake()

    def _fail_unended(self, run: Run) -> None:
        if self._desk.running.get(run.lease.key) is run and not run.settled:
            run.settled = True
            more = ", and the handler does not end though it was cancelled"
            self._desk.failed(run.lease, self._runtime.error(more, run.limit))
            self._desk.wake()

    def _leave_behind(self, run: Run) -> None:
        """Leave a handler behind that does not end though it was cancelled; another one takes its place."""
        task = run.task
        if self._desk.running.get(run.lease.key) is not run or task is None or task.done() or self._crew.closing:
            return
        self._voice.say(
            logging.WARNING,
            "queue %s: the handler of task %a does not end though it was cancelled %g s ago (%s): it is left behind",
            self._voice.queue, run.lease.task, CLEANUP, run.end, lease=run.lease,
        )  # fmt: skip
        self._desk.spans.add(time.monotonic() - run.began)
        run.left = True
        self._desk.abandon(run)
        unending.leave(task)
        self._crew.replace(run)
        self._desk.wake()

    # ---- watches

    async def watch_runtime(self) -> None:
        """Stop handlers a little before the scripts would take their tasks back, so that these fail with the reason."""
        margin_ms = self._runtime.margin_ms
        while True:
            await asyncio.sleep(min(0.1, self._runtime.ms / 20_000))
            for run in list(self._desk.running.values()):
                if self._runtime.over_ms(run.lease) >= -margin_ms:
                    self.cancel(run, "max_runtime")

    async def watch_held(self, heartbeat: Living, broken: Callable[[str], None]) -> None:
        """Give back leases that are held, but that nothing works on and nothing will end: a bug in this room.

        Calls `broken` with the reason if the heartbeat has ended: all leases would run out, again and again.
        """
        looks: dict[int, int] = {}
        while True:
            await asyncio.sleep(min(5.0, max(0.1, self._queue.timeout / 3)))
            if not heartbeat.lives:
                broken(heartbeat.told_of_end())
                return
            looks = {key: looks.get(key, 0) + 1 for key in self._unattended()}
            for key in [key for key, times in looks.items() if times >= LOOKS]:
                self._give_back(self._desk.held[key])

    def _unattended(self) -> set[int]:
        left = self._desk.unattended
        if self._suspects.waiting is not None and self._suspects.lane == self._desk.lane:
            left.discard(self._suspects.waiting.key)
        if left:
            left -= self._crew.queued(self._desk.lane)
        return left

    def _give_back(self, lease: Lease) -> None:
        self._voice.say(
            logging.WARNING, "queue %s: task %a is held, but no handler works on it: it is given back",
            self._voice.queue, lease.task, lease=lease,
        )  # fmt: skip
        self._desk.running.pop(lease.key, None)
        self._crew.forget()
        self._desk.given_back([lease])
        self._desk.wake()
