"""Keeps leases alive: one thread, one connection of its own, one call for all leases each third of the timeout.

The worker starts it, and `queue.keeper()` does for programs that claim by hand. It runs outside of the event loop, so
that a handler that blocks the loop does not lose the leases of the others; only code that holds the GIL for longer than
two thirds of the timeout can. It also tells the queue that this worker lives, and learns how many others do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from timeoutq.verbs import sending
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words import telling, tracebacks
from timeoutq.words.arguments import error_words
from timeoutq.words.durations import Spans
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Answer, Lease, Outcome

T = TypeVar("T")

log = logging.getLogger(__name__)

BEAT_EVERY = 5.0
"""Seconds between two signs of life of an idle worker."""

BEAT_AT_MOST = 10.0
"""The most seconds between signs of life, however long the leases are: a worker that is silent for three times as long
counts as gone."""

FAREWELL = 1.0
"""The most seconds that the end of a heartbeat waits for a server that hears signs of life and holds no leases."""

NEWS_EVERY = 1.0
"""Seconds between signs of life when the worker's numbers have changed."""


class Apart(Protocol):
    """A queue, and whether its signs of life go apart, because another node hears them than the one with the leases."""

    name: str
    beats_apart: bool


class Client(Apart, Protocol):
    """What a heartbeat needs of a queue for code that blocks."""

    worker: str
    talk: Talk
    operations: Operations

    @property
    def timeout(self) -> float:
        """The length of a lease, seconds."""
        ...

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        """Give the flow that extends leases."""
        ...

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Threads(Protocol):
    """Where the thread of a heartbeat comes from."""

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Make a thread; it is not started yet."""
        ...

    def event(self) -> threading.Event:
        """Make an event that threads can wait for."""
        ...


class PlainThreads:
    """The threads of this process."""

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Make a thread that ends with the process at the latest; it is not started yet."""
        return threading.Thread(target=target, name=name, daemon=True)

    def event(self) -> threading.Event:
        """Make an event that threads can wait for."""
        return threading.Event()


