"""The handler that posts tasks: `Push` runs in a worker, one message for each lease."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from timeoutq.gateway.push import message
from timeoutq.gateway.push.posting import Answer, NotDelivered, Poster
from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.words.retry import GiveUp, retry_after
from timeoutq.words.text import safe
from timeoutq.worker.handlers import Result, Serves, Unrun
from timeoutq.worker.served import Place

log = logging.getLogger(__name__)

PATIENCE = 86_400.0  # how long a task may be held up by a busy receiver before that counts as a failed attempt, seconds
RETRIES = ("5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h")
"""The delays between attempts that Standard Webhooks recommends."""
LONGEST_BLOCK = 3600.0  # the most seconds for which a receiver may ask with Retry-After; a longer time is cut
FIRST, LONGEST = 1.0, 60.0  # seconds of a block whose length the receiver does not say: each in a row is twice as long
SHORTEST = 0.1  # no block is shorter, whatever a receiver says: it would be asked in a loop
QUOTED = 200  # how many characters of an answer are kept

BUSY = frozenset({429, 502, 503, 504})  # not now: these say nothing about the task
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Gone(GiveUp):
    """The receiver wants no more of this task."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The receiver takes nothing now."""

    status: int
    seconds: float | None  # for how long, if it says so


def meaning(answer: Answer, now: float) -> Busy | NotDelivered | Gone | None:
    """Say what an answer means; None: the task is delivered. `now` is Unix time."""
    status = answer.status
    if 200 <= status < 300:
        return None
    if status in BUSY:
        return Busy(status, retry_after(answer.retry_after, now, LONGEST_BLOCK))
    line = next((line.strip() for line in answer.text.splitlines() if line.strip()), "")
    quoted = f": {safe(line, QUOTED)}" if line else ""
    if status == 410:
        return Gone(f"the receiver answers HTTP 410, gone{quoted}")
    if 300 <= status < 400:
        to = f" to {safe(answer.location, QUOTED)}" if answer.location else ""
        quoted = to + ("; a push follows no redirect: give the new URL with --to" if status in REDIRECTS else "")
    return NotDelivered(reason=f"the receiver answers HTTP {status}{quoted}")


class Endpoint:
    """Whether the receiver takes tasks now, as one worker knows it: after a block, one task tries first. No I/O."""

    def __init__(self) -> None:
        self.until = 0.0  # until when nothing is sent
        self.strikes = 0  # how many blocks in a row there were
        self._since = 0.0  # when the last block began: a message that was sent before tells nothing of its end
        self._trying = False  # whether the task that tries after a block is under way

    def left(self, now: float) -> float:
        return max(0.0, self.until - now)

    def try_begin(self, now: float) -> bool:
        """Begin to send a task, if one may be sent now; after a block, one at a time, until `taken`."""
        if self.left(now) or (self.strikes and self._trying):
            return False
        self._trying = self.strikes > 0
        return True

    def taken(self, began: float, now: float) -> bool:
        """Note that a message of `began` has ended, and the receiver is not busy; say whether this ended a block."""
        if not self.strikes or began < self._since:  # it was sent before the block
            return False
        self._trying = False
        if self.left(now):  # the receiver has asked for more time
            return False
        self.strikes = 0
        return True

    def given_up(self, began: float) -> None:
        """Note that a message of `began` was broken off; if it was the one that tries, the next one may."""
        if began >= self._since:
            self._trying = False

    def busy(self, began: float, now: float, asked: float | None) -> float | None:
        """Note that the receiver is busy, and asks for some seconds; give those of the block that begins, if any."""
        # a message from before the last block begins none, unless that block is over and the receiver asks for time
        is_new = began >= self._since or (not self.strikes and asked is not None)
        if is_new:
            self.strikes, self._since, self._trying = self.strikes + 1, now, False
        own = min(LONGEST, FIRST * 2 ** min(self.strikes - 1, 10))
        seconds = min(LONGEST_BLOCK, max(SHORTEST, own if asked is None else asked))
        if is_new or asked is not None:
            self.until = max(self.until, now + seconds)
        return seconds if is_new else None


class Push(Serves):
    """Posts each task of a queue to one receiver."""

    def __init__(self, open: Callable[[], Poster], secrets: Sequence[bytes], *, patience: float = PATIENCE) -> None:
        """Prepare; `open` makes the poster, in the event loop of the worker."""
        self.lifespan = open
        self._secrets = list(secrets)
        self._patience = patience

    def serve(self, place: Place) -> Callable[[Lease], Awaitable[Result]]:
        return _Sending(place, self._secrets, self._patience).push


class _Sending:
    """Posts the tasks of one queue."""

    def __init__(self, place: Place, secrets: Sequence[bytes], patience: float) -> None:
        self._place, self._secrets, self._patience = place, secrets, patience
        self._poster = cast("Poster", place.state)
        self._endpoint = Endpoint()
        self._settled = asyncio.Event()
        """Set whenever a message has ended, and replaced: it may have been the try after a block."""

    async def push(self, lease: Lease) -> Result:
        """Post the message of a lease, and say what the answer means for its task."""
        while not self._endpoint.try_begin(time.monotonic()):
            if self._endpoint.left(time.monotonic()):
                return self._put_back("it is blocked")
            await self._settled.wait()
        stored = cast("bytes | None", lease.payload)
        body = message.body(self._place.name, lease, stored)
        id = message.message_id(self._place.name, lease, stored)
        began = time.monotonic()
        try:
            answer = await self._poster.post(message.headers(self._secrets, id, int(time.time()), body), body)
            found = meaning(answer, time.time())
        except NotDelivered as error:
            found = NotDelivered(reason=error.reason)  # without the way of the error: it tells nothing of the task
        except BaseException:
            self._endpoint.given_up(began)
            self._settle()
            raise
        if isinstance(found, Busy):
            seconds = self._endpoint.busy(began, time.monotonic(), found.seconds)
            if seconds is not None:
                asks = "" if found.seconds is None else ", as it asks"
                self._say(logging.WARNING, f"answers HTTP {found.status}: nothing is sent for {seconds:g} s{asks}")
            self._settle()
            return self._put_back(f"it answers HTTP {found.status}")
        if self._endpoint.taken(began, time.monotonic()):
            self._say(logging.INFO, "is not busy any more: tasks are sent")
        self._settle()
        return found

    def _put_back(self, why: str) -> Unrun:
        left = self._endpoint.left(time.monotonic())
        self._place.pause(left)
        error = NotDelivered(reason=f"the receiver has taken nothing for {self._patience:g} s: {why}")
        # few different delays, so that calls are few
        return Unrun(math.ceil(left * 10) / 10, within=self._patience, error=error)

    def _settle(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()

    def _say(self, level: int, words: str) -> None:
        telling.say(
            log, level, "queue %s: the receiver %s %s", self._place.name, self._poster.target.shown, words,
            fields={"queue": self._place.name},
        )  # fmt: skip
