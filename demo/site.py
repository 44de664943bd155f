"""A site to crawl, on loopback: a few hundred generated pages with all that makes crawling hard, or any folder of HTML.

`python -m demo.site --port 8080` serves the generated one; the demo and the compose file start it so. Every page
follows from its number, so that what a crawl must find is known without crawling: see `expected`.
"""

from __future__ import annotations

import argparse
import mimetypes
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PAGES = 220


@dataclass(frozen=True)
class Page:
    """What the site answers at one address."""

    links: tuple[str, ...] = ()
    status: int = 200
    delay: float = 0.0
    """Seconds before it answers."""
    fails: int = 0
    """How often it answers 503 before it answers as it should."""
    location: str = ""
    content_type: str = "text/html; charset=utf-8"


def generate(pages: int = PAGES, seed: int = 7) -> dict[str, Page]:
    """Make the site: path to page. The first page is /, every page can be reached from it."""
    rng = random.Random(seed)  # noqa: S311  # the same site each time
    made: dict[str, Page] = {}
    for i in range(pages):
        links = [f"/page/{j}" for j in (2 * i + 1, 2 * i + 2) if j < pages]  # a tree, so that all is reachable
        links += [f"/page/{rng.randrange(pages)}" for _ in range(rng.randrange(1, 6))]  # and cycles
        if i % 7 == 0:
            links += [f"page/../page/{i}", f"/page/{rng.randrange(pages)}?b=2&a=1#part"[: rng.choice((12, 40))]]
        if i % 9 == 0:
            links += [f"/old/{i}"]
        if i % 13 == 0:
            links += [f"/missing/{i}"]
        if i % 25 == 0:
            links += [
                f"/file/{i}.txt",
                "mailto:someone@example.com",
                "https://elsewhere.example/",
                "javascript:void(0)",
            ]
        delay = rng.uniform(0.05, 0.2) if i % 11 == 0 else rng.uniform(0.0, 0.02)
        made["/" if i == 0 else f"/page/{i}"] = Page(
            tuple(links), delay=delay, fails=rng.randrange(1, 3) * (i % 17 == 5)
        )
        if i % 9 == 0:
            made[f"/old/{i}"] = Page(status=301, location=f"/older/{i}")
            made[f"/older/{i}"] = Page(status=302, location=f"/page/{(i + 1) % pages or 1}")
        if i % 25 == 0:
            made[f"/file/{i}.txt"] = Page(content_type="text/plain")
    return made


def expected(base: str, pages: int = PAGES) -> tuple[set[str], set[str]]:
    """Give what a crawl from / must end with, worked out from the graph: the URLs done, and those failed for good."""
    from demo.links import canonical, origin

    site = generate(pages)
    done: set[str] = set()
    failed: set[str] = set()
    start = canonical("/", base)
    assert start is not None
    open_urls = [start]
    while open_urls:
        url = open_urls.pop()
        if url in done or url in failed:
            continue
        page = site.get(unquote(urlsplit(url).path))
        if page is None:
            failed.add(url)
            continue
        done.add(url)
        found = [page.location] if page.location else list(page.links) if "html" in page.content_type else []
        for link in found:
            target = canonical(link, url)
            if target is not None and origin(target) == origin(url):
                open_urls.append(target)
    return done, failed


@dataclass
class State:
    """What the server remembers: how often each address was asked for."""

    seen: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, path: str) -> int:
        """Count a visit and give its number."""
        with self.lock:
            self.seen[path] += 1
            return self.seen[path]


def make_server(port: int, directory: Path | None = None, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Make the server of the generated site, or of a folder; its `serve_forever` runs it."""
    site, state = generate(), State()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path == "/healthz":
                self._answer(200, "text/plain", b"ok")
            elif directory is not None:
                self._file(directory, path)
            else:
                self._page(site.get(path), path)

        def _page(self, page: Page | None, path: str) -> None:
            if page is None:
                self._answer(404, "text/html", b"<h1>not here</h1>")
                return
            time.sleep(page.delay)
            if state.count(path) <= page.fails:
                self._answer(503, "text/html", b"<h1>come again</h1>")
            elif page.location:
                self._answer(page.status, "text/html", b"", page.location)
            else:
                body = "".join(f'<p><a href="{link.replace("&", "&amp;")}">{link}</a>' for link in page.links)
                self._answer(page.status, page.content_type, f"<title>{path}</title>{body}".encode())

        def _file(self, root: Path, path: str) -> None:
            found = (root / path.lstrip("/")).resolve()
            if found.is_dir():
                found = found / "index.html"
            if not found.is_relative_to(root.resolve()) or not found.is_file():
                self._answer(404, "text/html", b"<h1>not here</h1>")
                return
            kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
            self._answer(200, kind, found.read_bytes())

        def _answer(self, status: int, kind: str, body: bytes, location: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet: the dashboard has the terminal."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 512

        def handle_error(self, request: object, client_address: object) -> None:
            """Keep quiet when a worker is killed in mid-request."""

    return Server((host, port), Handler)


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m demo.site", description="A site to crawl.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--dir", type=Path, help="serve this folder instead of the generated pages")
    given = parser.parse_args()
    if given.dir is not None and not given.dir.is_dir():
        parser.error(f"--dir {given.dir} is not a folder")
    with make_server(given.port, given.dir, given.host) as server:
        print(f"http://{given.host}:{server.server_port}/", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
