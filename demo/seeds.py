"""Where a crawl begins: its first page, and the pages that sitemaps name. `course.py` puts them.

A sitemap is read before the crawl begins, within the limits of `timeoutq.urls`: it may be huge, nested, packed like a
bomb, or no sitemap at all. What it names is held to the patterns of the crawl, and its downloads keep to the public
internet as the crawl does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import httpx

from demo.addresses import CheckedTransport, PrivateAddress
from demo.scope import Scope
from demo.settings import Settings
from demo.trail import Trail, tasks
from timeoutq.client.shards import AnyQueue
from timeoutq.urls import Limits, sitemap
from timeoutq.words.errors import BadUrl, InvalidInput

BATCH = 500


@dataclass
class Seeds:
    """The pages that a crawl begins with."""

    settings: Settings
    say: Callable[[str], object]
    """Prints a line about each URL and each sitemap that cannot be used."""
    put: int = 0
    """How many pages were put, those that the queue knew among them."""
    outside: int = 0
    """How many pages of sitemaps do not belong to the crawl."""
    refused: int = 0
    """How many URLs and sitemaps could not be used."""

    def plant(self, queue: AnyQueue, first: str | None, sitemaps: Iterable[str] = ()) -> None:
        """Put the first page, and all pages of the sitemaps; raises `BadSitemap` when one of these cannot be read."""
        if first is not None:
            self._put(queue, [first])
        for source in sitemaps:
            pages = self._pages(source, first)
            while batch := list(islice(pages, BATCH)):
                self._put(queue, batch)

    def _put(self, queue: AnyQueue, urls: list[str]) -> None:
        # never improved: whoever starts a kept crawl again does not want to begin again
        queue.put(tasks(urls, Trail(), ordered=self.settings.ordered, improve=False))
        self.put += len(urls)

    def _pages(self, source: str, first: str | None) -> Iterator[str]:
        scope = Scope(self.settings.site, self.settings.include, self.settings.exclude)
        limits = Limits(pause=self.settings.delay)
        for page in sitemap(source, limits=limits, refused=self._refuse, transport=self._transport):
            if scope.has(page.url, first) if first is not None else scope.allows(page.url):
                yield page.url
            else:
                self.outside += 1

    def _refuse(self, where: str, error: InvalidInput) -> None:
        self.refused += 1
        said = error.words if isinstance(error, BadUrl) else str(error)
        self.say(f"{where}: {said}" if where else said)

    def _transport(self) -> httpx.AsyncBaseTransport:
        return _Checked(self.settings.allow_private, httpx.Limits(max_connections=1))


class _Checked(CheckedTransport):
    """The transport of a sitemap: a private address is an error of the connection."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except PrivateAddress as error:
            raise httpx.ConnectError(str(error), request=request) from error
