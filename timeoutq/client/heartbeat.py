"""Keeps leases alive: one thread with an event loop of its own, and a call for all leases each third of the timeout.

The worker starts it, and `queue.keeper()` does for programs that claim by hand. A handler that blocks the event loop of
the worker does not lose the leases of the others; only code that holds the GIL for longer than two thirds of the
timeout can. A heartbeat also tells each queue that this worker lives, and learns how many others do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from timeoutq.verbs import sending
from timeoutq.words import telling, tracebacks
from timeoutq.words.arguments import error_words
from timeoutq.words.durations import Spans
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Answer, Lease, Outcome

log = logging.getLogger(__name__)

BEAT_EVERY = 5.0
"""Seconds between two signs of life of an idle worker."""
BEAT_AT_MOST = 10.0
"""The most seconds between signs of life, however long the leases are: a worker that is silent for three times as long
counts as gone."""
NEWS_EVERY = 1.0
"""Seconds between signs of life when the worker's numbers have changed."""
FAREWELL = 1.0
"""The most seconds that the end of a heartbeat waits for a server that hears signs of life and holds no leases."""


class Reach:
    """Whether a server answered when it was asked last; the log tells when this changes."""

    def __init__(self, queue: Any) -> None:
        self._queue, self._fields, self.is_down = queue.name, {"queue": queue.name, "worker": queue.worker}, False

    def answered(self) -> None:
        if self.is_down:
            words = "heartbeat of queue %s reaches the server again"
            telling.say(log, logging.INFO, words, self._queue, fields=self._fields)
        self.is_down = False

    def failed(self, error: Exception) -> None:
        if self.is_down:
            return
        self.is_down = True
        said = str(error) if isinstance(error, TimeoutqError) else error_words(error)
        fields = {**self._fields, "error": said}
        if isinstance(error, TimeoutqError):
            words = "heartbeat of queue %s cannot reach the server: %s"
            telling.say(log, logging.WARNING, words, self._queue, said, fields=fields)
            return
        words = "heartbeat of queue %s met an unexpected error, and tries again: %s"
        traceback = tracebacks.read_traceback(tracebacks.trace(error), said)
        telling.say(log, logging.ERROR, words, self._queue, said, fields=fields, traceback=traceback)


