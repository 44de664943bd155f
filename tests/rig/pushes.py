"""Tasks that are pushed to a receiver which hangs, resets, lies and is busy, by workers that are killed with -9.

python -m tests.rig.pushes --tasks 10000 --workers 3 --concurrency 8 --seed 11 --every 2
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.rig.processes import Processes, processes
from tests.rig.receiver import (
    OK,
    SECRET,
    Answering,
    Message,
    Receiver,
    endless,
    hangs,
    lies,
    node,
    receiving,
    resets,
    says,
    verified_by_node,
)
from tests.rig.receiver import status as answer
from tests.rig.servers import valkey
from tests.rig.waiting import is_over, wait_until
from timeoutq import Queue, Task
from timeoutq.server.embedded import EmbeddedServer

NAME = "pushes"
WITHIN = "500ms"
"""How long a message may take."""
PORTION = 2000
"""So many messages are given to node at once: it refuses signatures that are older than five minutes."""

FAULTS: dict[str, tuple[Answering, bool]] = {
    "hangs": (hangs, False),
    "resets": (resets, False),
    "closes": (says(b"", close=True), False),
    "lies": (lies(), True),
    "lies about an error": (lies(500), False),
    "speaks another protocol": (says(b"220 mail.example ESMTP\r\n", close=True), False),
    "sends headers without end": (endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.001), False),
    "sends a body byte by byte": (endless(b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", b"x", 0.01), False),
    "error": (says(answer(500)), False),
    "redirects": (says(answer(302, "Location: http://127.0.0.1:1/")), False),
    "503": (says(answer(503, "Retry-After: 0")), False),
    "429": (says(answer(429)), False),
    "takes it, and the answer is lost": (resets, True),
}
"""Ways in which the receiver fails, and whether it has taken the message nevertheless."""
RARE = ("503", "429")
"""All of a worker waits for these."""


@dataclass(slots=True)
class Verdict:
    tasks: int = 0
    done: int = 0
    messages: int = 0
    taken: Counter[str] = field(default_factory=Counter[str])
    undelivered: list[str] = field(default_factory=list[str])
    """Tasks that are done, and were never taken."""
    unsigned: int = 0
    by_node: tuple[int, int] | None = None
    """How many messages the official package of node has accepted, and how many that were changed it has refused; None
    if node does not find the package."""
    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The ids of the messages of each task."""
    most: int = 0
    allowed: int = 0
    kills: int = 0
    held: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])

    @property
    def good(self) -> bool:
        return (
            self.done == self.tasks > 0
            and not (self.undelivered or self.unsigned)
            and self.by_node in (None, (self.messages, self.messages))
            and 0 < self.most <= self.allowed
            and all(len(ids) == 1 for ids in self.ids.values())
        )

    def line(self) -> str:
        again = sum(self.taken.values()) - len(self.taken)
        accepts, refuses = self.by_node or (0, 0)
        by_node = f"accepts {accepts:,}, refuses {refuses:,} that were changed" if self.by_node else "has no package"
        faults = ", ".join(f"{what} {times}" for what, times in sorted(self.faults.items()))
        return (
            f"{self.tasks:,} tasks: {self.done:,} done, {len(self.taken):,} taken by the receiver, {again} of them "
            f"again, {len(self.undelivered)} lost; {self.messages:,} messages, {self.unsigned} not signed, "
            f"node: {by_node}; at most "
            f"{self.most} of {self.allowed} at once; {self.kills} workers killed with -9, {self.held} of them with "
            f"tasks in progress\nfaults: {faults}\n" + "\n".join(self.undelivered[:10])
        )


