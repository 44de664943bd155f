"""`timeoutq put` with URLs: lines of files, sitemaps on the web, groups; what is refused is named, the rest is put."""

from __future__ import annotations

import base64
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.pure.test_sitemaps import index, urlset
from tests.rig.command import Say, say
from tests.rig.processes import ROOT
from tests.rig.terminal import on_a_terminal
from tests.rig.waiting import wait_until
from timeoutq import BadSitemap, Politeness, Queue
from timeoutq.cli.intake import Intake
from timeoutq.urls import Limits, sitemap, sitemaps
from timeoutq.verbs import sending

brotli: Any = import_module("brotli")  # it says nothing of types

__all__ = ["say"]

LINES = b"""\xef\xbb\xbf# seeds
HTTP://H.example:80/a

  http://h.example/%61   # the same
\t
http://h.example/b#part\r
mailto:me@h.example
h.example/c
http://h.example/d\thttp://h.example/e
http://h.example/\xff
http://\xe2\x98\x83.example
"""
REFUSED = [
    "line 7: 'mailto:me@h.example' is refused: its scheme is mailto, not http or https",
    "line 8: 'h.example/c' is refused: it has no scheme: write https://h.example/c or http://…",
    r"line 9: 'http://h.example/d\thttp://h.example/e' is refused: it holds a tab; a line holds a URL and nothing else",
    r"line 10: 'http://h.example/\udcff' is refused: it holds bytes that are not UTF-8",
]
PUT = {"http://h.example/a", "http://h.example/b", "http://xn--n3h.example/"}


def members(queue: Queue) -> set[str]:
    return {entry.task for entry in queue.each("todos")}


def test_urls_of_a_file_are_put_in_their_one_form(say: Say, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_bytes(LINES)
    done = say("put", queue.name, "--urls", "--file", str(file))
    assert (done.code, done.facts) == (2, {"added": "3", "todos": "1", "refused": "4"})
    told = done.err.splitlines()
    assert told[:-1] == [f"timeoutq: {file}, {line}" for line in REFUSED]
    assert told[-1] == "timeoutq: 4 URLs were refused; all others were put (--lenient: exit code 0)"
    assert members(queue) == PUT
    again = say("put", queue.name, "--urls", "--lenient", "--json", stdin=LINES)
    assert (again.code, again.documents) == (0, [{"todos": 4, "refused": 4}])
    assert again.err.splitlines()[0] == f"timeoutq: standard input, {REFUSED[0]}"
    assert say("put", queue.name, "--urls", "-f", "-", stdin=b"#\n\n \n").facts == {}


def test_named_urls_and_jsonl_are_put_in_their_one_form(say: Say, queue: Queue) -> None:
    done = say("put", queue.name, "--urls", "HTTP://h.example", "mailto:x", "http://h.example/?b&a", "--payload", "[1]")
    assert (done.code, done.lines) == (2, [["http://h.example/", "added"], ["http://h.example/?a&b", "added"]])
    assert "task 2: 'mailto:x' is refused" in done.err
    assert queue.inspect("http://h.example/").payload == [1]
    lines = b'{"task": "http://H.example/x#y", "payload": {"depth": 1}, "group": "g"}\n\n{"task": "x"}\n'
    done = say("put", queue.name, "--urls", "--jsonl", stdin=lines)
    assert (done.code, done.facts) == (2, {"added": "1", "refused": "1"})
    assert "standard input, line 3: 'x' is refused: it has no scheme" in done.err
    assert queue.inspect("http://h.example/x").payload == {"depth": 1}


def test_of_a_line_that_is_too_long_the_rest_is_left_out_and_the_line_behind_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeoutq.cli.intake.LONGEST_LINE", 20)
    intake, long, url = Intake(urls=True), b"x" * 20, b"http://h.example/"
    assert [intake.line(piece, 2) for piece in (long, long, b"x\n", url + b"\n")] == [long, None, None, url]
    ends = long[:19] + b"\n"  # it has just as many bytes as are read at once
    assert [intake.line(piece, 2) for piece in (ends, url + b"\n")] == [ends, url]


@pytest.mark.parametrize("polite", [True, False])
def test_urls_can_be_grouped(say: Say, queue: Queue, polite: bool) -> None:
    if polite:
        queue.configure(politeness=Politeness(delay=9, per_host=1))
    urls = ["https://a.example.co.uk/", "https://b.example.co.uk:8443/", "http://127.0.0.1:81/"]
    assert say("put", queue.name, *urls, "--group-by", "domain").code == 0
    if not polite:
        queue.configure(politeness=Politeness(delay=9, per_host=1))
    assert [queue.inspect(url).host for url in urls] == ["example.co.uk", "example.co.uk", "127.0.0.1"]
    lines = b'{"task": "http://c.example.com/", "group": "own"}\n{"task": "http://d.example.com/", "payload": 5}\n'
    assert say("put", queue.name, "--jsonl", "--group-by", "domain", stdin=lines).code == 0
    assert [queue.inspect(f"http://{name}.example.com/").host for name in "cd"] == ["own", "example.com"]
    assert queue.inspect("http://d.example.com/").payload == 5
    done = say("put", queue.name, "http://e.example.com:81/", "plain", "--group-by", "host")
    assert (done.code, done.lines) == (2, [["http://e.example.com:81/", done.lines[0][1]]])
    assert "task 2: 'plain' is refused: it has no scheme" in done.err
    assert queue.inspect("http://e.example.com:81/").host == "e.example.com:81"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--group", "g", "--group-by", "host", "a"), "give --group or --group-by, not both"),
        (("--lenient", "a"), "--lenient goes with --urls, --sitemap or --group-by"),
        (("--sitemap", "s.xml", "a"), "give --sitemap, or tasks, or --file, not several of them"),
        (("--sitemap", "s.xml", "--file", "f"), "give --sitemap, or tasks, or --file"),
        (("--sitemap", "s.xml", "--jsonl"), "give --sitemap, or tasks, or --file"),
        (("--sitemap", "s.xml", "--payload", "1", "--sitemap-data"), "give --payload or --sitemap-data, not both"),
        (("--sitemap-data", "a"), "--sitemap-data goes with --sitemap"),
        (("--max-urls", "5", "a"), "--max-urls goes with --sitemap"),
        (("--max-time", "5s", "a"), "--max-time goes with --sitemap"),
        (("--max-urls", "0", "--sitemap", "s.xml"), "'--max-urls'"),
        (("--group-by", "planet", "a"), "'planet' is not one of 'host', 'domain'"),
        (("--sitemap", "/nowhere/s.xml"), "sitemap '/nowhere/s.xml': it cannot be read: No such file"),
        (("--sitemap", "http://"), "'http://' is no URL of a page: it names no host"),
    ],
)
def test_options_that_cannot_be_are_refused(say: Say, name: str, words: tuple[str, ...], said: str) -> None:
    done = say("put", name, *words)
    assert done.code == 2
    assert said in done.err


