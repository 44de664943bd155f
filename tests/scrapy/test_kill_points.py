"""A spider that is killed with -9 at each point of its work: nothing is lost, and no request is put twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.spiders.points import PAGES, POINTS
from tests.rig.spiders.site import Answer, Seen, Site, html
from timeoutq import Queue

pytest.importorskip("scrapy")
pytestmark = pytest.mark.breaking


def pages(seen: Seen) -> Answer:
    page = seen.path[1:]
    if page == "7" or (page == "5" and seen.number == 1):
        return html(status=404 if page == "7" else 503)
    if page == "6":
        return html(status=302, headers={"Location": "/moved"})
    if not page.isdigit():
        return html(title=page)
    number = int(page)
    return html(*(f"/{link}" for link in (2 * number + 1, 2 * number + 2) if link < PAGES), title=page)


def crawl(url: str, site: str, name: str, folder: Path, die_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run the spider in a process of its own, until it has ended."""
    settings = {"TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": name, "TIMEOUTQ_LEASE": 1}
    order = [{"spider": "tests.rig.spiders.points:Mortal", "arguments": {"site": site}, "settings": settings}]
    words = {"DIE_AT": die_at, "DIE_ONCE": str(folder / "died"), "ITEMS": str(folder / "items")}
    return subprocess.run(
        [os.environ.get("TIMEOUTQ_SCRAPY_PYTHON", sys.executable), "-m", "tests.rig.spiders.run"],
        input=json.dumps(order), env={**os.environ, **words}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_spider_that_is_killed_loses_nothing_and_puts_nothing_twice(
    queue: Queue, tmp_path: Path, point: str
) -> None:
    url = queue.given[0]
    assert url is not None
    queue.purge()
    with Site(pages) as site:
        killed = crawl(url, site.url, queue.name, tmp_path, point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert queue.stats().in_progress > 0, "the process was to die with leases"
        ended = crawl(url, site.url, queue.name, tmp_path, point)
        assert ended.returncode == 0, ended.stderr
    (result,) = json.loads(ended.stdout)
    assert result["reason"] == "finished"
    items = (tmp_path / "items").read_text().split()
    expected = {str(page) for page in range(PAGES) if page not in (6, 7)} | {"moved", "error-7"}
    assert set(items) == expected - {str(page) for page in (13, 14, 15, 16)}  # they are linked from 6 and 7 only
    stats = queue.stats()
    assert (stats.failed, stats.in_progress, stats.todos, stats.waiting, stats.scheduled) == (0, 0, 0, 0, 0)
    assert stats.counters["put"] == stats.done == len(set(items)) + 2  # with the start task, and page 6
    assert queue.drained()
