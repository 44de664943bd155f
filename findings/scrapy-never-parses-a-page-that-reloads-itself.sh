#!/usr/bin/env bash
# Scrapy 2.19.0, Twisted 26.10.0.
#
# A page shows the score of a match, or what the stock market does, and tells the browser to load it anew each minute:
# <meta http-equiv="refresh" content="60; url=/score">. One would guess that Scrapy parses the page that it got. But it
# takes each refresh within 100 seconds (METAREFRESH_MAXDELAY) for a redirect, and a redirect to the same page is a
# duplicate: a page that was found by a link is fetched once and dropped, neither callback nor errback is called. In
# start_urls, whose requests pass the filter of duplicates, it is fetched 21 times in a row, without the minute between,
# and then given up (REDIRECT_MAX_TIMES is 20). No word of either in the log, but for level DEBUG.
# A refresh without an address, or after more than 100 seconds, does no harm.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy==2.19.0 twisted==26.10.0
cat >"$work/try.py" <<'PY'
import logging
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess

REFRESH = {
    "/score": "60; url=/score",
    "/stocks": "60; url=/stocks",
    "/no-address": "60",
    "/slow": "300; url=/slow",
}
fetched = Counter()
parsed = []
failed = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched[self.path] += 1
        body = "<h1>2 : 1</h1>"
        if self.path == "/":
            body = "".join(f'<a href="{page}">a page</a>' for page in REFRESH if page != "/stocks")
        elif self.path in REFRESH:
            body = f'<head><meta http-equiv="refresh" content="{REFRESH[self.path]}"></head>{body}'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()


class Spider(scrapy.Spider):
    name = "site"
    start_urls = [f"http://127.0.0.1:{site.server_port}{page}" for page in ("/", "/stocks")]

    def parse(self, response):
        parsed.append(urlsplit(response.url).path)
        yield from response.follow_all(css="a", errback=self.fail)

    def fail(self, failure):
        failed.append(failure)


class Warnings(logging.Handler):
    seen = []

    def emit(self, record):
        self.seen.append(record.getMessage())


process = CrawlerProcess({"TELNETCONSOLE_ENABLED": False, "LOG_ENABLED": False})
logging.getLogger().addHandler(Warnings(logging.WARNING))
process.crawl(Spider)
process.start()
print("fetched:", *(f"{page} ({times})" for page, times in sorted(fetched.items())))
print("parsed:", *sorted(parsed))
print(f"calls of errback: {len(failed)}, warnings and errors in the log: {len(Warnings.seen)}")
assert fetched == {"/": 1, "/score": 1, "/stocks": 21, "/no-address": 1, "/slow": 1}
assert sorted(parsed) == ["/", "/no-address", "/slow"]
assert not failed and not Warnings.seen, (failed, Warnings.seen)
PY
"$work/venv/bin/python" "$work/try.py"
# seen:
#   fetched: / (1) /no-address (1) /score (1) /slow (1) /stocks (21)
#   parsed: / /no-address /slow
#   calls of errback: 0, warnings and errors in the log: 0
