"""Crews run handlers: what all crews share, and the crew of asyncio tasks, the consumers, for `async def` handlers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from timeoutq.words import telling
from timeoutq.words.durations import SHORTEST
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.handlers import LEAVES_NO_ID, USUAL, Surroundings
from timeoutq.worker.leases import Leases
from timeoutq.worker.runs import Run

TURN = 0.005  # seconds for which handlers that never wait run in one go before others in the loop have a turn


@dataclass(frozen=True, slots=True)
class Calling:
    """How a crew calls the handler with the tasks of one queue."""

    call: Callable[[Lease], Any]  # the handler, with its state if it takes one
    around: Surroundings
    leases: Leases
    generation: int  # the `forks.generation` of this process; in a copy of the process it has changed
    rank: int  # tasks of a lower rank begin before all others that wait for a handler

    def parts(self) -> tuple[Callable[[Lease], Any], Leases, dict[int, Run], Callable[[Lease], int], dict[str, object]]:
        """Give what a consumer needs for each task: the handler, `Leases`, its `running` and `key_of`, log fields."""
        return self.call, self.leases, self.leases.running, self.leases.key_of, self.leases.log.fields()


class Crew(ABC):
    """Runs handlers, many at once; all but `_next` is called in the event loop. `number` is that of a queue."""

    def __init__(self, callings: Sequence[Calling], size: int, broken: Callable[[BaseException | str], None]) -> None:
        """Prepare for `size` handlers at once; `broken` is called with the reason when the crew cannot go on."""
        self._callings, self._size, self._broken = callings, size, broken
        self._first = callings[0]
        self._loop = asyncio.get_running_loop()
        self._ranks = [deque[tuple[Calling, Lease]]() for _ in range(1 + max(one.rank for one in callings))]
        self.taken: int = 0  # how many leases are with the crew, begun or not
        self.closing = False  # set when the worker ends: from then on nobody of the crew is replaced

    # ---- leases that wait for a handler

    @property
    def unstarted(self) -> int:
        """How many leases wait for a handler."""
        return sum(map(len, self._ranks))

    def before(self, number: int) -> int:
        """Give how many leases wait that begin before a lease of this queue that comes now."""
        return sum(map(len, self._ranks[: 1 + self._callings[number].rank]))

    def take(self, leases: Sequence[Lease], number: int) -> None:
        """Have the handlers of these leases run."""
        calling = self._callings[number]
        self._ranks[calling.rank].extend((calling, lease) for lease in leases)
        self.taken += len(leases)
        self._call(len(leases))

    def give_back(self, number: int, most: int | None = None) -> list[Lease]:
        """Take leases of a queue out whose handlers have not begun: all, or the last ones, `most` of them."""
        return self._take_out(number, lambda leases: leases[0 if most is None else max(0, len(leases) - most) :])

    def take_out(self, lease: Lease, number: int) -> bool:
        """Take one lease out whose handler has not begun; say whether it was there."""
        return bool(self._take_out(number, lambda leases: [one for one in leases if one == lease]))

    def _take_out(self, number: int, choose: Callable[[list[Lease]], list[Lease]]) -> list[Lease]:
        calling = self._callings[number]
        waiting, found = self._ranks[calling.rank], list[tuple[Calling, Lease]]()
        while (one := self._next([waiting])) is not None:  # one by one: threads take leases meanwhile
            found.append(one)
        gone = choose([lease for its, lease in found if its is calling])
        ids = set(map(id, gone))
        stay = [one for one in found if id(one[1]) not in ids]
        waiting.extend(stay)
        self.taken -= len(gone)
        self._call(self.unstarted)
        return gone

    def _next(self, ranks: Sequence[deque[tuple[Calling, Lease]]] | None = None) -> tuple[Calling, Lease] | None:
        for waiting in self._ranks if ranks is None else ranks:
            if waiting:
                try:
                    return waiting.popleft()
                except IndexError:  # another thread was quicker
                    continue
        return None

    # ---- those who run handlers

    @abstractmethod
    def _call(self, leases: int) -> None:
        """Have as many who are free look for leases."""

    @abstractmethod
    def replace(self, run: Run) -> None:
        """Leave this handler, which does not end, to itself, and have another one run in its place."""

    @abstractmethod
    def close(self) -> set[asyncio.Task[None]]:
        """End those who are free, when the worker ends; give the asyncio tasks of the crew, which are cancelled now."""


class TaskCrew(Crew):
    """The consumers, which live as long as the worker."""

    def __init__(self, callings: Sequence[Calling], size: int, broken: Callable[[BaseException | str], None]) -> None:
        """Start `size` consumers."""
        super().__init__(callings, size, broken)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._consumers: set[asyncio.Task[None]] = set()
        self._left: set[asyncio.Task[None]] = set()  # those that were left behind: their handlers do not end
        for _ in range(size):
            self._start()

    def _call(self, leases: int) -> None:
        # each consumer that finds a lease calls two more: a few consumers run many handlers that never wait
        leases = min(leases, 2)
        while leases > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # if the waiter is done, its consumer has ended
                waiter.set_result(None)
                leases -= 1

    def _start(self) -> None:
        task = self._loop.create_task(self._consume(), name="consumer", context=self._first.around.fresh())
        self._consumers.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._consumers.discard(task)
        if task in self._left:  # another one was started long ago
            self._left.discard(task)
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)
        if not self.closing:
            self._start()

    def replace(self, run: Run) -> None:
        assert run.task is not None
        self.taken -= 1
        self._left.add(run.task)
        self._consumers.discard(run.task)
        self._start()

    def close(self) -> set[asyncio.Task[None]]:
        for consumer in self._consumers:
            consumer.cancel()
        return set(self._consumers)

    async def _rest(self) -> None:
        """Wait until there are leases."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._first.leases.on_cancelled("consumer")
            raise

    async def _consume(self) -> None:
        """Run handlers, one after the other. Ends when a handler has left traces: in its context, or a cancellation."""
        calling, ranks = self._first, self._ranks
        around, generation, bare = calling.around, calling.generation, calling.around.bare
        call, leases, running, key_of, fields = calling.parts()
        tell, me = telling.running.set, asyncio.current_task()
        assert me is not None
        began = since = time.monotonic()
        while not self.closing:
            for waiting in ranks:
                if waiting:
                    break
            else:
                await self._rest()
                began = since = time.monotonic()
                self._call(self.unstarted - 1)
                continue
            its, lease = waiting.popleft()
            if its is not calling:
                calling = its
                call, leases, running, key_of, fields = calling.parts()
            key, ledger = key_of(lease), leases.ledger
            run = running[key] = Run(lease, me, began)
            came: Any = None
            raised = is_last = is_usual = False
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                came = await call(lease)
                is_usual = type(came) in USUAL or came is LEAVES_NO_ID
                if not is_usual:
                    came = await handlers.resolve(came)
            except BaseException as error:  # whatever a handler raises is its task's failure
                came, raised = error, True
            if not is_usual:
                came, raised = await leases.given(run, came, raised)
            if forks.generation != generation:
                forks.leave(lease.task, came if raised else None)
            # one look at the clock serves as the end of this run and the beginning of the next
            ended = time.monotonic()
            if ended - began < SHORTEST:
                leases.spans.quick += 1
            elif not run.left:
                leases.spans.add(ended - began)
                if (over := leases.runtime.overrun(run, came if raised else None)) is not None:
                    came, raised, is_usual = over, True, False
            began = ended
            self.taken -= not run.left
            if is_usual and not run.end:
                leases.done(key, lease, came)
            else:
                is_last = run.left or (raised and not isinstance(came, Exception))
                leases.finished(run, came, raised)
            came = None  # the code that its end runs is the task's doing, too
            if ledger is not None:
                ledger.finish(lease)
            if is_last or (len(copy_context()) > 1 if bare else around.changed()) or me.cancelling():
                return  # another consumer begins, without the traces that the handler left in this one
            if ended - since > TURN:
                await asyncio.sleep(0)
                began = since = time.monotonic()
