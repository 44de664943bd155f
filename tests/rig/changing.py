"""A site on loopback of which some pages change all the time and others never: what a recrawl is judged by.

`python -m tests.rig.changing --for 60` has the demo crawl it again and again for a minute, stops the demo as Ctrl-C
does, and prints what the site saw. The tests do the same for some seconds. The site answers 304 as servers do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
EACH = 6
"""How many pages there are of each kind."""
KINDS = ("changing", "tagged", "dated", "bare")
"""What pages do: change with each tenth of a second; never change and say so by ETag, by Last-Modified, not at all."""


@dataclass(frozen=True)
class Asked:
    """One request as the site saw it."""

    path: str
    at: float
    """By the monotonic clock."""
    conditional: str
    """The ETag or the date that the visitor had; empty when it had none."""
    status: int


@dataclass
class ChangingSite:
    """The site, and all that it was asked for."""

    asked: list[Asked] = field(default_factory=list[Asked])
    port: int = 0
    extra: dict[str, str] = field(default_factory=dict[str, str])
    """More pages: path to body; they have no ETag."""

    @property
    def url(self) -> str:
        """Give the address of the first page."""
        return f"http://127.0.0.1:{self.port}/"

    def page(self, path: str) -> tuple[str, dict[str, str]] | None:
        """Give what a page says just now, and its headers."""
        kind = path.strip("/").partition("/")[0]
        if path in self.extra:
            return self.extra[path], {}
        if path == "/":
            return "".join(f"<a href='/{kind}/{i}'>x</a>" for kind in KINDS for i in range(EACH)), {"ETag": '"root"'}
        if kind not in KINDS:
            return None
        if kind == "changing":
            text = f"{path} at {time.monotonic():.1f}"
            return text, {"ETag": f'"{text}"'}
        headers = {
            "tagged": {"ETag": f'W/"{path}"'},
            "dated": {"Last-Modified": formatdate(1e9, usegmt=True)},
            "bare": {},
        }
        return f"{path} for ever", headers[kind]

    def visits(self, kind: str) -> list[int]:
        """Give how often each page of a kind was visited."""
        counts = Counter(one.path for one in self.asked)
        return [counts[f"/{kind}/{i}"] for i in range(EACH)]

    def count(self, status: int) -> int:
        """Count the answers with a status."""
        return sum(one.status == status for one in self.asked)

    @contextmanager
    def serving(self) -> Iterator[ChangingSite]:
        """Serve at a free port."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                tag, date = self.headers.get("If-None-Match", ""), self.headers.get("If-Modified-Since", "")
                page = site.page(self.path)
                text, headers = page or ("", {})
                same = tag == headers.get("ETag") if tag else bool(date) and date == headers.get("Last-Modified")
                status = 404 if page is None else 304 if same else 200
                body = text.encode() if status == 200 else b""
                site.asked.append(Asked(self.path, time.monotonic(), tag or date, status))
                self.send_response(status)
                self.send_header("Content-Type", "text/html")
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 304:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None: ...

        with Server(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


def start(url: str, *words: str) -> subprocess.Popen[str]:
    """Have the demo crawl a site again and again, until it is told to stop."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "demo", "--url", url, "--recrawl", "--first", "500ms", "--shortest", "300ms",
            "--longest", "1h", "--allow-private", "--delay", "0", "--per-host", "8", "--json", *words,
        ],
        cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def stopped(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Stop the demo as Ctrl-C does; give what it says."""
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, (process.returncode, said, complaint)
    found: dict[str, Any] = json.loads(said)
    return found


def main() -> None:
    """Recrawl for a while, and print what the site saw."""
    parser = argparse.ArgumentParser(description="Recrawl a site that changes.")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0)
    parser.add_argument("words", nargs="*", help="more words for the demo")
    given = parser.parse_args()
    with ChangingSite().serving() as site:
        process = start(site.url, *given.words)
        time.sleep(given.seconds)
        told = stopped(process)
        for kind in KINDS:
            print(f"{kind}: visits of each page {site.visits(kind)}")
        print(f"answered by 304: {site.count(304)}, of {len(site.asked)} requests; the demo says {told['recrawl']}")


if __name__ == "__main__":
    main()
