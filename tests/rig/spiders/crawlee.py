"""Crawlers of crawlee that are killed, and how fast they are: `python -m tests.rig.spiders.crawlee`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tests.rig.servers import redis_server
from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.storm import KILLS, Ran, Storm, holders
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer


def page(seen: Seen, pages: int) -> Answer:
    """Give a page of a site: a tree of two branches, with links across it."""
    number = int(seen.path.strip("/") or 0)
    found = (2 * number + 1, 2 * number + 2, number * 7 % pages, (number + 13) % pages)
    return html(*(f"/{other}" for other in found if other < pages), title=f"page {number}")


class Crawlers(Storm):
    """Processes of one crawler on one site; each writes its items into a folder of its own."""

    def start(self) -> None:
        self._started += 1
        name = f"storm-{self._started}"
        order = {**self._settings, "start": f"{self._site.url}/0", "folder": str(self._folder / name), "agent": name}
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"log-{self._started}").open("wb") as log:
            self._processes[name] = begun(order, log, log)

    def read(self) -> list[str]:
        """Give the pages of all items."""
        files = self._folder.glob("storm-*/datasets/default/[0-9]*.json")
        return [json.loads(file.read_text())["url"].removeprefix(self._site.url) for file in files]


def begun(order: Mapping[str, Any], errors: Any, output: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [os.environ.get("TIMEOUTQ_CRAWLEE_PYTHON", sys.executable), "-m", "tests.rig.spiders.crawled"],
        stdin=subprocess.PIPE, stdout=output, stderr=errors,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode())
    process.stdin.close()
    return process


def storm(
    site: Site, server: str, folder: Path, pages: int, *, lease: float, kills: int = KILLS, every: float = 2.0,
    processes: int = 3, at_once: int = 4, latest: float = 600.0,
) -> tuple[Ran, float, list[str]]:  # fmt: skip
    """Crawl the site with processes that are killed.

    Gives what came of it, the most seconds for which a dead process had leases, and all that is wrong.
    """
    settings = {"server": server, "lease": lease, "at_once": at_once}
    delay = kills * every * processes * at_once / pages
    crawlers = Crawlers(site, folder, delay, latest, settings)
    before = len(site.visits)
    with Queue("pages", server, timeout=lease) as queue:
        queue.purge()
        ran, over, last = Ran("crawlee on timeoutq"), Event(), dict[int, float]()
        watcher = Thread(target=watch, args=(server, over, last))
        watcher.start()
        try:
            crawlers.run(ran, processes, every, 2 * kills, partial(holders, queue))
        finally:
            over.set()
            watcher.join()
        stats = queue.stats()
        wrong = [] if queue.drained() and stats.failed == 0 else [f"the queue is not drained: {stats}"]
    wrong += [] if stats.done == pages else [f"{pages - stats.done} pages are lost"]
    wrong += [] if set(ran.codes) == {0} else [f"processes have ended with {ran.codes}"]
    ran.visits = len(site.visits) - before
    wrong += twice(site.visits[before:], ran)
    back = max(last.get(pid, died) - died for pid, died in ran.pids.items())
    wrong += [] if ran.met >= kills else [f"only {ran.met} kills met leases"]
    wrong += [] if back <= lease + 1 else [f"pages came back after {back:.1f} s"]
    return ran, back, wrong


def twice(visits: list[Seen], ran: Ran) -> list[str]:
    """Name the pages that a second process has fetched while the first one lived."""
    last: dict[str, Seen] = {}
    wrong: list[str] = []
    for seen in visits:
        agent, former = seen.headers.get("User-Agent", ""), last.get(seen.path)
        if former is not None and seen.at < ran.deaths.get(former.headers.get("User-Agent", ""), seen.at + 1):
            wrong.append(f"{seen.path} was fetched by {former.headers.get('User-Agent')}, which lived, and by {agent}")
        last[seen.path] = seen
    return wrong


def watch(server: str, over: Event, last: dict[int, float]) -> None:
    """Note when each process, by its pid, was last seen with a lease."""
    with Queue("pages", server) as queue:
        while not over.wait(0.1):
            last |= dict.fromkeys(holders(queue), time.time())


Rates = tuple[float, float]
"""Pages by the seconds that passed, and by those that the process was busy, which other processes hardly change."""


def speed(site: Site, server: str, at_once: int, turn: int) -> tuple[Rates, Rates]:
    """Give the rates of crawlee in memory and on a queue, one after the other."""
    found: list[Rates] = []
    for where in ({}, {"server": server, "queue": f"speed-{turn}"}):
        process = begun({"start": f"{site.url}/0", "at_once": at_once, **where}, None)
        assert process.stdout is not None
        with process:
            told = json.load(process.stdout)
        found.append((told["handled"] / told["seconds"], told["handled"] / told["busy"]))
    return found[0], found[1]


def main() -> int:
    """Run the storm on both servers, and measure; give 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=KILLS, help="so many kills must meet leases; 0: no storm")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the measurement")
    parser.add_argument("--at-once", type=int, default=8, help="pages that a process fetches at once, measured")
    given = parser.parse_args()
    failures = 0
    with Site(partial(page, pages=given.pages)) as site:
        for kind, binary in (("Valkey", None), ("Redis", redis_server())):
            with ExitStack() as stack:
                server = stack.enter_context(EmbeddedServer(binary=binary)).url
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                if given.kills:
                    alone = Crawlers(site, folder / "alone", 0, 600, {"at_once": 4}).run(Ran("alone"), 1, 0, 0)
                    ran, back, wrong = storm(site, server, folder, given.pages, lease=given.lease, kills=given.kills)
                    wrong += [] if ran.found == alone.found else [f"pages differ: {ran.found ^ alone.found}"]
                    failures += len(wrong)
                    print(
                        f"{kind}: {len(ran.found)} pages of {len(alone.found)}, {ran.visits} visits, {ran.kills} kills "
                        f"({ran.met} met leases), {ran.seconds:.0f} s, back after {back:.1f} s;",
                        *(wrong or ["nothing lost, nothing fetched twice by living processes"]), sep="\n  ", flush=True,
                    )  # fmt: skip
                rates = [speed(site, server, given.at_once, turn) for turn in range(given.rounds)]
                for at, of in enumerate(("a second", "a busy second") if rates else ()):
                    ratio = statistics.median(queue[at] / memory[at] for memory, queue in rates)
                    memory, queue = (statistics.median(each[at] for each in side) for side in zip(*rates, strict=True))
                    print(
                        f"{kind}: {memory:.0f} pages {of} in memory, {queue:.0f} on the queue: {ratio:.3f}", flush=True
                    )
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
