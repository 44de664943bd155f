"""Claims over HTTP; waiting for tasks, with one blocked connection for each queue; and cleaning of queues.

A client first looks for tasks, unless others wait already; if there are none, it stands in line. One asyncio task for
each queue hears the bell and wakes the first in line, whose claim wakes the next two if it got tasks. Leases that were
taken for a client that is gone go back at once, unless the client has sent the claim again, to any gateway.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue, claims
from timeoutq.client.shards.root import Shards
from timeoutq.client.together import together
from timeoutq.gateway.access import unauthorized
from timeoutq.gateway.names import end
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.requests import Request
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import FRESH
from timeoutq.verbs import flows
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import BELL_WAIT, Flow, Talk, answer, answers
from timeoutq.words import retry, telling
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Answer, Lease
from timeoutq.worker.cleaner import Cleaner

log = logging.getLogger(__name__)

LOOK = 0.5  # seconds after which a cleaner looks again whether something has become due earlier than it knew

# ---- claims with the client's own token


@dataclass(frozen=True, slots=True)
class Wish:
    """The words of a claim, checked."""

    token: str
    n: int
    timeout_ms: int
    max_runtime_ms: int
    age_ms: int = 0  # how long ago the claim was first sent, if it was sent before; else 0


def take(queue: AnyAsyncQueue, wish: Wish) -> Flow[list[Lease]]:
    """Claim ready tasks; a claim that was sent before first looks for the leases that it took then."""
    if isinstance(queue, AsyncShardedQueue):
        return (yield from _take_sharded(queue.shards, wish))
    token = wish.token.encode()
    found = (yield from _replay(queue.talk, wish, token, wish.n)) if wish.age_ms else []
    # nothing was taken, and nothing is ready: a plain claim looks also for tasks that are due or lost their lease
    return found or (
        yield from flows.claim(queue.talk, wish.n, wish.timeout_ms, wish.max_runtime_ms, 0.0, lambda: token)
    )


def _replay(talk: Talk, wish: Wish, token: bytes, n: int) -> Flow[list[Lease]]:
    """Send the claim as one that was sent before: gives the leases that it took then, else leases up to `n` tasks."""
    asked = time.monotonic()
    call = talk.operations.claim(token, n, wish.timeout_ms, wish.max_runtime_ms)
    found = yield from flows.whole(talk, (yield from answer(talk, replace(call, sent_ms=wish.age_ms))))
    talk.clock.seen(found.now_ms, asked)
    if not found.leases:
        return []
    # they run anew, so that a gateway which sees late that the client of the first claim is gone does not give them
    # back; one ms more: the deadline is another one even if the first claim came in this very ms
    deadline, outcome = yield from flows.extend(talk, found.leases, wish.timeout_ms + 1)
    kept = zip(found.leases, outcome, strict=True)
    return [replace(lease, deadline=deadline) for lease, answered in kept if answered in (Answer.OK, Answer.CANCELLED)]


class _Named(claims.Claim):
    """A claim of a sharded queue, with the client's own token."""

    token = ""

    def _noting(self, shard: int, talk: Talk) -> Callable[[], bytes]:
        return lambda: f"{self.token}@{shard}".encode()


def _take_sharded(shards: Shards, wish: Wish) -> Flow[list[Lease]]:
    if not shards.made:
        yield from shards.look()
    if wish.age_ms:
        # n=0: a shard whose part of the claim took nothing takes nothing now
        tokens = [f"{wish.token}@{shard}".encode() for shard in range(len(shards.talks))]
        parts = [_replay(talk, wish, token, 0) for talk, token in zip(shards.talks, tokens, strict=True)]
        found = yield from together(parts)
        leases = [lease for one in found if not isinstance(one, TimeoutqError) for lease in one]
        if leases:
            return leases
        for one in found:
            if isinstance(one, TimeoutqError):
                raise one  # the shard that does not answer may have the leases
    claim = _Named(shards, wish.n, wish.timeout_ms, wish.max_runtime_ms, 0.0, [])
    claim.token = wish.token
    return (yield from claim.flow())


def give_back(queue: AnyAsyncQueue, leases: Sequence[Lease]) -> Flow[None]:
    """Release leases that nobody has heard of, but for those that run anew: their client has sent the claim again."""
    for talk, part in queue.division.parted(leases):
        with suppress(TimeoutqError):  # what cannot be given back runs out by itself
            # the leases of one claim of one shard end together
            deadline_ms = round(1000 * part[0].deadline)
            yield from answers(talk, talk.operations.release(part, deadline_ms=deadline_ms), UNCONFIRMED)


# ---- clients that wait


