"""A storm over calls: workers are killed with -9 while they run calls with results, batches, cancels and schedules.

`tests/functions/test_calls_under_load.py` runs it for some seconds; the long form is

    python -m tests.rig.call_storm --for 60 --workers 4 --every 0.7

which prints a verdict, and ends with 1 unless each call is accounted for: done with its own result, failed for its own
reason, or cancelled by who has cancelled it; each callback of a batch and each tick of the schedules was put once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from tests.rig.processes import Processes, processes
from tests.rig.servers import valkey
from tests.rig.waiting import is_over, wait_until
from timeoutq import Queue
from timeoutq.functions import App, Batched, CallCancelled, CallFailed, CallGone, Context, Result
from timeoutq.server.embedded import EmbeddedServer

NAME, BY = "call-storm", "the storm"
PORTION, MEMBERS, SCHEDULES = 10, 12, 5

app = App(NAME)


@app.task(keep_result=3600)
async def square(n: int, seconds: float) -> int:
    """Take a moment, and return what only this call returns."""
    await asyncio.sleep(seconds)
    return n * n + 7


@app.task(keep_result=3600)
def thread(n: int, seconds: float) -> str:
    """Do the same in a thread."""
    time.sleep(seconds)
    return f"thread {n}"


@app.task(retry=[0.01, 0.01])
async def breaks(n: int) -> int:
    """Fail for good."""
    raise ValueError(f"no {n}")


@app.task(keep_result=3600)
async def collect(ctx: Context[redis.asyncio.Redis], b: int) -> list[int]:
    """Give the results of the calls of a batch, the callback of which this is."""
    assert ctx.batch is not None
    await ctx.state.rpush("callbacks", f"{b} {ctx.task}")
    return sorted(await ctx.batch.aresults(int, partial=True))


@app.task(keep_result=3600)
async def tick(ctx: Context[redis.asyncio.Redis]) -> None:
    """Note which tick runs."""
    await ctx.state.sadd("ticks", ctx.task)


@app.lifespan
async def life() -> AsyncIterator[redis.asyncio.Redis]:
    """Connect to the server."""
    async with redis.asyncio.Redis.from_url(os.environ["TIMEOUTQ_URL"]) as server:
        yield server


@dataclass(slots=True)
class Verdict:
    """What became of the calls."""

    calls: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: list[str] = field(default_factory=list[str])
    """Calls of which nothing is known."""
    wrong: list[str] = field(default_factory=list[str])
    """Calls that have ended as they should not, or with what belongs to another call."""
    batches: int = 0
    callbacks: int = 0
    ticks: int = 0
    due: int = 0
    """How many ticks there had to be."""
    kills: int = 0
    held: int = 0
    """Kills that met calls in progress."""
    crashes: int = 0

    @property
    def good(self) -> bool:
        """Whether each call is accounted for."""
        ended = self.done + self.failed + self.cancelled
        return not self.lost and not self.wrong and ended == self.calls > 0 and self.callbacks == self.batches > 0

    def line(self) -> str:
        """Say it in a few lines."""
        return (
            f"{self.calls:,} calls: {self.done:,} done, {self.failed:,} failed, {self.cancelled:,} cancelled, "
            f"{len(self.lost)} lost, {len(self.wrong)} wrong; {self.callbacks} callbacks of {self.batches} batches, "
            f"{self.ticks} ticks; {self.kills} workers killed with -9, {self.held} of them with calls in progress, "
            f"{self.crashes} leases ran out\n" + "\n".join([*self.lost, *self.wrong][:10])
        )


@dataclass(frozen=True, slots=True)
class Put:
    """A call that was put, and what it returns."""

    result: Result[Any]
    value: object
    """None: it fails, for the reason in `reason`."""
    reason: str = ""


class Storm:
    """The caller: it puts calls, cancels some, kills workers, and judges in the end."""

    def __init__(self, url: str, running: Processes, workers: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.verdict = Verdict()
        self.app = App(NAME, url=url)
        self.put: list[Put] = []
        self.batches: list[tuple[int, Batched[Any], list[int]]] = []
        self.cancelled: set[str] = set()
        self._running = running
        self.functions = {name: function.definition.function for name, function in app.functions.items()}
        self.square: Any = self.app.task(keep_result=3600)(self.functions["square"])
        self.thread: Any = self.app.task(keep_result=3600)(self.functions["thread"])
        self.breaks: Any = self.app.task(retry=[0.01, 0.01])(self.functions["breaks"])
        self.collect: Any = self.app.task(keep_result=3600)(self.functions["collect"])
        self.tick: Any = self.app.task(keep_result=3600)(self.functions["tick"])
        self.workers = [self._start() for _ in range(workers)]
        self._n = 0
        self.ended: dict[str, str] = {}

    def _start(self) -> subprocess.Popen[bytes]:
        words = ("worker", "--app", "tests.rig.call_storm:app", "--no-supervise", "--concurrency", "8")
        return self._running.start(*words, "--timeout", "2")

    def _number(self) -> int:
        self._n += 1
        return self._n

    def step(self) -> None:
        """Put a portion of calls, sometimes a batch, and cancel some."""
        some = [self._number() for _ in range(PORTION)]
        calls: list[tuple[Any, object, str]] = []
        for n in some:
            seconds = self.chance.choice((0.0, 0.01, 0.05, 0.5))
            calls.append((self.square.call(n, seconds), n * n + 7, ""))
            if n % 5 == 0:
                calls.append((self.thread.call(n, seconds), f"thread {n}", ""))
            if n % 5 == 1:
                calls.append((self.breaks.call(n), None, f"no {n}"))
        results = self.app.put([call for call, *_ in calls])
        self.put += [Put(result, value, reason) for result, (_, value, reason) in zip(results, calls, strict=True)]
        if self.chance.random() < 0.3:
            b, members = len(self.batches), [self._number() for _ in range(MEMBERS)]
            name, then = f"batch{b}", self.collect.call(b)
            batch = self.app.batch([self.square.call(n, 0.01) for n in members], then=then, name=name)
            self.batches.append((b, batch, members))
            self.put += [Put(result, n * n + 7) for result, n in zip(batch.calls, members, strict=True)]
        for one in self.chance.sample(self.put[-60:], 3):
            if one.result.cancel(by=BY) in ("cancelled", "cancelling"):
                self.cancelled.add(one.result.id)

    def kill(self, queue: Queue) -> None:
        """Kill a worker, and start another one."""
        at = self.chance.randrange(len(self.workers))
        wait_until(lambda: queue.stats().in_progress, 30)
        self.workers[at].kill()
        self.verdict.held += queue.stats().in_progress > 0
        self.verdict.kills += 1
        self.workers[at] = self._start()

    # ---- judging

    def judge(self, queue: Queue, raw: Any) -> None:
        """Ask for each call how it has ended."""
        verdict = self.verdict
        verdict.calls = len(self.put)
        for one in self.put:
            self._judge(one)
        began = [line.decode().split(" ") for line in raw.lrange("callbacks", 0, -1)]
        for b, batch, members in self.batches:
            verdict.batches += 1
            wanted = sorted(
                n * n + 7 for n, one in zip(members, batch.calls, strict=True) if self.ended.get(one.id) == "done"
            )
            try:
                found = batch.then.wait(5)
            except (CallFailed, CallGone, TimeoutError) as error:
                verdict.wrong.append(f"callback {b}: {error}")
                continue
            ids = {id for name, id in began if name == str(b)}
            verdict.callbacks += found == wanted and ids == {batch.then.id}
            if found != wanted or ids != {batch.then.id}:
                verdict.wrong.append(f"callback {b}: {found} for {wanted}, as {ids}")
        infos = list(queue.schedules.list())
        verdict.ticks = sum(info.put for info in infos)
        ran = raw.scard("ticks")
        if not ran == verdict.ticks == verdict.due:
            verdict.wrong.append(f"{verdict.due} ticks were due, {verdict.ticks} were put, and {ran} have run")
        stats = queue.stats()
        verdict.crashes = stats.counters.get("expired", 0)
        puts = verdict.calls + verdict.batches + verdict.ticks
        if stats.counters["put"] != puts:
            verdict.wrong.append(f"{stats.counters['put']} tasks were put for {puts} calls, callbacks and ticks")

    def _judge(self, one: Put) -> None:
        verdict, id = self.verdict, one.result.id
        how = "done"
        try:
            value = one.result.wait(5)
        except CallCancelled as error:
            how = "cancelled"
            if id not in self.cancelled or not error.message.endswith(BY):
                verdict.wrong.append(f"{id} was cancelled: {error}")
        except CallFailed as error:
            how = "failed"
            if (error.error, error.message) != ("ValueError", one.reason):
                verdict.wrong.append(f"{id} failed: {error}")
        except (CallGone, TimeoutError) as error:
            verdict.lost.append(f"{id}: {error}")
            return
        else:
            if value != one.value:
                verdict.wrong.append(f"{id} gave {value}, not {one.value}")
        self.ended[id] = how
        verdict.done += how == "done"
        verdict.failed += how == "failed"
        verdict.cancelled += how == "cancelled"


def trial(folder: Path, *, seconds: float = 60.0, workers: int = 4, every: float = 0.7, seed: int = 0) -> Verdict:
    """Let the storm rage for some seconds, wait until all is quiet, and judge."""
    with ExitStack() as ends:
        server = ends.enter_context(EmbeddedServer(binary=valkey()))
        running = ends.enter_context(processes(server.url, folder))
        queue = ends.enter_context(Queue(NAME, server.url, deadline=20, max_crashes=1000))
        queue.stats()
        storm = Storm(server.url, running, workers, seed)
        times = max(3, int(seconds / 2))
        for n in range(SCHEDULES):
            storm.app.schedules.set(f"tick{n}", storm.tick.call(), every=1, times=times, overlap=True, missed="all")
        until, kill_at = time.monotonic() + seconds, time.monotonic() + 2 * every
        while time.monotonic() < until:
            storm.step()
            if time.monotonic() >= kill_at:
                storm.kill(queue)
                kill_at = time.monotonic() + storm.chance.uniform(0.5, 1.5) * every
            while queue.stats().todos >= 300 and time.monotonic() < min(kill_at, until):
                time.sleep(0.01)
        wait_until(lambda: all(info.next is None for info in queue.schedules.list()), 60)
        wait_until(lambda: is_over(queue), 90)
        for worker in storm.workers:
            assert worker.poll() is None, f"a worker has ended: {running.log(worker)}"
        storm.verdict.due = SCHEDULES * times
        storm.judge(queue, ends.enter_context(redis.Redis.from_url(server.url)))
        storm.app.close()
        return storm.verdict


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run the storm, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", type=float, default=60.0, dest="seconds")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=0.7, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="timeoutq-call-storm-") as folder:
        verdict = trial(Path(folder), seconds=given.seconds, workers=given.workers, every=given.every, seed=given.seed)
    print(f"seed {given.seed}: {verdict.line()}")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
