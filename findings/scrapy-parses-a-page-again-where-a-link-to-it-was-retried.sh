#!/usr/bin/env bash
# Scrapy 2.19.0, Twisted 26.10.0.
#
# Two links of a site redirect to a page that the spider has already, and one of the two answers 503 the first time. One
# would guess that the retry makes no difference: Scrapy drops a redirect to a page that it has seen. But a retry must
# pass the filter of duplicates, so Scrapy sets dont_filter on it, and a redirect inherits dont_filter from its request.
# So after a passing 503 the page is fetched and parsed once more, and its items are there twice, on days when the site
# stumbles.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy==2.19.0 twisted==26.10.0
cat >"$work/try.py" <<'PY'
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import CrawlerProcess

link = sys.argv[1]
fetched = Counter()
parsed = Counter()


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched[self.path] += 1
        status, body = 200, b"a page"
        if self.path == "/":
            body = f'<a href="/home">a page</a> <a href="{link}">a page</a>'.encode()
        elif self.path == "/moved-and-503-first" and fetched[self.path] == 1:
            status = 503
        elif self.path.startswith("/moved"):
            status = 301
        self.send_response(status)
        if status == 301:
            self.send_header("Location", "/home")
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
        parsed[urlsplit(response.url).path] += 1
        yield from response.follow_all(css="a")


process = CrawlerProcess({"TELNETCONSOLE_ENABLED": False, "LOG_ENABLED": False})
process.crawl(Spider)
process.start()
times = 2 if link == "/moved-and-503-first" else 1
print(f"with a link to {link}: /home was fetched {fetched['/home']} times, and parsed {parsed['/home']} times")
assert fetched[link] == times
assert (fetched["/home"], parsed["/home"]) == (times, times)
PY
for link in /moved /moved-and-503-first; do "$work/venv/bin/python" "$work/try.py" "$link"; done
# seen:
#   with a link to /moved: /home was fetched 1 times, and parsed 1 times
#   with a link to /moved-and-503-first: /home was fetched 2 times, and parsed 2 times
