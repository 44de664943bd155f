"""Runs a spider against one page, without a queue, and lists all of the page that timeoutq would refuse.

`timeoutq check` calls it, in a process of its own: Scrapy's reactor runs once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings

from timeoutq.scrapy import plan, tasks
from timeoutq.scrapy.addon import ABOVE_ALL, NEXT_TO_ENGINE, Addon
from timeoutq.scrapy.engine import REACTOR, Engine
from timeoutq.scrapy.seeds import former_start
from timeoutq.words.errors import InvalidInput

PAGE, FOUND = "TIMEOUTQ_TRIAL_PAGE", "TIMEOUTQ_TRIAL_FOUND"
"""The settings by which the middleware below is told the page, and where to note what it finds."""


@dataclass
class Trial:
    """What came of one page."""

    responses: int = 0
    requests: int = 0
    items: int = 0
    refused: list[str] = field(default_factory=list[str])  # what would be refused, and the cure


class Look:
    """The spider middleware that asks for the one page, and judges what its callback yields."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._found: Trial = crawler.settings[FOUND]
        crawler.signals.connect(self._failed, signals.spider_error)
        crawler.signals.connect(self._close, signals.spider_idle)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _pages(self) -> list[Request]:
        spider: Any = self._crawler.spider
        try:
            former_start(spider)
        except InvalidInput as refused:
            self._found.refused.append(str(refused))
        url, payload = self._crawler.settings[PAGE]
        try:
            return [tasks.request_of(url, {**payload, "dont_filter": True}, spider)]
        except InvalidInput as refused:
            self._found.refused.append(str(refused))
            return []

    def process_start_requests(self, start_requests: Any, spider: Any = None) -> Iterator[Request]:
        """Give the one page (Scrapy 2.11 and 2.12)."""
        yield from self._pages()

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Request]:
        for page in self._pages():
            yield page

    def process_spider_output(self, response: Any, result: Any, spider: Any = None) -> Iterator[Any]:
        """Judge what the callback yields. Nothing of it is fetched or stored."""
        self._found.responses += 1
        for one in result:
            self._judge(one)
        return iter(())

    async def process_spider_output_async(self, response: Any, result: Any, spider: Any = None) -> AsyncIterator[Any]:
        self._found.responses += 1
        async for one in result:
            self._judge(one)
        return
        yield  # this makes it an asynchronous generator

    def _judge(self, one: Any) -> None:
        if not isinstance(one, Request):
            self._found.items += one is not None
            return
        self._found.requests += 1
        spider: Any = self._crawler.spider
        try:
            id = tasks.base_id(one, self._crawler.request_fingerprinter, usual=True)
            tasks.task_of(one, id, *tasks.payload_of(one, spider, id, one.errback))
        except InvalidInput as refused:
            self._found.refused.append(str(refused))

    def _close(self, spider: Any) -> None:
        Engine(self._crawler).close("finished")  # also if the spider wants to stay

    def _failed(self, failure: Any) -> None:
        self._found.refused.append(f"the callback raised {type(failure.value).__name__}: {failure.value}")


def judge(project: Path, spider: str, url: str, payload: Mapping[str, Any], arguments: Mapping[str, str]) -> Trial:
    """Fetch one page with a spider of a project; `payload` is as a task of the page has it.

    Raises `InvalidInput` for a project or spider that is not there.
    """
    if not (project / "scrapy.cfg").is_file():
        raise InvalidInput(f"{project} is no project of Scrapy: it has no scrapy.cfg")
    os.chdir(project)
    settings, found = get_project_settings(), Trial()
    _prepare(settings, (url, payload), found)
    process = CrawlerProcess(settings)
    try:
        kind = process.spider_loader.load(spider)
    except KeyError:
        names = ", ".join(sorted(process.spider_loader.list()))
        raise InvalidInput(f"the project has no spider {spider!r}; it has {names or 'none'}") from None
    crawler = process.create_crawler(kind)
    try:
        plan.read(crawler.settings)
    except InvalidInput as refused:
        found.refused.append(str(refused))
    crawler.settings.set("SCHEDULER", plan.SCRAPYS, priority=ABOVE_ALL)
    process.crawl(crawler, **arguments)
    process.start()
    return found


def _prepare(settings: BaseSettings, page: tuple[str, Mapping[str, Any]], found: Trial) -> None:
    addons = {one: place for one, place in settings.getdict("ADDONS").items() if load_object(one) is not Addon}
    middlewares = {**settings.getdict("SPIDER_MIDDLEWARES"), "timeoutq.scrapy.trial.Look": NEXT_TO_ENGINE}
    for name, value in {
        "ADDONS": addons, "SPIDER_MIDDLEWARES": middlewares, "TWISTED_REACTOR": REACTOR, PAGE: page, FOUND: found,
        "ITEM_PIPELINES": {}, "FEEDS": {}, "JOBDIR": None, "TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "WARNING",
    }.items():  # fmt: skip
        settings.set(name, value, priority=ABOVE_ALL)
