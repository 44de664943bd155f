#!/usr/bin/env bash
# hishel 2.0.0 with rfc=True, httpx 0.28.1.
#
# A cache that follows RFC 9111 has to know how old a page is. If a page has no Date, the cache must note when it came
# (RFC 9110, 6.6.1), and if it has an Age, some cache on the way kept it for so long already (RFC 9111, 4.2.3). One
# would guess that hishel, with rfc=True, does both. It looks at Date only: a page without Date has the age of 0 for
# ever, so max-age=1 never ends, and a crawler never sees a change of such a page; and a page that a CDN kept for 599 of
# its 600 seconds, and hands on with a Date of its own, is kept for 600 more. Cache-Control: no-cache in a request helps
# that request alone: the new page is stored beside the old one, and the next request gets the old one again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check 'hishel[httpx]==2.0.0' httpx==0.28.1
cat >"$work/try.py" <<'PY'
import time
from collections import Counter
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from hishel import SqliteStorage
from hishel.httpx import CacheClient

asked = Counter()


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        asked[self.path] += 1
        body = f"edition {asked[self.path]}".encode()
        self.send_response_only(200)
        if self.path != "/without-date":
            self.send_header("Date", formatdate(usegmt=True))
        if self.path == "/from-a-cdn":
            self.send_header("Age", "599")
        self.send_header("Cache-Control", "max-age=600" if self.path == "/from-a-cdn" else "max-age=1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
Thread(target=site.serve_forever, daemon=True).start()
client = CacheClient(
    base_url=f"http://127.0.0.1:{site.server_port}", storage=SqliteStorage(database_path="cache.db"), rfc=True
)
PAGES = ["/with-date", "/without-date", "/from-a-cdn"]
for page in PAGES:
    assert client.get(page).text == "edition 1"
time.sleep(3)
seen = {page: client.get(page).text for page in PAGES}
for page in PAGES:
    print(f"{page}, three seconds later: {seen[page]}")
assert seen == {"/with-date": "edition 2", "/without-date": "edition 1", "/from-a-cdn": "edition 1"}
forced = client.get("/without-date", headers={"Cache-Control": "no-cache"}).text
after = client.get("/without-date").text
print(f"/without-date, with no-cache: {forced}, and then without: {after}")
assert (forced, after) == ("edition 2", "edition 1")
PY
cd "$work"
"$work/venv/bin/python" "$work/try.py"
# seen:
#   /with-date, three seconds later: edition 2
#   /without-date, three seconds later: edition 1
#   /from-a-cdn, three seconds later: edition 1
#   /without-date, with no-cache: edition 2, and then without: edition 1
