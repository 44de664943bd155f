#!/usr/bin/env bash
# Scrapy 2.19.0 (2.14.0 and 2.16.0 do the same, 2.13.4 does not), Twisted 26.10.0, asyncio reactor.
#
# Six requests to a site wait for its robots.txt, which forbids all pages. One would guess that none is sent. Scrapy
# sends four. The first request fetches robots.txt, the others await one Deferred, each through Deferred.asFuture(); and
# asFuture(), as its docstring says, leaves None in the Deferred for whoever comes next. So the second request gets the
# rules, and the third to the sixth get None, which means: no rules.
# The site holds its robots.txt back until all six have reached the middlewares, and half a second more.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy==2.19.0 twisted==26.10.0
cat >"$work/try.py" <<'PY'
import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import scrapy
from scrapy.crawler import CrawlerProcess

fetched = []
all_wait = Event()


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/robots.txt":
            assert all_wait.wait(60)
            body = b"User-agent: *\nDisallow: /\n"
        else:
            fetched.append(self.path)
            body = b"a page"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()


class Spider(scrapy.Spider):
    name = "site"
    start_urls = [f"http://127.0.0.1:{site.server_port}/{number}" for number in range(1, 7)]

    def parse(self, response):
        pass


class Door:
    """Stands before Scrapy's own middleware of robots.txt, and counts who goes in."""

    came = 0

    async def process_request(self, request):
        if request.url in Spider.start_urls:
            Door.came += 1
            if Door.came == len(Spider.start_urls):
                asyncio.get_running_loop().call_later(0.5, all_wait.set)


process = CrawlerProcess(
    {
        "ROBOTSTXT_OBEY": True,
        "DOWNLOADER_MIDDLEWARES": {Door: 1},
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Spider)
process.start()
print("forbidden by robots.txt, and fetched:", *sorted(fetched))
assert sorted(fetched) == ["/3", "/4", "/5", "/6"]
PY
"$work/venv/bin/python" "$work/try.py"
# seen: forbidden by robots.txt, and fetched: /3 /4 /5 /6
