"""Claims over HTTP, and waiting for tasks: many clients wait with one blocked connection for each queue.

A client that asks for tasks first looks, unless others wait already; if there are none, it stands in line. One asyncio
task for each queue hears the bell and wakes the first in line, whose claim wakes the next two if it got tasks. Leases
that were taken for a client that is gone go back at once, unless the client has sent the claim again meanwhile, to this
gateway or to another one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.client.shards.claims import LISTEN
from timeoutq.gateway import claims
from timeoutq.gateway.access import unauthorized
from timeoutq.gateway.claims import Wish
from timeoutq.gateway.names import end
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.requests import Request
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import FRESH
from timeoutq.verbs import flows
from timeoutq.verbs.sending import BELL_WAIT
from timeoutq.words import retry
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease


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
        """Want nothing any more."""
        self.left = True
        self.call(False)

    def was_sent(self) -> None:
        """Note that the claim may have run: sent again, it gives the same leases."""
        age_ms = int(1000 * (time.monotonic() - self.began)) + 1
        self.wish = replace(self.wish, age_ms=max(self.wish.age_ms, age_ms))


class Line:
    """Those that wait for tasks of one queue, in the order in which they came."""

    def __init__(self, name: str, queues: Queues, who: str) -> None:
        self._name = name
        self._who = who
        self._queues = queues
        self.tickets: dict[Ticket, None] = {}
        self.listener: asyncio.Task[None] | None = None
        self.is_over = False  # whether nobody waits any more: the gateway is about to end
        self._woken: set[Ticket] = set()
        self._rested = asyncio.Event()  # set when nobody claims any more who was woken

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
        if self.listener is None:
            self.listener = asyncio.create_task(self._listen(), name=f"line-{self._name}")
        timer = loop.call_later(seconds, ticket.call, False)
        try:
            return await ticket.turn
        finally:
            timer.cancel()
            self.tickets.pop(ticket, None)

    async def _claim(self, ticket: Ticket) -> list[Lease]:
        if time.monotonic() - ticket.began > FRESH and not await ticket.request.answer.still_counts():
            raise unauthorized()
        if ticket.left:
            return []
        try:
            queue = await self._queues.get(self._name, self._who)
            return await queue.run(claims.take(queue, ticket.wish))
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
        try:
            while True:
                try:
                    queue = await self._queues.get(self._name, self._who)
                    await self._hear(queue)
                    failures = 0
                except TimeoutqError as error:
                    failures += 1
                    if flows.is_final(error):
                        self._fail(error)
                    await asyncio.sleep(retry.pause(failures))
                except Problem as error:
                    self._fail(error)
                if not self.tickets:
                    return
                self._wake(1)
                if self._woken:
                    await self._rested.wait()
        finally:
            self.listener = None

    async def _hear(self, queue: AnyAsyncQueue) -> None:
        talk, seconds = queue.talk, BELL_WAIT
        if isinstance(queue, AsyncShardedQueue):
            talk, seconds = random.choice(queue.shards.talks), LISTEN  # noqa: S311  # not a secret
        await queue.run(flows.hear_stroke(talk, seconds, lambda: bool(self.tickets)))

    def _fail(self, error: Exception) -> None:
        for ticket in self.tickets:
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_exception(error)


class Polls:
    """The claims of one application: those that look, and those that stand in line."""

    def __init__(self, queues: Queues, settings: Settings) -> None:
        self._queues = queues
        self._settings = settings
        self._lines: dict[str, Line] = {}
        self._current: dict[tuple[str, str], Ticket] = {}
        """The latest ticket for each claim that is not answered yet, by queue and token."""
        self._waits = Counter[str]()
        self._stopping = False

    def is_busy(self, name: str) -> bool:
        """Say whether anybody waits for tasks of a queue, or did so a moment ago."""
        line = self._lines.get(name)
        return line is not None and bool(line.tickets or line.listener)

    def stop(self) -> None:
        """Give all that wait an empty answer, and let nobody wait from now on."""
        self._stopping = True
        for line in self._lines.values():
            line.is_over = True
            for ticket in line.tickets:
                ticket.call(False)

    async def close(self) -> None:
        """Stop, and listen no more."""
        self.stop()
        await end(*(line.listener for line in self._lines.values()))
        self._lines.clear()

    async def claim(self, request: Request, queue: AnyAsyncQueue, wish: Wish, seconds: float) -> list[Lease]:
        """Claim for a client; wait so many seconds for the first task. A client that is gone waits no more."""
        key = request.name, wish.token
        older = self._current.get(key)
        ticket = self._current[key] = Ticket(wish, request)
        if not request.tells_when_gone:
            request.watch(ticket.leave)
        leases: list[Lease] = []
        try:
            if older is not None:
                older.leave()
                await asyncio.wait([older.over])
                ticket.began = min(ticket.began, older.began)
                ticket.was_sent()
            leases = await self._claim(request, queue, ticket, seconds)
        finally:
            ticket.over.set_result(None)
            is_latest = self._current[key] is ticket
            if is_latest:
                del self._current[key]
        if not leases:
            return []

        async def undo() -> None:
            await queue.run(claims.give_back(queue, leases))

        if ticket.left or request.is_gone:
            if is_latest:  # else the same claim, sent again, finds the leases
                await undo()
            return []
        request.undo = undo
        return leases

    async def _claim(self, request: Request, queue: AnyAsyncQueue, ticket: Ticket, seconds: float) -> list[Lease]:
        waits = seconds > 0 and not self._stopping
        line = self._lines.get(request.name)
        # whoever comes while others wait need not look: the others would have taken all ready tasks
        if not waits or ticket.wish.age_ms or line is None or not line.tickets:
            leases = await queue.run(claims.take(queue, ticket.wish))
            if leases or not waits or ticket.left:
                return leases
            ticket.wish = replace(ticket.wish, age_ms=0)
        who = request.caller.name
        if self._waits[who] >= self._settings.most_waits:
            raise Problem(429, "too-many", f"{self._waits[who]} claims of {who} wait already: let fewer wait at once")
        request.step_aside()
        request.watch(ticket.leave)
        line = self._lines.get(request.name)  # again: others may have come meanwhile
        if line is None:
            line = self._lines[request.name] = Line(request.name, self._queues, who)
        self._waits[who] += 1
        try:
            return [] if self._stopping else await line.wait(ticket, seconds)
        finally:
            self._waits[who] -= 1
            if not self._waits[who]:
                del self._waits[who]
