"""Spiders that are killed: `python -m tests.rig.spiders.storm` crawls a real corpus with three processes of Scrapy."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.rig.spiders.site import Answer, Seen, Site
from tests.rig.spiders.starting import order
from timeoutq import Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer

QUEUE = "docs"
KILLS = 10
"""So many kills must meet leases."""
MOST = 60
"""So many kills are enough, however long the crawl goes on."""
WORKED = 1.5
"""Seconds for which a process has worked at least when it is killed."""
QUICK = 0.02
"""Seconds that a page takes when they have."""
SCRAPY_REDIS = {
    "ADDONS": {},
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_PERSIST": True,
}


@dataclass
class Ran:
    name: str
    items: Sequence[str] = ()
    visits: int = 0
    kills: int = 0
    met: int = 0
    seconds: float = 0.0
    deaths: dict[str, float] = field(default_factory=dict[str, float])
    """When processes were killed, by their user agents."""
    pids: dict[int, float] = field(default_factory=dict[int, float])
    """The same by their pids."""
    codes: list[int] = field(default_factory=list[int])

    @property
    def found(self) -> frozenset[str]:
        return frozenset(self.items)


def unpacked(package: str, folder: Path) -> Path:
    """Download a Debian package, unpack it, and give the folder that has the most pages."""
    subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive.name, "."], cwd=folder, check=True)
    return max((path.parent for path in folder.rglob("index.html")), key=lambda found: len(list(found.glob("*.html"))))


def served(folder: Path, seen: Seen) -> Answer:
    path = (folder / seen.path[1:]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return 404, {}, b""
    return 200, {"Content-Type": "text/html"}, path.read_bytes()


class Storm:
    """Processes of one spider on one site."""

    def __init__(
        self, site: Site, folder: Path, delay: float, latest: float, settings: Mapping[str, Any],
        spider: str = "docs:Docs", start: str = "/index.html",
    ) -> None:  # fmt: skip
        """Prepare; each page takes `delay` seconds until enough kills have met leases, and then much less."""
        self._order = partial(order, spider, f"{site.url}{start}")
        self._site = site
        self._delay = delay
        self._latest = latest
        self._items = folder / "items"
        self._items.unlink(missing_ok=True)
        self._folder = folder
        self._settings = settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The processes that live, by their user agents, the oldest first."""
        self._started = 0
        self._before = 0

    def start(self) -> None:
        self._started += 1
        name = f"storm-{self._started}"
        log = (self._folder / f"log-{self._started}").open("wb")
        process = subprocess.Popen(
            [os.environ.get("TIMEOUTQ_SCRAPY_PYTHON", sys.executable), "-m", "tests.rig.spiders.run"],
            stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "ITEMS": str(self._items)},
        )  # fmt: skip
        log.close()
        assert process.stdin is not None
        process.stdin.write(json.dumps([self._order(**self._settings, USER_AGENT=name)]).encode())
        process.stdin.close()
        self._processes[name] = process

    def run(self, ran: Ran, processes: int, every: float, most: int, holders: Any = None) -> Ran:
        """Run until all processes have ended by themselves; kill one `every` so many seconds, `most` at most."""
        self._before, began = len(self._site.visits), time.monotonic()
        self._site.delay = self._delay if most else QUICK
        for _ in range(processes):
            self.start()
        strike_at = time.monotonic() + every
        try:
            while self._processes:
                for name, process in list(self._processes.items()):
                    if process.poll() is not None:
                        ran.codes.append(process.returncode)
                        del self._processes[name]
                if time.monotonic() - began > self._latest:
                    raise TimeoutError(f"{ran.name}: not over after {self._latest:g} s")
                if ran.kills < most and time.monotonic() >= strike_at and self._strike(ran, holders):
                    strike_at = time.monotonic() + every
                    if (ran.kills if holders is None else ran.met) >= KILLS:
                        self._site.delay = QUICK
                time.sleep(0.02)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
        ran.seconds = time.monotonic() - began
        ran.visits = len(self._site.visits) - self._before
        ran.items = self.read()
        return ran

    def read(self) -> list[str]:
        return self._items.read_text().splitlines()

    def _strike(self, ran: Ran, holders: Any) -> bool:
        """Kill the oldest process that has worked for a while, and start another; say whether there was one.

        On a slow machine a process takes seconds to begin; were it killed at once, nothing would ever be done.
        """
        begun: dict[str, float] = {}
        for visit in self._site.visits[self._before :]:
            begun.setdefault(visit.headers.get("User-Agent", ""), visit.at)
        now = time.time()
        name = next((name for name in self._processes if begun.get(name, now) < now - WORKED), None)
        if name is None:
            return False
        victim = self._processes.pop(name)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        ran.kills += 1
        ran.deaths[name] = ran.pids[victim.pid] = time.time()
        ran.met += bool(holders is not None and holders().get(victim.pid))
        self.start()
        return True


