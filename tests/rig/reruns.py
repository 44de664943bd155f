"""Puts with rerun: after the last one of an id, a run of it begins, with the newest payload, and attempts count anew.

`walk` plays random steps with one queue, on a clock of its own; `calls` has worker processes run the calls of an app,
while callers put newer and newer arguments of the same ids. `tests/functions/test_calls_under_load.py` runs both for a
moment; the long form is

    python -m tests.rig.reruns --steps 20000 --calls 20000

which prints what was done, and ends with an error at the first run that is missing, old, or counted on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from tests.rig.processes import processes
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import Lease, LeaseLost, Task
from timeoutq.functions import App, Context
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending

LEASE = 10.0


@dataclass(slots=True)
class Wanted:
    """What is known of one id."""

    newest: int = 0
    runs: int = 0
    """The payload of its run."""
    owed: bool = False
    """Whether a run must still begin."""
    after: bool = False
    """Whether a put with rerun has come during the run."""
    anew: bool = False
    """Whether the next run is the first of a clean record."""


@dataclass(slots=True)
class Walk:
    """A walk, and what it has done."""

    queue: FakeQueue
    chance: random.Random
    wanted: dict[str, Wanted] = field(default_factory=dict[str, Wanted])
    held: list[Lease] = field(default_factory=list[Lease])
    number: int = 0
    reruns: int = 0
    """Runs that began because of a mark."""
    done: dict[str, int] = field(default_factory=dict[str, int])

    def step(self) -> None:
        """Make one random step."""
        steps = {"rerun": 8, "put": 2, "claim": 8, "ack": 4, "bare": 3, "fail": 3, "give_up": 1, "release": 1}
        steps |= {"again": 1, "pass_time": 1, "lose": 1, "retry": 1, "forget": 1, "cancel": 1}
        name = self.chance.choices(list(steps), list(steps.values()))[0]
        self.done[name] = self.done.get(name, 0) + 1
        getattr(self, name)()

    def drain(self) -> None:
        """End all that is there, and see that nothing is owed."""
        for _ in range(1000):
            self.pass_time()
            self.claim()
            while self.held:
                self.ack()
            if all(not one.owed for one in self.wanted.values()) and self.queue.drained():
                return
        owed = [task for task, one in self.wanted.items() if one.owed]
        raise AssertionError(f"no run of {owed} begins")

    # ---- puts

    def _one(self) -> tuple[str, Wanted]:
        task = f"t{self.chance.randrange(8)}"
        return task, self.wanted.setdefault(task, Wanted())

    def rerun(self) -> None:
        names = [self._one()[0] for _ in range(self.chance.choice((1, 1, 1, 2, 9)))]
        pairs: list[tuple[str, int]] = []
        for task in names:
            self.number += 1
            pairs.append((task, self.number))
        answers = self.queue.put([Task(task, number) for task, number in pairs], rerun=True)
        for (task, number), answer in zip(pairs, answers, strict=True):
            one = self.wanted[task]
            if answer == "failed":
                continue
            one.newest, one.owed = max(one.newest, number), True
            one.after = one.after or answer == "rerun"
            one.anew = one.anew or answer == "added"

    def put(self) -> None:
        task, one = self._one()
        self.number += 1
        if self.queue.put({task: self.number})[0] == "added":
            one.newest, one.owed, one.anew = self.number, True, True

    # ---- runs begin, and end

    def claim(self) -> None:
        for lease in self.queue.claim(self.chance.randrange(1, 4)):
            one = self.wanted[lease.task]
            assert lease.payload == one.newest, f"{lease} runs, and {one.newest} was put last"
            if one.anew:
                assert (lease.attempt, lease.crashes) == (1, 0), f"{lease} counts on"
            one.owed, one.anew, one.runs = False, False, one.newest
            self.held.append(lease)

    def _end(self, how: Any, *, clean: bool = True) -> None:
        if not self.held:
            return
        lease = self.held.pop(self.chance.randrange(len(self.held)))
        one = self.wanted[lease.task]
        try:
            how(lease)
        except LeaseLost:
            return
        if one.after and clean:
            assert self.queue.inspect(lease.task).state in ("todos",), f"{lease.task} is not ready again"
            one.anew, self.reruns = True, self.reruns + 1
        if one.after:
            assert one.owed
        one.after = False

    def ack(self) -> None:
        self._end(self.queue.ack)

    def bare(self) -> None:
        ops = self.queue.operations

        def end(lease: Lease) -> None:
            ((code,),) = [self.queue.run(sending.answer(self.queue.talk, call)) for call in ops.ack([lease], bare=[0])]
            if code == "lost":
                raise LeaseLost("lost", task=lease.task)

        self._end(end)

    def again(self) -> None:
        self._end(lambda lease: self.queue.ack(lease, again_in=5))

    def fail(self) -> None:
        self._end(lambda lease: self.queue.fail(lease, "no", retry_in=1))

    def give_up(self) -> None:
        self._end(lambda lease: self.queue.fail(lease, "no", give_up=True))

    def release(self) -> None:
        self._end(self.queue.release, clean=False)

    def lose(self) -> None:
        """Let all leases run out."""
        self.queue.clock.advance(LEASE + 1)
        self.queue.requeue_expired()
        self.held.clear()
        for task, one in self.wanted.items():
            assert not one.after or self.queue.inspect(task).state == "todos", f"{task} has crashed too often"
            one.after = False

    # ---- the rest

    def pass_time(self) -> None:
        self.queue.clock.advance(0.6)
        self.queue.promote_due()

    def retry(self) -> None:
        tasks = [task for task in self.wanted if self.queue.inspect(task).state == "failed"]
        self.queue.retry_failed(*tasks) if tasks else None
        for task in tasks:
            self.wanted[task].anew = True

    def forget(self) -> None:
        task, one = self._one()
        self.queue.forget(task)
        self.held = [lease for lease in self.held if lease.task != task]
        one.owed = one.after = one.anew = False

    def cancel(self) -> None:
        """Whoever cancels wants no run; a put with rerun that comes later wants one."""
        task, one = self._one()
        if self.queue.cancel(task)[0] == "cancelling":
            one.newest = one.runs  # what was put for the run after this one is cancelled, too
        one.owed = one.after = one.anew = False


def walk(steps: int, seed: int) -> Walk:
    """Play random steps, and end all that is there every 500 steps; raises AssertionError."""
    with fake_queue(timeout=LEASE, retry=[1] * 50, max_crashes=2) as queue:
        here = Walk(queue, random.Random(seed))
        for at in range(steps):
            here.step()
            if at % 500 == 499:
                here.drain()
        here.drain()
        queue.purge()
        return here


# ---- calls of functions, through workers

app = App("reruns")


@app.task(key="page:{x}", unique="forever", keep_result=0, retry=[0.01, 0.01])
async def page(ctx: Context[redis.asyncio.Redis], x: int, version: int) -> None:
    """Note that this run has begun, take a moment, and now and then fail."""
    await ctx.state.rpush("began", f"{x} {version} {ctx.attempt}")
    await asyncio.sleep(random.random() / 100)
    if random.random() < 0.1:
        raise ValueError("no")


@app.lifespan
async def life() -> Any:
    """Connect to the server."""
    async with redis.asyncio.Redis.from_url(os.environ["TIMEOUTQ_URL"]) as server:
        yield server


def calls(folder: Path, puts: int, *, workers: int = 2, seed: int = 0) -> tuple[int, int]:
    """Put newer and newer arguments of a few ids while workers run them; give how many runs began, and reruns.

    Raises AssertionError if no run with the newest arguments has begun.
    """
    chance, newest = random.Random(seed), dict[int, int]()
    with EmbeddedServer(binary=valkey()) as server, processes(server.url, folder) as running:
        here = App("reruns", url=server.url)
        put = here.task(key="page:{x}", unique="forever", keep_result=0, name="page")(_page)
        queue = here.sender.queue("reruns")
        for _ in range(workers):
            running.start("worker", "--app", "tests.rig.reruns:app", "--no-supervise", "--concurrency", "4")
        put.delay(-1, 0)
        newest[-1] = 0
        raw = redis.Redis.from_url(server.url)
        wait_until(lambda: raw.llen("began"), 60)
        reruns = 0
        for version in range(1, puts + 1):
            x = chance.randrange(10)
            newest[x] = version
            answer = put.options(rerun=True).delay(x, version).answer
            assert answer != "failed", "its retries are not over"
            reruns += answer == "rerun"
        wait_until(queue.drained, 60)
        began = [tuple(map(int, line.split())) for line in raw.lrange("began", 0, -1)]
        last = {x: version for x, version, _ in began}
        assert last == newest, f"the last runs are {last}, and the last puts {newest}"
        firsts: dict[tuple[int, int], int] = {}
        for x, version, attempt in began:
            firsts.setdefault((x, version), attempt)
        here.close()
        return len(began), reruns


async def _page(x: int, version: int) -> None: ...


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, walk, and let workers run calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args(words)
    found = walk(given.steps, given.seed)
    print(f"seed {given.seed}: {given.steps:,} steps {found.done}, {found.reruns:,} tasks were ready again at once")
    with tempfile.TemporaryDirectory(prefix="timeoutq-reruns-") as folder:
        began, reruns = calls(Path(folder), given.calls, seed=given.seed)
    print(f"{given.calls:,} calls put, {reruns:,} of them during a run: {began:,} runs began, the last ones the newest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
