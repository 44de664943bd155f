"""A soak: a mixed load with rare faults for minutes or hours, and whether anything grows that should not.

`tests/breaking/alone/test_soak.py` runs a short one; by hand: `python -m tests.rig.soak --minutes 30`. Producers,
workers, a plain client, a cleaner and a reader share a server of their own through the proxy of faults; now and then
one is killed or stopped, connections are cut, or the server is restarted. Memory, descriptors, threads, keys and
latencies are sampled, and `trend` says what grows. Once a period the producers pause: the queue must drain, the
invariants hold, and each task that was put be found.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import io
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry as Again
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.rig.invariants import check
from tests.rig.processes import ROOT
from tests.rig.proxy import Fault, Proxy
from tests.rig.trend import BYTES, MIB, Samples, Trend
from timeoutq import Ack, GiveUp, Lease, LeaseLost, Queue, Release, Retry, State, TimeoutqError
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.draw import render
from timeoutq.watch.snapshot import snapshot

# ---- what all processes of a soak know


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on the queue, and how it is worked on."""

    folder: str
    name: str = "soak"
    seed: int = 0
    pace: float = 40.0
    """Tasks a second of each producer."""
    ready: int = 200
    """Producers wait while more tasks are ready."""
    lease: float = 1.5
    max_runtime: float = 4.0
    leaks: Sequence[str] = ()


SHARES = {
    "ok": 0.735,
    "once": 0.05,
    "retry": 0.02,
    "fail": 0.03,
    "giveup": 0.02,
    "long": 0.04,
    "hang": 0.005,
    "cancel": 0.02,
    "release": 0.03,
    "parent": 0.05,
}
"""What tasks do, and how often: the id begins with it."""

LEAKS = ("memory", "descriptors", "keys", "tasks")
"""Mistakes that a handler can be given, to see whether a soak finds them; the last one loses tasks."""


@cache
def _load() -> Load:
    return Load(**json.loads(os.environ["SOAK"]))


def children(task: str) -> list[str]:
    """Name the tasks that a task of the kind `parent` finds."""
    return [f"ok-of-{task}-{i}" for i in range(2)]


def note(file: str, *lines: str) -> None:
    """Append lines to a file of the soak: O_APPEND keeps those of many processes whole."""
    descriptor = _opened(file)
    for at in range(0, len(lines), 50):
        os.write(descriptor, "".join(f"{line}\n" for line in lines[at : at + 50]).encode())