def holders(queue: Queue) -> dict[int, int]:
    """Give how many leases each process holds, by its pid."""
    found: dict[int, int] = {}
    for entry in queue.each("in_progress"):
        pid = int((entry.holder or "?:0:").split(":")[1])
        found[pid] = found.get(pid, 0) + 1
    return found


def storms(
    corpus: Path, url: str, folder: Path, *, processes: int = 3, at_once: int = 8, every: float = 2.0,
    beside: bool = True, latest: float = 600.0, most: int = MOST,
) -> Iterator[Ran]:  # fmt: skip
    """Crawl a corpus undisturbed, then in a storm on timeoutq, then in one on scrapy-redis with as many kills.

    Each process fetches `at_once` pages at the same time, and one is killed `every` so many seconds, `most` at most.
    Raises `TimeoutError` if a run is not over after `latest` seconds.
    """
    pages = len(list(corpus.rglob("*.html")))
    # undisturbed, the crawl would last as long as the kills
    delay = KILLS * every * processes * at_once / pages
    common = {
        "CONCURRENT_REQUESTS": at_once, "CONCURRENT_REQUESTS_PER_DOMAIN": processes * at_once, "LOG_LEVEL": "WARNING",
    }  # fmt: skip
    with Site(partial(served, corpus)) as site:
        storm_with = partial(Storm, site, folder, delay, latest)
        yield storm_with({**common, "ADDONS": {}}).run(Ran("Scrapy alone, undisturbed"), 1, 0, 0)
        settings = {**common, "TIMEOUTQ_URL": url, "TIMEOUTQ_LEASE": 2}
        yield (ours := _on_timeoutq(storm_with(settings), url, processes, every, most))
        if beside:
            with redis.Redis.from_url(url) as raw:
                raw.delete("docs:requests", "docs:dupefilter")
            other = storm_with({**common, **SCRAPY_REDIS, "REDIS_URL": url})
            yield other.run(Ran("scrapy-redis"), processes, every, ours.kills)


def _on_timeoutq(storm: Storm, url: str, processes: int, every: float, most: int) -> Ran:
    with Queue(QUEUE, url, timeout=2) as queue:
        queue.purge()
        queue.configure(max_crashes=1000, politeness=Politeness(0, 1000))
        ran = storm.run(Ran("timeoutq"), processes, every, most, partial(holders, queue))
        assert queue.drained()
        stats = queue.stats()
        errors = {entry.error for entry in queue.each("failed")}
        assert errors <= {"GiveUp: HTTP 404"}, errors  # links of the corpus to pages that it lacks
        assert stats.counters["put"] == stats.done + stats.failed, "a request was put twice"
        queue.purge()
    return ran


HEAD = """\
| run | pages | lost | items in all | visits | kills | kills that met leases | seconds |
|---|---|---|---|---|---|---|---|"""


def row(ran: Ran, whole: frozenset[str]) -> str:
    met = str(ran.met) if ran.name == "timeoutq" else ""
    return (
        f"| {ran.name} | {len(ran.found & whole)} of {len(whole)} | {len(whole - ran.found)} | {len(ran.items)} "
        f"| {ran.visits} | {ran.kills} | {met} | {ran.seconds:.0f} |"
    )


def main() -> int:
    """Run the storms; give 1 if an item was lost, or too few kills met leases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--package", default="postgresql-doc-15", help="a Debian package with documentation")
    parser.add_argument("--folder", type=Path, help="a folder of pages, instead of a package")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--at-once", type=int, default=8, help="pages that a process fetches at once")
    parser.add_argument("--latest", type=float, default=600.0, help="seconds after which a run has failed")
    parser.add_argument("--url", help="a server, instead of an embedded one")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        corpus = given.folder or unpacked(given.package, folder)
        url = given.url or stack.enter_context(EmbeddedServer()).url
        runs = storms(
            corpus, url, folder, processes=given.processes, at_once=given.at_once, every=given.every,
            latest=given.latest,
        )  # fmt: skip
        print(HEAD)
        found: list[Ran] = []
        for ran in runs:
            found.append(ran)
            print(row(ran, found[0].found), flush=True)
    alone, ours = found[:2]
    good = ours.found == alone.found and ours.met >= KILLS
    print("the set of items equals that of the undisturbed run" if good else "NOT AS IT SHOULD BE")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
