"""Requests that are no tasks, and robots.txt: what Scrapy itself decides about visits, and what timeoutq adds to that.

Media pipelines, callbacks that ask the engine (`download_async`), and robots.txt fetch pages that no queue knows of.
Scrapy's own delay spaces these, in each process; after a page, the delay begins when the page has come.
"""

from __future__ import annotations

from time import monotonic, time
from typing import Any, Self

from scrapy import Request, signals, version_info
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware

from timeoutq.scrapy.crawl import crawl_of
from timeoutq.scrapy.visits import visit_of

MANY = 1_000
"""Of so many hosts it is known whether the last request was no task; of more, only while Scrapy knows the host."""


class Manners:
    """A downloader middleware: pages wait for requests that are no tasks, and all wait for robots.txt."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._engine = crawl_of(crawler).engine
        self._strayed: set[str] = set()  # the slots of the downloader whose last request was no task

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        made = cls(crawler)
        crawler.signals.connect(made.reach, signals.request_reached_downloader)
        crawler.signals.connect(made.come, signals.response_downloaded)
        return made

    def reach(self, request: Request) -> None:
        """Let a page go at once: the queue has spaced it. After a request that is no task, it waits for Scrapy's delay.

        A request that is no task waits for Scrapy's delay after any other.
        """
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

    async def process_request(self, request: Request, spider: Any = None) -> None:
        """Ask robots.txt once more. Raises `IgnoreRequest` if it forbids the request.

        Since Scrapy 2.14, of several requests that wait for one robots.txt, only the first heeds it.
        """
        if version_info < (2, 14):
            return
        robots = self._crawler.get_downloader_middleware(RobotsTxtMiddleware)
        if robots is not None and type(robots).process_request is RobotsTxtMiddleware.process_request:
            await robots.process_request(request)
