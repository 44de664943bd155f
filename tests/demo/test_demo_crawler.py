"""The demo's crawler: addresses, robots.txt, pauses, redirects, limits, results."""

from __future__ import annotations

import asyncio
import json
import re
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
from demo.robots import Memory, Rules, rules_of
from demo.settings import Settings
from demo.trail import Seen, Trail
from tests.rig.answering import Names, Site, lease, put
from timeoutq import Ack, GiveUp, Politeness, Queue, Release, Retry

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


@pytest.mark.breaking
@pytest.mark.parametrize(
    ("content_type", "html", "link"),
    [
        ("text/html; charset=iso-8859-1", b"<a href='/caf\xe9'>", "/caf%C3%A9"),
        ("text/html", "<meta charset=shift_jis><a href='/\u65e5\u672c'>".encode("shift_jis"), "/%E6%97%A5%E6%9C%AC"),
        ("text/html", "<a href='/caf\xe9'>".encode(), "/caf%C3%A9"),
        ("text/html; charset=utf-16", "<a href='/caf\xe9?\xe9'>".encode("utf-16"), "/caf%C3%A9?%C3%A9"),
        # as browsers do: a query is in the encoding of its page
        ("text/html; charset=iso-8859-1", b"<a href='/\xe9?q=\xe9#\xe9'>", "/%C3%A9?q=%E9"),
        # names of encodings that browsers know and Python does not
        ("text/html; charset=x-euc-jp", "<a href='/\u65e5\u672c'>".encode("euc_jp"), "/%E6%97%A5%E6%9C%AC"),
        ("text/html", "<meta charset=KSC_5601><a href='/\ud55c?\ud55c'>".encode("cp949"), "/%ED%95%9C?%C7%D1"),
        ("text/html; charset=x-cp1251", "<a href='/\u041c'>".encode("cp1251"), "/%D0%9C"),
        ("text/html; charset=unicode-1-1-utf-8", b"<a href='/\xe2\x82\xac\xff'>", "/%E2%82%AC%EF%BF%BD"),
        ("text/html", b"<meta charset=unicode><a href='/a'>", "/a"),
        ("text/html; charset=hex", "<a href='/caf\xe9'>".encode(), "/caf%C3%A9"),
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
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
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
    [(404, True), (403, True), (429, False), (500, False), (304, False)],
)
def test_without_a_robots_txt_all_or_nothing_is_allowed(status: int, reachable: bool) -> None:
    rules = rules_of(status, b"User-agent: *\nDisallow: /", "mine")
    assert rules.reachable is reachable
    assert rules.allows("http://h.example/") is reachable
    assert rules.delay is None


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
    await ask("third")
    assert len(memory) == 2


# ---- pauses


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


# ---- settings and processes


def test_settings_travel_to_another_process_whole() -> None:
    settings = Settings(queue="q", depth=3, allow_private=True, site="any", results="/r")
    assert Settings.from_environment(settings.environment()) == settings
    assert Settings.from_environment({}) == Settings()
    assert not Settings().allow_private
    assert Settings().robots


@pytest.mark.parametrize("line", ["Content-Signal: ai-train=no", "Noindex: /old", "# shops", ""])
def test_a_line_between_the_names_of_a_group_does_not_end_the_group(line: str) -> None:
    text = f"User-agent: mine\n{line}\nUser-agent: other\nDisallow: /cart\n\nUser-agent: *\nDisallow: /\n"
    rules = rules_of(200, text.encode(), "mine")
    assert [rules.allows(f"http://a.example{path}") for path in ("/cart", "/")] == [False, True]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_cr_and_lf_end_a_line_of_a_robots_txt(odd: str) -> None:
    text = f"User-agent: *\r# from 2027 on:{odd}Disallow: /\nDisallow: /a{odd}b\rDisallow: /c\r\nDisallow: /d"
    rules = rules_of(200, text.encode(), "mine")
    refused = [path for path in ("", "c", "d", f"a{quote(odd)}b", "a") if not rules.allows(f"http://h.example/{path}")]
    assert refused == ["c", "d", f"a{quote(odd)}b"]


async def test_the_links_of_a_page_in_latin_1_are_those_that_its_author_wrote(site: Site) -> None:
    site.say("/a", body=b"<a href='/caf\xe9'>x</a>", content_type="text/html; charset=iso-8859-1")
    async with crawling() as crawler:
        assert list(put(await crawler.fetch(lease(site.url("/a"))))) == [site.url("/caf%C3%A9")]


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
