"""Cuts the power of a server under load, and counts what of the accepted tasks is gone."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis

from tests.rig.invariants import check
from tests.rig.servers import binary_of, wrapped
from tests.rig.shims import compiled
from tests.rig.waiting import is_gone, wait_until
from timeoutq import Lease, LeaseLost, Queue, TimeoutqError
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.doctor import durability
from timeoutq.watch.facts import gather

NAME = "power"
LEASE = 0.5
RUNNING = ("in_progress", "scheduled")


# ---- the disk


class NotWired(AssertionError):
    """The server does not run on this disk: nothing that is found out about it counts."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The loss of a cut."""

    bytes: int
    names: int
    """Files made, renamed or removed whose folder was not synced after."""


class Disk:
    def __init__(self, folder: Path, *, sync_us: int = 0, lies: bool = False) -> None:
        """Make one in an empty folder; a sync takes `sync_us` microseconds. One that `lies` does nothing."""
        self.data = folder / "data"
        self._account = folder / "account"
        self._sync_us = sync_us
        self._lies = lies
        for made in (self.data, self._account):
            made.mkdir()
        self.power_on()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(compiled("power")),
            "TIMEOUTQ_POWER": str(self._account),
            "TIMEOUTQ_SYNC_US": str(self._sync_us),
        }

    def power_on(self) -> None:
        """Begin a new account: what is there now is on the disk."""
        shutil.rmtree(self._account / "limbo", ignore_errors=True)
        (self._account / "limbo").mkdir()
        (self._account / "journal").write_bytes(b"")
        self._names = {path: path.stat().st_ino for path in self._files()}
        self._lengths = {path.stat().st_ino: path.stat().st_size for path in self._names}

    def power_off(self, pid: int, chance: random.Random | None = None) -> Torn:
        """Leave of the files what the dead process `pid` had synced, and with `chance` some of what it had not.

        Names change in order, as on a file system with a journal: those up to the last synced folder are kept, and with
        `chance` some that follow. Of what was written and not synced, a part from the start may be kept.
        Raises `NotWired` when the shim was not at work in the process.
        """
        events = [line.split(" ", 2) for line in (self._account / "journal").read_text().splitlines()]
        if ["boot", str(pid)] not in events:
            raise NotWired(f"the process {pid} ran without the shim {self.environment['LD_PRELOAD']}")
        folders = {path.stat().st_ino: path for path in (self.data, *self.data.rglob("*")) if path.is_dir()}
        lengths, moves, kept = dict(self._lengths), list[tuple[str, int, list[Path]]](), 0
        for verb, number, *rest in events:
            inode, words = int(number), rest[0] if rest else ""
            if verb == "sync" and not self._lies:
                lengths[inode] = max(lengths.get(inode, 0), int(words))
            elif verb == "shorten":
                lengths[inode] = min(lengths.get(inode, 0), int(words))
            elif verb == "folder" and not self._lies and inode in folders:
                last = [at for at, (_, _, paths) in enumerate(moves, 1) if paths[-1].parent == folders[inode]]
                kept = max([kept, *last])
            elif verb in ("make", "move", "drop"):
                paths = [self.data / word for word in words.split("\t")]
                if all(self._is_ours(path) for path in paths):
                    moves.append((verb, inode, paths))
        upto = kept if chance is None else chance.randint(kept, len(moves))
        return Torn(self._rebuild(self._named(moves[:upto]), lengths, chance), len(moves) - upto)

    def _named(self, moves: Sequence[tuple[str, int, list[Path]]]) -> dict[Path, int]:
        names = dict(self._names)
        for verb, inode, paths in moves:
            names.pop(paths[0], None)
            if verb != "drop":
                names[paths[-1]] = inode
        return names

    def _rebuild(self, names: Mapping[Path, int], lengths: Mapping[int, int], chance: random.Random | None) -> int:
        limbo, gone = self._account / "limbo", 0
        for path in self._files():
            kept = limbo / str(path.stat().st_ino)
            if kept.exists():
                path.unlink()
            else:
                path.rename(kept)
        for path, inode in names.items():
            was = (limbo / str(inode)).stat().st_size
            left = lengths.get(inode, 0)
            if chance is not None and was > left:
                left += chance.choice([0, chance.randint(0, was - left)])
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(limbo / str(inode), path)
            os.truncate(path, left)
            gone += was - left
        return gone

    def _files(self) -> list[Path]:
        return [path for path in self.data.rglob("*") if self._is_ours(path) and path.is_file()]

    def _is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self.data) and not path.name.startswith("server.")


# ---- a server on it


