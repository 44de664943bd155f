"""Spiders whose visits a site judges: pages of one host, what pipelines and callbacks fetch besides, and robots.txt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import scrapy
from scrapy import Request
from scrapy.utils.defer import maybe_deferred_to_future


class Polite(scrapy.Spider):
    """A spider that begins at `start_urls`, which are paths of the site, and follows the links of these pages."""

    name = "polite"
    paths: tuple[str, ...] = ("/",)

    def __init__(self, site: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site = site
        self.start_urls = [f"{site}{path}" for path in self.paths]

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.removeprefix(self.site)}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link)

    async def ask(self, url: str) -> Any:
        """Fetch a page by the engine itself, within a callback."""
        engine: Any = self.crawler.engine
        if hasattr(engine, "download_async"):
            return await engine.download_async(Request(url))
        return await maybe_deferred_to_future(engine.download(Request(url)))


class Delayed(Polite):
    """A spider with a delay of its own, as many of before the settings of spiders have."""

    download_delay = 0.25


class Media(Polite):
    """An item names files, which a media pipeline fetches; a callback fetches two pages by the engine itself."""

    custom_settings = {"ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1}}

    async def parse(self, response: Any) -> AsyncIterator[Any]:
        yield {"file_urls": [response.urljoin(f"/file{number}") for number in range(3)]}
        for number in range(2):
            await self.ask(response.urljoin(f"/asked{number}"))
        yield Request(response.urljoin("/last"), callback=self.parse_last)

    def parse_last(self, response: Any) -> None:
        """Find nothing."""


class Shop(Polite):
    """Lists lead to lists and to books; each book has a picture, and its stock is asked for within the callback."""

    custom_settings = {"ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1, "tests.rig.spiders.docs.Store": 2}}

    def parse(self, response: Any) -> Any:
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, self.parse_book if "book" in link else self.parse)

    async def parse_book(self, response: Any) -> AsyncIterator[Any]:
        await self.ask(response.url.replace("/book", "/stock"))
        yield {"page": response.url, "file_urls": [response.url.replace("/book", "/picture")]}


class Forbidden(Polite):
    """All start pages but one are forbidden by robots.txt; all of them wait for it at once."""

    paths = ("/open", *(f"/private/{number}" for number in range(6)))
    custom_settings = {"ROBOTSTXT_OBEY": True}


class Takes429(Polite):
    """A spider that takes pages with status 429 itself, and tries none of them again."""

    custom_settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "HTTPERROR_ALLOWED_CODES": [429], "RETRY_ENABLED": False}
