"""A web site on loopback, in a thread of the test: a function makes each page, and each visit is written down."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

Headers = Mapping[str, str]
Answer = tuple[int, Headers, bytes]


@dataclass(frozen=True)
class Seen:
    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int


def html(*links: str, title: str = "", status: int = 200, headers: Headers | None = None) -> Answer:
    body = f"<html><title>{title}</title>" + "".join(f'<a href="{link}">{link}</a>' for link in links)
    return status, {"Content-Type": "text/html", **(headers or {})}, body.encode()


@dataclass
class Site:
    answer: Callable[[Seen], Answer]
    delay: float = 0.0
    """Seconds that each answer takes."""
    visits: list[Seen] = field(default_factory=list[Seen])

    def __enter__(self) -> Self:
        counts: Counter[str] = Counter()
        lock = threading.Lock()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:  # the name is that of the standard library
                sent = {name.title(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    counts[self.path] += 1
                    seen = Seen(time.time(), self.command, self.path, sent, body, counts[self.path])
                    site.visits.append(seen)
                if site.delay:
                    time.sleep(site.delay)
                status, headers, answer = site.answer(seen)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_PUT = do_GET  # noqa: N815  # the names that http.server calls

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """Say nothing: a spider was killed in the middle of an answer."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, path: str) -> list[Seen]:
        return [seen for seen in list(self.visits) if seen.path == path]
