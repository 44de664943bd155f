"""The addon, by which a Scrapy project uses timeoutq. It reads the project's settings and sets Scrapy's."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Self, cast

from scrapy.commands import ScrapyCommand
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from timeoutq.scrapy import plan
from timeoutq.scrapy.crawl import CRAWLS, Crawl
from timeoutq.scrapy.engine import REACTOR
from timeoutq.words import telling
from timeoutq.words.errors import InvalidInput

log = logging.getLogger(__name__)

ABOVE_ALL = 100
"""The priority of the settings that the addon sets: above those of the project, the spider and the command line."""
NEXT_TO_ENGINE, NEXT_TO_DOWNLOADER = -1_000_000, 1_000_000
"""The places of timeoutq's middlewares among those of the project: Scrapy puts the lowest number next to the engine,
and the highest number next to the spider or the downloader."""

LOOKING = {f"scrapy.commands.{name}" for name in ("bench", "check", "fetch", "parse", "shell", "view")}
"""The modules of the commands that look at single pages, or at none of the project's."""


class Addon:
    """Makes the requests of a Scrapy project the tasks of a queue: `ADDONS = {"timeoutq.scrapy.Addon": 100}`.

    `timeoutq help scrapy` lists its settings, `TIMEOUTQ_URL` and others.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Read the project's settings, then set the scheduler and the middlewares, and turn AutoThrottle off.

        Raises `InvalidInput`, which names the setting, for a value that cannot be used. For a command that looks at
        single pages (`scrapy shell`, `fetch`, `parse`, `view`, `check`), it changes nothing: such a page is no task.
        """
        running, given = running_command()
        looking = looks_only(running)
        if looking:
            words = "scrapy %s looks at pages without timeoutq: no queue is opened, and no host is spared by one"
            telling.say(log, logging.INFO, words, looking)
            return
        reactor = settings.get("TWISTED_REACTOR")
        if reactor not in (None, REACTOR):
            raise InvalidInput(
                f"timeoutq needs the asyncio reactor: set TWISTED_REACTOR to {REACTOR!r}, not {reactor!r}"
            )
        found = plan.read(settings, self._crawler.spider or self._crawler.spidercls)
        if running is not None:
            found = replace(found, arguments=given, note_error=partial(setattr, running, "exitcode", 1))
        CRAWLS[self._crawler] = Crawl(self._crawler, found)
        _warn_of_unknown(settings)
        _warn_of_limits(settings)

        def override(name: str, value: Any) -> None:
            settings.set(name, value, priority=ABOVE_ALL)

        override("SCHEDULER", plan.SCHEDULER)
        override("TWISTED_REACTOR", REACTOR)
        for name, part, place in (
            ("SPIDER_MIDDLEWARES", "SpiderSide", NEXT_TO_ENGINE),
            ("DOWNLOADER_MIDDLEWARES", "DownloaderSide", NEXT_TO_DOWNLOADER),
        ):
            override(name, {**settings.getdict(name), f"timeoutq.scrapy.middlewares.{part}": place})
        # the queue spaces the pages, for all processes together; Scrapy's own delay is for requests that are no tasks
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            override("DOWNLOAD_DELAY", found.politeness.delay)
            override("AUTOTHROTTLE_ENABLED", False)
        if settings.getint("CONCURRENT_REQUESTS_PER_IP") or not settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"):
            override("CONCURRENT_REQUESTS_PER_IP", 0)
            override("CONCURRENT_REQUESTS_PER_DOMAIN", found.per_host)


def _warn(words: str, *args: object) -> None:
    telling.say(log, logging.WARNING, words, *args)


def _warn_of_limits(settings: BaseSettings) -> None:
    limits = sorted(name for name in map(str, settings) if name.startswith("CLOSESPIDER_") and settings.getfloat(name))
    if limits:
        _warn("%s: counted in each process by itself, and not for all together", ", ".join(limits))
    if settings.getdict("FEEDS") and not settings.get("TIMEOUTQ_ITEMS"):
        _warn(
            "FEEDS (-O, -o) writes items when a buffer is full: a process that is killed loses items of pages that are "
            "done. TIMEOUTQ_ITEMS names a folder where each item is written before its page is acked"
        )


def _warn_of_unknown(settings: BaseSettings) -> None:
    for name in sorted(str(one) for one in settings):
        if name.startswith("TIMEOUTQ_") and name not in plan.NAMES:
            close = get_close_matches(name, plan.NAMES, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(plan.NAMES)}"
            _warn("%s is no setting of timeoutq, and has no effect: %s", name, hint)


def running_command() -> tuple[ScrapyCommand | None, dict[str, Any]]:
    """Give the command of Scrapy that runs in this thread, and the spider arguments (-a) that it was given.

    Scrapy tells no other part of itself which command runs. So this looks at the functions that are being called:
    `run` of the command is one of them until the crawl is over. In a program without Scrapy's command there is none.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run" and isinstance(frame.f_locals.get("self"), ScrapyCommand):
            given = getattr(frame.f_locals.get("opts"), "spargs", None)
            return frame.f_locals["self"], cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        frame = frame.f_back  # type: ignore[assignment]  # None after the outermost
    return None, {}


def looks_only(command: ScrapyCommand | None) -> str:
    """Give the name of a command that is no crawl, such as "shell"; empty for a crawl, and without a command."""
    for kind in type(command).__mro__:
        if kind.__module__ in LOOKING:
            return type(command).__module__.rpartition(".")[2]
    return ""