class Pulse:
    """Decides when a heartbeat extends leases and gives signs of life, and what it says in the log. No I/O."""

    def __init__(self, queue: str, worker: str, timeout: float, about: Callable[[], Mapping[str, object]]) -> None:
        """Prepare; `timeout` is the length of a lease in seconds, `about` gives what the worker says of itself."""
        self.period = timeout / 3
        self.down = False
        """Whether the server did not answer when it was asked last."""
        self.unheard = False
        """Whether the last sign of life was not heard, where signs of life go apart from extensions."""
        self.answered = 0.0
        """When the server has last answered, by the monotonic clock."""
        self.said: Mapping[str, object] = {}
        """What the worker has last said of itself."""
        self._queue = queue
        self._fields = {"queue": queue, "worker": worker}
        self._interval = max(BEAT_EVERY, min(self.period, BEAT_AT_MOST))
        # whoever reads it later knows when its leases must have run out, though it never said that they have
        self._about: Callable[[], Mapping[str, object]] = lambda: {**about(), "holds_for": timeout + self._interval}
        self._extend_at = self._beat_at = self._news_at = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to count: the first sign of life is due now, the first extension after a third of the timeout."""
        self._extend_at, self._beat_at, self._news_at = time.monotonic() + self.period, time.monotonic(), 0.0

    def is_to_beat(self) -> bool:
        """Say whether a sign of life is due; if so, `said` is what is to be said."""
        now = time.monotonic()
        due = now >= self._beat_at or (now >= self._news_at and self._about() != self.said)
        if due:
            self._beat_at, self.said = now + self._interval, self._about()
        if now >= self._news_at:
            self._news_at = now + NEWS_EVERY
        return due

    def is_to_extend(self) -> bool:
        """Say whether the leases are to be extended now."""
        now = time.monotonic()
        if now >= self._extend_at:
            self._extend_at = now + self.period
            return True
        return False

    def soon(self) -> float:
        """Give the seconds after which a heartbeat that has ended unasked begins again: leases run out meanwhile."""
        return min(1.0, self.period / 4)

    def hurry(self) -> None:
        """Extend the leases in the next round: one of them has not much time left."""
        self._extend_at = min(self._extend_at, time.monotonic())

    def failed(self, error: Exception) -> None:
        """Note that a round has failed: the next one comes soon."""
        if not self.down:
            self._tell(error)
        self.down = True
        # leases are running out meanwhile: try again soon, but not all workers at once
        pause = random.uniform(0, min(1.0, self.period))  # noqa: S311  # jitter, not a secret
        self._extend_at = self._beat_at = time.monotonic() + pause  # the failed call may have taken long

    def went(self, *, spoke: bool) -> None:
        """Note that a round has ended without an error; `spoke` says whether the server was asked."""
        if self.down and spoke:
            words = "heartbeat of queue %s reaches the server again"
            telling.say(log, logging.INFO, words, self._queue, fields=self._fields)
        self.down = self.down and not spoke
        if spoke:
            self.answered = time.monotonic()

    def not_heard(self, error: Exception) -> None:
        """Note that a sign of life that goes apart was not heard: the next one comes soon."""
        if not self.unheard:
            self._tell(error)
        self.unheard = True
        self._beat_at = time.monotonic() + random.uniform(0, min(1.0, self.period))  # noqa: S311  # jitter, not a secret

    def heard(self) -> None:
        """Note that a sign of life that goes apart was heard."""
        if self.unheard:
            words = "heartbeat of queue %s is heard again"
            telling.say(log, logging.INFO, words, self._queue, fields=self._fields)
        self.unheard = False
        self.answered = time.monotonic()

    def rest(self) -> float:
        """Give the seconds until the next round."""
        return max(0.0, min(self._extend_at, self._beat_at, self._news_at) - time.monotonic())

    def no_farewell(self, error: Exception) -> None:
        """Say that the queue was not told that this worker leaves."""
        telling.say(log, logging.DEBUG, "no farewell to queue %s: %s", self._queue, error)

    def _tell(self, error: Exception) -> None:
        said = error_words(error)
        if isinstance(error, TimeoutqError):
            telling.say(
                log, logging.WARNING, "heartbeat of queue %s cannot reach the server: %s", self._queue, error,
                fields={**self._fields, "error": str(error)},
            )  # fmt: skip
        else:
            telling.say(
                log, logging.ERROR, "heartbeat of queue %s met an unexpected error, and tries again: %s",
                self._queue, said, fields={**self._fields, "error": said},
                traceback=tracebacks.read_traceback(tracebacks.trace(error), said),
            )  # fmt: skip


def extend_held(
    extension: Flow[Outcome], held: Mapping[int, Lease], leases: Sequence[Lease]
) -> Flow[list[tuple[Lease, Answer]]]:
    """Extend leases; give those that were refused, and why, if they are still held."""
    outcome = yield from extension
    if outcome.ok == len(leases):
        return []
    return [
        (lease, answer)
        for lease, answer in zip(leases, outcome, strict=True)
        # what was ended while the call was under way is not lost
        if answer not in (Answer.OK, Answer.UNANSWERED) and lease.key in held
    ]


def unlimited(held: Mapping[int, Lease], over_at: Mapping[int, float]) -> list[Lease]:
    """Give the leases that are to be extended: those whose time is not over."""
    if not over_at:
        return list(held.values())
    now, limits = time.monotonic(), dict(over_at)
    return [lease for key, lease in list(held.items()) if limits.get(key, now) >= now]


class Heartbeat:
    """Extends every lease in `held`, and reports those that could not be, from its thread."""

    def __init__(
        self,
        queue: Client,
        held: Mapping[int, Lease],
        on_lost: Callable[[list[tuple[Lease, Answer]]], None],
        about: Callable[[], Mapping[str, object]],
        spans: Spans | None = None,
        machine: Threads | None = None,
        *,
        keeps_open: bool = False,
    ) -> None:
        """Prepare; `held` maps keys to leases and is read only. The queue is closed at the end, unless `keeps_open`."""
        self.queue = queue
        self.peers = 1
        self._held = held
        self.over_at: Mapping[int, float] = {}
        """From when on leases with a limit of their own are not extended, by their keys and the monotonic clock."""
        self._on_lost = on_lost
        self._spans = spans
        self._keeps_open = keeps_open
        self.pulse = Pulse(queue.name, queue.worker, queue.timeout, about)
        self._threads = threads = PlainThreads() if machine is None else machine
        self._beating: threading.Thread | None = None  # the thread of the last sign of life that went apart
        self._stop = threads.event()
        self._left = False
        self._ended_by: BaseException | None = None
        self._thread = threads.thread(self._run, f"heartbeat-{queue.name}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, say farewell to the queue, and wait for the thread to end, unless this is the thread itself."""
        self._stop.set()
        if self._thread is threading.current_thread():  # `on_lost` has closed the keeper or the queue
            self._farewell()  # now, because the caller may close the connections next
            return
        # a server that is away need not be told, and must not hold up the end; the thread dies with its process
        self._thread.join(timeout=0.1 if self.pulse.down else self.queue.talk.deadline + 1)

    def end(self) -> None:
        """Stop, and do not wait for the end of the thread."""
        self._stop.set()

    @property
    def lives(self) -> bool:
        """Whether the thread goes on; false before its start."""
        return self._thread.is_alive()

    def told_of_end(self) -> str:
        """Say, of a thread that has ended though nobody has asked it to, what ended it."""
        why = "" if self._ended_by is None else f": {error_words(self._ended_by)}"
        return f"the thread of its heartbeat has ended{why}; without it, all leases would run out"

    def _run(self) -> None:
        self.pulse.begin()
        try:
            self._beat_on()
        except BaseException as error:  # the worker notices, and ends
            self._ended_by = error

    def _beat_on(self) -> None:
        """Carry out rounds until the stop."""
        pulse = self.pulse
        while not self._stop.is_set():
            spoke = False
            try:
                if pulse.is_to_extend():
                    spoke = self._extend()
                if pulse.is_to_beat():
                    if self.queue.beats_apart:
                        self._beat_apart(pulse.said)
                    else:
                        self._beat(pulse.said)
                        spoke = True
            except Exception as error:
                pulse.failed(error)
            else:
                pulse.went(spoke=spoke)
            self._stop.wait(pulse.rest())
        self._farewell()
        if not self._keeps_open:
            self.queue.close()

    def _farewell(self) -> None:
        """Tell the queue once that this worker leaves, if the server answers."""
        if self._left:
            return
        self._left, pulse = True, self.pulse
        try:
            if self.queue.beats_apart:
                if self._beating is not None:
                    self._beating.join(FAREWELL)
                if not pulse.unheard and (gone := self._beat_apart(None)) is not None:
                    gone.join(FAREWELL)
            elif not pulse.down:
                self._beat(None)
        except Exception as error:
            pulse.no_farewell(error)

    def _beat_apart(self, about: Mapping[str, object] | None) -> threading.Thread | None:
        """Give a sign of life in a thread of its own, unless one is under way: the server that hears it may be away."""
        if self._beating is not None and self._beating.is_alive():
            return None

        def beat() -> None:
            try:
                self._beat(about)
            except Exception as error:
                self.pulse.not_heard(error)
            else:
                self.pulse.heard()
            finally:
                if self._left and not self._keeps_open:
                    self.queue.close()  # the heartbeat has perhaps closed it already, and this thread opened it again

        self._beating = self._threads.thread(beat, f"beat-{self.queue.name}")
        self._beating.start()
        return self._beating

    def _beat(self, about: Mapping[str, object] | None) -> None:
        # the same report is sent until the server has answered; the server counts no report twice
        delta = None if self._spans is None else self._spans.delta()
        call = self.queue.operations.beat(self.queue.worker, about, delta)
        self.peers = max(1, self.queue.run(sending.answer(self.queue.talk, call)))
        if self._spans is not None:
            self._spans.told()

    def _extend(self) -> bool:
        """Extend the leases that are held; say whether the server was asked."""
        leases = unlimited(self._held, self.over_at)
        if not leases:
            return False
        refused = self.queue.run(extend_held(self.queue.extension(leases), self._held, leases))
        if refused:
            self._on_lost(refused)
        return True