class Machine:
    """A server on a `Disk`, which keeps its address over power cuts."""

    def __init__(
        self,
        folder: Path,
        binary: str,
        fsync: str,
        *,
        wired: bool = True,
        lies: bool = False,
        sync_us: int = 0,
        config: Mapping[str, str | int] | None = None,
    ) -> None:
        self.disk = Disk(folder, sync_us=sync_us, lies=lies)
        program = wrapped(binary, self.disk.environment, folder) if wired else binary
        self.server = EmbeddedServer(self.disk.data, binary=program, config={"appendfsync": fsync, **(config or {})})

    def start(self) -> None:
        """Give it power: what is on the disk now will stay there."""
        self.disk.power_on()
        self.server.start()

    def cut(self, chance: random.Random | None = None) -> Torn:
        """Cut the power; `chance` leaves some of what was not synced, otherwise all of it is gone."""
        pid = self.server.pid
        assert pid is not None, "the server is not running"
        os.kill(pid, signal.SIGSTOP)  # so that it forks nobody while we look
        children = [
            int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()
        ]
        self.server.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            wait_until(partial(is_gone, child))
        return self.disk.power_off(pid, chance)

    @property
    def is_torn(self) -> bool:
        """Whether the server found the end of its file torn when it started."""
        return "Truncating the AOF" in self.server.log

    def rewrite(self) -> None:
        """Have the append-only file written anew, and wait for it."""
        with redis.Redis.from_url(self.server.url) as client:
            raw: Any = client
            raw.bgrewriteaof()
            wait_until(lambda: not any(raw.info("persistence")[f"aof_rewrite_{what}"] for what in RUNNING))
            assert raw.info("persistence")["aof_last_bgrewrite_status"] == "ok"


# ---- what was asked of it, and what it said


@dataclass(slots=True)
class Asked:
    """One step that puts tasks: a put, a schedule, or an ack with what the task found."""

    who: str
    tasks: tuple[str, ...]
    parent: str | None = None
    said: float | None = None
    """When the call returned, on the monotonic clock; None when it did not."""


