"""Pages that were made to stop a crawler: each is bounded in time and memory, and the crawl goes on."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from demo.bounded import PageRefused, Reader
from demo.course import members
from demo.links import MOST_LINKS, read
from demo.processes import Processes
from demo.settings import Settings
from tests.rig.waiting import wait_until
from timeoutq import Queue, State
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.urls.bodies import Body, Broken, TooLong, Unreadable

brotli: Any = import_module("brotli")  # it says nothing of types
ROOT = Path(__file__).resolve().parent.parent.parent
DEEP = b"<div>" * 200_000
WIDE = b"<p " + b" ".join(b"a%d" % i for i in range(800_000)) + b">"
TANGLED = b"".join(b"<b id=%x>" % i for i in range(6_000)) + b"<div>" * 6_000 + b"</b>" * 6_000
LINKS = b"".join(b"<a href=/%x>x</a>" % i for i in range(500_000))
LARGE = b"<title>large</title>" + b"<p>some text</p>" * 2_000 + b"<a href=/good/next>next</a>"
MB = 1024 * 1024
TEXT_IN_BROTLI = brotli.compress(b"text")

# ---- bodies


def unpacked(encodings: str, body: bytes, most: int = MB, step: int = 1000) -> bytes:
    opened = Body(encodings, most)
    return b"".join(piece for at in range(0, len(body), step) for piece in opened.feed(body[at : at + step]))


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_body_is_unpacked_whatever_it_is_packed_with(step: int) -> None:
    text = b"<p>hello</p>" * 20_000
    for encodings, body in (
        ("", text),
        ("identity", text),
        ("gzip", gzip.compress(text)),
        ("X-GZIP", gzip.compress(text)),
        ("deflate", zlib.compress(text)),
        ("deflate", bare(text)),
        ("deflate, gzip", gzip.compress(zlib.compress(text))),
        ("br", brotli.compress(text)),
        ("br, gzip", gzip.compress(brotli.compress(text))),
    ):
        assert unpacked(encodings, body, step=step) == text
    two = gzip.compress(b"first") + gzip.compress(b"second")
    assert unpacked("gzip", two, step=step) == b"firstsecond"
    assert unpacked("gzip", two + b"\0" * 10 + gzip.compress(b"third"), step=step) == b"firstsecond"
    assert unpacked("deflate", zlib.compress(b"first") + gzip.compress(b"second"), step=step) == b"first"


@pytest.mark.parametrize("name", ["gzip", "br"])
def test_a_bomb_is_unpacked_in_little_memory(name: str) -> None:
    bomb = {"gzip": gzip.compress, "br": brotli.compress}[name](b"x" * 50 * MB)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            for _ in Body(name, 20 * MB).feed(bomb):
                pass
        assert tracemalloc.get_traced_memory()[1] < 3 * MB
    finally:
        tracemalloc.stop()


def test_a_body_knows_whether_its_end_has_come() -> None:
    for name, packed in (("gzip", gzip.compress(b"text")), ("deflate", zlib.compress(b"text")), ("br", TEXT_IN_BROTLI)):
        opened = Body(name, MB)
        list(opened.feed(packed[:-1]))
        assert not opened.ended, name
        list(opened.feed(packed[-1:]))
        assert opened.ended, name


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_nothing_may_follow_the_end_of_brotli(step: int) -> None:
    with pytest.raises(Broken, match="brotli"):
        unpacked("br", TEXT_IN_BROTLI + b"more", step=step)


def test_a_layer_within_may_not_be_longer_than_the_page() -> None:
    # the outer layer has 5 MB, although what is in it would be nothing
    hollow = gzip.compress(gzip.compress(b"") + b"x" * 5 * MB)
    with pytest.raises(TooLong):
        unpacked("gzip, gzip", hollow)


def test_what_is_packed_too_often_or_in_a_way_that_was_not_asked_for_is_not_unpacked() -> None:
    with pytest.raises(Unreadable, match="packed 4 times over, where 2 are unpacked"):
        Body("gzip, gzip, gzip, gzip", MB)
    with pytest.raises(Unreadable, match="Content-Encoding zstd was not asked for"):
        Body("zstd", MB)
    with pytest.raises(Broken, match="is not the brotli"):
        unpacked("br", b"\x5b\xff\xff\x3f" * 100)
    with pytest.raises(Broken, match="is not the gzip"):
        unpacked("gzip", b"<p>plain</p>")
    with pytest.raises(Broken, match="is not the deflate"):
        unpacked("deflate", b"\xff" * 100)


def test_without_the_package_nobody_asks_for_brotli_and_who_sends_it_is_told() -> None:
    code = (
        "import sys; sys.modules['brotli'] = None\nfrom timeoutq.urls.bodies import *\nprint(ACCEPTED)\n"
        "try: Body('br', 9)\nexcept Unreadable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "gzip, deflate\nContent-Encoding br was not asked for, because the package brotli (1.2 or later) is missing: "
        "pip install 'timeoutq[crawl]'\n"
    )
    assert done.stderr == ""


# ---- reading


def test_a_link_of_10_mb_is_left_out_and_the_page_is_read() -> None:
    page = read(b"<a href='/%s'>x</a><a href=/good>y</a>" % (b"x" * 10 * MB), "http://h.example/")
    assert page.links == ("http://h.example/good",)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}/cmdline").exists()


@asynccontextmanager
async def reading(seconds: float = 1.0) -> AsyncIterator[Reader]:
    reader = Reader("host", seconds)
    try:
        yield reader
    finally:
        await reader.close()
        assert reader.pid is None


async def test_a_large_page_is_read_in_another_process_and_says_the_same() -> None:
    url = "http://h.example/"
    async with reading() as reader:
        assert await reader.read(b"<a href=/x>", url) == read(b"<a href=/x>", url)
        assert reader.pid is None  # a small page needs none
        for _ in range(2):
            assert await reader.read(LARGE, url) == read(LARGE, url)
        first = reader.pid
        assert await reader.read(bytearray(LARGE), url) == read(LARGE, url)
        assert reader.pid == first is not None


@pytest.mark.parametrize(
    ("html", "seconds", "reason"),
    [
        pytest.param(DEEP, 1, "parsing took over", id="200,000 open elements"),
        pytest.param(LINKS, 10, "parsing needs more than 240 MB", id="10 MB of links"),
        pytest.param(LINKS[: 25_000 * 20], 10, f"more than {MOST_LINKS:,} links", id="many links"),
    ],
)
async def test_a_page_that_would_stop_the_crawl_is_refused_and_the_next_is_read(
    html: bytes, seconds: float, reason: str
) -> None:
    async with reading(seconds) as reader:
        with pytest.raises(PageRefused, match=reason):
            await reader.read(html, "http://h.example/")
        assert (await reader.read(LARGE, "http://h.example/")).title == "large"


# ---- robots.txt


# ---- a crawl by two processes


@dataclass(frozen=True)
class Answer:
    body: bytes
    encoding: str = ""
    drip: bool = False
    """Whether the body comes byte by byte and never ends."""


def layers(body: bytes, times: int) -> bytes:
    for _ in range(times):
        body = gzip.compress(body)
    return body


@cache
def hostile() -> Mapping[str, tuple[Answer, str]]:
    """Give the hostile pages, and what is said of each."""
    return {
        "/deep": (Answer(gzip.compress(DEEP), "gzip"), "parsing took over "),
        "/wide": (Answer(gzip.compress(WIDE), "gzip"), "parsing took over "),
        "/tangled": (Answer(TANGLED), "parsing took over "),
        "/links": (Answer(gzip.compress(LINKS), "gzip"), "parsing needs more than 240 MB|parsing took over"),
        "/many": (Answer(LINKS[: 25_000 * 20]), "more than 20,000 links|parsing took over"),
        "/bomb": (Answer(gzip.compress(b"x" * 100 * MB), "gzip"), "the page has more than 10,485,760 bytes"),
        "/twice": (Answer(layers(b"\0" * 200 * MB, 2), "gzip, gzip"), "the page has more than 10,485,760 bytes"),
        "/brotli": (Answer(brotli.compress(b"\0" * 100 * MB), "br"), "the page has more than 10,485,760 bytes"),
        "/broken": (Answer(b"<p>no gzip</p>", "gzip"), "is not the gzip"),
        "/slow": (Answer(b"x", drip=True), "the page took over 2 s"),
    }


@dataclass
class Site:
    """A site with good pages, some of them large, that link to each other and to all hostile ones."""

    answers: dict[str, Answer]
    good: int = 60
    asked: dict[str, float] = field(default_factory=dict[str, float])
    """When each path was asked for first, Unix seconds."""
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def find(self, path: str) -> Answer:
        if path in self.answers:
            return self.answers[path]
        number = 0 if path == "/" else int(path.removeprefix("/good/"))
        links = [f"/good/{i}" for i in (2 * number + 1, 2 * number + 2) if i < self.good]
        links += list(self.answers) if number < 3 else []
        filling = "<p>some text</p>" * (2_000 if number % 5 == 0 else 5)
        return Answer((filling + "".join(f"<a href='{link}'>x</a>" for link in links)).encode())

    @contextmanager
    def serving(self) -> Iterator[Site]:
        site, over = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.asked.setdefault(self.path, time.time())
                answer = site.find(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(MB if answer.drip else len(answer.body)))
                if answer.encoding:
                    self.send_header("Content-Encoding", answer.encoding)
                self.end_headers()
                while answer.drip and not over.wait(0.05):
                    self.wfile.write(b"x")
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None: ...

        with Server(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            yield self
            over.set()
            server.shutdown()
            thread.join()


def family(pids: list[int]) -> list[int]:
    """Give processes with their children."""
    found = list(pids)
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, task.read_text("ascii").split())
            except OSError:  # it has just ended
                continue
    return found


def memory(pid: int) -> float:
    """Give the most that a process has had, MB; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


