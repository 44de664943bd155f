"""How many series a scrape has while a queue has very many hosts and tasks: `python -m tests.rig.series`."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

from timeoutq import Politeness, Queue
from timeoutq.gateway.metrics import Watcher, exposition
from timeoutq.gateway.settings import Settings
from timeoutq.server.embedded import EmbeddedServer

MOST = 200
"""Series that a queue may have."""
FEW = 1000


@dataclass(frozen=True, slots=True)
class Found:
    series: int
    size: int
    """Bytes."""
    seconds: float
    said: str
    names: tuple[str, ...]
    """Words of tasks, hosts and errors that are in the text."""

    @property
    def good(self) -> bool:
        """Whether all is as it must be; without promtool, as far as this is known."""
        return self.series <= MOST and self.said in ("", "no promtool") and not self.names


def fill(queue: Queue, hosts: int, ids: int, rng: random.Random) -> None:
    for start in range(0, ids, FEW):
        queue.put([f"http://host-{n % hosts}.example/page-{n}" for n in range(start, min(start + FEW, ids))])
    for turn in range(20):
        leases = queue.claim(100)
        cut = rng.randrange(len(leases) + 1)
        queue.ack(leases[:cut])
        for lease in leases[cut:]:
            queue.fail(lease, f"mishap-{turn} of {lease.task}", give_up=True)
    for number in range(min(hosts, 100)):
        queue.hosts.block(f"host-{number}.example", for_=3600, reason=f"mishap-{number}")


async def scrape(url: str) -> tuple[bytes, float]:
    watcher = Watcher(Settings(url))
    try:
        await watcher.shared.get()
        watcher.shared.forget()
        began = time.perf_counter()
        text, _ = exposition(await watcher.shared.get())
        return text, time.perf_counter() - began
    finally:
        await watcher.close()


def judged(text: bytes, seconds: float, queue: str) -> Found:
    series = sum(f'queue="{queue}"'.encode() in line for line in text.splitlines())
    said = "no promtool"
    if promtool := shutil.which("promtool"):
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        said = (checked.stdout + checked.stderr).decode()
    names = tuple(word for word in ("host-", "page-", "mishap", "example", "pid", "127.0.0.1") if word.encode() in text)
    return Found(series, len(text), seconds, said, names)


def measure(hosts: int, ids: int) -> Found:
    with EmbeddedServer() as server, Queue("crawl", server.url, politeness=Politeness(1, 2)) as queue:
        fill(queue, hosts, ids, random.Random(hosts))
        text, seconds = asyncio.run(scrape(server.url))
    return judged(text, seconds, "crawl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--ids", type=int, default=1_000_000)
    chosen = parser.parse_args()
    found = measure(chosen.hosts, chosen.ids)
    print(
        f"{chosen.hosts:,} hosts, {chosen.ids:,} tasks: {found.series} series of the queue (at most {MOST}), "
        f"{found.size:,} bytes in {found.seconds * 1000:.0f} ms; promtool: {found.said or 'nothing to say'}; names of "
        f"tasks, hosts or errors: {', '.join(found.names) or 'none'}"
    )
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
