"""Batches under load: workers are killed with -9, and each callback must be put once, after the last task of its batch.

`tests/worker/test_batches_processes.py` runs it for some seconds; the long form is

    python -m tests.rig.batches --batches 1000 --tasks 50 --workers 4 --every 0.5 [--json]

which prints a verdict, and ends with 1 if a task or a callback is lost, or a callback came twice or early. Some tasks
fail for good, so half of the batches, which are sealed with on="done", send their callbacks to failed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rig.processes import Processes, processes
from tests.rig.servers import valkey
from tests.rig.waiting import is_over
from timeoutq import Queue, State, Task
from timeoutq.server.embedded import EmbeddedServer

NAME = "batched"
SPOILED = "spoiled"
"""The end of the ids of tasks that fail for good."""


@dataclass(slots=True)
class Verdict:
    batches: int = 0
    tasks: int = 0
    callbacks: int = 0
    """Callbacks that were put, and that a worker has run."""
    broken: int = 0
    lost: int = 0
    """Tasks and callbacks that have not ended."""
    early: int = 0
    """Callbacks that a worker began before the last task of their batch had ended."""
    twice: int = 0
    wrong: int = 0
    """Batches that have counted wrongly, or whose callback is where it should not be."""
    kills: int = 0

    @property
    def good(self) -> bool:
        whole = self.callbacks + self.broken == self.batches > 0
        return whole and not (self.lost or self.early or self.twice or self.wrong)

    def line(self) -> str:
        return (
            f"{self.batches:,} batches, {self.tasks:,} tasks: {self.callbacks:,} callbacks put, {self.broken:,} not "
            f"put because a task failed; {self.lost} lost, {self.early} early, {self.twice} twice, {self.wrong} wrong; "
            f"{self.kills} workers killed with -9"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    batches: int = 1000
    tasks: int = 50
    workers: int = 4
    every: float = 0.5
    """Seconds between two kills."""
    fails: float = 0.002
    """The share of tasks that fail for good."""
    seconds: float = 600.0
    planted: str = ""
    """Python that each worker runs first: a bug, to see that the rig finds it."""


def ids(batch: int, how: Trial, chance: random.Random) -> list[str]:
    return [f"{batch}.{n}" + (SPOILED if chance.random() < how.fails else "") for n in range(how.tasks)]


def trial(folder: Path, how: Trial, seed: int | None = None) -> Verdict:
    """Let workers work on batches while they are killed, and judge what became of the batches."""
    chance, verdict = random.Random(seed), Verdict()
    wanted = {f"b{number}": ids(number, how, chance) for number in range(how.batches)}
    with ExitStack() as ends:
        server = ends.enter_context(EmbeddedServer(binary=valkey()))
        running = ends.enter_context(processes(server.url, folder))
        queue = ends.enter_context(Queue(NAME, server.url, deadline=20, max_crashes=1000))
        workers = [_start(running, how) for _ in range(how.workers)]
        kill_at, left = time.monotonic() + how.every, list(wanted)
        until = time.monotonic() + how.seconds
        while time.monotonic() < until:
            for name in [left.pop() for _ in range(min(10, len(left)))]:
                _put(queue, name, wanted[name], chance)
            if time.monotonic() >= kill_at:
                kill_at = time.monotonic() + chance.uniform(0.5, 1.5) * how.every
                at = chance.randrange(len(workers))
                workers[at].kill()
                verdict.kills += 1
                workers[at] = _start(running, how)
            if not left:
                time.sleep(0.05)
                if verdict.kills >= how.workers and is_over(queue):
                    break
        for worker in workers:
            assert worker.poll() is None, f"a worker has ended: {running.log(worker)}"
        judge(queue, wanted, verdict, running)
    return verdict


def _put(queue: Queue, name: str, tasks: Sequence[str], chance: random.Random) -> None:
    # in several calls, some of which come twice, as from a sender that was killed and begins anew
    half = chance.randrange(len(tasks))
    queue.batches.put(name, tasks[:half])
    for _ in range(chance.choice((1, 2))):
        queue.batches.put(name, tasks[half // 2 :])
    on: Any = "done" if int(name[1:]) % 2 else "ended"
    for _ in range(chance.choice((1, 2))):
        queue.batches.seal(name, Task(f"after.{name}", {"batch": name}), on=on)


def _start(running: Processes, how: Trial) -> subprocess.Popen[bytes]:
    code = f"{how.planted}\nfrom tests.rig.batches import work\nwork()"
    return running.start_code(code)


def work() -> None:
    import asyncio

    from tests.rig.handlers import note
    from timeoutq import AsyncQueue, GiveUp, Lease, Worker

    async def handle(lease: Lease) -> None:
        note("start", lease)
        await asyncio.sleep(0.002)
        if lease.task.endswith(SPOILED):
            note("end", lease)
            raise GiveUp("spoiled")
        note("end", lease)

    async def run() -> None:
        await Worker(AsyncQueue(NAME, timeout=1.0), handle, concurrency=20).run()

    asyncio.run(run())


def judge(queue: Queue, wanted: dict[str, list[str]], verdict: Verdict, running: Processes) -> None:
    lines = [line.split() for line in running.history.read_text("utf-8").splitlines()]
    first, last = dict[str, float](), dict[str, float]()
    for event, task, _, _, at in lines:
        if event == "start":
            first.setdefault(task, float(at))
        else:
            last.setdefault(task, float(at))
    for name, tasks in wanted.items():
        after = f"after.{name}"
        outcome = queue.states(*tasks, after)
        states = dict(outcome.items())
        spoiled = {task for task in tasks if task.endswith(SPOILED)}
        verdict.batches += 1
        verdict.tasks += len(tasks)
        fails = bool(spoiled) and int(name[1:]) % 2 == 1
        verdict.lost += sum(states[task] != ("failed" if task in spoiled else "done") for task in tasks)
        info = queue.batches.look(name)[name]
        told = (info.state, info.tasks, info.outstanding, info.failed)
        verdict.wrong += told != ("broken" if fails else "ended", len(tasks), 0, len(spoiled))
        if fails:
            verdict.broken += states[after] == "failed" and after not in first
        elif states[after] != "done":
            verdict.lost += 1
        else:
            verdict.callbacks += 1
            # the first attempt at each task that has come to its end was before
            verdict.early += first[after] < max(last[task] for task in tasks)
    # each callback was put once, as a schedule of its seal; a callback that was put again would have another fence
    stats = queue.stats()
    puts = verdict.tasks + verdict.batches
    verdict.twice = stats.counters.get("put", 0) - puts
    verdict.lost += queue.stats().todos + queue.stats().in_progress + queue.stats().scheduled
    assert (
        len(list(queue.each(State.FAILED)))
        == sum(task.endswith(SPOILED) for tasks in wanted.values() for task in tasks) + verdict.broken
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two kills")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    how = Trial(given.batches, given.tasks, given.workers, given.every)
    with tempfile.TemporaryDirectory(prefix="timeoutq-batches-") as folder:
        verdict = trial(Path(folder), how, given.seed)
    print(json.dumps(asdict(verdict)) if given.json else verdict.line())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
