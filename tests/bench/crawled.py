"""The site and the spider of the benchmark of Scrapy: `spiders.py` runs each in a process of its own.

The spider knows nothing of a queue. The site makes all pages before it listens, and serves them from memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Spider

AT_ONCE = 16
"""How many pages are fetched at once."""
LINKS = 12
"""Links on each page, to pages anywhere on the site, beside the one to the next page."""
REDIS = "TIMEOUTQ_BENCH_REDIS"
"""The environment variable with the server's address for scrapy-redis, which `ps` is not to show."""


def page(number: int, pages: int) -> bytes:
    """Make the answer with one page: some links, and some text around them."""
    dice = random.Random(number)
    links = [(number + 1) % pages, *(dice.randrange(pages) for _ in range(LINKS))]
    words = "some more " * 8
    text = "".join(f'<p>Some words about <a href="/{link}">page {link}</a>, and {words}.</p>' for link in links)
    body = f"<html><head><title>Page {number}</title></head><body>{text}</body></html>".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Server(asyncio.Protocol):
    """Answers requests of one connection."""

    def __init__(self, pages: dict[bytes, bytes]) -> None:
        self._pages = pages
        self._read = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are whole."""
        self._read += data
        while b"\r\n\r\n" in self._read:
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            self._transport.write(self._pages.get(head.split(b" ", 2)[1], missing))


def serve(pages: int) -> None:
    """Serve a site until stdin is closed; write its address."""
    made = {b"/%d" % number: page(number, pages) for number in range(pages)}

    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Server(made), "127.0.0.1", 0)
        sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    def leave() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=leave, daemon=True).start()
    asyncio.run(listen())


def crawl() -> None:
    """Crawl a site. Read `{"site": …, "settings": …}` from stdin, write `[pages, seconds, CPU seconds]` to stdout."""
    from scrapy import signals
    from scrapy.crawler import Crawler, CrawlerProcess
    from scrapy.settings import Settings
    from scrapy.utils.reactor import install_reactor

    reactor = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
    install_reactor(reactor)
    given = json.load(sys.stdin)
    common = {
        "TWISTED_REACTOR": reactor, "LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS": AT_ONCE, "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE, "REDIS_URL": os.environ[REDIS],
        "REQUEST_FINGERPRINTER_IMPLEMENTATION": "2.7",
    }  # fmt: skip
    crawler = Crawler(_spider(given["site"]), Settings({**common, **given["settings"]}))
    pages = set[str]()
    began = 0.0

    def keep(item: Any) -> None:
        pages.add(item["url"])

    def begin() -> None:
        nonlocal began
        began = time.process_time()

    crawler.signals.connect(keep, signals.item_scraped)
    crawler.signals.connect(begin, signals.spider_opened)
    process = CrawlerProcess({"LOG_LEVEL": "ERROR"})
    process.crawl(crawler)
    process.start()
    stats: Any = crawler.stats
    json.dump([len(pages), stats.get_value("elapsed_time_seconds"), time.process_time() - began], sys.stdout)


def _spider(site: str) -> type[Spider]:
    """Make the spider of a site. Scrapy is imported in functions only, because the benchmark can do without it."""
    from scrapy import Spider

    class Pages(Spider):
        name = "timeoutq-bench"
        start_urls = [f"{site}/0"]  # noqa: RUF012  # Scrapy's way to say it

        def parse(self, response: Any) -> Any:
            yield {"url": response.url, "title": response.css("title::text").get()}
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link)

    return Pages
