"""One queue of a worker, as a handler sees it that `Serves`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timeoutq.client import AsyncDriver
from timeoutq.verbs import sending
from timeoutq.verbs.sending import Flow
from timeoutq.words.arguments import How
from timeoutq.words.errors import TimeoutqError, Unavailable
from timeoutq.words.model import Lease, Task
from timeoutq.worker.decisions import Life
from timeoutq.worker.leases import Leases
from timeoutq.worker.runs import Run

AGAIN_EVERY, AGAIN_SOON = 60.0, 1.0
"""Seconds after which a queue is told again which functions there are: if the server has heard, and if it has not."""


class Place:
    """A queue of a worker, for a handler that `Serves`."""

    def __init__(
        self,
        leases: Leases,
        state: Any,
        queues: Sequence[AsyncDriver],
        cancel: Callable[[Run], None],
        leave: Callable[[], bool],
        shared: dict[Any, Any],
        life: Life,
    ) -> None:
        """Prepare; `cancel` ends a handler whose time is over, `leave` has another process take this one's place."""
        self.name = leases.queue.name
        self.queue: Any = leases.queue  # the worker's client of the queue, an `AsyncQueue` or `AsyncShardedQueue`
        self.state = state  # what the lifespan yielded in this process; None without a lifespan
        self._leases = leases
        self._queues = {queue.name: queue for queue in queues}
        self._cancel, self._leave, self._life = cancel, leave, life
        self.shared = shared  # what the queues of this worker share, by whatever the handler chooses
        self.functions: Mapping[str, tuple[str, str]] = {}
        self.records = leases.records
        self._schedules: Callable[[], Flow[None]] | None = None
        self.closes: list[Callable[[], object]] = []  # called when the worker has ended all work

    async def put(self, queue: str, task: Task, call_id: bytes | None) -> bool:
        """Put a task to another queue of this worker, once for each `call_id`; false if there is no such queue."""
        found: Any = self.find(queue)
        if found is not None:
            await found.run(found.flows.put_as((task,), How(call_id=call_id)))
        return found is not None

    def find(self, queue: str) -> Any:
        """Give another queue of this worker, by its name; None if the worker has no queue of this name."""
        return self._queues.get(queue)

    def wait(self, lease: Lease) -> None:
        """Note that what this lease's handler is to run has not begun: the task is given back if the worker stops."""
        self._leases.running[lease.key].waits = True
        if self._leases.ledger is not None:
            self._leases.ledger.wait(lease)

    def begin(self, lease: Lease) -> None:
        """Note that it begins now. Raises `CancelledError` if the worker is to stop."""
        run, ledger = self._leases.running[lease.key], self._leases.ledger
        run.waits = False
        if self._life.level:
            run.end = run.end or "shutdown"
            raise asyncio.CancelledError(run.end)
        if ledger is not None:
            ledger.start(lease)

    def limit(self, lease: Lease, seconds: float) -> Callable[[], bool]:
        """Have the handler of this lease cancelled after so many seconds, as by `max_runtime` of the worker.

        Call the result when the handler has ended: it says whether the time was over by then.
        """
        leases, key = self._leases, lease.key
        run, until, is_over = leases.running[key], time.monotonic() + seconds, False

        def end() -> None:
            nonlocal is_over
            is_over = True
            if leases.running.get(key) is run:
                self._cancel(run)

        run.limit, run.stop, leases.over_at[key] = seconds, end, until
        timer = asyncio.get_running_loop().call_later(seconds, end)

        def off() -> bool:
            timer.cancel()
            leases.over_at.pop(key, None)
            return is_over or time.monotonic() >= until

        return off

    def now(self, lease: Lease) -> float:
        """Give the most that the clock of the server of this lease may show now, Unix seconds."""
        clock = self._leases.queue.division.talk_of(lease).clock
        return max(clock.latest_ms, self._leases.runtime.claimed_ms(lease)) / 1000

    def over(self, seconds: float, more: str = "") -> TimeoutError:
        """Write the error of a task whose time is over."""
        return self._leases.runtime.error(more, seconds)

    def hangs(self, words: str) -> None:
        """Say that a thread hangs. If a supervisor puts another process here, this one only finishes what it runs."""
        cure = "another process takes the place of this one, which finishes its other calls"
        self._leases.log.of_queue(
            logging.WARNING, "%s; %s", words, cure if self._leave() else "another thread takes its place"
        )

    def pause(self, seconds: float) -> None:
        """Have the worker claim nothing from this queue for so many seconds."""
        self._leases.paused_until = max(self._leases.paused_until, time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds, self._leases.wake)

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running. Any thread may ask."""
        return self._leases.is_cancelled(lease)

    def at_end(self, close: Callable[[], object]) -> None:
        """Have this called when the worker has ended all work."""
        self.closes.append(close)

    def publish(self, functions: Mapping[str, tuple[str, str]]) -> None:
        """Have the queue told of the functions here: of each the digest and the JSON of its parameters."""
        self.functions = functions

    def declare(self, schedules: Callable[[], Flow[None]] | None) -> None:
        """Have schedules declared in the queue by this, at the start and again each minute; None: there are none."""
        self._schedules = schedules

    async def tell(self) -> None:
        """Tell each shard of the queue which functions there are here, and declare their schedules, again and again."""
        queue, leases = self._leases.queue, self._leases
        while True:
            pause = AGAIN_EVERY
            for talk in queue.division.talks:
                try:
                    for call in talk.operations.publish(queue.worker, self.functions):
                        await queue.run(sending.answer(talk, call))
                except TimeoutqError:  # the exchanges with this server log its trouble
                    pause = AGAIN_SOON
            if self._schedules is not None:
                try:
                    await queue.run(self._schedules())
                except Unavailable:  # the same
                    pause = AGAIN_SOON
                except TimeoutqError as error:
                    leases.log.of_queue(logging.WARNING, "schedules cannot be declared: %s", error)
            await asyncio.sleep(pause)
