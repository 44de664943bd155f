"""Who runs handlers: a crew of asyncio tasks for `async def`, one of threads for `def` (in `threads.py`).

One crew runs the handlers of all queues of a worker, and has a `Work` for each of them, by the number of its lane. The
pump gives a crew the leases that it has claimed; the crew calls the handler with each and tells the desk what came.
Below stands the whole way of a task: `_consume` takes a lease, runs the handler, and ends the lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol

from timeoutq.words import telling
from timeoutq.words.durations import SHORTEST, Spans
from timeoutq.words.model import Lease
from timeoutq.worker import forks, handlers
from timeoutq.worker.desk import Desk, Ledger
from timeoutq.worker.found import listed
from timeoutq.worker.handlers import LEAVES_NO_ID, Surroundings
from timeoutq.worker.runs import MaxRuntime, Run
from timeoutq.worker.voice import Voice

Fields = Mapping[str, object]

TURN = 0.005
"""Seconds for which handlers that never wait run in one go before others in the loop have a turn."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a crew needs to run handlers with the tasks of one queue."""

    call: Callable[[Lease], Any]
    """The handler, with its state if it takes one."""
    around: Surroundings
    runtime: MaxRuntime
    desk: Desk
    voice: Voice
    generation: int
    """The `forks.generation` of this process; in a copy of the process it has changed."""
    rank: int = 0
    """Tasks of a lower rank begin before all others that wait for a handler."""


class Crew(Protocol):
    """Runs handlers, many at once. All methods are called in the event loop. `lane` is the number of a queue."""

    closing: bool
    """Set when the worker ends: from then on nobody of the crew is replaced."""

    @property
    def unstarted(self) -> int:
        """How many leases wait for a handler."""
        ...

    @property
    def taken(self) -> int:
        """How many leases are with the crew, begun or not."""
        ...

    def before(self, lane: int) -> int:
        """Give how many leases wait that begin before a lease of this queue that comes now."""
        ...

    def queued(self, lane: int = 0) -> set[int]:
        """Give the keys of the leases of a queue that wait for a handler."""
        ...

    def take(self, leases: list[Lease], lane: int = 0) -> None:
        """Have the handlers of these leases run."""
        ...

    def give_back(self, lane: int = 0, most: int | None = None) -> list[Lease]:
        """Take leases of a queue out whose handlers have not begun: all, or the last ones, `most` of them."""
        ...

    def take_out(self, lease: Lease, lane: int = 0) -> bool:
        """Take one lease out whose handler has not begun; say whether it was there."""
        ...

    def replace(self, run: Run) -> None:
        """Leave this handler, which does not end, to itself, and have another one run in its place."""
        ...

    def forget(self) -> None:
        """Count one lease less: nobody of the crew has it any more."""
        ...

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel who is idle or at work in the event loop; give these asyncio tasks."""
        ...

    def close(self) -> None:
        """End who is free, at the very end."""
        ...


_NO_LEASES = deque[Lease](maxlen=0)


class Ranked:
    """The inbox of a crew that works for several queues: leases of a lower rank come out first."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._ranks = [deque[tuple[Work, deque[Lease]]]() for _ in range(1 + max(work.rank for work in works))]
        """For each rank, the leases of each claim, and the work of their queue."""
        self.work = works[0]
        """The work of the leases that `front` has given."""
        self.puts = 0
        """How often leases were put: what `front` has given may not be the front any more when this has changed."""
        self._is_empty = True

    def __len__(self) -> int:
        return self._count(len(self._ranks))

    def _count(self, ranks: int) -> int:
        return sum(len(leases) for claims in self._ranks[:ranks] for _, leases in claims)

    def put(self, leases: list[Lease], lane: int) -> None:
        work = self._works[lane]
        self._ranks[work.rank].append((work, deque(leases)))
        self.puts += 1
        self._is_empty = False

    def front(self) -> deque[Lease]:
        """Give the leases of which the first is the next one; empty if there are none."""
        if self._is_empty:
            return _NO_LEASES  # most handlers that wake find that others have taken all
        for claims in self._ranks:
            while claims:
                self.work, leases = claims[0]
                if leases:
                    return leases
                claims.popleft()
        self._is_empty = True
        return _NO_LEASES

    def before(self, lane: int) -> int:
        return self._count(1 + self._works[lane].rank)

    def of(self, lane: int) -> list[Lease]:
        """Give the leases of a queue, those first that come out first."""
        work = self._works[lane]
        return [lease for its, leases in self._ranks[work.rank] if its is work for lease in leases]

    def take_out(self, leases: list[Lease]) -> None:
        gone = set(map(id, leases))
        for claims in self._ranks:
            for _, waiting in claims:
                left = [lease for lease in waiting if id(lease) not in gone]
                if len(left) < len(waiting):
                    waiting.clear()
                    waiting.extend(left)


