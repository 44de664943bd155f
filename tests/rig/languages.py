"""Python and Node on one queue: workers in both languages under kill -9, judged by what their handlers wrote down."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.rig.invariants import check
from tests.rig.node import CLIENT, node, write_protocol
from tests.rig.waiting import seconds_of, wait_until
from timeoutq import Ack, AsyncQueue, Lease, Queue, Worker
from timeoutq.server.embedded import EmbeddedServer

LEASE = 3.0
"""The length of leases, seconds: some handlers run longer, so that leases must be extended."""
BACKLOG = 150
"""How many ready tasks the producer keeps."""
HANDLER = Path(__file__).parent / "languages_handler.mjs"


def _note(what: str, lease: Lease) -> None:
    line = {"what": what, "task": lease.task, "fence": str(lease.fence), "at": str(time.monotonic_ns()), "by": "python"}
    path = Path(os.environ["LANGUAGES_LOG"]) / f"{os.getpid()}.jsonl"
    # one write at the end of a file: a line that was written survives the process
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


async def handle(lease: Lease) -> Ack | None:
    """Run as long as the id says; every 17th task fails at first, every 11th puts another one."""
    _note("start", lease)
    name, _, ms = lease.task.partition(":")
    try:
        await asyncio.sleep(int(ms) / 1000)
    except asyncio.CancelledError:
        _note("stopped", lease)
        raise
    _note("end", lease)
    if name.endswith("c"):
        return None
    number = int(name[1:])
    if number % 17 == 0 and lease.attempt == 1:
        raise TypeError("the first attempt fails")
    return Ack(put={f"t{number}c:5": {"parent": lease.task}}) if number % 11 == 0 else None


async def _work(name: str) -> None:
    queue = AsyncQueue(name, os.environ["TIMEOUTQ_URL"], timeout=LEASE)
    await Worker(queue, handle, concurrency=8, drain_deadline=10).run()


@dataclass(slots=True)
class Run:
    task: str
    fence: int
    start: int
    by: str
    pid: int
    end: int | None = None


@dataclass(slots=True)
class Verdict:
    put: int = 0
    lost: list[str] = field(default_factory=list[str])
    overlaps: list[str] = field(default_factory=list[str])
    backwards: list[str] = field(default_factory=list[str])
    """Runs whose fence is not higher than that of the run before."""
    kills: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    unended: int = 0
    """How many runs a kill ended."""

    @property
    def is_good(self) -> bool:
        """Whether each promise was kept, and both languages were under kills and worked."""
        return not (self.lost or self.overlaps or self.backwards) and all(self.ended[by] for by in ("python", "node"))

    def __str__(self) -> str:
        kills, ended = (", ".join(f"{n:,} {by}" for by, n in sorted(row.items())) for row in (self.kills, self.ended))
        return (
            f"{self.put:,} tasks put, runs that ended: {ended}; kill -9: {kills or 'none'}, in {self.unended:,} runs; "
            f"lost {len(self.lost)}, overlaps {len(self.overlaps)}, fences that did not grow {len(self.backwards)}"
        )


def runs_of(folder: Path, killed: dict[int, int]) -> list[Run]:
    """Read the lines of all handlers; `killed` says when each process was killed, by its pid, ns."""
    found: list[Run] = []
    for path in sorted(folder.glob("*.jsonl")):
        pid, open_runs = int(path.stem), dict[tuple[str, str], Run]()
        for line in path.read_text().splitlines():
            one = json.loads(line)
            of = (one["task"], one["fence"])
            if one["what"] == "start":
                open_runs[of] = Run(one["task"], int(one["fence"]), int(one["at"]), one["by"], pid)
                found.append(open_runs[of])
            else:
                open_runs[of].end = int(one["at"])
        for run in open_runs.values():
            run.end = run.end if run.end is not None else killed.get(pid)
    return found


def judge(runs: Sequence[Run], verdict: Verdict) -> None:
    by_task = defaultdict[str, list[Run]](list)
    for run in runs:
        by_task[run.task].append(run)
    for task, row in by_task.items():
        row.sort(key=lambda run: run.start)
        for one, two in pairwise(row):
            if two.fence <= one.fence:
                verdict.backwards.append(f"{task}: {one.by} {one.fence}, then {two.by} {two.fence}")
            if one.end is None or two.start < one.end:
                verdict.overlaps.append(f"{task}: {one.by} pid {one.pid} and {two.by} pid {two.pid}")


class Crew:
    """The workers of a run, of both languages; each victim is replaced."""

    def __init__(self, url: str, name: str, folder: Path, seed: int) -> None:
        self.url, self.name, self.folder = url, name, folder
        self.log = folder / "said.log"
        self.document = write_protocol(folder)
        self.killed: dict[int, int] = {}
        self.random = random.Random(seed)
        self.workers: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, by: str) -> None:
        os.environ["LANGUAGES_LOG"] = str(self.folder)
        if by == "node":
            library = self.random.choice(["redis", "redis", "ioredis"])
            options = ["--protocol", self.document, "--library", library, "--timeout", str(LEASE), "--concurrency", "8"]
            words: list[Any] = [CLIENT / "worker.mjs", self.name, HANDLER, *options, "--grace", "10"]
            self.workers.append((by, node().start(*words, url=self.url, log=self.log)))
            return
        with self.log.open("ab") as said:
            self.workers.append((by, subprocess.Popen(
                [sys.executable, "-m", "tests.rig.languages", "--work", self.name],
                env={**os.environ, "TIMEOUTQ_URL": self.url}, stdout=said, stderr=said, start_new_session=True,
            )))  # fmt: skip

    def _has_begun(self, worker: subprocess.Popen[bytes]) -> bool:
        return (self.folder / f"{worker.pid}.jsonl").exists()

    def have_begun(self) -> bool:
        return {by for by, worker in self.workers if self._has_begun(worker)} == {"python", "node"}

    def kill_one(self, verdict: Verdict) -> None:
        """Kill a worker with -9 that has begun to work, and start another one of the same language."""
        begun = [one for one in self.workers if self._has_begun(one[1])]
        if not begun:
            return
        by, victim = worker = self.random.choice(begun)
        self.workers.remove(worker)
        victim.kill()
        victim.wait()
        self.killed[victim.pid] = time.monotonic_ns()
        verdict.kills[by] += 1
        self.start(by)

    def stop(self) -> None:
        for _, worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for _, worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self.workers.clear()


def produce(queue: Queue, verdict: Verdict, seed: random.Random) -> None:
    ready = queue.stats().todos
    if ready < BACKLOG:
        many = range(verdict.put + 1, verdict.put + 1 + BACKLOG - ready)
        queue.put(f"t{n}:{3300 if n % 101 == 0 else seed.randint(1, 60)}" for n in many)
        verdict.put += len(many)


def run(seconds: float, *, kill: bool, seed: int = 1, workers: int = 2, url: str | None = None) -> Verdict:
    """Let workers of both languages work for a time, drain, and judge; `workers` is how many there are of each."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        return _run(Path(folder), url or server.url, seconds, kill, seed, workers)


