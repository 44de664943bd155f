"""Claims over HTTP, and waiting for tasks: many clients wait with one blocked connection for each queue.

A client that asks for tasks first looks, unless others wait already; if there are none, it stands in line. One asyncio
task for each queue hears the bell, and serves the line in turn. Leases that were taken for a client that is gone go
back at once, unless the client has sent the claim again meanwhile, to this gateway or to another one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.client.shards.claims import LISTEN
from timeoutq.client.shards.together import together
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

AT_ONCE = 32
"""The most claims that are sent in one flush when the bell has rung."""


class Ticket:
    """One claim of a client, from its arrival until its leases are there, or there will be none."""

    def __init__(self, wish: Wish, request: Request) -> None:
        self.wish = wish
        self.request = request
        self.began = time.monotonic()
        self.left = False
        """Whether the client is gone, or has sent this claim again."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turn: asyncio.Future[list[Lease]] | None = None
        """Where the ticket stands in line: the answer that the line brings."""
        self.flying = False
        """Whether a call of this claim is on its way to Redis: then its answer is waited for."""
        self.expired = False

    def expire(self) -> None:
        """Wait no more."""
        self.expired = True
        if not self.flying:
            self.answer([])

    def leave(self) -> None:
        """Want nothing any more."""
        self.left = True
        self.expire()

    def answer(self, given: list[Lease] | Exception) -> None:
        """Give the answer of the line, once."""
        if self.turn is None or self.turn.done():
            return
        if isinstance(given, Exception):
            self.turn.set_exception(given)
        else:
            self.turn.set_result(given)


class Line:
    """Those that wait for tasks of one queue, in the order in which they came."""

    def __init__(self, name: str, queues: Queues, who: str) -> None:
        self._name = name
        self._who = who
        self._queues = queues
        self.tickets: dict[Ticket, None] = {}
        self.listener: asyncio.Task[None] | None = None

    async def stand(self, ticket: Ticket, seconds: float) -> list[Lease]:
        """Stand in line until there are tasks, at most so many seconds."""
        ticket.turn = asyncio.get_running_loop().create_future()
        if ticket.left:
            return []
        self.tickets[ticket] = None
        if self.listener is None:
            self.listener = asyncio.create_task(self._listen(), name=f"line-{self._name}")
        timer = asyncio.get_running_loop().call_later(seconds, ticket.expire)
        try:
            return await ticket.turn
        finally:
            timer.cancel()
            self.tickets.pop(ticket, None)

    async def _listen(self) -> None:
        # it listens a little longer than somebody waits: the next client often comes at once
        failures = 0
        try:
            while True:
                try:
                    queue = await self._queues.get(self._name, self._who)
                    await self._hear(queue)
                    await self._serve(queue)
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
        finally:
            self.listener = None

    async def _hear(self, queue: AnyAsyncQueue) -> None:
        talk, seconds = queue.talk, BELL_WAIT
        if isinstance(queue, AsyncShardedQueue):
            talk, seconds = random.choice(queue.shards.talks), LISTEN  # noqa: S311  # not a secret
        await queue.run(flows.hear_stroke(talk, seconds, lambda: bool(self.tickets)))

    async def _serve(self, queue: AnyAsyncQueue) -> None:
        """Claim for the first in line, then for twice as many, until the queue has no more tasks."""
        many = 1
        while self.tickets:
            tickets = await self._let_in(list(self.tickets)[:many])
            for ticket in tickets:
                del self.tickets[ticket]
                ticket.flying = True
            if tickets and not await self._serve_some(queue, tickets):
                return
            many = min(AT_ONCE, 2 * many)

    async def _let_in(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Give those that want tasks still; the others leave the line, those whose token was revoked with a problem."""
        late = time.monotonic() - FRESH
        old = [ticket for ticket in tickets if ticket.began < late]
        counts = await asyncio.gather(*[ticket.request.answer.still_counts() for ticket in old])
        for ticket, good in zip(old, counts, strict=True):
            if not good:
                ticket.answer(unauthorized())
        wanting: list[Ticket] = []
        for ticket in tickets:
            if ticket.turn is not None and ticket.turn.done():
                self.tickets.pop(ticket, None)
            else:
                wanting.append(ticket)
        return wanting

    async def _serve_some(self, queue: AnyAsyncQueue, tickets: Sequence[Ticket]) -> bool:
        """Claim for these; say whether each of them got tasks."""
        results: list[Any] = [None] * len(tickets)
        try:
            results = await queue.run(together([claims.take(queue, ticket.wish) for ticket in tickets]))
        finally:
            # those that got nothing stand where they stood: before all others
            back: dict[Ticket, None] = {}
            for ticket, result in zip(tickets, results, strict=True):
                ticket.flying = False
                is_error = isinstance(result, TimeoutqError)
                if flows.is_final(result) if is_error else result:
                    ticket.answer(result)
                elif ticket.expired:
                    ticket.answer([])
                else:
                    back[ticket] = None
                    if is_error:
                        # the claim may have run: sent again, it gives the same leases
                        ticket.wish = replace(ticket.wish, age_ms=int(1000 * (time.monotonic() - ticket.began)) + 1)
            self.tickets = back | self.tickets
        for result in results:
            if isinstance(result, TimeoutqError):
                raise result
        return all(results)

    def _fail(self, error: Exception) -> None:
        for ticket in list(self.tickets):
            ticket.answer(error)


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
            for ticket in list(line.tickets):
                ticket.expire()

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
                age_ms = max(wish.age_ms, int(1000 * (time.monotonic() - older.began)) + 1)
                ticket.wish = replace(wish, age_ms=age_ms)
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
            return [] if self._stopping else await line.stand(ticket, seconds)
        finally:
            self._waits[who] -= 1
            if not self._waits[who]:
                del self._waits[who]
