#!/usr/bin/env bash
# scrapy-redis 0.9.1, Scrapy 2.19.0, redis-py 8.1.0, Redis 7.0.15 (Debian's redis-server).
#
# Two processes crawl a site out of one queue in Redis. One of them stops, because it has its two pages
# (CLOSESPIDER_PAGECOUNT), or because somebody presses Ctrl-C. One would guess that the other goes on with the rest, which
# is what a shared queue is for. But unless SCHEDULER_PERSIST is set, a scheduler that closes deletes the queue and the
# list of pages seen, no matter who else reads them and how much is left: the other process finds nothing more, and ends
# with exit code 0 and the reason "finished" after a few of 30 pages.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check scrapy-redis==0.9.1 scrapy==2.19.0 redis==8.1.0
cat >"$work/crawl.py" <<'PY'
import os
import sys

import scrapy
from scrapy.crawler import CrawlerProcess

limit, *urls = sys.argv[1:]


class Spider(scrapy.Spider):
    name = "site"
    start_urls = urls

    def parse(self, response):
        pass

    def closed(self, reason):
        print(f"  {'the first' if urls else 'the second'} spider has closed: {reason}", flush=True)


process = CrawlerProcess(
    {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": os.environ["REDIS"],
        "CLOSESPIDER_PAGECOUNT": int(limit),
        "CONCURRENT_REQUESTS": 1,
        "DOWNLOAD_DELAY": 0.3,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Spider)
process.start()
PY
cat >"$work/try.py" <<'PY'
import os, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import redis

fetched = []


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--logfile", "log"])
client = redis.Redis(port=port)
os.environ["REDIS"] = f"redis://127.0.0.1:{port}"
crawl = [sys.executable, "crawl.py"]
spiders = []
try:
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    urls = [f"http://127.0.0.1:{site.server_port}/{number}" for number in range(30)]
    spiders.append(subprocess.Popen([*crawl, "0", *urls]))
    end = time.monotonic() + 20
    while not fetched or client.zcard("site:requests") < 25:
        assert time.monotonic() < end
        time.sleep(0.02)
    print("the first spider fetches the first of 30 pages; a second spider comes to help, for two pages", flush=True)
    spiders.append(subprocess.Popen([*crawl, "2"]))
    assert [spiders[1].wait(20), spiders[0].wait(20)] == [0, 0]
    few = len(fetched) < 25
    count = "less than 25" if few else len(fetched)
    print(f"both have ended with exit code 0; fetched: {count} of 30 pages; keys in Redis: {client.keys()}")
    assert few and client.keys() == []
finally:
    for spider in spiders:
        if spider.poll() is None:
            spider.kill()
    server.kill()
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   the first spider fetches the first of 30 pages; a second spider comes to help, for two pages
#     the second spider has closed: closespider_pagecount
#     the first spider has closed: finished
#   both have ended with exit code 0; fetched: less than 25 of 30 pages; keys in Redis: []