class Ticket:
    """One claim of a client, from its arrival until its leases are there, or there will be none."""

    def __init__(self, wish: Wish, request: Request) -> None:
        self.wish = wish
        self.request = request
        self.began = time.monotonic()
        self.left = False  # whether the client is gone, or has sent this claim again
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turn: asyncio.Future[bool] | None = None
        """While the ticket stands in line: whether it is its turn, or it waits no more."""

    def call(self, is_turn: bool) -> bool:
        """End the wait in line, once; say whether it has not ended before."""
        if self.turn is None or self.turn.done():
            return False
        self.turn.set_result(is_turn)
        return True

    def leave(self) -> None:
        self.left = True
        self.call(False)

    def was_sent(self) -> None:
        """Note that the claim may have run: sent again, it gives the same leases."""
        age_ms = int(1000 * (time.monotonic() - self.began)) + 1
        self.wish = replace(self.wish, age_ms=max(self.wish.age_ms, age_ms))


class Line:
    """Those that wait for tasks of one queue, in the order in which they came."""

    def __init__(self, name: str, queues: Queues, who: str) -> None:
        self._name, self._queues, self._who = name, queues, who
        self.tickets: dict[Ticket, None] = {}
        self.listener: asyncio.Task[None] | None = None
        self.is_over = False  # whether nobody waits any more: the gateway is about to end
        self._woken: set[Ticket] = set()
        self._rested = asyncio.Event()  # set when nobody claims any more who was woken

    @property
    def is_there(self) -> bool:
        """Whether anybody waits, or did so a moment ago."""
        return bool(self.tickets) or (self.listener is not None and not self.listener.done())

    async def wait(self, ticket: Ticket, seconds: float) -> list[Lease]:
        """Stand in line until there are tasks, at most so many seconds."""
        until, is_back = time.monotonic() + seconds, False
        try:
            while await self._stand(ticket, until, first=is_back):
                leases = await self._claim(ticket)
                if leases or ticket.left:
                    self._ended(ticket, wake=2 if leases else 1)
                    return leases
                self._ended(ticket, wake=0)
                is_back = True
            return []
        finally:
            self._ended(ticket, wake=1)

    async def _stand(self, ticket: Ticket, until: float, *, first: bool) -> bool:
        loop, seconds = asyncio.get_running_loop(), until - time.monotonic()
        ticket.turn = loop.create_future()
        if ticket.left or self.is_over or seconds <= 0:
            return False
        # whoever got nothing stands where it stood: before all others
        self.tickets = {ticket: None} | self.tickets if first else self.tickets | {ticket: None}
        if self.listener is None or self.listener.done():
            self.listener = asyncio.create_task(self._listen(), name=f"line-{self._name}")
        timer = loop.call_later(seconds, ticket.call, False)
        try:
            return await ticket.turn
        finally:
            timer.cancel()
            self.tickets.pop(ticket, None)

    async def _claim(self, ticket: Ticket) -> list[Lease]:
        if time.monotonic() - ticket.began > FRESH and not await ticket.request.still_counts():
            raise unauthorized()
        if ticket.left:
            return []
        try:
            queue = await self._queues.get(self._name, self._who)
            return await queue.run(take(queue, ticket.wish))
        except TimeoutqError as error:
            if flows.is_final(error):
                raise
            ticket.was_sent()
            return []

    def _wake(self, many: int) -> None:
        for ticket in list(self.tickets):
            if many and ticket.call(True):
                del self.tickets[ticket]
                many -= 1
                self._woken.add(ticket)
                self._rested.clear()

    def _ended(self, ticket: Ticket, *, wake: int) -> None:
        """Note that a ticket that was woken does not claim any more; wake so many others."""
        if ticket in self._woken:
            self._wake(wake)
            self._woken.discard(ticket)
            if not self._woken:
                self._rested.set()

    async def _listen(self) -> None:
        # it listens a little longer than somebody waits: the next client often comes at once
        failures = 0
        with self._queues.use(self._name):
            while True:
                try:
                    queue = await self._queues.get(self._name, self._who)
                    talk, seconds = queue.talk, BELL_WAIT
                    if isinstance(queue, AsyncShardedQueue):
                        talk, seconds = random.choice(queue.shards.talks), claims.LISTEN  # noqa: S311  # not a secret
                    await queue.run(flows.hear_stroke(talk, seconds, lambda: bool(self.tickets)))
                    failures = 0
                except (TimeoutqError, Problem) as error:
                    if isinstance(error, Problem) or flows.is_final(error):
                        for ticket in self.tickets:
                            if ticket.turn is not None and not ticket.turn.done():
                                ticket.turn.set_exception(error)
                    if isinstance(error, TimeoutqError):
                        failures += 1
                        await asyncio.sleep(retry.pause(failures))
                if not self.tickets:
                    return
                self._wake(1)
                if self._woken:
                    await self._rested.wait()