def test_a_url_that_a_spider_writes_in_another_form_is_named_and_put_as_it_stands(say: Say, queue: Queue) -> None:
    odd, form = "HTTP://A.example/?b=1&a=2#top", "http://a.example/?a=2&b=1"
    assert say("put", queue.name, odd).err == ""
    queue.run(sending.answer(queue.talk, queue.operations.configure({"scrapy_spider": b"shop"})))
    done = say("put", queue.name, odd, form, "http://a.example/search#POST:1f0c", "http://[/", "start:shop")
    assert done.code == 0
    assert done.err == (
        f"timeoutq: {odd!r} is put as it stands, but spider shop writes this URL as {form}: put that form, or the page "
        "is fetched twice\n"
    )
    assert say("schedule", queue.name, odd, "--after", "1h").err == done.err
    assert {odd, form} < members(queue)
    done = say("put", queue.name, stdin=b"".join(b"http://a.example/%d#top\n" % i for i in range(11)))
    *named, last = done.err.splitlines()
    assert [f"writes this URL as http://a.example/{i}:" in line for i, line in enumerate(named)] == [True] * 10
    assert last == "timeoutq: 11 URLs in all are not in the form in which spider shop writes them"
    done = say("put", queue.name, stdin=b"".join(b"http://a.example/%d#top\n" % i for i in range(10)))
    assert done.err.splitlines() == named, "all are named"
    assert len(members(queue)) == 16


def test_a_file_in_utf_16_is_named(say: Say, queue: Queue) -> None:
    done = say("put", queue.name, "--urls", stdin="http://h.example/\n".encode("utf-16"))
    assert (done.code, done.err) == (2, "timeoutq: line 1: the file is UTF-16: save it as UTF-8\n")


