"""The addon, by which a Scrapy project uses timeoutq. It reads the project's settings and sets Scrapy's."""

from __future__ import annotations

import logging
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from timeoutq import telling
from timeoutq.errors import InvalidInput
from timeoutq.scrapy import command, crawls, plan
from timeoutq.scrapy.engine import REACTOR

log = logging.getLogger(__name__)

ABOVE_ALL = 100
"""The priority of the settings that the addon sets: above those of the project, the spider and the command line."""
NEXT_TO_ENGINE = -1_000_000
NEXT_TO_DOWNLOADER = 1_000_000


class Addon:
    """Makes the requests of a Scrapy project the tasks of a queue: `ADDONS = {"timeoutq.scrapy.Addon": 100}`.

    Settings: `TIMEOUTQ_URL` (where the server is), `TIMEOUTQ_QUEUE` (the name of the queue; by default that of the
    spider), `TIMEOUTQ_LEASE` (seconds; 30), `TIMEOUTQ_STAY` (do not end when the queue is drained), `TIMEOUTQ_BATCH`
    (how many tasks a process holds at most).
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the addon of a crawler."""
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Read the project's settings, then set the scheduler and the middlewares, and turn Scrapy's own delays off.

        Raises `InvalidInput`, which names the setting, for a value that cannot be used. For a command that looks at
        single pages (`scrapy shell`, `fetch`, `parse`, `view`, `check`), it changes nothing: such a page is no task.
        """
        looking = command.looks_only(command.running()[0])
        if looking:
            words = "scrapy %s looks at pages without timeoutq: no queue is opened, and no host is spared by one"
            telling.say(log, logging.INFO, words, looking)
            return
        scheduler = settings.get("SCHEDULER")
        if scheduler not in (plan.SCRAPYS_OWN, plan.SCHEDULER):
            raise InvalidInput(
                f"SCHEDULER is {scheduler!r}, and the addon of timeoutq sets its own: remove the line from the settings"
            )
        reactor = settings.get("TWISTED_REACTOR")
        if reactor not in (None, REACTOR):
            raise InvalidInput(
                f"timeoutq needs the asyncio reactor: set TWISTED_REACTOR to {REACTOR!r}, not {reactor!r}"
            )
        crawls.register(self._crawler, plan.read(settings))
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            telling.say(
                log,
                logging.WARNING,
                "AUTOTHROTTLE_ENABLED is turned off: on timeoutq, the queue decides how often a host is visited",
            )

        def override(name: str, value: Any) -> None:
            settings.set(name, value, priority=ABOVE_ALL)

        override("SCHEDULER", plan.SCHEDULER)
        override("TWISTED_REACTOR", REACTOR)
        for name, part, place in (
            ("SPIDER_MIDDLEWARES", "timeoutq.scrapy.middlewares.SpiderSide", NEXT_TO_ENGINE),
            ("DOWNLOADER_MIDDLEWARES", "timeoutq.scrapy.middlewares.DownloaderSide", NEXT_TO_DOWNLOADER),
        ):
            override(name, {**settings.getdict(name), part: place})
        # the queue is polite for all processes together
        override("DOWNLOAD_DELAY", 0)
        override("AUTOTHROTTLE_ENABLED", False)
        override("DOWNLOAD_SLOTS", {})
        override("CONCURRENT_REQUESTS_PER_IP", 0)
        override("CONCURRENT_REQUESTS_PER_DOMAIN", max(1, settings.getint("CONCURRENT_REQUESTS")))
