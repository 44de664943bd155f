"""The demo: its pure parts, the crawl with kills, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.links import canonical, links
from demo.site import expected, generate, make_server
from demo.traverse import traverse
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("http://E.example/a?b=2&a=1", "http://e.example/a?a=1&b=2"),
        ("../x", "http://h.example/x"),
        ("mailto:a@b.example", None),
        ("http://[bad", None),
    ],
)
def test_an_address_has_one_canonical_form(given: str, found: str | None) -> None:
    assert canonical(given, "http://h.example/dir/page") == found


def test_links_stay_on_the_site_and_come_once() -> None:
    html = b'<a href="/a">1</a><a href="a">2</a><a href="//other.example/b">3</a><a>4</a><a href="/c?y=1&amp;x=2">5</a>'
    assert links(html, "http://h.example/") == ["http://h.example/a", "http://h.example/c?x=2&y=1"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The site of the demo, whose pages come at once."""
    pages = {path: replace(page, delay=0.0) for path, page in generate().items()}
    monkeypatch.setattr("demo.site.generate", lambda *_: pages)
    with make_server(0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_plain_traversal_finds_what_the_graph_says(site: str) -> None:
    assert traverse(site) == expected(site)


def test_a_folder_is_served_and_nothing_above_it(tmp_path: Path) -> None:
    import http.client

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "index.html").write_text("<a href='x.html'>x</a>")
    (tmp_path / "secret").write_text("no")
    with make_server(0, tmp_path / "in") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        statuses: list[int] = []
        for path in ("/", "/../secret", "/%2e%2e/secret", "/nothing"):
            link = http.client.HTTPConnection("127.0.0.1", server.server_port)
            link.request("GET", path)
            statuses.append(link.getresponse().status)
            link.close()
        server.shutdown()
        thread.join()
    assert statuses == [200, 404, 404, 404]


def demo(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.breaking
def test_a_crawl_with_two_kills_loses_nothing() -> None:
    process = demo("--json")
    said, complaint = process.communicate(timeout=90)
    assert process.returncode == 0, complaint
    verdict = json.loads(said)
    assert verdict["ok"] is True
    assert verdict["killed"] == 2
    assert verdict["lost"] == verdict["unexpected"] == 0
    assert verdict["pages"] > 250


def test_a_folder_is_crawled_as_a_traversal_would(tmp_path: Path) -> None:
    for i in range(60):
        body = (
            f"<a href='{(i * 2 + 1) % 60}.html'>a</a><a href='{(i * 2 + 2) % 60}.html#x'>b</a><a href='no{i % 3}'>c</a>"
        )
        (tmp_path / f"{i}.html").write_text(body)
    (tmp_path / "index.html").write_text("<a href='0.html'>0</a>")
    process = demo("--json", "--site", str(tmp_path), "--kills", "0", "--workers", "2")
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    assert json.loads(said)["pages"] == 61
    assert json.loads(said)["failed"] == 3


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = demo(TMPDIR=str(tmp_path))
    try:
        wait_until(lambda: children(process.pid) >= 7, timeout=20)
        mine = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        wait_until(lambda: not any(map(runs, mine)))
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()


def test_no_process_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    process = demo(TMPDIR=str(tmp_path))
    try:
        wait_until(lambda: children(process.pid) >= 7, timeout=20)
        mine = descendants(process.pid)
    finally:
        process.kill()
        process.communicate(timeout=30)
    wait_until(lambda: not any(map(runs, mine)), timeout=20)


def small_site(folder: Path) -> str:
    folder.mkdir()
    (folder / "index.html").write_text("<a href='a.html'>a</a><a href='b.html'>b</a>")
    (folder / "a.html").write_text("<a href='b.html'>b</a>")
    (folder / "b.html").write_text("b")
    return str(folder)


@pytest.mark.breaking
def test_a_queue_that_is_kept_can_be_looked_at_and_is_not_purged_by_the_next(tmp_path: Path) -> None:
    site = small_site(tmp_path / "site")
    words = ("--site", site, "--kills", "0", "--workers", "1", "--json", "--queue", "looked-at")
    with EmbeddedServer() as server, Queue("looked-at", server.url) as queue:
        for pages in (3, 6):  # the second crawl is of another address, and is judged by itself
            process = demo(*words, "--redis", server.url, "--keep")
            said, complaint = process.communicate(timeout=60)
            assert process.returncode == 0, said + complaint
            assert json.loads(said)["pages"] == 3
            assert f"timeoutq status looked-at --url {server.url}" in complaint
            assert queue.stats().done == pages
        process = demo(*words, "--redis", server.url)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "there is a queue looked-at already, and the demo would purge it: give --keep" in complaint
        assert queue.stats().done == 6
        queue.purge()
        process = demo(*words, "--redis", server.url)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not queue.exists()


def test_without_its_packages_the_demo_says_how_to_get_them() -> None:
    code = (
        "import sys, runpy; sys.modules.update(httpx=None, w3lib=None); runpy.run_module('demo', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "demo: httpx, w3lib is not installed: pip install 'timeoutq[demo]'\n"


def descendants(pid: int) -> list[int]:
    """Give the processes whose parent is `pid`."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split() if Path(f"/proc/{word}").exists()]


def runs(pid: int) -> bool:
    """Say whether a process is there, and no zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def children(pid: int) -> int:
    return len(descendants(pid))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--site", "/nowhere"), "not a folder"),
        (("--url", "ftp://x"), "not an http or https address"),
        (("--redis", "redis://127.0.0.1:1/0"), "is the server up?"),
    ],
)
def test_wrong_words_are_told(words: tuple[str, ...], complaint: str) -> None:
    process = demo(*words, COLUMNS="200")
    _, said = process.communicate(timeout=30)
    assert process.returncode in (2, 3)
    assert complaint in said