@cache
def _opened(file: str) -> int:
    return os.open(Path(_load().folder) / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class _Stopwatch:
    """Writes down how long an exchange took that was answered."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            note("latencies", f"{self._verb} {time.monotonic() - self._began:.6f}")


# ---- handlers


async def work(lease: Lease) -> Ack | Release | None:
    """Do what the id says."""
    _leak(lease)
    await asyncio.sleep(_length(lease))
    return _end(lease)


def work_in_thread(lease: Lease) -> Ack | Release | None:
    """Do what the id says, in a thread."""
    time.sleep(_length(lease))
    return _end(lease)


def _length(lease: Lease) -> float:
    load, kind = _load(), lease.task.partition("-")[0]
    if kind == "long":
        return 2.5 * load.lease
    if kind == "hang" and lease.attempt == 1:
        return 2 * load.max_runtime
    return random.random() * 0.02


def _end(lease: Lease) -> Ack | Release | None:
    kind, first = lease.task.partition("-")[0], lease.attempt == 1
    if kind == "fail" or (kind == "once" and first):
        raise ValueError(f"attempt {lease.attempt} fails")
    if kind == "retry" and first:
        raise Retry(after=0.1)
    if kind == "giveup":
        raise GiveUp("nobody can do this")
    if kind == "cancel" and first:
        raise asyncio.CancelledError
    if kind == "release" and random.random() < 0.5:
        return Release(random.choice([0.0, 0.1]))
    return Ack(put=children(lease.task)) if kind == "parent" else None


_kept: list[object] = []


def _leak(lease: Lease) -> None:
    leaks = _load().leaks
    if "memory" in leaks:
        _kept.append(os.urandom(128 * 1024))
    if "descriptors" in leaks and zlib.crc32(lease.task.encode()) % 4 == 0:
        _kept.append(os.open(os.devnull, os.O_RDONLY))
    if "keys" in leaks:
        _leaky_client().set(f"timeoutq:{{{_load().name}}}:left:{lease.task}", "1")
    if "tasks" in leaks and zlib.crc32(lease.task.encode()) % 20 == 0:
        _leaky_client().spop(f"timeoutq:{{{_load().name}}}:todos")


@cache
def _leaky_client() -> Any:
    # nothing that a fault strikes may make the task fail: only the leak is what is to be found
    again = Again(ConstantBackoff(0.05), 100)
    return redis.Redis.from_url(os.environ["TIMEOUTQ_URL"], retry=again, retry_on_error=[redis.ConnectionError])


# ---- the processes of the load


class _Gate:
    """Lets this process go on, or wait, as the soak says; ends it when the soak is no more."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._listen, name="gate", daemon=True).start()

    def _listen(self) -> None:
        # not by sys.stdin, whose lock would be held when the interpreter ends
        while said := os.read(0, 64):
            if said.endswith(b"pause\n"):
                self._open.clear()
            elif said.endswith(b"resume\n"):
                self._open.set()
        os._exit(0)

    def wait(self) -> bool:
        """Tell when this process waits; return when it may go on, and say whether it had to wait."""
        if self._open.is_set():
            return False
        note("accepted", f"#paused {os.getpid()}")
        return self._open.wait()


def _produce(load: Load, gate: _Gate) -> None:
    rng = random.Random(load.seed + os.getpid())
    queue = Queue(load.name, timeout=load.lease)
    recent: deque[str] = deque(maxlen=50)
    numbers = count()
    next_at = time.monotonic()
    while True:
        if gate.wait():
            recent.clear()  # what was put before has been counted
        size = 1 if rng.random() < 0.6 else rng.randint(2, 40)
        kinds = rng.choices(list(SHARES), list(SHARES.values()), k=size)
        tasks = [f"{kind}-{os.getpid():x}-{next(numbers)}" for kind in kinds]
        again = rng.sample(list(recent), min(len(recent), rng.randint(1, 10))) if rng.random() < 0.2 else []
        how = rng.random()
        while True:
            with suppress(TimeoutqError):  # what nobody told it about it puts again
                with _Stopwatch("put"):
                    if how < 0.1:
                        queue.schedule([*tasks, *again], after=rng.random())
                    elif how < 0.3:
                        queue.put({task: {"of": os.getpid(), "text": "x" * 100} for task in tasks})
                        queue.put(again)
                    else:
                        queue.put([*tasks, *again])
                break
            time.sleep(0.05)
        note("accepted", *tasks, *again)
        recent.extend(tasks)
        next_at = max(next_at + size / load.pace, time.monotonic())  # nothing is made up for
        time.sleep(next_at - time.monotonic() if next_at > time.monotonic() else 0)
        with suppress(TimeoutqError):
            while queue.stats().todos > load.ready:
                time.sleep(0.1)


def _use(load: Load, _: _Gate) -> None:
    # a client that is no worker: nothing extends its leases but itself
    rng = random.Random(load.seed + os.getpid())
    queue = Queue(load.name, timeout=load.lease, retry=[0.2, 0.5])
    while True:
        with suppress(TimeoutqError):
            with _Stopwatch("claim"):
                leases = queue.claim(rng.randint(1, 5))
            if not leases:
                time.sleep(0.1)
            ended = [lease for lease in leases if _use_one(queue, lease, leases, rng)]
            if ended:
                with _Stopwatch("ack"):
                    queue.ack(ended)


def _use_one(queue: Queue, lease: Lease, leases: list[Lease], rng: random.Random) -> bool:
    kind, dice = lease.task.partition("-")[0], rng.random()
    time.sleep(rng.random() * 0.02)
    if dice < 0.01:
        return False  # it is forgotten, and its lease runs out
    if dice < 0.05 or kind == "long":
        time.sleep(0.3 * queue.timeout)
        queue.extend(leases)
    try:
        ended = _end(lease)
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, Retry):
            queue.fail([lease], error, retry_in=0.1)
        elif isinstance(error, GiveUp):
            queue.fail([lease], error, give_up=True)
        else:
            queue.fail([lease], error)
        return False
    if isinstance(ended, Release):
        queue.release([lease], ended.delay)
    elif ended is not None:
        with suppress(LeaseLost):
            queue.ack(lease, put=ended.put)
    return ended is None


