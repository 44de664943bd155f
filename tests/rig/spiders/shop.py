"""How close the visits of a shop are: `python -m tests.rig.spiders.shop` crawls it by Scrapy alone, and on timeoutq."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.storm import Ran, Storm
from timeoutq import Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer

LISTS, BOOKS = 3, 4
"""How many lists the shop has, and how many books each list has."""
ALONE = "Scrapy alone"
JITTER = 0.05
"""By so much less than the delay may the site see a request after the one before: it may note the first one late."""


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

    name: str
    ran: Ran
    visits: Sequence[Seen]

    @property
    def books(self) -> set[str]:
        return {json.loads(item)["page"] for item in self.ran.items}

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many visits there were of lists, books, pictures and stocks."""
        return Counter(kind(seen) for seen in self.visits)

    def gaps(self, *, of_killed: bool = False) -> list[tuple[float, Seen, Seen]]:
        """Give the pairs of visits that follow each other, and the seconds between them.

        The pairs whose first visit is the last one of a process that was killed are apart.
        """
        last = {seen.headers["User-Agent"]: seen for seen in self.visits}
        ends = [last[name] for name in self.ran.killed]
        return [(b.at - a.at, a, b) for a, b in pairwise(self.visits) if (a in ends) == of_killed]


def kind(seen: Seen) -> str:
    return re.sub(r"[/\d]", "", seen.path) or "list"


def crawl(name: str, folder: Path, settings: Mapping[str, Any], processes: int = 1, kills: int = 0) -> Run:
    """Crawl the shop with so many processes; kill one every three seconds, `kills` times at most."""
    files = {"FILES_STORE": str(folder / name.replace(" ", "-")), "LOG_LEVEL": "WARNING"}
    with Site(answer) as site:
        storm = Storm(site, folder, 0.0, 600.0, {**files, **settings}, "polite:Shop", "")
        ran = storm.run(Ran(name), processes, 3.0, kills)
        return Run(name, ran, site.visits)


def on_timeoutq(
    name: str, url: str, folder: Path, settings: Mapping[str, Any], processes: int = 1, kills: int = 0
) -> Run:
    with Queue("shop", url) as queue:
        queue.purge()
        queue.configure(max_crashes=1000, politeness=Politeness(settings["DOWNLOAD_DELAY"], 1))
        ours = {**settings, "TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": "shop", "TIMEOUTQ_LEASE": 2}
        run = crawl(name, folder, ours, processes, kills)
        assert queue.drained()
        assert queue.stats().failed == 0
        queue.purge()
    return run


def runs(delay: float, *, randomize: bool) -> Iterator[Run]:
    """Crawl by Scrapy alone, on timeoutq in one process, and in three that are killed."""
    settings = {"DOWNLOAD_DELAY": delay, "RANDOMIZE_DOWNLOAD_DELAY": randomize}
    with tempfile.TemporaryDirectory() as given, EmbeddedServer() as server:
        folder = Path(given)
        yield crawl(ALONE, folder, {**settings, "ADDONS": {}})
        yield on_timeoutq("timeoutq", server.url, folder, settings)
        yield on_timeoutq("three, with kills", server.url, folder, settings, 3, 60)


HEAD = """\
| run | lists | books | pictures | stocks | visits | items | kills | smallest gap | under 0.9 delays | after a kill |
|---|---|---|---|---|---|---|---|---|---|---|"""


def row(run: Run, delay: float) -> str:
    kinds, gaps, ends = run.kinds, [gap for gap, *_ in run.gaps()], [gap for gap, *_ in run.gaps(of_killed=True)]
    counts = " | ".join(str(kinds[each]) for each in ("list", "book", "picture", "stock"))
    killed = f"{len(ends)}, smallest {min(ends):.3f} s" if ends else "-"
    return (
        f"| {run.name} | {counts} | {len(run.visits)} | {len(run.books)} | {run.ran.kills} "
        f"| {min(gaps):.3f} s | {sum(gap < 0.9 * delay for gap in gaps)} | {killed} |"
    )


def main() -> int:
    """Run the crawls, and print the tables; give 1 if a visit was sooner than in Scrapy alone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--delay", type=float, default=0.5, help="DOWNLOAD_DELAY, seconds")
    parser.add_argument(
        "--randomize", action="store_true", help="RANDOMIZE_DOWNLOAD_DELAY, which Scrapy has by default"
    )
    given = parser.parse_args()
    print(HEAD, flush=True)
    least, good = given.delay * (0.5 if given.randomize else 1), True
    for run in runs(given.delay, randomize=given.randomize):
        print(row(run, given.delay), flush=True)
        least = min(least, min(gap for gap, *_ in run.gaps())) if run.name == ALONE else least
        for gap, first, second in run.gaps():
            if gap < least - JITTER:
                good = False
                print(f"TOO SOON: {second.path} {gap:.3f} s after {first.path}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
