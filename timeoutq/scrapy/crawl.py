"""One crawl in one process: Scrapy's scheduler, and a worker whose handler hands each lease to Scrapy.

The worker claims, extends leases, retries, acks and cleans as any worker does. So a spider shows among the workers, and
whatever is promised of workers holds for spiders.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from time import time
from typing import Any, Self, cast

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import deferred_from_coro, deferred_to_future
from scrapy.utils.misc import arg_to_iter
from tenacity import RetryCallState
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from timeoutq.client import AsyncQueue, twin
from timeoutq.scrapy import plan, tasks
from timeoutq.scrapy.engine import Engine
from timeoutq.scrapy.opening import opened
from timeoutq.scrapy.plan import LINE, Plan
from timeoutq.scrapy.seeds import Seeds, former_start
from timeoutq.scrapy.stored import Store
from timeoutq.scrapy.visits import End, Errback, Visit, visit_of
from timeoutq.words import telling
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Lease, Release, Task
from timeoutq.words.retry import GiveUp, Retry
from timeoutq.worker.worker import Worker

log = logging.getLogger(__name__)

ERROR = "timeoutq_error"  # the reason with which a spider is closed when timeoutq cannot go on
LAST_ACKS = 2.0  # seconds that a worker without work has to end by itself, before it is told to end at once
LOOK_EVERY = 0.2  # seconds between two looks at the engine: whether it closes, and whether it has dropped a request
ASK_EVERY = 1.0  # seconds between two questions whether the queue is drained, while a process that stays is not busy
ANY_TIME = 1e6  # seconds for which a worker may drain: Scrapy itself decides how long it waits for what it fetches
SHORTEST_WAIT, LONGEST_WAIT = 10.0, 600.0
"""How long a task waits for a method that the spider lacks: each wait is twice as long as the one before. Seconds."""


class Crawl(BaseScheduler):
    """What the engine, the middlewares and the signals of one crawler share: the addon sets it as the scheduler."""

    def __init__(self, crawler: Crawler, plan: Plan) -> None:
        self.plan = plan
        self.engine = Engine(crawler)
        self.seeds = Seeds(self)
        self.queue: AsyncQueue
        self._crawler = crawler
        self._ready: deque[Visit] = deque()
        self._taken: set[Visit] = set()
        self._missing: set[Visit] = set()  # visits whose request the engine did not have at the last look
        self._parent: Visit | None = None  # the visit whose request is on its way from the middleware to the scheduler
        self._strays = count(1)  # numbers the requests of no visit that have `dont_filter`: each is a task of its own
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._told: dict[str, int] = {}
        self._lacking: set[str] = set()  # the methods of which it was said that the spider lacks them
        self._store: Store | None = None
        self._stays = plan.stay  # whether the worker goes on when the queue is drained
        self._is_idle = False  # whether the queue was drained when a process that stays has last asked
        self._sent_idle = False  # whether Scrapy has sent `spider_idle` since there was something to do
        self._is_drained = False  # whether the worker has ended
        self._is_refused = False  # whether the queue could not be opened
        self._stopping = False  # whether the worker was told to claim no more, because the engine closes

    # ---- what Scrapy's engine calls

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        found: Any = CRAWLS.get(crawler)  # without the addon there is none, and `open` says so
        return found or cls(crawler, plan.read(crawler.settings))

    def open(self, spider: Spider) -> Deferred[None]:
        """Open the queue, and begin to claim; if it cannot be opened, close the spider soon, with one error line."""
        return deferred_from_coro(self._open())

    def close(self, reason: str) -> Deferred[None]:
        """End the work: give back what is left, and say farewell."""
        return deferred_from_coro(self._close())

    def has_pending_requests(self) -> bool:
        return not (self._is_drained or self._is_idle)

    def enqueue_request(self, request: Request) -> bool:
        taken = self._add(request)
        if not taken:
            self._count("dupefilter/filtered")
        return taken

    def next_request(self) -> Request | None:
        """Give the next request of which this process has the lease."""
        while self._ready:
            visit = self._ready.popleft()
            if not visit.is_over and visit.request is not None:
                self._taken.add(visit)
                self._count("scheduler/dequeued")
                return visit.request
        return None

    # ---- the beginning and the end

    @property
    def spider(self) -> Spider:
        spider = self._crawler.spider
        assert spider is not None
        return spider

    async def _open(self) -> None:
        crawl_of(self._crawler)  # Scrapy hides an error that is raised earlier
        try:
            await self._open_queue()
        except TimeoutqError as error:
            where = "" if isinstance(error, InvalidInput) else " (TIMEOUTQ_URL says where it is)"
            self._say(logging.ERROR, "timeoutq cannot begin: %s%s", error, where)
            self.plan.note_error()
            self._is_drained = self._is_refused = True
            self._crawler.signals.connect(self._close_refused, signals.spider_idle)

    async def _open_queue(self) -> None:
        self._usual = self._crawler.settings["REQUEST_FINGERPRINTER_CLASS"] == (
            "scrapy.utils.request.RequestFingerprinter"
        )
        self.queue, seeded = await opened(self.plan, self.spider)
        self._twin = twin(self.queue)
        self._tell_unheld("" if seeded else former_start(self.spider))
        if self.plan.items is not None:
            self._store = Store(self.plan.items, f"{self.queue.name}-{self.queue.worker}")
        if not seeded:
            await self.seeds.put()
        for receiver, signal in (
            (self._on_stored, signals.item_scraped), (self._on_item, signals.item_dropped),
            (self._on_item_error, signals.item_error), (self._on_idle, signals.spider_idle),
        ):  # fmt: skip
            self._crawler.signals.connect(receiver, signal)
        atexit.register(self._give_back)
        self._work()
        self._watching = [asyncio.create_task(one) for one in (self._watch(), self._watch_for_idleness())]

    def _close_refused(self) -> None:
        self.engine.close(ERROR)  # another handler of spider_idle may raise DontCloseSpider, which outdoes CloseSpider
        raise CloseSpider(ERROR)

    async def _close(self) -> None:
        CRAWLS.pop(self._crawler, None)
        for one in self._watching:
            one.cancel()
        if self._worker is not None and self._working is not None:
            if not self._working.done() and not self._worker.running:
                self._stop_waiting()  # it only has to send its last acks, and gives nothing back
                await asyncio.wait({self._working}, timeout=LAST_ACKS)
            if not self._working.done():
                self._worker.stop(now=True)
            await asyncio.wait({self._working}, timeout=self.queue.talk.deadline + 5)
            await self._tell_failed()
        self._tell_stats()
        if hasattr(self, "_twin"):
            await self.queue.close()
            self._twin.close()
        atexit.unregister(self._give_back)
        if self._store is not None:
            self._store.close()

    def _give_back(self) -> None:
        # after a second Ctrl-C there is no event loop any more: only this function, by atexit, can give leases back
        worker = self._worker
        if worker is not None:
            with suppress(TimeoutqError):  # else the leases run out, and other processes take the pages then
                if worker.held:
                    self._twin.release(list(worker.held.values()))
                self._twin.run(worker.give_back_unread())

    def _work(self) -> None:
        self._tell_stats()  # the last numbers of the worker before
        self._told.clear()
        self._is_drained = False
        self._worker = Worker(
            self.queue, self, concurrency=self.plan.batch, prefetch=0, burst=not self._stays, signals=False,
            retry=(self.queue.retry.wait, self._is_last_attempt), drain_deadline=ANY_TIME, max_releases=None,
        )  # fmt: skip
        self._working = asyncio.create_task(self._run(self._worker), name=f"worker-{self.queue.name}")

    async def _run(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception as error:
            trace = None if isinstance(error, TimeoutqError) else error  # its message says all
            self._say(logging.ERROR, "the worker of queue %s has ended: %s", self.queue.name, error, exc_info=trace)
            self.plan.note_error()
            if not self.engine.is_closing:
                self.engine.close(ERROR)
        self._is_drained = True
        self.engine.poke()

    # ---- leases come

    async def __call__(self, lease: Lease) -> End:
        """Handle a task: the worker calls this."""
        end = await self._handle(lease)
        if isinstance(end, GiveUp):
            self._count("timeoutq/given_up")
        return end

    async def _handle(self, lease: Lease) -> End:
        self._is_idle = self._sent_idle = False
        if lease.task == self.seeds.task:
            return await self.seeds.sow(lease)
        try:
            request = tasks.request_of(lease.task, lease.payload, self.spider)
        except tasks.MissingMethod as missing:
            self._count("timeoutq/waits_for_method")
            return await self._wait_for_method(lease, str(missing))
        except InvalidInput as bad:
            return GiveUp(str(bad))
        visit = self._visit(lease, request)
        self._ready.append(visit)
        self.engine.poke()
        try:
            await visit.over
        finally:
            visit.finish()  # no effect after a normal end; else the lease is lost, or the worker ends
            self._taken.discard(visit)
        if visit.retry_after and visit.retry is None:
            await self._spare(visit)
        if visit.found and not visit.puts_with_ack:
            await self.queue.put(visit.found)  # what a failed callback has found is kept
        return visit.result()

    async def _wait_for_method(self, lease: Lease, missing: str) -> Retry | Release:
        """Let a task wait by one `Retry`, whose reason `why` shows, and then by releases, which are no attempts."""
        if missing not in self._lacking:
            self._lacking.add(missing)
            self._say(logging.WARNING, "queue %s: %s", self.queue.name, missing)
        if lease.attempt > 1:
            info = await self.queue.inspect(lease.task)
            if missing in (info.error or ""):
                return Release(delay=min(LONGEST_WAIT, SHORTEST_WAIT * 2 ** min(info.releases + 1, 10)))
        return Retry(after=SHORTEST_WAIT, reason=missing)

    async def _spare(self, visit: Visit) -> None:
        """Let no process visit the host for as long as it asked, although the page itself is not tried again."""
        slot = cast("Request", visit.request).meta.get("download_slot") if visit.keeps_slot else None
        host, until = slot or visit.lease.task, time() + visit.retry_after
        with suppress(TimeoutqError):  # the page has ended all the same
            known = (await self.queue.hosts.inspect(host)).blocked_until
            if known is None or known < until:
                await self.queue.hosts.block(host, for_=visit.retry_after, reason=visit.reason)

    def _is_last_attempt(self, state: RetryCallState) -> bool:
        # not after a `Retry`, as RetryMiddleware counts to RETRY_TIMES
        if state.outcome is not None and isinstance(state.outcome.exception(), Retry):
            return False
        self._count("timeoutq/given_up")
        return True

    def _visit(self, lease: Lease, request: Request) -> Visit:
        if lease.attempt > 1:
            # attempts are counted in Redis; RetryMiddleware reads them here
            request.meta["retry_times"] = request.meta.get("retry_times", 0) + lease.attempt - 1
        visit = Visit(lease, self._base(request))
        visit.keeps_slot = "download_slot" in request.meta
        request.errback = Errback(visit, request.errback, self._on_failure)
        visit.request = request
        return visit

    # ---- requests go out

    def send(self, visit: Visit, request: Request) -> None:
        """Hand the engine a request that a visit has yielded; it comes back as `enqueue_request` within this call."""
        before, self._parent = self._parent, visit
        try:
            self.engine.crawl(request)
        finally:
            self._parent = before

    def _add(self, request: Request) -> bool:
        """Take a request from the engine; say no for one that its visit has yielded before, or that no queue can hold.

        If the server is away, what is put at once raises the error to its caller.
        """
        if self._is_refused:
            return False
        visit = self._parent
        replaced = None if visit is not None else visit_of(request)
        try:
            if visit is not None:  # a callback, or the start of the spider
                return self._add_to(visit, request)
            if replaced is not None and not replaced.has_response and not replaced.is_over:
                return self._replace(replaced, request)
            # an extension or a pipeline
            id = self._base(request)
            if request.dont_filter:
                id = tasks.fresh_id(id, self.queue.worker, next(self._strays))
            self._put_now(self._task(id, request))
            return True
        except InvalidInput as refused:
            self._refuse(refused, visit or replaced)
            return False

    def _refuse(self, refused: InvalidInput, visit: Visit | None) -> None:
        self._count("timeoutq/refused")
        words = str(refused)
        if visit is not None:
            asked = visit.request
            by = asked and f"it was yielded by {tasks.callback_name(asked)} of {asked.url}"
            words += f"; {by or 'it is a start request of the spider'}"
            visit.close(GiveUp(words))  # without a traceback: it would show nothing of the spider
        self._say(logging.ERROR, "%s", words)

    def _add_to(self, visit: Visit, request: Request) -> bool:
        base = self._base(request)
        is_retry = base == visit.base and visit.is_retried_by(request)
        if is_retry and not visit.is_changed_in(request):
            visit.retry = self._retry(visit)
            return True
        if not request.dont_filter:
            if base in visit.ids:
                return False
            visit.ids.add(base)
            visit.found.append(self._task(base, request, visit))
        elif base == visit.base and visit.again is None:
            try:
                again = {**self._payload(visit.lease.task, request, visit)[0], "turn": visit.turn + 1}
                visit.again = tasks.task_of(request, visit.lease.task, again).payload
            except InvalidInput:
                if not is_retry:
                    raise
                visit.retry = self._retry(visit)  # a download handler may have added what cannot travel
        else:
            visit.fresh[base] += 1
            id = tasks.fresh_id(base, visit.lease.task, visit.fresh[base])
            visit.found.append(self._task(id, request, visit))
        return True

    def _replace(self, visit: Visit, request: Request) -> bool:
        """Take a request that a downloader middleware has put in the place of the visit's own."""
        base = self._base(request)
        try:
            if base == visit.base or request.dont_filter:
                return self._add_to(visit, request)
            visit.found.append(self._task(base, request, visit))
            return True
        finally:
            visit.end_output()

    def _retry(self, visit: Visit) -> Retry:
        self._count("timeoutq/retried")
        return Retry(visit.retry_after or None, visit.reason or "retried by the spider", visit.retry_after)

    def _base(self, request: Request) -> str:
        return tasks.base_id(request, self._crawler.request_fingerprinter, usual=self._usual)

    def _task(self, id: str, request: Request, visit: Visit | None = None) -> Task:
        task = tasks.task_of(request, id, *self._payload(id, request, visit))
        self._count("scheduler/enqueued")
        return task

    def _payload(self, id: str, request: Request, visit: Visit | None) -> tuple[tasks.Payload, str | None]:
        errback: Any = request.errback
        if isinstance(errback, Errback):
            errback = errback.function  # that of the spider
        slot = None if visit is None else visit.slot
        return tasks.payload_of(request, self.spider, id, errback, inherited=slot)

    def _put_now(self, task: Task) -> None:
        """Put a task that goes with no ack. A worker that has ended for lack of tasks is followed by another."""
        self._twin.put(task)
        self._is_idle = self._sent_idle = False
        if self._is_drained and not self.engine.is_closing:
            self._work()
        self.engine.poke()

    # ---- what happens to visits

    def _on_failure(self, visit: Visit, function: Any, failure: Failure) -> Any:
        """Stand in for the errback of a request."""
        try:
            output = failure if function is None else function(failure)
        except BaseException as error:
            visit.broke(error)
            if not visit.has_response:
                visit.end_output()
            raise
        if visit.has_response:  # the output passes the spider middleware, too
            if function is None:
                visit.unhandled(failure)
            return output
        if isinstance(output, Failure):
            visit.unhandled(output)
            visit.end_output()
            return output
        return self.follow_async(visit, _each(output))

    def follow(self, visit: Visit, output: Any) -> Iterator[Any]:
        """Go through what a callback yields: requests go to the visit, items go on to the pipelines."""
        with self._output_of(visit):
            for one in output:
                if self._sift(visit, one):
                    yield one

    async def follow_async(self, visit: Visit, output: Any) -> AsyncIterator[Any]:
        with self._output_of(visit):
            async for one in output:
                if self._sift(visit, one):
                    yield one

    @contextmanager
    def _output_of(self, visit: Visit) -> Iterator[None]:
        """Note the end of what a callback yields, and the error that has ended it, if any."""
        try:
            yield
        except BaseException as error:
            visit.broke(error)
            raise
        finally:
            visit.end_output()

    def _sift(self, visit: Visit, one: Any) -> bool:
        """Send a request, and count an item; say whether this goes on to the pipelines."""
        if isinstance(one, Request):
            self.send(visit, one)
            return False
        visit.items += one is not None
        return True

    def _on_item(self, response: Any) -> None:
        visit = self._visit_of(response)
        if visit is not None:
            visit.item_in()

    def _on_stored(self, item: Any, response: Any) -> None:
        visit = self._visit_of(response)
        if self._store is not None:
            try:
                self._store.write(item, None if visit is None else visit.lease)
            except Exception as error:
                if visit is None:
                    raise
                visit.broke(error)
        self._on_item(response)

    def _on_item_error(self, response: Any, failure: Any) -> None:
        visit = self._visit_of(response)
        if visit is not None:
            visit.broke(failure.value)
            visit.item_in()

    def _visit_of(self, response: Any) -> Visit | None:
        return self.seeds.visit if response is None else visit_of(getattr(response, "request", None))

    # ---- looks at the engine

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._tell_stats()
            if self.engine.is_closing:
                self._stop_waiting()
            elif self._ready:
                self.engine.poke()
            elif self._is_drained and self._sent_idle:
                # Scrapy has sent `spider_idle`, and the process does not close: a handler keeps it open, so it stays
                self._stays = self._is_idle = True
                self._work()
            self._find_dropped()

    async def _watch_for_idleness(self) -> None:
        """Find out whether a process that stays has nothing to do, so that Scrapy sends `spider_idle`."""
        while True:
            await asyncio.sleep(ASK_EVERY)
            if self._stays and not self._is_idle and not self._is_busy():
                with suppress(TimeoutqError):  # the server is away: the worker tells of it
                    self._is_idle = await self.queue.drained() and not self._is_busy()
                    if self._is_idle:
                        self.engine.poke()

    def _is_busy(self) -> bool:
        return self._worker is None or bool(self._worker.held)

    def _on_idle(self) -> None:
        self._sent_idle = True
        if self.plan.stay:
            raise DontCloseSpider
        if self.seeds.is_broken:
            raise CloseSpider("start_error")  # as Scrapy says it since 2.19

    def end(self, reason: str) -> None:
        """Close the spider, and claim nothing from now on."""
        self.engine.close(reason)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Claim no more, and give back what waits; what Scrapy fetches and parses goes on."""
        if self._worker is not None and not self._is_drained:
            if not self._stopping:
                self._stopping = True
                self._worker.stop()
            while self._ready:
                visit = self._ready.popleft()
                visit.close(Release())
                visit.finish()
            self.seeds.stop()

    def _find_dropped(self) -> None:
        """End visits whose requests have left the engine without a word: a middleware has dropped or replaced them."""
        gone = {visit for visit in self._taken if visit.request is not None and not self.engine.has(visit.request)}
        for visit in gone & self._missing:  # missing at two looks in a row: at one look it may be between two steps
            if not visit.output_over:
                visit.close(GiveUp("Scrapy has dropped the request before a callback or an errback was called"))
            visit.finish()
        self._missing = gone

    # ---- what it says of itself

    def _say(self, level: int, message: str, *words: object, exc_info: BaseException | None = None) -> None:
        telling.say(log, level, message, *words, exc_info=exc_info, fields={"spider": self.spider})

    def _count(self, name: str, n: int = 1) -> None:
        stats: Any = self._crawler.stats
        stats.inc_value(name, n)

    def _tell_unheld(self, *more: str) -> None:
        missing = [*filter(None, more), *self.plan.unheld, *plan.unheld_by_pipelines(self._crawler.settings)]
        if missing:
            words = "queue %s: not all is as in Scrapy alone: %s"
            self._say(logging.WARNING, words, self.queue.name, "; ".join(missing))

    async def _tell_failed(self) -> None:
        with suppress(TimeoutqError):  # these words must not keep the spider from closing
            failed, name = (await self.queue.stats()).failed, self.queue.name
            if failed:
                tasks_are = "1 task is" if failed == 1 else f"{failed:,} tasks are"
                words = "queue %s: %s in failed; to see them: timeoutq list %s failed"
                self._say(logging.WARNING, words, name, tasks_are, name)
                if self.plan.fail_exit:
                    self.plan.note_error()

    def _tell_stats(self) -> None:
        if self._worker is None:
            return
        tally = self._worker.tally
        for name in ("claimed", "acked", "failed", "released", "lost"):
            now, told = getattr(tally, name), self._told.get(name, 0)
            if now != told:
                self._count(f"timeoutq/{name}", now - told)
                self._told[name] = now


async def _each(output: Any) -> AsyncIterator[Any]:
    """Give what an errback gives, one by one: it may be a coroutine, a Deferred, a generator of either kind, or one."""
    if hasattr(output, "asFuture"):
        output = deferred_to_future(output)
    if inspect.isawaitable(output):
        output = await output
    found: Any = output if hasattr(output, "__aiter__") else cast("Iterable[Any]", arg_to_iter(output))
    async for one in as_async_generator(found):
        yield one


CRAWLS: dict[Crawler, Crawl] = {}
"""Which crawl belongs to which crawler: the addon notes it, and the parts that Scrapy makes ask for it."""


def crawl_of(crawler: Crawler) -> Crawl:
    """Give the crawl of a crawler. Raises `InvalidInput` if the addon did not note it."""
    if crawler not in CRAWLS:
        raise InvalidInput(
            "timeoutq's scheduler works only with its middlewares, and these come with the addon: remove SCHEDULER and "
            f"the middlewares of timeoutq from the settings, and write {LINE}"
        )
    return CRAWLS[crawler]
