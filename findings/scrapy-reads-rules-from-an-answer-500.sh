#!/usr/bin/env bash
# Scrapy 2.19.0, Protego 0.7.0.
#
# A site answers its robots.txt with status 500. RFC 9309 (2.3.1.4) calls such a robots.txt unreachable: a crawler must
# take all pages as forbidden. One would guess that ROBOTSTXT_OBEY=True does so, or takes all as allowed. But Scrapy does
# not look at the status: it reads the body as rules. A page of error in HTML has no rules, so every page is fetched; a
# body that forbids all is obeyed, although its status is 500.
# RETRY_ENABLED=False only saves the repeats: after the last one, Scrapy reads the same body. One request at a time, since
# of several that wait for one robots.txt, Scrapy tells its rules to two only (another finding).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy==2.19.0 protego==0.7.0
cat >"$work/try.py" <<'PY'
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import scrapy
from scrapy.crawler import CrawlerProcess

BODIES = {"a page of error": b"<h1>Internal Server Error</h1>", "Disallow: /": b"User-agent: *\nDisallow: /\n"}
fetched = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        is_robots = self.path == "/robots.txt"
        if not is_robots:
            fetched.append(self.path)
        body = BODIES[sys.argv[1]] if is_robots else b"a page"
        self.send_response(500 if is_robots else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()


class Spider(scrapy.Spider):
    name = "site"
    start_urls = [f"http://127.0.0.1:{site.server_port}/{number}" for number in range(3)]

    def parse(self, response):
        pass


process = CrawlerProcess(
    {
        "ROBOTSTXT_OBEY": True,
        "RETRY_ENABLED": False,
        "CONCURRENT_REQUESTS": 1,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Spider)
process.start()
print(f"robots.txt with status 500, {sys.argv[1]}: {len(fetched)} of 3 pages fetched")
assert len(fetched) == int(sys.argv[2])
PY
"$work/venv/bin/python" "$work/try.py" "a page of error" 3
"$work/venv/bin/python" "$work/try.py" "Disallow: /" 0
# seen:
#   robots.txt with status 500, a page of error: 3 of 3 pages fetched
#   robots.txt with status 500, Disallow: /: 0 of 3 pages fetched
