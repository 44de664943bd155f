#!/usr/bin/env bash
# crawlee 1.11.0 (Python), SqlStorageClient: SQLAlchemy 2.1.9, aiosqlite 0.22.1.
#
# Two crawlers share a queue in a database. A crawler takes ten requests at a time and locks them for five minutes. It
# handles one page at a time, and a page takes longer than half a minute. One would guess that a crawler that lives renews
# its locks, or that it looks at them before it begins with a request that it took long ago. It does neither: after five
# minutes the other crawler takes all ten, also the one that is being handled, and the slow crawler goes through its ten
# all the same: each page is fetched and handled twice.
# Nobody waits for five minutes here: the script puts the end of the locks into the past, and the slow page, the first,
# takes until the other crawler has come to an end.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    'crawlee[parsel]==1.11.0' 'sqlalchemy[asyncio]==2.1.9' aiosqlite==0.22.1
cat >"$work/crawl.py" <<'PY'
import asyncio
import sys
import warnings
from pathlib import Path

from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storages import RequestQueue

warnings.simplefilter("ignore")
from crawlee.storage_clients import SqlStorageClient

name, *urls = sys.argv[1:]


async def main():
    storage = SqlStorageClient(connection_string="sqlite+aiosqlite:///crawl.db")
    queue = await RequestQueue.open(name="pages", storage_client=storage)
    crawler = ParselCrawler(
        request_manager=queue,
        storage_client=storage,
        configuration=Configuration(purge_on_start=False),
        concurrency_settings=ConcurrencySettings(max_concurrency=1, desired_concurrency=1),
        configure_logging=False,
    )

    @crawler.router.default_handler
    async def handler(context: ParselCrawlingContext) -> None:
        with open("notes", "a") as notes:
            print(name, context.request.url.rpartition("/")[2], file=notes)
        while name == "slow" and not Path("quick-has-ended").exists():
            await asyncio.sleep(0.05)

    await crawler.run(urls or None, purge_request_queue=False)
    Path(f"{name}-has-ended").touch()


asyncio.run(main())
PY
cat >"$work/try.py" <<'PY'
import sqlite3, subprocess, sys, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

fetched = Counter()


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        fetched[self.path] += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
notes = Path("notes")
notes.touch()
crawlers = []


def start(name, *urls):
    command = [sys.executable, "crawl.py", name, *urls]
    crawlers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))


try:
    start("slow", *(f"http://127.0.0.1:{site.server_port}/{number}" for number in range(10)))
    end = time.monotonic() + 20
    while not notes.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    with sqlite3.connect("crawl.db", timeout=20) as database:
        held = database.execute("UPDATE request_queue_records SET time_blocked_until = '2020-01-01 00:00:00.000000'").rowcount
    start("quick")
    for crawler in crawlers:
        assert crawler.wait(40) == 0
finally:
    for crawler in crawlers:
        if crawler.poll() is None:
            crawler.kill()
by = Counter(line.split()[0] for line in notes.read_text().splitlines())
print(f"the slow crawler held {held} pages; handled by it: {by['slow']}, by the quick one: {by['quick']}")
print("fetched:", dict(Counter(f"{times} times" for times in fetched.values())))
assert (held, by) == (10, {"slow": 10, "quick": 10})
assert list(fetched.values()) == [2] * 10
PY
cd "$work"
"$work/venv/bin/python" try.py
# seen:
#   the slow crawler held 10 pages; handled by it: 10, by the quick one: 10
#   fetched: {'2 times': 10}
