#!/usr/bin/env bash
# crawlee 1.11.0 (Python).
#
# A site answers 429 with `Retry-After: 60`. One would guess that the crawler waits for a minute, or at least longer after
# each refusal. But crawlee takes 429 as a blocked session: it takes another session and asks again at once, ten times
# (max_session_rotations), whatever Retry-After says; then the request has failed. With a single IP address, another
# session changes nothing for the site.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check 'crawlee[parsel]==1.11.0'
cat >"$work/try.py" <<'PY'
import asyncio
import logging
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient

asked = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(time.monotonic())
        self.send_response(429)
        self.send_header("Retry-After", "60")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
logging.disable(logging.CRITICAL)


async def main():
    crawler = ParselCrawler(storage_client=MemoryStorageClient(), configure_logging=False)

    @crawler.router.default_handler
    async def handler(context: ParselCrawlingContext) -> None:
        pass

    told = await crawler.run([f"http://127.0.0.1:{site.server_port}/page"])
    within = asked[-1] - asked[0]
    print(f"429, Retry-After: 60: asked {len(asked)} times", "within 10 s" if within < 10 else "slowly")
    print(f"failed: {told.requests_failed}, retries: {told.retry_histogram}")
    assert len(asked) == 10
    assert within < 10


asyncio.run(main())
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   429, Retry-After: 60: asked 10 times within 10 s
#   failed: 1, retries: [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
