"""What the demo's crawler archives: records as the standard wants them, whatever is sent, killed or full."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from demo import warc
from demo.course import members
from demo.crawl import Crawler
from demo.exchange import Exchange
from demo.settings import Settings
from demo.trail import Capture
from demo.warc import OPEN, Archive, ArchiveError, end_of_whole_records, finished, mend, prepare
from tests.rig.answering import Names, Site, lease, put
from tests.rig.waiting import wait_until
from timeoutq import Ack, GiveUp, Queue, Release, Retry, State
from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent.parent
brotli: Any = import_module("brotli")
iterator: Any = import_module("warcio.archiveiterator")  # it says nothing of types


def records(folder: Path) -> list[tuple[str, str, Any, bytes]]:
    """Give the type, the address, the record and the body of each record, and check the archive on the way."""
    paths = sorted(folder.glob("*.warc.gz"))
    done = subprocess.run(
        [sys.executable, "-m", "warcio.cli", "check", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found: list[tuple[str, str, Any, bytes]] = []
    for path in paths:
        with path.open("rb") as file:
            for record in iterator.ArchiveIterator(file):
                url = record.rec_headers.get_header("WARC-Target-URI")
                found += [(record.rec_type, url, record, record.raw_stream.read())]
    return found


def in_work(folder: Path) -> list[Path]:
    """Give the files that are not finished."""
    return sorted(folder.glob(f"*{OPEN}"))


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.iterdir()]


def answers(folder: Path) -> list[tuple[str, str]]:
    """Give the types and addresses of the records that answer."""
    return [(kind, url) for kind, url, _, _ in records(folder) if kind in ("response", "revisit")]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site().serving() as serving:
        yield serving


@asynccontextmanager
async def crawling(folder: Path, stops: list[str] | None = None, **given: Any) -> AsyncIterator[Crawler]:
    settings = replace(Settings(allow_private=True, robots=False, warc=str(folder)), **given)

    def stop() -> None:
        assert stops is not None
        stops.append("stop")

    crawler = Crawler(settings, Names.backend("127.0.0.1"), stop)
    try:
        yield crawler
    finally:
        await crawler.close()


def exchange(body: bytes = b"<p>hello</p>", url: str = "http://h.example/", **given: Any) -> Exchange:
    made = Exchange(url, 1_800_000_000.25, "93.184.216.34", b"/", [(b"Host", b"h.example")], b"HTTP/1.1", 200, b"OK")
    made.answered, made.body, made.is_whole = [(b"Content-Type", b"text/html")], body, True
    for name, value in given.items():
        setattr(made, name, value)
    return made


@contextmanager
def opened(folder: Path, **given: Any) -> Iterator[Archive]:
    archive = Archive(folder, "mine/1", **given)
    try:
        yield archive
    finally:
        archive.close()


# ---- records


async def test_a_visit_is_a_response_with_its_request(tmp_path: Path, site: Site) -> None:
    page = gzip.compress(b"<title>Hi</title><a href=/b>b</a>")
    site.say("/a?x=1", body=page, content_type="text/html", content_encoding="gzip", x_odd="1")
    async with crawling(tmp_path) as crawler:
        found = await crawler.fetch(lease(site.url("/a?x=1")))
        assert isinstance(found, Ack)
        assert len(in_work(tmp_path)) == 1
    about, answer, request = records(tmp_path)
    assert [one[0] for one in (about, answer, request)] == ["warcinfo", "response", "request"]
    assert b"format: WARC File Format 1.1" in about[3]
    head = answer[2].rec_headers
    assert head.protocol == "WARC/1.1"
    assert answer[1] == request[1] == site.url("/a?x=1")
    assert head.get_header("WARC-IP-Address") == "127.0.0.1"
    assert head.get_header("WARC-Truncated") is None
    assert answer[3] == page, "the body is not as it was sent"
    assert answer[2].http_headers.get_statuscode() == "200"
    assert answer[2].http_headers.get_header("x-odd") == "1"
    assert request[2].rec_headers.get_header("WARC-Concurrent-To") == head.get_header("WARC-Record-ID")
    assert request[2].http_headers.statusline == "/a?x=1 HTTP/1.1"
    assert request[2].http_headers.get_header("Host") == f"site.example:{site.port}"
    assert request[2].http_headers.get_header("Accept-Encoding") == "gzip"


async def test_a_page_in_an_encoding_that_no_reader_knows_is_archived_unpacked(tmp_path: Path, site: Site) -> None:
    page, packed = b"<a href=/b>b</a>", brotli.compress(b"<a href=/b>b</a>")
    site.say("/a", body=packed, content_type="text/html", content_encoding="br")
    site.say("/gone", 404, packed, content_type="text/html", content_encoding="br")
    async with crawling(tmp_path) as crawler:
        assert list(put(await crawler.fetch(lease(site.url("/a"))))) == [site.url("/b")]
        with pytest.raises(GiveUp):
            await crawler.fetch(lease(site.url("/gone")))
    read = [one for one in records(tmp_path) if one[0] == "response"]
    assert [(url, body) for _, url, _, body in read] == [(site.url("/a"), page), (site.url("/gone"), packed)]
    for _, _, answer, _ in read:
        assert answer.http_headers.get_header("content-encoding") is None
        assert answer.http_headers.get_header("x-archive-orig-content-encoding") == "br"


async def test_each_visit_that_has_an_answer_is_archived_however_it_ends(tmp_path: Path, site: Site) -> None:
    site.say("/robots.txt", body=b"User-agent: *\nDisallow: /no", content_type="text/plain")
    site.say("/gone", 404, b"<p>gone</p>", content_type="text/html")
    site.say("/broken", 500, b"oh")
    site.say("/busy", 429, b"later", retry_after="3")
    site.say("/old", 301, b"moved", location="/new")
    site.say("/film", 200, b"\x00\x01" * 100, content_type="video/mp4")
    site.say("/bad", 200, b"no gzip", content_type="text/html", content_encoding="gzip")
    async with crawling(tmp_path, robots=True) as crawler:
        for path, end in (("/gone", GiveUp), ("/broken", Retry), ("/bad", Retry), ("/no", GiveUp)):
            with pytest.raises(end):
                await crawler.fetch(lease(site.url(path)))
        assert isinstance(await crawler.fetch(lease(site.url("/busy"))), Release)
        for path in ("/old", "/film"):
            assert isinstance(await crawler.fetch(lease(site.url(path))), Ack)
        with pytest.raises(Retry):
            await crawler.fetch(lease("http://site.example:1/nobody"))
    paths = ("/robots.txt", "/gone", "/broken", "/bad", "/busy", "/old", "/film")
    assert answers(tmp_path) == [("response", site.url(path)) for path in paths]
    bodies = {url: body for kind, url, _, body in records(tmp_path) if kind == "response"}
    assert bodies[site.url("/film")] == b"\x00\x01" * 100
    assert bodies[site.url("/gone")] == b"<p>gone</p>"


async def test_an_answer_that_is_cut_says_why(tmp_path: Path, site: Site) -> None:
    head = b"HTTP/1.1 200 -\r\nContent-Type: text/html\r\n"
    site.say("/long", body=b"<p>" + b"x" * 5000, content_type="text/html")
    site.answers["/endless"] = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"5\r\nabcde\r\n" * 300
    site.answers["/slow"] = head + b"Content-Length: 10\r\n\r\nabc"
    site.answers["/film"] = head.replace(b"text/html", b"video/mp4") + b"Content-Length: 10\r\n\r\nabc"
    async with crawling(tmp_path, max_bytes=1000, total=0.5) as crawler:
        for path, end in (("/long", GiveUp), ("/endless", GiveUp), ("/slow", Retry)):
            with pytest.raises(end):
                await crawler.fetch(lease(site.url(path)))
        assert isinstance(await crawler.fetch(lease(site.url("/film"))), Ack), "a slow film is not the page's fault"
    told = {
        url.rpartition("/")[2]: (record.rec_headers.get_header("WARC-Truncated"), bool(body))
        for kind, url, record, body in records(tmp_path)
        if kind == "response"
    }
    assert told == {
        "long": ("length", False),
        "endless": ("length", True),
        "slow": ("time", True),
        "film": ("time", True),
    }


async def test_a_page_that_says_the_same_is_a_revisit(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        first = await archive.write(exchange())
        again = await archive.write(exchange(began=1_800_000_100.0), first)
        unmodified = exchange(b"", status=304, reason=b"Not Modified", began=1_800_000_200.0)
        assert first == again == await archive.write(unmodified, first)
        other = await archive.write(exchange(b"<p>new</p>", began=1_800_000_300.0), first)
        assert await archive.write(unmodified, None) == Capture()
    kinds = [one for one in records(tmp_path) if one[0] in ("response", "revisit")]
    assert [one[0] for one in kinds] == ["response", "revisit", "revisit", "response", "response"]
    profiles = [one[2].rec_headers.get_header("WARC-Profile") for one in kinds]
    base = "http://netpreserve.org/warc/1.1/revisit/"
    assert profiles == [None, f"{base}identical-payload-digest", f"{base}server-not-modified", None, None]
    for _, _, record, body in kinds[1:3]:
        assert record.rec_headers.get_header("WARC-Refers-To-Date") == first.date == "2027-01-15T08:00:00.250000Z"
        assert record.rec_headers.get_header("WARC-Refers-To-Target-URI") == "http://h.example/"
        assert record.rec_headers.get_header("WARC-Payload-Digest") == first.digest
        assert body == b""
    assert kinds[2][2].http_headers.get_statuscode() == "304"
    assert other.digest != first.digest


async def test_what_was_not_whole_is_not_referred_to(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        assert await archive.write(exchange(is_whole=False, cut="length")) == Capture()
        whole = await archive.write(exchange())
        assert await archive.write(exchange(is_whole=False, cut="time"), whole) == Capture()
        assert await archive.write(exchange(status=404), whole) == Capture()
    assert {kind for kind, _ in answers(tmp_path)} == {"response"}


# ---- files


async def test_a_file_that_is_large_enough_is_finished(tmp_path: Path) -> None:
    with opened(tmp_path, largest=3000) as archive:
        for i in range(10):
            await archive.write(exchange(os.urandom(800), f"http://h.example/{i}"))
        assert finished(tmp_path)[0] >= 3
        assert len(in_work(tmp_path)) == 1
    assert not in_work(tmp_path)
    assert max(sizes(tmp_path)) <= 3000
    assert finished(tmp_path) == (len(sizes(tmp_path)), sum(sizes(tmp_path)))
    assert [url[-1] for _, url in answers(tmp_path)] == [str(i) for i in range(10)]


async def left(folder: Path, visits: int = 3) -> tuple[Path, bytes]:
    """Write a file as a process leaves it that is killed: with the ending, and without a lock."""
    with opened(folder) as archive:
        for i in range(visits):
            await archive.write(exchange(os.urandom(200), f"http://h.example/{i}"))
        [path] = in_work(folder)
        data = path.read_bytes()
    path.with_suffix("").unlink()
    path.write_bytes(data)
    return path, data


async def test_a_record_that_is_torn_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    path, data = await left(tmp_path)
    ends = [0]
    for length in range(1, len(data) + 1):
        end, _ = end_of_whole_records(io.BytesIO(data[:length]))
        assert end <= length
        if end != ends[-1]:
            ends.append(end)
    assert len(ends) == 1 + 7, "a warcinfo, three responses, three requests"
    assert ends[-1] == len(data)
    for length in (ends[3], ends[3] + 1, ends[3] + 60, ends[4] - 1):
        path.write_bytes(data[:length])
        assert mend(tmp_path) == [path.with_suffix("")]
        assert path.with_suffix("").stat().st_size == ends[3]
        assert len(answers(tmp_path)) == 1
        path.with_suffix("").rename(path)


async def test_the_file_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        await archive.write(exchange())
        assert mend(tmp_path) == []
        with opened(tmp_path) as second:
            await second.write(exchange())
            assert len(in_work(tmp_path)) == 2
    assert len(answers(tmp_path)) == 2


WRITER = """
import asyncio, os, sys
from demo.exchange import Exchange
from demo.warc import Archive

