"""The scheduler of Scrapy whose requests are the tasks of a queue. The addon sets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro

from timeoutq.scrapy.crawl import crawl_of
from timeoutq.words.errors import TimeoutqError

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred


class Scheduler(BaseScheduler):
    """Hands the tasks of a queue to Scrapy's engine."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._stats: Any = crawler.stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        """Open the queue, and begin to claim. If it cannot be opened, the spider is closed soon, with one error line.

        Raises `InvalidInput` if the addon is not there.
        """
        return deferred_from_coro(self._open())

    async def _open(self) -> None:
        # Scrapy hides an error that is raised earlier
        self._crawl = crawl_of(self._crawler)
        try:
            await self._crawl.open()
        except TimeoutqError as error:
            self._crawl.refuse_to_open(error)

    def close(self, reason: str) -> Deferred[None] | None:
        """Give back what is left."""
        return deferred_from_coro(self._crawl.close()) if hasattr(self, "_crawl") else None

    def has_pending_requests(self) -> bool:
        """Say whether the queue may still bring requests."""
        return self._crawl.has_more

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; say whether it is to be fetched."""
        taken = self._crawl.add(request)
        if not taken:
            self._stats.inc_value("dupefilter/filtered")
        return taken

    def next_request(self) -> Request | None:
        """Give the next request of which this process has the lease."""
        request = self._crawl.next()
        if request is not None:
            self._stats.inc_value("scheduler/dequeued")
        return request