class Polls:
    """The claims of one application, those that look and those that stand in line, and the cleaners of its queues."""

    def __init__(self, queues: Queues, settings: Settings) -> None:
        self._queues, self._settings = queues, settings
        self._lines: dict[str, Line] = {}
        self._current: dict[tuple[str, str], Ticket] = {}
        """The latest ticket for each claim that is not answered yet, by queue and token."""
        self._waits = Counter[str]()
        self._worked: dict[str, float] = {}  # when somebody has worked on a queue
        self._cleaners: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def stop(self) -> None:
        """Give all that wait an empty answer, and let nobody wait from now on."""
        self._stopping = True
        for line in self._lines.values():
            line.is_over = True
            for ticket in line.tickets:
                ticket.call(False)

    async def close(self) -> None:
        self.stop()
        await end(*(line.listener for line in self._lines.values()), *self._cleaners.values())
        self._lines.clear()

    async def claim(self, request: Request, wish: Wish, seconds: float) -> list[Lease]:
        """Claim for a client; wait so many seconds for the first task. A client that is gone waits no more."""
        key = request.name, wish.token
        older = self._current.get(key)
        ticket = self._current[key] = Ticket(wish, request)
        request.watch(ticket.leave)
        leases: list[Lease] = []
        try:
            if older is not None:
                older.leave()
                await asyncio.wait([older.over])
                ticket.began = min(ticket.began, older.began)
                ticket.was_sent()
            leases = await self._claim(request, ticket, seconds)
        finally:
            ticket.over.set_result(None)
            is_latest = self._current[key] is ticket
            if is_latest:
                del self._current[key]
        if not leases:
            return []

        async def undo() -> None:
            await request.queue.run(give_back(request.queue, leases))

        if ticket.left or request.is_gone:
            if is_latest:  # else the same claim, sent again, finds the leases
                await undo()
            return []
        request.undo = undo
        return leases

    async def _claim(self, request: Request, ticket: Ticket, seconds: float) -> list[Lease]:
        waits = seconds > 0 and not self._stopping
        line = self._lines.get(request.name)
        # whoever comes while others wait need not look: the others would have taken all ready tasks
        if not waits or ticket.wish.age_ms or line is None or not line.tickets:
            leases: list[Lease] = await request.queue.run(take(request.queue, ticket.wish))
            if leases or not waits or ticket.left:
                return leases
            ticket.wish = replace(ticket.wish, age_ms=0)
        who = request.caller.name
        if self._waits[who] >= self._settings.most_waits:
            raise Problem(429, "too-many", f"{self._waits[who]} claims of {who} wait already: let fewer wait at once")
        request.step_aside()
        line = self._lines.setdefault(request.name, Line(request.name, self._queues, who))
        self._waits[who] += 1
        try:
            return [] if self._stopping else await line.wait(ticket, seconds)
        finally:
            self._waits[who] -= 1
            if not self._waits[who]:
                del self._waits[who]

    def worked(self, name: str, who: str) -> None:
        """Note that `who` works on a queue: it is cleaned, as a worker in Python cleans its own, for a while after."""
        self._worked[name] = time.monotonic()
        if name not in self._cleaners:
            task = self._cleaners[name] = asyncio.create_task(self._clean(name, who), name=f"tending-{name}")
            task.add_done_callback(lambda _: self._cleaners.pop(name, None))

    async def _clean(self, name: str, who: str) -> None:
        failures, cleaners = 0, list[Cleaner]()
        met: object = None
        with self._queues.use(name):
            while time.monotonic() < self._worked[name] + self._settings.cleaned_for or (
                name in self._lines and self._lines[name].is_there
            ):
                try:
                    queue = await self._queues.get(name, who)
                    talks = queue.division.talks
                    if met is not talks or not cleaners:
                        met, cleaners = talks, [Cleaner(queue, longest=LOOK, talk=talk) for talk in talks]
                    pause = min(await asyncio.gather(*(one.round() for one in cleaners)), default=LOOK)
                    failures = 0
                except (TimeoutqError, Problem) as error:
                    if isinstance(error, TimeoutqError) and flows.is_final(error):
                        return  # the requests themselves tell what is wrong
                    failures += 1
                    if failures == 1:
                        words, fields = "cleaning of queue %s waits for the server: %s", {"error": str(error)}
                        telling.say(log, logging.WARNING, words, name, error, fields={"queue": name, **fields})
                    pause = retry.pause(failures)
                await asyncio.sleep(max(0.001, min(pause, LOOK)))
