"""Runs `async def` handlers: a crew of asyncio tasks, the consumers, each of which runs one handler after the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from timeoutq.words import telling
from timeoutq.words.durations import SHORTEST
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.found import listed
from timeoutq.worker.handlers import LEAVES_NO_ID, Surroundings
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
    rank: int = 0  # tasks of a lower rank begin before all others that wait for a handler


class Inbox:
    """The leases that wait for a handler: those of a lower rank come out first."""

    def __init__(self, callings: Sequence[Calling]) -> None:
        self._callings = callings
        self._ranks = [deque[tuple[Calling, Lease]]() for _ in range(1 + max(one.rank for one in callings))]

    def __len__(self) -> int:
        return sum(map(len, self._ranks))

    def put(self, leases: list[Lease], number: int) -> None:
        calling = self._callings[number]
        self._ranks[calling.rank].extend((calling, lease) for lease in leases)

    def pop(self) -> tuple[Calling, Lease] | None:
        for waiting in self._ranks:
            if waiting:
                return waiting.popleft()
        return None

    def before(self, number: int) -> int:
        return sum(map(len, self._ranks[: 1 + self._callings[number].rank]))

    def of(self, number: int) -> list[Lease]:
        """Give the leases of a queue, those first that come out first."""
        calling = self._callings[number]
        return [lease for its, lease in self._ranks[calling.rank] if its is calling]

    def take_out(self, leases: list[Lease]) -> None:
        gone = set(map(id, leases))
        self._ranks = [deque(one for one in waiting if id(one[1]) not in gone) for waiting in self._ranks]


class TaskCrew:
    """The consumers, which live as long as the worker. All methods are called in the event loop."""

    def __init__(self, callings: Sequence[Calling], size: int, broken: Callable[[BaseException], None]) -> None:
        """Start `size` consumers; `broken` is called with an error of this folder that has ended one."""
        self._callings = callings
        self._broken = broken
        self._first = callings[0]
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(callings)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._consumers: set[asyncio.Task[None]] = set()
        self._left: set[asyncio.Task[None]] = set()
        """Consumers that were left behind, because their handlers do not end."""
        self.closing = False  # set when the worker ends: from then on nobody of the crew is replaced
        for _ in range(size):
            self._start()

    # ---- leases; `number` is that of a queue

    @property
    def unstarted(self) -> int:
        """How many leases wait for a handler."""
        return len(self._inbox)

    @property
    def taken(self) -> int:
        """How many leases are with the crew, begun or not."""
        return sum(len(one.leases.running) for one in self._callings) + self.unstarted

    def before(self, number: int) -> int:
        """Give how many leases wait that begin before a lease of this queue that comes now."""
        return self._inbox.before(number)

    def take(self, leases: list[Lease], number: int = 0) -> None:
        """Have the handlers of these leases run."""
        self._inbox.put(leases, number)
        asleep = len(leases)
        while asleep and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # if the waiter is done, its consumer has ended
                waiter.set_result(None)
                asleep -= 1

    def give_back(self, number: int = 0, most: int | None = None) -> list[Lease]:
        """Take leases of a queue out whose handlers have not begun: all, or the last ones, `most` of them."""
        unstarted = self._inbox.of(number)
        if most is not None:
            unstarted = unstarted[max(0, len(unstarted) - most) :]
        self._inbox.take_out(unstarted)
        return unstarted

    def take_out(self, lease: Lease, number: int = 0) -> bool:
        """Take one lease out whose handler has not begun; say whether it was there."""
        found = [one for one in self._inbox.of(number) if one == lease]
        self._inbox.take_out(found)
        return bool(found)

    # ---- consumers

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
        """Leave this handler, which does not end, to itself, and have another one run in its place."""
        assert run.task is not None
        self._left.add(run.task)
        self._consumers.discard(run.task)
        self._start()

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel the asyncio tasks of the crew, and give them."""
        for consumer in self._consumers:
            consumer.cancel()
        return set(self._consumers)

    def close(self) -> None:
        """End those who are free, at the very end: cancelled consumers end by themselves."""

    async def _rest(self) -> None:
        """Wait until there are leases."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._first.leases.on_cancelled("consumer")
            raise

    # ---- the way of a task

    async def _consume(self) -> None:
        """Run handlers, one after the other. Ends when a handler has left traces: in its context, or a cancellation."""
        calling, inbox = self._first, self._inbox
        around, generation, bare = calling.around, calling.generation, calling.around.bare
        call, leases, fields = calling.call, calling.leases, calling.leases.log.fields()
        tell, me = telling.running.set, asyncio.current_task()
        assert me is not None
        began = since = time.monotonic()
        while not self.closing:
            next_one = inbox.pop()
            if next_one is None:
                await self._rest()
                began = since = time.monotonic()
                continue
            its, lease = next_one
            if its is not calling:
                calling = its
                call, leases, fields = calling.call, calling.leases, calling.leases.log.fields()
            key, ledger = leases.key_of(lease), leases.ledger
            run = leases.running[key] = Run(lease, me, began)
            result: Any = None
            problem: BaseException | None = None
            tell((fields, lease))
            try:
                if ledger is not None:
                    ledger.start(lease)
                result = await call(lease)
                if result is not None and result is not LEAVES_NO_ID:
                    result = await listed(await handlers.resolve(result))
            except BaseException as error:  # whatever a handler raises is its task's failure
                problem = error
            if result is not None or problem is not None:
                result, problem = await leases.given(run, result, problem)
            if forks.generation != generation:
                forks.leave(lease.task, problem)
            # one look at the clock serves as the end of this run and the beginning of the next
            ended = time.monotonic()
            if ended - began < SHORTEST:
                leases.spans.quick += 1
            elif not run.left:
                leases.spans.add(ended - began)
                if (over := leases.rules.runtime.overrun(run, problem)) is not None:
                    result, problem = None, over
            began = ended
            if result is None and problem is None and not run.end:
                leases.done(key, lease)
            elif result is LEAVES_NO_ID and not run.end:
                leases.done_bare(key, lease)
                result = None
            else:
                ends = run.left or (problem is not None and not isinstance(problem, Exception))
                leases.finished(run, result, problem)
                result = problem = None  # the code that their end runs is the task's doing, too
                if ends:
                    if ledger is not None:
                        ledger.finish(lease)
                    return
            if ledger is not None:
                ledger.finish(lease)
            if (len(copy_context()) > 1 if bare else around.changed()) or me.cancelling():
                return  # another consumer begins, without the traces that the handler left in this one
            if ended - since > TURN:
                await asyncio.sleep(0)
                began = since = time.monotonic()