@pytest.mark.parametrize("begin", [b"http://h.example/", b" " * 9_000_000 + b"http://h.example/", b"# "])
def test_a_line_that_is_too_long_is_refused_and_the_rest_is_put(
    say: Say, queue: Queue, tmp_path: Path, begin: bytes
) -> None:
    file = tmp_path / "seeds.txt"
    long = begin + b"x" * 17_000_000
    file.write_bytes(b"http://h.example/1\n" + long + b"\nhttp://h.example/2\nmailto:x\n")
    done = say("put", queue.name, "--urls", "--file", str(file), "--lenient")
    assert (done.code, done.facts) == (0, {"added": "2", "refused": "2"})
    first, second = done.err.splitlines()
    assert first.startswith(f"timeoutq: {file}, line 2: ")
    assert first.endswith(" is refused: it has more than 65,536 characters")
    assert len(first) < 500 + len(str(file))
    assert second.startswith(f"timeoutq: {file}, line 4: ")
    assert members(queue) == {"http://h.example/1", "http://h.example/2"}


def test_a_line_with_a_cr_inside_is_refused(say: Say, queue: Queue) -> None:
    lines = b"http://h.example/1\r\r\nhttp://h.example/2\rhttp://h.example/3\n# old\rhttp://h.example/4\r\n"
    done = say("put", queue.name, "--urls", stdin=lines)
    assert (done.code, done.facts) == (2, {"added": "1", "refused": "2"})
    reason = "it holds a CR (carriage return): end each line with LF or with CRLF"
    assert done.err.splitlines()[:2] == [
        rf"timeoutq: standard input, line 2: 'http://h.example/2\rhttp://h.example/3' is refused: {reason}",
        rf"timeoutq: standard input, line 3: '# old\rhttp://h.example/4' is refused: {reason}",
    ]
    assert members(queue) == {"http://h.example/1"}


# ---- sitemaps on the web


