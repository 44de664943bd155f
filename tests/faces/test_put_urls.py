"""`timeoutq put` with URLs: lines of files, sitemaps on the web, groups; what is refused is named, the rest is put."""

from __future__ import annotations

import base64
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.pure.test_sitemaps import index, urlset
from tests.rig.command import Say, say, server
from timeoutq import BadSitemap, Politeness, Queue
from timeoutq.urls import Limits, sitemap, sitemaps
from timeoutq.verbs import sending

brotli: Any = import_module("brotli")  # it says nothing of types

__all__ = ["say", "server"]

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


WRONG_OPTIONS = {
    "--group g --group-by host a": "give --group or --group-by, not both",
    "--lenient a": "--lenient goes with --urls, --sitemap or --group-by",
    "--sitemap s.xml a": "give --sitemap, or tasks, or --file, not several of them",
    "--sitemap s.xml --payload 1 --sitemap-data": "give --payload or --sitemap-data, not both",
    "--max-urls 5 a": "--max-urls goes with --sitemap",
    "--group-by planet a": "'planet' is not one of 'host', 'domain'",
    "--sitemap /nowhere/s.xml": "sitemap '/nowhere/s.xml': it cannot be read: No such file",
    "--sitemap http://": "'http://' is no URL of a page: it names no host",
}


def test_options_that_cannot_be_are_refused(say: Say, name: str) -> None:
    for words, said in WRONG_OPTIONS.items():
        done = say("put", name, *words.split())
        assert (done.code, said in done.err) == (2, True), done.err


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
    other = say("put", queue.name, "http://a.example/form#q=2", "--payload", '{"url": "http://a.example/form"}')
    assert other.err == ""  # the id is not what is fetched
    assert {odd, form} < members(queue)
    done = say("put", queue.name, stdin=b"".join(b"http://a.example/%d#top\n" % i for i in range(11)))
    *named, last = done.err.splitlines()
    assert [f"writes this URL as http://a.example/{i}:" in line for i, line in enumerate(named)] == [True] * 10
    assert last == "timeoutq: 11 URLs in all are not in the form in which spider shop writes them"
    assert len(members(queue)) == 17


def test_a_file_in_utf_16_is_named(say: Say, queue: Queue) -> None:
    done = say("put", queue.name, "--urls", stdin="http://h.example/\n".encode("utf-16"))
    assert (done.code, done.err) == (2, "timeoutq: line 1: the file is UTF-16: save it as UTF-8\n")