class Beat:
    """Extends the leases of one queue, and gives the queue signs of life."""

    def __init__(
        self,
        queue: Any,
        held: Mapping[int, Lease],
        on_lost: Callable[[list[tuple[Lease, Answer]]], None],
        about: Callable[[], Mapping[str, object]],
        spans: Spans | None = None,
        over_at: Mapping[int, float] | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare; `queue` is an `AsyncQueue` for this beat alone, which closes it, and `held` maps keys to leases.

        `about` gives what the worker says of itself. A lease in `over_at` is not extended after that moment, by its key
        and the monotonic clock. Before the queue `is_open`, no sign of life is given: it would leave keys of a queue
        that nobody has made.
        """
        self.queue = queue
        self.peers = 1  # how many workers of this queue are alive, as it has last said
        self.answered = 0.0  # when the server has last answered, by the monotonic clock
        self.period = queue.timeout / 3
        self._held, self._on_lost, self._spans, self._is_open = held, on_lost, spans, is_open
        self._over_at: Mapping[int, float] = {} if over_at is None else over_at
        self._interval = max(BEAT_EVERY, min(self.period, BEAT_AT_MOST))
        # whoever reads it later knows when its leases must have run out, though it never said that they have
        self._about: Callable[[], Mapping[str, object]] = lambda: {
            **about(), "holds_for": queue.timeout + self._interval,
        }  # fmt: skip
        self._said: Mapping[str, object] = {}
        self._leases_at = Reach(queue)
        self._signs_at = Reach(queue) if queue.beats_apart else self._leases_at
        self._sign: asyncio.Task[None] | None = None  # the last sign of life that went apart
        self._beat_at = self._news_at = time.monotonic()
        self._extend_at = self._beat_at + self.period

    @property
    def is_down(self) -> bool:
        """Whether the server with the leases did not answer when it was asked last."""
        return self._leases_at.is_down

    def hurry(self) -> None:
        """Extend the leases in the next round: one of them has not much time left."""
        self._extend_at = min(self._extend_at, time.monotonic())

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out rounds until the stop, and then say farewell."""
        try:
            while not stop.is_set():
                await self._round()
                with suppress(TimeoutError):
                    rest = min(self._extend_at, self._beat_at, self._news_at) - time.monotonic()
                    async with asyncio.timeout(max(0.0, rest)):
                        await stop.wait()
            await self._say_farewell()
        finally:
            if self._sign is not None:
                self._sign.cancel()
            await self.queue.close()

    async def _round(self) -> None:
        asked = False
        try:
            if time.monotonic() >= self._extend_at:
                self._extend_at = time.monotonic() + self.period
                asked = await self._extend()
            if self._is_to_beat():
                if not self.queue.beats_apart:
                    await self._beat(self._said)
                    asked = True
                elif self._sign is None or self._sign.done():  # the server that hears it may be away
                    self._sign = asyncio.create_task(self._beat_apart(), name=f"beat-{self.queue.name}")
        except Exception as error:
            self._leases_at.failed(error)
            self._extend_at = self._beat_at = self._news_at = self._again()
        else:
            if asked:
                self._leases_at.answered()

    def _again(self) -> float:
        # leases are running out meanwhile: try again soon, but not all workers at once
        return time.monotonic() + random.uniform(0, min(1.0, self.period))  # noqa: S311  # jitter, not a secret

    def _is_to_beat(self) -> bool:
        now = time.monotonic()
        due = now >= self._beat_at or (now >= self._news_at and self._about() != self._said)
        if due:
            self._beat_at, self._said = now + self._interval, self._about()
        if now >= self._news_at:
            self._news_at = now + NEWS_EVERY
        return due

    async def _beat_apart(self) -> None:
        try:
            await self._beat(self._said)
        except Exception as error:
            self._signs_at.failed(error)
            self._beat_at = self._news_at = self._again()
        else:
            self._signs_at.answered()

    async def _beat(self, about: Mapping[str, object] | None) -> None:
        if not self._is_open():
            return
        # the same report is sent until the server has answered; the server counts no report twice
        delta = None if self._spans is None else self._spans.delta()
        call = self.queue.operations.beat(self.queue.worker, about, delta)
        self.peers = max(1, await self.queue.run(sending.answer(self.queue.talk, call)))
        self.answered = time.monotonic()
        if self._spans is not None:
            self._spans.told()

    async def _extend(self) -> bool:
        """Extend the leases whose time is not over; say whether there were any."""
        now, limits, held = time.monotonic(), dict(self._over_at), self._held
        leases = [lease for key, lease in list(held.items()) if limits.get(key, now) >= now]
        if not leases:
            return False
        outcome: Outcome = await self.queue.run(self.queue.flows.extension(leases))
        self.answered = time.monotonic()
        if outcome.ok < len(leases):
            refused: list[tuple[Lease, Answer]] = [
                (lease, answer)
                for lease, answer in zip(leases, outcome, strict=True)
                # a lease that was ended while the call was under way is not lost
                if answer not in (Answer.OK, Answer.UNANSWERED) and lease.key in held
            ]
            if refused:
                self._on_lost(refused)
        return True

    async def _say_farewell(self) -> None:
        if self._signs_at.is_down:
            return
        try:
            async with asyncio.timeout(FAREWELL if self.queue.beats_apart else None):
                await self._beat(None)
        except Exception as error:
            telling.say(log, logging.DEBUG, "no farewell to queue %s: %s", self.queue.name, error)


def about(client: Any, *, concurrency: int, held: int, acked: int, failed: int, started: float) -> dict[str, object]:
    """Give what goes with the signs of life of a program, and `workers` shows."""
    host, pid, _ = client.worker.split(":")
    return {
        "host": host, "pid": int(pid), "concurrency": concurrency, "held": held, "acked": acked, "failed": failed,
        "started": started,
    }  # fmt: skip


def daemon_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Make a thread that ends with the process at the latest; it is not started yet."""
    return threading.Thread(target=target, name=name, daemon=True)


class Heartbeat:
    """The thread in which the beats of all queues run; a server that does not answer keeps no other queue waiting."""

    def __init__(
        self,
        beats: Sequence[Beat],
        thread: Callable[[Callable[[], None], str], threading.Thread] = daemon_thread,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        """Prepare; `on_end` is called in the thread when it ends, asked or not.

        Without `on_end`, nobody watches over the thread: whatever ends it unasked, it begins again.
        """
        self._beats, self._on_end = beats, on_end
        self._stopping = threading.Event()
        self._tell: Callable[[], object] = lambda: None  # tells the beats to stop
        self._ended_by: BaseException | None = None
        self._thread = thread(self._run, f"heartbeat-{beats[0].queue.name}")

    @property
    def peers(self) -> int:
        """How many workers are alive on the queue that has the most."""
        return max(beat.peers for beat in self._beats)

    @property
    def lives(self) -> bool:
        """Whether the thread goes on; false before its start."""
        return self._thread.is_alive()

    @property
    def patience(self) -> float:
        """The most seconds to wait for the end: a server that is away need not be told."""
        return 0.1 if all(beat.is_down for beat in self._beats) else max(b.queue.talk.deadline for b in self._beats) + 1

    def told_of_end(self) -> str:
        """Say, of a thread that has ended though nobody has asked it to, what ended it."""
        why = "" if self._ended_by is None else f": {error_words(self._ended_by)}"
        return f"the thread of its heartbeat has ended{why}; without it, all leases would run out"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Have the thread say farewell to the queues whose servers answer, and end; does not wait for it."""
        self._stopping.set()
        with suppress(RuntimeError):  # the loop is closed already
            self._tell()

    def stop(self) -> None:
        """End the thread, and wait for its end, unless this is the thread itself: `on_lost` may close its keeper."""
        self.end()
        if self.lives and self._thread is not threading.current_thread():
            self._thread.join(self.patience)

    def _run(self) -> None:
        while True:
            try:
                self._live()
                break
            except BaseException as error:
                self._ended_by = error
                if self._on_end is not None:
                    break
                name, said = self._beats[0].queue.name, error_words(error)
                words = "the heartbeat of a keeper of queue %s has ended, and begins again: %s"
                telling.say(log, logging.ERROR, words, name, said, fields={"queue": name})
            self._stopping.wait(min(1.0, self._beats[0].period / 4))  # leases run out meanwhile
        if self._on_end is not None:
            self._on_end()

    def _live(self) -> None:  # a simulation has another loop
        asyncio.run(self._beat_all())

    async def _beat_all(self) -> None:
        stop = asyncio.Event()
        self._tell = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        if self._stopping.is_set():  # the order to stop came before there was anything to tell it to
            stop.set()
        beats = [asyncio.create_task(beat.run(stop), name=f"beat-{beat.queue.name}") for beat in self._beats]
        stopped = asyncio.create_task(stop.wait())
        # a beat that ends before the stop would let its leases run out: then the thread ends, and with it the worker
        await asyncio.wait({stopped, *beats}, return_when=asyncio.FIRST_COMPLETED)
        for beat, task in zip(self._beats, beats, strict=True):
            if beat.is_down or not stop.is_set():
                task.cancel()
        stopped.cancel()
        for ended in await asyncio.gather(*beats, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended
