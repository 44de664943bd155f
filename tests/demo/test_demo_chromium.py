"""The demo's crawler beside Chromium: on one site, both visit the same addresses, and the archive has all of them."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import pytest

from tests.demo.test_demo import demo
from tests.demo.test_demo_warc import records
from tests.rig.browsers import browser, tab
from tests.rig.spiders.site import Answer, Seen, Site
from timeoutq.urls import normalise

brotli: Any = import_module("brotli")
HTML = "text/html"

PAGES: dict[str, tuple[str, bytes]] = {
    "/": (HTML, "".join(f"<a href='{path}'>x</a>" for path in (
        "/latin", "/japanese", "/cyrillic", "/utf-16", "/based/", "/packed/gzip", "/packed/brotli", "/old", "/gone",
        "/odd", "text.txt", "mailto:a@b.example", "http://other.example/",
    )).encode()),
    "/latin": (f"{HTML}; charset=ISO-8859-1", (
        "<a href='/café'>x</a><a href='?q=é'>x</a><a href='?price=€'>x</a><a href='?q=&#26085;&amp;r=1'>x</a>"
    ).encode("cp1252")),
    "/japanese": (HTML, (
        "<meta charset=shift_jis><title>日本語</title><a href='/東京'>x</a><a href='東京?q=表'>x</a>"
    ).encode("shift_jis")),
    "/cyrillic": (HTML, (
        "<meta http-equiv=content-type content='text/html; charset=windows-1251'><a href='/Москва?q=Нева#Река'>x</a>"
    ).encode("cp1251")),
    "/utf-16": (HTML, "<a href='/ü?q=ü'>x</a>".encode("utf-16")),
    "/based/": (f"{HTML}; charset=utf-8", (
        "<base target=_top><base href='../other/ä/'><base href='/never/'>"
        "<a href='one'>x</a><a href='../two'>x</a><a href='?three'>x</a><a href='#four'>x</a><a href=''>x</a>"
    ).encode()),
    "/packed/gzip": (HTML, b"<a href='from-gzip'>x</a>"),
    "/packed/brotli": (HTML, b"<a href='from-brotli'>x</a>"),
    "/new/": (HTML, b"<a href='after-redirect'>x</a>"),
    "/odd": (f"{HTML}; charset=utf-8", (
        "<a href=' /blank?q=a b '>x</a><a href='/bro\nken'>x</a><a href='\\back\\slash'>x</a>"
        "<a href='/a/./b/../c'>x</a><a href='/pipe|quote\"<>'>x</a><a href='/percent%2Fslash%zz'>x</a>"
        "<a href='/&eacute;'>x</a><a href='/é'>x</a>"
    ).encode()),
    "/text.txt": ("text/plain", b"<a href='/no-link'>x</a>"),
}  # fmt: skip
"""What the site holds; any other path is a page without links, but for `/old`, which leads to `/new/`, and `/gone`."""


def answer(seen: Seen) -> Answer:
    """Answer as the site does, also to who has not asked for brotli."""
    if seen.path == "/old":
        return 302, {"Location": "new/"}, b""
    if seen.path in ("/gone", "/robots.txt", "/favicon.ico"):
        return 404, {"Content-Type": HTML}, b"<a href='/from-gone'>x</a>"
    kind, body = PAGES.get(seen.path, (HTML, b"<p>no links"))
    if seen.path == "/packed/gzip":
        return 200, {"Content-Type": kind, "Content-Encoding": "gzip"}, gzip.compress(body)
    if seen.path == "/packed/brotli":
        return 200, {"Content-Type": kind, "Content-Encoding": "br"}, brotli.compress(body)
    return 200, {"Content-Type": kind}, body


def visited(site: Site) -> set[str]:
    return {seen.path for seen in site.visits} - {"/robots.txt", "/favicon.ico"}


def by_chromium() -> set[str]:
    """Let Chromium visit all links of its pages on the same host, breadth first; give the one form of what it asks."""
    with browser() as started, tab(started) as seen, Site(answer) as site:
        waiting = [f"{site.url}/"]
        for url in waiting:
            if not seen.page.goto(url).ok:
                continue
            for link in seen.page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)"):
                page = urldefrag(link).url
                if page.startswith(f"{site.url}/") and page not in waiting:
                    waiting.append(page)
        return {normalise(f"{site.url}{path}").removeprefix(site.url) for path in visited(site)}


@pytest.mark.timeout(300)  # an idle machine needs 10 s
def test_the_demo_visits_what_the_links_are_to_chromium_and_archives_all_of_it(tmp_path: Path) -> None:
    pages = by_chromium()
    with Site(answer) as site:
        words = ("--allow-private", "--delay", "0", "--workers", "2", "--warc", str(tmp_path), "--json")
        process = demo("--url", f"{site.url}/", *words)
        said, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    assert json.loads(said)["failed"] == 1
    assert visited(site) == pages
    assert len(pages) > 30
    archived = {url.removeprefix(site.url) for kind, url, _, _ in records(tmp_path) if kind == "response"}
    assert archived == pages | {"/robots.txt"}
