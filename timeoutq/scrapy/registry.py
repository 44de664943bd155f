"""Which crawl belongs to which crawler. The addon registers the plan of a crawler; the parts ask for its crawl."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler

from timeoutq.scrapy.crawl import Crawl
from timeoutq.scrapy.plan import LINE, Plan
from timeoutq.words.errors import InvalidInput

_crawls: WeakKeyDictionary[Crawler, Crawl] = WeakKeyDictionary()


def register(crawler: Crawler, plan: Plan) -> None:
    """Note that a crawler uses timeoutq."""
    _crawls[crawler] = Crawl(crawler, plan)


def crawl_of(crawler: Crawler) -> Crawl:
    """Give the crawl of a crawler. Raises `InvalidInput` if the addon did not register it."""
    crawl = _crawls.get(crawler)
    if crawl is None:
        raise InvalidInput(
            "timeoutq's scheduler works only with its middlewares, and these come with the addon: remove SCHEDULER and "
            f"the middlewares of timeoutq from the settings, and write {LINE}"
        )
    return crawl
