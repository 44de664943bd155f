"""What calls cost against a commit before: `python -m tests.rig.before COMMIT` prints a ratio for each kind of call.

Each round runs the same calls on this tree, on the commit, and on the commit once more, in processes and on servers of
their own. What is compared is the time of the server (INFO commandstats) plus the processor time of the client, for one
task, so that a busy machine changes little. A ratio is the commit's cost by this tree's: below 1, this tree is slower.
The second column compares the commit with itself: differences that are not larger are noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent.parent

CALLS = """
import json, sys, time
import redis
from timeoutq import Queue
from timeoutq.embedded import EmbeddedServer

def costs(raw, begin, tasks):
    stats = raw.info("commandstats")
    calls = [one["usec"] for name, one in stats.items() if name.startswith(("cmdstat_fcall", "cmdstat_evalsha"))]
    return (sum(calls) / 1e6 + time.process_time() - begin) / tasks * 1e6

found = {}

def measure(raw, name, tasks, work):
    raw.config_resetstat()
    begin = time.process_time()
    work()
    found[name] = costs(raw, begin, tasks)

with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw, Queue("crawl", server.url) as queue:
    ids = [f"https://example.com/{i:06}/page" for i in range(24000)]
    measure(raw, "put of 1,000", 24000, lambda: [queue.put(ids[at:at + 1000]) for at in range(0, 24000, 1000)])

    def hundreds():
        for _ in range(200):
            queue.ack(queue.claim(100))

    def singles():
        for _ in range(1500):
            queue.ack(queue.claim(1))

    def failures():
        for _ in range(15):
            queue.fail(queue.claim(100), "KeyError: title", give_up=True)

    measure(raw, "claim and ack of 100", 20000, hundreds)
    measure(raw, "claim and ack of 1", 1500, singles)
    measure(raw, "fail of 100, given up", 1500, failures)
    measure(raw, "retry of failed tasks", 1500, lambda: queue.retry_failed(all=True))
    measure(raw, "stats", 300, lambda: [queue.stats() for _ in range(300)])
print(json.dumps(found))
"""


def costs(tree: Path) -> dict[str, float]:
    """Run the calls on a tree; give the cost of each kind, in microseconds for one task."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-c", CALLS], cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the ratios."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.before", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timeoutq-before-") as folder:
        packed = subprocess.run(["git", "archive", chosen.commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        now: list[dict[str, float]] = []
        then: list[dict[str, float]] = []
        again: list[dict[str, float]] = []
        for number in range(chosen.rounds):
            # the order changes, so that what comes first in a round is not always the same
            turns = [(now, ROOT), (then, Path(folder)), (again, Path(folder))]
            for rounds, tree in turns[number % 3 :] + turns[: number % 3]:
                rounds.append(costs(tree))
    print(f"{'':24} {'µs now':>8} {'ratio':>7} {'itself':>7}")
    for name in now[0]:
        mine, theirs, twice = ([one[name] for one in rounds] for rounds in (now, then, again))
        ratio = median(b / a for a, b in zip(mine, theirs, strict=True))
        itself = median(b / a for a, b in zip(twice, theirs, strict=True))
        print(f"{name:24} {median(mine):8.2f} {ratio:7.3f} {itself:7.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
