"""The ground of a measurement: the server, a bare client, and the queues and processes that the benchmark makes.

`report.py` opens one ground for a whole run, and passes the ground to every measurement. Each queue and each process is
noted before it is made, and goes when its measurement has ended, also by an error or by Ctrl-C. Nothing else on the
server is touched.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from timeoutq.bench import handlers
from timeoutq.bench.terms import Figure, Readings, Sizes
from timeoutq.calls import Argument
from timeoutq.client import Queue
from timeoutq.connection import Server
from timeoutq.embedded import EmbeddedServer
from timeoutq.errors import TimeoutqError
from timeoutq.scripts import SIZES
from timeoutq.troubles import LINK_ERRORS

T = TypeVar("T")

PATIENCE = 60.0
"""How long a worker of the benchmark may take for what usually takes a moment, seconds."""

# runs `timeoutq …` as a user does; only, the import makes the process end when the benchmark ends
_START = f"import {handlers.__name__}; from timeoutq.cli import main; main()"

_FILL = """
local key, kind, format, first, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local score, step = tonumber(ARGV[5]), tonumber(ARGV[6])
for from = first, first + count - 1, 1000 do
  local words = {}
  for i = from, math.min(from + 999, first + count - 1) do
    if kind == 'ZADD' then
      words[#words + 1] = string.format('%.0f', score + i * step)
    end
    words[#words + 1] = string.format(format, i)
    if kind == 'HSET' then
      words[#words + 1] = 'bench#1'
    end
  end
  redis.call(kind, key, unpack(words))
end
"""


class Ground:
    """The place of a run; `with Ground(url, sizes) as ground`."""

    def __init__(self, url: str | None, sizes: Sizes) -> None:
        """Prepare: the server is the one at `url`, or for None an embedded one."""
        self.sizes = sizes
        self.round = 1
        """The round that is being taken, from 1."""
        self.tell: Callable[[str], None] = lambda words: None
        """Shows how far a measurement that takes minutes has come."""
        self._given = url
        self._embedded: EmbeddedServer | None = None
        self._made: list[str] = []
        self._crews: list[Crew] = []
        self._scripts: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="timeoutq-bench-")
        self._files = 0

    def __enter__(self) -> Self:
        try:
            if self._given is None:
                self._embedded = EmbeddedServer().start()
                self.url = self._embedded.url
            else:
                self.url = self._given
            self.server = Server(self.url, None, 5.0)
            self.bare: Any = self.server.client(asynchronous=False, read_timeout=PATIENCE)
            # if something is wrong with the server, a `Queue` says so best
            with Queue("bench", self.url, deadline=2) as first:
                first.server()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _undisturbed():
            try:
                for crew in list(self._crews):
                    crew.end()
                if self._embedded is None:
                    for name in list(self._made):
                        with told(self):
                            self._remove(name)
            finally:
                self._leave()

    def _leave(self) -> None:
        if hasattr(self, "bare"):
            self.bare.close()
        if self._embedded is not None:
            self._embedded.stop()
        self._folder.cleanup()

    @property
    def embedded(self) -> bool:
        """Whether the server is this run's own."""
        return self._embedded is not None

    def turned(self, things: Iterable[T]) -> list[T]:
        """Give things that are measured one after the other, in an order that turns from round to round.

        What is measured first or last on a machine may seem slower; so each thing has each place in turn.
        """
        line = [*things]
        at = (self.round - 1) % max(1, len(line))
        return line[at:] + line[:at]

    # ---- queues

    @contextmanager
    def queue(self, *, timeout: float = 30.0, **settings: Any) -> Iterator[Queue]:
        """Make a queue under a new name, with settings of `Queue`; the queue is removed when the block ends."""
        name = f"bench-{secrets.token_hex(6)}"
        self._made.append(name)
        # a busy machine may need long for a large put
        with Queue(name, self.url, timeout=timeout, deadline=PATIENCE, **settings) as opened:
            yield opened
        # only without an error: after one, `__exit__` first ends the processes that work on the queue
        self._remove(name)

    def _remove(self, name: str) -> None:
        with Queue(name, self.url, deadline=30) as opened:
            for _ in range(3):
                opened.purge()
                keys = [opened.operations.key(key) for keys in SIZES.values() for key in keys.split()]
                if self.bare.execute_command("EXISTS", *keys) == 0:
                    self._made.remove(name)
                    self._settle()
                    return
                time.sleep(0.1)  # a process that has just ended may have written something more
        raise TimeoutqError(f"queue {name} of the benchmark could not be removed: `timeoutq purge {name}` does it")

    def _settle(self) -> None:
        # another thread of the server frees the removed keys: wait for this thread, or it disturbs the next measurement
        until = time.monotonic() + 10
        while int(self.info("memory").get("lazyfree_pending_objects", 0)) and time.monotonic() < until:
            time.sleep(0.01)

    def fill(self, key: str, count: int, *, kind: str = "SADD", first: int = 0, at: float = 0, step: float = 0) -> None:
        """Fill a set (SADD), a sorted set (ZADD: the score of number i is at + i * step) or a hash (HSET) with ids."""
        chunk = 5000
        sha = self.load(_FILL)
        for start in range(first, first + count, 10 * chunk):
            pipe = self.bare.pipeline(transaction=False)
            for part in range(start, min(start + 10 * chunk, first + count), chunk):
                n = min(chunk, first + count - part)
                pipe.execute_command("EVALSHA", sha, 1, key, kind, ID, part, n, f"{at:.0f}", step)
            pipe.execute()

    # ---- the bare client

    def load(self, text: str) -> str:
        """Load a script into the server; give the digest of the script."""
        if text not in self._scripts:
            self._scripts[text] = self.bare.execute_command("SCRIPT", "LOAD", text).decode()
        return self._scripts[text]

    def evalsha(self, text: str, keys: Sequence[str], *args: Argument) -> tuple[Argument, ...]:
        """Give the words of the command that calls a script."""
        return ("EVALSHA", self.load(text), len(keys), *keys, *args)

    def info(self, section: str) -> dict[str, Any]:
        """Give a section of INFO."""
        return dict(self.bare.execute_command("INFO", section))

    def used_memory(self) -> int:
        """Give how many bytes the server uses, once that is steady."""
        # what was unlinked before is freed by another thread, and hash tables go on growing for a moment
        last = -1
        for _ in range(200):
            info = self.info("memory")
            used = int(info["used_memory"])
            if used == last and not int(info.get("lazyfree_pending_objects", 0)):
                break
            last = used
            time.sleep(0.05)
        return last

    def room(self) -> int:
        """Give how many bytes more the server may use."""
        memory = self.info("memory")
        limit, used = int(memory.get("maxmemory", 0)), int(memory["used_memory"])
        if limit:
            return limit - used
        if self.embedded and Path("/proc/meminfo").exists():
            lines = Path("/proc/meminfo").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        return int(memory.get("total_system_memory", 0)) - used

    def script_time(self) -> tuple[int, int]:
        """Give how many verbs the server has carried out, and for how many µs."""
        stats = self.info("commandstats")
        found = [stats[name] for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats]
        return sum(int(one["calls"]) for one in found), sum(int(one["usec"]) for one in found)

    def clock_offset_ms(self) -> float:
        """Give by how many ms the server's time is ahead of our monotonic clock."""
        best = (float("inf"), 0.0)
        for _ in range(20):
            asked = time.monotonic_ns()
            seconds, micros = self.bare.execute_command("TIME")
            answered = time.monotonic_ns()
            there = int(seconds) * 1000 + int(micros) / 1000
            best = min(best, (answered - asked, there - (asked + answered) / 2e6))
        return best[1]

    # ---- processes

    @contextmanager
    def worker(
        self,
        queue: Queue,
        handler: str,
        *words: str,
        url: str | None = None,
        environment: dict[str, str] | None = None,
        others: Sequence[str] = (),
    ) -> Iterator[Crew]:
        """Run `timeoutq worker` on a queue, and wait until all its processes have given a sign of life.

        `others` are the names of queues that the worker has besides, behind the first.
        """
        before = self.workers(queue)
        count = int(words[words.index("-p") + 1]) if "-p" in words else 1
        path = f"{handlers.__name__}:{handler}"
        with self.command(
            "worker", queue.name, *others, path, "--log-level", "warning", *words, url=url, environment=environment
        ) as crew:
            crew.until(lambda: self.workers(queue) >= before + count, "start")
            yield crew

    @contextmanager
    def command(self, *words: str, url: str | None = None, environment: dict[str, str] | None = None) -> Iterator[Crew]:
        """Run `timeoutq words…` until the block ends."""
        self._files += 1
        crew = Crew(Path(self._folder.name) / f"{self._files}", words, url or self.url, environment or {})
        self._crews.append(crew)
        crew.start()
        yield crew
        crew.end()
        self._crews.remove(crew)

    def workers(self, queue: Queue) -> int:
        """Give how many workers of a queue have given a sign of life."""
        return int(self.bare.execute_command("ZCARD", queue.operations.key("workers")))

    def explain(self, error: BaseException) -> TimeoutqError:
        """Turn an error that the bare client raised into one of ours."""
        return self.server.explain(error)


ID = "https://example.com/articles/2026/of-the-benchmark/%012d.html"
"""The format of the ids: 68 bytes."""


def ids(count: int, first: int = 0) -> list[str]:
    """Give `count` ids, numbered from `first` on."""
    return [ID % number for number in range(first, first + count)]


def cpu_ms(info: Any) -> float:
    """Read from a reply of INFO how much CPU time the server's main thread has had, ms."""
    return 1000 * (float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"]))


class Crew:
    """A process that the benchmark starts, with the processes that this process starts itself."""

    def __init__(self, path: Path, words: Sequence[str], url: str, environment: dict[str, str]) -> None:
        self._log = path.with_suffix(".log")
        self._notes = path.with_suffix(".notes")
        self._words = words
        self._environment = {**os.environ, "TIMEOUTQ_URL": url, handlers.NOTES: str(self._notes), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; the address goes into its environment, so that no argument list shows a password."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-c", _START, *self._words],
                env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def pids(self) -> list[int]:
        """Give the id of the process and, where the system tells them, those of its children."""
        if self._process is None or self._process.poll() is not None:
            return []
        found = [self._process.pid]
        with suppress(OSError):
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
            found += map(int, children.split())
        return found

    def until(self, predicate: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Ask `predicate` until its answer is true; give the answer.

        Raises `TimeoutqError` with the last words of the process if the process ends, or takes more than `seconds`.
        """
        latest = time.monotonic() + seconds
        while True:
            found = predicate()
            if found:
                return found
            assert self._process is not None
            code = self._process.poll()
            if code is not None or time.monotonic() > latest:
                how = f"ended with status {code}" if code is not None else f"did not {what} in {seconds:g} s"
                said = self._log.read_text("utf-8", "replace").strip()[-500:]
                raise TimeoutqError(f"`timeoutq {self._words[0]}` of the benchmark {how}; it said: {said or 'nothing'}")
            time.sleep(0.01)

    def notes(self) -> dict[str, list[int]]:
        """Give what the handlers noted: for each task, when each attempt began (ns of the monotonic clock)."""
        found: dict[str, list[int]] = {}
        with suppress(FileNotFoundError):
            for line in self._notes.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    at, _, task = line.rstrip().partition(b" ")
                    found.setdefault(task.decode(), []).append(int(at))
        return found

    def kill(self) -> None:
        """End the process as a crash would."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """End the process and those that it started; workers first give their leases back."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                if sys.platform != "win32":
                    for pid in self.pids():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                process.kill()
                process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement: it gives one figure, or several figures that are read together."""

    name: str
    figures: Sequence[Figure]
    take: Callable[[Ground], Readings]
    once: bool = False
    """Taken in the first round only: the figures are the same in each round, or take too long."""
    heavy: bool = False
    """Takes minutes or gigabytes: left out with --quick."""
    asked: bool = False
    """Taken only when the user asks for it by name."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    # a second Ctrl-C must not stop the removal that the first one has started
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def told(ground: Ground) -> Iterator[None]:
    """Raise errors of the bare client and of the server as errors of ours."""
    try:
        yield
    except LINK_ERRORS as error:
        raise ground.explain(error) from error