class TaskCrew:
    """Asyncio tasks, the consumers, which live as long as the worker and run one handler after the other."""

    def __init__(self, works: Sequence[Work], size: int) -> None:
        """Start `size` consumers; `works` has the work of each queue."""
        self._works = works
        self._work = works[0]
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Lease] = deque()
        """The leases that wait, if the worker has one queue."""
        self._ranked = Ranked(works) if len(works) > 1 else None
        """The leases that wait, if it has several."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._consumers: set[asyncio.Task[None]] = set()
        self._left: set[asyncio.Task[None]] = set()
        """Consumers that were left behind, because their handlers do not end."""
        self.closing = False
        for _ in range(size):
            self._start()

    # ---- leases

    @property
    def unstarted(self) -> int:
        return len(self._inbox if self._ranked is None else self._ranked)

    @property
    def taken(self) -> int:
        return sum(len(work.desk.running) for work in self._works) + self.unstarted

    def before(self, lane: int) -> int:
        return len(self._inbox) if self._ranked is None else self._ranked.before(lane)

    def queued(self, lane: int = 0) -> set[int]:
        return {lease.key for lease in (self._inbox if self._ranked is None else self._ranked.of(lane))}

    def take(self, leases: list[Lease], lane: int = 0) -> None:
        if self._ranked is None:
            self._inbox.extend(leases)
        else:
            self._ranked.put(leases, lane)
        asleep = len(leases)
        while asleep and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # if the waiter is done, its consumer has ended
                waiter.set_result(None)
                asleep -= 1

    def give_back(self, lane: int = 0, most: int | None = None) -> list[Lease]:
        if self._ranked is None:
            unstarted = list(self._inbox)
            self._inbox.clear()
            return unstarted
        unstarted = self._ranked.of(lane)
        if most is not None:
            unstarted = unstarted[max(0, len(unstarted) - most) :]
        self._ranked.take_out(unstarted)
        return unstarted

    def take_out(self, lease: Lease, lane: int = 0) -> bool:
        waiting = self._inbox if self._ranked is None else self._ranked.of(lane)
        if lease not in waiting:
            return False
        if self._ranked is None:
            self._inbox.remove(lease)
        else:
            self._ranked.take_out([one for one in waiting if one == lease])
        return True

    def forget(self) -> None:
        pass  # who is counted is looked up each time

    # ---- consumers

    def _start(self) -> None:
        task = self._loop.create_task(self._consume(), name="consumer", context=self._work.around.fresh())
        self._consumers.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._consumers.discard(task)
        if task in self._left:  # another one was started long ago
            self._left.discard(task)
            return
        if not task.cancelled() and task.exception() is not None:
            voice = self._work.voice
            voice.say(logging.ERROR, "worker %s: a consumer ended", voice.worker, exc_info=task.exception())
        if not self.closing:
            self._start()

    def replace(self, run: Run) -> None:
        assert run.task is not None
        self._left.add(run.task)
        self._consumers.discard(run.task)
        self._start()

    def cancel(self) -> set[asyncio.Task[None]]:
        for consumer in self._consumers:
            consumer.cancel()
        return set(self._consumers)

    def close(self) -> None:
        pass  # cancelled consumers end by themselves

    async def _rest(self) -> None:
        """Wait until there are leases."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._work.desk.on_cancelled("consumer")
            raise

    # ---- the way of a task

    async def _consume(self) -> None:
        """Run handlers, one after the other. Ends when a handler has left traces: in its context, or a cancellation."""
        work, inbox, ranked = self._work, self._inbox, self._ranked
        around, generation, bare = work.around, work.generation, work.around.bare
        call, desk, running, ledger, spans, done, key_of, fields = _at_hand(work)
        tell, me = telling.running.set, asyncio.current_task()
        assert me is not None
        began, puts = time.monotonic(), 0
        since = began
        while not self.closing:
            if ranked is not None and (not inbox or puts != ranked.puts):
                puts, inbox = ranked.puts, ranked.front()
                if ranked.work is not work:
                    work = ranked.work
                    call, desk, running, ledger, spans, done, key_of, fields = _at_hand(work)
            if not inbox:
                await self._rest()
                began = since = time.monotonic()
                continue
            lease = inbox.popleft()
            key = key_of(lease)
            run = running[key] = Run(lease, me, began)
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
                result, problem = await desk.given(run, result, problem)
            if forks.generation != generation:
                forks.leave(lease.task, problem)
            # one look at the clock serves as the end of this run and the beginning of the next
            ended = time.monotonic()
            if ended - began < SHORTEST:
                spans.quick += 1
            elif not run.left:
                spans.add(ended - began)
                if (over := work.runtime.overrun(run, problem)) is not None:
                    result, problem = None, over
            began = ended
            if result is None and problem is None and not run.end:
                done(key, lease)
                if ledger is not None:
                    ledger.finish(lease)
            elif result is LEAVES_NO_ID and not run.end:
                desk.done_bare(key, lease)
                result = None
                if ledger is not None:
                    ledger.finish(lease)
            else:
                ends = run.left or (problem is not None and not isinstance(problem, Exception))
                desk.finished(run, result, problem)
                result = problem = None  # what their end runs is the task's doing, too
                if ledger is not None:
                    ledger.finish(lease)
                if ends:
                    return
            if (len(copy_context()) > 1 if bare else around.changed()) or me.cancelling():
                return  # another consumer begins, without the traces that the handler left in this one
            if ended - since > TURN:
                await asyncio.sleep(0)
                began = since = time.monotonic()


def _at_hand(
    work: Work,
) -> tuple[
    Callable[[Lease], Any],
    Desk,
    dict[int, Run],
    Ledger | None,
    Spans,
    Callable[[int, Lease], None],
    Callable[[Lease], int],
    Fields,
]:
    """Give what `_consume` uses for each task of a queue."""
    desk = work.desk
    return work.call, desk, desk.running, desk.ledger, desk.spans, desk.done, desk.key_of, work.voice.fields()
