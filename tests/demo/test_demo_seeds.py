"""What the demo's crawler begins with and how far it goes: sitemaps, patterns, exact depth, kept queues."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from demo.course import members
from demo.options import Options, settings_of
from demo.report import say_to_people
from demo.scope import Scope
from demo.seeds import Seeds
from demo.settings import Settings
from demo.summary import Again, Host, Kind, Summary, kind_of
from demo.trail import DEEPEST, Trail, tasks
from tests.pure.test_sitemaps import index, urlset
from tests.rig.waiting import wait_until
from timeoutq import BadSitemap, Politeness, Queue, State, Task
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_queue

ROOT = Path(__file__).resolve().parent.parent.parent
brotli: Any = import_module("brotli")  # it says nothing of types
HERE = "http://h.example/"

# ---- patterns


@pytest.mark.parametrize(
    ("include", "exclude", "let_in"),
    [
        ((), (), "news/1 news/old/2 a.pdf x?q=1"),
        (("http://h.example/news/*",), (), "news/1 news/old/2"),
        (("http://h.example/news/*", "*.pdf"), (), "news/1 news/old/2 a.pdf"),
        (("http://h.example/news/*",), ("*/old/*",), "news/1"),
        ((), ("*.pdf", "*[?]*"), "news/1 news/old/2"),
    ],
)
def test_patterns_say_what_is_followed(include: tuple[str, ...], exclude: tuple[str, ...], let_in: str) -> None:
    scope = Scope("host", include, exclude)
    paths = ("news/1", "news/old/2", "a.pdf", "x?q=1")
    assert [path for path in paths if scope.allows(HERE + path)] == let_in.split()
    assert scope.belonging([HERE + path for path in paths], HERE) == [HERE + path for path in let_in.split()]
    assert not scope.has("http://other.example/news/1", HERE)


def test_no_address_makes_a_pattern_slow() -> None:
    scope = Scope("any", ("*a" * 30 + "b",), ("*x*x*x*x*x*x*y",))
    began = time.thread_time()
    assert not scope.allows("http://h.example/" + "ax" * 450)
    assert time.thread_time() - began < 0.5


# ---- tasks


def test_the_priority_is_minus_the_depth() -> None:
    assert tasks(["u"], Trail(3), ordered=True, improve=True) == [Task("u", priority=-3, improve=True)]
    assert tasks(["u"], Trail(3), ordered=True, improve=False) == [Task("u", priority=-3)]
    assert tasks(["u"], Trail(3), ordered=False, improve=True) == [Task("u")]
    assert tasks(["u"], Trail(5000), ordered=True, improve=False) == [Task("u", priority=-DEEPEST)]
    assert tasks(["u"], Trail(3), ordered=True, improve=True)[0].payload == {"depth": 3, "redirects": []}


# ---- sitemaps


def planted(queue: Queue, first: str | None, *sitemaps: str, **given: Any) -> tuple[Seeds, list[str]]:
    told: list[str] = []
    seeds = Seeds(Settings(ordered=True, **given), told.append)
    seeds.plant(queue, first, sitemaps)
    return seeds, told


@pytest.fixture
def queue() -> Iterator[Queue]:
    with fake_queue(politeness=Politeness(0)) as made:
        assert isinstance(made, Queue)
        yield made


def test_the_pages_of_a_sitemap_are_seeds(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "s.xml.gz"
    pages = (f"{HERE}1", f"{HERE}no/2", "http://other.example/3", "mailto:x", "HTTP://H.EXAMPLE/%7ea")
    file.write_bytes(gzip.compress(urlset(*pages).encode()))
    seeds, told = planted(queue, HERE, str(file), exclude=("*/no/*",))
    assert {entry.task for state in State for entry in queue.each(state)} == {HERE, f"{HERE}1", f"{HERE}~a"}
    assert (seeds.put, seeds.outside, seeds.refused) == (3, 2, 1)
    assert told == [f"{file}, line 6: 'mailto:x' is refused: its scheme is mailto, not http or https"]
    assert queue.inspect(f"{HERE}1").payload == {"depth": 0, "redirects": []}


# ---- a server


@contextmanager
def serving(answer: Callable[[str], tuple[dict[str, str], bytes]]) -> Iterator[str]:
    """Serve what a function gives for a path: headers and body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            headers, body = answer(self.path)
            self.send_response(302 if "Location" in headers else 200 if headers else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_sitemap_does_not_lead_to_a_private_address_unless_it_may(queue: Queue) -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[dict[str, str], bytes]:
        asked.append(path)
        inner = index("/inner.xml") if path == "/index.xml" else urlset("/1", "/2")
        return {"Content-Encoding": "br"}, brotli.compress(inner.encode())

    with serving(answer) as url:
        with pytest.raises(BadSitemap, match=r"has the private address 127\.0\.0\.1: crawl it with --allow-private"):
            planted(queue, None, f"{url}index.xml")
        assert asked == []
        seeds, _ = planted(queue, url, f"{url}index.xml", allow_private=True)
        assert (seeds.put, asked) == (3, ["/index.xml", "/inner.xml"])


def demo(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def told_by(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    try:
        said, complaint = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == code, said + complaint
    found: dict[str, Any] = json.loads(said)
    return found


GUEST = ("--allow-private", "--delay", "0", "--json")


@pytest.mark.parametrize("limit", [2, pytest.param(4, marks=pytest.mark.breaking)])
def test_a_limit_of_depth_is_exact_whatever_is_killed(limit: int) -> None:
    rng = random.Random(limit)
    links = [[rng.randrange(150) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(150)]
    links[0] = [1, 2, 3]
    depths, level = {0: 0}, [0]
    for depth in range(1, limit + 1):
        level = [link for page in level for link in links[page] if link not in depths]
        depths |= dict.fromkeys(level, depth)

    def answer(path: str) -> tuple[dict[str, str], bytes]:
        number = int(path[2:] or 0) if path != "/robots.txt" else -1
        if number < 0:
            return {}, b""
        time.sleep(0.3 if number % 3 == 1 else 0.0)  # so longer ways come before shorter ones
        body = "".join(f"<a href='/{f'p{link}' if link else ''}'>x</a>" for link in links[number])
        return {"Content-Type": "text/html"}, body.encode()

    with serving(answer) as url, EmbeddedServer() as server, Queue("deep", server.url) as queue:
        words = ("--url", url, "--depth", str(limit), "--per-host", "8", "--workers", "3", "--kill")
        told = told_by(demo(*words, *GUEST, "--redis", server.url, "--queue", "deep", "--keep"))
        assert members(queue, State.DONE) == {f"{url}p{page}" if page else url for page in depths}
        assert told["failed"] == 0


@pytest.mark.breaking
def test_a_crawl_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[dict[str, str], bytes]:
        asked.append(path)
        number = int(path[1:] or 0) if path[1:].isdecimal() or path == "/" else -1
        if number < 0:
            return {}, b""
        time.sleep(0.05)
        return {"Content-Type": "text/html"}, "".join(
            f"<a href='/{link}'>x</a>" for link in (2 * number + 1, 2 * number + 2) if link < 120
        ).encode()

    with serving(answer) as url:
        state = str(tmp_path / "state")
        words = ("--url", url, "--state", state, "--queue", "mine", "--workers", "2", "--per-host", "4", *GUEST)
        process = demo(*words)
        try:
            wait_until(lambda: len(asked) > 40, timeout=60)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130
        before = len(asked)
        assert before < 110
        told = told_by(demo(*words))
        assert (told["queue"], told["pages"], told["failed"]) == ("mine", 120, 0)
        again = [path for path in asked[before:] if path in asked[:before] and path != "/robots.txt"]
        assert len(again) <= 16, "the second crawl has begun anew"


@pytest.mark.breaking
def test_a_sitemap_is_crawled_and_what_is_outside_is_counted(tmp_path: Path) -> None:
    pages = {"/": b"<a href=/a>a</a>", "/a": b"<a href=/b>b</a>", "/b": b"", "/c": b"<a href=/no/d>d</a>"}
    with serving(lambda path: ({"Content-Type": "text/html"}, pages[path]) if path in pages else ({}, b"")) as url:
        file = tmp_path / "s.xml"
        file.write_text(urlset(f"{url}c", f"{url}no/e", "ftp://h.example/"))
        process = demo("--sitemap", str(file), "--exclude", "*/no/*", "--workers", "1", *GUEST[:-1])
        said, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
        assert re.search(r"of sitemaps: refused +1 ", said), said
        assert re.search(r"of sitemaps: outside the crawl +1 ", said), said
        assert f"{file}, line 5: 'ftp://h.example/' is refused" in complaint
        told = told_by(demo("--url", url, "--sitemap", str(file), "--exclude", "*/no/*", "--workers", "1", *GUEST))
        assert (told["pages"], told["failed"]) == (4, 0)
        assert told["seeds"] == {"put": 2, "outside": 1, "refused": 1}
        nothing = demo("--sitemap", str(file), "--include", "nothing", *GUEST)
        _, complaint = nothing.communicate(timeout=60)
        assert nothing.returncode == 3
        assert "no page to begin with" in complaint


@pytest.mark.breaking
def test_a_crawl_that_cannot_begin_says_why_and_what_helps(tmp_path: Path) -> None:
    with serving(lambda path: ({"Content-Type": "text/html"}, b"<a href=/a>a</a>")) as url:
        process = demo("--url", url, "--delay", "0", "--workers", "1")
        said, complaint = process.communicate(timeout=60)
        assert process.returncode == 1, complaint
        assert f"the crawl could not begin: {url}: GiveUp: 127.0.0.1 has the private address 127.0.0.1: " in said
        assert "crawl it with --allow-private" in said
        assert "everything that was found" not in said
        file = tmp_path / "s.txt"
        file.write_text(f"{url}c\n{url}d\n")
        told = told_by(demo("--sitemap", str(file), "--delay", "0", "--workers", "1", "--json"), code=1)
        assert told["not_begun"]["url"] in (f"{url}c", f"{url}d")
        assert "--allow-private" in told["not_begun"]["error"]
        told = told_by(demo("--sitemap", str(file), *GUEST))
        assert (told["not_begun"], told["ok"], told.get("outside_patterns")) == (None, True, None)


@pytest.mark.breaking
def test_addresses_outside_the_patterns_are_counted_once_each() -> None:
    pages = {
        "/": b"<a href=/list/1>1</a> <a href=/item/1>i</a> <a href=//other.example/item/3>o</a>",
        "/item/1": b"<a href=/list/1>1</a> <a href=/list/2>2</a> <a href=/item/2>i</a>",
        "/item/2": b"<a href=/moved>m</a>",
    }
    with serving(lambda path: ({"Content-Type": "text/html"}, pages.get(path, b""))) as url:
        words = ("--url", url, "--include", "*/item/*", "--delay", "0", "--workers", "2", "--allow-private")
        told = told_by(demo(*words, "--json"))
        assert (told["pages"], told["failed"], told["outside_patterns"]) == (3, 0, 3)
        process = demo(*words)
        said, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
        assert re.search(r"outside the patterns +3 addresses", said), said


# ---- the summary


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("GiveUp: HTTP 404", "HTTP 404"),
        ("Retry: HTTP 503 3 times in a row, with Retry-After", "HTTP 503"),
        ("GiveUp: h.example has the private address 10.0.0.1: crawl it with --allow-private", "private address"),
        ("GiveUp: the page has more than 10,485,760 bytes: raise --max-bytes", "longer than --max-bytes"),
        ("GiveUp: Content-Encoding zstd was not asked for and cannot be unpacked", "cannot be unpacked"),
        ("GiveUp: it redirects to http://other.example/, which does not belong to the crawl", "redirects elsewhere"),
        ("GiveUp: not an http or https address: put a URL", "no URL of a page"),
        ("Retry: ConnectError: All connection attempts failed", "no answer"),
        ("ValueError: of a\nmade-up kind", "ValueError"),
        (None, "unknown"),
    ],
)
def test_errors_have_kinds(error: str | None, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_result_of_many_hosts_and_errors_is_told_in_a_few_lines() -> None:
    hosts = {f"h{i}.example": Host(done=i, failed=1) for i in range(500)}
    kinds = {f"kind {i}": Kind(i + 1, "http://h.example/\x1b[31m[red]") for i in range(30)}
    told = Summary(hosts, kinds, Again(5, 50, 7, 8, [(9, "http://h.example/[bold]")])).figures()
    assert len(told["by_host"]) == 100
    assert next(iter(told["by_error"])) == "kind 29"
    verdict: dict[str, Any] = {
        "pages": 3, "failed": 0, "waiting": 7, "hosts_used_up": 0, "hosts_blocked": 0, "seconds": 1.0,
        "pages_per_second": 3.0, "killed": 0, "redeliveries": {}, "lost": None, "ok": True, **told,
        "warc": {"folder": "w", "files": 2, "bytes": 12345},
    }  # fmt: skip
    console = Console(width=100, file=io.StringIO())
    with console.capture() as caught:
        say_to_people(verdict, console)
    text = caught.get()
    for said in ("h499.example", "and 490 more", "and 20 more kinds", "[red]", "[bold]", "2 files, 12,345 bytes"):
        assert said in text
    assert "\x1b[31m" not in text
    assert len(text.splitlines()) < 60


# ---- words


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"recrawl": True}, "--recrawl is for --url and --sitemap"),
        ({"url": HERE, "first": 3.0}, "--first, --shortest and --longest go with --recrawl"),
        ({"url": HERE, "recrawl": True, "shortest": 5.0, "longest": 3.0}, "shortest 5 s is longer than longest 3 s"),
        ({"hosts": 3, "exclude": ("*",)}, "--include and --exclude are for --url"),
        ({"url": HERE, "depth": 1001}, "depth 1001 is more than 1000"),
        ({"redis": "redis://x", "state": Path("x")}, "--state is for the private server"),
    ],
)
def test_words_that_do_not_go_together_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(typer.BadParameter, match=complaint.replace("(", r"\(")):
        settings_of(Options(**given))


