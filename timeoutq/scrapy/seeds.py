"""The start of a spider, once for each queue: a task of its own, whose handler goes through the start requests.

The process that claims the start task puts the start requests. Until the start task is done, the queue is not drained,
so no other process ends for lack of work; if the process is killed, another process does the start task again. When all
start requests are in the queue, a mark in the queue's settings says so, and no process puts the start task again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider, version_info
from scrapy.exceptions import CloseSpider
from scrapy.utils.asyncgen import as_async_generator

from timeoutq.scrapy.opening import mark_started
from timeoutq.scrapy.visits import End, Visit
from timeoutq.words import telling
from timeoutq.words.arguments import error_words
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Lease, Release, Task

log = logging.getLogger(__name__)

IN_ONE_PUT = 100  # how many start requests are put in one call, at most
PUT_AFTER = 0.1  # seconds without a further start request after which those that were gathered are put


def former_start(spider: Spider) -> str:
    """Say that Scrapy does not call the spider's `start_requests`, as it does not since 2.16; empty if all is well.

    Raises `InvalidInput` if the spider would begin with nothing.
    """
    begin: Any = getattr(type(spider), "start", None)
    if hasattr(Spider, "start_requests") or not hasattr(spider, "start_requests"):
        return ""
    if not begin.__module__.startswith("scrapy."):
        return ""  # it may well call start_requests
    words = f"start_requests(), which Scrapy {version_info[0]}.{version_info[1]} does not call"
    if begin is Spider.start and not spider.start_urls:
        cure = "give it an `async def start(self)` that yields the same requests"
        if any(one.__module__.startswith("scrapy_redis") for one in type(spider).__mro__):
            cure = "write Spider for RedisSpider, and CrawlSpider for RedisCrawlSpider: `timeoutq help from-crawlers`"
        raise InvalidInput(f"spider {spider.name!r} begins by {words}: {cure}")
    return f"the spider has {words}"


class Seeds:
    """The start requests of one spider."""

    def __init__(self, crawl: Any) -> None:
        self._crawl = crawl  # the Crawl, which imports this module
        self.start: Any = None
        """What the spider's `start` gave, or its `start_requests`; the spider middleware keeps it here."""
        self.visit: Visit | None = None  # the visit of the start task, while this process does it
        self.is_broken = False  # whether the start requests have raised an error in this process
        self._stopped = False

    @property
    def task(self) -> str:
        return f"start:{self._crawl.spider.name}"

    async def put(self) -> None:
        """Put the start task, if it is not in the queue; bring it back if it has failed before."""
        queue = self._crawl.queue
        if (await queue.put(Task(self.task)))[0] is Answer.FAILED:
            await queue.retry_failed(self.task)

    def stop(self) -> None:
        """Stop in the middle: another process begins anew."""
        self._stopped = True

    async def sow(self, lease: Lease) -> End:
        """Go through the start requests, and put them; say what is to become of the start task."""
        if self.start is None:
            # this process has lost the task before, and has used up its start requests
            return Release(delay=0.0 if self._stopped else self._crawl.plan.lease)
        start, self.start = self.start, None
        self.visit = visit = Visit(lease, self.task)
        try:
            async for one in _each(start):
                if self._stopped:
                    return Release()
                if one is None:
                    await self._put(visit)
                elif isinstance(one, Request):
                    self._crawl.send(visit, one)
                    if len(visit.found) >= IN_ONE_PUT:
                        await self._put(visit)
                else:
                    await self._crawl.engine.store(one)
        except CloseSpider as closing:
            await self._put(visit)
            self._crawl.end(closing.reason)
            return Release()  # the next process begins anew
        except Exception as error:
            self.is_broken = True
            words, spider = "the start requests of spider %s cannot be had: %s", self._crawl.spider
            telling.say(log, logging.ERROR, words, spider.name, error_words(error), fields={"spider": spider})
            visit.broke(error)
        finally:
            self.visit = None
        await self._put(visit)
        if visit.end is None:
            await mark_started(self._crawl.queue)
        return visit.result()

    async def _put(self, visit: Visit) -> None:
        found, visit.found = visit.found, []
        if found:
            await self._crawl.queue.put(found)


async def _each(start: Any) -> AsyncIterator[Any]:
    """Give the start requests and items of a spider, one by one; give None if none has come for `PUT_AFTER` seconds."""
    requests = as_async_generator(start)
    while True:
        coming = asyncio.ensure_future(anext(requests, _END))
        try:
            done, _ = await asyncio.wait({coming}, timeout=PUT_AFTER)
            if not done:
                yield None
            found = await coming
        finally:
            coming.cancel()
        if found is _END:
            return
        yield found


_END = object()
