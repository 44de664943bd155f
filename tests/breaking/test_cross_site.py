"""A real Chromium that is logged in, and pages of other sites that try to use this: forms, images, frames and scripts.

Cookies are not bound to a port, so a page on another port of the same host name is the harder case: the browser sends
our cookie with what that page sends.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig import canary
from tests.rig.browsers import browser
from tests.rig.served import Served, served
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.gateway.tokens import SCOPES, TokenBook
from timeoutq.server.embedded import EmbeddedServer

EVIL = """<!doctype html><title>evil</title>
<form id=f method=post action="{ours}/q/crawl/pause"></form><button form=f>Win a prize</button>
<img src="{ours}/v1/crawl/stats"><iframe src="{ours}/q/crawl"></iframe><a href="{ours}/q/crawl">See for yourself</a>
<script src="{ours}/v1/crawl/stats"></script>
<script>
const said = [], json = {{"content-type": "application/json"}}
for (const [path, how] of [
  ["/v1/crawl/stats", {{}}], ["/v1/crawl/stats", {{mode: "no-cors"}}],
  ["/v1/crawl/pause", {{method: "POST", body: "{{}}"}}],
  ["/v1/crawl/pause", {{method: "POST", body: "{{}}", mode: "no-cors"}}],
  ["/v1/crawl/pause", {{method: "POST", body: "{{}}", headers: json}}],
  ["/v1/crawl/purge", {{method: "POST", body: "{{}}", keepalive: true, mode: "no-cors"}}],
]) fetch("{ours}" + path, {{credentials: "include", ...how}}).then(r => said.push(r.type), () => said.push("refused"))
navigator.sendBeacon("{ours}/v1/crawl/pause", "{{}}")
const events = new EventSource("{ours}/q/crawl/live?view=queue", {{withCredentials: true}})
events.onmessage = () => said.push("events")
window.said = said
</script>"""


@contextmanager
def another_site(ours: str) -> Iterator[int]:
    """Serve the page of somebody else."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.format(ours=ours).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def gateway(server: EmbeddedServer, tmp_path: Path) -> Iterator[Served]:
    """A gateway that needs a token."""
    with served(server.url, tmp_path) as found:
        yield found
        found.is_well()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_page_of_another_site_does_nothing_with_the_login_of_its_visitor(
    url: str, gateway: Served, scripts: bool
) -> None:
    ours = f"http://{gateway.host}"
    with Queue("crawl", url) as queue, TokenBook(url) as book, browser() as chromium, another_site(ours) as port:
        queue.put("a")
        secret, _ = book.new("admin", queues=["*"], allow=SCOPES)
        context = chromium.new_context(java_script_enabled=scripts)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.goto(f"{ours}/q/crawl")
        assert page.url == f"{ours}/login?next=/q/crawl"
        page.fill("#token", secret)
        page.get_by_role("button", name="Log in").click()
        assert page.url == f"{ours}/q/crawl"
        (cookie,) = [one for one in context.cookies() if one["name"] == "timeoutq"]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
        for host in ("localhost", "127.0.0.1"):
            answers: list[tuple[str, str, int]] = []
            page.on("response", lambda one, seen=answers: seen.append((one.request.method, one.url, one.status)))
            page.goto(f"http://{host}:{port}/")
            if scripts:
                wait_until(lambda: page.evaluate("said.length") >= 6)
                assert set(page.evaluate("said")) <= {"refused", "opaque"}
            page.get_by_role("button", name="Win a prize").click()
            page.wait_for_url(f"{ours}/q/crawl/pause")
            refused = [one for one in answers if one[1].startswith(ours) and "/static/" not in one[1]]  # not our icon
            assert refused
            assert {status for _, _, status in refused} <= {403}, refused
            stats = queue.stats()
            assert (stats.todos, stats.paused) == (1, False)
        # a link from there is only a link
        page.goto(f"http://localhost:{port}/")
        page.get_by_role("link").click()
        page.wait_for_url(f"{ours}/q/crawl")
        page.get_by_role("button", name="Log out").click()
        assert not [one for one in context.cookies() if one["name"] == "timeoutq"]
        context.close()
