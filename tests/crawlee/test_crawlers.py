"""Crawlers of crawlee on a queue, from the first page of a site to the last."""

from __future__ import annotations

from datetime import date

import pytest
from crawlee import Request
from crawlee.crawlers import BasicCrawlingContext, ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient
from crawlee.storages import RequestQueue

from tests.rig.spiders.site import Answer, Seen, Site, html
from timeoutq import InvalidInput, Queue
from timeoutq.crawlee import TimeoutqStorageClient


def answer(seen: Seen) -> Answer:
    """Give a page of a site with two pages that fail: one of them twice."""
    if seen.path == "/":
        return html("/a", "/flaky", "/broken")
    fails = seen.path == "/broken" or (seen.path == "/flaky" and seen.number <= 2)
    return html("/", status=500 if fails else 200)


async def test_crawlee_counts_retries_and_a_page_that_fails_for_good_is_handled(url: str, name: str) -> None:
    failed: list[tuple[str, int]] = []
    async with TimeoutqStorageClient(url, storage=MemoryStorageClient()) as storage:
        queue = await RequestQueue.open(name=name, storage_client=storage)
        crawler = ParselCrawler(storage_client=storage, request_manager=queue, configure_logging=False)

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            await context.enqueue_links()

        @crawler.failed_request_handler
        async def note(context: BasicCrawlingContext, error: Exception) -> None:
            failed.append((context.request.url, context.request.retry_count))

        with Site(answer) as site:
            statistics = await crawler.run([site.url])
        assert (statistics.requests_finished, statistics.requests_failed) == (3, 1)
        assert failed == [(f"{site.url}/broken", 3)]
        assert {path: len(site.of(path)) for path in ("/", "/a", "/flaky", "/broken")} == {
            "/": 1, "/a": 1, "/flaky": 3, "/broken": 4,
        }  # fmt: skip
        assert await queue.is_finished()
    with Queue(name, url) as looked:
        stats = looked.stats()
        assert (stats.done, stats.failed, stats.known) == (4, 0, 4)
        assert looked.workers() == []  # it has said farewell


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_link_that_is_no_json_ends_the_crawl_and_loses_nothing(url: str, name: str) -> None:
    async with TimeoutqStorageClient(url, storage=MemoryStorageClient(), timeout=5) as storage:
        queue = await RequestQueue.open(name=name, storage_client=storage)
        crawler = ParselCrawler(storage_client=storage, request_manager=queue, configure_logging=False)

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            link = Request.from_url(f"{context.request.url}/a")
            link.user_data["seen"] = date(2027, 1, 1)  # type: ignore[assignment]  # no JSON
            await context.add_requests([f"{context.request.url}/b", link])

        with Site(answer) as site:
            with pytest.raises(InvalidInput, match="write dates as text"):
                await crawler.run([site.url])
    with Queue(name, url) as looked:
        assert (looked.stats().todos, looked.stats().known) == (1, 1)
