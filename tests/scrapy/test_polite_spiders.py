"""How often a site is visited by spiders on timeoutq: judged by the site's own log, and compared with Scrapy alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.rig.spiders import shop
from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order, run
from timeoutq import Politeness, Queue

pytest.importorskip("scrapy")
pytestmark = [pytest.mark.timeout(400), pytest.mark.parametrize("server", ["valkey"], indirect=True)]

DELAY = 0.25
ALONE: dict[str, Any] = {"ADDONS": {}}
"""The settings of a crawl by Scrapy alone."""


def pages(seen: Seen) -> Answer:
    """Answer with a page that links to pages 0 to 9; robots.txt forbids what is private."""
    if seen.path == "/robots.txt":
        return 200, {"Content-Type": "text/plain"}, b"User-agent: *\nDisallow: /private\n"
    return html(*(f"/{number}" for number in range(10)) if seen.path == "/" else ())


@pytest.fixture
def fresh(queue: Queue) -> Queue:
    """A queue that does not exist yet."""
    queue.purge()
    return queue


def closest(site: Site) -> float:
    """Give the shortest time between two visits, seconds."""
    return min(b.at - a.at for a, b in pairwise(site.visits))


def test_with_a_delay_the_visits_of_all_processes_are_spaced_one_by_one_as_scrapy_spaces_its_own(fresh: Queue) -> None:
    settings = {"DOWNLOAD_DELAY": DELAY, "RANDOMIZE_DOWNLOAD_DELAY": False}  # Scrapy's 8 places of a domain stay
    with Site(pages) as alone:
        run(None, [order("polite:Polite", alone.url, **ALONE, **settings)])
    with Site(pages) as site:
        orders = [order("polite:Polite", site.url, TIMEOUTQ_QUEUE=fresh.name, **settings)]
        with Spiders(fresh.given[0], orders) as one, Spiders(fresh.given[0], orders) as other:
            items = [*one.results()[0]["items"], *other.results()[0]["items"]]
    assert len(items) == len(site.visits) == 11
    assert {seen.path for seen in alone.visits} == {seen.path for seen in site.visits}
    assert closest(alone) > DELAY / 2
    assert closest(site) >= DELAY  # a visit has ended before the pause begins
    assert fresh.stats().politeness == Politeness(DELAY, 1)


def test_what_pipelines_and_callbacks_fetch_besides_the_pages_is_spaced_too(fresh: Queue, tmp_path: Path) -> None:
    settings = {"DOWNLOAD_DELAY": DELAY, "RANDOMIZE_DOWNLOAD_DELAY": False, "FILES_STORE": str(tmp_path)}
    with Site(pages) as site:
        with Spiders(
            fresh.given[0], [order("polite:Media", site.url, TIMEOUTQ_QUEUE=fresh.name, **settings)]
        ) as process:
            process.results()
            log = process.log()
    paths = [seen.path for seen in site.visits]
    assert sorted(paths) == ["/", "/asked0", "/asked1", "/file0", "/file1", "/file2", "/last"]
    assert site.visits[-1].at - site.visits[0].at > DELAY * 5  # of 6 pauses; the first visit may have been written late
    assert log.count("each process spaces it by itself") == 1


def test_what_is_fetched_besides_a_page_waits_from_the_moment_at_which_its_page_has_come(
    fresh: Queue, tmp_path: Path
) -> None:
    settings = {"DOWNLOAD_DELAY": DELAY, "RANDOMIZE_DOWNLOAD_DELAY": False, "FILES_STORE": str(tmp_path)}
    with Site(pages, delay=0.5) as site:
        run(fresh.given[0], [order("polite:Media", site.url, TIMEOUTQ_QUEUE=fresh.name, **settings)])
    page, beside = site.visits[:2]
    assert page.path == "/"
    assert beside.at - page.at >= 0.5 + DELAY


def test_three_processes_that_are_killed_visit_a_shop_no_sooner_than_one_would(queue: Queue, tmp_path: Path) -> None:
    settings = {"DOWNLOAD_DELAY": 0.5, "RANDOMIZE_DOWNLOAD_DELAY": False}
    run = shop.on_timeoutq("killed", queue.given[0] or "", tmp_path, settings, processes=3, kills=8)
    assert len(run.books) == shop.LISTS * shop.BOOKS
    assert run.ran.kills
    for gap, first, second in run.gaps():
        is_picture = shop.kind(second) == "picture"
        assert not is_picture or first.headers["User-Agent"] == second.headers["User-Agent"]
        # a picture waits from the moment at which its process asked for the stock, and the site may note that late
        assert gap > (0.25 if is_picture else 0.498), (gap, first.path, second.path)


def test_a_delay_of_the_spider_itself_is_that_of_the_queue(fresh: Queue) -> None:
    with Site(pages) as site:
        run(fresh.given[0], [order("polite:Delayed", site.url, TIMEOUTQ_QUEUE=fresh.name)])
    assert fresh.stats().politeness == Politeness(0.25, 1)
    assert closest(site) >= 0.25


def test_a_lower_delay_that_an_operator_sets_holds_for_pages_at_once(fresh: Queue) -> None:
    fresh.configure(politeness=Politeness(0, 1))
    with Site(pages) as site:
        run(fresh.given[0], [order("polite:Polite", site.url, TIMEOUTQ_QUEUE=fresh.name, DOWNLOAD_DELAY=20)])
    assert len(site.visits) == 11
    assert site.visits[-1].at - site.visits[0].at < 20
    fresh.configure(politeness="off")


def test_no_page_is_visited_that_robots_txt_forbids_however_many_wait_for_it(fresh: Queue) -> None:
    with Site(pages, delay=0.3) as site:
        run(fresh.given[0], [order("polite:Forbidden", site.url, TIMEOUTQ_QUEUE=fresh.name)])
    assert [seen.path for seen in site.visits] == ["/robots.txt", "/open"]
    failed = [fresh.inspect(entry.task) for entry in fresh.each("failed")]
    assert len(failed) == 6
    assert all("Forbidden by robots.txt" in (info.error or "") for info in failed)


def test_a_host_that_asks_to_wait_is_spared_although_the_project_tries_no_page_again(fresh: Queue) -> None:
    def busy_once(seen: Seen) -> Answer:
        if len(site.visits) == 2:
            return html(status=429, headers={"Retry-After": "3"})
        return pages(seen)

    with Site(busy_once) as site:
        run(fresh.given[0], [order("polite:Takes429", site.url, TIMEOUTQ_QUEUE=fresh.name)])
    assert len(site.visits) == 11
    assert site.visits[2].at - site.visits[1].at >= 3


def test_a_host_that_asks_to_wait_does_not_shorten_a_longer_block(fresh: Queue) -> None:
    def busy_once(seen: Seen) -> Answer:
        if len(site.visits) == 2:
            fresh.hosts.block(site.url, for_=4)
            return html(status=429, headers={"Retry-After": "1"})
        return pages(seen)

    with Site(busy_once) as site:
        run(fresh.given[0], [order("polite:Takes429", site.url, TIMEOUTQ_QUEUE=fresh.name)])
    assert len(site.visits) == 11
    assert site.visits[2].at - site.visits[1].at >= 3.9