@contextmanager
def crawling(folder: Path, workers: int, **given: float) -> Iterator[Processes]:
    """A queue on a private server, and worker processes of the demo."""
    with EmbeddedServer() as server, Queue("hostile", server.url) as queue:
        settings = Settings(site="origin", allow_private=True, robots=False, **given)  # type: ignore[arg-type]  # of floats
        work = Processes(queue, server.url, workers, folder, settings, retry="0.1")
        try:
            for _ in range(workers):
                work.start_worker()
            yield work
        finally:
            work.stop()


@pytest.mark.breaking
def test_hostile_pages_fail_with_their_reason_and_the_crawl_goes_on(tmp_path: Path) -> None:
    site = Site({path: answer for path, (answer, _) in hostile().items()})
    most: dict[int, float] = {}
    with site.serving(), crawling(tmp_path, 2, parsing=1.0, total=2.0) as work:
        queue = work.queue
        queue.put(site.url("/"))

        def over() -> bool:
            work.check()
            for pid in family(list(work.running)):
                most[pid] = max(most.get(pid, 0.0), memory(pid))
            return queue.drained() and queue.stats().known > 1

        wait_until(over, timeout=60)
        good = {site.url("/")} | {site.url(f"/good/{i}") for i in range(1, site.good)}
        assert members(queue, State.DONE) == good
        failed = {entry.task: entry for entry in queue.list(State.FAILED).entries}
        took = {path: (failed[site.url(path)].at or 0.0) - site.asked[path] for path in hostile()}
        for path, (_, reason) in hostile().items():
            assert re.search(reason, failed[site.url(path)].error or ""), path
        assert len(failed) == len(hostile())
    sys.stdout.write(f"most MB: {sorted(round(one) for one in most.values())}; seconds: {took}\n")
    assert max(most.values()) < 300
    assert max(took.values()) < 30


def test_a_parser_does_not_outlive_a_worker_that_was_killed(tmp_path: Path) -> None:
    site = Site({"/deep": Answer(gzip.compress(DEEP), "gzip")})
    with site.serving(), crawling(tmp_path, 1, parsing=2.0) as work:
        [worker] = work.running
        work.queue.put(site.url("/deep"))
        wait_until(lambda: len(family([worker])) > 1, timeout=20)
        [_, parser] = family([worker])
        process = work.running.pop(worker)
        process.kill()
        process.wait()
        wait_until(lambda: gone(parser), timeout=20)
