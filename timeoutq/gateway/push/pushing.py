"""The handler that posts tasks: `Push` runs in a worker, one message for each lease.

A message that was taken (2xx) acks its task. While the receiver is busy, tasks go back without blame and the worker
claims nothing; time bounds this, not a number of releases. After 410 the task has failed at once. All other answers are
failed attempts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from timeoutq.gateway.push import message
from timeoutq.gateway.push.endpoint import Busy, Endpoint, NotDelivered, meaning
from timeoutq.gateway.push.posting import Poster
from timeoutq.words import telling
from timeoutq.words.model import Lease
from timeoutq.worker.handlers import Result, Serves, Unrun
from timeoutq.worker.served import Place

log = logging.getLogger(__name__)

PATIENCE = 86_400.0
"""How long a task may be held up by a busy receiver before that counts as a failed attempt, seconds."""
RETRIES = ("5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h")
"""The delays between attempts that Standard Webhooks recommends."""


class Push(Serves):
    """Posts each task of a queue to one receiver."""

    def __init__(self, open: Callable[[], Poster], secrets: Sequence[bytes], *, patience: float = PATIENCE) -> None:
        """Prepare; `open` makes the poster, in the event loop of the worker."""
        self.lifespan = open
        self._secrets = list(secrets)
        self._patience = patience

    def serve(self, place: Place) -> Callable[[Lease], Awaitable[Result]]:
        """Give what posts the tasks of this queue."""
        return _Sending(place, cast("Poster", place.state), self._secrets, self._patience).push


class _Sending:
    """Posts the tasks of one queue."""

    def __init__(self, place: Place, poster: Poster, secrets: Sequence[bytes], patience: float) -> None:
        self._place = place
        self._poster = poster
        self._secrets = secrets
        self._patience = patience
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
            return self._block(found, began)
        if self._endpoint.taken(began, time.monotonic()):
            self._say(logging.INFO, "is not busy any more: tasks are sent")
        self._settle()
        return found

    def _block(self, busy: Busy, began: float) -> Result:
        seconds = self._endpoint.busy(began, time.monotonic(), busy.seconds)
        if seconds is not None:
            asks = "" if busy.seconds is None else ", as it asks"
            self._say(logging.WARNING, f"answers HTTP {busy.status}: nothing is sent for {seconds:g} s{asks}")
        self._settle()
        return self._put_back(f"it answers HTTP {busy.status}")

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