async def main():
    archive, i = Archive(sys.argv[1], "mine/1", largest=200_000), 0
    while True:
        made = Exchange(f"http://h.example/{os.getpid()}/{i}", status=200, reason=b"OK", is_whole=True)
        made.body = os.urandom(3000 + i % 7 * 20_000)
        await archive.write(made)
        print(made.url, flush=True)
        i += 1

asyncio.run(main())
"""


def wait_for_lines(file: Path, enough: int) -> None:
    wait_until(lambda: file.read_bytes().count(b"\n") >= enough, timeout=60)


def test_what_was_written_is_there_after_kill_9(tmp_path: Path) -> None:
    acked: set[str] = set()
    folder = tmp_path / "warc"
    rng = random.Random()
    for round in range(8):
        with (tmp_path / "said").open("w+") as said:
            process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], cwd=ROOT, stdout=said)
            wait_for_lines(tmp_path / "said", rng.randrange(3, 30))
            process.kill()
            process.wait()
            lines = (tmp_path / "said").read_text().split("\n")
        acked |= set(lines[:-1])
        assert len(in_work(folder)) <= 1, round  # the one before was mended by this process
    mend(folder)
    there = [url for _, url in answers(folder)]
    assert acked <= set(there)
    assert len(there) - len(acked) <= 8, "a killed process wrote more than one visit that nobody was told of"


# ---- when it cannot be written


def test_a_folder_that_cannot_be_is_told_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(ArchiveError, match=f"{place} cannot be written: [A-Z][a-z ]+; name another folder, then"):
            prepare(place, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)  # pyright: ignore[reportUnknownLambdaType]  # any words
        with pytest.raises(ArchiveError, match="cannot be written: Permission denied; mend its rights, then go on"):
            prepare(tmp_path, 0)
    with pytest.raises(ArchiveError, match=r"bytes left, and one page may need 1,000,000,000,000,000,000: free some"):
        prepare(tmp_path, 10**18)
    monkeypatch.setattr(warc, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType]  # any name
    with pytest.raises(ArchiveError, match=r"needs the package warcio: pip install 'timeoutq\[demo\]'"):
        prepare(tmp_path, 0)


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """Give a folder on a small disk of its own; skips the test where none can be had."""
    folder.mkdir()
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_ends_the_archive_with_whole_records(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "300k") as folder:
        written = 0
        with opened(folder) as archive:
            with pytest.raises(ArchiveError, match=r"cannot be written: No space left on device; free some space"):
                while True:
                    await archive.write(exchange(os.urandom(20_000), f"http://h.example/{written}"))
                    written += 1
            with pytest.raises(ArchiveError):  # once and for all: it is for a person to look
                await archive.write(exchange())
        assert written > 5
        assert [url for _, url in answers(folder)] == [f"http://h.example/{i}" for i in range(written)]


async def test_nothing_ends_unwritten_and_the_crawl_stops_claiming(tmp_path: Path, site: Site) -> None:
    folder, stops = tmp_path / "warc", list[str]()
    site.say("/a", body=b"<a href=/b>b</a>", content_type="text/html")
    site.say("/gone", 404)
    site.say("/robots.txt", body=b"User-agent: *\nDisallow: /no", content_type="text/plain")
    async with crawling(folder, stops, warc_bytes=1, robots=True) as crawler:
        assert isinstance(await crawler.fetch(lease(site.url("/a"))), Ack)
        folder.rename(tmp_path / "away")  # the next file cannot be begun
        for path in ("/a", "/gone", "/robots.txt"):
            found = await crawler.fetch(lease(site.url(path)))
            assert isinstance(found, Release), f"{path} ended, and it is not in the archive"
            assert found.block_host == 0
        assert stops == ["stop"]
        assert "No such file or directory" in str(crawler.trouble)
    mend(tmp_path / "away")
    assert [url for _, url in answers(tmp_path / "away")] == [site.url("/robots.txt"), site.url("/a")]


# ---- with real workers


def serve(folder: Path, pages: int, filling: int = 0) -> str:
    folder.mkdir()
    rng = random.Random(3)
    for i in range(pages):
        links = "".join(f"<a href='{j}.html'>x</a>" for j in (2 * i + 1, 2 * i + 2) if j < pages)
        (folder / f"{i}.html").write_text(links + rng.randbytes(filling // 2).hex())
    (folder / "index.html").write_text("<a href='0.html'>0</a>")
    return str(folder)


def demo(*words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT, env={**os.environ, "COLUMNS": "200", **environment}, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.breaking
def test_a_crawl_with_kills_has_every_page_in_its_archive(tmp_path: Path) -> None:
    folder = tmp_path / "warc"
    with EmbeddedServer() as server, Queue("archived", server.url) as queue:
        site = serve(tmp_path / "site", 150, 3000)
        words = ("--site", site, "--warc", str(folder), "--warc-bytes", "40000", "--kills", "4", "--json")
        code, said, complaint = demo(*words, "--redis", server.url, "--queue", "archived", "--keep")
        assert code == 0, said + complaint
        done = members(queue, State.DONE)
    there = [url for kind, url in answers(folder) if kind == "response"]
    assert len(done) == 151
    assert done <= set(there)
    assert not in_work(folder)
    assert finished(folder)[0] > 4
    assert f'"files": {finished(folder)[0]}' in said
