"""What the event log costs: claim + ack of hundreds and one by one, with the log, without it, and at another commit.

    git worktree add /tmp/before COMMIT
    python -m tests.rig.log_cost --before /tmp/before [--rounds 7] [--server redis]

Each run is a process of its own on one server; the runs of a round take turns, and the least costs of all rounds are
compared: who else uses the machine can only add to them. The costs are microseconds in which the server ran scripts
(INFO commandstats), and CPU time of the client, both for each task. A second run of the same code shows what is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.rig.servers import redis_server, valkey
from timeoutq.server.embedded import EmbeddedServer

HERE = Path(__file__).parents[2]
RUN = """
import json, sys, time
import redis
from timeoutq import Queue
url, log, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
raw = redis.Redis.from_url(url)
raw.flushall()
queue = Queue("cost", url)
if log != "-":
    queue.configure(events="64MB", level=log)
ids = [f"https://example.com/page/{n:08d}" for n in range(tasks)]
found = {}

def measure(name, count, work):
    raw.config_resetstat()
    began = time.process_time()
    work()
    cpu = time.process_time() - began
    stats = raw.info("commandstats")
    usec = sum(one["usec"] for name, one in stats.items() if name.startswith(("cmdstat_fcall", "cmdstat_evalsha")))
    found[name] = [usec / count, cpu * 1e6 / count]

def hundreds():
    for _ in range(tasks // 200):
        leases = queue.claim(100)
        queue.ack(leases)

def one_by_one():
    for _ in range(tasks // 10):
        (lease,) = queue.claim(1)
        queue.ack(lease)

queue.put(ids[:1])
queue.ack(queue.claim(1))
measure("put in thousands", tasks, lambda: queue.put(ids))
measure("claim + ack of 100", tasks // 200 * 100, hundreds)
measure("claim + ack of one", tasks // 10, one_by_one)
print(json.dumps(found))
"""


def run(url: str, code: Path, log: str, tasks: int) -> dict[str, list[float]]:
    """Measure once, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, url, log, str(tasks)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(code)}, cwd="/",
    )  # fmt: skip
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def compare(url: str, before: Path | None, rounds: int, tasks: int) -> dict[str, dict[str, list[float]]]:
    """Measure all variants in turn; give for each the least of its costs."""
    variants = {"off": (HERE, "-"), "off again": (HERE, "-"), "all": (HERE, "all"), "ends": (HERE, "ends")}
    if before is not None:
        variants = {"before": (before, "-"), **variants}
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in variants}
    for _ in range(rounds):
        order = list(variants)
        random.shuffle(order)
        for name in order:
            found[name].append(run(url, variants[name][0], variants[name][1], tasks))
    return {
        name: {what: [min(one[what][at] for one in runs) for at in (0, 1)] for what in runs[0]}
        for name, runs in found.items()
    }


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, measure, and print the ratios: how many tasks a microsecond pays for, against `off`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the folder of another commit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=40_000)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    given = parser.parse_args(words)
    binary = Path(valkey() if given.server == "valkey" else redis_server())
    with EmbeddedServer(binary=binary, config={"save": '""'}) as server:
        found = compare(server.url, given.before, given.rounds, given.tasks)
    for name, costs in found.items():
        for what, (usec, cpu) in costs.items():
            base = found["off"][what]
            print(
                f"{name:10} {what:20} server {usec:7.2f} us, client {cpu:7.2f} us; speed against off: server "
                f"{base[0] / usec:.3f}, both {sum(base) / (usec + cpu):.3f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