def _read(load: Load, _: _Gate) -> None:
    rng = random.Random(load.seed + os.getpid())
    queue = Queue(load.name)
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    while True:
        with suppress(TimeoutqError):
            seen = snapshot(queue)
            console.print(render(seen, 100, 30))
            for state in State:
                cursor: str | None = None
                for _page in range(5):
                    page = queue.list(state, cursor, 100)
                    for entry in rng.sample(list(page.entries), min(3, len(page.entries))):
                        queue.inspect(entry.task)
                    cursor = page.cursor
                    if cursor is None:
                        break
            queue.server()
        console.file = io.StringIO()
        time.sleep(0.5)


def _command(*words: str) -> None:
    from timeoutq import cli

    sys.argv = ["timeoutq", *words, "--log-level", "warning"]
    cli.main()


def _worker(name: str, handler: str, concurrency: int) -> Callable[[Load, _Gate], None]:
    def live(load: Load, _: _Gate) -> None:
        _command(
            "worker", name, f"tests.rig.soak:{handler}", "--no-supervise", "--retry", "0.2,0.5",
            "--concurrency", str(concurrency), "--timeout", f"{load.lease}s", "--max-runtime", f"{load.max_runtime}s",
            "--drain-deadline", "10s",
        )  # fmt: skip

    return live


ROLES: Mapping[str, Callable[[Load, _Gate], None]] = {
    "producer 1": _produce,
    "producer 2": _produce,
    "worker async": _worker("soak", "work", 30),
    "worker def": _worker("soak", "work_in_thread", 15),
    "worker struck": _worker("soak", "work", 15),
    "worker idle": _worker("soak-idle", "work", 5),
    "client": _use,
    "cleaner": lambda *_: _command("cleaner", "soak", "soak-idle"),
    "reader": _read,
}

ENDED_BY_SIGTERM = ("worker", "cleaner")
"""Roles that end in order, with exit code 0."""


def be(role: str) -> NoReturn:
    """Be a process of the load: what it is started to do."""
    gate = _Gate()
    ROLES[role](_load(), gate)
    raise SystemExit(0)


@dataclass(slots=True)
class _Child:
    role: str
    process: subprocess.Popen[bytes]
    log: Path
    stopped: bool = False

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, which is seen elsewhere
            self.process.stdin.write(f"{word}\n".encode())
            self.process.stdin.flush()

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-700:].strip() or "nothing"


class _Tail:
    """Reads what was appended to a file since it was asked last."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def lines(self) -> list[str]:
        """Give the whole lines."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode() for line in whole]

    def forget(self) -> None:
        """Empty the file, so that it does not grow for days; what nobody has read is lost."""
        os.truncate(self._file.name, 0)
        self._file.seek(0)
        self._rest = b""

    def close(self) -> None:
        """Close it."""
        self._file.close()


# ---- the soak


