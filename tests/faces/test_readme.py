"""What the README shows is run here, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from timeoutq.cli import app
from timeoutq.testing import fake_queue, run

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_run(number: int, url: str, tmp_path: Path) -> None:
    code = tmp_path / "example.py"
    code.write_text(EXAMPLES[number], "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(code)],
        env={"TIMEOUTQ_URL": url, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_it_shows_exist() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    known |= {str(group.name) for group in app.registered_groups}
    shown = set(re.findall(r"timeoutq ([a-z]+)", SHELL))
    assert shown
    assert shown <= known


SITE = {"/": ["a", "/b", "/gone", "https://elsewhere.example/"], "/a": ["./b#top", "c"], "/b": ["/"], "/c": []}


class Site(BaseHTTPRequestHandler):
    """A site of four pages; one link leads to a page that is gone, one out of the site."""

    def do_GET(self) -> None:
        links = SITE.get(self.path)
        self.send_response(404 if links is None else 200)
        self.end_headers()
        self.wfile.write("".join(f'<a href="{link}">' for link in links or ()).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_the_first_crawl_finds_every_page_with_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[httpx.AsyncClient] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            clients.append(self)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    [code] = [example for example in EXAMPLES if "async def fetch" in example and "SITE" in example]
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        names: dict[str, Any] = {}
        exec(code.replace("https://example.com/", f"{base}/"), names)
        with fake_queue() as queue:
            queue.put(f"{base}/")
            ran = run(names["fetch"], queue, lifespan=names.get("client"))
        server.shutdown()
    assert ran.states == {**{base + path: "done" for path in SITE}, f"{base}/gone": "failed"}
    assert [client.is_closed for client in clients] == [True]
    assert "timeoutq worker crawl mycrawl:fetch --lifespan mycrawl:client" in README


def test_every_link_inside_it_leads_to_a_heading() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    headings = [
        re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", prose, re.M)
    ]
    links = re.findall(r"\]\(#([^)]*)\)", prose)
    assert len(links) > 30
    assert set(links) <= set(headings)
    assert len(headings) == len(set(headings))
    for path in re.findall(r"\]\(([^#)][^):]*)\)", prose):
        assert (ROOT / path).exists(), path


def test_there_are_examples_and_the_two_first_commands() -> None:
    assert len(EXAMPLES) >= 4
    first, second = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[:2]
    assert first.strip() == "pip install '.[demo]' && python -m demo"
    assert second.strip() == "pip install '.[test]' && pytest"