def test_a_line_that_is_too_long_is_refused_and_the_rest_is_put(say: Say, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    long = b"http://h.example/" + b"x" * 17_000_000
    file.write_bytes(b"http://h.example/1\n" + long + b"\nhttp://h.example/2\nmailto:x\n")
    done = say("put", queue.name, "--urls", "--file", str(file), "--lenient")
    assert (done.code, done.facts) == (0, {"added": "2", "refused": "2"})
    first, second = done.err.splitlines()
    assert first.startswith(f"timeoutq: {file}, line 2: ")
    assert first.endswith(" is refused: it has more than 65,536 characters")
    assert len(first) < 500 + len(str(file))
    assert second.startswith(f"timeoutq: {file}, line 4: ")
    assert members(queue) == {"http://h.example/1", "http://h.example/2"}


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
        self.asked_at: list[float] = []
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
        self.server.asked_at.append(time.monotonic())
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


def test_what_is_no_full_url_in_a_sitemap_on_the_web_becomes_no_address_of_its_site(
    say: Say, queue: Queue, site: Site
) -> None:
    empty = "<urlset>\n<url><loc></loc></url>\n<url><lastmod>2026</lastmod></url></urlset>"
    bad = {
        "/empty.xml": (empty, ["line 2: '' is refused: it is empty", "line 3: '' is refused: it is empty"]),
        "/index.xml": ("<sitemapindex>\n<sitemap><loc> </loc></sitemap></sitemapindex>", ["line 2: '' is refused"]),
        "/list.txt": (
            "http://h.example/\nSome words\nwww.example.com/page\n",
            ["line 2: 'Some words' is refused", "line 3: 'www.example.com/page' is refused: it has no scheme"],
        ),
    }
    for path, (body, said) in bad.items():
        done = say("put", queue.name, "--sitemap", site.put(path, body))
        assert (done.code, done.facts.get("refused")) == (2, str(len(said))), path
        assert all(f"{site.at}{path}, {line}" in done.err for line in said), done.err
    assert members(queue) == {"http://h.example/"}


def test_a_sitemap_that_names_no_page_is_no_success(say: Say, queue: Queue, tmp_path: Path) -> None:
    for name, body in {"s.xml": urlset(), "i.xml": index(), "robots.txt": "User-agent: *\nDisallow: /x\n"}.items():
        (tmp_path / name).write_text(body)
        done = say("put", queue.name, "--sitemap", str(tmp_path / name))
        assert (done.code, done.out, done.err) == (1, "", "timeoutq: nothing was put: the sitemap names no page\n")


def test_a_sitemap_is_asked_for_by_its_address_as_it_was_given(site: Site) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(handler: _Handler) -> None:
        asked.append((handler.path, handler.headers.get("Authorization")))
        body = index("/2.xml?z=a%20b&amp;a=1") if handler.path.startswith("/s.xml") else urlset("http://h.example/")
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    site.answers.update(dict.fromkeys(("/s.xml?t=a%20b&s=1", "/2.xml?z=a%20b&a=1"), answer))
    assert len(list(sitemap(site.at.replace("//", "//u:p%20w@") + "/s.xml?t=a%20b&s=1"))) == 1
    password = f"Basic {base64.b64encode(b'u:p w').decode()}"
    assert asked == [("/s.xml?t=a%20b&s=1", password), ("/2.xml?z=a%20b&a=1", password)]


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


def test_the_sitemaps_of_an_index_are_fetched_with_the_delay_of_the_queue(say: Say, queue: Queue, site: Site) -> None:
    queue.configure(politeness=Politeness(delay=0.3, per_host=1))
    names = [f"/{number}.xml" for number in range(3)]
    for name in names:
        site.put(name, urlset(f"http://h.example{name}"))
    done = say("put", queue.name, "--sitemap", site.put("/index.xml", index(*names)))
    assert (done.code, done.facts) == (0, {"added": "3"})
    assert min(after - before for before, after in pairwise(site.asked_at)) >= 0.3


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


def root_of(site: Site) -> str:
    return f"{site.at}/index.xml"


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


def test_a_server_that_takes_its_time_does_not_hold_up_the_rest(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = sitemaps.fetch

    def hurried(url: str, seconds: float, *rest: Any) -> Any:
        # the slow one alone: a busy machine may need long for the others
        return fetch(url, seconds / 100 if url.endswith("/slow.xml") else seconds, *rest)

    monkeypatch.setattr(sitemaps, "fetch", hurried)
    site.answers["/slow.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" ")
    site.put("/good.xml", urlset("http://h.example/"))
    root = site.put("/index.xml", index("/slow.xml", "/good.xml"))
    told: list[str] = []
    start = time.monotonic()
    pages = list(sitemap(root, limits=Limits(seconds=30), refused=lambda _, error: told.append(str(error))))
    assert ([page.url for page in pages], len(told)) == (["http://h.example/"], 1)
    assert time.monotonic() - start < 15, "the limit of time did not count"


def test_a_download_is_left_at_its_limit(site: Site) -> None:
    site.answers["/endless.xml"] = lambda handler: slowly(handler, HEADER + b"\r\n<urlset>", b" " * 100_000)
    with pytest.raises(BadSitemap, match="it has more than 500,000 bytes"):
        list(sitemap(f"{site.at}/endless.xml", limits=Limits(sent=500_000)))
    site.put("/bomb.xml", gzip.compress(b"<urlset>" + b" " * 20_000_000), Content_Encoding="gzip")
    with pytest.raises(BadSitemap, match="more than 1,000,000 bytes"):
        list(sitemap(f"{site.at}/bomb.xml", limits=Limits(unpacked=1_000_000)))
    site.put("/bomb.xml", brotli.compress(b"<urlset>" + b" " * 20_000_000), Content_Encoding="br")
    with pytest.raises(BadSitemap, match="more than 1,000,000 bytes"):
        list(sitemap(f"{site.at}/bomb.xml", limits=Limits(unpacked=1_000_000)))
    site.put("/cut.xml", gzip.compress(urlset("http://h.example/").encode())[:-9], Content_Encoding="gzip")
    with pytest.raises(BadSitemap, match="it ends before its Content-Encoding does"):
        list(sitemap(f"{site.at}/cut.xml"))
