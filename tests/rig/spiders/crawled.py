"""A crawler of crawlee in a process of its own: `crawlee create` with the template of Parsel has made its handler.

Its order comes as JSON by its input; it prints what came of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

from crawlee import ConcurrencySettings, HttpHeaders
from crawlee.configuration import Configuration
from crawlee.crawlers import BasicCrawlingContext, ParselCrawler, ParselCrawlingContext
from crawlee.router import Router
from crawlee.storage_clients import FileSystemStorageClient, MemoryStorageClient, StorageClient
from crawlee.storages import RequestQueue

from timeoutq.crawlee import TimeoutqStorageClient

router = Router[ParselCrawlingContext]()


@router.default_handler
async def default_handler(context: ParselCrawlingContext) -> None:
    context.log.info(f"Processing {context.request.url} ...")
    title = context.selector.xpath("//title/text()").get()
    await context.push_data({"url": context.request.loaded_url, "title": title})
    await context.enqueue_links()


async def crawl(
    start: str, at_once: int, *, server: str | None = None, queue: str = "pages", lease: float = 30.0,
    folder: str | None = None, agent: str = "crawlee",
) -> dict[str, Any]:  # fmt: skip
    """Crawl a site, on a queue of `server`, or in memory; items go into `folder`, or into memory."""
    storage: StorageClient = FileSystemStorageClient() if folder else MemoryStorageClient()
    if server is not None:
        # a storm kills many processes that hold the same page, and it is not the page that kills them
        storage = TimeoutqStorageClient(server, storage=storage, timeout=lease, max_crashes=1000)
    configuration = Configuration(storage_dir=folder or "storage")
    many = ConcurrencySettings(min_concurrency=at_once, desired_concurrency=at_once, max_concurrency=at_once)
    crawler = ParselCrawler(
        request_handler=router, storage_client=storage, configuration=configuration, concurrency_settings=many,
        configure_logging=False,
        request_manager=await RequestQueue.open(name=queue, storage_client=storage, configuration=configuration),
    )  # fmt: skip

    @crawler.pre_navigation_hook
    async def name(context: BasicCrawlingContext) -> None:
        context.request.headers = HttpHeaders({"User-Agent": agent})

    began, busy = time.perf_counter(), time.process_time()
    statistics = await crawler.run([start])
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    if isinstance(storage, TimeoutqStorageClient):
        await storage.close()
    return {"handled": statistics.requests_finished, "seconds": seconds, "busy": busy}


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    print(json.dumps(asyncio.run(crawl(**json.load(sys.stdin)))))
