"""A spider that is killed with -9 at each point of its work: nothing is lost, and no request is put twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.rig.spiders.points import PAGES, POINTS
from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order
from timeoutq import Queue

pytest.importorskip("scrapy")
pytestmark = [
    pytest.mark.breaking, pytest.mark.timeout(400), pytest.mark.parametrize("server", ["valkey"], indirect=True)
]  # fmt: skip


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


def spider(queue: Queue, site: str, folder: Path, die_at: str) -> Spiders:
    """Start the spider in a process of its own."""
    words = {"DIE_AT": die_at, "DIE_ONCE": str(folder / "died"), "ITEMS": str(folder / "items")}
    return Spiders(queue.given[0], [order("points:Mortal", site, TIMEOUTQ_QUEUE=queue.name, TIMEOUTQ_LEASE=1)], **words)


@pytest.mark.parametrize("point", POINTS)
def test_a_spider_that_is_killed_loses_nothing_and_puts_nothing_twice(queue: Queue, tmp_path: Path, point: str) -> None:
    queue.purge()
    with Site(pages) as site:
        with spider(queue, site.url, tmp_path, point) as killed:
            assert killed.code() == -signal.SIGKILL, killed.log()
        assert queue.stats().in_progress > 0, "the process was to die with leases"
        with spider(queue, site.url, tmp_path, point) as other:
            (result,) = other.results()
    assert result["reason"] == "finished"
    items = (tmp_path / "items").read_text().split()
    expected = {str(page) for page in range(PAGES) if page not in (6, 7)} | {"moved", "error-7"}
    assert set(items) == expected - {str(page) for page in (13, 14, 15, 16)}  # they are linked from 6 and 7 only
    stats = queue.stats()
    assert (stats.failed, stats.in_progress, stats.todos, stats.waiting, stats.scheduled) == (0, 0, 0, 0, 0)
    assert stats.counters["put"] == stats.done == len(set(items)) + 2  # with the start task, and page 6
    assert queue.drained()
