#!/usr/bin/env bash
# crawlee 1.11.0 (Python).
#
# Two videos have ids that differ in the case of their letters, as short links, ids and tokens often do. A path and a query
# are case-sensitive (RFC 3986, 6.2.2.1), so one would guess that crawlee fetches both pages. But the key by which it finds
# duplicates, unless you set unique_key, is the whole URL in lower case, although normalize_url() speaks of scheme and
# netloc only: the second page counts as seen and is never fetched, without a word in the log.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check 'crawlee[parsel]==1.11.0'
cat >"$work/try.py" <<'PY'
import asyncio
import io
import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient

PAGES = ["/watch?v=uVOxPBQzKmc", "/watch?v=uvOxPBQzKmc", "/About", "/about"]
fetched = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched.append(self.path)
        body = "".join(f'<a href="{page}">a page</a>' for page in PAGES).encode() if self.path == "/" else b"a page"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
log = io.StringIO()
logging.basicConfig(stream=log, level=logging.WARNING)


async def main():
    crawler = ParselCrawler(storage_client=MemoryStorageClient(), configure_logging=False)

    @crawler.router.default_handler
    async def handler(context: ParselCrawlingContext) -> None:
        await context.enqueue_links()

    told = await crawler.run([f"http://127.0.0.1:{site.server_port}/"])
    print("links on the first page:", *PAGES)
    print("fetched, without the first page:", *sorted(set(fetched) - {"/"}))
    warnings = log.getvalue() or "none"
    print(f"finished: {told.requests_finished}, failed: {told.requests_failed}, warnings in the log: {warnings}")
    assert sorted(set(fetched) - {"/"}) == ["/About", "/watch?v=uVOxPBQzKmc"]
    assert (told.requests_finished, told.requests_failed, warnings) == (3, 0, "none")


asyncio.run(main())
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   links on the first page: /watch?v=uVOxPBQzKmc /watch?v=uvOxPBQzKmc /About /about
#   fetched, without the first page: /About /watch?v=uVOxPBQzKmc
#   finished: 3, failed: 0, warnings in the log: none
