"""The parts of Scrapy's engine that this folder needs: some have no public name, or another in each version.

Tested with Scrapy 2.11 and 2.19.
"""

from __future__ import annotations

from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro, deferred_to_future

REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


class Engine:
    """The engine of one crawler."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._ran = False

    @property
    def _engine(self) -> Any:
        return self._crawler.engine

    @property
    def _slot(self) -> Any:
        engine = self._engine
        return getattr(engine, "_slot", None) or getattr(engine, "slot", None)

    @property
    def is_closing(self) -> bool:
        """Whether the engine was told to stop, or to close the spider."""
        engine, slot = self._engine, self._slot
        self._ran = self._ran or bool(engine.running)
        return self._ran and (not engine.running or slot is None or slot.closing is not None)

    def poke(self) -> None:
        """Let the engine ask the scheduler for requests, and look whether the spider is idle."""
        slot = self._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    def has(self, request: Request) -> bool:
        """Say whether the engine still works on a request; true if this cannot be known."""
        found = getattr(self._slot, "inprogress", None)
        return found is None or request in found

    @property
    def slots(self) -> dict[str, Any]:
        """The slots of the downloader, by the `download_slot` of requests; none if the downloader is not Scrapy's."""
        return getattr(self._engine.downloader, "slots", {})

    def crawl(self, request: Request) -> None:
        """Hand a request to the engine, as Scrapy does with a request that a callback has yielded."""
        self._engine.crawl(request)

    def close(self, reason: str) -> None:
        engine = self._engine
        if hasattr(engine, "close_spider_async"):
            deferred_from_coro(engine.close_spider_async(reason=reason))
        else:
            engine.close_spider(self._crawler.spider, reason)

    async def store(self, item: Any) -> None:
        """Send an item that belongs to no response through the pipelines, and wait until it has left them."""
        scraper = self._engine.scraper
        if hasattr(scraper, "start_itemproc_async"):
            await scraper.start_itemproc_async(item, response=None)
        else:
            await deferred_to_future(scraper.start_itemproc(item, response=None))
