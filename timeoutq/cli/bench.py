"""`timeoutq bench`: how many tasks a second a server gives here, and how soon an idle worker picks up a task.

Each queue and each process that is made for a figure goes when it has been taken, also by an error or by Ctrl-C.
"""

from __future__ import annotations

import math
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import timeoutq
from timeoutq.cli.saying import refuse
from timeoutq.client import Queue
from timeoutq.server import address
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import MissingExtra, TimeoutqError
from timeoutq.words.model import Lease, raw

if TYPE_CHECKING:
    from timeoutq.functions import App

T = TypeVar("T")

PATIENCE = 60.0  # how long a worker may take for what usually takes a moment, seconds
ID = "https://example.com/articles/2026/of-the-benchmark/%012d.html"  # the format of the ids: 68 bytes
NOTES = "TIMEOUTQ_BENCH_NOTES"
"""The environment variable that names the file where handlers note what they began, and when."""

# runs `timeoutq …` as a user does; only, the import makes the process end when the measurement ends
_START = f"import {__name__}; from timeoutq.cli import main; main()"


def ids(count: int, first: int = 0) -> list[str]:
    """Give `count` ids, numbered from `first` on."""
    return [ID % number for number in range(first, first + count)]


# ---- in the processes of workers: handlers, which do nothing, note when they began, or run calls