@dataclass(slots=True)
class Verdict:
    """The verdict on one cut, or on all; the field names are those that queue checkers use."""

    fsync: str
    attempts: int = 0
    acknowledged: int = 0
    """Those whose put returned."""
    ok: int = 0
    lost: int = 0
    unexpected: int = 0
    """Known, and never put by anybody."""
    recovered: int = 0
    """Known, though their put did not return."""
    duplicated: int = 0
    """Acked once more, since the ack was gone."""
    undone: int = 0
    """Acks that returned and are gone."""
    half: int = 0
    """Steps of which only a part is there."""
    holes: int = 0
    """Lost, though something later by the same client is there."""
    oldest: float = 0.0
    """How long before the cut the oldest of the lost puts and acks had returned, seconds."""
    announced: float = 0.0
    """The loss that `timeoutq doctor` announces, seconds."""
    stalled: float = 0.0
    """How long the machine itself stood still at most, seconds: no promise covers that."""
    torn_bytes: int = 0
    torn_names: int = 0

    @property
    def is_kept(self) -> bool:
        gone = self.unexpected + self.half + self.holes
        return not gone and (self.oldest <= self.announced + self.stalled if self.lost + self.undone else True)

    def add(self, other: Verdict) -> None:
        """Take in the verdict on another cut."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if one.name in ("oldest", "announced", "stalled"):
                setattr(self, one.name, max(mine, theirs))
            elif one.name not in ("fsync", "ok"):
                setattr(self, one.name, mine + theirs)

    def __str__(self) -> str:
        told = " ".join(f"{name}={value:.2f}" if isinstance(value, float) else f"{name}={value}"
                        for name, value in asdict(self).items())  # fmt: skip
        return f"{'kept' if self.is_kept else 'BROKEN'} {told}"


@dataclass
class Plant:
    """A server on a disk of its own, with producers and workers, whose power can be cut again and again."""

    folder: Path
    binary: str
    fsync: str
    seed: int = 0
    lies: bool = False
    sync_us: int = 300
    """A disk takes its time; most cuts then fall between a write and its sync."""
    mends: bool = True
    """Whether a torn file is written anew after the start, as it must be: Redis (7.0.15 at least) and Valkey before
    9.1.2 cut it off within the torn script, and mix what is left of it with what they write later, at the second
    start."""
    pace: float = 0.0
    """How long a producer rests between two calls, seconds."""
    asked: list[Asked] = field(default_factory=list[Asked])
    acked: dict[str, float] = field(default_factory=dict[str, float])
    """When the ack of a task returned, on the monotonic clock."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.machine = Machine(self.folder, self.binary, self.fsync, lies=self.lies, sync_us=self.sync_us)
        self._lock = threading.Lock()
        self._life = 0
        self._stop = threading.Event()
        self._ever_acked: set[str] = set()
        self._doubles = 0
        self._attempted: set[str] = set()
        self._acknowledged: set[str] = set()
        self._recovered: set[str] = set()
        self._trouble: list[BaseException] = []
        self.machine.start()

    @property
    def url(self) -> str:
        return self.machine.server.url

    # ---- those who ask

    def _produce(self, me: str, batches: bool) -> None:
        chance = random.Random(f"{self.seed} {me} {self._life}")
        with self._client() as queue:
            for number in range(1_000_000):
                names = [f"{self._life}/{me}/{number}/{i}" for i in range(chance.randint(1, 60) if batches else 1)]
                asked = Asked(me, tuple(names))
                self.asked.append(asked)
                if chance.random() < 0.1:
                    queue.schedule(names, after=chance.uniform(0, 0.3))
                elif chance.random() < 0.3:
                    queue.put({name: {"of": name} for name in names})
                else:
                    queue.put(names)
                asked.said = time.monotonic()
                time.sleep(self.pace)

    def _work(self, me: str) -> None:
        chance = random.Random(f"{self.seed} {me} {self._life}")
        with self._client() as queue:
            while not self._stop.is_set():
                leases = queue.claim(chance.choice([1, 5, 40]), wait=0.1)
                finders = [lease for lease in leases if finds(lease.task)]
                for lease in finders:
                    self._ack_found(me, queue, lease)
                rest = [lease for lease in leases if lease not in finders]
                if len(rest) > 2 and chance.random() < 0.3:
                    queue.fail([rest.pop()], "of no account", retry_in=0.05)
                    queue.release([rest.pop()])
                if rest and chance.random() < 0.5:
                    for lease, answer in zip(rest, queue.ack(rest), strict=True):
                        self._acked(lease, answer)
                else:
                    for lease in rest:
                        self._acked(lease, queue.ack([lease])[0])

    def _ack_found(self, me: str, queue: Queue, lease: Lease) -> None:
        asked = Asked(me, finds(lease.task), lease.task)
        self.asked.append(asked)
        with suppress(LeaseLost):  # on a machine that stood still: somebody else will find the same
            answer = queue.ack(lease, put=asked.tasks)
            asked.said = time.monotonic()
            self._acked(lease, answer)

    def _acked(self, lease: Lease, answer: object) -> None:
        if answer in ("ok", "already"):
            with self._lock:
                self._doubles += lease.task in self._ever_acked
                self._ever_acked.add(lease.task)
                self.acked[lease.task] = time.monotonic()

    def _client(self) -> Queue:
        return Queue(NAME, self.url, timeout=LEASE, deadline=1.0)

    def _until_the_cut(self, act: Callable[..., None], *words: object) -> None:
        try:
            act(*words)
        except TimeoutqError as error:
            if not self._stop.is_set():
                self._trouble.append(error)
        except BaseException as error:
            self._trouble.append(error)

    # ---- a cut

    def cut(self, *, after: float, rewrite: bool = False, torn: bool = True) -> Verdict:
        """Load the server for `after` seconds, cut its power, start it again and say what is gone.

        With `rewrite` it is rewriting its append-only file meanwhile, so that names change too.
        """
        self._life += 1
        self._stop.clear()
        crowd = [
            threading.Thread(target=self._until_the_cut, args=words)
            for words in (
                (self._produce, "one", False), (self._produce, "many", True), (self._work, "w1"), (self._work, "w2"),
            )
        ]  # fmt: skip
        with Stalls() as stalls:
            try:
                for thread in crowd:
                    thread.start()
                if rewrite:
                    time.sleep(after * self.chance.uniform(0.5, 0.95))  # a moment that nothing announces
                    with redis.Redis.from_url(self.url) as raw:
                        raw.bgrewriteaof()
                    after *= 0.1
                time.sleep(after)  # the same
            finally:
                self._stop.set()
                cut_at = time.monotonic()
                torn_off = self.machine.cut(self.chance if torn else None)
                for thread in crowd:
                    thread.join()
        assert not self._trouble, self._trouble
        self.machine.start()
        if self.machine.is_torn and self.mends:
            self.machine.rewrite()
        verdict = self._judge(cut_at, torn_off)
        verdict.stalled = stalls.longest
        return verdict

    def _judge(self, cut_at: float, torn: Torn) -> Verdict:
        check(self.url, NAME)  # a part of a script would show: tasks in two states, leases without owners, counters
        states = self.states()
        tried = {task for one in self.asked for task in one.tasks}
        said = {task: one.said for one in self.asked if one.said is not None for task in one.tasks}
        lost = {task: at for task, at in said.items() if task not in states}
        undone = {task: at for task, at in self.acked.items() if states.get(task) != "done"}
        recovered = states.keys() & tried - said.keys()
        verdict = Verdict(
            self.fsync,
            attempts=len(tried - self._attempted),
            acknowledged=len(said.keys() - self._acknowledged),
            ok=len(states),
            lost=len(lost),
            unexpected=len(states.keys() - tried),
            recovered=len(recovered - self._recovered),
            duplicated=self._doubles,
            undone=len(undone),
            half=sum(self._is_half(one, states) for one in self.asked),
            holes=self._holes(states),
            oldest=max((cut_at - at for at in (*lost.values(), *undone.values())), default=0.0),
            announced=self.announced(),
            torn_bytes=torn.bytes,
            torn_names=torn.names,
        )
        self._doubles = 0
        # what is gone is counted once, and once more when somebody puts it again
        gone = tried - states.keys()
        self._attempted = tried - gone
        self._acknowledged = said.keys() - gone
        self._recovered = recovered
        self.acked = {task: at for task, at in self.acked.items() if task not in undone}
        self.asked = [one for one in self.asked if states.keys() & set(one.tasks)]
        return verdict

    def _is_half(self, one: Asked, states: Mapping[str, str]) -> bool:
        there = {task in states for task in one.tasks}
        if one.parent is not None:
            there.add(states.get(one.parent) == "done")
        return len(there) > 1

    def _holes(self, states: Mapping[str, str]) -> int:
        # the file is cut at one place: of what one client has put, in its order, what is gone is the end
        found = 0
        for who in ("one", "many"):
            there = [one.tasks[0] in states for one in self.asked if one.who == who and one.said is not None]
            found += there != sorted(there, reverse=True)
        return found

    def states(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            raw: Any = client
            key = f"timeoutq:{{{NAME}}}:"
            for state in ("todos", "in_progress", "done", "failed"):
                found.update(dict.fromkeys(raw.smembers(key + state), state))
            found.update(dict.fromkeys(raw.zrange(key + "scheduled", 0, -1), "scheduled"))
        return found

    def announced(self) -> float:
        """Give how much may be lost, as `timeoutq doctor` says it, seconds."""
        with self._client() as queue:
            said = durability(gather(queue)).found
        seconds = re.search(r"(\d+) s may be lost", said)
        assert seconds or "nothing accepted is lost" in said, said
        return float(seconds[1]) if seconds else 0.0

    # ---- the end

    def drain(self) -> int:
        """Work on all that is left, and give how many tasks came out; each that is known must."""
        with self._client() as queue:
            until = time.monotonic() + 60
            while not queue.drained():
                assert time.monotonic() < until, f"it does not drain: {queue.stats()}"
                leases = queue.claim(500, wait=0.2)
                for lease, answer in zip(leases, queue.ack(leases), strict=True):
                    self._acked(lease, answer)
            check(self.url, NAME)
            return queue.stats().done

    @property
    def doubles(self) -> int:
        return self._doubles

    def close(self) -> None:
        self._stop.set()
        self.machine.server.kill()


class Stalls:
    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last - 0.01), now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def finds(task: str) -> tuple[str, ...]:
    """Give what a task finds: the same whenever it is worked on."""
    _, _, number, at, *more = task.split("/")
    if more or (int(number) + int(at)) % 7:
        return ()
    return tuple(f"{task}/{i}" for i in range(3))


