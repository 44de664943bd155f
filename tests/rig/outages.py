"""Outages of the server, for each kind of worker: how long it takes after the server's return until work goes on.

python -m tests.rig.outages [--seconds 0.2 3 60] [--faults restart stop] [--kinds weights app] [--loads idle]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rig.handlers import append
from tests.rig.processes import Processes, processes
from tests.rig.replication import Pair, raw
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.client.shards import ShardedQueue
from timeoutq.functions import App
from timeoutq.server.embedded import EmbeddedServer

SOON = 5.0
"""Seconds after the server's return within which work goes on."""
LONGEST = 60.0
"""Seconds after which a worker counts as one that never works again."""
FEW, MANY = 10, 6_000
"""How many tasks each queue gets after an outage while the worker is idle, and before it while the worker is loaded."""
SOME = 20
"""How many handlers of a queue that begin show that work goes on: more than there were tasks in the worker before."""
WORK = "0.02"


def shop(url: str | None = None) -> App:
    """Make an app with two queues that have weights, and a function for each, which works as `work` does."""
    made = App("high", queues={"high": 3, "low": 1}, url=url)
    for name in made.queues.names:
        made.task(name=name, queue=name)(_function(name))
    return made


def _function(name: str) -> Callable[[int], Coroutine[object, object, None]]:
    async def work(number: int) -> None:
        append("start", f"{name}-{number}")
        await asyncio.sleep(float(os.environ["WORK"]))

    return work


