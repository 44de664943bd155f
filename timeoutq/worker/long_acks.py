"""Sends large acks.

An ack is large when its handler found more than 499 tasks, or more than 1 MiB of payloads: then one call cannot carry
it. Large acks are sent one after the other, until all are sent or the worker's drain is over. Meanwhile the heartbeat
extends the leases. Each worker has one `LongAcks`: if many large acks were sent at the same time over a slow network,
each would be so slow that its connection would count as broken.

Calls that were answered are not sent again, except those behind a call that failed in the same flush; the server then
repeats its answer. The server knows the calls of the last minute only: when the answer to an ack is lost, and the
server cannot be reached for longer than that, the ack is answered as lost, though the server took it the first time.
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
from timeoutq.client import AsyncDriver
from timeoutq.errors import InvalidInput, LeaseLost, TimeoutqError
from timeoutq.model import Answer, Lease, Outcome
from timeoutq.sending import Talk
from timeoutq.worker.ends import AckOfFound
from timeoutq.worker.voice import Voice

LONGEST_PAUSE = 3.0
"""Seconds between two attempts, at most."""
ENDING = 2.0
"""close() waits this many seconds for the cancelled task to end."""

Over = Callable[[Lease, Answer | Exception], None]
"""Called when an ack is finished: with the server's answer, or with an error that a retry would not cure."""


@dataclass(slots=True)
class _LongAck:
    ack: AckOfFound
    calls: tuple[deque[tuple[Talk, Call[Outcome]]], Call[Outcome]] | None = None
    """The calls that put tasks and must be answered before the ack is sent, each with where it goes; and the ack.

    None until this ack is the first in the queue.
    """


class LongAcks:
    """The large acks of a worker, and the asyncio task that sends them."""

    def __init__(
        self,
        queue: AsyncDriver,
        voice: Voice,
        over: Over,
        wake: Callable[[], None],
        on_cancelled: Callable[[str], None],
    ) -> None:
        """Prepare. `over` is called once for each finished ack, `wake` after each failed attempt."""
        self._on_cancelled = on_cancelled
        self._queue = queue
        self._voice = voice
        self._over = over
        self._wake = wake
        self._waiting: deque[_LongAck] = deque()
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._closed = False
        self.trouble: TimeoutqError | None = None
        """The error of the last attempt; None after anything was sent successfully."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def keys(self) -> set[int]:
        """The keys of the leases whose ack is not sent yet."""
        return {one.ack.lease.key for one in self._waiting}

    def add(self, ack: AckOfFound) -> bool:
        """Have an ack sent after those that wait already; False after close(): then the ack is not taken."""
        if not self._closed:
            self._waiting.append(_LongAck(ack))
            self._start()
        return not self._closed

    async def wait(self, seconds: float) -> None:
        """Wait until the sending task ends, at most `seconds`."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)

    async def close(self) -> list[Lease]:
        """Stop sending, and return the leases whose acks were not confirmed."""
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
            # Run in the context of the worker. Otherwise the task would inherit the context of the first handler.
            self._task = loop.create_task(self._send_all(), name=f"long-acks-{self._queue.name}", context=self._context)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            self._on_cancelled("sending of large acks")
            return
        if (error := task.exception()) is not None:
            self._voice.say(
                logging.ERROR, "worker %s: the asyncio task that sends large acks failed. The worker starts it again",
                self._voice.worker, exc_info=error,
            )  # fmt: skip
        self._start()

    async def _send_all(self) -> None:
        tries = 0
        while self._waiting:
            one = self._waiting[0]
            outcome: Answer | Exception
            try:
                outcome = await self._send_one(one)
            except Exception as error:  # InvalidInput: somebody has changed a payload meanwhile
                if isinstance(error, TimeoutqError) and not isinstance(error, LeaseLost | InvalidInput):
                    tries = min(tries + 1, 10)
                    self._tell_trouble(one.ack.lease, error, tries)
                    await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.1 * 2**tries)))  # noqa: S311  # jitter
                    continue
                outcome = error
            tries, self.trouble = 0, None
            self._waiting.popleft()
            self._over(one.ack.lease, outcome)

    async def _send_one(self, one: _LongAck) -> Answer:
        division, lease = self._queue.division, one.ack.lease
        home = division.talk_of(lease)
        if one.calls is None:
            one.calls = one.ack.long_calls(division.talks, home)
        puts, ack = one.calls
        while puts:
            talk, flush = puts[0][0], _next_flush(puts)
            sent = division.exchange(talk, flush, puts=True, grouped=one.ack.grouped)
            for result in await self._queue.run(sent):
                if isinstance(result, TimeoutqError):
                    raise result
                puts.popleft()
            self.trouble = None
        return await self._queue.run(flows.end_one(home, lease, [ack]))

    def _tell_trouble(self, lease: Lease, error: TimeoutqError, tries: int) -> None:
        # each attempt may carry a part before the link breaks: a line per attempt would flood the log
        if tries == 1:
            self._voice.say(
                logging.WARNING, "queue %s: the handler of task %a has ended, but its ack and the tasks that it found "
                "could not all be sent yet. The worker tries again: %s", self._voice.queue, lease.task, error,
                lease=lease, error=error,
            )  # fmt: skip
        self.trouble = error
        self._wake()


def _next_flush(puts: deque[tuple[Talk, Call[Outcome]]]) -> list[Call[Outcome]]:
    """Give the first calls for one part: at most 1 MiB of payloads; a single call with more than that is sent alone."""
    flush: list[Call[Outcome]] = []
    weight = 0
    for talk, call in puts:
        weight += call.weight
        if flush and (weight > BYTES or len(flush) == sending.CALLS or talk is not puts[0][0]):
            break
        flush.append(call)
    return flush
