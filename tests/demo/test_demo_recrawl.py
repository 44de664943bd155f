"""The demo's crawler visits pages again: what it remembers of them, how it asks, how often, and where it goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo.crawl import Crawler, seen_after_visit
from demo.fetcher import Fetched
from demo.settings import Settings
from demo.trail import LONGEST_HEADER, Capture, Seen, Trail
from tests.rig.answering import Names, Site, lease, put
from tests.rig.changing import ChangingSite, start, stopped
from tests.rig.waiting import wait_until
from timeoutq import Ack, Recrawl

# ---- what is remembered

SEEN = Seen('W/"x"', "Sun, 09 Sep 2001 01:46:40 GMT", "abc", 3.5, 7, 2, 4, Capture("2027-01-15T08:00:00Z", "sha1:X"))


def test_what_was_seen_travels_in_the_payload() -> None:
    trail = Trail(3, ("http://a.example/",), SEEN)
    assert Trail.of(json.loads(json.dumps(trail.payload()))) == trail
    assert Trail.of(Trail(2).payload()) == Trail(2)
    assert Trail.of(Trail(2, (), Seen()).payload()).seen == Seen()
    assert Trail(2, (), Seen(visits=1)).payload() == {"depth": 2, "redirects": [], "seen": {"visits": 1}}


@pytest.mark.parametrize("odd", [None, 7, -1, "x\ny", "\u20ac", "x" * (LONGEST_HEADER + 1), [], {}, True, 1e400, "nan"])
def test_whatever_a_payload_holds_it_can_be_read(odd: object) -> None:
    for name in ("seen", "depth", "redirects"):
        Trail.of({name: odd})
    for name in ("etag", "modified", "digest", "interval", "visits", "changed", "unmodified", "capture"):
        seen = Trail.of({"seen": {**Trail(seen=SEEN).payload()["seen"], name: odd}}).seen
        assert seen is not None
        assert all(value.isascii() and value.isprintable() for value in seen.asks(False).values())
        assert seen.interval is None or 0 < seen.interval < 1e300
        assert seen.visits >= 0
    assert Trail.of({"seen": {"capture": {"date": odd, "digest": odd}}}).seen is not None


def test_a_request_is_conditional_if_there_is_something_to_compare_with() -> None:
    both = {"If-None-Match": SEEN.etag, "If-Modified-Since": SEEN.modified}
    assert SEEN.asks(is_archived=False) == SEEN.asks(is_archived=True) == both
    assert replace(SEEN, etag="").asks(False) == {"If-Modified-Since": SEEN.modified}
    assert Seen().asks(False) == {}
    # a 304 refers to a record; without one, the archive needs the page itself
    assert replace(SEEN, capture=Capture()).asks(is_archived=True) == {}


RECRAWL = Recrawl(first=100, shortest=10, longest=1000)


def page(body: bytes | None = b"text", status: int = 200, **headers: str) -> Fetched:
    return Fetched(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_a_page_is_visited_sooner_if_it_changes_and_later_if_not() -> None:
    first = seen_after_visit(Seen(), page(etag='"1"'), RECRAWL)
    assert (first.interval, first.visits, first.changed, first.etag) == (100, 1, 0, '"1"')
    same = seen_after_visit(first, page(etag='"1"'), RECRAWL)
    assert (same.interval, same.visits, same.changed) == (140, 2, 0)
    other = seen_after_visit(same, page(b"other"), RECRAWL)
    assert (other.interval, other.visits, other.changed, other.etag) == (112, 3, 1, "")
    unmodified = seen_after_visit(other, page(None, 304), RECRAWL)
    assert unmodified.interval == pytest.approx(112 * 1.4)
    assert (unmodified.changed, unmodified.unmodified) == (1, 1)
    assert unmodified.digest == other.digest
    back = seen_after_visit(unmodified, page(), RECRAWL)
    assert back.changed == 2
    seen = first
    for _ in range(40):
        seen = seen_after_visit(seen, page(str(seen.visits).encode()), RECRAWL)
    assert seen.interval == 10
    for _ in range(40):
        seen = seen_after_visit(seen, page(), RECRAWL)
    assert seen.interval == 1000


# ---- the handler


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site().serving() as serving:
        yield serving


@asynccontextmanager
async def crawling(**given: Any) -> AsyncIterator[Crawler]:
    settings = replace(Settings(allow_private=True, robots=False, recrawl=True), **given)
    crawler = Crawler(settings, Names.backend("127.0.0.1"))
    try:
        yield crawler
    finally:
        await crawler.close()


async def again(crawler: Crawler, url: str, payload: object = None) -> Ack:
    found = await crawler.fetch(lease(url, payload))
    assert isinstance(found, Ack)
    assert found.again_in == found.payload["seen"]["interval"]
    return found


async def test_a_page_is_asked_for_as_it_was_seen(site: Site) -> None:
    site.say("/a", body=b"<a href=/b>b</a>", content_type="text/html", etag='"v1"', last_modified="then")
    async with crawling() as crawler:
        first = await again(crawler, site.url("/a"), {"depth": 2})
        assert list(put(first)) == [site.url("/b")]
        assert "if-none-match" not in site.heads[0].lower()
        site.answers["/a"] = b'HTTP/1.1 304 -\r\nETag: "v1"\r\n\r\n'
        second = await again(crawler, site.url("/a"), first.payload)
    assert 'If-None-Match: "v1"\r\n' in site.heads[1]
    assert "If-Modified-Since: then\r\n" in site.heads[1]
    assert put(second) == {}
    trail = Trail.of(second.payload)
    assert (trail.depth, trail.seen is not None and trail.seen.unmodified) == (2, 1)
    assert second.again_in == 1.4 * 86_400


async def test_a_crawl_that_ends_asks_for_no_page_as_it_was_seen(site: Site) -> None:
    site.say("/a", body=b"x", content_type="text/html")
    async with crawling(recrawl=False) as crawler:
        found = await crawler.fetch(lease(site.url("/a"), Trail(1, (), SEEN).payload()))
    assert isinstance(found, Ack)
    assert (found.again_in, found.payload) == (None, None)
    assert "if-none-match" not in site.heads[0].lower()


# ---- with real workers


def mean(counts: list[int]) -> float:
    return sum(counts) / len(counts)


@pytest.mark.breaking
def test_pages_that_change_are_visited_more_often_and_304s_are_counted(tmp_path: Path) -> None:
    with ChangingSite().serving() as site:
        process = start(site.url, "--workers", "2", "--warc", str(tmp_path / "warc"))
        try:
            wait_until(lambda: max(site.visits("tagged")) >= 5 and mean(site.visits("changing")) > 10, timeout=60)
            told = stopped(process)
        finally:
            process.kill()
        changing, *others = (mean(site.visits(kind)) for kind in ("changing", "tagged", "dated", "bare"))
        assert changing > 1.5 * max(others)
        recrawl = told["recrawl"]
        assert told["pages"] == recrawl["pages"] == 25
        assert {url.split("/")[3] for _, url in recrawl["often"][:6]} == {"changing"}
        # a visit that was cut off by the end is in the log of the site alone
        assert site.count(304) - 16 <= recrawl["unmodified"] <= site.count(304)
        assert recrawl["unmodified"] > 20
        assert recrawl["changed"] <= sum(site.visits("changing"))
        assert told["warc"]["files"] == 2
    files = [str(path) for path in (tmp_path / "warc").iterdir()]
    subprocess.run(["warcio", "check", *files], check=True)
    listed = subprocess.run(["warcio", "index", "-f", "warc-type", *files], check=True, capture_output=True, text=True)
    assert listed.stdout.count("revisit") >= recrawl["unmodified"]


@pytest.mark.breaking
def test_a_recrawl_goes_on_where_it_was(tmp_path: Path) -> None:
    words = ("--workers", "1", "--state", str(tmp_path / "state"), "--longest", "1h", "--first", "2s")
    with ChangingSite().serving() as site:
        process = start(site.url, *words)
        try:
            wait_until(lambda: min(map(min, map(site.visits, ("tagged", "dated", "bare")))) >= 1, timeout=60)
            first = stopped(process)
            before = len(site.asked)
            process = start(site.url, *words)
            wait_until(lambda: min(site.visits("tagged")) >= 2, timeout=60)
            second = stopped(process)
        finally:
            process.kill()
        assert second["queue"] == first["queue"] == "crawl"
        assert second["recrawl"]["visits"] > first["recrawl"]["visits"] >= 19
        later = [one for one in site.asked[before:] if one.path.startswith("/tagged")]
        assert {one.status for one in later} == {304}, "the second crawl has forgotten what the first has seen"
        assert {one.conditional for one in later} >= {'W/"/tagged/0"'}