app = shop()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of worker: the words behind `timeoutq worker`, and its queues."""

    words: tuple[str, ...]
    queues: tuple[str, ...]
    shards: int = 0
    calls: bool = False


HANDLER = "tests.rig.handlers:work"
KINDS: Mapping[str, Kind] = {
    "one": Kind(("high", HANDLER), ("high",)),
    "strict": Kind(("high", "low", HANDLER), ("high", "low")),
    "weights": Kind(("high=3", "low=1", HANDLER), ("high", "low")),
    "shards": Kind(("high", HANDLER), ("high",), shards=3),
    "app": Kind(("--app", "tests.rig.outages:app"), ("high", "low"), calls=True),
}
FAULTS = ("restart", "stop", "pause", "failover")
LOADS = ("idle", "loaded")


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    fault: str
    seconds: float
    load: str


class Scene:
    def __init__(self, case: Case, server: EmbeddedServer, pair: Pair | None, running: Processes) -> None:
        self.case, self.kind = case, KINDS[case.kind]
        self._server, self._pair, self._running = server, pair, running
        self.worker = running.start(
            "worker", *self.kind.words, "--no-supervise", "-c", "4", WORK=WORK if case.load == "loaded" else "0"
        )

    @property
    def server(self) -> EmbeddedServer:
        return self._server if self._pair is None else self._pair.primary

    @property
    def log(self) -> str:
        return self._running.log(self.worker)

    def put(self, start: int, tasks: int) -> None:
        url = f"redis://127.0.0.1:{self.server.port}/0"
        for name in self.kind.queues:
            ids = [f"{name}-{number}" for number in range(start, start + tasks)]
            if self.kind.shards:
                with ShardedQueue(name, url, shards=self.kind.shards) as divided:
                    divided.put(ids)
            elif self.kind.calls:
                caller = shop(url)
                caller.put([caller.functions[name].call(number) for number in range(tasks)])
                caller.close()
            else:
                with Queue(name, url) as queue:
                    queue.put(ids)

    @property
    def begun(self) -> Counter[str]:
        said = self._running.history.read_text() if self._running.history.exists() else ""
        return Counter(line.split()[1].partition("-")[0] for line in said.splitlines() if line.startswith("start "))

    def have_begun(self, tasks: Mapping[str, int]) -> bool:
        begun = self.begun
        return all(begun[name] >= number for name, number in tasks.items())

    def each(self, number: int) -> dict[str, int]:
        """Give this number for each queue that has its turn: under load, a strict order leaves the second one alone."""
        alone = self.case.kind == "strict" and self.case.load == "loaded"
        return dict.fromkeys(self.kind.queues[: 1 if alone else None], number)

    def settle(self) -> None:
        if self.case.load == "loaded":
            self.put(0, MANY)
            wait_until(lambda: self.have_begun(self.each(SOME)), 60)
        else:
            self.put(0, 1)
            wait_until(lambda: self.have_begun(self.each(1)) and self.rests(), 60)

    def more(self) -> dict[str, int]:
        """Give how many handlers of each queue must have begun when work goes on; an idle worker is given the tasks."""
        begun = self.begun
        if self.case.load == "idle":
            self.put(1, FEW)
        return {
            name: begun[name] + number for name, number in self.each(FEW if self.case.load == "idle" else SOME).items()
        }

    def rests(self) -> bool:
        """Say whether the worker waits on the bell of each queue."""
        with raw(self.server) as client:
            return int(client.info("clients")["blocked_clients"]) >= len(self.kind.queues)

    # ---- the outage

    def go_away(self) -> None:
        match self.case.fault:
            case "restart" | "failover":
                self.server.kill()
            case "stop":
                os.kill(self.server.pid or 0, signal.SIGSTOP)
            case _:
                with raw(self.server) as client:
                    client.execute_command("CLIENT", "PAUSE", round(self.case.seconds * 1000), "ALL")

    def come_back(self) -> None:
        match self.case.fault:
            case "restart":
                self.server.start()
            case "failover":
                assert self._pair is not None
                self._pair.promote()
            case "stop":
                os.kill(self.server.pid or 0, signal.SIGCONT)
            case _:
                pass  # the pause ends by itself


@contextmanager
def scene(case: Case, folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        pair = stack.enter_context(Pair()) if case.fault == "failover" else None
        server = EmbeddedServer(folder / "data") if pair is None else pair.primary
        if pair is None:
            stack.enter_context(server)
        url = server.url if pair is None else pair.url
        if KINDS[case.kind].shards:
            with ShardedQueue("high", server.url, shards=KINDS[case.kind].shards) as queue:
                queue.put("made")
        running = stack.enter_context(processes(url, folder))
        yield Scene(case, server, pair, running)


def seconds_until_work(case: Case, folder: Path) -> float:
    """Run an outage; give the seconds from the server's return until work goes on in each queue that has its turn."""
    with scene(case, folder) as on:
        on.settle()
        on.go_away()
        time.sleep(case.seconds)  # the outage lasts so long
        on.come_back()
        back = time.monotonic()
        wanted = on.more()
        try:
            wait_until(lambda: on.have_begun(wanted), LONGEST)
        except AssertionError:
            return float("inf")
        return time.monotonic() - back


# ---- the command


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.2, 3.0, 60.0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--jobs", type=int, default=6, help="how many cases run at once (6): they mostly wait")
    given = parser.parse_args(words)
    cases = [
        Case(kind, fault, seconds, load)
        for seconds, fault, kind, load in itertools.product(given.seconds, given.faults, given.kinds, given.loads)
    ]
    longest: dict[tuple[str, float], float] = {}
    with ThreadPoolExecutor(given.jobs) as pool:
        for case, took in zip(cases, pool.map(_run, cases), strict=True):
            said = "never" if took == float("inf") else f"{took:.2f} s"
            print(f"{case.kind:8} {case.fault:8} {case.seconds:4g} s  {case.load:6}  {said}", flush=True)
            at = (case.kind, case.seconds)
            longest[at] = max(longest.get(at, 0.0), took)
    print("\nthe longest of each kind, after outages of " + ", ".join(f"{seconds:g} s" for seconds in given.seconds))
    for kind in given.kinds:
        print(f"{kind:8} " + ", ".join(f"{longest[kind, seconds]:.2f} s" for seconds in given.seconds))
    return 1 if max(longest.values()) > SOON else 0


def _run(case: Case) -> float:
    with tempfile.TemporaryDirectory(prefix="timeoutq-outage-", ignore_cleanup_errors=True) as folder:
        return seconds_until_work(case, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
