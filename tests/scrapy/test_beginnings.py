"""How a spider may begin, and that its start gives on timeoutq the items that Scrapy alone gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order, run
from timeoutq import Politeness, Queue, Task

pytest.importorskip("scrapy")
pytestmark = [pytest.mark.timeout(200), pytest.mark.parametrize("server", ["valkey"], indirect=True)]


def pages(seen: Seen) -> Answer:
    """Answer with the cookies of the visit; the gate opens to who has its cookie."""
    cookies = seen.headers.get("Cookie", "")
    if seen.path == "/gate" and not cookies:
        return html(status=302, headers={"Location": "/gate", "Set-Cookie": "passed=1"})
    if seen.path in ("/north", "/south") and "seen" not in cookies:
        return html(status=302, headers={"Location": f"/check?{seen.path}"})
    if seen.path.startswith("/check"):
        return html(status=302, headers={"Location": seen.path.partition("?")[2], "Set-Cookie": "seen=1; Path=/"})
    return 200, {"Content-Type": "text/plain"}, cookies.encode()


@pytest.fixture
def fresh(queue: Queue) -> Queue:
    """A queue that does not exist yet."""
    queue.purge()
    return queue


def items(queue: Queue | None, spiders: list[str]) -> list[list[str]]:
    """Give the items of spiders, each with a queue of its own, or by Scrapy alone."""

    def settings(kind: str) -> dict[str, Any]:
        return {"ADDONS": {}} if queue is None else {"TIMEOUTQ_QUEUE": f"{queue.name}-{kind}"}

    with Site(pages) as site:
        orders = [order(f"beginning:{kind}", site.url, **settings(kind)) for kind in spiders]
        results = run(None if queue is None else queue.given[0], orders)
    for kind in spiders if queue is not None else ():
        assert queue is not None
        with Queue(f"{queue.name}-{kind}", queue.given[0]) as one:
            assert one.drained()
            one.purge()
    return [sorted(f"{item['path']} {item['text']}" for item in result["items"]) for result in results]


def test_each_start_gives_the_items_that_scrapy_alone_gives(fresh: Queue) -> None:
    kinds = ["Gate", "Gates", "Cities", "Filtered"]
    alone = items(None, kinds)
    assert alone == [
        ["/gate passed=1"], ["/north seen=1", "/south seen=1"],
        [f"/city city={city}" for city in ("Bern", "Rom", "Rom", "Wien")], ["/city "],
    ]  # fmt: skip
    assert items(fresh, kinds) == alone


def test_a_spider_that_scrapy_does_not_begin_any_more_is_an_error_and_its_start_waits(fresh: Queue) -> None:
    with Site(pages) as site:
        former, mended = (
            [order(f"beginning:{kind}", site.url, TIMEOUTQ_QUEUE=fresh.name)] for kind in ("Former", "Mended")
        )
        with Spiders(fresh.given[0], former) as process:
            (result,) = process.results()
            log = process.log()
        if result["scrapy"] < [2, 16]:
            assert len(result["items"]) == 1
            return
        assert (result["items"], result["reason"]) == ([], "timeoutq_error")
        assert "timeoutq cannot begin: spider 'former' begins by start_requests(), which Scrapy 2." in log
        assert "give it an `async def start(self)`" in log
        assert len(run(fresh.given[0], mended)[0]["items"]) == 1


def test_urls_put_before_the_first_spider_runs_are_crawled_once_each(fresh: Queue) -> None:
    with Queue(fresh.name, fresh.given[0], politeness=Politeness(per_host=8)) as queue, Site(pages) as site:
        queue.put(f"{site.url}/a", f"{site.url}/b")
        queue.put(f"{site.url}/b", Task(f"{site.url}/c", {"callback": "parse_item", "meta": {"job": 7}}))
        with Spiders(fresh.given[0], [order("beginning:Empty", site.url, TIMEOUTQ_QUEUE=fresh.name)]) as process:
            (result,) = process.results()
            log = process.log()
    assert sorted(item["path"] for item in result["items"]) == ["/a", "/b", "/c of job 7"]
    assert "never retrieved" not in log


def test_a_start_that_closes_the_spider_begins_anew_at_once_in_the_next_process(fresh: Queue) -> None:
    with Site(pages) as site:

        def crawl(ends: str) -> tuple[str, int]:
            settings = {"TIMEOUTQ_QUEUE": fresh.name, "TIMEOUTQ_LEASE": 300, "ENDS": ends}
            (result,) = run(fresh.given[0], [order("beginning:Shut", site.url, **settings)])
            return result["reason"], len(result["items"])

        reasons, items = zip(*(crawl(ends) for ends in ("closed", "closed", "")), strict=True)
        assert (reasons, sum(items)) == (("shut", "shut", "finished"), 1)
        assert len(site.of("/city")) == 1
    assert fresh.stats().done == 2


def test_a_start_that_breaks_is_the_reason_with_which_the_spider_closes(fresh: Queue) -> None:
    with Site(pages) as site:
        wanted = order("beginning:Shut", site.url, TIMEOUTQ_QUEUE=fresh.name, ENDS="the database is away")
        (result,) = run(fresh.given[0], [wanted])
    assert (result["reason"], len(result["items"])) == ("start_error", 1)