class LastingHeartbeat(Heartbeat):
    """A heartbeat that goes on after whatever ends it unasked: nobody watches over the thread of a keeper."""

    def _run(self) -> None:
        pulse = self.pulse
        pulse.begin()
        while True:
            try:
                return self._beat_on()
            except BaseException as error:
                telling.say(
                    log, logging.ERROR, "the heartbeat of a keeper of queue %s has ended, and begins again: %s",
                    self.queue.name, error_words(error), fields={"queue": self.queue.name},
                )  # fmt: skip
            self._stop.wait(pulse.soon())
            pulse.hurry()


class AsyncRounds:
    """The rounds of a heartbeat in an asyncio task; `Heartbeat._beat_on` is the same for a thread."""

    def __init__(
        self,
        queue: Apart,
        pulse: Pulse,
        extend: Callable[[], Awaitable[bool]],
        beat: Callable[[Mapping[str, object]], Awaitable[None]],
    ) -> None:
        """Prepare; `extend` extends the leases, and says whether there are any; `beat` gives a sign of life."""
        self._queue = queue
        self._pulse = pulse
        self._extend = extend
        self._beat = beat
        self._sign: asyncio.Task[None] | None = None
        """The last sign of life that went apart."""

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out rounds until the stop."""
        pulse = self._pulse
        while not stop.is_set():
            spoke = False
            try:
                if pulse.is_to_extend():
                    spoke = await self._extend()
                if pulse.is_to_beat():
                    if self._queue.beats_apart:
                        self._beat_apart(pulse.said)
                    else:
                        await self._beat(pulse.said)
                        spoke = True
            except Exception as error:
                pulse.failed(error)
            else:
                pulse.went(spoke=spoke)
            with suppress(TimeoutError):
                async with asyncio.timeout(pulse.rest()):
                    await stop.wait()
        if self._sign is not None:
            self._sign.cancel()

    def _beat_apart(self, about: Mapping[str, object]) -> None:
        """Give a sign of life in an asyncio task of its own, as `Heartbeat._beat_apart` does in a thread."""
        if self._sign is None or self._sign.done():
            self._sign = asyncio.create_task(self._try_to_beat(about), name=f"beat-{self._queue.name}")

    async def _try_to_beat(self, about: Mapping[str, object]) -> None:
        try:
            await self._beat(about)
        except Exception as error:
            self._pulse.not_heard(error)
        else:
            self._pulse.heard()