@dataclass(slots=True)
class Report:
    """What a soak did and what came of it."""

    seed: int
    server: str
    seconds: float = 0.0
    put: int = 0
    """Tasks that were put, and what they found; and where these ended."""
    done: int = 0
    failed: int = 0
    lost: int = 0
    checks: int = 0
    """How often the queue was made quiet and checked."""
    samples: int = 0
    faults: dict[str, int] = field(default_factory=dict[str, int])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    trends: list[Trend] = field(default_factory=list[Trend])
    violations: list[str] = field(default_factory=list[str])
    interrupted: int = 0
    """The signal that ended it early."""

    @property
    def grows(self) -> list[Trend]:
        """What leaks."""
        return [one for one in self.trends if one.verdict == "grows"]

    @property
    def valid(self) -> bool:
        """Whether everything looks good."""
        return not self.violations and not self.grows

    @property
    def code(self) -> int:
        """The exit code."""
        return 128 + self.interrupted if self.interrupted else int(not self.valid)

    def json(self) -> str:
        """Write it for programs."""
        return json.dumps({**asdict(self), "valid": self.valid})

    def show(self, console: Console) -> None:
        """Write it for people."""
        table = Table(title=f"soak on {self.server}: {self.seconds:.0f} s, seed {self.seed}")
        for column in ("what", "whose", "first", "last", "an hour", "as watched", "spread", "verdict"):
            left = column in ("what", "whose", "verdict")
            table.add_column(column, justify="left" if left else "right", no_wrap=True)
        for one in self.trends:
            style = {"grows": "bold red", "steady": "green"}.get(one.verdict, "bright_black")
            figures = (one.first, one.last, one.per_hour, one.growth, one.spread)
            words = [_figure(one.kind, value, signed=i in (2, 3)) for i, value in enumerate(figures)]
            if not one.points:
                words = ["–"] * len(words)
            table.add_row(one.kind, escape(one.whose), *words, f"[{style}]{one.verdict}[/]")
        console.print(table)
        faults = ", ".join(f"{number} × {what}" for what, number in sorted(self.faults.items()))
        counters = ", ".join(f"{number:,} {what}" for what, number in sorted(self.counters.items()))
        console.print(f"faults: {faults or 'none'}", highlight=False)
        console.print(f"counters: {counters or 'none'}", highlight=False)
        console.print(
            f"{self.checks} times quiet and checked: {self.put:,} tasks put or found, {self.done:,} done, "
            f"{self.failed:,} failed, {self.lost:,} lost",
            highlight=False,
        )
        for text in self.violations[:50]:
            console.print(f"VIOLATION {text}", style="bold red", markup=False, highlight=False)
        for one in self.grows:
            console.print(f"GROWS {one.kind} of {one.whose}", style="bold red", markup=False, highlight=False)
        verdict = "everything looks good"
        if not self.valid:
            verdict = f"{len(self.violations)} violations, {len(self.grows)} leaks"
        early = f", ended early by {signal.Signals(self.interrupted).name}" if self.interrupted else ""
        console.print(verdict + early, style="green" if self.valid else "bold red")


def _figure(kind: str, value: float, *, signed: bool) -> str:
    sign = "+" if signed else ""
    if kind in BYTES:
        return f"{value / MIB:{sign}.2f} MiB"
    return f"{value:{sign}.2f} ms" if kind.startswith("p") else f"{value:{sign}.1f}"


class Interrupted(Exception):
    """A signal asked for the end."""


class Signals:
    """Remembers the signal that asks for the end; `pause` is a sleep that it ends."""

    def __init__(self) -> None:
        self.got = 0

    def catch(self) -> None:
        """Take SIGINT, SIGTERM and, except under nohup, SIGHUP from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.got = self.got or number

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Interrupted`."""
        until = time.monotonic() + seconds
        while True:
            if self.got:
                raise Interrupted
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))

    def wait_until(self, predicate: Callable[[], bool], seconds: float) -> bool:
        """Ask until it is so; say whether it came to be. Raises `Interrupted`."""
        until = time.monotonic() + seconds
        while not predicate():
            if time.monotonic() > until:
                return False
            self.pause(0.05)
        return True


SMALL = (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.SWALLOW, Fault.CUT, Fault.LATENCY, Fault.HALF_OPEN)
LARGE = ("kill", "term", "stop the cleaner", "forget the library", "kill clients", "restart the server")
STRUCK = "worker struck"
VERBS = ("put", "schedule", "claim", "extend", "ack", "release", "fail")
DRAIN = 60.0
"""How long a quiet queue may take until it has drained, seconds."""


