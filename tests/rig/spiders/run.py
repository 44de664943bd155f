"""Runs spiders in one process: `python -m tests.rig.spiders.run`, and prints what came of each as JSON."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Any

from scrapy import signals, version_info
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.settings import Settings
from scrapy.utils.reactor import install_reactor
from twisted.python.failure import Failure

COMMON = {
    "ADDONS": {"timeoutq.scrapy.Addon": 100},
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "REQUEST_FINGERPRINTER_IMPLEMENTATION": "2.7",
}


def main() -> None:
    orders: list[dict[str, Any]] = json.load(sys.stdin)
    install_reactor(COMMON["TWISTED_REACTOR"])  # type: ignore[arg-type]  # text
    process = CrawlerProcess({"LOG_LEVEL": "INFO"})  # its settings are those of each crawler, too
    results: list[dict[str, Any]] = []
    for order in orders:
        module, _, name = order["spider"].partition(":")
        kind = getattr(import_module(module), name)
        crawler = Crawler(kind, Settings({**COMMON, **order.get("settings", {})}))
        result: dict[str, Any] = {"items": [], "error": "", "stats": {}, "scrapy": version_info[:2]}
        results.append(result)
        _follow(crawler, result)
        process.crawl(crawler, **order.get("arguments", {})).addErrback(partial(_note, result))
    process.start(stop_after_crawl=True)
    json.dump(results, sys.stdout, default=str)


def _note(result: dict[str, Any], failure: Failure) -> None:
    result["error"] = f"{type(failure.value).__name__}: {failure.value}"


def _follow(crawler: Crawler, result: dict[str, Any]) -> None:
    def keep(item: Any) -> None:
        result["items"].append(item)

    def end(reason: str) -> None:
        assert crawler.stats is not None
        result.update(reason=reason, stats=crawler.stats.get_stats())

    result["keep"] = keep, end  # signals keep only weak references
    crawler.signals.connect(keep, signals.item_scraped)
    crawler.signals.connect(end, signals.spider_closed)


if __name__ == "__main__":
    main()
