"""A spider that kills its own process, once, at a given point of its work: `kill -9`, with nothing said."""

from __future__ import annotations

import os
import signal
from typing import Any

import scrapy
from scrapy import Request, signals

from tests.rig.spiders.beginning import Begun

POINTS = [
    "in start", "before the fetch", "after the fetch", "before the callback", "the callback begins",
    "in the middle of the callback", "after the last yield", "in the pipeline", "the pipeline is over",
    "the item is stored", "in the errback", "at a retry",
]  # fmt: skip
PAGES = 24
"""Pages 0 to 23 link to two others; page 5 needs a second try, page 6 redirects to `moved`, and page 7 is not there."""
VICTIM = 3
"""The page at which the process dies."""


def die(point: str, page: str) -> None:
    """End this process if this is the point at which it is to die, and it is the first."""
    if os.environ.get("DIE_AT") == point and page == {"in the errback": "7", "at a retry": "5"}.get(point, str(VICTIM)):
        try:
            os.close(os.open(os.environ["DIE_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def page_of(request: Any) -> str:
    return str(request.url.rpartition("/")[2])


class Store:
    def process_item(self, item: Any, spider: Any = None) -> Any:
        die("in the pipeline", item["page"])
        out = os.open(os.environ["ITEMS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(out, f"{item['page']}\n".encode())
        os.close(out)
        die("the pipeline is over", item["page"])
        return item


class Network:
    """Dies before and after a fetch."""

    def process_request(self, request: Any, spider: Any = None) -> None:
        die("before the fetch", page_of(request))

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        die("after the fetch", page_of(request))
        if response.status == 503:
            die("at a retry", page_of(request))
        return response


class Arrival:
    """Dies when a response arrives at the spider."""

    def process_spider_input(self, response: Any, spider: Any = None) -> None:
        die("before the callback", page_of(response))


class Mortal(Begun, scrapy.Spider):
    """A spider that dies once."""

    name = "mortal"
    custom_settings = {
        "ITEM_PIPELINES": {"tests.rig.spiders.points.Store": 1},
        "DOWNLOADER_MIDDLEWARES": {"tests.rig.spiders.points.Network": 560},
        "SPIDER_MIDDLEWARES": {"tests.rig.spiders.points.Arrival": 10},
    }

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.stored, signals.item_scraped)
        return spider

    def stored(self, item: Any) -> None:
        die("the item is stored", item["page"])

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/0")
        die("in start", str(VICTIM))
        yield Request(f"{self.site}/1")

    site: str

    def parse(self, response: Any) -> Any:
        page = page_of(response)
        die("the callback begins", page)
        yield {"page": page}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, errback=self.on_error)
            die("in the middle of the callback", page)
        die("after the last yield", page)

    def on_error(self, failure: Any) -> Any:
        die("in the errback", page_of(failure.request))
        yield {"page": f"error-{page_of(failure.request)}"}