class Soak:
    """One soak; `run()` gives the report, also of one that a signal ended early."""

    def __init__(
        self,
        *,
        seconds: float,
        seed: int | None = None,
        binary: str | None = None,
        leaks: Sequence[str] = (),
        warm_up: float | None = None,
        least_span: float = 60.0,
        pace: float = 40.0,
        signals: Signals | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare; `tell` is given a line after each check, and nothing after each sample."""
        self.seconds = seconds
        # the first part is not judged: what is kept of done tasks fills up, as do the arenas of the processes
        self.warm_up = min(0.3 * seconds, 600.0) if warm_up is None else warm_up
        self.least_span = least_span
        self.every = min(10.0, max(0.4, seconds / 120))
        # a short one is checked at its end only
        self.period = min(60.0, seconds / 6) if seconds >= 60 else seconds
        self.large_every = min(40.0, max(1.0, seconds / 10))
        self.small_every = min(5.0, max(0.5, seconds / 40))
        # a short one has no time to wait for what takes long
        self.lease, self.max_runtime = (1.5, 4.0) if seconds >= 60 else (0.8, 2.0)
        self.pace = pace
        self.leaks, self.binary = leaks, binary
        self.signals, self.tell = signals or Signals(), tell
        seed = secrets.randbits(32) if seed is None else seed
        self.rng = random.Random(seed)
        self.report = Report(seed, binary or "valkey")
        self.samples = Samples()
        self.children: dict[str, _Child] = {}
        self._numbers = count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._deck: list[str] = []
        self._faults: Counter[str] = Counter()
        self._acked: tuple[float, int] | None = None
        self._accepted: set[str] = set()
        self._paused: set[int] = set()

    @property
    def keep(self) -> int:
        """How many done tasks are kept: all of a period are found at its end, and after two it is always as many."""
        return round(2 * self.pace * self.period * 1.6) + 1000

    def run(self) -> Report:
        """Soak, then end everything."""
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-soak-")))
            self.server = stack.enter_context(EmbeddedServer(self.folder / "server", binary=self.binary))
            self.proxy = stack.enter_context(Proxy(self.server.url))
            again = Again(ConstantBackoff(0.05), 200)
            errors: Any = [redis.ConnectionError, redis.TimeoutError, BusyLoadingError]
            self.raw: Any = stack.enter_context(
                redis.Redis.from_url(self.server.url, retry=again, retry_on_error=errors)
            )
            self.queue = stack.enter_context(Queue("soak", self.server.url, deadline=20.0, keep_done=self.keep))
            self.tails = {name: _Tail(self.folder / name) for name in ("accepted", "latencies")}
            for tail in self.tails.values():
                stack.callback(tail.close)
            stack.callback(self._kill_all)
            self.began = time.monotonic()
            try:
                self.queue.drained()
                for role in ROLES:
                    self._start(role)
                self._soak()
                self._close()
            except Interrupted:
                self.report.interrupted = self.signals.got
            with suppress(TimeoutqError):
                self.report.counters = self.report.counters or dict(self.queue.stats().counters)
            self._count_struck()
        self.report.faults = dict(self._faults)
        self.report.seconds = self.now
        self.report.trends = self.samples.trends(self.warm_up, self.least_span)
        return self.report

    @property
    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.began

    # ---- processes

    def _start(self, role: str) -> None:
        load = Load(
            str(self.folder), seed=self.rng.getrandbits(16), pace=self.pace, lease=self.lease,
            max_runtime=self.max_runtime, leaks=list(self.leaks),
        )  # fmt: skip
        log = self.folder / f"log-{next(self._numbers)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.rig import soak; soak.be({role!r})"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TIMEOUTQ_URL": self.proxy.url,
                    "SOAK": json.dumps(asdict(load)),
                    "PYTHONPATH": str(ROOT),
                },
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                # Ctrl-C is for the soak; and a stopped one is continued and ended when the soak is no more
                process_group=0,
            )
        self.children[role] = _Child(role, process, log)

    def _kill_all(self) -> None:
        for child in self.children.values():
            child.process.kill()
        for child in self.children.values():
            child.process.wait()
            assert child.process.stdin is not None
            with suppress(OSError):
                child.process.stdin.close()

    def _replace(self, role: str) -> None:
        child = self.children[role]
        assert child.process.stdin is not None
        child.process.stdin.close()
        self._listen_to(child)
        child.log.unlink()
        self._start(role)

    def _look(self) -> None:
        for role, child in list(self.children.items()):
            code = child.process.poll()
            if code is not None:
                self._accuse(f"{role} ended by itself with {code}; it said: {child.said()}")
                self._replace(role)

    def _listen_to(self, child: _Child) -> None:
        # the interpreter's own complaints about what nobody awaited or closed
        for words in ("never retrieved", "was destroyed but it is pending", "ResourceWarning", "never awaited"):
            if words in child.said():
                self._accuse(f"{child.role} said: {child.said()}")

    def _accuse(self, text: str) -> None:
        self.report.violations.append(f"{text} [after {self.now:.1f} s]")
        self.tell(f"VIOLATION {text}")

    # ---- the load

    def _soak(self) -> None:
        sample_at, small_at = self.every, 2.0
        quiet_at, large_at = self.period, 1.0 + self.large_every
        while self.now < self.seconds:
            now = self.now
            if quiet_at <= now:
                self._quiet()
                quiet_at = self.now + self.period
            elif sample_at <= now:
                sample_at = now + self.every
                self._look()
                self._sample()
                self.tell("")
            elif self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            elif large_at <= now:
                large_at = now + self.large_every
                self._strike()
            elif small_at <= now:
                small_at = now + self.rng.expovariate(1 / self.small_every)
                self._disturb()
            else:
                self.signals.pause(0.02)

    def _close(self) -> None:
        self._quiet(last=True)
        self.report.counters = dict(self.queue.stats().counters)
        if not self.report.violations and self.report.counters.get("put", 0) != self.report.put:
            self._accuse(f"I9: {self.report.put} tasks were put or found, but the counters say {self.report.counters}")
        ending = [child for role, child in self.children.items() if role.startswith(ENDED_BY_SIGTERM)]
        for child in ending:
            child.process.terminate()
        for child in ending:
            if not self.signals.wait_until(lambda c=child: c.process.poll() is not None, 30.0):  # type: ignore[misc]  # its type is known
                self._accuse(f"{child.role} still runs 30 s after SIGTERM; it said: {child.said()}")
            elif (code := child.process.returncode) and (code != -signal.SIGTERM or child.said() != "nothing"):
                # one that has said nothing may not have begun to listen
                self._accuse(f"{child.role} ended with {code}; it said: {child.said()}")
        self._kill_all()
        for child in self.children.values():
            self._listen_to(child)
        for name in ("soak", "soak-idle"):
            with Queue(name, self.server.url) as queue:
                queue.purge()
        left = self.raw.keys("*")
        if left:
            self._accuse(f"I10: a purge left {len(left)} keys, such as {left[:3]}")

    # ---- faults

    def _disturb(self) -> None:
        self._count_struck()
        fault, verb = self.rng.choice(SMALL), self.rng.choice(VERBS)
        self._armed = fault
        self.proxy.arm(fault, scripts.function(verb).encode())
        if fault is Fault.LATENCY:
            self._after(8.0, self._kill_clients)  # a connection that is slow stays so until it is closed

    _armed: Fault | None = None

    def _count_struck(self) -> None:
        if self._armed is not None and self.proxy.struck:
            self._faults[self._armed.name.lower().replace("_", " ")] += self.proxy.struck
        self._armed = None

    def _strike(self) -> None:
        if not self._deck:
            self._deck = self.rng.sample(LARGE, len(LARGE))
        what = self._deck.pop()
        self._faults[what] += 1
        child = self.children[STRUCK]
        if what in ("kill", "term"):
            child.process.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            if not self.signals.wait_until(lambda: child.process.poll() is not None, 30.0):
                self._accuse(f"{STRUCK} still runs 30 s after {what}; it said: {child.said()}")
                child.process.kill()
            code = child.process.wait()
            if what == "term" and code not in (0, -signal.SIGTERM):  # it may not have begun to listen
                self._accuse(f"{STRUCK} ended with {code} on SIGTERM; it said: {child.said()}")
            self._replace(STRUCK)
        elif what == "stop the cleaner":
            self._stop(self.children["cleaner"])
        elif what == "forget the library":
            self.raw.function_flush()
        elif what == "kill clients":
            self._kill_clients()
        else:
            self.server.stop()
            self.server.start()

    def _kill_clients(self) -> None:
        self.raw.execute_command("CLIENT", "KILL", "TYPE", "normal")

    def _stop(self, child: _Child) -> None:
        child.process.send_signal(signal.SIGSTOP)
        child.stopped = True
        self._after(self.rng.uniform(0.5, 5.0), self._continue_all)

    def _continue_all(self) -> None:
        for child in self.children.values():
            if child.stopped:
                child.stopped = False
                child.process.send_signal(signal.SIGCONT)

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), do))

    # ---- samples

    def _sample(self) -> None:
        at, add = self.now, self.samples.add
        self.report.samples += 1
        pids = {role: child.process.pid for role, child in self.children.items()}
        server = self.server.pid
        if server is not None:
            pids["server"] = server
        for role, pid in pids.items():
            with suppress(OSError):  # it has just ended
                for kind, value in _figures_of(pid):
                    add(at, "server RSS" if (kind, role) == ("RSS", "server") else kind, role, value, piece=pid)
        info: Mapping[str, Any] = self.raw.info("everything")
        add(at, "memory", "server", float(info["used_memory"]), piece=server)
        lua = sum(float(info.get(name, 0)) for name in ("used_memory_vm_total", "used_memory_scripts"))
        add(at, "Lua memory", "server", lua or float(info.get("used_memory_lua", 0)), piece=server)
        add(at, "clients", "server", float(info["connected_clients"]), piece=server)
        add(at, "keys", "server", float(self.raw.dbsize()))
        acked = int(self.raw.hget(self.queue.operations.key("stats"), "acked") or 0)
        if self._acked is not None and at > self._acked[0]:
            add(at, "done a second", "queue", (acked - self._acked[1]) / (at - self._acked[0]))
        self._acked = (at, acked)
        times: dict[str, list[float]] = defaultdict(list)
        for line in self.tails["latencies"].lines():
            verb, _, seconds = line.partition(" ")
            times[verb].append(1000 * float(seconds))
        for verb, found in sorted(times.items()):
            found.sort()
            add(at, "p50", verb, found[len(found) // 2])
            add(at, "p99", verb, found[int(0.99 * (len(found) - 1))])

    # ---- quiet

    def _quiet(self, *, last: bool = False) -> None:
        """Have the producers wait, and look at the queue when all is done."""
        self._count_struck()
        self.proxy.disarm()
        self._continue_all()
        self._later.clear()
        self._kill_clients()  # those that were made slow, too
        producers = [child for role, child in self.children.items() if role.startswith("producer")]
        self._paused.clear()
        for child in producers:
            child.tell("pause")
        if not self.signals.wait_until(lambda: self._all_paused(producers), 30.0):
            self._accuse("the producers do not come to an end with a put within 30 s")
        elif not self.signals.wait_until(self._drained, DRAIN):
            self._accuse(f"I8: not drained {DRAIN:g} s after the last put: {self.queue.stats()}")
        else:
            self._account()
            try:
                check(self.server.url, "soak")
                check(self.server.url, "soak-idle")
            except AssertionError as error:
                self._accuse(str(error))
            at = self.now
            self.samples.add(at, "keys when quiet", "server", float(self.raw.dbsize()))
            self.samples.add(at, "members when quiet", "server", float(self._members()))
            self._tidy()
            self.report.checks += 1
            self.tails["accepted"].forget()
        self.tails["latencies"].lines()
        self.tails["latencies"].forget()
        self._look()
        self._acked = None
        if not last:
            for child in producers:
                child.tell("resume")
        self.tell(
            f"{self.now:5.0f} s: {self.report.put:,} tasks, {self.report.done:,} done, {self.report.failed:,} failed, "
            f"{self.report.lost} lost, {sum(self._faults.values())} faults, {len(self.report.violations)} violations"
        )

    def _drained(self) -> bool:
        try:
            return self.queue.drained()
        except TimeoutqError:
            return False

    def _all_paused(self, producers: Iterable[_Child]) -> bool:
        for line in self.tails["accepted"].lines():
            if line.startswith("#paused "):
                self._paused.add(int(line.removeprefix("#paused ")))
            else:
                self._accepted.add(line)
        return {child.process.pid for child in producers} <= self._paused

    def _account(self) -> None:
        done, failed = self._found(self._accepted, "done"), self._found(self._accepted, "failed")
        found = {child for task in done if task.startswith("parent-") for child in children(task)}
        done |= self._found(found, "done")
        failed |= self._found(found, "failed")
        expected = self._accepted | found
        lost = expected - done - failed
        if lost:
            self._accuse(f"I2: {len(lost)} tasks are lost, such as {sorted(lost)[:5]}")
        report = self.report
        report.put += len(expected)
        report.done += len(done)
        report.failed += len(failed)
        report.lost += len(lost)
        self._accepted.clear()

    def _found(self, tasks: Iterable[str], state: str) -> set[str]:
        asked, found = sorted(tasks), set[str]()
        for at in range(0, len(asked), 500):
            some = asked[at : at + 500]
            answers = self.raw.smismember(self.queue.operations.key(state), some)
            found.update(task for task, answer in zip(some, answers, strict=True) if answer)
        return found

    def _members(self) -> int:
        # how much the keys hold in all, without the done tasks, of which there are as many as are kept
        sizes = {b"set": "SCARD", b"zset": "ZCARD", b"hash": "HLEN", b"list": "LLEN", b"stream": "XLEN"}
        kept, total = {self.queue.operations.key("done").encode(), self.queue.operations.key("done_at").encode()}, 0
        for key in set(self.raw.scan_iter(count=1000)) - kept:
            command = sizes.get(self.raw.type(key))
            total += int(self.raw.execute_command(command, key)) if command else 1
        return total

    def _tidy(self) -> None:
        # a person has looked at what failed: some of it is tried again, and the rest forgotten
        failed = [task.decode() for task in self.raw.smembers(self.queue.operations.key("failed"))]
        again = set(self.rng.sample(sorted(failed), min(10, len(failed))))
        if again:
            self.queue.retry_failed(*again)
        others = sorted(set(failed) - again)
        if others:
            self.queue.forget(others)


def _figures_of(pid: int) -> Iterator[tuple[str, float]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" in status:  # none for one that has ended and was not waited for
        yield "RSS", 1024.0 * int(status["VmRSS"][0])
        yield "threads", float(status["Threads"][0])
        yield "descriptors", float(len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208  # names only, and many times


def main(words: Sequence[str] | None = None) -> int:
    """Soak, from a terminal."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, apart from the last look at the queue")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--pace", type=float, default=40.0, help="tasks a second of each of two producers")
    parser.add_argument("--warm-up", type=float, metavar="SECONDS", help="what is not judged (default: 30 %%)")
    parser.add_argument(
        "--least-span", type=float, metavar="SECONDS", default=60.0, help="what is long enough to judge"
    )
    parser.add_argument("--leak", action="append", choices=LEAKS, default=[], help="a mistake that must be found")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    if not Path("/proc/self/status").exists():
        parser.error("memory and descriptors are read from /proc, which this machine has not")
    signals = Signals()
    signals.catch()
    errors = Console(stderr=True)
    with Progress(
        TextColumn("soak"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
        console=errors, transient=True,
    ) as progress:  # fmt: skip
        bar = progress.add_task("", total=60 * given.minutes)

        def tell(text: str) -> None:
            progress.update(bar, completed=soak.now)
            if text:
                progress.console.print(text, markup=False, highlight=False)

        soak = Soak(
            seconds=60 * given.minutes,
            seed=given.seed,
            binary="redis-server" if given.server == "redis" else None,
            leaks=given.leak,
            warm_up=given.warm_up,
            least_span=given.least_span,
            pace=given.pace,
            signals=signals,
            tell=tell,
        )
        report = soak.run()
    if given.json:
        sys.stdout.write(report.json() + "\n")
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 130))
    return report.code


if __name__ == "__main__":
    sys.exit(main())
