"""The demo's crawler: addresses, robots.txt, pauses, redirects, limits, results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpcore
import pytest

from demo import polite
from demo.addresses import CheckedBackend, PrivateAddress, check, is_public
from demo.bounded import SMALL, Reader
from demo.crawl import Crawler
from demo.links import read, same_site
from demo.pauses import growing
from demo.processes import Interrupts, Processes
from demo.results import Result, Results
from demo.robots import Memory, Rules, rules_of
from demo.settings import Settings, SettingsError
from demo.trail import Seen, Trail
from tests.rig.answering import Names, Site, lease, put
from timeoutq import Ack, GiveUp, Politeness, Queue, Release, Retry
from timeoutq.testing import fake_queue

# ---- addresses of pages


@pytest.mark.parametrize(
    ("one", "other", "sites"),
    [
        ("http://a.example/x", "http://a.example/y", {"origin", "host", "any"}),
        ("http://a.example/", "https://www.a.example:8443/", {"host", "any"}),
        ("http://a.example/", "http://b.example/", {"any"}),
    ],
)
def test_a_site_is_as_wide_as_it_is_set(one: str, other: str, sites: set[str]) -> None:
    assert {site for site in ("origin", "host", "any") if same_site(one, other, site)} == sites


def test_a_page_has_a_title_and_the_links_that_are_wanted() -> None:
    html = b"<title> A\n b </title><base href='/in/'><a href=x>1</a><a href='http://other.example/'>2</a>"
    page = read(html, "http://h.example/", lambda url: "other" not in url)
    assert page.title == "A b"
    assert page.links == ("http://h.example/in/x",)


@pytest.mark.breaking
@pytest.mark.parametrize(
    ("content_type", "html", "link"),
    [
        ("text/html; charset=iso-8859-1", b"<a href='/caf\xe9'>", "/caf%C3%A9"),
        ("text/html", "<meta charset=shift_jis><a href='/\u65e5\u672c'>".encode("shift_jis"), "/%E6%97%A5%E6%9C%AC"),
        ("text/html; charset=iso-8859-1", "\ufeff<a href='/caf\xe9'>".encode(), "/caf%C3%A9"),
        ("text/html", "<a href='/caf\xe9'>".encode(), "/caf%C3%A9"),
        ("text/html", b"<a href='/caf\xe9'>", "/caf%C3%A9"),
        ("text/html; charset=utf-16", "<a href='/caf\xe9?\xe9'>".encode("utf-16"), "/caf%C3%A9?%C3%A9"),
        # as browsers do: a query is in the encoding of its page
        ("text/html; charset=iso-8859-1", b"<a href='/\xe9?q=\xe9#\xe9'>", "/%C3%A9?q=%E9"),
        ("text/html; charset=iso-8859-1", b"<a href='/?q=%e9&#9731;'>", "/?q=%E9%26%239731%3B"),
        *(
            (f"text/html; charset={name}", "<a href='/caf\xe9'>".encode(), "/caf%C3%A9")
            for name in ("hex", "idna", "undefined", "zlib", "utf-7", "no-such", "punycode")
        ),
    ],
)
async def test_a_page_is_decoded_as_html_asks(content_type: str, html: bytes, link: str) -> None:
    url = "http://h.example/"
    assert read(html, url, content_type=content_type).links == (f"http://h.example{link}",)
    reader = Reader("any", 5)
    large = html + " ".encode("utf-16-le" if "utf-16" in content_type else "ascii") * SMALL
    try:
        assert (await reader.read(large, url, content_type)).links == (f"http://h.example{link}",)
    finally:
        await reader.close()


async def test_the_links_of_a_page_in_latin_1_are_those_that_its_author_wrote(site: Site) -> None:
    site.say("/a", body=b"<a href='/caf\xe9'>x</a>", content_type="text/html; charset=iso-8859-1")
    async with crawling() as crawler:
        assert list(put(await crawler.fetch(lease(site.url("/a"))))) == [site.url("/caf%C3%A9")]


# ---- addresses of machines


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::1", False),
    ],
)
def test_an_address_is_of_the_public_internet_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_one_private_address_of_a_host_is_enough() -> None:
    check("h.example", ["93.184.216.34"])
    with pytest.raises(
        PrivateAddress, match=r"h\.example has the private address ::ffff:10\.0\.0\.1: .*--allow-private"
    ):
        check("h.example", ["93.184.216.34", "::ffff:10.0.0.1"])


class Network(httpcore.AsyncNetworkBackend):
    """Notes where connections go; none of them comes about but those to `open`."""

    def __init__(self, *open_: str) -> None:
        self.open = open_
        self.asked: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.asked.append(host)
        if host not in self.open:
            raise httpcore.ConnectError("refused")
        return httpcore.AsyncMockStream([b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n"])


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    names, network = Names(["93.184.216.34"], ["127.0.0.1"]), Network("93.184.216.34")
    stream = await CheckedBackend(False, names, network).connect_tcp("h.example", 80)
    await stream.aclose()
    assert network.asked == ["93.184.216.34"]
    assert names.asked == 1
    # a name that leads elsewhere the next time is judged again
    with pytest.raises(PrivateAddress):
        await CheckedBackend(False, names, network).connect_tcp("h.example", 80)
    assert network.asked == ["93.184.216.34"]


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    network = Network("93.184.216.35")
    backend = CheckedBackend(False, Names(["93.184.216.34", "93.184.216.35"]), network)
    await (await backend.connect_tcp("h.example", 80, timeout=30)).aclose()
    assert network.asked == ["93.184.216.34", "93.184.216.35"]
    with pytest.raises(httpcore.ConnectError):
        await CheckedBackend(False, Names(["93.184.216.34"]), network).connect_tcp("h.example", 80)
    with pytest.raises(httpcore.ConnectError, match="has no address"):
        await CheckedBackend(False, Names([]), network).connect_tcp("h.example", 80)


# ---- robots.txt


def test_a_robots_txt_says_what_may_be_fetched_and_how_fast() -> None:
    all_others = b"\xef\xbb\xbfUser-agent: *\nDisallow: /all\n\n"
    text = all_others + b"User-agent: mine\nDisallow: /no\nAllow: /no/but\nCrawl-delay: 2.5\n"
    rules = rules_of(200, text, "mine/1")
    assert [rules.allows(f"http://h.example{path}") for path in ("/all", "/no", "/no/but")] == [True, False, True]
    assert rules.delay == 2.5
    assert rules_of(200, b"User-agent: *\nCrawl-delay: -3", "mine").delay is None
    assert rules_of(200, b"\0\xff<html>", "mine").allows("http://h.example/")


@pytest.mark.parametrize(
    ("status", "reachable"),
    [(404, True), (401, True), (403, True), (410, True), (429, False), (500, False), (503, False), (304, False)],
)
def test_without_a_robots_txt_all_or_nothing_is_allowed(status: int, reachable: bool) -> None:
    rules = rules_of(status, b"User-agent: *\nDisallow: /", "mine")
    assert rules.reachable is reachable
    assert rules.allows("http://h.example/") is reachable
    assert rules.delay is None


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_cr_and_lf_end_a_line_of_a_robots_txt(odd: str) -> None:
    text = f"User-agent: *\r# from 2027 on:{odd}Disallow: /\nDisallow: /a{odd}b\rDisallow: /c\r\nDisallow: /d"
    rules = rules_of(200, text.encode(), "mine")
    refused = [path for path in ("", "c", "d", f"a{quote(odd)}b", "a") if not rules.allows(f"http://h.example/{path}")]
    assert refused == ["c", "d", f"a{quote(odd)}b"]


async def test_the_memory_asks_once_and_forgets_in_time() -> None:
    now = 0.0
    memory = Memory(keep=100, again=5, most=2, clock=lambda: now)
    asked: list[str] = []

    def ask(site: str, *, reachable: bool = True) -> Any:
        async def body() -> Rules:
            asked.append(site)
            await asyncio.sleep(0)
            return Rules(reachable=reachable)

        return memory.rules(site, body)

    await asyncio.gather(*(ask("a") for _ in range(5)))
    assert asked == ["a"]
    now = 99.0
    await ask("a")
    assert asked == ["a"]
    assert memory.left("a") == 1
    now = 100.0
    await ask("a")
    assert asked == ["a", "a"]

    await ask("down", reachable=False)
    assert memory.left("down") == 5
    now = 105.0
    await ask("down", reachable=False)
    assert asked == ["a", "a", "down", "down"]

    await ask("third")
    assert len(memory) == 2
    await ask("a")
    assert asked[-2:] == ["third", "a"]


# ---- pauses


def test_a_wait_without_a_retry_after_grows_and_is_bounded() -> None:
    assert [growing(attempt, most=10) for attempt in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 10, 10]


# ---- the crawler


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site().serving() as serving:
        yield serving


@asynccontextmanager
async def crawling(**given: Any) -> AsyncIterator[Crawler]:
    settings = replace(Settings(allow_private=True, robots=False), **given)
    crawler = Crawler(settings, CheckedBackend(settings.allow_private, Names(["127.0.0.1"])))
    try:
        yield crawler
    finally:
        await crawler.close()


async def test_a_page_is_fetched_and_its_links_become_tasks_one_deeper(site: Site) -> None:
    body = b"<a href='/b'>b</a><a href='http://other.example/'>o</a>"
    site.say("/a", body=body, content_type="text/html")
    async with crawling() as crawler:
        found = await crawler.fetch(lease(site.url("/a"), {"depth": 2, "redirects": [site.url("/0")]}))
    assert put(found) == {site.url("/b"): {"depth": 3, "redirects": []}}
    assert f"Host: site.example:{site.port}" in site.heads[0]


async def test_a_page_at_the_greatest_depth_is_fetched_and_its_links_are_not(site: Site) -> None:
    site.say("/a", body=b"<a href='/b'>b</a>", content_type="text/html")
    async with crawling(depth=2) as crawler:
        assert put(await crawler.fetch(lease(site.url("/a"), {"depth": 2}))) == {}
        assert put(await crawler.fetch(lease(site.url("/a"), {"depth": 1}))) == {
            site.url("/b"): {"depth": 2, "redirects": []}
        }


@pytest.mark.parametrize("payload", [None, 7, "x", {"depth": "x"}, {"depth": -1}, b"bytes", ["depth"]])
def test_a_foreign_payload_counts_as_a_start(payload: object) -> None:
    assert Trail.of(payload) == Trail()


async def test_a_redirect_is_a_task_of_its_own_and_not_followed(site: Site) -> None:
    site.say("/old", 301, location="/new#part")
    site.say("/away", 302, location="http://other.example/")
    site.say("/mail", 302, location="mailto:a@b.example")
    site.say("/same", 304)
    site.say("/nowhere", 302, location="http://[bad")
    async with crawling() as crawler:
        found = await crawler.fetch(lease(site.url("/old"), {"depth": 4, "redirects": [site.url("/0")]}))
        assert put(found) == {site.url("/new"): {"depth": 4, "redirects": [site.url("/0"), site.url("/old")]}}
        for path in ("/away", "/mail", "/same", "/nowhere"):
            assert put(await crawler.fetch(lease(site.url(path), {"depth": 1}))) == {}
    assert site.asked == ["/old", "/away", "/mail", "/same", "/nowhere"]


async def test_a_first_page_that_leads_out_of_the_crawl_is_given_up(site: Site) -> None:
    site.say("/away", 302, location="http://other.example/")
    site.say("/round", 302, location="/round#part")
    async with crawling(recrawl=True) as crawler:
        with pytest.raises(GiveUp, match="does not belong to the crawl: begin there, or widen --same-site"):
            await crawler.fetch(lease(site.url("/away")))
        with pytest.raises(GiveUp, match="it redirects to itself"):
            await crawler.fetch(lease(site.url("/round")))
        had = Trail(seen=Seen(visits=1)).payload()
        assert isinstance(await crawler.fetch(lease(site.url("/away"), had)), Ack), "a page may lead elsewhere later"


async def test_a_chain_of_redirects_has_an_end(site: Site) -> None:
    site.say("/loop", 302, location="/loop?more")
    async with crawling(redirects=3) as crawler:
        before = [site.url(f"/{number}") for number in range(3)]
        assert isinstance(await crawler.fetch(lease(site.url("/loop"), {"redirects": before[:2]})), Ack)
        with pytest.raises(GiveUp, match="more than 3 redirects"):
            await crawler.fetch(lease(site.url("/loop"), {"redirects": before}))


async def test_a_page_that_redirects_to_itself_or_back_to_what_led_to_it_is_given_up(site: Site) -> None:
    site.say("/a", 302, location="/b")
    site.say("/b", 301, location="/c?x#part")
    site.say("/c?x", 307, location="/a")
    site.say("/self", 302, location="/self")
    async with crawling() as crawler:
        with pytest.raises(GiveUp, match="it redirects to itself"):
            await crawler.fetch(lease(site.url("/self"), {"depth": 3}))
        payload: Any = {"depth": 3}
        for path, following in (("/a", "/b"), ("/b", "/c?x")):
            found = put(await crawler.fetch(lease(site.url(path), payload)))
            assert list(found) == [site.url(following)]
            payload = found[site.url(following)]
        with pytest.raises(GiveUp, match=re.escape(f"it redirects back to {site.url('/a')}, which led here")):
            await crawler.fetch(lease(site.url("/c?x"), payload))


async def test_a_busy_host_is_left_alone_for_as_long_as_it_asks(site: Site) -> None:
    site.say("/a", 429, retry_after="7")
    site.say("/b", 503, retry_after="999999")
    async with crawling(most_pause=60.0) as crawler:
        assert await crawler.fetch(lease(site.url("/a"))) == polite.give_back(7.0)
        assert await crawler.fetch(lease(site.url("/b"))) == polite.give_back(60.0)


async def test_a_page_that_asks_for_a_pause_for_ever_is_given_up_in_the_end(site: Site) -> None:
    site.say("/a", 429, retry_after="7")
    async with crawling(patience=2) as crawler:
        assert isinstance(await crawler.fetch(lease(site.url("/a"))), Release)
        assert isinstance(await crawler.fetch(lease(site.url("/a"))), Release)
        with pytest.raises(Retry, match="3 times in a row") as failed:
            await crawler.fetch(lease(site.url("/a")))
        assert (failed.value.after, failed.value.block_host) == (7, 7)
        assert isinstance(await crawler.fetch(lease(site.url("/a"))), Release)


async def test_after_an_answer_without_a_pause_the_pauses_of_a_page_are_counted_anew(site: Site) -> None:
    async with crawling(patience=2) as crawler:
        for _ in range(2):
            site.say("/a", 429, retry_after="7")
            assert isinstance(await crawler.fetch(lease(site.url("/a"))), Release)
            assert isinstance(await crawler.fetch(lease(site.url("/a"))), Release)
            site.say("/a")
            assert isinstance(await crawler.fetch(lease(site.url("/a"))), Ack)


async def test_a_busy_host_that_names_no_time_is_asked_ever_later(site: Site) -> None:
    site.say("/a", 429)
    site.say("/b", 503)
    async with crawling() as crawler:
        with pytest.raises(Retry, match="HTTP 429") as failed:
            await crawler.fetch(lease(site.url("/a"), attempt=3))
        assert (failed.value.after, failed.value.block_host) == (4, 4)
        with pytest.raises(Retry, match="HTTP 503") as failed:
            await crawler.fetch(lease(site.url("/b")))
        assert failed.value.after is None  # as the retry policy says


@pytest.mark.parametrize("asked", ["0", "Sun, 06 Nov 1994 08:49:37 GMT"])
async def test_a_busy_host_that_asks_for_no_pause_is_asked_ever_later_all_the_same(site: Site, asked: str) -> None:
    site.say("/a", 429, retry_after=asked)
    async with crawling() as crawler:
        with pytest.raises(Retry, match="HTTP 429") as failed:
            await crawler.fetch(lease(site.url("/a"), attempt=3))
    assert (failed.value.after, failed.value.block_host) == (4, 4)


async def test_statuses_decide_between_another_try_and_giving_up(site: Site) -> None:
    site.say("/broken", 500)
    site.say("/gone", 410)
    async with crawling() as crawler:
        with pytest.raises(Retry, match="HTTP 500"):
            await crawler.fetch(lease(site.url("/broken")))
        with pytest.raises(GiveUp, match="HTTP 410"):
            await crawler.fetch(lease(site.url("/gone")))
        with pytest.raises(GiveUp, match="put a URL"):
            await crawler.fetch(lease("not a URL"))
        with pytest.raises(Retry, match="ConnectError"):
            await crawler.fetch(lease("http://site.example:1/"))


async def test_what_is_no_page_of_html_is_not_downloaded(site: Site) -> None:
    # the body never comes: whoever waits for it waits until the time is up
    site.answers["/film"] = b"HTTP/1.1 200 -\r\nContent-Type: video/mp4\r\nContent-Length: 999999999\r\n\r\n"
    async with crawling(total=60.0, timeout=60.0) as crawler:
        async with asyncio.timeout(20):
            assert put(await crawler.fetch(lease(site.url("/film")))) == {}


async def test_a_page_that_is_too_long_is_given_up_before_it_has_come(site: Site) -> None:
    head = b"HTTP/1.1 200 -\r\nContent-Type: text/html\r\n"
    site.answers["/named"] = head + b"Content-Length: 999999999\r\n\r\n"
    site.answers["/endless"] = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"5\r\nabcde\r\n" * 300
    async with crawling(max_bytes=1000, total=60.0, timeout=60.0) as crawler:
        async with asyncio.timeout(20):
            with pytest.raises(
                GiveUp, match="999,999,999 bytes, which are more than 1,000: to read it, raise --max-bytes"
            ):
                await crawler.fetch(lease(site.url("/named")))
            with pytest.raises(GiveUp, match="more than 1,000 bytes"):
                await crawler.fetch(lease(site.url("/endless")))


async def test_a_page_that_never_ends_is_left_in_time(site: Site) -> None:
    site.answers["/slow"] = b"HTTP/1.1 200 -\r\nContent-Type: text/html\r\nContent-Length: 10\r\n\r\nabc"
    async with crawling(total=0.2) as crawler:
        with pytest.raises(Retry, match=r"the page took over 0\.2 s"):
            await crawler.fetch(lease(site.url("/slow")))


async def test_private_addresses_are_not_asked_unless_allowed(site: Site) -> None:
    site.say("/a", body=b"x", content_type="text/html")
    for robots in (False, True):
        async with crawling(allow_private=False, robots=robots) as crawler:
            with pytest.raises(GiveUp, match=r"site\.example has the private address 127\.0\.0\.1"):
                await crawler.fetch(lease(site.url("/a")))
    settings = Settings(robots=False)
    crawler = Crawler(settings)  # and with the names of the system
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"):
        with pytest.raises(GiveUp, match="private address"):
            await crawler.fetch(lease(f"http://{host}:{site.port}/a"))
    await crawler.close()
    assert site.asked == []


async def test_robots_txt_is_asked_once_and_obeyed(site: Site) -> None:
    site.say("/robots.txt", body=b"User-agent: *\nDisallow: /no")
    site.say("/yes", body=b"", content_type="text/html")
    async with crawling(robots=True) as crawler:
        await crawler.fetch(lease(site.url("/yes")))
        with pytest.raises(GiveUp, match=r"robots\.txt forbids it"):
            await crawler.fetch(lease(site.url("/no/way")))
    assert site.asked == ["/robots.txt", "/yes"]


async def test_a_host_whose_robots_txt_cannot_be_had_is_left_alone_for_a_while(site: Site) -> None:
    site.say("/robots.txt", 503)
    site.say("/a", body=b"", content_type="text/html")
    async with crawling(robots=True, robots_again=30.0) as crawler:
        for _ in range(2):
            with pytest.raises(Retry, match=r"robots\.txt: HTTP 503") as failed:
                await crawler.fetch(lease(site.url("/a")))
            assert failed.value.after is not None
            assert 0 < failed.value.after == failed.value.block_host <= 30
        with pytest.raises(Retry, match=r"robots\.txt: ConnectError"):
            await crawler.fetch(lease("http://site.example:1/"))
    assert site.asked == ["/robots.txt"]


async def test_a_robots_txt_that_never_ends_is_left_in_time(site: Site) -> None:
    site.answers["/robots.txt"] = b"HTTP/1.1 200 -\r\nContent-Length: 100\r\n\r\nUser-agent: *\n"
    site.say("/a", body=b"", content_type="text/html")
    async with crawling(robots=True, total=0.2) as crawler:
        async with asyncio.timeout(15):
            with pytest.raises(Retry, match=r"robots\.txt: it took over 0\.2 s"):
                await crawler.fetch(lease(site.url("/a")))
    assert site.asked == ["/robots.txt"]


async def test_redirects_of_a_robots_txt_are_followed_five_times(site: Site) -> None:
    site.say("/a", body=b"", content_type="text/html")
    site.say("/robots.txt", 301, location="/r1")
    for i in range(1, 5):
        site.say(f"/r{i}", 302, location=f"/r{i + 1}")
    site.say("/r5", body=b"User-agent: *\nDisallow: /")
    async with crawling(robots=True) as crawler:
        with pytest.raises(GiveUp, match="forbids"):
            await crawler.fetch(lease(site.url("/a")))
    site.say("/r5", 302, location="/r6")
    async with crawling(robots=True) as crawler:
        assert put(await crawler.fetch(lease(site.url("/a")))) == {}
    assert "/r6" not in site.asked


async def test_a_host_that_was_told_to_rest_longer_is_not_visited_sooner_because_it_is_busy(
    site: Site, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEOUTQ_URL", url)
    site.say("/a", 429)
    host = f"site.example:{site.port}"
    with Queue(name, url, politeness=Politeness(delay=0.0)) as queue:
        queue.put(site.url("/a"))
        (held,) = queue.claim()
        until = queue.hosts.block(host, for_=600, reason="its owner has called").blocked_until
        async with crawling(queue=name) as crawler:
            with pytest.raises(Retry, match="HTTP 429") as failed:
                await crawler.fetch(held)
        queue.fail(held, failed.value)
        assert queue.hosts.inspect(host).blocked_until == until
        assert queue.hosts.inspect(host).blocked_by == "its owner has called"
        queue.purge()


async def test_the_queue_is_told_what_hosts_ask_for(
    site: Site, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEOUTQ_URL", url)
    site.say("/robots.txt", body=b"User-agent: *\nCrawl-delay: 2.5")
    site.say("/a", body=b"", content_type="text/html")
    host = f"site.example:{site.port}"
    with Queue(name, url) as queue:
        queue.configure(politeness=Politeness(delay=1.0))
        async with crawling(robots=True, delay=1.0, queue=name) as crawler:
            await crawler.fetch(lease(site.url("/a")))
            assert queue.hosts.inspect(host).delay == 2.5
            assert queue.hosts.inspect(host).blocked_until is None
        async with crawling(robots=True, delay=3.0, queue=name) as crawler:
            queue.hosts.set(host, delay="usual")
            await crawler.fetch(lease(site.url("/a")))
            assert queue.hosts.inspect(host).delay == 1.0  # what it asks for is less than what it has
        queue.purge()


async def test_cookies_are_not_kept(site: Site) -> None:
    site.say("/a", body=b"", content_type="text/html", set_cookie="who=you")
    async with crawling() as crawler:
        for _ in range(2):
            await crawler.fetch(lease(site.url("/a")))
    assert "cookie" not in site.heads[1].lower()


async def test_each_page_is_a_line_of_the_results(site: Site, tmp_path: Path) -> None:
    site.say("/a", body=b"<title>Hi</title><a href=/b>b</a><a href=/c>c</a>", content_type="text/html")
    site.say("/notes", body=b"plain", content_type="text/plain")
    site.say("/old", 301, location="/a")
    async with crawling(results=str(tmp_path / "results.jsonl")) as crawler:
        for path in ("/a", "/notes", "/old"):
            await crawler.fetch(lease(site.url(path), {"depth": 1}))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text("utf-8").splitlines()]
    told = [
        (line["url"], line["status"], line["title"], line["length"], line["links"], line["depth"]) for line in lines
    ]
    assert told == [
        (site.url("/a"), 200, "Hi", 49, 2, 1),
        (site.url("/notes"), 200, "", None, 0, 1),
        (site.url("/old"), 301, "", None, 1, 1),
    ]
    assert all(line["fetched_at"] > 1_700_000_000 for line in lines)


def test_a_result_is_one_line_whatever_the_title_holds(tmp_path: Path) -> None:
    first, second = Results(tmp_path / "r"), Results(tmp_path / "r")
    for results in (first, second, first):
        results.write(Result("http://h.example/", 200, "a\nb\u2028\ud800", 1, 2, 3.0, 4))
    first.close()
    second.close()
    lines = (tmp_path / "r").read_bytes().split(b"\n")
    assert [json.loads(line)["title"] for line in lines[:-1]] == ["a\nb\u2028\ud800"] * 3


# ---- settings and processes


def test_settings_travel_to_another_process_whole() -> None:
    settings = Settings(queue="q", depth=3, allow_private=True, site="any", results="/r")
    assert Settings.from_environment(settings.environment()) == settings
    assert Settings.from_environment({}) == Settings()
    assert not Settings().allow_private
    assert Settings().robots


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "is not an object"),
        ('{"dept": 1}', "'dept', which is none of"),
        ('{"depth": "1"}', "depth is '1'"),
        ('{"allow_private": 1}', "allow_private is 1"),
        ('{"site": "planet"}', "none of origin, host, any"),
        ('{"max_bytes": -1}', "is below 0"),
        ('{"timeout": 0}', "is no time"),
    ],
)
def test_settings_that_are_no_good_are_told(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Settings.from_environment({"DEMO_SETTINGS": text})


@pytest.fixture
def interrupts() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    made = Interrupts()
    made.install()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_a_whole_step_is_done(interrupts: Interrupts, number: signal.Signals) -> None:
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt), interrupts.whole():
        with interrupts.whole():
            signal.raise_signal(number)
            steps.append(1)
        steps.append(2)
    assert steps == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_process_that_starts_in_the_moment_of_an_interrupt_is_not_left_behind(
    interrupts: Interrupts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_queue() as queue:
        assert isinstance(queue, Queue)
        crawl = Processes(queue, "redis://127.0.0.1:1/0", 1, tmp_path, interrupts=interrupts)
        spawn = Processes.spawn
        pids: list[int] = []

        def interrupted(self: Processes, *command: str, name: str) -> Any:
            process = spawn(self, *command, name=name)
            pids.append(process.pid)
            signal.raise_signal(signal.SIGINT)  # before the caller has kept it
            return process

        monkeypatch.setattr(Processes, "spawn", interrupted)
        try:
            for start in (crawl.start_worker, crawl.start_cleaner):
                with pytest.raises(KeyboardInterrupt):
                    start()
        finally:
            crawl.stop()
    left: list[int] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # this test leaves none behind either
            left.append(pid)
    assert (len(pids), left) == (2, [])
