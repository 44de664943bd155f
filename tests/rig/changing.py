"""A site on loopback of which some pages change all the time and others never: a recrawl is judged by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from tests.rig.processes import ROOT
from tests.rig.spiders.site import Answer, Seen, Site

EACH = 6
"""How many pages there are of each kind."""
KINDS = ("changing", "tagged", "dated", "bare")
"""Pages that change with each tenth of a second; that never do and say so by ETag, by Last-Modified, not at all."""


@dataclass(frozen=True)
class Asked:
    path: str
    conditional: str
    """The ETag or the date that the visitor had; empty when it had none."""
    status: int


@dataclass
class ChangingSite:
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""

    def page(self, path: str) -> tuple[str, dict[str, str]] | None:
        kind = path.strip("/").partition("/")[0]
        if path == "/":
            return "".join(f"<a href='/{kind}/{i}'>x</a>" for kind in KINDS for i in range(EACH)), {"ETag": '"root"'}
        if kind not in KINDS:
            return None
        if kind == "changing":
            text = f"{path} at {time.monotonic():.1f}"
            return text, {"ETag": f'"{text}"'}
        headers = {"tagged": {"ETag": f'W/"{path}"'}, "dated": {"Last-Modified": formatdate(1e9, usegmt=True)}}
        return f"{path} for ever", headers.get(kind, {})

    def answer(self, seen: Seen) -> Answer:
        tag, date = seen.headers.get("If-None-Match", ""), seen.headers.get("If-Modified-Since", "")
        page = self.page(seen.path)
        text, headers = page or ("", {})
        same = tag == headers.get("ETag") if tag else bool(date) and date == headers.get("Last-Modified")
        status = 404 if page is None else 304 if same else 200
        self.asked.append(Asked(seen.path, tag or date, status))
        return status, {"Content-Type": "text/html", **headers}, text.encode() if status == 200 else b""

    def visits(self, kind: str) -> list[int]:
        counts = Counter(one.path for one in self.asked)
        return [counts[f"/{kind}/{i}"] for i in range(EACH)]

    def count(self, status: int) -> int:
        return sum(one.status == status for one in self.asked)

    @contextmanager
    def serving(self) -> Iterator[ChangingSite]:
        with Site(self.answer) as site:
            self.url = f"{site.url}/"
            yield self


def start(url: str, *words: str) -> subprocess.Popen[str]:
    """Have the demo crawl a site again and again, until it is told to stop."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "demo", "--url", url, "--recrawl", "--first", "500ms", "--shortest", "300ms",
            "--longest", "1h", "--allow-private", "--delay", "0", "--per-host", "8", "--json", *words,
        ],
        cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def stopped(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Stop the demo as Ctrl-C does; give what it says."""
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, (process.returncode, said, complaint)
    found: dict[str, Any] = json.loads(said)
    return found
