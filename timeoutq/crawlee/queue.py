"""The request queue of crawlee: requests are leased, kept alive while their handlers run, and acked.

crawlee asks `is_empty` before each `fetch_next_request`. So `is_empty` claims, and keeps what it has claimed for the
fetch: the two are one call to the server. What nobody fetches is soon given back.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from time import time
from typing import Any

from crawlee import Request
from crawlee.storage_clients._base import RequestQueueClient  # whence crawlee's guide has storage clients import it
from crawlee.storage_clients.models import AddRequestsResponse, ProcessedRequest, RequestQueueMetadata

from timeoutq.client import AsyncQueue, twin
from timeoutq.client.heartbeat import about
from timeoutq.client.together import together
from timeoutq.crawlee.tasks import id_of, request_of, task_of
from timeoutq.verbs.sending import Flow, answer
from timeoutq.words import arguments, telling
from timeoutq.words.errors import LeaseLost, TimeoutqError
from timeoutq.words.model import Answer, Lease, State, Task
from timeoutq.worker.cleaner import Cleaner

_say = partial(telling.say, logging.getLogger(__name__))

FOREFRONT = 1000
"""The priority of requests that go first, on a polite queue."""
WAIT, SHORT_WAIT = 0.5, 0.02
"""Seconds that `is_empty` waits for a request, as crawlee asks again half a second after a no; and the same while
handlers run: crawlee asks again when one of them ends."""
FETCHED_WITHIN = 1.0
"""Seconds after which a request that `is_empty` has claimed, and nobody has fetched, is given back."""
OPENING = "it opens the queue"
"""The trouble of a process that may purge the queue."""


class TimeoutqRequestQueueClient(RequestQueueClient):
    """A request queue that several processes share; `TimeoutqStorageClient` makes it."""

    def __init__(self, queue: AsyncQueue, name: str | None) -> None:
        self.queue = queue
        self._name = name
        self._keeper = queue.keeper(self._lost)
        self._ready: deque[Lease] = deque()  # claimed, and not fetched yet
        self._held: dict[str, Lease] = {}  # fetched, by id
        self._has_fetched = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._opened = datetime.now(UTC)
        atexit.register(self._leave)

    # ---- the beginning and the end

    async def join(self, purge: bool) -> None:
        """Open a queue without a name, which is purged only if no other process lives on it.

        Who looks around has told of itself before. So of those who open the queue at the same time one at most is
        alone, and the others wait until it has done.
        """
        await self._tell(OPENING)
        if purge and not await self._others():
            await self._forget_all()
        await self._tell("")
        while OPENING in await self._others():  # noqa: ASYNC110  # what they do is known to the server only
            await asyncio.sleep(0.05)
        await self._keeper.__aenter__()  # it gives signs of life from now on

    async def _tell(self, trouble: str) -> None:
        said = about(self.queue, concurrency=1, held=0, acked=0, failed=0, started=time())
        call = self.queue.operations.beat(self.queue.worker, {**said, "trouble": trouble}, None)
        await self.queue.run(answer(self.queue.talk, call))

    async def _others(self) -> list[str]:
        """Give the troubles of the other processes that live."""
        now = self.queue.talk.clock.now_ms / 1000
        found = await self.queue.workers()
        return [other.trouble for other in found if other.worker != self.queue.worker and not other.is_gone(now)]

    async def close(self) -> None:
        """Give back what is held, and close the connections."""
        await self._end_work()
        await self.queue.close()

    async def _end_work(self) -> None:
        atexit.unregister(self._leave)
        if self._cleaning is not None and self._loop is asyncio.get_running_loop():
            self._cleaning.cancel()
            await asyncio.gather(self._cleaning, return_exceptions=True)
        await self._release(self._forgotten())
        await asyncio.gather(*self._background)
        await self._keeper.close()

    def _leave(self) -> None:
        # an interrupted crawl has no event loop any more: only this function, by atexit, can give leases back
        with suppress(TimeoutqError):  # else the leases run out
            if leases := self._forgotten():
                with twin(self.queue) as queue:
                    queue.release(leases)
        self._keeper._stop()  # with a farewell: a process that starts now is alone

    def _forgotten(self) -> list[Lease]:
        leases = [*self._held.values(), *self._ready]
        self._held.clear()
        self._ready.clear()
        self._keeper.remove(*leases)
        return leases

    async def drop(self) -> None:
        """Remove the queue, with its settings; nobody uses this client any more."""
        await self._end_work()
        await self.queue.purge()
        await self.queue.close()

    async def purge(self) -> None:
        """Remove all requests; settings, such as the politeness of the queue, stay.

        crawlee purges a queue without a name before a second run: such a queue stays if another process lives on it.
        """
        if self._name is None and await self._others():
            _say(logging.WARNING, "queue %s is not purged: another process uses it", self.queue.name)
        else:
            await self._forget_all()

    async def _forget_all(self) -> None:
        self._forgotten()
        for state in State:
            if found := [entry.task async for entry in self.queue.each(state)]:
                await self.queue.forget(*found)

    # ---- requests in

    async def add_batch_of_requests(
        self, requests: Sequence[Request], *, forefront: bool = False
    ) -> AddRequestsResponse:
        """Put requests; on a polite queue, `forefront` is a priority."""
        priority = await self._priority(forefront)
        answers = await self.queue.put(*(task_of(request, priority=priority) for request in requests))
        processed = [
            _processed(request, answer != Answer.ADDED, answer in (Answer.DONE, Answer.FAILED))
            for request, answer in zip(requests, answers, strict=True)
        ]
        return AddRequestsResponse(processed_requests=processed, unprocessed_requests=[])

    async def _priority(self, forefront: bool) -> int | None:
        return FOREFRONT if forefront and (await self.queue.stats()).politeness else None

    # ---- requests out

    async def is_empty(self) -> bool:
        """Say whether there is no request to fetch, after a short wait for one, unless the crawl is over."""
        if self._ready:
            return False
        if self._has_fetched and await self.is_finished():
            return True
        await self._claim(SHORT_WAIT if self._held else WAIT)
        return not self._ready

    async def is_finished(self) -> bool:
        """Say whether the queue is drained: no process has a request, and none will get one."""
        return not self._held and not self._ready and await self.queue.drained()

    async def fetch_next_request(self) -> Request | None:
        """Give a request, whose lease is kept alive until it is handled or reclaimed; None if none is ready."""
        while True:
            if not self._ready:
                await self._claim(0)
            if not self._ready:
                return None
            lease = self._ready.popleft()
            try:
                request = request_of(lease.task, lease.payload)
            except ValueError as error:
                words = "queue %s: task %a is no request, and fails: %s"
                _say(logging.ERROR, words, self.queue.name, lease.task, arguments.error_words(error))
                with suppress(LeaseLost):
                    await self.queue.fail(lease, error, give_up=True)
                continue
            self._held[lease.task] = lease
            self._has_fetched = True
            # crawlee does not say how many requests it handles at once
            self._keeper.concurrency = max(self._keeper.concurrency, len(self._held))
            return request

    async def _claim(self, wait: float) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the handlers of an event loop that has ended will not end
            self._loop = loop
            # while tasks are ready, no claim takes back those of dead processes
            self._cleaning = loop.create_task(Cleaner(self.queue).run())
            await self._release(self._forgotten())
        self._take(await self.queue.claim(1, wait=wait))

    def _take(self, leases: list[Lease]) -> None:
        for lease in leases:
            self._keeper.add(lease)
            self._ready.append(lease)
            asyncio.get_running_loop().call_later(FETCHED_WITHIN, self._give_back, lease)

    def _give_back(self, lease: Lease) -> None:
        if lease in self._ready:
            self._ready.remove(lease)
            self._soon(self._release([lease]))

    def _lost(self, lease: Lease, answer: Answer) -> None:
        words = "queue %s: the lease on request %a has ended (%s) while its handler runs"
        _say(logging.WARNING, words, self.queue.name, lease.task, answer)
        if lease in self._ready:
            self._ready.remove(lease)
        if self._held.get(lease.task) == lease:
            del self._held[lease.task]
        if answer == Answer.CANCELLED:
            self._soon(self._release([lease]))  # the task goes to failed

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, leases: list[Lease]) -> None:
        try:
            if leases:
                await self.queue.release(leases)
        except TimeoutqError as error:
            _say(logging.WARNING, "queue %s: %d leases run out: %s", self.queue.name, len(leases), error)

    async def mark_request_as_handled(self, request: Request) -> ProcessedRequest | None:
        """Ack a request; None if this process does not hold it any more."""
        request.handled_at = request.handled_at or datetime.now(UTC)
        lease = self._held.get(id_of(request.unique_key))
        return None if lease is None else await self._end(lease, request, None)

    async def reclaim_request(self, request: Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Make a request ready again as it is now, with its retry count; on a polite queue, `forefront` is a priority.

        Gives None if this process does not hold the request any more.
        """
        lease = self._held.get(id_of(request.unique_key))
        if lease is None:
            return None
        task = task_of(request, priority=await self._priority(forefront), rerun=True)
        return await self._end(lease, request, task)

    async def _end(self, lease: Lease, request: Request, again: Task | None) -> ProcessedRequest | None:
        # crawlee asks for another request at once: it comes with the same call
        flows = self.queue.flows
        steps: list[Flow[Any]] = [flows.ack(lease, put=again), flows.claim(1)]
        ended, leases = await self.queue.run(together(steps))
        if not isinstance(leases, TimeoutqError):
            self._take(leases)
        if isinstance(ended, TimeoutqError) and not isinstance(ended, LeaseLost):
            raise ended
        self._held.pop(lease.task, None)
        if isinstance(ended, LeaseLost):
            _say(logging.WARNING, "queue %s: request %a: %s", self.queue.name, lease.task, ended)
            return None
        if again is None:
            self._keeper.acked += 1
        else:
            self._keeper.failed += 1
        return _processed(request, True, again is None)

    # ---- looking

    async def get_request(self, unique_key: str) -> Request | None:
        """Give a request; of one that was handled, the queue knows nothing but its key."""
        info = await self.queue.inspect(id_of(unique_key))
        if info.state is None:
            return None
        with suppress(ValueError):  # only the digest of a long key is left
            request = request_of(info.task, info.payload)
            if info.state in (State.DONE, State.FAILED):
                request.handled_at = datetime.now(UTC)
            return request
        return None

    async def get_metadata(self) -> RequestQueueMetadata:
        """Count requests. The queue keeps no times: it was created when this process opened it, and is read now."""
        stats, now = await self.queue.stats(), datetime.now(UTC)
        handled = stats.done + stats.failed
        return RequestQueueMetadata(
            id=self.queue.name, name=self._name, created_at=self._opened, accessed_at=now, modified_at=now,
            had_multiple_clients=stats.workers > 1, handled_request_count=handled,
            pending_request_count=stats.known - handled, total_request_count=stats.known,
        )  # fmt: skip


def _processed(request: Request, is_known: bool, is_handled: bool) -> ProcessedRequest:
    return ProcessedRequest(unique_key=request.unique_key, was_already_present=is_known, was_already_handled=is_handled)