def _run(folder: Path, url: str, seconds: float, kill: bool, seed: int, workers: int) -> Verdict:
    verdict, crew, chance = Verdict(), Crew(url, "languages", folder, seed), random.Random(seed)
    with Queue("languages", url, timeout=LEASE, max_crashes=1000) as queue:
        try:
            for _ in range(workers):
                crew.start("python")
                crew.start("node")

            def have_begun() -> bool:
                produce(queue, verdict, chance)
                return crew.have_begun()

            wait_until(have_begun, 60)  # on a busy machine, processes take seconds to start
            until, next_kill = time.monotonic() + seconds, time.monotonic()
            while time.monotonic() < until:
                produce(queue, verdict, chance)
                if kill and time.monotonic() >= next_kill:
                    crew.kill_one(verdict)
                    next_kill = time.monotonic() + chance.uniform(0.3, 1.5)
                time.sleep(0.02)
            drained = queue.wait_drained(60)
        finally:
            crew.stop()
        os.environ.pop("LANGUAGES_LOG", None)
        runs = runs_of(folder, crew.killed)
        judge(runs, verdict)
        ended = [one for one in runs if one.pid not in crew.killed or one.end != crew.killed[one.pid]]
        verdict.unended = len(runs) - len(ended)
        verdict.ended.update(one.by for one in ended)
        done = {entry.task for entry in queue.each("done")}
        verdict.lost = sorted(expected(verdict.put, {one.task for one in runs}) - done)
        if not drained:
            verdict.lost.append(f"the queue was not drained: {queue.stats()}")
        check(url, "languages")
        if not verdict.is_good:
            print((folder / "said.log").read_text("utf-8", "replace")[-4000:], file=sys.stderr)
    return verdict


def expected(put: int, ran: set[str]) -> set[str]:
    """Give the tasks that must be done: all that were put, and those that these put."""
    names = {one.partition(":")[0]: one for one in ran}
    found = {names.get(f"t{n}", f"t{n}") for n in range(1, put + 1)}
    return found | {f"t{n}c:5" for n in range(11, put + 1, 11)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=180.0, help="how long: 180s, 3m")
    parser.add_argument("--kill", action="store_true", help="kill workers with -9")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="how many of each language")
    parser.add_argument("--work", metavar="QUEUE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(_work(given.work))
        return 0
    verdict = run(given.seconds, kill=given.kill, seed=given.seed, workers=given.workers)
    print(verdict)
    for line in [*verdict.lost, *verdict.overlaps, *verdict.backwards][:20]:
        print(line)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
