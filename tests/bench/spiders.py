"""How fast Scrapy crawls on timeoutq, compared with Scrapy's own scheduler and, if it is installed, scrapy-redis.

One process of Scrapy crawls a site on loopback, which another process serves from memory. The spider, the site and all
settings are the same each time, but for those that choose the scheduler. The three take turns within a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tests.bench import crawled
from tests.bench.ground import Ground, Measure
from tests.bench.terms import Figure, Readings, Target
from timeoutq.words.errors import MissingExtra, TimeoutqError
from timeoutq.words.model import Politeness

ADDONS = {"timeoutq.scrapy.Addon": 100}
SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_QUEUE_KEY": "timeoutq-bench:requests",
    "SCHEDULER_DUPEFILTER_KEY": "timeoutq-bench:dupefilter",
}
LONGEST_CRAWL = 600.0
"""The most seconds that one crawl may take."""


def _spiders(ground: Ground) -> Readings:
    if find_spec("scrapy") is None:
        raise MissingExtra("this measurement needs Scrapy: pip install 'timeoutq[scrapy]'")
    with _site(ground.sizes.crawled) as address:
        found: dict[str, float | None] = {}
        for take in ground.turned([_in_memory, _on_timeoutq, _on_scrapy_redis]):
            found |= take(ground, address)
    return found


def _in_memory(ground: Ground, address: str) -> dict[str, float]:
    rate, by_cpu = _rates(ground, address, {})
    return {"scrapy-memory": rate, "scrapy-memory-cpu": by_cpu}


def _on_timeoutq(ground: Ground, address: str) -> dict[str, float]:
    with ground.queue(politeness=Politeness(0, crawled.AT_ONCE)) as queue:
        rate, by_cpu = _rates(ground, address, {"ADDONS": ADDONS, "TIMEOUTQ_QUEUE": queue.name})
    return {"scrapy": rate, "scrapy-cpu": by_cpu, "scrapy-beside": rate}


def _on_scrapy_redis(ground: Ground, address: str) -> dict[str, float]:
    if find_spec("scrapy_redis") is None:
        return {}
    try:
        return {"scrapy-redis": _rates(ground, address, SCRAPY_REDIS)[0]}
    finally:
        ground.bare.execute_command("DEL", *(SCRAPY_REDIS[key] for key in SCRAPY_REDIS if key.endswith("_KEY")))


@contextmanager
def _site(pages: int) -> Iterator[str]:
    """Serve a site of `pages` pages in a process of its own; give the site's address."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {crawled.__name__} as c; c.serve({pages})"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _rates(ground: Ground, address: str, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Crawl the site; give the pages per second, and per second of the process's CPU time."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {crawled.__name__} as c; c.crawl()"],
        input=json.dumps({"site": address, "settings": dict(settings)}), capture_output=True, text=True,
        timeout=LONGEST_CRAWL, env={**os.environ, "TIMEOUTQ_URL": ground.url, crawled.REDIS: ground.url}, check=False,
    )  # fmt: skip
    try:
        pages, seconds, cpu = json.loads(done.stdout)
    except ValueError:
        raise TimeoutqError(f"the spider of the benchmark has failed: {done.stderr.strip()[-500:]}") from None
    if pages != ground.sizes.crawled:
        raise TimeoutqError(f"the spider of the benchmark has crawled {pages} of {ground.sizes.crawled} pages")
    return pages / seconds, pages / cpu


SPIDERS = Measure(
    "scrapy",
    [
        Figure("scrapy-memory", "one process of Scrapy with its own scheduler in memory, on loopback", "pages/s"),
        Figure("scrapy-redis", "one process of Scrapy with scrapy-redis", "pages/s"),
        Figure("scrapy", "one process of Scrapy on timeoutq", "pages/s", "scrapy-memory", Target("ratio", "≥", 0.9)),
        Figure("scrapy-memory-cpu", "Scrapy with its own scheduler, per second of CPU time", "pages/s"),
        Figure("scrapy-cpu", "Scrapy on timeoutq, per second of CPU time", "pages/s", "scrapy-memory-cpu",
               Target("ratio", "≥", 0.85)),
        Figure("scrapy-beside", "one process of Scrapy on timeoutq, compared with scrapy-redis", "pages/s",
               "scrapy-redis", Target("ratio", "≥", 1.0)),
    ],
    _spiders, asked=True,
)  # fmt: skip
