#!/usr/bin/env bash
# crawlee 1.11.0 (Python), Protego 0.7.0.
#
# A robots.txt has a group for the crawler by its name, and one for all others (*). By RFC 9309 (2.2.1) the group with its
# name counts, and * only where there is none. One would guess that respect_robots_txt_file=True asks for the name that
# the crawler sends as User-Agent. It always asks for *: shopbot fetches what is forbidden to shopbot, and does not fetch
# what is allowed to shopbot and forbidden to all others. Protego, which crawlee uses, answers right if asked by name.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check 'crawlee[parsel]==1.11.0' protego==0.7.0
cat >"$work/try.py" <<'PY'
import asyncio
import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient
from protego import Protego

ROBOTS = """\
User-agent: *
Disallow: /prices

User-agent: shopbot
Disallow: /cart
"""
fetched, names = [], set()


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        names.add(self.headers["User-Agent"])
        if self.path != "/robots.txt":
            fetched.append(self.path)
        body = ROBOTS.encode() if self.path == "/robots.txt" else b"a page"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if self.path == "/robots.txt" else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
logging.disable(logging.CRITICAL)


async def main():
    crawler = ParselCrawler(
        http_client=ImpitHttpClient(browser=None, headers={"User-Agent": "shopbot/1.0"}),
        respect_robots_txt_file=True,
        storage_client=MemoryStorageClient(),
        configure_logging=False,
    )

    @crawler.router.default_handler
    async def handler(context: ParselCrawlingContext) -> None:
        pass

    await crawler.run([f"http://127.0.0.1:{site.server_port}{path}" for path in ("/prices", "/cart")])


asyncio.run(main())
rules = Protego.parse(ROBOTS)
right = [path for path in ("/prices", "/cart") if rules.can_fetch(f"http://site.example{path}", "shopbot/1.0")]
print("the crawler said that it is:", *names)
print("allowed to shopbot, says Protego:", *right)
print("fetched:", *fetched)
assert (names, right, fetched) == ({"shopbot/1.0"}, ["/prices"], ["/cart"])
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   the crawler said that it is: shopbot/1.0
#   allowed to shopbot, says Protego: /prices
#   fetched: /cart