class Site(ThreadingHTTPServer):
    """A site whose answers a test sets: a path's status, headers and body, or what writes the answer itself."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.at = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: dict[str, tuple[int, dict[str, str], bytes] | Callable[[_Handler], None]] = {}
        self.asked: list[str] = []
        self.accepted: list[str] = []
        """The Accept-Encoding of each request."""
        self.closing = threading.Event()

    def put(self, path: str, body: bytes | str, status: int = 200, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (status, named, body.encode() if isinstance(body, str) else body)
        return self.at + path


class _Handler(BaseHTTPRequestHandler):
    server: Site  # pyright: ignore[reportIncompatibleVariableOverride]  # the only server that has it

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.accepted.append(self.headers.get("Accept-Encoding", ""))
        answer = self.server.answers.get(self.path, (404, {}, b""))
        if callable(answer):
            answer(self)
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


def test_the_pages_of_an_index_are_put(say: Say, queue: Queue, site: Site) -> None:
    site.put("/1.xml", urlset("http://h.example/1", "HTTP://H.example/2", "/3"))
    site.put("/2.xml.gz", gzip.compress(urlset("http://h.example/4").encode()), Content_Type="application/x-gzip")
    site.put("/3.xml", brotli.compress(urlset("http://h.example/5").encode()), Content_Encoding="br")
    site.put("/4.xml.gz", gzip.compress(gzip.compress(urlset("http://h.example/6").encode())), Content_Encoding="gzip")
    site.put("/5.txt", "http://h.example/7\nhttp://h.example/8\n")
    site.put("/inner.xml", index("/5.txt", "/1.xml", "/1.xml#again"))
    site.put("/moved.xml", "", 301, Location="/index.xml")
    site.put("/index.xml", index("/1.xml", "2.xml.gz", f"{site.at}/3.xml", "/4.xml.gz", "/inner.xml"))
    done = say("put", queue.name, "--sitemap", f"{site.at}/moved.xml")
    assert (done.code, done.facts, done.err) == (0, {"added": "8"}, "")
    assert members(queue) == {*(f"http://h.example/{i}" for i in (1, 2, 4, 5, 6, 7, 8)), f"{site.at}/3"}
    assert site.asked.count("/1.xml") == 1
    assert set(site.accepted) == {"gzip, deflate, br"}
    pages = [page.url.rpartition("/")[2] for page in sitemap(f"{site.at}/index.xml")]
    assert pages == ["1", "2", "3", "4", "5", "6", "7", "8"], "the order of the sitemaps is lost"


def test_a_sitemap_is_asked_for_as_it_is_written(say: Say, queue: Queue, site: Site) -> None:
    def answer(handler: _Handler) -> None:
        is_known = handler.headers.get("Authorization") == f"Basic {base64.b64encode(b'me:p w').decode()}"

        body = (
            index("/inner?t=c%20d&amp;s=2", f"{site.at}/inner?t=e&amp;s=3")
            if handler.path.startswith("/s")
            else urlset(f"http://h.example{escape(handler.path)}")
        )
        handler.send_response(200 if is_known else 401)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    paths = ["/s?t=a%20b&s=1#top", "/inner?t=c%20d&s=2", "/inner?t=e&s=3"]
    site.answers = dict.fromkeys((path.partition("#")[0] for path in paths), answer)
    address = site.at.replace("//", "//me:p%20w@")
    done = say("put", queue.name, "--sitemap", f"{address}{paths[0]}")
    assert (done.code, done.facts, done.err) == (0, {"added": "2"}, "")
    assert site.asked == [path.partition("#")[0] for path in paths]
    site.put("/bad.xml", "oh", 503)
    assert "me:" not in say("put", queue.name, "--sitemap", f"{address}/bad.xml").err, "a password is shown"


def test_the_password_of_a_sitemap_is_for_its_own_site(site: Site) -> None:
    with Site() as other:
        threading.Thread(target=other.serve_forever, args=(0.05,)).start()
        told: list[str | None] = []

        def answer(handler: _Handler) -> None:
            told.append(handler.headers.get("Authorization"))
            handler.send_response(404)
            handler.end_headers()

        other.answers["/s.xml"] = answer
        site.put("/index.xml", index(f"{other.at}/s.xml"))
        list(sitemap(site.at.replace("//", "//me:pw@") + "/index.xml", refused=lambda *_: None))
        other.shutdown()
    assert told == [None]


def test_an_entry_on_the_web_without_an_address_is_refused(say: Say, queue: Queue, site: Site) -> None:
    inner = site.put("/inner.xml", f"<urlset>\n<url><loc/></url>\n<url/>\n<url><loc>{site.at}/a</loc></url></urlset>")
    root = site.put("/index.xml", f"<sitemapindex>\n<sitemap/>\n<sitemap><loc>{inner}</loc></sitemap></sitemapindex>")
    done = say("put", queue.name, "--sitemap", root)
    assert (done.code, done.facts) == (2, {"added": "1", "refused": "3"})
    assert done.err.splitlines()[:-1] == [
        f"timeoutq: {root}, line 2: '' is refused: it is empty",
        f"timeoutq: {inner}, line 2: '' is refused: it is empty",
        f"timeoutq: {inner}, line 3: '' is refused: it is empty",
    ]
    assert members(queue) == {f"{site.at}/a"}


def test_a_text_on_the_web_names_full_urls_only(say: Say, queue: Queue, site: Site) -> None:
    lines = ("http://h.example/1", "Some words", "www.example.com/page", "/2", "http://h.example/3")
    root = site.put("/sitemap.txt", "\n".join(lines))
    page = site.put("/sitemap.xml", urlset("www.example.com/page", "/4"))
    done = say("put", queue.name, "--sitemap", root, "--sitemap", page)
    assert (done.code, done.facts) == (2, {"added": "3", "refused": "4"})
    for place in (f"{root}, line 2: 'Some words'", f"{root}, line 3: 'www.example.com/page'", f"{root}, line 4: '/2'"):
        assert f"timeoutq: {place} is refused: it has no scheme" in done.err
    assert f"{page}, line 3: 'www.example.com/page' is refused: it has no scheme: write https://www" in done.err
    assert members(queue) == {"http://h.example/1", "http://h.example/3", f"{site.at}/4"}


def test_what_a_sitemap_says_of_a_page_can_be_its_payload(say: Say, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "s.xml"
    file.write_text(
        "<urlset><url><loc>http://h.example/1</loc><lastmod>2026-11-01</lastmod><priority>0.5</priority></url>"
        "<url><loc>http://h.example/2</loc></url></urlset>"
    )
    assert say("put", queue.name, "--sitemap", str(file), "--sitemap-data").code == 0
    assert queue.inspect("http://h.example/1").payload == {"lastmod": "2026-11-01", "priority": 0.5}
    assert queue.inspect("http://h.example/2").payload is None
    queue.forget("http://h.example/1", "http://h.example/2")
    assert say("put", queue.name, "--sitemap", str(file), "--payload", '{"depth": 0}', "--group-by", "domain").code == 0
    assert [queue.inspect(f"http://h.example/{i}").payload for i in (1, 2)] == [{"depth": 0}] * 2


def test_a_sitemap_that_cannot_be_read_is_named_and_the_others_are_put(say: Say, queue: Queue, site: Site) -> None:
    site.put("/html.xml", "<!DOCTYPE html><html>soft 404</html>")
    site.put("/bomb.xml", '<!DOCTYPE urlset [<!ENTITY a "aaa">]><urlset><url><loc>&a;</loc></url></urlset>')
    site.put("/broken.xml", urlset("http://h.example/1").replace("</urlset>", "</x>"))
    site.put("/brotli.xml", b"xxxx", Content_Encoding="br")
    site.put("/zstd.xml", b"xxxx", Content_Encoding="zstd")
    site.put("/no-gzip.xml", b"<urlset/>", Content_Encoding="gzip")
    site.put("/error.xml", "oh", 503)
    site.put("/round.xml", "", 302, Location="/round.xml")
    site.put("/away.xml", "", 302, Location="gopher://h.example/")
    site.put("/good.xml", urlset("http://h.example/2", "ftp://h.example/"))
    names = ["html", "bomb", "broken", "brotli", "zstd", "no-gzip", "error", "round", "away", "gone", "good"]
    root = site.put(
        "/index.xml", index(*(f"/{name}.xml" for name in names), "http://127.0.0.1:1/", "mailto:x", root_of(site))
    )
    done = say("put", queue.name, "--sitemap", root)
    assert (done.code, done.facts) == (2, {"added": "2", "refused": "14"})
    for name, reason in {
        "html": "it is a page of HTML, not a sitemap",
        "bomb": "line 1 declares the entity a, as XML bombs do",
        "broken": "line 4 is not XML as it must be: mismatched tag",
        "brotli": "the body is not the brotli that it claims to be",
        "zstd": "Content-Encoding zstd was not asked for",
        "no-gzip": "the body is not the gzip that it claims to be",
        "error": "the server answers HTTP 503",
        "round": "it redirects more than 5 times",
        "away": "it cannot be fetched: ",
        "gone": "the server answers HTTP 404",
    }.items():
        assert f"timeoutq: sitemap '{site.at}/{name}.xml': {reason}" in done.err, done.err
    assert f"timeoutq: {site.at}/good.xml, line 4: 'ftp://h.example/' is refused: its scheme is ftp" in done.err
    assert "timeoutq: sitemap 'http://127.0.0.1:1/': it cannot be fetched: " in done.err
    assert f"{root}, line 1: 'mailto:x' is refused" in done.err
    assert f"{root}, line 1: sitemap '{root}' names itself again: a loop" in done.err
    assert site.asked.count("/round.xml") == 1 + 5
    assert done.err.endswith("2 URLs and 12 sitemaps were refused; all others were put (--lenient: exit code 0)\n")
    assert members(queue) == {"http://h.example/1", "http://h.example/2"}


@pytest.mark.parametrize("location", ["http://xn--/", "http://xn--a/", "http://h.example:99999/", "http://[/"])
def test_a_redirect_to_what_is_no_url_costs_one_sitemap(site: Site, location: str) -> None:
    site.put("/away.xml", "", 302, Location=location)
    site.put("/good.xml", urlset("http://h.example/"))
    root = site.put("/index.xml", index("/away.xml", "/good.xml"))
    told: list[str] = []
    pages = sitemap(root, refused=lambda _, error: told.append(str(error)), limits=Limits(seconds=5))
    assert [page.url for page in pages] == ["http://h.example/"]
    assert len(told) == 1
    assert told[0].startswith(f"sitemap '{site.at}/away.xml': it cannot be fetched: ")


def root_of(site: Site) -> str:
    return f"{site.at}/index.xml"


def test_the_first_sitemap_must_be_there(say: Say, queue: Queue, site: Site) -> None:
    done = say("put", queue.name, "--sitemap", f"{site.at}/gone.xml", "--lenient")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"timeoutq: sitemap '{site.at}/gone.xml': the server answers HTTP 404\n"
    site.put("/gone.xml", urlset(*(f"http://h.example/{i}" for i in range(7000))) + "<")
    done = say("put", queue.name, "--sitemap", f"{site.at}/gone.xml")
    assert (done.code, done.out) == (2, "")
    assert f"the first {queue.stats().todos:,} tasks were put before the command ended" in done.err
    assert queue.stats().todos >= 1000  # 5,000, or what came within a second
    assert "is not XML as it must be" in done.err
    done = say("put", queue.name, "--sitemap", f"{site.at}/gone.xml", "--max-urls", "5500")
    assert "with it, there are more than 5,500 URLs" in done.err


def test_max_time_is_that_of_all_sitemaps_together(say: Say, queue: Queue, site: Site, tmp_path: Path) -> None:
    site.answers["/slow.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" ")
    site.put("/good.xml", urlset("http://h.example/"))
    file = tmp_path / "index.xml"
    file.write_text(index(f"{site.at}/slow.xml", f"{site.at}/good.xml"))
    done = say("put", queue.name, "--sitemap", str(file), "--max-time", "1s", "--lenient")
    assert (done.code, done.out) == (2, "")
    assert "it is not read to its end, 1 s after the first began" in done.err
    assert "/good.xml" not in site.asked
    assert queue.stats().todos == 0


def test_indexes_are_followed_three_deep(site: Site) -> None:
    for depth in range(6):
        site.put(f"/{depth}.xml", index(f"/{depth + 1}.xml"))
    told: list[str] = []
    assert not list(sitemap(f"{site.at}/0.xml", refused=lambda where, error: told.append(f"{where}: {error}")))
    assert told == [f"{site.at}/3.xml, line 1: sitemap '{site.at}/4.xml' is behind more than 3 indexes"]
    assert site.asked == [f"/{depth}.xml" for depth in range(4)]
    many = site.put("/many.xml", index(*(f"/{i}.xml" for i in range(10))))
    with pytest.raises(BadSitemap, match="there are more than 5 sitemaps"):
        list(sitemap(many, limits=Limits(sitemaps=5)))
    for i in range(10):
        site.put(f"/{i}.xml", urlset(f"http://h.example/{i}/1", f"http://h.example/{i}/2"))
    assert len(list(sitemap(many, limits=Limits(sitemaps=11, pages=20)))) == 20
    with pytest.raises(BadSitemap, match="there are more than 10 sitemaps"):
        list(sitemap(many, limits=Limits(sitemaps=10)))


def test_a_limit_of_all_sitemaps_ends_the_walk_whoever_is_told(site: Site) -> None:
    site.put("/0.xml", urlset(*(f"http://h.example/{i}" for i in range(9))))
    site.put("/1.xml", urlset("http://h.example/last"))
    root = site.put("/index.xml", index("/0.xml", "/1.xml"))
    told: list[str] = []
    with pytest.raises(BadSitemap, match="there are more than 5 URLs"):
        list(sitemap(root, limits=Limits(pages=5), refused=lambda _, error: told.append(str(error))))
    assert (told, site.asked) == ([], ["/index.xml", "/0.xml"])


def test_the_time_of_all_sitemaps_bounds_each_download(site: Site) -> None:
    site.answers["/slow.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" ")
    start = time.monotonic()
    with pytest.raises(BadSitemap, match="it was not there after"):
        list(sitemap(f"{site.at}/slow.xml", limits=Limits(seconds=60, total_seconds=0.5)))
    assert time.monotonic() - start < 15


def slowly(handler: _Handler, begin: bytes, again: bytes) -> None:
    """Answer a little at a time, without end."""
    with_end = handler.server.closing
    try:
        handler.wfile.write(begin)
        while not with_end.wait(0.02):
            handler.wfile.write(again)
    except OSError:
        handler.close_connection = True


HEADER = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"", b""),
        (b"", b"H"),
        (HEADER, b"X: y\r\n"),
        (HEADER + b"\r\n<urlset>", b" "),
        (HEADER + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"<urlset>")[:10], b""),
    ],
    ids=["silence", "status", "headers", "body", "packed"],
)
def test_a_server_that_takes_its_time_does_not_hold_up_the_rest(
    site: Site, begin: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = sitemaps.fetch

    def hurried(url: str, seconds: float, *rest: Any) -> Any:
        # the slow one alone: a busy machine may need long for the others
        return fetch(url, seconds / 100 if url.endswith("/slow.xml") else seconds, *rest)

    monkeypatch.setattr(sitemaps, "fetch", hurried)
    site.answers["/slow.xml"] = lambda handler: slowly(handler, begin, again)
    site.put("/good.xml", urlset("http://h.example/"))
    root = site.put("/index.xml", index("/slow.xml", "/good.xml"))
    told: list[str] = []
    start = time.monotonic()
    pages = list(sitemap(root, limits=Limits(seconds=30), refused=lambda _, error: told.append(str(error))))
    assert [page.url for page in pages] == ["http://h.example/"]
    assert len(told) == 1
    assert time.monotonic() - start < 15, "the limit of time did not count"
    assert "it was not there after 0.3 s" in told[0] or "Remote protocol" in told[0] or "illegal" in told[0], told


def test_a_download_is_left_at_its_limit(site: Site) -> None:
    site.answers["/endless.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" " * 100_000)
    with pytest.raises(BadSitemap, match="it has more than 500,000 bytes"):
        list(sitemap(f"{site.at}/endless.xml", limits=Limits(sent=500_000)))
    site.put("/bomb.xml", gzip.compress(b"<urlset>" + b" " * 20_000_000), Content_Encoding="gzip")
    with pytest.raises(BadSitemap, match="more than 1,000,000 bytes"):
        list(sitemap(f"{site.at}/bomb.xml", limits=Limits(unpacked=1_000_000)))
    site.put("/bomb.xml.gz", gzip.compress(b"<urlset>" + b" " * 20_000_000))
    with pytest.raises(BadSitemap, match="it has more than 1,000,000 bytes, unpacked"):
        list(sitemap(f"{site.at}/bomb.xml.gz", limits=Limits(unpacked=1_000_000)))
    site.put("/bomb.xml", brotli.compress(b"<urlset>" + b" " * 20_000_000), Content_Encoding="br")
    with pytest.raises(BadSitemap, match="more than 1,000,000 bytes"):
        list(sitemap(f"{site.at}/bomb.xml", limits=Limits(unpacked=1_000_000)))
    site.put("/cut.xml", gzip.compress(urlset("http://h.example/").encode())[:-9], Content_Encoding="gzip")
    with pytest.raises(BadSitemap, match="it ends before its Content-Encoding does"):
        list(sitemap(f"{site.at}/cut.xml"))


def test_ctrl_c_says_how_far_it_came(url: str, queue: Queue, site: Site, tmp_path: Path) -> None:
    site.put("/1.xml", urlset(*(f"http://h.example/{i}" for i in range(6000))))
    site.answers["/2.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" ")
    root = site.put("/index.xml", index("/1.xml", "/2.xml"))
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", "put", queue.name, "--sitemap", root],
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            wait_until(lambda: "/2.xml" in site.asked, 30)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    put = queue.stats().todos  # what has gathered for less than a second is not put yet
    assert put >= 1000
    assert err == f"timeoutq: the first {put:,} tasks were put before the command ended\n"
    assert not list(tmp_path.iterdir()), "a temporary file is left"


def test_on_a_terminal_what_is_refused_stands_above_the_bar(url: str, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_bytes(b"http://h.example/[red]\nmailto:[red]\x1b[31m\n")
    code, shown = on_a_terminal(url, "put", queue.name, "--urls", "--file", str(file))
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert code == 2
    assert "line 2: 'mailto:[red]\\x1b[31m' is refused" in text.replace("\r\n", "")
    assert "1 URL was refused; all others were put" in text


SIZED = """
import sys
from timeoutq.cli import main
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""
"""The command, which says on stderr how much memory it had at most, KiB."""


@pytest.mark.breaking
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the memory of a process")
def test_many_lines_need_no_more_memory_than_few(url: str, queue: Queue, tmp_path: Path) -> None:
    lines = [f"http://h{i % 50}.example/{i % 20_000}?b=1&a=2\n" for i in range(200_000)]
    most: list[int] = []
    for count in (20_000, len(lines)):
        file = tmp_path / "urls.txt"
        file.write_text("".join(lines[:count]))
        done = subprocess.run(
            [sys.executable, "-c", SIZED, "put", queue.name, "--urls", "--group-by", "domain", "-f", str(file)],
            env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        most.append(int(done.stderr.splitlines()[-1]))
    assert most[1] - most[0] < 4 * 1024, "memory grows with the number of lines"
    assert queue.stats().todos == 20_000
