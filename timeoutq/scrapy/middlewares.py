"""The middlewares that the addon sets: for the output of callbacks, the downloader, and requests that are no tasks.

Media pipelines, callbacks that ask the engine (`download_async`), and robots.txt fetch pages that no queue knows of.
Scrapy's own delay spaces these, in each process; after a page, the delay begins when the page has come.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from scrapy import Request, signals, version_info
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.utils.asyncgen import as_async_generator

from timeoutq.scrapy.crawl import crawl_of
from timeoutq.scrapy.visits import contents, visit_of
from timeoutq.words import telling
from timeoutq.words.arguments import error_words
from timeoutq.words.retry import retry_after

if TYPE_CHECKING:
    from scrapy.http import Response

    from timeoutq.scrapy.crawl import Crawl

log = logging.getLogger(__name__)

ASKS_TO_WAIT = {429, 503}
LONGEST_BLOCK = 3600.0  # A host is spared no longer than this, whatever its Retry-After says. Seconds

MANY = 1_000  # of so many hosts it is known whether the last request was no task; of more, while Scrapy knows the host


class SpiderSide:
    """Gathers what a callback yields. It stands next to the engine: what it sees has passed all other middlewares."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawl_of(crawler))

    def process_start_requests(self, start_requests: Any, spider: Any = None) -> Any:
        """Keep the start requests for the start task (Scrapy 2.11 and 2.12)."""
        self._crawl.seeds.start = start_requests
        return iter(())

    def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        self._crawl.seeds.start = start  # at once, and not when the engine asks for the first request
        return as_async_generator(())

    def process_spider_input(self, response: Response, spider: Any = None) -> None:
        visit = visit_of(response.request)
        if visit is not None:
            visit.has_response = True

    def process_spider_output(self, response: Response, result: Any, spider: Any = None) -> Iterator[Any]:
        visit = visit_of(response.request)
        return iter(result) if visit is None else self._crawl.follow(visit, result)

    async def process_spider_output_async(
        self, response: Response, result: Any, spider: Any = None
    ) -> AsyncIterator[Any]:
        visit = visit_of(response.request)
        async for one in result if visit is None else self._crawl.follow_async(visit, result):
            yield one

    def process_spider_exception(self, response: Response, exception: Exception, spider: Any = None) -> None:
        """Note an error that no other middleware has taken."""
        visit = visit_of(response.request)
        if visit is not None:
            visit.broke(exception)
            visit.end_output()


class DownloaderSide:
    """Notes what the downloader is asked for and what it brings, for retries. It stands next to the downloader.

    Pages wait for requests that are no tasks, and all wait for robots.txt.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._engine = crawl_of(crawler).engine
        self._tells_cookies = crawler.settings.getbool("COOKIES_ENABLED")  # whether it was not said yet
        self._strayed: set[str] = set()  # the slots of the downloader whose last request was no task

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        made = cls(crawler)
        crawler.signals.connect(made.reach, signals.request_reached_downloader)
        crawler.signals.connect(made.come, signals.response_downloaded)
        return made

    async def process_request(self, request: Request, spider: Any = None) -> None:
        """Ask robots.txt once more, and note what the downloader is asked for. Raises `IgnoreRequest` if it forbids it.

        Since Scrapy 2.14, of several requests that wait for one robots.txt, only the first heeds it.
        """
        robots = self._crawler.get_downloader_middleware(RobotsTxtMiddleware) if version_info >= (2, 14) else None
        if robots is not None and type(robots).process_request is RobotsTxtMiddleware.process_request:
            await robots.process_request(request)
        visit = visit_of(request)
        if visit is not None:
            visit.sent = contents(request)

    def process_response(self, request: Request, response: Response, spider: Any = None) -> Response:
        """Note the status, and for how long the host asks to be left alone."""
        if self._tells_cookies and "Set-Cookie" in response.headers:
            self._tells_cookies = False
            words = (
                "%s sets cookies, and other processes of this crawl do not have them, nor has one that is started "
                "later. If pages need a session, pass cookies= with the requests, or run one process; else set "
                "COOKIES_ENABLED to False"
            )
            telling.say(log, logging.WARNING, words, urlsplit(response.url).hostname)
        visit = visit_of(request)
        if visit is not None:
            visit.reason = f"HTTP {response.status}"
            if response.status in ASKS_TO_WAIT:
                asked = (response.headers.get("Retry-After") or b"").decode("latin-1")
                visit.retry_after = retry_after(asked, time(), LONGEST_BLOCK) or 0.0
        return response

    def process_exception(self, request: Request, exception: Exception, spider: Any = None) -> None:
        visit = visit_of(request)
        if visit is not None:
            visit.reason = error_words(exception)

    def reach(self, request: Request) -> None:
        """Let a page go at once, as the queue has spaced it; not if the last request of its slot was no task."""
        name, slots = request.meta.get("download_slot", ""), self._engine.slots
        slot = slots.get(name)
        if visit_of(request) is None:
            if len(self._strayed) >= MANY:
                self._strayed &= slots.keys()
            self._strayed.add(name)
        elif name in self._strayed:
            self._strayed.discard(name)
        elif slot is not None and not slot.queue:
            slot.close()  # ends its pause; the slot stays open
            slot.lastseen = 0.0

    def come(self, request: Request) -> None:
        """Let the delay after a page begin when the page has come: the first one leaves long after Scrapy noted it."""
        slot = self._engine.slots.get(request.meta.get("download_slot", ""))
        if slot is not None and visit_of(request) is not None:
            # by the clock of Scrapy, which is another one in each version
            slot.lastseen = min(time(), monotonic(), key=lambda now: abs(now - slot.lastseen))
