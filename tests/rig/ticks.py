"""Schedules under load: cleaners are killed, primaries fail over, clocks step, and each tick must be put once.

python -m tests.rig.ticks --schedulers 8 --schedules 200 --for 60s --kill --failovers 3 --clock-steps [--json]
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
from tests.rig.replication import Pair
from tests.rig.servers import valkey, wrapped
from tests.rig.shims import Clock
from tests.rig.waiting import seconds_of, wait_until
from timeoutq import NotReplicated, Queue, Schedule, ScheduleInfo, State, Unavailable

NAME = "ticks"
STEPS = [7.0, -5.0, 40.0, -30.0, 0.0]
"""By how many seconds the clock is off, one step after the other, from the real time."""


@dataclass(slots=True)
class Verdict:
    ticks: int = 0
    missing: int = 0
    twice: int = 0
    kills: int = 0
    failovers: int = 0
    steps: int = 0
    by: int = 0
    """How many cleaners were started."""

    @property
    def good(self) -> bool:
        return self.ticks > 0 and not self.missing and not self.twice

    def line(self) -> str:
        return (
            f"{self.ticks:,} ticks, {self.missing} missing, {self.twice} twice; {self.by} cleaners, {self.kills} "
            f"killed with -9, {self.failovers} failovers, {self.steps} steps of the clock"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    schedulers: int = 8
    schedules: int = 200
    seconds: float = 60.0
    kill: bool = False
    failovers: int = 0
    clock_steps: bool = False
    durable: int = 1
    planted: str = ""
    """Python that each cleaner runs first: a bug, to see that the rig finds it."""


def trial(folder: Path, how: Trial, seed: int | None = None) -> Verdict:
    chance, verdict = random.Random(seed), Verdict()
    with ExitStack() as ends:
        clock, binary = None, None
        if how.clock_steps:
            clock = Clock(folder)
            ends.callback(clock.close)
            binary = str(wrapped(valkey(), clock.environment, folder))
        pair = ends.enter_context(Pair(binary))
        running = ends.enter_context(processes(pair.url, folder))
        queue = ends.enter_context(Queue(NAME, pair.url, deadline=20, durable=how.durable))
        wanted = [
            Schedule(f"s{n}", every=1 + n % 5, overlap=True, missed="all") for n in range(how.schedules)
        ]  # a cleaner that is late by minutes still puts them all
        first = {one.name: _set(queue, one) for one in wanted}
        cleaners = [_start(running, how, verdict) for _ in range(how.schedulers)]
        began = time.monotonic()
        failovers = [began + how.seconds * (n + 1) / (how.failovers + 1) for n in range(how.failovers)]
        steps = [began + how.seconds * (n + 0.5) / len(STEPS) for n in range(len(STEPS))] if clock else []
        kill_at = began
        while (now := time.monotonic()) < began + how.seconds:
            time.sleep(0.05)
            if how.kill and now >= kill_at:
                kill_at = now + chance.uniform(0.2, 2.0)
                at = chance.randrange(len(cleaners))
                cleaners[at].kill()
                verdict.kills += 1
                cleaners[at] = _start(running, how, verdict)
            if failovers and now >= failovers[0]:
                del failovers[0]
                pair.fail_over(stop=chance.random() < 0.5)
                time.sleep(chance.uniform(0, 1))
                pair.rejoin()
                verdict.failovers += 1
            if clock and steps and now >= steps[0]:
                del steps[0]
                clock.step(STEPS[verdict.steps])
                verdict.steps += 1
        for cleaner in cleaners:
            assert cleaner.poll() is None, f"a cleaner has ended: {running.log(cleaner)}"
        _caught_up(queue)
        for cleaner in cleaners:
            cleaner.kill()
        _judge(queue, first, verdict)
    return verdict


def _set(queue: Queue, one: Schedule) -> ScheduleInfo:
    return queue.schedules.set(one.name, every=one.every, overlap=one.overlap, missed=one.missed)


def _start(running: Processes, how: Trial, verdict: Verdict) -> subprocess.Popen[bytes]:
    verdict.by += 1
    if how.planted:
        return running.start_code(f"{how.planted}\nfrom timeoutq.cli import main\nmain()", "cleaner", NAME)
    return running.start("cleaner", NAME)


def _infos(queue: Queue) -> list[ScheduleInfo]:
    while True:
        try:
            return list(queue.schedules.each())
        except (Unavailable, NotReplicated):
            time.sleep(0.1)


def _caught_up(queue: Queue) -> None:
    def nothing_is_due() -> bool:
        now = queue.stats().now
        return all(info.next is not None and info.next > now - 0.5 for info in _infos(queue))

    wait_until(nothing_is_due, timeout=90)


def _judge(queue: Queue, first: dict[str, ScheduleInfo], verdict: Verdict) -> None:
    put = {entry.task for entry in queue.each(State.TODOS)}
    for info in {info.name: info for info in _infos(queue)}.values():
        assert info.last is not None, f"{info.name} has never ticked"
        begin, end, step = _ms(first[info.name].next), _ms(info.last), _ms(info.timing["every"])
        wanted = {f"{info.name}@{at}" for at in range(begin, end + 1, step)}
        mine = {task for task in put if task.partition("@")[0] == info.name}
        verdict.ticks += len(wanted)
        verdict.missing += len(wanted - mine)
        # a tick that nobody wanted is one too many, as one that found its task there
        verdict.twice += info.skipped + len(mine - wanted)
        verdict.twice += max(0, info.put - len(mine))


def _ms(at: float | None) -> int:
    return round((at or 0) * 1000)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.ticks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedulers", type=int, default=8)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=60.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--failovers", type=int, default=0)
    parser.add_argument("--clock-steps", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    given: dict[str, Any] = vars(parser.parse_args(words))
    seed, as_json = given.pop("seed"), given.pop("json")
    with tempfile.TemporaryDirectory(prefix="timeoutq-ticks-") as folder:
        verdict = trial(Path(folder), Trial(**given), seed)
    print(json.dumps(asdict(verdict)) if as_json else verdict.line())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
