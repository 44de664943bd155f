"""Crawls of a shop, by processes some of which are killed: the site tells how close its visits are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.storm import Ran, Storm
from timeoutq import Politeness, Queue

LISTS, BOOKS = 3, 4
"""How many lists the shop has, and how many books each list has."""


def answer(seen: Seen) -> Answer:
    """Answer with a page of the shop: `/` is list 0."""
    number = int(seen.path[5:] or 0) if seen.path.startswith("/list") else 0
    if "list" in seen.path or seen.path == "/":
        books = (f"/book{number * BOOKS + book}" for book in range(BOOKS))
        return html(*books, *([f"/list{number + 1}"] if number + 1 < LISTS else []))
    return html()


@dataclass(frozen=True)
class Run:
    """A crawl, and what the site has seen of it."""

    ran: Ran
    visits: Sequence[Seen]

    @property
    def books(self) -> set[str]:
        return {json.loads(item)["page"] for item in self.ran.items}

    def gaps(self) -> list[tuple[float, Seen, Seen]]:
        """Give pairs of visits that follow each other, and the seconds between them; a killed process begins none."""
        last = {seen.headers["User-Agent"]: seen for seen in self.visits}
        ends = [last[name] for name in self.ran.deaths]
        return [(b.at - a.at, a, b) for a, b in pairwise(self.visits) if a not in ends]


def kind(seen: Seen) -> str:
    return re.sub(r"[/\d]", "", seen.path) or "list"


def on_timeoutq(name: str, url: str, folder: Path, settings: Mapping[str, Any], processes: int, kills: int) -> Run:
    """Crawl the shop with so many processes; kill one every three seconds, `kills` times at most."""
    ours = {
        "FILES_STORE": str(folder / name), "LOG_LEVEL": "WARNING", "TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": "shop",
        "TIMEOUTQ_LEASE": 2, **settings,
    }  # fmt: skip
    with Site(answer) as site, Queue("shop", url) as queue:
        queue.purge()
        queue.configure(max_crashes=1000, politeness=Politeness(settings["DOWNLOAD_DELAY"], 1))
        ran = Storm(site, folder, 0.0, 600.0, ours, "polite:Shop", "").run(Ran(name), processes, 3.0, kills)
        assert queue.drained()
        assert queue.stats().failed == 0
        queue.purge()
        return Run(ran, site.visits)
