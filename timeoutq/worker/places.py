"""One queue of a worker, as a handler sees it that is an object and `Serves`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timeoutq.client import AsyncDriver
from timeoutq.verbs import sending
from timeoutq.verbs.sending import Flow
from timeoutq.words import telling
from timeoutq.words.arguments import How
from timeoutq.words.errors import TimeoutqError, Unavailable
from timeoutq.words.model import Lease, Task
from timeoutq.worker.desk import Desk
from timeoutq.worker.interrupts import Interrupts

log = logging.getLogger(__name__)

AGAIN_EVERY, AGAIN_SOON = 60.0, 1.0
"""Seconds after which a queue is told again which functions there are: if the server has heard, and if it has not."""


class Place:
    """Where the tasks of one queue are run."""

    def __init__(
        self,
        desk: Desk,
        state: Any,
        queues: Sequence[AsyncDriver],
        interrupts: Callable[[], Interrupts],
        wear_out: Callable[[], None],
    ) -> None:
        """Prepare; `state` is what the lifespan yielded, `queues` are those of the worker.

        `interrupts` gives what ends handlers of this queue, `wear_out` drains the worker.
        """
        self.name = desk.queue.name
        self.queue: Any = desk.queue
        self.state = state
        self._desk = desk
        self._queues = {queue.name: queue for queue in queues}
        self._interrupts = interrupts
        self._wear_out = wear_out

    async def put(self, queue: str, task: Task, call_id: bytes | None) -> bool:
        """Put a task to another queue of this worker; false if the worker has no queue of this name.

        A put that is made again under the same `call_id` adds nothing.
        """
        found: Any = self._queues.get(queue)
        if found is None:
            return False
        await found.run(found.flows.put_as((task,), How(call_id=call_id)))
        return True

    def find(self, queue: str) -> Any:
        """Give another queue of this worker, by its name; None if the worker has no queue of this name."""
        return self._queues.get(queue)

    def limit(self, lease: Lease, seconds: float) -> Callable[[], bool]:
        """Have the handler of this lease cancelled after so many seconds, as by `max_runtime` of the worker.

        Call the function that this gives when the handler has ended: it says whether the time was over by then.
        """
        desk, key = self._desk, lease.key
        run, until, is_over = desk.running[key], time.monotonic() + seconds, False

        def end() -> None:
            nonlocal is_over
            is_over = True
            if desk.running.get(key) is run:
                self._interrupts().cancel(run, "max_runtime")

        run.limit, run.stop, desk.over_at[key] = seconds, end, until
        timer = asyncio.get_running_loop().call_later(seconds, end)

        def off() -> bool:
            timer.cancel()
            desk.over_at.pop(key, None)
            return is_over or time.monotonic() >= until

        return off

    def over(self, seconds: float, more: str = "") -> TimeoutError:
        """Write the error of a task whose time is over."""
        return self._desk.rules.runtime.error(more, seconds)

    def hangs(self, words: str, is_worn_out: bool) -> None:
        """Say that a thread hangs. A worker process that is worn out, and has a supervisor, drains and is replaced."""
        voice, is_replaced = self._desk.voice, is_worn_out and self._desk.ledger is not None
        voice.say(
            logging.WARNING, "queue %s: %s; %s", self.name, words,
            "this process drains, and another takes its place" if is_replaced else "another thread takes its place",
        )  # fmt: skip
        if is_replaced:
            self._wear_out()

    def publish(self, functions: Mapping[str, tuple[str, str]]) -> None:
        """Have the queue told which functions there are here: of each the digest and the JSON of what it takes."""
        self._desk.functions = functions

    def declare(self, schedules: Callable[[], Flow[None]] | None) -> None:
        """Have schedules declared in the queue by this, at the start and again each minute; None: there are none."""
        self._desk.schedules = schedules

    def pause(self, seconds: float) -> None:
        """Have the worker claim nothing from this queue for so many seconds."""
        self._desk.paused_until = max(self._desk.paused_until, time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds, self._desk.wake)

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running. Any thread may ask."""
        run = self._desk.running.get(lease.key)
        return run is not None and run.cancelled and run.lease is lease

    def at_end(self, close: Callable[[], object]) -> None:
        """Have this called when the worker has ended all work."""
        self._desk.at_end.append(close)


async def tell_functions(desk: Desk) -> None:
    """Tell each part of a queue which functions there are here, and declare their schedules, again and again."""
    while True:
        pause = AGAIN_EVERY
        for talk in desk.queue.division.talks:
            try:
                for call in talk.operations.publish(desk.queue.worker, desk.functions):
                    await desk.queue.run(sending.answer(talk, call))
            except TimeoutqError:  # the exchanges with this server log its trouble
                pause = AGAIN_SOON
        if desk.schedules is not None and not await _declare(desk, desk.schedules):
            pause = AGAIN_SOON
        await asyncio.sleep(pause)


async def _declare(desk: Desk, schedules: Callable[[], Flow[None]]) -> bool:
    try:
        await desk.queue.run(schedules())
    except Unavailable:  # likewise
        return False
    except TimeoutqError as error:
        telling.say(log, logging.WARNING, "queue %s: schedules cannot be declared: %s", desk.queue.name, error)
    return True
