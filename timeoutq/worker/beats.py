"""The heartbeats of a worker with several queues: one thread for all of them, with an event loop of its own.

In this event loop, each queue has a `Beat`, an asyncio task with a connection of its own. So a server that does not
answer keeps no other queue waiting. `heartbeat.py` does the same for a worker with one queue, without an event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence

from timeoutq.client import AsyncDriver
from timeoutq.client.heartbeat import FAREWELL, AsyncRounds, Pulse, extend_held, unlimited
from timeoutq.verbs import sending
from timeoutq.words.arguments import error_words
from timeoutq.words.durations import Spans
from timeoutq.words.model import Answer, Lease
from timeoutq.worker.background import Machine


class Beat:
    """Extends the leases of one queue, and gives the queue signs of life."""

    def __init__(
        self,
        queue: AsyncDriver,
        held: Mapping[int, Lease],
        on_lost: Callable[[list[tuple[Lease, Answer]]], None],
        about: Callable[[], Mapping[str, object]],
        spans: Spans,
        is_open: Callable[[], bool],
    ) -> None:
        """Prepare, as for a `Heartbeat`; `queue` is a client for this task alone.

        Before the queue `is_open`, no sign of life is given: it would leave keys of a queue that nobody has made.
        """
        self.queue = queue
        self.peers = 1  # how many workers of this queue are alive, as it has last said
        self.pulse = Pulse(queue.name, queue.worker, queue.timeout, about)
        self._held, self._on_lost, self._spans, self._is_open = held, on_lost, spans, is_open
        self.over_at: Mapping[int, float] = {}
        """From when on leases with a limit of their own are not extended, by their keys and the monotonic clock."""

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out rounds until the stop, and then say farewell."""
        self.pulse.begin()
        try:
            await AsyncRounds(self.queue, self.pulse, self._extend, self._beat).run(stop)
            if not self.pulse.unheard:
                async with asyncio.timeout(FAREWELL if self.queue.beats_apart else None):
                    await self._beat(None)
        except Exception as error:
            self.pulse.no_farewell(error)
        finally:
            await self.queue.close()

    async def _extend(self) -> bool:
        leases = unlimited(self._held, self.over_at)
        if leases:
            refused = await self.queue.run(extend_held(self.queue.extension(leases), self._held, leases))
            if refused:
                self._on_lost(refused)
        return bool(leases)

    async def _beat(self, about: Mapping[str, object] | None) -> None:
        if self._is_open():
            call = self.queue.operations.beat(self.queue.worker, about, self._spans.delta())
            self.peers = max(1, await self.queue.run(sending.answer(self.queue.talk, call)))
            self._spans.told()


class Beats:
    """The thread in which the beats of all queues run."""

    def __init__(self, beats: Sequence[Beat], machine: Machine) -> None:
        self._beats = beats
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = threading.Event()
        self._ended_by: BaseException | None = None
        self._thread = machine.thread(self._run, f"heartbeat-{beats[0].queue.name}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, say farewell to the queues whose servers answer, and wait for the thread to end."""
        self._stopping.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        longest = max(beat.queue.talk.deadline for beat in self._beats)
        if self.lives:  # else it was not started
            self._thread.join(timeout=0.1 if all(beat.pulse.down for beat in self._beats) else longest + 1)

    @property
    def peers(self) -> int:
        """How many workers are alive on the queue that has the most."""
        return max(beat.peers for beat in self._beats)

    @property
    def lives(self) -> bool:
        """Whether the thread goes on; false before its start."""
        return self._thread.is_alive()

    def told_of_end(self) -> str:
        """Say, of a thread that has ended though nobody has asked it to, what ended it."""
        why = "" if self._ended_by is None else f": {error_words(self._ended_by)}"
        return f"the thread of its heartbeats has ended{why}; without it, all leases would run out"

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_all())
        except BaseException as error:  # the worker notices, and ends
            self._ended_by = error

    async def _beat_all(self) -> None:
        stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = stop
        if self._stopping.is_set():  # the order to stop came before there was anything to tell it to
            stop.set()
        beats = [asyncio.create_task(beat.run(stop), name=f"beat-{beat.queue.name}") for beat in self._beats]
        stopped = asyncio.create_task(stop.wait())
        # a beat that ends before the stop would let its leases run out: then the thread ends, and with it the worker
        await asyncio.wait({stopped, *beats}, return_when=asyncio.FIRST_COMPLETED)
        for beat, task in zip(self._beats, beats, strict=True):
            if beat.pulse.down or not stop.is_set():  # a server that is away need not be told
                task.cancel()
        stopped.cancel()
        for ended in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended
