"""Ends handlers that lost their lease or have no time left."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from timeoutq.verbs import flows
from timeoutq.verbs.sending import Talk
from timeoutq.words.model import Answer, Lease
from timeoutq.worker.crews import Crew
from timeoutq.worker.decisions import Suspects
from timeoutq.worker.leases import Leases
from timeoutq.worker.runs import Run

CLEANUP = 5.0  # seconds that a cancelled handler may clean up; then it is left behind, and another takes its place

_left: set[asyncio.Task[Any]] = set()
"""Asyncio tasks that were left behind. They are kept: one that is collected runs once more, with GeneratorExit."""


def leave(task: asyncio.Task[Any]) -> None:
    """Leave an asyncio task behind that does not end though it was cancelled: `asyncio.run` would wait for it."""
    if not task.done():
        _left.add(task)
        task.add_done_callback(_left.discard)
        task.add_done_callback(lambda over: over.cancelled() or over.exception())  # nobody else asks for the error
        asyncio._unregister_task(task)


class Interrupts:
    """Whatever ends handlers and leases of one queue of a worker from outside."""

    def __init__(self, leases: Leases, crew: Crew, suspects: Suspects) -> None:
        self._leases, self._crew, self._suspects = leases, crew, suspects
        self._queue, self._log, self._runtime = leases.queue, leases.log, leases.runtime
        self._loop = asyncio.get_running_loop()

    def lose_soon(self, refused: list[tuple[Lease, Answer]]) -> None:
        """Have the event loop end the work on these leases; another thread may call this."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._lose, refused)

    def _lose(self, refused: list[tuple[Lease, Answer]]) -> None:
        for lease, answer in refused:
            run = self._leases.running.get(lease.key)
            if answer is Answer.CANCELLED and run is not None:
                self._stop_cancelled(run)
            elif run is not None:
                self.cancel(run, self._over(run) if answer is Answer.MAX_RUNTIME else "lost")
            elif self._take_out(lease):
                if answer is Answer.CANCELLED:
                    self._leases.given_back([lease])
                else:
                    self._leases.lost(lease)
                self._leases.wake()

    def _take_out(self, lease: Lease) -> bool:
        """Take a lease out whose handler has not begun; say whether it was there."""
        number, waiting = self._leases.number, self._suspects.waiting
        if waiting is not None and (lease.key, number) == (waiting.key, self._suspects.number):
            return self._suspects.take_out() is not None
        return self._crew.take_out(lease, number)

    async def heed_cancels(self, talk: Talk) -> None:
        """Stop the handlers of those tasks that were cancelled in the shard with which `talk` is."""
        talk_of = self._queue.division.talk_of
        held = [lease for lease in list(self._leases.held.values()) if talk_of(lease) is talk]
        if held:
            self._lose([(one, Answer.CANCELLED) for one in await self._queue.run(flows.cancelled(talk, held))])

    def _stop_cancelled(self, run: Run) -> None:
        if run.end:
            return
        if not run.cancelled:
            thread = "" if run.task is not None else "; it runs in a thread, and is waited for"
            self._log.of_task(logging.INFO, run.lease, "was cancelled, and its handler is to stop%s", thread)
        run.cancelled = True
        if run.task is not None:
            self.cancel(run, "cancelled")

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
            words = "is over its max_runtime; its thread still runs and may go on beside the next attempt"
            self._log.of_task(logging.WARNING, run.lease, words)
            self._leases.spans.add(time.monotonic() - run.began)
        self._replace(run)

    def _replace(self, run: Run) -> None:
        self._leases.abandon(run)
        self._crew.replace(run)
        self._leases.wake()

    def _fail_unended(self, run: Run) -> None:
        if self._leases.running.get(run.lease.key) is run and not run.settled:
            run.settled = True
            more = ", and the handler does not end though it was cancelled"
            self._leases.failed(run.lease, self._runtime.error(more, run.limit))
            self._leases.wake()

    def _leave_behind(self, run: Run) -> None:
        """Leave a handler behind that does not end though it was cancelled; another one takes its place."""
        task = run.task
        if self._leases.running.get(run.lease.key) is not run or task is None or task.done() or self._crew.closing:
            return
        self._log.of_queue(
            logging.WARNING, "the handler of task %a does not end though it was cancelled %g s ago (%s): it is left "
            "behind", run.lease.task, CLEANUP, run.end, lease=run.lease,
        )  # fmt: skip
        self._leases.spans.add(time.monotonic() - run.began)
        run.left = True
        leave(task)
        self._replace(run)

    async def watch_runtime(self) -> None:
        """Stop handlers a little before the scripts would take their tasks back, so that these fail with the reason."""
        while True:
            await asyncio.sleep(min(0.1, self._runtime.ms / 20_000))
            for run in list(self._leases.running.values()):
                if self._runtime.over_ms(run.lease) >= -self._runtime.margin_ms:
                    self.cancel(run, self._over(run))

    def _over(self, run: Run) -> str:
        # a handler that has returned has not failed: its lease runs out
        return "lost" if run.returned else "max_runtime"