# ---- the long form


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.rig.power", description="Cut the power of a server under load.")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--fsync", choices=["always", "everysec"], default="always")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-mending", action="store_true", help="leave a torn file as the server does")
    parser.add_argument("--sync-us", type=int, default=300, help="how long a sync of the disk takes")
    parser.add_argument("--seconds", type=float, default=2.0, help="the longest load before a cut")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    total = Verdict(given.fsync)
    kept = True

    def tell(what: str, verdict: Verdict) -> None:
        record = {"cut": what, "kept": verdict.is_kept, **asdict(verdict)}
        sys.stdout.write((json.dumps(record) if given.json else f"{what}: {verdict}") + "\n")
        sys.stdout.flush()

    binary = binary_of(given.server)
    with tempfile.TemporaryDirectory(prefix="timeoutq-power-") as folder:
        plant = Plant(
            Path(folder), binary, given.fsync, seed=given.seed, sync_us=given.sync_us, mends=not given.no_mending
        )
        try:
            for number in range(given.cuts):
                sys.stderr.write(f"\rcut {number + 1} of {given.cuts} ")
                sys.stderr.flush()
                after = plant.chance.uniform(0.2 if given.fsync == "always" else 1.2, given.seconds)
                verdict = plant.cut(after=after, rewrite=number % 3 == 2)
                tell(str(number + 1), verdict)
                kept = kept and verdict.is_kept
                total.add(verdict)
            sys.stderr.write("\n")
            total.ok = plant.drain()
            total.duplicated += plant.doubles
        finally:
            plant.close()
    tell("total", total)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
