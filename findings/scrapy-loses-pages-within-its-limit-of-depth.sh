#!/usr/bin/env bash
# Scrapy 2.19.0, Twisted 26.10.0.
#
# DEPTH_LIMIT=4, and a page is three clicks away from the start. One would guess that it is crawled. But Scrapy's depth
# is not the number of clicks that a page needs, it is the length of the way on which Scrapy happened to find it first,
# and by default Scrapy takes the newest links first, so it finds much on long ways. Here it comes to /rooms over three
# pages of news, at depth 4, and so it drops the links of that page. The short way to /rooms, at depth 2, comes later,
# and is a duplicate: no link of /rooms is ever followed. Without DEPTH_LIMIT all pages are crawled; with the queues in
# the order of a breadth-first crawl, which Scrapy's manual describes, also with it.
# CONCURRENT_REQUESTS=1 so that the order is always the same. With more it hangs on luck which pages are lost.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy==2.19.0 twisted==26.10.0
cat >"$work/try.py" <<'PY'
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess

LIMIT = 4
LINKS = {
    "/": ["/house", "/a", "/b", "/c", "/d", "/e", "/f", "/news"],
    "/house": ["/rooms"],
    "/news": ["/news?page=2"],
    "/news?page=2": ["/news?page=3"],
    "/news?page=3": ["/rooms"],
    "/rooms": ["/rooms/1", "/rooms/2"],
}
clicks = {"/": 0}
for page in (pages := ["/"]):
    for link in LINKS.get(page, []):
        if link not in clicks:
            clicks[link] = clicks[page] + 1
            pages.append(link)
depth = {}


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        body = "".join(f'<a href="{link}">a page</a>' for link in LINKS.get(self.path, [])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()


class Spider(scrapy.Spider):
    name = "site"
    start_urls = [f"http://127.0.0.1:{site.server_port}/"]

    def parse(self, response):
        parts = urlsplit(response.url)
        depth[parts.path + ("?" + parts.query if parts.query else "")] = response.meta["depth"]
        yield from response.follow_all(css="a")


settings = {"CONCURRENT_REQUESTS": 1, "TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "WARNING"}
if sys.argv[1] != "without":
    settings["DEPTH_LIMIT"] = LIMIT
if sys.argv[1] == "breadth":
    settings["DEPTH_PRIORITY"] = 1
    settings["SCHEDULER_DISK_QUEUE"] = "scrapy.squeues.PickleFifoDiskQueue"
    settings["SCHEDULER_MEMORY_QUEUE"] = "scrapy.squeues.FifoMemoryQueue"
process = CrawlerProcess(settings)
process.crawl(Spider)
process.start()
lost = sorted(set(clicks) - set(depth))
assert max(clicks.values()) == 3
if sys.argv[1] == "limit":
    print(f"DEPTH_LIMIT={LIMIT}")
    print("/rooms:", clicks["/rooms"], "clicks away, found at depth", depth["/rooms"])
    print("never crawled:", *(f"{page} ({clicks[page]} clicks away)" for page in lost))
    assert depth["/rooms"] == 4 and lost == ["/rooms/1", "/rooms/2"]
else:
    print({"without": "without DEPTH_LIMIT", "breadth": "breadth first"}[sys.argv[1]] + ", never crawled:", len(lost))
    assert not lost
PY
for how in limit without breadth; do "$work/venv/bin/python" "$work/try.py" "$how"; done
# seen:
#   DEPTH_LIMIT=4
#   /rooms: 2 clicks away, found at depth 4
#   never crawled: /rooms/1 (3 clicks away) /rooms/2 (3 clicks away)
#   without DEPTH_LIMIT, never crawled: 0
#   breadth first, never crawled: 0