class Storm:
    def __init__(self, running: Processes, folder: Path, workers: int, concurrency: int, seed: int) -> None:
        self.chance, self._moods = random.Random(seed), random.Random(seed + 1)
        self.verdict = Verdict(allowed=concurrency)
        self.receiver = Receiver(answer=self._answer)
        self._running, self._concurrency = running, concurrency
        self._secret = folder / "secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        self._started = self._verified = 0
        self._many = workers
        self.workers: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        self.workers = [self._start() for _ in range(self._many)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1  # each worker posts to a path of its own, so that the receiver can tell them apart
        to = f"{self.receiver.url}/{self._started}"
        return self._running.start(
            "push", NAME, "--to", to, "--secret-file", str(self._secret), "--allow-private", "--timeout", "1",
            "--concurrency", str(self._concurrency), "--answer-within", WITHIN, "--retry", ",".join(["50ms"] * 100),
            "--log-level", "warning",
        )  # fmt: skip

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        task = message.told["task"]
        verdict, mood = self.verdict, self._moods.random()
        verdict.messages += 1
        verdict.unsigned += not message.is_signed
        verdict.ids.setdefault(task, set()).add(message.headers["webhook-id"])
        if mood < 0.85:
            await asyncio.sleep(self._moods.random() * 0.004)
            verdict.taken[task] += 1
            await says(OK)(message, writer)
            return
        what = self._moods.choice([name for name in FAULTS if name not in RARE or mood < 0.87])
        verdict.faults[what] += 1
        does, is_taken = FAULTS[what]
        verdict.taken.update([task] if is_taken else [])
        await does(message, writer)

    def ask_node(self, *, least: int = 0) -> None:
        """Have node verify what came since the last time, if it is as much as this; old signatures are refused."""
        new = self.receiver.messages[self._verified :]
        if node() is None or len(new) < least:
            return
        accepts, refuses = self.verdict.by_node or (0, 0)
        more = verified_by_node(new)
        self.verdict.by_node = accepts + more[0], refuses + more[1]
        self._verified += len(new)

    def kill(self, queue: Queue) -> None:
        at = self.chance.randrange(len(self.workers))
        self.verdict.held += queue.stats().in_progress > 0
        self.workers[at].kill()
        self.workers[at].wait()
        self.verdict.kills += 1
        self.workers[at] = self._start()


def trial(
    folder: Path, *, tasks: int = 10_000, workers: int = 3, concurrency: int = 8, every: float = 2.0, seed: int = 0,
    patience: float = 300.0,
    most_kills: int = 1000,
) -> Verdict:  # fmt: skip
    """Push tasks until all of them have ended, and judge; after `most_kills` no worker is killed any more."""
    with ExitStack() as ends:
        server = ends.enter_context(EmbeddedServer(binary=valkey()))
        running = ends.enter_context(processes(server.url, folder))
        queue = ends.enter_context(Queue(NAME, server.url, deadline=20, max_crashes=1000))
        storm = Storm(running, folder, workers, concurrency, seed)
        ids = [f"https://{i}.example/ü" for i in range(tasks)]
        queue.put([Task(id, {"n": i}) for i, id in enumerate(ids)])
        ends.enter_context(receiving(storm.receiver))
        storm.begin()
        until, kill_at = time.monotonic() + patience, time.monotonic() + every
        wait_until(lambda: storm.receiver.messages, 30)
        while not is_over(queue) and time.monotonic() < until:
            if time.monotonic() >= kill_at and storm.verdict.kills < most_kills:
                storm.kill(queue)
                kill_at = time.monotonic() + storm.chance.uniform(0.5, 1.5) * every
            storm.ask_node(least=PORTION)
            time.sleep(0.02)
        for worker in storm.workers:
            assert worker.poll() is None, f"a worker has ended: {running.log(worker)}"
        verdict = storm.verdict
        verdict.tasks, verdict.done = tasks, queue.states(ids).counts().get("done", 0)
        verdict.undelivered = [id for id in ids if not verdict.taken[id]]
        verdict.most = max(storm.receiver.most.values(), default=0)
        storm.ask_node()
        return verdict


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="timeoutq-pushes-") as folder:
        verdict = trial(
            Path(folder), tasks=given.tasks, workers=given.workers, concurrency=given.concurrency, every=given.every,
            seed=given.seed,
        )  # fmt: skip
    print(f"seed {given.seed}: {verdict.line()}")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