def _watch_parent() -> None:
    """End the process when the measurement ends, however it ends: it alone holds the standard input open."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
    while os.read(0, 1):
        pass
    os._exit(1)


_notes = -1
if NOTES in os.environ:
    _notes = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()


async def nothing(lease: Lease) -> None:
    """Do nothing."""


async def note(lease: Lease) -> None:
    """Write down when the handler began."""
    os.write(_notes, b"%d %s\n" % (time.monotonic_ns(), raw(lease.task)))


def app(name: str, url: str | None = None) -> App:
    """Give an app whose calls go to this queue. Needs the extra `functions`, as only calls do."""
    from timeoutq.functions import App

    made = App(name, url=url)

    @made.task
    async def nothing(number: int, word: str) -> None:
        """Do nothing."""

    return made


def __getattr__(name: str) -> object:
    """Give the handler `calls`, which runs the calls of `app`."""
    if name != "calls":
        raise AttributeError(name)
    from timeoutq.functions import Calls

    return Calls(app("bench"))


# ---- the ground of a measurement: the server, queues and processes


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Clean up: a second Ctrl-C must not stop what the first one has started."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Ground:
    """The place of a run; `with Ground(url) as ground`."""

    def __init__(self, url: str | None) -> None:
        """Prepare: the server is the one at `url`, or for None an embedded one."""
        self.embedded = url is None
        self.url = url or ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-bench-")))
            if self.embedded:
                self.url = stack.enter_context(EmbeddedServer()).url
            # if something is wrong with the server, a `Queue` says so best
            with Queue("bench", self.url, deadline=2) as first:
                info = first.server()
            kind = "valkey" if "valkey_version" in info else "redis"
            self.server = f"{kind} {info.get(f'{kind}_version', '?')}"
            # SIGTERM ends a run as Ctrl-C does: cleaned up
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with _undisturbed():
            self._stack.close()

    @contextmanager
    def queue(self, *, timeout: float = 30.0, **settings: Any) -> Iterator[Queue]:
        """Make a queue under a new name, with settings of `Queue`; the queue is removed when the block ends."""
        name = f"bench-{secrets.token_hex(6)}"
        try:
            # a busy machine may need long for a large put
            with Queue(name, self.url, timeout=timeout, deadline=PATIENCE, **settings) as opened:
                yield opened
        finally:
            with _undisturbed():
                self._remove(name)

    def _remove(self, name: str) -> None:
        with Queue(name, self.url, deadline=30) as opened:
            for _ in range(3):
                opened.purge()
                if not opened.exists() and not opened.workers():
                    return
                time.sleep(0.1)  # a process that has just ended may have written something more
        raise TimeoutqError(f"queue {name} of the benchmark could not be removed: `timeoutq purge {name}` does it")

    @contextmanager
    def worker(self, queue: Queue, handler: Callable[[Lease], object] | str, *words: str, **how: Any) -> Iterator[Crew]:
        """Run `timeoutq worker` on a queue, as `command` does; wait until its processes have given a sign of life."""
        before = queue.stats().workers
        count = int(words[words.index("-p") + 1]) if "-p" in words else 1
        path = handler if isinstance(handler, str) else f"{handler.__module__}:{handler.__name__}"
        with self.command("worker", queue.name, path, "--log-level", "warning", *words, **how) as crew:
            crew.until(lambda: queue.stats().workers >= before + count, "start")
            yield crew

    @contextmanager
    def command(self, *words: str, url: str = "", environment: Mapping[str, str] | None = None) -> Iterator[Crew]:
        """Run `timeoutq words…` until the block ends."""
        place = self._folder / secrets.token_hex(6)
        crew = Crew(place, words, {"TIMEOUTQ_URL": url or self.url, **(environment or {})})
        try:
            yield crew
        finally:
            with _undisturbed():
                crew.end()


class Crew:
    """A process that a measurement starts, with the processes that this process starts itself."""

    def __init__(self, path: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; the address goes into its environment, so that no argument list shows a password."""
        self._log, self._notes, self._name = path.with_suffix(".log"), path.with_suffix(".notes"), words[0]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-c", _START, *words],
                env={**os.environ, NOTES: str(self._notes), **environment},
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def until(self, predicate: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Ask `predicate` until its answer is true; raises `TimeoutqError` if the process ends, or takes too long."""
        latest = time.monotonic() + seconds
        while not (found := predicate()):
            code = self.process.poll()
            if code is not None or time.monotonic() > latest:
                how = f"ended with status {code}" if code is not None else f"did not {what} in {seconds:g} s"
                said = self._log.read_text("utf-8", "replace").strip()[-500:]
                raise TimeoutqError(f"`timeoutq {self._name}` of the benchmark {how}; it said: {said or 'nothing'}")
            time.sleep(0.01)
        return found

    def notes(self) -> dict[str, list[int]]:
        """Give what the handlers noted: for each task, when each attempt began (ns of the monotonic clock)."""
        found: dict[str, list[int]] = {}
        with suppress(FileNotFoundError):
            for line in self._notes.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    at, _, task = line.rstrip().partition(b" ")
                    found.setdefault(task.decode(), []).append(int(at))
        return found

    def noted(self, count: int) -> dict[str, list[int]] | None:
        """Give what the handlers noted, once there are notes of so many tasks."""
        notes = self.notes()
        return notes if len(notes) >= count else None

    def end(self) -> None:
        """End the process and those that it started; workers first give their leases back."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                if sys.platform == "win32":
                    self.process.kill()
                else:
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Figure(NamedTuple):
    """One line of the table; the value is None where a package is not installed."""

    figure: str
    value: float | None
    unit: str
    about: str


def _rate(seconds: float, step: Callable[[], int]) -> float:
    """Take steps for so long, or until a step handles no task; give the tasks a second."""
    step()  # connects
    began, done, took = time.perf_counter(), 0, 1e-9
    while took < seconds and (some := step()):
        done += some
        took = time.perf_counter() - began
    return done / took


def _fill(seconds: float, rate: int, step: Callable[[], int]) -> int:
    """Put enough tasks for `rate` a second, or as many as can be put in `seconds`; give how many there are."""
    until, tasks = time.monotonic() + seconds, step()
    while tasks < rate * seconds and time.monotonic() < until:
        tasks += step()
    return tasks


def _putting(queue: Queue, each: int = 1000) -> Callable[[], int]:
    firsts = count(step=each)
    return lambda: len(queue.put(ids(each, next(firsts))))


def _work(queue: Queue, each: int) -> int:
    return len(queue.ack(queue.claim(each)))


def _put(ground: Ground, seconds: float) -> Iterator[Figure]:
    for each, about in ((1, "put one by one, over one connection"), (1000, "put of 1,000 ids a call")):
        with ground.queue() as queue:
            yield Figure(f"put-{each}", _rate(seconds, _putting(queue, each)), "tasks/s", about)


def _claim(ground: Ground, seconds: float) -> Iterator[Figure]:
    for each in (1, 100):
        with ground.queue() as queue:
            _fill(seconds, 100_000, _putting(queue))
            rate = _rate(seconds, partial(_work, queue, each))
            yield Figure(f"claim-{each}", rate, "tasks/s", f"claim + ack of {each}, over one connection")


class Sight(NamedTuple):
    """What is seen of a queue at one moment."""

    at: float
    acked: int
    cpu: float = 0.0  # the CPU time that the server has had, seconds, where that is asked


def watch(look: Callable[[], Sight], tasks: int, window: float) -> tuple[Sight, Sight]:
    """Watch workers for `window` seconds, or until nearly all tasks are acked; give the first and the last sight."""
    began = look()
    time.sleep(window / 10)
    first = last = look()
    while last.at < first.at + window:
        time.sleep(window / 40)
        seen = look()
        if seen.acked > 0.95 * tasks:
            break  # it is as if the window had ended a moment before
        last = seen
    if last is not first:
        return first, last
    # there were too few tasks to be watched: the whole counts
    while last.acked < tasks:
        time.sleep(window / 40)
        last = look()
    return Sight(began.at, 0, began.cpu), last


def _acks(ground: Ground, queue: Queue, handler: Any, tasks: int, seconds: float) -> float:
    """Let a worker run; give the acks a second."""

    def look() -> Sight:
        stats = queue.stats()
        return Sight(stats.now, stats.counters.get("acked", 0))

    with ground.worker(queue, handler) as crew:
        crew.until(lambda: look().acked, "ack anything")
        first, last = watch(look, tasks, seconds)
    return (last.acked - first.acked) / max(1e-3, last.at - first.at)


def _worker(ground: Ground, seconds: float) -> Iterator[Figure]:
    with ground.queue() as queue:
        tasks = _fill(seconds, 100_000, _putting(queue))
        rate = _acks(ground, queue, nothing, tasks, seconds)
        yield Figure("worker", rate, "tasks/s", "one worker process, whose handler does nothing")


def _calls(ground: Ground, seconds: float) -> Iterator[Figure]:
    with ground.queue() as queue, closing(app(queue.name, ground.url)) as sending:
        calls = [sending.functions["nothing"].call(7, "seven")] * 1000
        tasks = _fill(seconds, 50_000, lambda: len(sending.put(calls)))
        rate = _acks(ground, queue, f"{__name__}:calls", tasks, seconds)
        yield Figure("calls", rate, "calls/s", "one worker process, which runs calls of a function that does nothing")


def waits(ground: Ground, drive: Callable[[Callable[[str], object]], object]) -> list[float]:
    """Give for each task that `drive` puts how long it took from the call of put to the handler, ms."""
    put: dict[str, int] = {}
    with ground.queue() as queue, ground.worker(queue, note) as crew:

        def put_one(task: str) -> None:
            put[task] = time.monotonic_ns()
            queue.put(task)

        queue.put("first")
        crew.until(lambda: crew.noted(1), "pick up a task")
        drive(put_one)
        notes = crew.until(lambda: crew.noted(len(put) + 1), "pick up all tasks")
    return [(notes[task][0] - at) / 1e6 for task, at in put.items()]


def _pickup(ground: Ground, seconds: float) -> Iterator[Figure]:
    def drive(put: Callable[[str], object]) -> None:
        until = time.monotonic() + seconds
        for number in count():
            time.sleep(0.01)  # the worker is idle again
            put(f"task {number}")
            if time.monotonic() > until:
                return

    waited = waits(ground, drive)
    for part in (50, 99):
        about = f"from the call of put to the handler in an idle worker: {part} of 100 tasks wait no longer"
        yield Figure(f"pickup-p{part}", percentile(waited, part / 100), "ms", about)


def percentile(values: Sequence[float], part: float) -> float:
    """Give the smallest value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


MEASURES: Mapping[str, Callable[[Ground, float], Iterator[Figure]]] = {
    "put": _put, "claim": _claim, "worker": _worker, "pickup": _pickup, "calls": _calls,
}  # fmt: skip


def measure(url: str | None, only: Sequence[str], seconds: float, tell: Callable[[str], object]) -> dict[str, Any]:
    """Measure the server at `url`, or an embedded one, each figure for so many seconds; give where, and the figures."""
    refuse(seconds <= 0, "--for 0: a figure needs some time, such as 500ms")
    asked = [name for words in only for name in words.replace(",", " ").split()]
    for name in asked:
        refuse(name not in MEASURES, f"no measurement has the name {name!r:.60}; there are: {', '.join(MEASURES)}")
    names, figures = [name for name in MEASURES if name in asked or not asked], list[Figure]()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with Ground(url) as ground:
        for at, name in enumerate(names, 1):
            tell(f"measures {name}, {at} of {len(names)}")
            try:
                figures += MEASURES[name](ground, seconds)
            except MissingExtra as error:
                if asked:  # by its name
                    raise
                figures.append(Figure(name, None, "-", str(error)))
        return about(ground, began) | {"seconds": seconds, "figures": [figure._asdict() for figure in figures]}


def about(ground: Ground, began: str) -> dict[str, Any]:
    return {
        "began": began,
        "server": ground.server,
        "url": "embedded" if ground.embedded else address.redact(ground.url),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "timeoutq": timeoutq.__version__,
    }


def number(value: float | None) -> str:
    """Write a number with three digits that count."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
