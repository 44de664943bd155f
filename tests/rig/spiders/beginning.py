"""Spiders that differ in how they begin; a crawl by Scrapy alone gives the items that each of them is to give."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import scrapy
from scrapy import Request
from scrapy.exceptions import CloseSpider


class Begun:
    """Has a spider with `start_requests` begin with them in all versions of Scrapy."""

    start_requests: Callable[[], Any]

    async def start(self) -> AsyncIterator[Any]:
        for request in self.start_requests():
            yield request


class Begins(scrapy.Spider):
    """A spider whose items say which page came, and with which cookies."""

    name = "begins"

    def __init__(self, site: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site = site

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.removeprefix(self.site), "text": response.text}


class Gate(Begins):
    """The start page sets a cookie, and redirects to itself."""

    name = "gate"

    def __init__(self, site: str = "", **kwargs: Any) -> None:
        super().__init__(site, **kwargs)
        self.start_urls = [f"{site}/gate"]


class Gates(Begins):
    """Two start pages redirect to one that sets a cookie, and that one back to the page that was asked for."""

    name = "gates"

    def __init__(self, site: str = "", **kwargs: Any) -> None:
        super().__init__(site, **kwargs)
        self.start_urls = [f"{site}/north", f"{site}/south"]


class Cities(Begun, Begins):
    """One page is asked for with several cookies, and once more with the same."""

    name = "cities"

    def start_requests(self) -> Any:
        for city in ("Bern", "Wien", "Rom", "Rom"):
            yield Request(f"{self.site}/city", cookies={"city": city}, dont_filter=True)


class Filtered(Begun, Begins):
    name = "filtered"

    def start_requests(self) -> Any:
        for _ in range(2):
            yield Request(f"{self.site}/city")


class Shut(Begun, Begins):
    """Its start closes it, or breaks, as the setting `ENDS` says."""

    name = "shut"

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/city")
        if ends := self.settings.get("ENDS"):
            raise CloseSpider("shut") if ends == "closed" else RuntimeError(ends)


class Former(Begins):
    """A spider of before Scrapy 2.13, which begins by `start_requests` alone."""

    name = "former"

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/city")


class Mended(Begun, Former):
    """The same spider with a `start`."""


class Empty(Begins):
    name = "empty"

    def parse_item(self, response: Any) -> Any:
        yield {"path": f"{response.url.removeprefix(self.site)} of job {response.meta['job']}", "text": response.text}
