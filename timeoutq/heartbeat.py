"""Keeps leases alive: one thread, one connection of its own, one call for all leases each third of the timeout.

The worker starts it. It runs outside of the event loop, so that a handler that blocks the loop does not lose the leases
of the others; only code that holds the GIL for longer than two thirds of the timeout can. It also tells the queue that
this worker lives, and learns how many others do.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

from timeoutq import sending, telling, tracebacks
from timeoutq.arguments import error_words
from timeoutq.client import Queue
from timeoutq.durations import Spans
from timeoutq.errors import TimeoutqError
from timeoutq.machine import THIS, Machine
from timeoutq.model import Answer, Lease, Outcome

log = logging.getLogger(__name__)

BEAT_EVERY = 5.0
"""Seconds between two signs of life of an idle worker."""

BEAT_AT_MOST = 10.0
"""The most seconds between signs of life, however long the leases are: a worker that is silent for three times as long
counts as gone."""

NEWS_EVERY = 1.0
"""Seconds between signs of life when the worker's numbers have changed."""


class Heartbeat:
    """Extends every lease in `held`, and reports those that could not be, from its thread."""

    def __init__(
        self,
        queue: Queue,
        held: Mapping[int, Lease],
        on_lost: Callable[[list[tuple[Lease, Answer]]], None],
        about: Callable[[], Mapping[str, object]],
        spans: Spans | None = None,
        machine: Machine = THIS,
    ) -> None:
        """Prepare; `queue` is a client that nobody else uses, `held` maps fences to leases and is read only.

        `on_lost` is called in the heartbeat's thread with the leases that were refused and why: `LOST` or
        `MAX_RUNTIME`. `about` gives what the worker says of itself, `spans` how long its handlers ran.
        `machine` gives the thread.
        """
        self.queue = queue
        self.peers = 1
        self._held = held
        self._on_lost = on_lost
        self._about = about
        self._spans = spans
        self._stop = machine.event()
        self._down = False
        self._ended_by: BaseException | None = None
        self._thread = machine.thread(self._run, f"heartbeat-{queue.name}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, say farewell to the queue, and wait for the thread to end."""
        self._stop.set()
        # a server that is away need not be told, and must not hold up the end; the thread dies with its process
        self._thread.join(timeout=0.1 if self._down else self.queue.talk.deadline + 1)

    @property
    def lives(self) -> bool:
        """Whether the thread goes on; false before its start."""
        return self._thread.is_alive()

    def told_of_end(self) -> str:
        """Say, of a thread that has ended though nobody has asked it to, what ended it."""
        why = "" if self._ended_by is None else f": {error_words(self._ended_by)}"
        return f"the thread of its heartbeat has ended{why}; without it, all leases would run out"

    def _run(self) -> None:
        try:
            self._beat_on()
        except BaseException as error:  # the worker notices, and ends
            self._ended_by = error

    def _beat_on(self) -> None:
        period = self.queue.timeout / 3
        extend_at, beat_at, news_at = time.monotonic() + period, time.monotonic(), 0.0
        said: Mapping[str, object] = {}
        fields = {"queue": self.queue.name, "worker": self.queue.worker}
        while not self._stop.is_set():
            now, spoke = time.monotonic(), False
            try:
                if now >= beat_at or (now >= news_at and self._about() != said):
                    beat_at, said = now + max(BEAT_EVERY, min(period, BEAT_AT_MOST)), self._about()
                    self._beat(said)
                    spoke = True
                if now >= news_at:
                    news_at = now + NEWS_EVERY
                if now >= extend_at:
                    extend_at = now + period
                    spoke = self._extend() or spoke
            except Exception as error:
                if not self._down:
                    self._tell(error, fields)
                self._down = True
                # leases are running out meanwhile: try again soon, but not all workers at once
                pause = random.uniform(0, min(1.0, period))  # noqa: S311  # jitter, not a secret
                extend_at = beat_at = time.monotonic() + pause  # the failed call may have taken long
            else:
                if self._down and spoke:
                    words = "heartbeat of queue %s reaches the server again"
                    telling.say(log, logging.INFO, words, self.queue.name, fields=fields)
                self._down = self._down and not spoke
            self._stop.wait(max(0.0, min(extend_at, beat_at, news_at) - time.monotonic()))
        try:
            if not self._down:
                self._beat(None)
        except Exception as error:
            telling.say(log, logging.DEBUG, "no farewell to queue %s: %s", self.queue.name, error)
        self.queue.close()

    def _tell(self, error: Exception, fields: Mapping[str, object]) -> None:
        said = error_words(error)
        if isinstance(error, TimeoutqError):
            telling.say(
                log, logging.WARNING, "heartbeat of queue %s cannot reach the server: %s", self.queue.name, error,
                fields={**fields, "error": str(error)},
            )  # fmt: skip
        else:
            telling.say(
                log, logging.ERROR, "heartbeat of queue %s met an unexpected error, and tries again: %s",
                self.queue.name, said, fields={**fields, "error": said},
                traceback=tracebacks.read_traceback(tracebacks.trace(error), said),
            )  # fmt: skip

    def _beat(self, about: Mapping[str, object] | None) -> None:
        # the same report is sent until the server has answered; the server counts no report twice
        delta = None if self._spans is None else self._spans.delta()
        call = self.queue.operations.beat(self.queue.worker, about, delta)
        self.peers = max(1, self.queue.run(sending.answer(self.queue.talk, call)))
        if self._spans is not None:
            self._spans.told()

    def _extend(self) -> bool:
        """Extend the leases that are held; say whether the server was asked."""
        leases = list(self._held.values())
        if not leases:
            return False
        outcome: Outcome = self.queue.extend(leases)
        if outcome.ok == len(leases):
            return True
        refused: list[tuple[Lease, Answer]] = [
            (lease, answer)
            for lease, answer in zip(leases, outcome, strict=True)
            # what was ended while the call was under way is not lost
            if answer is not Answer.OK and lease.fence in self._held
        ]
        if refused:
            self._on_lost(refused)
        return True
