"""Sends acks that are too long for one exchange: one at a time, until they are sent or the drain is over.

The worker has one lane. Side by side, many long acks would share a slow link, and each would be so slow that its link
counts as broken. What the server has taken of an ack is not sent again. Meanwhile the heartbeat extends the leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass

from timeoutq import flows, sending
from timeoutq.calls import BYTES, Call
from timeoutq.client import AsyncQueue
from timeoutq.errors import InvalidInput, LeaseLost, TimeoutqError
from timeoutq.model import Answer, Lease, Outcome
from timeoutq.worker.ends import AckOfFound
from timeoutq.worker.voice import Voice

CALLS = 16
"""The most calls that are sent at once; they have a mebibyte of payloads at most, unless one alone has more."""
LONGEST_PAUSE = 3.0
"""Seconds between two attempts, at most."""
ENDING = 2.0
"""Seconds that the lane may take to end when it is cancelled."""

Over = Callable[[Lease, Answer | Exception], None]
"""Hears how an ack ended: with its answer, or with the error that another attempt would not mend."""


@dataclass(slots=True)
class _LongAck:
    ack: AckOfFound
    calls: tuple[deque[Call[Outcome]], Call[Outcome]] | None = None
    """The puts that go before the ack and were not answered yet, and the ack; None until the ack's turn has come."""


class LongAcks:
    """A lane of long acks."""

    def __init__(self, queue: AsyncQueue, voice: Voice, over: Over, wake: Callable[[], None]) -> None:
        """Prepare; `over` is called for each ack that has ended, `wake` when an attempt has failed."""
        self._queue = queue
        self._voice = voice
        self._over = over
        self._wake = wake
        self._waiting: deque[_LongAck] = deque()
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._closed = False
        self.trouble: TimeoutqError | None = None
        """Why the last attempt failed; None when it did not."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def fences(self) -> set[int]:
        """The fences of the leases whose ack is not sent yet."""
        return {one.ack.lease.fence for one in self._waiting}

    def add(self, ack: AckOfFound) -> None:
        """Have an ack sent after those that wait already."""
        if not self._closed:
            self._waiting.append(_LongAck(ack))
            self._start()

    async def wait(self, seconds: float) -> None:
        """Wait until all are sent, so many seconds at most."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)

    async def close(self) -> list[Lease]:
        """End the lane; give the leases whose ack is not sent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=ENDING)
        left = [one.ack.lease for one in self._waiting]
        self._waiting.clear()
        return left

    def _start(self) -> None:
        if self._task is None and self._waiting and not self._closed:
            loop = asyncio.get_running_loop()
            # not in the context of the handler that came first: the lane is for all
            self._task = loop.create_task(self._go(), name=f"long-acks-{self._queue.name}", context=self._context)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() and not self._closed:
            self._voice.say(
                logging.WARNING, "worker %s: its long acks were cancelled by somebody else, and are started "
                "again; does a handler cancel tasks that it did not start?", self._voice.worker,
            )  # fmt: skip
        self._start()

    async def _go(self) -> None:
        tries = 0
        while self._waiting:
            one = self._waiting[0]
            end: Answer | Exception
            try:
                end = await self._send(one)
            except (LeaseLost, InvalidInput) as error:  # InvalidInput: somebody has changed a payload meanwhile
                end = error
            except TimeoutqError as error:
                tries += 1
                self._tell_trouble(one.ack.lease, error)
                await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.1 * 2**tries)))  # noqa: S311  # jitter
                continue
            except Exception as error:
                end = error
            tries, self.trouble = 0, None
            self._waiting.popleft()
            self._over(one.ack.lease, end)

    async def _send(self, one: _LongAck) -> Answer:
        talk = self._queue.talk
        if one.calls is None:
            one.calls = one.ack.calls(self._queue.operations, talk.nonce)
        before, ack = one.calls
        while before:
            part = _first(before)
            for result in await self._queue.run(sending.settle(talk, part)):
                if isinstance(result, TimeoutqError):
                    raise result
                before.popleft()
            self.trouble = None
        return await self._queue.run(flows.end_one(talk, one.ack.lease, [ack]))

    def _tell_trouble(self, lease: Lease, error: TimeoutqError) -> None:
        if self.trouble is None:
            self._voice.say(
                logging.WARNING, "queue %s: the ack of task %a, with all that it found, is not sent yet and is "
                "tried again: %s", self._voice.queue, lease.task, error, lease=lease, error=error,
            )  # fmt: skip
        self.trouble = error
        self._wake()


def _first(calls: deque[Call[Outcome]]) -> list[Call[Outcome]]:
    part: list[Call[Outcome]] = []
    weight = 0
    for call in calls:
        weight += call.weight
        if part and (weight > BYTES or len(part) == CALLS):
            break
        part.append(call)
    return part
