"""Queues on a real cluster under load, with faults in turn, and a verdict on what was promised. By hand:

python -m tests.rig.cluster --faults manual,kill,move --for 5m --durable 1 [--lag 0.3]
python -m tests.rig.cluster --scale 1,2,3 --slice 20       how much more do more primaries do? (`scale.py`)
python -m tests.rig.cluster --grow --for 60s               three primaries, then four, then three (`growth.py`)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from pathlib import Path
from types import FrameType
from typing import Any

import redis

from tests.rig.growth import Growth, grow
from tests.rig.history import Event, read
from tests.rig.nodes import QUICK, Cluster
from tests.rig.quota import NoQuota
from tests.rig.scale import Scale, scale
from tests.rig.servers import REDIS, valkey
from tests.rig.storm import BUGS, TICK, Nursery, Plan, Report, Round
from tests.rig.waiting import seconds_of
from timeoutq import Queue, Unavailable
from timeoutq.server.cluster import slot_of
from timeoutq.server.embedded_cluster import ClusterNode

KINDS = ("worker", "plain", "plain-async", "command", "threads", "plain-async", "worker", "plain", "command")
"""Who works on the queues: three on the first, the next three on the second, and so on."""

STRIKES = 0.05
"""How many processes of each queue are killed, a second."""

GAP = (0.5, 2.0)
"""How long the cluster is left alone between two faults, seconds."""

MOST_LAG = 0.8
"""If the replica stood still for longer, the other nodes would take it for failed, too."""

UNDONE = frozenset({"lost", "twice", "overlap", "uncaused", "stale", "unasked", "undone"})
"""The damage that a failover may do to a queue that is not durable."""

SHOWN = {
    "lost": "lost", "twice": "twice", "overlap": "overlaps", "uncaused": "handed out without a cause",
    "fence": "repeated or shrunken fences",
}  # fmt: skip
"""The violations that the table always shows, even 0 of them, and their names in the table."""

LATE = 2.0
"""How much longer than its deadline a call may take on a busy machine, seconds."""

DEADLINE = 5.0
"""How long a call may take, seconds: the default, which all clients use."""


@dataclass(slots=True)
class Fault:
    """A fault that was done, and when the cluster was whole again; CLOCK_MONOTONIC, ns."""

    kind: str
    at: int
    whole: int = 0


class Faults:
    def __init__(self, cluster: Cluster, wanted: argparse.Namespace, rng: random.Random) -> None:
        """Take the kinds of faults in turn."""
        self.cluster, self._lag, self._rng = cluster, wanted.lag, rng
        # Redis 7 moves slots key by key only
        moves = ["move by keys", "move whole"] if wanted.server == "valkey" else ["move by keys"]
        self.kinds = [kind for each in wanted.faults for kind in (moves if each == "move" else [each])]
        self._turn = cycle(self.kinds)
        self.done: list[Fault] = []

    def do_next(self, rounds: Mapping[str, Round]) -> None:
        """Do the next fault, and write it into the histories of the queues that it may disturb."""
        kind, name = next(self._turn), self._rng.choice(list(rounds))
        fault = Fault(kind, time.monotonic_ns())
        self.done.append(fault)
        home = self.cluster.primary_of(slot_of(name))
        (replica, *_) = self.cluster.replicas_of(home)
        disturbed = list(rounds)  # a cluster that lacks a primary refuses all commands
        if kind == "manual":
            disturbed = [each for each in rounds if self.cluster.primary_of(slot_of(each)) is home]
        elif kind != "kill":
            disturbed = [name]
        for each in disturbed:
            rounds[each].history.say("fault")
        if kind == "manual":
            self.cluster.fail_over(replica)
        elif kind == "kill":
            self._kill(home, replica)
        else:
            self._move(name, home, whole=kind == "move whole")
        fault.whole = time.monotonic_ns()
        for each in disturbed:
            rounds[each].history.say("whole")

    def _move(self, name: str, home: ClusterNode, *, whole: bool) -> None:
        slot = slot_of(name)
        target = self._rng.choice([node for node in self.cluster.primary_nodes() if node is not home])
        if whole:
            self.cluster.move(range(slot, slot + 1), target)
        else:
            self.cluster.move_by_keys(slot, target)

    def _kill(self, home: ClusterNode, replica: ClusterNode) -> None:
        if self._lag:
            # stopping the replica is not enough: what was sent to it would wait in the kernel, and not be lost. So its
            # connection is cut, too, and a stopped replica cannot open another one
            os.kill(replica.pid or 0, signal.SIGSTOP)
            try:
                self.cluster.say(home, "CLIENT", "KILL", "TYPE", "replica")
                time.sleep(self._lag)
                home.kill()
            finally:
                os.kill(replica.pid or 0, signal.SIGCONT)
        else:
            home.kill()
        self.cluster.succeeded(replica)
        self.cluster.revive(home)


@dataclass(slots=True)
class Row:
    """The time after faults of one kind: from each such fault until the next fault."""

    events: int = 0
    accepted: int = 0
    """Tasks whose put was answered."""
    refused: int = 0
    longest_call: float = 0.0
    """Seconds."""
    whole_after: float = 0.0
    """The longest time until the cluster was whole again, seconds."""


@dataclass(slots=True)
class Outcome:
    wanted: argparse.Namespace
    total: Report
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    errors: dict[str, int] = field(default_factory=dict[str, int])
    drained_after: float = 0.0
    """Seconds from the end of the load until all queues were drained."""
    folder: str = ""

    @property
    def broken(self) -> dict[str, int]:
        excused = frozenset[str]() if self.wanted.durable else UNDONE
        return {kind: number for kind, number in self.total.kinds.items() if kind not in excused}

    @property
    def losses(self) -> int:
        """How many tasks were lost or done twice."""
        return sum(self.total.kinds.get(kind, 0) for kind in ("lost", "twice", "overlap"))

    def words(self) -> dict[str, Any]:
        total = self.total
        return {
            **{name: getattr(self.wanted, name) for name in ("seconds", "durable", "lag", "queues", "seed")},
            "faults": {name: asdict(row) for name, row in self.rows.items()},
            "totals": total.totals.words(), "leases": total.leases, "kills": total.kills, "causes": total.causes,
            "kinds": total.kinds, "broken": self.broken, "errors": self.errors, "drained_after": self.drained_after,
            "folder": self.folder, "violations": total.violations[:200],
        }  # fmt: skip

    def table(self) -> str:
        total, kinds = self.total, self.total.kinds
        causes = ", ".join(f"{number:,} {cause}" for cause, number in sorted(total.causes.items()))
        errors = ", ".join(f"{number:,} {name}" for name, number in sorted(self.errors.items()))
        lines = [
            f"{'fault':>14} {'events':>7} {'accepted':>9} {'refused':>8} {'longest call':>13} {'whole after':>12}",
            *(
                f"{name:>14} {row.events:>7} {row.accepted:>9,} {row.refused:>8,} {row.longest_call:>11.1f} s "
                f"{row.whole_after:>10.1f} s"
                for name, row in self.rows.items()
            ),
            f"durable {self.wanted.durable}, lag {self.wanted.lag:g} s, seed {self.wanted.seed}",
            f"{total.leases:,} leases, {total.kills:,} processes killed; handed out again: {causes or 'none'}",
            f"calls that ended in an error: {errors or 'none'}; drained {self.drained_after:.1f} s after the load",
            f"accepted {total.totals.acknowledged:,}; "
            + ", ".join(f"{name} {kinds.get(kind, 0):,}" for kind, name in SHOWN.items()),
            *(f"  {text}" for text in total.violations[:20]),
        ]
        if self.broken:
            lines.append(f"BROKEN: {self.broken}; histories and logs: {self.folder}")
        return "\n".join(lines)


class Trial:
    def __init__(self, wanted: argparse.Namespace, cluster: Cluster, nursery: Nursery, folder: Path) -> None:
        """Prepare; the cluster runs already, and the nursery was forked before it was started."""
        self.wanted, self.cluster, self.folder = wanted, cluster, folder
        self.rng = random.Random(wanted.seed)
        self.faults = Faults(cluster, wanted, self.rng)
        self.outcome = Outcome(wanted, Report(wanted.seed))
        self.rounds: dict[str, Round] = {}
        self.queues: dict[str, Queue] = {}
        for number, name in enumerate(self._names()):
            place = folder / name
            place.mkdir()
            plan = Plan(
                cluster.url, name, str(place), wanted.lease, yields=0.03, losses=0.0, ready=60, bug=wanted.bug,
                durable=wanted.durable,
            )  # fmt: skip
            kinds = [KINDS[(3 * number + i) % len(KINDS)] for i in range(3)]
            self.rounds[name] = Round(
                nursery, plan, self.rng.getrandbits(32), kinds=kinds, rate=STRIKES, shares={"kill": 1.0}
            )
            self.queues[name] = Queue(name, cluster.url, max_crashes=100_000, durable=wanted.durable)

    def _names(self) -> list[str]:
        # each primary has as many queues as the others
        found: defaultdict[int | None, list[str]] = defaultdict(list)
        wanted, primaries = self.wanted.queues, len(self.cluster.primary_nodes())
        for number in count(1):
            name = f"crawl-{number}"
            mine = found[self.cluster.primary_of(slot_of(name)).port]
            if len(mine) < -(-wanted // primaries):
                mine.append(name)
            if sum(map(len, found.values())) >= wanted:
                break
        return [name for names in found.values() for name in names][:wanted]

    def run(self) -> Outcome:
        began = time.monotonic()
        try:
            for name, one in self.rounds.items():
                self.queues[name].drained()
                one.begin()
            self._disturb(began + self.wanted.seconds)
            self._drain()
            self._judge()
        finally:
            for one in self.rounds.values():
                one.close()
            for queue in self.queues.values():
                queue.close()
        self.outcome.total.seconds = time.monotonic() - began
        return self.outcome

    # ---- faults

    def _disturb(self, until: float) -> None:
        self._tick_at = self._strike_at = time.monotonic()
        goes_on = self._go_on(GAP[1])
        while goes_on and (
            len(self.faults.done) < len(self.faults.kinds) if self.wanted.once else time.monotonic() < until
        ):
            try:
                self.faults.do_next(self.rounds)
            except (AssertionError, Unavailable, redis.RedisError) as error:
                kind = self.faults.done[-1].kind
                self.outcome.total.blame("stuck", f"after the fault {kind!r} the cluster is not whole again: {error!r}")
                return
            goes_on = self._go_on(self.rng.uniform(*GAP))

    def _go_on(self, least: float) -> bool:
        """Watch the processes for `least` seconds, and until each queue has acked a task; say whether all did."""
        began, waiting = time.monotonic(), {name: self._acked(name) for name in self.rounds}
        patience = DEADLINE + 3 * self.wanted.lease
        while waiting or time.monotonic() < began + least:
            for name, one in self.rounds.items():
                one.look()
                if name in waiting and self._acked(name) > waiting[name]:
                    del waiting[name]
            if time.monotonic() > began + patience and waiting:
                for name in waiting:
                    self.rounds[name].report.blame(
                        "stuck", f"{name}: nothing was acked for {patience:g} s after a fault"
                    )
                return False
            self._strike_and_tell()
            time.sleep(0.1)
        return True

    def _acked(self, name: str) -> int:
        return self.queues[name].stats().counters.get("acked", 0)

    def _strike_and_tell(self) -> None:
        now = time.monotonic()
        if now >= self._strike_at:
            self.rng.choice(list(self.rounds.values())).strike()
            self._strike_at = now + self.rng.expovariate(STRIKES * len(self.rounds))
        if now >= self._tick_at:
            self._tick_at = now + TICK
            acked = sum(self._acked(name) for name in self.rounds)
            kinds = Counter(fault.kind for fault in self.faults.done)
            faults = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
            _say(f"{acked:,} tasks are done; faults: {faults or 'none yet'}")

    # ---- the verdict

    def _drain(self) -> None:
        _say("the load ends")
        began = time.monotonic()
        for step in (Round.ask_to_end, Round.await_ends, Round.soothe):
            for one in self.rounds.values():
                step(one)
        for one in self.rounds.values():
            # a task that a bare client held comes back after its lease, which is twice as long as that of a worker
            one.drain(2 * self.wanted.lease + 3.0)
        self.outcome.drained_after = time.monotonic() - began

    def _judge(self) -> None:
        total = self.outcome.total
        self._count_faults()
        for name, one in self.rounds.items():
            one.judge(self.cluster.primary_of(slot_of(name)).url)
            one.report.violations[:] = [f"{name}: {text}" for text in one.report.violations]
            total.add(one.report)
            self._count_calls(read(Path(one.plan.folder) / "history"))
        for row in self.outcome.rows.values():
            if row.longest_call > DEADLINE + LATE:
                total.blame("slow", f"a call took {row.longest_call:.1f} s, its deadline was {DEADLINE:g} s")

    def _count_faults(self) -> None:
        rows = self.outcome.rows
        rows["none"] = Row()  # for what happened before the first fault
        for fault in self.faults.done:
            row = rows.setdefault(fault.kind, Row())
            row.events += 1
            if fault.whole:
                row.whole_after = max(row.whole_after, (fault.whole - fault.at) / 1e9)

    def _count_calls(self, events: Sequence[Event]) -> None:
        rows = self.outcome.rows
        upcoming = [(fault.at, rows[fault.kind]) for fault in reversed(self.faults.done)]
        row, errors = rows["none"], Counter(self.outcome.errors)
        told: set[str] = set()
        for event in events:
            while upcoming and upcoming[-1][0] <= event.at:
                row = upcoming.pop()[1]
            if event.what == "put_answered" and event.task not in told:
                told.add(event.task)
                row.accepted += 1
            elif event.what == "call":
                milliseconds, error = event.answer.split(" ", 1)
                row.longest_call = max(row.longest_call, int(milliseconds) / 1000)
                row.refused += bool(error)
                errors[error.partition(":")[0]] += bool(error)
        self.outcome.errors = {name: number for name, number in errors.items() if number}


def trial(wanted: argparse.Namespace) -> Outcome:
    """Start a cluster, and try it as the words of the command say. This process forks: it must have no thread."""
    folder: Path | None = wanted.folder
    with ExitStack() as stack:
        nursery = Nursery()
        stack.callback(nursery.close)
        signal.signal(signal.SIGTERM, _interrupted)  # so that the cluster ends, too; the children do not inherit this
        home = folder or Path(tempfile.mkdtemp(prefix="timeoutq-cluster-"))
        home.mkdir(parents=True, exist_ok=True)
        cluster = stack.enter_context(Cluster(3, 3, node_timeout_ms=QUICK, binary=_binary(wanted.server)))
        outcome = Trial(wanted, cluster, nursery, home).run()
        if folder is None and not outcome.broken:
            shutil.rmtree(home)
        else:
            outcome.folder = str(home)
            (home / "violations").write_text("\n".join([*outcome.total.violations, ""]), "utf-8")
    return outcome


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.cluster", description=__doc__)
    parser.add_argument("--faults", default="manual,kill,move", help="of manual, kill and move, with commas")
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=60.0, help="how long: 30s, 10m, 8h")
    parser.add_argument("--once", action="store_true", help="end when each fault was done once")
    parser.add_argument("--durable", type=int, default=0, metavar="N", help="how many replicas must confirm")
    parser.add_argument("--lag", type=float, default=0.0, metavar="S", help="a replica missed the last S seconds")
    parser.add_argument("--queues", type=int, default=6, metavar="N")
    parser.add_argument("--lease", type=float, default=2.0, help="the length of a worker's lease, seconds")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="a mistake that has to be found")
    parser.add_argument("--expect-losses", action="store_true", help="end with 1 if nothing was lost or done twice")
    parser.add_argument("--folder", type=Path, help="keep histories and logs here, whatever the verdict is")
    parser.add_argument("--scale", type=_numbers, metavar="N,N", help="no faults: compare so many primaries, 1 first")
    parser.add_argument("--grow", action="store_true", help="no faults: a primary joins under load, and leaves again")
    parser.add_argument("--slice", type=float, default=20.0, metavar="P", help="with these two: %% of a core of each")
    parser.add_argument("--rounds", type=int, default=9, help="with --scale: how often all are measured in turn")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    if given.scale or given.grow:
        return _without_faults(given)
    faults = tuple(given.faults.split(","))
    if set(faults) - {"manual", "kill", "move"}:
        parser.error("--faults takes manual, kill and move")
    if not 0 <= given.lag <= MOST_LAG:
        parser.error(f"--lag is {MOST_LAG:g} s at most: the nodes must not take the replica for gone")
    if given.lag and "kill" not in faults:
        parser.error("--lag is for --faults kill")
    given.seed = secrets.randbits(32) if given.seed is None else given.seed
    given.faults = faults
    try:
        outcome = trial(given)
    except KeyboardInterrupt:
        return 130
    sys.stdout.write((json.dumps(outcome.words()) if given.json else outcome.table()) + "\n")
    if given.expect_losses and not outcome.losses:
        _say("nothing was lost, and nothing done twice")
        return 1
    return 1 if outcome.broken else 0


def _without_faults(given: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupted)
    binary, whole = _binary(given.server), given.server == "valkey"  # Redis 7 moves slots key by key only
    found: Scale | Growth
    try:
        if given.grow:
            found = grow(given.seconds, given.slice, binary, whole=whole, say=_say)
        else:
            found = scale(given.scale, given.slice, binary, given.rounds, say=_say)
    except NoQuota as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(found.table() + "\n")
    return int(bool(found.broken))


def _numbers(text: str) -> list[int]:
    found = [int(word) for word in text.split(",")]
    if found[0] != 1 or min(found) < 1:
        raise argparse.ArgumentTypeError("the first number is 1, which the others are compared with")
    return found


def _binary(server: str) -> str:
    found = valkey() if server == "valkey" else REDIS
    assert found, "no redis-server on this machine: apt-get install redis-server"
    return found


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