@pytest.mark.breaking
@pytest.mark.parametrize(
    ("pages", "where", "why"),
    [
        (
            {"": "http://other.example/b"},
            "",
            "it redirects to http://other.example/b, which does not belong to the crawl",
        ),
        ({"": "/a", "a": "//other.example/"}, "a", "it redirects to http://other.example/, which does not belong"),
        ({"": "/"}, "", "it redirects to itself"),
        ({"": "/a", "a": "/b", "b": "/a"}, "b", "it redirects back to "),
        ({"": "mailto:me@h.example"}, "", "it redirects to 'mailto:me@h.example', which is no page"),
        ({"": "/a", "a": "/gone"}, "gone", "HTTP 404"),
    ],
)
def test_a_crawl_whose_first_page_leads_nowhere_has_not_begun(pages: dict[str, str], where: str, why: str) -> None:
    def answer(path: str) -> tuple[dict[str, str], bytes]:
        return ({"Location": pages[path[1:]]}, b"") if path[1:] in pages else ({}, b"")

    with serving(answer) as url:
        process = demo("--url", url, "--workers", "1", *GUEST[:-1])
        said, complaint = process.communicate(timeout=60)
        assert process.returncode == 1, said + complaint
        assert f"the crawl could not begin: {url}{where}: GiveUp: {why}" in said
        assert "everything that was found" not in said
